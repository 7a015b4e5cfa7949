"""`scatter_reduce`, and `scatter` with `reduce="add"`, as ops that kernels have: sums, counts, and extrema of rows that an index sends to the same place.

Products stay with torch, and so do sums of floats where equal calls must return equal bits. Extrema, and counts, are the same in any order.
Read first: `reduce_rows`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..ops.torch_ops import nothing_of
from ..options import must_be_in_order
from .aten.lookups import ADDED
from .rewrites import drop_unread, emit, equal_sizes

aten = torch.ops.aten
KINDS = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min"}
"""By torch's names: how elements are combined."""


def reduce_rows(graph: Graph) -> None:
    """Rewrite `scatter_reduce` and `scatter(reduce="add")` in place."""
    for node in graph.nodes:
        if node.target is aten.scatter.reduce and "add" in (*node.args[4:], node.kwargs.get("reduce")):
            node.target, node.args, node.kwargs = aten.scatter_add.default, node.args[:4], {}
    found = [node for node in list(graph.nodes) if node.target is aten.scatter_reduce.two and _is_ours(node)]
    for node in found:
        _rewrite(graph, node)
    if found:
        drop_unread(graph)


def _is_ours(node: Node) -> bool:
    given: tuple[Any, ...] = node.args
    base, dim, index, values, kind = (arg.meta["val"] if isinstance(arg, Node) else arg for arg in given)
    if kind not in KINDS or base.dim() == 0 or base.dtype not in ADDED or base.dtype is not values.dtype:
        return False
    is_float, dim = base.dtype.is_floating_point, dim % base.dim()
    beside = [d for d in range(base.dim()) if d != dim]
    is_whole: bool = equal_sizes(index.shape, values.shape) and equal_sizes([base.shape[d] for d in beside], [values.shape[d] for d in beside])
    return is_whole and (is_float or kind != "mean") and not (KINDS[kind] == "sum" and is_float and must_be_in_order())


def _rewrite(graph: Graph, node: Node) -> None:
    given: tuple[Any, ...] = node.args
    base, dim, index, values, kind = given
    result, dim = node.meta["val"], dim % node.meta["val"].dim()
    includes = node.kwargs.get("include_self", True)
    short = index
    for axis, (size, step) in enumerate(zip(index.meta["val"].shape, index.meta["val"].stride())):
        if step == 0 and size != 1:
            short = emit(graph, node, aten.slice.Tensor, short, axis, 0, 1)  # it does not vary along this axis

    def counts(how: str, first: int) -> Node:
        """How often each place is named, or ("max") whether it is, from `first` on."""
        places = list(short.meta["val"].shape)
        sizes = [result.shape[d] if d == dim else n for d, n in enumerate(places)]
        begun, one = (emit(graph, node, aten.full.default, s, n, dtype=torch.int32, device=result.device) for s, n in ((sizes, first), (places, 1)))
        return emit(graph, node, torch.ops.weft.combined_rows.default, begun, one, short, dim, how)

    number_of_none = nothing_of(KINDS[kind], result.dtype)
    if not includes and not _is_full(base, number_of_none):
        nothing = emit(graph, node, aten.full.default, [1] * result.dim(), number_of_none, dtype=result.dtype, device=result.device)
        base = emit(graph, node, aten.where.self, emit(graph, node, aten.gt.Scalar, counts("max", 0), 0), nothing, base)
    if KINDS[kind] == "sum":
        out = emit(graph, node, aten.scatter_add.default, base, dim, index, values)
    else:
        out = emit(graph, node, torch.ops.weft.combined_rows.default, base, values, short, dim, KINDS[kind])
    if kind == "mean":
        count = emit(graph, node, aten.clamp.default, counts("sum", int(bool(includes))), 1)
        wide = torch.promote_types(result.dtype, torch.float32)  # 16 bits have no counts above some hundreds
        total, number = (emit(graph, node, aten._to_copy.default, value, dtype=wide) for value in (out, count))
        out = emit(graph, node, aten._to_copy.default, emit(graph, node, aten.div.Tensor, total, number), dtype=result.dtype)
    node.replace_all_uses_with(out)
    graph.erase_node(node)


def _is_full(base: Any, number: float) -> bool:
    return isinstance(base, Node) and base.target is aten.full.default and bool(base.args[1] == number)


__all__ = ["reduce_rows"]
