"""A group of expressions that one step computes: what it reads and writes, its loops, and what the group of two has of each.

Owns no question about other groups: `groups.py` does. Read first: `Group`, `Group.absorb`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.values import Expr, TensorView

Links = list[tuple[int, set[TensorView], bool]]
"""Axes as bits, each with tensors that share a loop over it, and whether a reduction has that loop."""


def joined_links(links: Links) -> Links:
    """Return `links`, with the sets of one axis that share a tensor merged."""
    place: dict[tuple[int, TensorView], int] = {}
    made: list[tuple[int, set[TensorView], bool] | None] = []
    for bit, tensors, is_folded in links:
        tensors = set(tensors)
        for at in {place[bit, t] for t in tensors if (bit, t) in place}:
            _, more, is_other_folded = made[at]  # type: ignore[misc]
            tensors |= more
            is_folded |= is_other_folded
            made[at] = None
        place.update(((bit, t), len(made)) for t in tensors)
        made.append((bit, tensors, is_folded))
    return [link for link in made if link is not None]


def with_one_folded_loop(links: Links) -> Links:
    """Return `links`, with the sets of one reduced axis merged, because their loops were tied."""
    folded: dict[int, set[TensorView]] = {}
    for bit, tensors, is_folded in links:
        if is_folded:
            folded.setdefault(bit, set()).update(tensors)
    return [(bit, tensors, True) for bit, tensors in folded.items()] + [link for link in links if not link[2]]


@dataclass(frozen=True)
class Alike:
    """One of several joined groups whose loops have equal sizes. reference: a tensor that it writes, with all of its loops."""

    exprs: list[Expr]
    writes: set[TensorView]
    reference: TensorView


@dataclass(eq=False)
class Group:
    """Anchors that one step computes. first: the position of its outermost anchor in the definition. at: its position in a topological order of all groups.
    reads: tensors from outside. barred: those of them that must be read from memory (sources of lookups, results of barriers, one element per block). whole:
    those that its anchors look up. produced: results of the anchors that are needed outside. folds: (axes, reduced axes) of its reductions, as bit sets.
    is_single: it must be a kernel by itself. folded: the reductions of the definition in it, as a bit set; spread: those whose results are broadcast over the
    reduced axes again in it. scatters: it writes at positions that an index gives. scans: it has a running fold. repeated: expressions of other groups that
    this one recomputes. links: axis (a bit) -> sets of tensors that share a loop over it within the group, and whether a reduction of the group has that loop.
    parts: the groups of equal loops that were joined (`alike.py`). fold: one of its reductions. tied: tensors whose loops are tied (`analysis.axes.TIE`).
    looked_up: tensors that only lookups read -> the bytes that these read, which may be a small part of the tensor.
    """

    anchors: list[Expr]
    first: int
    at: int
    reads: set[TensorView]
    barred: set[TensorView]
    produced: set[TensorView]
    whole: set[TensorView] = field(default_factory=set)
    folds: set[tuple[int, int]] = field(default_factory=set)
    folded: int = 0
    spread: int = 0
    is_single: bool = False
    scatters: bool = False
    scans: bool = False
    repeated: list[Expr] = field(default_factory=list)
    links: Links = field(default_factory=list)
    parts: list[Alike] = field(default_factory=list)
    fold: Expr | None = None
    tied: list[TensorView] = field(default_factory=list)
    looked_up: dict[TensorView, float] = field(default_factory=dict)
    version: int = 0
    is_alive: bool = True

    def absorb(self, other: Group) -> None:
        """Take what `other` has, which is no group any more. Graph.join settles what depends on further groups: readers, loops, what is stored."""
        self.looked_up = _joined_lookups(self, other)
        self.anchors += other.anchors
        self.repeated += [e for e in other.repeated if e not in self.repeated]
        self.first = min(self.first, other.first)
        self.reads |= other.reads
        self.produced |= other.produced
        self.barred |= other.barred
        self.whole |= other.whole
        self.folds |= other.folds
        self.folded |= other.folded
        self.spread |= other.spread
        self.scatters |= other.scatters
        self.scans |= other.scans
        self.version += 1
        other.is_alive = False


def _joined_lookups(a: Group, b: Group) -> dict[TensorView, float]:
    """Return what both groups read by lookups only."""
    found = {t: count for t, count in a.looked_up.items() if t not in b.reads} | {t: count for t, count in b.looked_up.items() if t not in a.reads}
    return found | {t: count + b.looked_up[t] for t, count in a.looked_up.items() if t in b.looked_up}


__all__ = ["Alike", "Group", "Links", "joined_links", "with_one_folded_loop"]
