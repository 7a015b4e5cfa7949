"""What schedulers said about groups, so that they are asked about equal ones once, and which pairs of groups they need not be asked about.

Owns no search: `partition.py` cuts, and asks here. Read first: `Answers`, `Pairs`.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Mapping

from ..expr import Number, Sym
from ..ir.fusion import Fusion
from ..ir.values import Expr
from .group import Group
from .groups import Graph
from .joins import Joins
from .loops import EMPTY, Loops, joined, joined_all, of_expr
from .plan import SegmentKey

Takes = Callable[[Fusion], "dict[str, str] | None"]
"""Tells whether one kernel can compute a fusion: None, or why each scheduler declines."""
Asked = Callable[[Fusion, SegmentKey, Hashable], "tuple[Fusion, dict[str, str] | None]"]
"""The same for a fusion and its structure; with the first fusion of this structure that schedulers were asked about."""


_NONE: tuple[Hashable, Loops] = None, EMPTY


class Answers:
    """What schedulers say at the sizes of a call about fusions of one structure. The cuts that are compared ask about many equal groups."""

    def __init__(self, takes: Takes, env: Mapping[Sym, Number]) -> None:
        self._takes, self._env = takes, env
        self._known: dict[Hashable, tuple[Fusion, dict[str, str] | None]] = {}

    def of(self, fusion: Fusion, key: SegmentKey, structure: Hashable) -> tuple[Fusion, dict[str, str] | None]:
        """Return why schedulers decline a fusion, if they do, and the fusion that they were asked about. structure: what `key.build()` returned."""
        place = structure, tuple([self._env.get(size) for size in key.variables_found])
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = fusion, self._takes(fusion)
        return found


MOST_REFUSED = 4
"""Pairs of the same work that schedulers decline before others like them wait until nothing else can be joined."""


class Refusals:
    """How often schedulers declined pairs of the same work one after the other."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._counts: Counter[Hashable] = Counter()

    def is_likely(self, a: Group, b: Group) -> bool:
        return self._counts[self._graph.work(a, b)] >= MOST_REFUSED

    def count(self, a: Group, b: Group, is_taken: bool) -> None:
        work = self._graph.work(a, b)
        self._counts[work] = 0 if is_taken else self._counts[work] + 1


class Pairs:
    """The pairs of groups of a graph that one kernel computes. asks: the schedulers' word on both groups as one.

    They are not asked where two axes of one tensor would share a loop. While `is_trusting`, they are not asked about two groups without reductions and running
    folds, and about each kind of others once for each doubling of its size. Whether they also take what was trusted shows when the search has ended. joins:
    what becomes one, and which pairs are not trusted.
    """

    def __init__(self, graph: Graph, asks: Callable[[Group, Group], bool], *, is_trusting: bool, joins: Joins | None = None) -> None:
        self.graph, self.asks, self.is_trusting, self.has_trusted, self._joins = graph, asks, is_trusting, False, joins
        self._taken: set[object] = set()
        self._refusals = Refusals(graph)
        self._of_exprs: dict[int, Loops] = {}  # by the id of an expression
        self._loops: dict[Group, tuple[Hashable, Loops]] = {}
        self._next: dict[Group, tuple[Hashable, Loops]] = {}  # what a group has if it is joined with the one that was asked about last

    def are_one(self, a: Group, b: Group, is_last: bool) -> bool | None:
        """Tell whether one kernel computes both; None for later, if schedulers are likely to decline them."""
        found = self._are_one(a, b, is_last)
        if found and self._joins is not None:
            self._joins.add(self.graph, a, b)
        return found

    def _are_one(self, a: Group, b: Group, is_last: bool) -> bool | None:
        both = joined(self._of(a), self._of(b))
        if both.has_conflict or both.has_two_extents:
            return False
        state = len(a.anchors) + len(b.anchors), len(a.repeated) + len(b.repeated)
        self._next = {a: (state, both), b: (state, both)}
        is_folded = any(g.folds or g.scans or g.scatters for g in (a, b))
        if not self._may_have_reference(a, b, both):
            return False
        kind = self.graph.kind(a, b) if self.is_trusting and is_folded else None
        is_doubted = self._joins is not None and self._joins.doubts(a, b)
        if is_doubted and self._joins.declines(a, b):  # type: ignore[union-attr]
            return False
        if self.is_trusting and not is_doubted and (not is_folded or kind in self._taken):
            self.has_trusted = True
            return True
        if self.is_trusting and not is_last and (is_doubted or self._refusals.is_likely(a, b)):
            return None
        is_taken = self.asks(a, b)
        self._refusals.count(a, b, is_taken)
        if is_taken:
            self._taken.add(kind)
        return is_taken

    def _may_have_reference(self, a: Group, b: Group, both: Loops) -> bool:
        """Tell whether some tensor may have all loops. Without reductions, one of the tensors that both groups write depends on all axes of what they read in
        loops, and write; else all reductions have these axes. What ties loops, folds of groups within rows and running folds are left to the schedulers."""
        if a.scans or b.scans or not both.folded and (a.folds or b.folds):
            return True
        written = [both.of(t) for t in self.graph.writes(a, b)]
        needed = functools.reduce(operator.or_, written, both.read)
        if not both.folded:
            return needed in written
        if self.graph.folds_groups(a, b) or self.graph.ties(a, b):
            return True
        return len(both.folded) == 1 and not needed & ~next(iter(both.folded))

    def has_conflict(self, group: Group) -> bool:
        """True if no kernel computes a group, nor any group with its expressions: two axes of one tensor would share a loop."""
        return self._of(group).has_conflict

    def _of(self, group: Group) -> Loops:
        state = len(group.anchors), len(group.repeated)
        found = self._loops.get(group, _NONE)
        if found[0] != state:
            found = self._next.get(group, _NONE)
            if found[0] != state:
                found = state, joined_all([self._of_expr(e) for e in self.graph.members(group)])
            self._loops[group] = found
        return found[1]

    def _of_expr(self, expr: Expr) -> Loops:
        found = self._of_exprs.get(id(expr))
        if found is None:
            found = self._of_exprs[id(expr)] = of_expr(expr)
        return found


__all__ = ["Answers", "Asked", "Pairs", "Refusals", "Takes"]
