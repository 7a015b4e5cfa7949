"""Gradients of embeddings, and of rows taken by an index: the index is sorted by torch, and one kernel adds the rows of each sum.

torch's own ops sort the index, too, and then add rows in kernels of their own. Here the addition is an op that regions contain
(`weft.frontend.aten.row_sums`), so casts and sums behind it are part of its kernel. Read first: `sum_rows`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from . import aten as _rules  # noqa: F401  (defines the op)
from .rewrites import drop_unread, emit, equal_sizes
from .summands import from_the_start, summand_of

aten = torch.ops.aten

LONG = 2**16
"""Places from which on two passes of a sort take longer than two casts."""
LEAST_BYTES = 64
"""Of a row of `scatter_add`: torch adds single elements as atomics, without a sort."""


@dataclass(frozen=True)
class RowSums:
    """Sums of rows into a tensor of zeros. values: the rows, whose first axes are those of the index. indices: one for each axis of the result that is named,
    of `sizes` elements, all of one shape; `ahead` axes of the result are in front of these, and follow the index's axes in the values. padding: a place that
    stays 0; -1: none."""

    values: Node
    indices: list[Node]
    sizes: list[int]
    ahead: int = 0
    padding: int = -1


def sum_rows(graph: Graph) -> None:
    """Rewrite, in place, gradients of tables, and sums into rows of zeros that an index names."""
    found = [(node, sums) for node in list(graph.nodes) if node.op == "call_function" and node.target in _SUMS and (sums := _SUMS[node.target](node))]
    for node, sums in found:
        _rewrite(graph, node, sums)
    if found:
        drop_unread(graph)  # products, and rows that an index takes from a table


def _of_table(node: Node) -> RowSums | None:
    """The sums of an embedding's gradient; None if torch computes it."""
    values, index, rows, padding, scales = (*node.args, -1, False)[:5]
    if scales or not isinstance(rows, int) or not isinstance(padding, int) or not isinstance(values, Node) or not isinstance(index, Node):
        return None
    return RowSums(values, [index], [rows], padding=padding) if _are_rows(values, index.meta["val"].dim()) else None


def _of_index(node: Node) -> RowSums | None:
    """The same of `index_put` that adds to zeros, where the index names positions of neighbouring axes."""
    base, indices, values, accumulates = (*node.args, False)[:4]
    if accumulates is not True or not _is_zero(base) or not isinstance(values, Node):
        return None
    ahead = next(n for n, i in enumerate(indices) if i is not None)  # type: ignore[arg-type]
    index: list[Any] = list(indices[ahead:])  # type: ignore[index, arg-type]
    if not all(isinstance(i, Node) and i.meta["val"].dtype in (torch.int64, torch.int32) for i in index):
        return None
    shape, value = base.meta["val"].shape, values.meta["val"]  # type: ignore[union-attr]
    sizes, rest = list(shape[ahead : ahead + len(index)]), shape[ahead + len(index) :]
    places, rank = index[0].meta["val"].shape, index[0].meta["val"].dim()
    is_whole = all(equal_sizes(places, i.meta["val"].shape) for i in index) and equal_sizes(value.shape, (*shape[:ahead], *places, *rest))
    if not is_whole or not all(isinstance(n, int) for n in sizes) or math.prod(sizes) >= 2**31:
        return None
    if ahead:
        axes = [*range(ahead, ahead + rank), *range(ahead), *range(ahead + rank, value.dim())]
        values = emit(node.graph, node, aten.permute.default, values, axes)
    return RowSums(values, index, sizes, ahead) if _are_rows(values, rank) else None


def _of_scatter(node: Node) -> RowSums | None:
    """The same of `scatter_add` to zeros along the first axis, whose index is the same for all elements of a row: so messages are added in graph networks."""
    base, dim, index, values = node.args
    if not _is_zero(base) or dim != 0 or not isinstance(index, Node) or not isinstance(values, Node) or index.target is not aten.expand.default:
        return None
    places, value, shape = index.meta["val"], values.meta["val"], node.meta["val"].shape
    is_row = value.dim() > 1 and all(s == 0 or n == 1 for n, s in zip(places.shape[1:], places.stride()[1:]))
    is_whole = is_row and equal_sizes(places.shape, value.shape) and equal_sizes(shape[1:], value.shape[1:])
    if not is_whole or not isinstance(shape[0], int) or shape[0] >= 2**31 or not _are_rows(values, 1) or _row_bytes(value) < LEAST_BYTES:
        return None
    short = index.args[0]
    for axis in reversed(range(1, short.meta["val"].dim())):  # type: ignore[union-attr]
        short = emit(node.graph, node, aten.select.int, short, axis, 0)
    return RowSums(values, [short], [shape[0]]) if short.meta["val"].dim() == 1 else None  # type: ignore[union-attr, list-item]


_SUMS: dict[Any, Callable[[Node], RowSums | None]] = {
    aten.embedding_dense_backward.default: _of_table, aten.index_put.default: _of_index, aten._index_put_impl.default: _of_index,
    aten.scatter_add.default: _of_scatter,
}  # fmt: skip


def _row_bytes(value: Any) -> int:
    return math.prod(value.shape[1:]) * value.element_size()


def _is_zero(base: Any) -> bool:
    if not isinstance(base, Node):
        return False
    filled = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}
    return base.target in _ZEROS or base.target in filled and bool(base.args[filled[base.target]] == 0)


_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)


def _are_rows(values: Node, rank: int) -> bool:
    """True for rows of a known number of elements."""
    value = values.meta["val"]
    return rank > 0 and value.dtype in _TYPES and all(isinstance(n, int) for n in value.shape[rank:])


_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)


def _rewrite(graph: Graph, node: Node, sums: RowSums) -> None:
    """Replace a node by a sort of the index and sums of rows in this order."""
    indices, sizes, result = sums.indices, sums.sizes, node.meta["val"]
    rank, rows = indices[0].meta["val"].dim(), math.prod(sizes)

    def made(target: Any, *args: Any, **keywords: Any) -> Node:
        new = emit(graph, node, target, *args, **keywords)
        if node.meta.get("partitioner_tag") == "is_backward":  # the forward knows the index, too, and would sort it and save the order
            new.meta["partitioner_tag"] = "must_be_in_backward"
        return new

    place = _place(made, indices, sizes)
    if sums.padding >= 0:
        none = made(aten.full.default, [1] * rank, rows, dtype=place.meta["val"].dtype, device=result.device)
        place = made(aten.where.self, made(aten.ne.Scalar, place, sums.padding), place, none)
    key, least = _key_of(rows, indices[0].meta["val"].numel())
    place = made(aten.add.Tensor, place, least) if least else place
    flat = made(aten.view.default, made(aten._to_copy.default, place, dtype=key), [-1])
    sort = made(aten.sort.stable, flat, stable=True)
    keys, order = (made(operator.getitem, sort, n) for n in range(2))
    if key is torch.int16:  # which kernels do not have
        keys, key = made(aten._to_copy.default, keys, dtype=torch.int32), torch.int32
    positions = made(aten.arange.start_step, least, least + rows + 1, 1, dtype=key, device=result.device)
    starts = made(aten.searchsorted.Tensor, keys, positions, out_int32=True)
    values, order, weights = summand_of(made, sums.values, order, rank)
    out = made(torch.ops.weft.sorted_row_sums.default, values, order, keys, starts, weights)
    if len(sizes) > 1:
        out = made(aten.view.default, out, [*sizes, *out.meta["val"].shape[1:]])
    if sums.ahead:
        named, behind = len(sizes), len(sizes) + sums.ahead
        out = made(aten.permute.default, out, [*range(named, behind), *range(named), *range(behind, result.dim())])
    if out.meta["val"].shape != result.shape:
        out = made(aten.expand.default, out, list(result.shape))
    node.replace_all_uses_with(out)
    graph.erase_node(node)


def _key_of(rows: int, count: Any) -> tuple[torch.dtype, int]:
    """Return the type of the sort's keys, and the key of the first row. There is one key more than rows. A sort takes a pass for each 8 bits; but torch casts
    to and from 16 bits in kernels of its own."""
    if rows < 2**8:
        return torch.uint8, 0
    is_long = isinstance(count, int) and count >= LONG
    return (torch.int16, -(2**15)) if is_long and rows < 2**16 else (torch.int32, 0)


def _place(made: Callable[..., Node], indices: list[Node], sizes: list[int]) -> Node:
    """Return the row of each position; negative ones count from the end."""
    place: Node | None = None
    for index, size in zip(indices, sizes):
        own = from_the_start(made, index, size)
        place = own if place is None else made(aten.add.Tensor, made(aten.mul.Tensor, place, size), own)
    assert place is not None
    return place


__all__ = ["sum_rows"]
