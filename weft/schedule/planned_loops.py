"""Loops as the inlining planner sees them, stored so that a query about a loop takes time independent of its number of tensors.

Owns what is counted per loop, how two loops become one, and how many loops stand across a place in the order of tensors.
Tensors are bits of an integer: bit n is the n-th tensor in topological order.
Read first: `PlannedLoop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..ir.values import IterDomain

Coverage = frozenset[IterDomain]
"""The source axes that a loop or tensor iterates."""


class PlannedLoop:
    """A planned loop: the tensors computed in it, those of them that are complete only when it ends, and the axes that it iterates.

    key: the permissive class of its axes. coverage: source axes that the most complete of its axes, `widest`, iterates.
    members: the tensors computed in it, numbers `low` to `high`; feeds: their consumers. open: those complete only when it ends. readers: consumers of these.
    below: descendants of these. forms: axes that members iterate (in this loop, in their other loops), each with the first such member.
    """

    __slots__ = ("parent", "key", "bound", "members", "feeds", "open", "readers", "below", "low", "high", "forms", "coverage", "widest")

    def __init__(self, key: IterDomain, axis: IterDomain, coverage: Coverage, tensors: int) -> None:
        self.parent: PlannedLoop | None = None
        self.key, self.bound, self.coverage, self.widest = key, axis.parallel.is_bound, coverage, axis
        self.members = self.open = tensors
        self.feeds = self.readers = self.below = 0
        self.low, self.high = first_bit(tensors), tensors.bit_length() - 1
        self.forms: dict[tuple[Coverage, Coverage], int] = {}

    def root(self) -> "PlannedLoop":
        """Return the loop that this one has become part of."""
        root = self
        while root.parent is not None:
            root = root.parent
        loop = self
        while loop.parent is not None:  # path compression
            loop.parent, loop = root, loop.parent
        return root

    def cover(self, coverage: Coverage, axis: IterDomain) -> None:
        """Add `axis`."""
        if len(coverage) > len(self.coverage):
            self.coverage, self.widest = coverage, axis

    def add_form(self, here: Coverage, elsewhere: Coverage, tensor: int) -> None:
        """Add the axes that tensor number `tensor` iterates."""
        form = (here, elsewhere)
        self.forms[form] = min(tensor, self.forms.get(form, tensor))

    def absorb(self, other: "PlannedLoop") -> None:
        """Merge `other` into this loop. The forms are not changed."""
        other.parent = self
        self.members |= other.members
        self.feeds |= other.feeds
        self.open |= other.open
        self.readers |= other.readers
        self.below |= other.below
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.cover(other.coverage, other.widest)


class Crossings:
    """Counts the loops with tensors on both sides of a position in the order of tensors (a Fenwick tree over differences)."""

    def __init__(self, places: int) -> None:
        self._tree = [0] * (places + 2)

    def add(self, low: int, high: int, count: int) -> None:
        """Count a loop over the tensors `low` to `high`, `count` times."""
        for place, change in ((low + 1, count), (high + 1, -count)):
            while place < len(self._tree):
                self._tree[place] += change
                place += place & -place

    def behind(self, tensor: int) -> int:
        """Return how many loops have `tensor`, or one before it, and one after it."""
        place, found = tensor + 1, 0
        while place:
            found += self._tree[place]
            place &= place - 1
        return found


def first_bit(bits: int) -> int:
    """Return the number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


def set_bits(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def union(coverages: Iterable[Coverage]) -> Coverage:
    """Return the union of `coverages`."""
    return frozenset().union(*coverages)
