"""What sums of rows read: a row once although several places share it, the table itself although an index takes its rows, and weights apart from them.

So the rows are not written to memory for the sum to read them: the gradient of an embedding whose rows were added (each row of it belongs to several places),
messages along the edges of a graph (rows of a table, times a number for each edge), and weighted sums of embeddings. Read first: `summand_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .regions import shown_by
from .rewrites import equal_sizes

aten = torch.ops.aten
Make = Callable[..., Node]
"""Inserts a call in front of the sum."""


def summand_of(made: Make, values: Node, order: Node, rank: int) -> tuple[Node, Node, Node | None]:
    """Return rows of which the sums can be made, the row of each place of the order, and the weight of each place, if there are any.

    values: what is summed, with `rank` axes in front of those of a row. order: places along these axes, counted as if they were one.
    """
    values, weights = shown_by(values, _keeps_size), None
    product = _weighted(values, rank)
    if product is not None:
        values, of_places = _expanded(made, product[0], values), product[1]
        weights = made(aten.index.Tensor, made(aten.reshape.default, of_places, [-1]), [order])
    for axis in (n for n in range(rank, _value(values).dim()) if _value(values).stride()[n] == 0 and _value(values).shape[n] != 1):
        values = made(aten.slice.Tensor, values, axis, 0, 1)  # the elements of a row are one element
    lookup = _looked_up(shown_by(values, _keeps_size), rank)
    if lookup is not None:
        table, index = lookup
        place = made(aten.reshape.default, index, [-1])
        place = from_the_start(made, place, _value(table).shape[0])
        return table, made(aten.index.Tensor, place, [order]), weights
    if _is_repeated(_value(values), rank):
        return *_once(made, values, order, rank), weights
    if rank != 1:
        values = made(aten.reshape.default, values, [-1, *_value(values).shape[rank:]])
    return values, order, weights


def from_the_start(made: Make, places: Node, size: int) -> Node:
    """Return the places along an axis of `size` elements, of which negative ones count from the end."""
    return made(aten.where.self, made(aten.lt.Scalar, places, 0), made(aten.add.Tensor, places, size), places)


def _value(node: Node) -> Any:
    return node.meta["val"]


def _keeps_size(node: Node) -> bool:
    """True for an expand of a tensor to its own size."""
    return node.target is aten.expand.default and equal_sizes(_value(node).shape, _value(node.args[0]).shape)  # type: ignore[arg-type]


def _weighted(values: Node, rank: int) -> tuple[Node, Node] | None:
    """Return the rows and the weights of a product that is made for the sum alone: one factor has an element for each row."""
    value = _value(values)
    if values.target is not aten.mul.Tensor or len(values.users) > 1 or value.dim() == rank or not value.is_floating_point():
        return None
    if len(values.all_input_nodes) != 2:
        return None
    for rows, weights in (values.args, values.args[::-1]):
        one, factor = _value(rows), _value(weights)  # type: ignore[arg-type]
        is_row = one.dtype is value.dtype and one.dim() == value.dim() and equal_sizes(one.shape[rank:], value.shape[rank:])
        is_factor = factor.dtype in (value.dtype, torch.float32) and factor.dim() == value.dim() and equal_sizes(factor.shape[:rank], value.shape[:rank])
        if is_row and is_factor and all(n == 1 for n in factor.shape[rank:]):
            return rows, weights  # type: ignore[return-value]
    return None


def _expanded(made: Make, rows: Node, product: Node) -> Node:
    shape = _value(product).shape
    return rows if equal_sizes(_value(rows).shape, shape) else made(aten.expand.default, rows, list(shape))


def _looked_up(values: Node, rank: int) -> tuple[Node, Node] | None:
    """Return the table and the index if each row is one of a table's."""
    if values.target is aten.embedding.default:
        table, index = values.args[:2]
    elif values.target is aten.index_select.default and values.args[1] == 0 and rank == 1:
        table, index = values.args[0], values.args[2]
    elif values.target in (aten.index.Tensor, aten._unsafe_index.Tensor):
        table, indices = values.args
        if not isinstance(indices, (list, tuple)) or len(indices) != 1 or indices[0] is None:
            return None
        (index,) = indices
    else:
        return None
    of_table, places = _value(table), _value(index)  # type: ignore[arg-type]
    is_whole = places.dim() == rank and places.dtype in (torch.int64, torch.int32) and of_table.is_contiguous()
    return (table, index) if is_whole and isinstance(of_table.shape[0], int) else None  # type: ignore[return-value]


def _is_repeated(value: Any, rank: int) -> bool:
    """True for rows of which several places share one (the gradient of a sum over places), if all sizes are known."""
    return any(s == 0 and n != 1 for n, s in zip(value.shape[:rank], value.stride())) and all(isinstance(n, int) for n in value.shape[:rank])


def _once(made: Make, values: Node, order: Node, rank: int) -> tuple[Node, Node]:
    """Return each row once, and the row of each place of the order."""
    value, place = _value(values), None
    behind, rows = math.prod(value.shape[:rank]), 1
    for axis, (size, step) in enumerate(zip(value.shape[:rank], value.stride())):
        behind //= max(size, 1)
        if step == 0:
            values = made(aten.slice.Tensor, values, axis, 0, 1)
            continue
        at = made(aten.remainder.Scalar, made(aten.div.Tensor_mode, order, behind, rounding_mode="floor"), size)
        place = at if place is None else made(aten.add.Tensor, made(aten.mul.Tensor, place, size), at)
        rows *= size
    values = made(aten.reshape.default, values, [rows, *_value(values).shape[rank:]])
    return values, made(aten.zeros_like.default, order) if place is None else place


__all__ = ["from_the_start", "summand_of"]
