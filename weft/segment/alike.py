"""Groups that read the same data in loops of equal sizes over other axes, as heads that are cut out of one product: they become one kernel.

Owns which groups are alike, and how their loops become the same: the tensor with all loops of each is tied to that of the first (`analysis.axes.TIE`).
Nothing of this changes what the search found: schedulers that decline such a kernel leave each group its own. Read first: `join_alike`, `join_small_sums`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.axes import TIE
from ..analysis.op_cost import LAUNCH_BYTES
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScatterStoreOp
from ..ir.values import IterDomain, ReductionOp, TensorView, WelfordOp, no_reductions
from ..ops.build import copy
from .group import Alike, Group
from .groups import Graph
from .search import repeat_for

MOST_ALIKE_TENSORS = 16
"""Limit of the tensors that a kernel of alike groups reads or writes, because each is a separate memory stream."""

LEAST_SAVED = 0.01
"""The fraction of the bytes of two groups that a joint kernel must save, a launch counted as bytes."""

MOST_OPEN = 8
"""How many groups of one tensor a group is compared with, the nearest in the definition."""


def join_alike(graph: Graph) -> None:
    """Join pointwise groups that share a tensor in memory, or read none, do not depend on each other, and have loops of equal sizes. `parts` of the result has
    the original groups. A group that needs only small results of another one, such as a value per row, computes them itself."""
    _free_from_small_results(graph)
    open_groups: dict[TensorView | None, list[Group]] = {}
    for group in sorted(graph.alive(), key=lambda g: g.first):
        if group.is_single or group.folds:
            continue
        part = _part(graph, group)
        if part is None:
            continue
        group.parts = [part]
        reads: list[TensorView | None] = [*sorted(group.reads, key=lambda t: t.name)] or [None]
        near = [other for t in reads for other in open_groups.get(t, [])[-MOST_OPEN:]]
        for other in dict.fromkeys(near):
            if other.is_alive and _are_alike(graph, other, group):
                group = _join(graph, other, group)
                break
        for tensor in group.reads or (None,):
            known = open_groups.setdefault(tensor, [])
            if group not in known:
                known.append(group)


def _free_from_small_results(graph: Graph) -> None:
    """Let pointwise groups compute what they read of others with loops of equal sizes, if a launch costs more: then they do not depend on these."""
    for group in sorted(graph.alive(), key=lambda g: g.first):
        for tensor in sorted(group.reads, key=lambda t: t.name):
            other = graph.writer.get(tensor)
            if other is None or any(g.is_single or g.folds or g.scatters or g.scans for g in (other, group)):
                continue
            if graph.bytes(tensor) < LAUNCH_BYTES and not graph.readers[tensor] - {group}:
                parts = _part(graph, other), _part(graph, group)
                if None not in parts and _have_equal_loops(graph, *(part.reference for part in parts)):  # type: ignore[union-attr]
                    repeat_for(graph, tensor, group, LAUNCH_BYTES)


def join_small_sums(graph: Graph) -> None:
    """Join reductions of different tensors over the same loops, such as the second steps of several sums, if a launch costs more than the bytes that each of
    them moves."""
    small: dict[frozenset[tuple[int, int]], list[Group]] = {}
    for group in sorted(graph.alive(), key=lambda g: g.first):
        if group.fold is None or group.is_single or group.spread or group.parts or sum(map(graph.bytes, (*group.reads, *graph.writes(group)))) > LAUNCH_BYTES:
            continue
        near = small.setdefault(frozenset(group.folds), [])
        other = next((g for g in near[-MOST_OPEN:] if g.is_alive and _are_apart(graph, g, group)), None)
        own = [Alike(graph.members(group), graph.writes(group), group.fold.tensor_outputs[0])]
        if other is None:
            group.parts = own
            near.append(group)
            continue
        parts = [*other.parts, *own]
        joined = graph.join(other, group)
        joined.parts = parts
        near[near.index(other)] = joined


def _are_apart(graph: Graph, a: Group, b: Group) -> bool:
    """True if two groups share no tensor and do not depend on each other, so that one kernel can compute both."""
    shared = (a.reads | a.produced) & (b.reads | b.produced)
    return not shared and graph.obstacle(a, b) is None and not graph.makes_cycle(a, b)


def _part(graph: Graph, group: Group) -> Alike | None:
    """Return a group as a part, or None when none of its results has all of its loops in the order of its root axes."""
    writes = graph.writes(group)
    looked_up = {t for e in group.anchors for t in e.read_whole}
    needed = 0
    for tensor in (*group.reads - looked_up, *writes):
        needed |= graph.axes(tensor)
    for tensor in sorted(writes, key=lambda t: t.name):
        root = no_reductions(tensor.get_maybe_root_domain())
        if graph.axes(tensor) == needed and set(root) == set(no_reductions(tensor.get_logical_domain())):
            return Alike(graph.members(group), writes, tensor)
    return None


def _are_alike(graph: Graph, a: Group, b: Group) -> bool:
    reads, writes = a.reads | b.reads, graph.writes(a, b)
    if len(reads) + len(writes) > MOST_ALIKE_TENSORS or not _have_equal_loops(graph, a.parts[0].reference, b.parts[0].reference):
        return False
    memories = {e.memory for g in (a, b) for e in g.anchors if isinstance(e, ScatterStoreOp)}  # of which a part is written
    moved = sum(graph.bytes(t) for g in (a, b) for t in (*g.reads, *graph.writes(g)) if t not in memories)
    saved = LAUNCH_BYTES + sum(graph.bytes(t) for t in a.reads & b.reads)
    needs_other = any(t in a.produced for t in b.reads) or any(t in b.produced for t in a.reads)
    return saved >= LEAST_SAVED * moved and not needs_other and not graph.makes_cycle(a, b)


def _have_equal_loops(graph: Graph, a: TensorView, b: TensorView) -> bool:
    """Tell whether the loops of two tensors can be the same: at each position one axis, or two of equal size that the other tensor does not have."""
    first, second = no_reductions(a.get_maybe_root_domain()), no_reductions(b.get_maybe_root_domain())
    if len(first) != len(second) or _innermost(a) != _innermost(b):
        return False
    of_a, of_b = graph.axes(a), graph.axes(b)
    for one, other in zip(first, second):
        if one.is_broadcast() != other.is_broadcast() or one.logical_extent is not other.logical_extent:
            return False
        bits = (0, 0) if one.is_broadcast() else (graph.bit(one), graph.bit(other))
        if bits[0] != bits[1] and (bits[0] & of_b or bits[1] & of_a):
            return False
    return True


def _innermost(tensor: TensorView) -> int:
    """Return the position, among the root axes, of the innermost axis in memory; -1 if there is none."""
    root: list[IterDomain] = no_reductions(tensor.get_maybe_root_domain())
    inner = [axis for axis in tensor.domain().maybe_allocation if axis in root and not axis.is_broadcast()]
    return root.index(inner[-1]) if inner else -1


def _join(graph: Graph, a: Group, b: Group) -> Group:
    parts = a.parts + b.parts
    joined = graph.join(a, b)
    joined.parts, joined.tied = parts, [part.reference for part in parts]
    return joined


def results_with_one_loop(graph: Graph, group: Group) -> list[TensorView]:
    """Return the results of a pointwise group that have all of its loops, in one order, of which several have these loops only because of their readers: rows
    that are cut out of one tensor are added by another kernel."""
    writes, found = graph.writes(group), dict[tuple[int, ...], list[TensorView]]()
    needed = 0
    for tensor in (*group.reads - group.whole, *writes):
        needed |= graph.axes(tensor)
    for tensor in sorted(writes, key=lambda t: t.name):
        root = no_reductions(tensor.get_maybe_root_domain())
        if graph.axes(tensor) == needed and set(root) == set(no_reductions(tensor.get_logical_domain())):
            found.setdefault(tuple(0 if axis.is_broadcast() else graph.bit(axis) for axis in root), []).append(tensor)
    return max(found.values(), key=len, default=[])


def tie(fusion: Fusion, tensors: Sequence[TensorView]) -> None:
    """Tie the loops of the copies of `tensors` in a kernel's fusion. For a reduction, its operand is tied instead of its result, because schedules split
    reductions in two.
    """
    names = {tensor.name for tensor in tensors}
    for expr in fusion.tensor_exprs() if names else ():
        if any(t.name in names for t in expr.tensor_outputs):
            if isinstance(expr, (ReductionOp, WelfordOp)):
                folded = expr.tensor_inputs[0]
                copied = copy(fusion, folded)
                fusion.replace_input(expr, folded, copied)
                expr = copied.definition()  # type: ignore[assignment]
            expr.attributes[TIE] = 1


__all__ = ["join_alike", "join_small_sums", "results_with_one_loop", "tie"]
