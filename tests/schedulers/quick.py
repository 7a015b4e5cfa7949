"""How long a pure function takes, on a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable

CALIBRATION_MS = 0.52
"""What `loop` takes on the machine that limits were chosen on: one core of a server, idle, Python 3.11."""


def loop() -> int:
    return sum(i * i for i in range(10_000))


def milliseconds(call: Callable[[], object], repeats: int = 20) -> float:
    """Return the least processor time of a call, scaled by what a loop takes here: a busy or slow machine slows both."""
    pairs = []
    for _ in range(repeats):
        times = []
        for function in (loop, call):
            start = time.thread_time()
            function()
            times.append(time.thread_time() - start)
        pairs.append(times)
    return min(t for _, t in pairs) / min(t for t, _ in pairs) * CALIBRATION_MS
