"""Joins of groups that schedulers were not asked about, and which of them they decline.

A cut that trusts most pairs (`asking.Pairs`) may end in a group that no kernel computes. To ask about every pair instead takes a question for each of some
hundred joins. The joins of one group are a tree, so a few questions find the lowest one that is declined; the next cut trusts all pairs but those that
contain it. Read first: `Joins`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from ..ir.values import Expr, TensorView
from .group import Group
from .groups import Graph

Anchors = frozenset[int]
"""Of a group: the ids of its expressions."""


@dataclass(frozen=True)
class Join:
    """Two groups that became one; what is asked about it: its expressions, what they write, and the tensors whose loops are tied."""

    sides: tuple[Anchors, Anchors]
    exprs: list[Expr]
    writes: Set[TensorView]
    tied: list[TensorView]


class Joins:
    """The joins of one cut, and the pairs that were found to be declined in cuts before it."""

    def __init__(self) -> None:
        self._made: dict[Anchors, Join] = {}
        self._declined: list[tuple[Anchors, Anchors]] = []

    def begin(self) -> None:
        """Forget the joins of the cut before."""
        self._made.clear()

    def add(self, graph: Graph, a: Group, b: Group) -> None:
        sides = _anchors(a), _anchors(b)
        self._made[sides[0] | sides[1]] = Join(sides, graph.members(a, b), graph.writes(a, b), graph.ties(a, b))

    def declines(self, a: Group, b: Group) -> bool:
        """Tell whether a pair was found to be declined."""
        sides = _anchors(a), _anchors(b)
        return sides in self._declined or sides[::-1] in self._declined

    def doubts(self, a: Group, b: Group) -> bool:
        """Tell whether a pair contains one that was found to be declined."""
        if not self._declined:
            return False
        one, other = _anchors(a), _anchors(b)
        return any(c <= one and d <= other or c <= other and d <= one for c, d in self._declined)

    def find(self, anchors: Anchors, is_taken: Callable[[Join], bool]) -> bool:
        """Find the lowest declined join of a declined group, and keep it in mind; False if the group was not joined of others here.

        What contains a declined join is taken to be declined, and so is the group as it ended, which also computes again what others have.
        """
        top = self._made.get(anchors)
        while top is not None:
            path = [top]
            while (larger := self._made.get(max(path[-1].sides, key=len))) is not None:
                path.append(larger)
            low, high = 0, len(path)  # path[low] is declined, path[high] is taken
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if is_taken(path[middle]) else (middle, high)
            smaller, _ = sorted(path[low].sides, key=len)
            other = self._made.get(smaller)
            if other is None or other is path[low] or is_taken(other):
                self._declined.append(path[low].sides)
                return True
            top = other
        return False


def _anchors(group: Group) -> Anchors:
    return frozenset(map(id, group.anchors))


__all__ = ["Anchors", "Join", "Joins"]
