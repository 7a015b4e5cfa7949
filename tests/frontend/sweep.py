"""Many independent pieces of work on several cores until a time is up, and again later from where that was. Owns the processes; read first: `spread`."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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


def resumed(work: Callable[[Any], Any], items: Sequence[Any], workers: int, seconds: float, ledger: str) -> Iterator[tuple[Any, Any]]:
    """As `spread`, with results that a file keeps as they come, a line of JSON each; what it has already is not done again. ledger: "" for none."""
    known: dict[str, Any] = {}
    if ledger and Path(ledger).exists():
        for line in Path(ledger).read_text().splitlines():
            if line.endswith("]"):  # the last line of a process that was killed may be a part of one
                item, result = json.loads(line)
                known[json.dumps(item)] = result
    left = [item for item in items if json.dumps(item) not in known]
    yield from ((item, known[json.dumps(item)]) for item in items if json.dumps(item) in known)
    for item, result in spread(work, left, workers, seconds):
        if ledger:
            with open(ledger, "a") as file:
                file.write(json.dumps([item, result]) + "\n")
        yield item, result


def _begin() -> None:
    import torch

    torch.set_num_threads(1)


__all__ = ["resumed", "spread"]
