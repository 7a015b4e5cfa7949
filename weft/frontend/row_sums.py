"""Gradients of embeddings, and of rows taken by an index: one kernel adds the rows of each sum, atomically or in the order of a sort of the index by torch.

Owns which way is taken: the faster one by prediction (`row_sum_times.py`), or the sort where equal calls must return equal bits. torch's own ops sort the
index, too, and then add rows in kernels of their own. Here both additions are ops that regions contain (`weft.frontend.aten.row_sums`), so that what makes the
rows, or casts and sums behind them, are part of their kernels. Read first: `sum_rows`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from ..arch import Arch, arch_by_name, arch_of_device
from ..options import current
from .aten.lookups import ADDED, may_add_atomically, may_be_added_to
from .aten.row_sums import CHUNK, LONGEST
from .aten.rules import Declined, hint
from .rewrites import drop_unread, emit, equal_sizes
from .row_sum_times import RowSumSizes, is_atomic_faster
from .summands import from_the_start, summand_of

aten = torch.ops.aten

LONG = 2**16
"""Places from which on two passes of a sort take longer than two casts."""
LEAST_BYTES = 64
"""Of a row of `scatter_add` that is worth a sort: torch adds single elements as atomics, without one."""


@dataclass(frozen=True)
class RowSums:
    """Sums of rows into a tensor of zeros, or into `base`. values: the rows, with the axes of the index at the place of the axes of the result that it names.
    indices: one for each of these, of `sizes` elements, all of one shape; `ahead` axes are in front of them. padding: a place that stays 0; -1: none.
    is_sortable: a sort of the index may be worth its time; else atomic additions are, or torch's op."""

    values: Node
    indices: list[Node]
    sizes: list[Any]
    ahead: int = 0
    padding: int = -1
    base: Node | None = None
    is_sortable: bool = True

    @property
    def rank(self) -> int:
        return int(self.indices[0].meta["val"].dim())


def sum_rows(graph: Graph) -> None:
    """Rewrite, in place, gradients of tables, and sums into rows of zeros that an index names."""
    orders: Orders = {}
    has_any = False
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target in _SUMS]:
        sums = _SUMS[node.target](node)  # of what is rewritten before it, too, such as the sums of other sums
        if sums is None:
            continue
        has_any, is_atomic = True, _is_atomic(node, sums)
        if is_atomic or sums.is_sortable:
            _rewrite(graph, node, sums, _added if is_atomic else functools.partial(_sorted, orders=orders))
    if has_any:
        drop_unread(graph)  # products, and rows that an index takes from a table


Orders = dict[Any, tuple[Node, Node, Node]]
"""By indices, sizes, and the padding: the sorted keys, the order, and where each row begins in it. Sums with the same index share them, and a backward has
those that the forward sorts anyway."""


def _of_table(node: Node) -> RowSums | None:
    """The sums of an embedding's gradient; None if torch computes it."""
    values, index, rows, padding, scales = (*node.args, -1, False)[:5]
    if scales or not isinstance(rows, int) or not isinstance(padding, int) or not isinstance(values, Node) or not isinstance(index, Node):
        return None
    return RowSums(values, [index], [rows], padding=padding) if _are_rows(values, index.meta["val"].dim()) else None


def _of_index(node: Node) -> RowSums | None:
    """The same of `index_put` that adds to zeros, where the index names positions of neighbouring axes."""
    base, indices, values, accumulates = (*node.args, False)[:4]
    if accumulates is not True or not may_be_added_to(base) or not isinstance(values, Node):
        return None
    ahead = next(n for n, i in enumerate(indices) if i is not None)  # type: ignore[arg-type]
    index: list[Any] = list(indices[ahead:])  # type: ignore[index, arg-type]
    if not all(isinstance(i, Node) and i.meta["val"].dtype in (torch.int64, torch.int32) for i in index):
        return None
    shape, value = base.meta["val"].shape, values.meta["val"]  # type: ignore[union-attr]
    sizes, rest = list(shape[ahead : ahead + len(index)]), shape[ahead + len(index) :]
    index = _of_one_shape(index, node)
    places, rank = index[0].meta["val"].shape, index[0].meta["val"].dim()
    is_whole = all(equal_sizes(places, i.meta["val"].shape) for i in index) and equal_sizes(value.shape, (*shape[:ahead], *places, *rest))
    if not is_whole or not all(isinstance(n, int) for n in sizes) or math.prod(sizes) >= 2**31:
        return None
    return RowSums(values, index, sizes, ahead, **_into(base)) if _are_rows(values, rank, ahead) else None


def _of_one_shape(indices: list[Node], at: Node) -> list[Node]:
    """Return indices broadcast to each other, if their sizes are known."""
    shapes = [tuple(i.meta["val"].shape) for i in indices]
    if not all(isinstance(n, int) for shape in shapes for n in shape):
        return indices
    whole = list(torch.broadcast_shapes(*shapes))
    return [i if list(shape) == whole else emit(at.graph, at, aten.expand.default, i, whole) for i, shape in zip(indices, shapes)]


def _of_scatter(node: Node) -> RowSums | None:
    """The same of `scatter_add` along the first axis, whose index is the same for all elements of a row: so messages are added in graph networks."""
    base, dim, index, values = node.args
    if not may_be_added_to(base) or dim != 0 or not isinstance(index, Node) or not isinstance(values, Node):
        return None
    places, value, shape = index.meta["val"], values.meta["val"], node.meta["val"].shape
    is_row = value.dim() == 1 or index.target is aten.expand.default and all(s == 0 or n == 1 for n, s in zip(places.shape[1:], places.stride()[1:]))
    is_whole = is_row and equal_sizes(places.shape, value.shape) and equal_sizes(shape[1:], value.shape[1:])
    if not is_whole or not isinstance(shape[0], int) or shape[0] >= 2**31 or not _are_rows(values, 1):
        return None
    short = index.args[0] if value.dim() > 1 else index
    for axis in reversed(range(1, short.meta["val"].dim())):  # type: ignore[union-attr]
        short = emit(node.graph, node, aten.select.int, short, axis, 0)
    if short.meta["val"].dim() != 1:  # type: ignore[union-attr]
        return None
    into = _into(base)
    return RowSums(values, [short], [shape[0]], base=into["base"], is_sortable=into["is_sortable"] and value.dim() > 1 and _row_bytes(value) >= LEAST_BYTES)  # type: ignore[list-item]


_SUMS: dict[Any, Callable[[Node], RowSums | None]] = {
    aten.embedding_dense_backward.default: _of_table, aten.index_put.default: _of_index, aten._index_put_impl.default: _of_index,
    aten.scatter_add.default: _of_scatter,
}  # fmt: skip


def _row_bytes(value: Any) -> int:
    return math.prod(value.shape[1:]) * value.element_size()


def _into(base: Any) -> dict[str, Any]:
    """The fields of RowSums that say what is added to. Only sums alone are made behind a sort."""
    return {"base": None, "is_sortable": True} if _is_zero(base) else {"base": base, "is_sortable": False}


def _is_zero(base: Any) -> bool:
    if not isinstance(base, Node):
        return False
    filled = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}
    return base.target in _ZEROS or base.target in filled and bool(base.args[filled[base.target]] == 0)


_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)


def _are_rows(values: Node, rank: int, ahead: int = 0) -> bool:
    """True for rows of a known number of elements."""
    value = values.meta["val"]
    return rank > 0 and value.dtype in ADDED and all(isinstance(n, int) for n in (*value.shape[:ahead], *value.shape[ahead + rank :]))


def _is_atomic(node: Node, sums: RowSums) -> bool:
    """True if rows are to be added atomically."""
    if not may_add_atomically(node.meta["val"].dtype):
        return False
    if current().row_sums == "atomic" or not sums.is_sortable:
        return True
    try:
        sizes = _sizes_of(node, sums)
    except Declined:  # a size that depends on data
        return False
    return is_atomic_faster(sizes, _arch_of(node.meta["val"].device))


def _sizes_of(node: Node, sums: RowSums) -> RowSumSizes:
    """Return what the time of sums depends on; open sizes as they were traced. Errors: Declined for a size that depends on data."""
    value, first = sums.values.meta["val"], sums.ahead + sums.rank
    shape = [hint(n) for n in value.shape]
    read = math.prod(n for n, step in zip(shape, value.stride()) if step != 0) * value.element_size()
    places, run, ahead = math.prod(shape[sums.ahead : first]), math.prod(shape[first:]), math.prod(shape[: sums.ahead])
    is_skewed = node.target is aten.embedding_dense_backward.default
    return row_sum_sizes(places, math.prod(sums.sizes), run, node.meta["val"].dtype, ahead=ahead, read_bytes=read, is_skewed=is_skewed)


def row_sum_sizes(
    places: int, rows: int, run: int, dtype: torch.dtype, *, ahead: int = 1, read_bytes: float | None = None, is_skewed: bool = False
) -> RowSumSizes:
    """Return the sizes of sums of `places` rows, of `run` neighbouring elements at each of `ahead` places, into `rows`. read_bytes: if not all are read."""
    bits, levels, left = 8 * dtype.itemsize, 0, places
    while left >= LONGEST:
        left, levels = left // CHUNK, levels + 1
    key, _ = _key_of(rows, places)
    read = places * ahead * run * dtype.itemsize if read_bytes is None else read_bytes
    return RowSumSizes(places, rows, ahead * run, run, read, bits, max(32, bits), levels, 8 * key.itemsize, is_skewed)


def _arch_of(device: torch.device) -> Arch:
    return arch_of_device(device.index or 0) if device.type == "cuda" else arch_by_name(current().chip)


def _rewrite(graph: Graph, node: Node, sums: RowSums, way: Callable[[Callable[..., Node], Node, RowSums, Node], Node]) -> None:
    """Replace a node by the sums that a way makes: of rows, for the place of each."""
    result = node.meta["val"]

    def made(target: Any, *args: Any, **keywords: Any) -> Node:
        new = emit(graph, node, target, *args, **keywords)
        if node.meta.get("partitioner_tag") == "is_backward":  # the forward knows the index, too, and would sort it and save the order
            new.meta["partitioner_tag"] = "must_be_in_backward"
        return new

    out = way(made, node, sums, _place(made, sums.indices, sums.sizes))
    if out.meta["val"].shape != result.shape:
        out = made(aten.expand.default, out, list(result.shape))
    node.replace_all_uses_with(out)
    graph.erase_node(node)


def _added(made: Callable[..., Node], node: Node, sums: RowSums, place: Node) -> Node:
    """Return sums that are added atomically to what is there before: rows of the padding are left out, at a place outside."""
    result, ahead, named = node.meta["val"], sums.ahead, len(sums.sizes)
    rows, base = math.prod(sums.sizes), sums.base
    if base is not None and named > 1:
        base = made(aten.view.default, base, [*result.shape[:ahead], rows, *result.shape[ahead + named :]])
    place = _without_padding(made, sums, place, -1)
    out = made(torch.ops.weft.added_rows.default, base, sums.values, place, ahead, rows, sums.padding >= 0)
    return out if named == 1 else made(aten.view.default, out, list(result.shape))


def _sorted(made: Callable[..., Node], node: Node, sums: RowSums, place: Node, orders: Orders) -> Node:
    """Return sums in the order of a sort of the index."""
    sizes, rank, result, values = sums.sizes, sums.rank, node.meta["val"], sums.values
    if sums.ahead:
        first = sums.ahead + rank
        values = made(aten.permute.default, values, [*range(sums.ahead, first), *range(sums.ahead), *range(first, values.meta["val"].dim())])
    key = (*sums.indices, *sizes, sums.padding)
    if key not in orders:
        orders[key] = _order(made, sums, place)
    keys, order, starts = orders[key]
    values, order, weights = summand_of(made, values, order, rank)
    out = made(torch.ops.weft.sorted_row_sums.default, values, order, keys, starts, weights)
    if len(sizes) > 1:
        out = made(aten.view.default, out, [*sizes, *out.meta["val"].shape[1:]])
    if sums.ahead:
        named, behind = len(sizes), len(sizes) + sums.ahead
        out = made(aten.permute.default, out, [*range(named, behind), *range(named), *range(behind, result.dim())])
    return out


def _without_padding(made: Callable[..., Node], sums: RowSums, place: Node, outside: int) -> Node:
    """Return the places with one outside for those of the padding."""
    if sums.padding < 0:
        return place
    value = place.meta["val"]
    none = made(aten.full.default, [1] * sums.rank, outside, dtype=value.dtype, device=value.device)
    return made(aten.where.self, made(aten.ne.Scalar, place, sums.padding), place, none)


def _order(made: Callable[..., Node], sums: RowSums, place: Node) -> tuple[Node, Node, Node]:
    """Return the sorted rows of all places, the places in this order, and where each row begins."""
    rows, device = math.prod(sums.sizes), place.meta["val"].device
    place = _without_padding(made, sums, place, rows)
    key, least = _key_of(rows, sums.indices[0].meta["val"].numel())
    place = made(aten.add.Tensor, place, least) if least else place
    flat = made(aten.view.default, made(aten._to_copy.default, place, dtype=key), [-1])
    sort = made(aten.sort.stable, flat, stable=True)
    keys, order = (made(operator.getitem, sort, n) for n in range(2))
    if key is torch.int16:  # which kernels do not have
        keys, key = made(aten._to_copy.default, keys, dtype=torch.int32), torch.int32
    positions = made(aten.arange.start_step, least, least + rows + 1, 1, dtype=key, device=device)
    return keys, order, made(aten.searchsorted.Tensor, keys, positions, out_int32=True)


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


__all__ = ["row_sum_sizes", "sum_rows"]
