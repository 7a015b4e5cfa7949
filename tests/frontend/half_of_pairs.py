"""Cases of a test with two parameters, of which not every pair is another path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def half(first: Iterable[Any], second: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return each of `first` with the first of `second`, and every other one of the other pairs: each is there with about half of the others."""
    return [(a, b) for n, a in enumerate(first) for m, b in enumerate(second) if not m or (n + m) % 2]


def name_of(value: Any) -> str:
    """Return what a case is called."""
    return getattr(value, "__name__", str(value))
