"""Memoization of pure functions (caches of recent results).

Owns nothing but the decorator. Read first: `remembered`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MOST_REMEMBERED = 8192
"""Results kept per function: the ops of a kernel are in the same loops, so their indices repeat the same sums, quotients and proofs."""


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Return the pure function `function` with memoization of its last results, by its positional arguments, which are compared by identity or are numbers."""
    known: dict[object, R] = {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        found = known.get(args, _UNKNOWN)
        if found is _UNKNOWN:
            found = function(*args, **kwargs)
            if len(known) >= MOST_REMEMBERED:
                known.clear()
            known[args] = found
        return found  # type: ignore[return-value]

    return call


_UNKNOWN = object()
