"""Support for fork: in a forked child, locks that other threads of the parent held are free, and half-finished state is reset.

Owns the list of locks; `multiprocessing` with "spawn" or "forkserver" needs none of this. Read first: `lock`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_resets: list[Callable[[], None]] = []


def lock() -> threading.Lock:
    """Return a lock that is free in a forked child."""
    made = threading.Lock()
    _locks.add(made)
    return made


def recursive_lock() -> Any:
    """Return a reentrant lock that is free in a forked child."""
    made = threading.RLock()
    _locks.add(made)
    return made


def in_child(reset: Callable[[], None]) -> Callable[[], None]:
    """Call `reset` in every forked child, before anything else of it runs. Can be used as a decorator."""
    _resets.append(reset)
    return reset


def _free_all() -> None:
    for held in list(_locks):
        held._at_fork_reinit()
    for reset in _resets:
        reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
