"""Which join of a declined group schedulers decline is found by a few questions (`weft.segment.joins`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weft.segment.joins import Join, Joins

GRAPH: Any = SimpleNamespace(members=lambda a, b: [*a.anchors, *b.anchors], writes=lambda a, b: set(), ties=lambda a, b: [])


class Numbers:
    """Groups of numbers, which stand for expressions; no group with all of `bad` is taken."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.asked, self.joins = bad, 0, Joins()
        self.objects = [SimpleNamespace(n=n) for n in range(100)]  # of which the ids are used

    def group(self, *numbers: int) -> Any:
        return SimpleNamespace(anchors=[self.objects[n] for n in numbers])

    def is_taken(self, join: Join) -> bool:
        self.asked += 1
        return not self.bad <= {e.n for e in join.exprs}  # type: ignore[attr-defined]

    def join(self, one: list[int], other: list[int]) -> None:
        self.joins.add(GRAPH, self.group(*one), self.group(*other))

    def find(self, *numbers: int) -> bool:
        return self.joins.find(frozenset(map(id, self.group(*numbers).anchors)), self.is_taken)


@pytest.mark.parametrize("at", [1, 2, 17, 62, 63])
def test_a_chain(at: int) -> None:
    """64 groups are joined one by one; 0 and `at` are in no kernel."""
    numbers = Numbers({0, at})
    for n in range(1, 64):
        numbers.join(list(range(n)), [n])
    assert numbers.find(*range(64)) and numbers.asked <= 8
    assert numbers.joins.declines(numbers.group(*range(at)), numbers.group(at)) and numbers.joins.declines(numbers.group(at), numbers.group(*range(at)))
    assert not numbers.joins.declines(numbers.group(*range(at + 1)), numbers.group(at + 1))
    assert numbers.joins.doubts(numbers.group(at, 70), numbers.group(*range(at), 80)) and not numbers.joins.doubts(numbers.group(at), numbers.group(80))


def test_a_tree() -> None:
    """What is declined is in the smaller side of a join of two groups that were joined before."""
    numbers = Numbers({11, 13})
    for n in range(1, 10):
        numbers.join(list(range(n)), [n])
    numbers.join([10], [11])
    numbers.join([12], [13])
    numbers.join([10, 11], [12, 13])
    numbers.join(list(range(10)), [10, 11, 12, 13])
    assert numbers.find(*range(14)) and numbers.joins.declines(numbers.group(12, 13), numbers.group(10, 11))


def test_a_group_that_was_joined_of_nothing() -> None:
    numbers = Numbers({3})
    assert not numbers.find(3)
    numbers.join([1], [2])
    numbers.joins.begin()
    assert not numbers.find(1, 2)
