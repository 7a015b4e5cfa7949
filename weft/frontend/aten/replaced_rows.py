"""Rows and elements that an index replaces: `index_put` without sums, and scatters of more elements than are worth comparing with each position.

`index_copy` and assignments to places that an index names are `index_put` when they arrive here. A cache that the graph changes is written where it lies
(`weft.frontend.updates`), so that only what is replaced moves. Of several values for one place any may stay, as in torch on a GPU; where equal calls must
return equal bits, torch's ops run. Read first: `index_put`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ...ir.values import TensorView
from ...ops.build import logical_axes
from ...options import must_be_in_order
from .lookups import counted_over, few_places, has_whole_rows, scattered_few, type_of_positions, why_not_adjacent
from .rules import Operand, Translation, meta_of, rule

aten = torch.ops.aten


def _is_written_back(node: Node) -> bool:
    """True for a call whose first operand is an argument of the graph that its result is copied into."""
    base: Any = node.args[0]
    copies = aten.copy_.default
    return isinstance(base, Node) and base.op == "placeholder" and any(user.target is copies and user.args[0] is base for user in node.users)


def _in_any_order(node: Node) -> str:
    """Why values must not replace others in any order, or cannot where they lie; or ""."""
    if must_be_in_order():
        return "values for one place, of which the last must stay, because equal calls must return equal bits"
    if _is_written_back(node) and not _is_dense(meta_of(node.args[0])):
        return "an argument with gaps in memory, a part of which is written in place"
    return ""


def _is_dense(tensor: torch.Tensor) -> bool:
    """True for known sizes and strides without gaps, in any order of the axes."""
    wanted = 1
    for size, step in sorted(zip(tensor.shape, tensor.stride()), key=lambda axis: axis[1] if isinstance(axis[1], int) else 0):
        if not isinstance(size, int) or not isinstance(step, int) or size != 1 and step != wanted:
            return False
        wanted *= size
    return True


def _replaces(node: Node) -> str:
    base, indices, values, adds = (*node.args, False)[:4]
    given: Any = [meta_of(i) for i in indices if i is not None]  # type: ignore[union-attr]
    if adds:
        return "an index_put that adds, and that row_sums leaves to torch"
    if not given or meta_of(base).dim() == 0 or meta_of(values).dim() > meta_of(base).dim() - len(given) + max(i.dim() for i in given):
        return "an index_put into a tensor without axes"
    return why_not_adjacent(node) or _in_any_order(node)


@rule(aten.index_put.default, aten._unsafe_index_put.default, claims=_replaces, takes_narrow=True)
def index_put(t: Translation, base: Operand, indices: list[Operand], values: Operand, *_: Any) -> Operand:
    """Adjacent index tensors become one that counts over all of their axes; a negative position counts from the end."""
    first = next(n for n, i in enumerate(indices) if i is not None)
    given = [i for i in indices if i is not None]
    place = counted_over(t, base, given, first, type_of_positions(t.node, first, len(given)))
    sizes = [base.size(d) for d in range(t.rank(base))]
    before, behind = sizes[:first], sizes[first + len(given) :]
    if t.rank(place) == 0:
        place = t.ops.broadcast(place, is_broadcast_dim=[True])
        values = _with_axis(t, values, len(behind)) if t.rank(values) >= len(behind) else values
    rows = _expanded(t, t.to(values, t.result_dtype), [*before, *[place.size(d) for d in range(t.rank(place))], *behind])
    place = t.ops.broadcast(place, is_broadcast_dim=[True] * first + [False] * t.rank(place) + [True] * len(behind))
    return t.ops.scatter_rows(t.to(base, t.result_dtype), place, rows, first, "set", axes=len(given))


def _with_axis(t: Translation, values: Operand, behind: int) -> Operand:
    """Return values with an axis of one element in front of the last `behind` ones."""
    return t.ops.broadcast(values, is_broadcast_dim=[False] * (t.rank(values) - behind) + [True] + [False] * behind)


def _expanded(t: Translation, values: Operand, sizes: list[Any]) -> Operand:
    """Return values broadcast to sizes: axes of one element are repeated, and new ones come first."""
    axes = logical_axes(values)
    lead = len(sizes) - len(axes)
    shape = [values.size(d - lead) if d >= lead and not axes[d - lead].is_broadcast() else size for d, size in enumerate(sizes)]
    return t.ops.broadcast_in_dim(values, shape=shape, broadcast_dims=list(range(lead, len(sizes))))


def _writes(node: Node) -> str:
    """Few elements are compared with each position, unless they are written where the argument lies."""
    few = few_places(node)
    if not few and not _is_written_back(node):
        return ""
    operands: tuple[Any, ...] = node.args
    base, index, source = (meta_of(operands[n]) for n in (0, 2, 3))
    if base.dim() == 0 or index.dim() != base.dim() or isinstance(source, torch.Tensor) and source.dim() not in (0, base.dim()):
        return few
    return _in_any_order(node) and few


@rule(aten.scatter.src, aten.scatter.value, claims=_writes)
def scatter(t: Translation, base: Operand, dim: int, index: Operand, source: Operand) -> Operand:
    """Each element replaces the one at its position: by comparisons with every position, or in memory."""
    is_tensor = isinstance(source, TensorView)
    source = t.to(source, t.result_dtype) if is_tensor else t.constant(source, t.result_dtype)
    if not few_places(t.node) and (_in_any_order(t.node) or not _is_written_back(t.node)):
        return scattered_few(t, base, dim, index, source, lambda here, element, there: t.ops.where(here, element, there))
    base, dim = t.to(base, t.result_dtype), dim % t.rank(base)
    if is_tensor and has_whole_rows(t.node):  # rows may repeat an element; what a scatter of elements takes may not
        return t.ops.scatter_rows(base, index, source, dim, "set")
    return t.ops.scatter(base, index, source, dim)


__all__ = ["index_put", "scatter"]
