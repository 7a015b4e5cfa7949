"""What a choice among ways to keep rows costs, from recorded times. Read first: `regret_of`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

MOST, MOST_MEAN = 0.02, 0.005
"""What the choice may lose to the fastest way: in any case, and in the geometric mean."""


def times_of(row: dict[str, Any]) -> dict[str, float]:
    """Return the times of the ways whose results are right."""
    return {way: found["us"] for way, found in row["ways"].items() if "us" in found and not found.get("wrong")}


def regret_of(row: dict[str, Any], way: str) -> float:
    """Return how much slower a way is than the fastest: 0.02 is 2 %; infinite where it was not measured or is wrong."""
    times = times_of(row)
    return times[way] / min(times.values()) - 1.0 if way in times else math.inf


def mean_regret(regrets: Iterable[float]) -> float:
    """Return the geometric mean of 1 + regret, less 1."""
    logs = [math.log1p(r) for r in regrets]
    return math.exp(sum(logs) / len(logs)) - 1.0 if logs else math.nan
