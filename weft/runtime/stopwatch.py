"""How long a launch takes: the median of several, each after the cache was emptied.

Read first: `median_us`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

FLUSH_BYTES = 256 * 2**20
"""Written before each launch, on a GPU: more than any L2, so that each launch starts with a cold L2."""


def median_us(launch: Callable[[], None], device: int | None, count: int) -> float:
    """Return the median time of `count` launches in microseconds, after a warm-up launch. device: of the launch, None for the emulator."""
    launch()
    if device is None:
        return statistics.median(_on_cpu(launch) for _ in range(count))
    with torch.cuda.device(device):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=torch.device("cuda", device))
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for before, after in events:
            flush.zero_()
            before.record()
            launch()
            after.record()
        torch.cuda.synchronize()
        return statistics.median(before.elapsed_time(after) * 1e3 for before, after in events)


def _on_cpu(launch: Callable[[], None]) -> float:
    start = time.perf_counter()
    launch()
    return (time.perf_counter() - start) * 1e6
