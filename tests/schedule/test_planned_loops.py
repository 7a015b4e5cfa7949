"""What the planner of inlining counts per loop."""

from __future__ import annotations

import random

from weft.ir.fusion import Fusion
from weft.schedule.planned_loops import Crossings, PlannedLoop, set_bits


def test_crossings_counts_the_loops_on_both_sides() -> None:
    rng = random.Random(1)
    crossings, loops = Crossings(40), []
    for _ in range(60):
        if loops and rng.random() < 0.3:
            crossings.add(*loops.pop(rng.randrange(len(loops))), -1)
        low, high = sorted((rng.randrange(40), rng.randrange(40)))
        loops.append((low, high))
        crossings.add(low, high, 1)
        assert [crossings.behind(n) for n in range(40)] == [sum(a <= n < b for a, b in loops) for n in range(40)]


def test_set_bits_come_in_order() -> None:
    assert list(set_bits(0b1010010)) == [1, 4, 6] and not list(set_bits(0))


def test_the_root_is_found_in_one_step_after_the_first_question() -> None:
    fusion = Fusion()
    axis = fusion.new_axis(4)
    loops = [PlannedLoop(axis, axis, frozenset([axis]), 1 << n) for n in range(1000)]
    for outer, inner in zip(loops[1:], loops):
        outer.absorb(inner)
    assert loops[0].root() is loops[-1] and loops[0].parent is loops[-1]
    assert (loops[-1].low, loops[-1].high, loops[-1].members) == (0, 999, (1 << 1000) - 1)
