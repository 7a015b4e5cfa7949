"""One builder per key, across threads, processes and containers that share a folder.

A lock is a file that its holder has locked with flock; the system releases it when the holder dies. Where that does not work
(a read-only folder, a file system without locks) nobody waits, and a kernel may be built twice.
Read first: `only_builder`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft import forking
from weft.cache.private import FILE_TROUBLE

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

WAIT_LIMIT_S = 120.0
"""Other processes do not wait longer for a builder. A large kernel takes a few seconds, the emulator's runtime 5, ten times that on a busy machine."""

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1


@contextmanager
def only_builder(path: Path, limit_s: float = WAIT_LIMIT_S) -> Iterator[bool]:
    """Hold the lock file `path` within a `with` block. Yields False if it could not be acquired in time, or not at all; the work is done anyway."""
    descriptor = _acquired(path, limit_s)
    if descriptor is not None:
        _held.add(descriptor)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            try:
                os.unlink(path)  # first, so that waiting processes find it removed and create a new one
            except OSError:
                pass
            _held.discard(descriptor)
            os.close(descriptor)


_held: set[int] = set()


@forking.in_child
def _leave_to_parent() -> None:
    """Close inherited lock files in a forked child, which would otherwise hold them after the parent's end."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


def _acquired(path: Path, limit_s: float) -> int | None:
    end, pause_s = time.monotonic() + limit_s, _SHORTEST_PAUSE_S
    while fcntl is not None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except FILE_TROUBLE:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
            is_held = False  # its last holder has removed it: create a new one
        except BlockingIOError:
            is_held = True
        except OSError:  # locks are not supported here
            os.close(descriptor)
            return None
        except BaseException:  # re-raised; otherwise the descriptor would leak
            os.close(descriptor)
            raise
        os.close(descriptor)
        if is_held:
            if time.monotonic() > end:
                return None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FILE_TROUBLE:
        return False
