"""A group of expressions whose kernel would spill, divided into kernels that do not.

A cut lies behind some expression in the order of the kernel: what is computed up to there is one kernel, the rest another. The rest reads what it needs from
memory: the tensors of fewest bytes through which all it needs can be had, by computing again what lies between (a vertex cut of least weight). Cuts at several
places are compared by the time of bytes and instructions. Read first: `divided`, `Halves`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from ..analysis.live_values import Pressure, live_values, pressure_of
from ..analysis.op_cost import INSTRUCTIONS_PER_BYTE, LAUNCH_BYTES
from ..ir.graph_ops import BagOp, LookupOp
from ..ir.values import Expr, PointwiseOp, TensorView
from .groups import MOST_TENSORS, Graph, is_free
from .least_cut import least_cut

PLACES = 8
"""Places at which a cut is tried: behind so many parts of equal length, behind as many tensors with most readers, and behind as many where few values live."""
MOST_PARTS = 16
"""Kernels into which a group is divided, at most."""


@dataclass(frozen=True)
class Part:
    """Expressions of a kernel in order, and the tensors that it writes."""

    exprs: list[Expr]
    writes: set[TensorView]

    @functools.cached_property
    def size(self) -> Pressure:
        return pressure_of(self.exprs)


def divided(graph: Graph, exprs: Sequence[Expr], writes: Set[TensorView], most: Pressure) -> list[Part] | None:
    """Return kernels for the expressions of one kernel, in order, each within `most` where that is possible; None if no cut makes them smaller."""
    parts, left = list[Part](), [Part(graph.fusion.exprs(_sorted(writes), among=set(map(id, exprs))), set(writes))]
    while left:
        part = left.pop()
        is_small = part.size.excess(most) <= 1 or len(parts) + len(left) + 1 >= MOST_PARTS
        halves = None if is_small else min(_halves(graph, part), key=lambda found: found.rank(graph, most), default=None)
        if halves is None:
            parts.append(part)
        else:
            left += [halves.late, halves.early]
    return parts if len(parts) > 1 else None


@dataclass(frozen=True)
class Halves:
    """Two kernels, of which the second may read what the first writes."""

    early: Part
    late: Part

    def rank(self, graph: Graph, most: Pressure) -> tuple[float, float]:
        """By how far the larger kernel exceeds `most`, if it does, and then what both take: as bytes moved."""
        excess = max(part.size.excess(most) for part in (self.early, self.late))
        return max(1.0, excess), sum(_cost(graph, part) for part in (self.early, self.late))


def _cost(graph: Graph, part: Part) -> float:
    own = {t for e in part.exprs for t in e.tensor_outputs}
    reads = {t for e in part.exprs for t in e.tensor_inputs} - own
    moved = sum(map(graph.bytes, reads | part.writes))
    return LAUNCH_BYTES + max(moved, graph.slots(part.exprs) / INSTRUCTIONS_PER_BYTE)


def _halves(graph: Graph, part: Part) -> Iterator[Halves]:
    """Yield cuts of a part whose kernels are both smaller than it."""
    size, members = part.size, set(map(id, part.exprs))
    for place in _places(part.exprs):
        before = {t for e in part.exprs[:place] for t in e.tensor_outputs}
        for again in (True, False):
            last = part.exprs[place - 1]
            stored = _stored(graph, part, before, last if again else None)
            if stored is None:
                continue
            late_writes, early_writes = part.writes - before, (part.writes & before) | stored
            if not late_writes or not early_writes:
                continue
            producers = {id(e) for t in stored if (e := t.definition()) is not None}
            late = Part(graph.fusion.exprs(_sorted(late_writes), among=members - producers), late_writes)
            early = Part(graph.fusion.exprs(_sorted(early_writes), among=members), early_writes)
            if max(late.size.excess(size), early.size.excess(size)) < 1 and all(_tensors(p) <= MOST_TENSORS for p in (late, early)):
                yield Halves(early, late)


def _sorted(tensors: Iterable[TensorView]) -> list[TensorView]:
    return sorted(tensors, key=lambda t: t.name)


def _tensors(part: Part) -> int:
    own = {t for e in part.exprs for t in e.tensor_outputs}
    return len({t for e in part.exprs for t in e.tensor_inputs} - own) + len(part.writes)


def _places(order: Sequence[Expr]) -> list[int]:
    """Return the places of cuts that are tried: so many expressions are before each."""
    live, count = live_values(order), len(order)
    readers: dict[int, int] = {}
    place = {id(e): n for n, e in enumerate(order)}
    for expr in order:
        for tensor in expr.tensor_inputs:
            at = place.get(id(tensor.definition()))
            if at is not None and not is_free(order[at]):
                readers[at] = readers.get(at, 0) + 1
    most_read = sorted(readers, key=lambda n: (-readers[n], n))[:PLACES]
    low = [n for n in range(1, count - 1) if live[n] < live[n - 1] and live[n] <= live[n + 1]]
    few_live = sorted(low, key=lambda n: (live[n], abs(2 * n - count)))[:PLACES]
    equal = [count * n // PLACES for n in range(1, PLACES)]
    return sorted({n + 1 for n in (*most_read, *few_live)}.union(equal).difference((0, count)))


# ---------------------------------------------------------------- what lies between
def _stored(graph: Graph, part: Part, before: set[TensorView], last: Expr | None) -> set[TensorView] | None:
    """Return which of the tensors `before` a cut are stored so that the rest can be computed; None for too many. last: the expression whose results are stored
    while what is less to read than to store is computed again; None where nothing is, except what costs nothing."""
    needed = {t for e in part.exprs for t in e.tensor_inputs if t in before and not before.issuperset(e.tensor_outputs)}
    if last is not None:
        return _least_cut(graph, part, needed, before, last)
    roots, stack = set[TensorView](), list(needed)
    while stack:
        tensor = stack.pop()
        definition = tensor.definition()
        if definition is not None and tensor in before and is_free(definition):
            stack += definition.tensor_inputs
        elif tensor in before:
            roots.add(tensor)
    return roots


def _least_cut(graph: Graph, part: Part, needed: Collection[TensorView], before: set[TensorView], last: Expr) -> set[TensorView] | None:
    """Return the tensors of fewest bytes from which `needed` is computed, beside inputs. One that is stored is written and read; what the rest reads anyway
    costs nothing. The results of `last`, and of what is never computed twice, are read rather than what they are computed from."""
    read_anyway = {t for e in part.exprs if not before.issuperset(e.tensor_outputs) for t in e.tensor_inputs}
    weights: dict[TensorView, float] = {}
    edges, sources, stack = list[tuple[TensorView, TensorView]](), set[TensorView](), list(needed)
    while stack:
        tensor = stack.pop()
        if tensor in weights:
            continue
        definition = tensor.definition() if tensor in before else None
        if definition is None:
            weights[tensor] = 0.0 if tensor in read_anyway else graph.bytes(tensor)
        else:
            weights[tensor] = float("inf") if is_free(definition) else graph.bytes(tensor) * (1 if tensor in part.writes else 2)
            edges += [(t, tensor) for t in definition.tensor_inputs]
            stack += definition.tensor_inputs
        if definition is None or not _may_be_repeated(definition) or definition is last and not is_free(last):
            sources.add(tensor)
    found = least_cut(weights, edges, sources, needed, 2 * MOST_TENSORS)
    return None if found is None else found & before


def _may_be_repeated(expr: Expr) -> bool:
    return is_free(expr) or isinstance(expr, (PointwiseOp, LookupOp)) and not isinstance(expr, BagOp)


__all__ = ["divided"]
