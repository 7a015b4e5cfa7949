"""Sums of gradients of slices that overlap or move in steps, as behind filters that are written out: each element looks up the terms that it is part of.

The gradient of `x[..., start::step]` is zero but for every step-th element, so of several of them an element has only the terms whose starts have the same
remainder. Those of each remainder are added by themselves, and each element takes one of these sums: the compiler knows which, where a thread has neighbours.
Positions are clamped, and the places outside are masked after the load: neighbours then share loads, which they would not in branches.

Where the positions of a slice are one place of an axis of the whole, reshapes say the same without lookups (`aten/shapes.py`, `slice_scatter`), and slices
that cover a tensor side by side are concatenated (`rewrites.py`). Read first: `join_slices`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from .rewrites import emit, is_sum, is_term, leaves_of, replace
from .windows import integers_below

aten = torch.ops.aten


FEWEST_OF_NEIGHBOURS = 3
"""Gradients of overlapping slices without steps that are joined, at least. Two of them, as in differences of neighbours, are read in vectors."""


@dataclass(frozen=True)
class Slice:
    """A gradient of `count` elements, of those at start, start + step ... of the axis `dim` of a tensor. leaf: the same with zeros between."""

    leaf: Node
    gradient: Node
    sizes: tuple[int, ...]
    dim: int
    start: int
    count: int
    step: int

    @property
    def is_axis(self) -> bool:
        """True if it is one place of an axis of `step` elements."""
        return self.start < self.step and self.count * self.step == self.sizes[self.dim]


def join_slices(graph: Graph) -> None:
    """Rewrite sums with gradients of overlapping slices, and gradients of slices in steps, in place."""
    for node in list(graph.nodes):
        if node.target not in _JOINED or is_term(node):
            continue  # others, and what is a part of a longer sum
        terms = _joined(graph, node, leaves_of(node) if is_sum(node) else [node])
        if terms is not None:
            total = terms[0]
            for term in terms[1:]:
                total = emit(graph, node, aten.add.Tensor, total, term)
            replace(graph, node, total)


_JOINED = (aten.add.Tensor, aten.slice_backward.default)


def _joined(graph: Graph, at: Node, leaves: list[Node]) -> list[Node] | None:
    """Return the terms of a sum, with gradients of slices of equal steps as one; None if none are joined."""
    groups: dict[Any, list[Slice]] = {}
    others: list[Node] = []
    for leaf in leaves:
        found = _slice_of(leaf)
        if found is None:
            others.append(leaf)
        else:
            groups.setdefault((found.sizes, found.dim, found.step), []).append(found)
    wanted = [parts for parts in groups.values() if _is_wanted(parts)]
    kept = [part.leaf for parts in groups.values() if parts not in wanted for part in parts]
    return [_sum_of(graph, at, parts) for parts in wanted] + kept + others if wanted else None


def _is_wanted(parts: list[Slice]) -> bool:
    """True for slices in steps that are no places of an axis, and for several that overlap."""
    size = parts[0].sizes[parts[0].dim]
    if parts[0].step > 1:
        return not all(part.is_axis for part in parts)
    return len(parts) >= FEWEST_OF_NEIGHBOURS and sum(part.count for part in parts) > size


def _slice_of(leaf: Node) -> Slice | None:
    """Return the slice whose gradient this is; None for anything else, open sizes, numbers that are no real floats, and slices of nothing."""
    if leaf.target is not aten.slice_backward.default:
        return None
    given: tuple[Any, ...] = leaf.args
    gradient, sizes, dim, start, end, step = given
    value = gradient.meta["val"]
    if not value.dtype.is_floating_point or not all(isinstance(n, int) for n in (*sizes, *value.shape, *given[2:])) or 0 in value.shape:
        return None
    dim %= len(sizes)
    return Slice(leaf, gradient, tuple(sizes), dim, slice(start, end).indices(sizes[dim])[0], value.shape[dim], step)


def _sum_of(graph: Graph, at: Node, parts: list[Slice]) -> Node:
    """Return the sum of gradients in equal steps along an axis."""
    sizes, dim, step = parts[0].sizes, parts[0].dim, parts[0].step
    value = parts[0].gradient.meta["val"]

    def made(target: Any, *args: Any, **keywords: Any) -> Node:
        return emit(graph, at, target, *args, **keywords)

    def along(row: Node) -> Node:
        return made(aten.view.default, row, [-1, *[1] * (len(sizes) - dim - 1)])

    zero = made(aten.scalar_tensor.default, 0, dtype=value.dtype, layout=torch.strided, device=value.device)
    place = made(aten.arange.start_step, 0, sizes[dim], dtype=integers_below(sizes[dim]), layout=torch.strided, device=value.device, pin_memory=False)
    row, of = (place, place) if step == 1 else (made(aten.div.Tensor_mode, place, step, rounding_mode="trunc"), made(aten.remainder.Scalar, place, step))
    sums: dict[int, Node] = {}
    for part in parts:
        before, remainder = divmod(part.start, step)
        own = made(aten.sub.Tensor, row, before)
        is_inside = made(aten.bitwise_and.Tensor, made(aten.ge.Scalar, own, 0), made(aten.lt.Scalar, own, part.count))
        found = made(aten.index.Tensor, part.gradient, [*[None] * dim, made(aten.clamp.default, own, 0, part.count - 1)])
        term = made(aten.where.self, along(is_inside), found, zero)
        sums[remainder] = made(aten.add.Tensor, sums[remainder], term) if remainder in sums else term
    total = zero
    for remainder in sorted(sums, reverse=True):
        is_last = len(sums) == step and total is zero  # then each element has one of the sums
        total = sums[remainder] if is_last else made(aten.where.self, along(made(aten.eq.Scalar, of, remainder)), sums[remainder], total)
    return total


__all__ = ["join_slices"]
