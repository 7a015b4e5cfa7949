"""Random schedules by hand: each is lowered rightly, or refused with a reason."""

from __future__ import annotations

import pytest
from random_schedules import run

REASONS = ("W510", "W511", "W513", "W312", "W520", "W522", "W523", "W530", "W531", "W532")
"""Loops that cannot be shared or ordered, two axes of one index, registers without a constant size, other threads' registers, what the last block alone has."""


@pytest.mark.parametrize("chunk", range(4))
def test_random_schedules_are_right_or_refused(chunk: int) -> None:
    outcomes = [run(seed) for seed in range(chunk * 25, chunk * 25 + 25)]
    unknown = [o for o in outcomes if o not in ("right", "nothing to compute") and not o.startswith("not scheduled") and o.split()[0] not in REASONS]
    assert not unknown and outcomes.count("right") >= 18


def test_schedules_without_caches() -> None:
    assert [run(seed, caches=False) for seed in range(1000, 1025)].count("right") >= 12


@pytest.mark.parametrize("chunk", range(2))
def test_reductions_in_the_loops_of_what_they_reduce(chunk: int) -> None:
    """Most of these are refused: a thread would need what others have made."""
    outcomes = [run(seed, rows=True) for seed in range(chunk * 25, chunk * 25 + 25)]
    unknown = [o for o in outcomes if o != "right" and o.split()[0] not in REASONS]
    assert not unknown and outcomes.count("right") >= 6
