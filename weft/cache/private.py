"""Files and folders that only this user (or root) may write, under names that nobody can guess, with no symbolic link followed.

What another user could have put there is never read: a kernel's code runs with this user's rights.
Read first: `read_private`, `write_whole`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_TROUBLE = (OSError, ValueError)
"""Exceptions of file system functions; ValueError is for a name with a zero byte."""

MOST_BYTES = 2**30
"""A larger file is not a cache entry: a cubin or a compiled kernel has less than a MiB."""

LITTER_AGE_S = 3600.0
"""Files of killed processes are removed after this time; no build takes as long (`weft.emulator.toolchain` limits it)."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a FIFO in a file's place must not block


def distrust(status: os.stat_result) -> str | None:
    """Return why another user could have written a file or folder, or None if nobody else may."""
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write it (mode {stat.S_IMODE(status.st_mode):o}; chmod go-w)"
    return None


def read_private(path: Path) -> tuple[bytes, os.stat_result] | str:
    """Return a file's bytes and status, or a sentence that says why it must not be used.

    Errors: FileNotFoundError, other OSErrors, ValueError.
    """
    descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        reason = distrust(status)
        if reason is None and status.st_size > MOST_BYTES:
            reason = f"it has {status.st_size} bytes"
        return reason or (file.read(MOST_BYTES + 1), status)


def make_private_folder(path: Path, *, follow: bool = False) -> str | None:
    """Create a folder, and its parents, for this user only. Return why it must not be used, or None. `follow`: it may be a symbolic link to such a folder.

    Errors: OSError, ValueError.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    return folder_trouble(path, follow=follow)


def folder_trouble(path: Path, *, follow: bool = False) -> str | None:
    """Return why an existing folder must not be used, or None. Errors: OSError, ValueError."""
    status = path.stat() if follow else path.lstat()
    return distrust(status) if stat.S_ISDIR(status.st_mode) else "it is not a folder"


def unique_name(stem: str) -> str:
    """Return a file name that no other thread, process or container chooses."""
    return f"{stem}.{os.getpid()}.{secrets.token_hex(8)}.tmp"


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file that must not exist yet. Errors: OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode), "wb") as file:
        file.write(data)


def write_whole(path: Path, data: bytes, temporary: Path | None = None) -> None:
    """Write a file atomically: a reader sees the old or the new one, and a link in its place is replaced, not followed. `temporary`: its temporary name, in the
    same file system. Errors: OSError.
    """
    temporary = temporary or path.with_name(unique_name("weft"))
    try:
        write_new(temporary, data)
        os.replace(temporary, path)
    except BaseException:  # also for KeyboardInterrupt: remove the unfinished file
        remove(temporary)
        raise


def remove(path: Path, aside: Path | None = None) -> None:
    """Remove a file, or whatever is in its place: a folder is moved into the folder `aside`, for `sweep`. What cannot be removed stays."""
    try:
        path.unlink(missing_ok=True)
    except FILE_TROUBLE:
        if aside is not None:
            try:
                os.replace(path, aside / unique_name("wrong"))
            except FILE_TROUBLE:  # read-only: it stays, and stays a miss
                pass


def sweep(folder: Path, prefix: str = "", *, age_s: float = LITTER_AGE_S) -> int:
    """Remove this user's files in `folder` with names that begin with `prefix` and older than `age_s`; return their number."""
    oldest, removed = time.time() - age_s, 0
    try:
        found = list(os.scandir(folder))
    except FILE_TROUBLE:
        return 0
    for entry in found:
        try:
            status = entry.stat(follow_symlinks=False)
            if not entry.name.startswith(prefix) or status.st_mtime > oldest or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
                continue
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
            removed += 1
        except FILE_TROUBLE:  # another process swept it
            continue
    return removed


BUILD_PREFIX = "weft-build-"
_swept: set[str] = set()


@contextmanager
def build_folder(parent: Path | None = None) -> Iterator[Path]:
    """A private folder for one build, removed afterwards; `parent` None: in the system's folder for temporary files.

    The first build of a process removes leftovers of killed processes there.
    """
    place = tempfile.gettempdir() if parent is None else os.fspath(parent)
    if place not in _swept:
        _swept.add(place)
        sweep(Path(place), BUILD_PREFIX)
    with tempfile.TemporaryDirectory(dir=place, prefix=BUILD_PREFIX, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
