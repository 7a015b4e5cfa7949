"""Many independent pieces of work on several cores until a time is up. Owns the processes; read first: `spread`."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def spread(work: Callable[[Any], Any], items: Sequence[Any], workers: int, seconds: float) -> Iterator[tuple[Any, Any]]:
    """Yield (item, work(item)) in the order in which they end; what has not ended after `seconds` is left out. One worker: in this process, in order."""
    end = time.monotonic() + seconds
    if workers == 1:
        for item in items:
            if time.monotonic() > end:
                return
            yield item, work(item)
        return
    with multiprocessing.get_context("spawn").Pool(workers, initializer=_begin) as pool:
        waiting = [(item, pool.apply_async(work, (item,))) for item in items]
        while waiting and time.monotonic() < end:
            left = []
            for item, result in waiting:
                if result.ready():
                    yield item, result.get()
                else:
                    left.append((item, result))
            if len(left) == len(waiting):
                time.sleep(0.2)
            waiting = left
        pool.terminate()


def _begin() -> None:
    import torch

    torch.set_num_threads(1)


__all__ = ["spread"]
