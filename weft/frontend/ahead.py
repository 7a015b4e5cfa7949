"""Compiles the kernels of a graph's regions in several threads while torch still compiles: the first step then waits only for the slowest kernel.

A call is prepared with tensors that have the traced sizes, strides and types, and no memory of their own: nothing is launched, and nothing reads them.
What cannot be prepared is prepared by the first call, which also tells what is wrong. Read first: `start`, `likenesses`.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from ..options import current
from .aten.rules import Declined, hint

log = logging.getLogger(__name__)

MOST_THREADS = 16
LONGEST_WAIT_S = 10.0
"""How long a fork waits: a child must not be forked while a thread of its parent compiles."""

_running: weakref.WeakSet[Future[None]] = weakref.WeakSet()


def start(
    calls: Iterable[tuple[Callable[..., None], Sequence[Any]]], most_threads: int = MOST_THREADS, after: Callable[[], None] | None = None
) -> list[Future[None]]:  # fmt: skip
    """Prepare calls in background threads. Each is a function prepare(values) and the likeness of its values; returns their futures. after: called when all
    have ended. most_threads: compilers release the interpreter's lock; reading records holds it, so more than two threads gain nothing for them.
    """
    wanted = list(calls)
    if not wanted:
        return []
    pool = ThreadPoolExecutor(min(len(wanted), most_threads, os.cpu_count() or 1), thread_name_prefix="weft-ahead")
    futures = [pool.submit(contextvars.copy_context().run, _prepare, prepare, values) for prepare, values in wanted]
    _running.update(futures)
    if after is not None:  # begins when a thread is free; unfinished calls keep theirs
        _running.add(pool.submit(contextvars.copy_context().run, _end, list(futures), after))
    pool.shutdown(wait=False)
    return futures


def _end(futures: Sequence[Future[None]], after: Callable[[], None]) -> None:
    concurrent.futures.wait(futures)
    try:
        after()
    except Exception as error:  # noqa: BLE001  (what comes after only saves time in other processes)
        log.debug("after kernels were made ahead: %s", error)


def wait_for_all() -> None:
    """Wait until all background preparations have ended."""
    concurrent.futures.wait(list(_running))


def _prepare(prepare: Callable[..., None], likes: Sequence[Any]) -> None:
    try:
        with torch.no_grad():
            prepare([like.value() if isinstance(like, Likeness) else like for like in likes])
    except Exception as error:  # noqa: BLE001  (the first call says what is wrong)
        log.debug("a kernel is not made ahead: %s", error)


@dataclass(frozen=True)
class Likeness:
    """The properties of a traced tensor; symbolic sizes have the traced values. Units: elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides)) if all(self.sizes) else 0

    def value(self) -> torch.Tensor:
        """Return a tensor like it, without its own memory; a CPU scalar, whose value is read, is 0."""
        if self.device.type == "cpu" and not self.sizes:
            return torch.zeros((), dtype=self.dtype)
        address = _some_memory(self.device).data_ptr()
        storage = torch._C._construct_storage_from_data_pointer(address, self.device, max(1, self.span) * self.dtype.itemsize)
        return torch.empty(0, dtype=self.dtype, device=self.device).set_(storage, 0, self.sizes, self.strides)


def likenesses(fakes: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the likenesses of traced values; None if one is neither a tensor nor an integer, or depends on data."""
    out: list[Any] = []
    try:
        for fake in fakes:
            if isinstance(fake, torch.Tensor):
                out.append(Likeness(_numbers(fake.shape), _numbers(fake.stride()), fake.dtype, fake.device))
            elif isinstance(fake, (bool, int, torch.SymInt)):
                out.append(fake if isinstance(fake, bool) else hint(fake))
            else:
                return None
    except Declined:
        return None
    return tuple(out)


def _numbers(sizes: Iterable[Any]) -> tuple[int, ...]:
    return tuple([size if type(size) is int else hint(size) for size in sizes])


@functools.cache
def _some_memory(device: torch.device) -> torch.Tensor:
    """A few bytes, aligned like torch's tensors, whose address is used for any tensor."""
    return torch.empty(512, dtype=torch.uint8, device=device)


def is_wanted() -> bool:
    """False if calls are tuned, timed or checked: then each call prepares itself."""
    options = current()
    return not (options.tune or options.dump or options.isolate)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: concurrent.futures.wait(list(_running), LONGEST_WAIT_S))


__all__ = ["MOST_THREADS", "Likeness", "is_wanted", "likenesses", "start", "wait_for_all"]
