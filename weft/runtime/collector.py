"""Python's garbage collector waits while a kernel is made.

A compilation makes some ten thousand objects, which soon go by themselves. They make Python walk through all objects of the process now and then, torch's
included: 60 to 110 ms in the middle of a first call. Read first: `paused`.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .. import forking

P = ParamSpec("P")
T = TypeVar("T")

_lock = forking.lock()
_calls = 0
_was_on = False


def paused(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with garbage collection disabled while it runs in any thread; the last thread to end enables it again if it was on."""

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        _enter()
        try:
            return function(*arguments, **keywords)
        finally:
            _leave()

    return call


def _enter() -> None:
    global _calls, _was_on
    with _lock:
        if not _calls:
            _was_on = gc.isenabled()
            gc.disable()
        _calls += 1


def _leave() -> None:
    global _calls
    with _lock:
        _calls = max(0, _calls - 1)  # already 0 in a child that was forked meanwhile
        if not _calls and _was_on:
            gc.enable()


@forking.in_child
def _turn_on() -> None:
    """Enable it in a forked child, where the compiling threads do not exist."""
    global _calls
    if _calls and _was_on:
        gc.enable()
    _calls = 0
