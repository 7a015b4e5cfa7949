"""Values that an index of a few known positions puts into a tensor, such as `boxes[:, [0, 2]] = y`, and the gradient of `boxes[:, [0, 2]]`.

The positions are a constant of the program, so what lies at each place of the result is known: it is a concatenation of slices. torch would sort the positions
to add what goes to the same place. Read first: `place_known`.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, Node

from .rewrites import drop_unread, emit, equal_sizes, replace

aten = torch.ops.aten

MOST_POSITIONS = 16
"""Of an index. Its slices are told apart by comparisons of positions."""
_SAME = frozenset({aten.lift_fresh_copy.default, aten.clone.default, aten.detach.default, aten.alias.default, aten._to_copy.default})
"""Ops whose result has the values of their operand; integers, converted to integers, among them."""


def place_known(graph: Graph) -> None:
    """Replace `index_put` by one known index, in place."""
    found = [node for node in graph.nodes if node.target in (aten.index_put.default, aten._unsafe_index_put.default)]
    for node in found:
        made = _joined(graph, node)
        if made is not None and equal_sizes(made.meta["val"].stride(), node.meta["val"].stride()):
            replace(graph, node, made)
    if found:
        drop_unread(graph)


def _joined(graph: Graph, node: Node) -> Node | None:
    """Return the concatenation that a node is; None if its positions are not known."""
    base, indices, values, adds = (*node.args, False)[:4]
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]  # type: ignore[arg-type]
    positions = _known(graph, given[0][1]) if len(given) == 1 else None
    shape = list(node.meta["val"].shape)
    if positions is None or not isinstance(values, Node) or not isinstance(shape[given[0][0]], int):
        return None
    dim, size = given[0][0], shape[given[0][0]]
    if any(not -size <= p < size for p in positions):
        return None  # torch raises the error
    places = [p % size for p in positions]
    values = emit(graph, node, aten.expand.default, values, [*shape[:dim], len(places), *shape[dim + 1 :]])
    if not adds:
        last = {place: n for n, place in enumerate(places)}
        return _pieces(graph, node, base, values, dim, [last.get(place) for place in range(size)])
    total: Any = base if not _is_zero(base) else None
    zeros = emit(graph, node, aten.full.default, shape, 0, dtype=node.meta["val"].dtype, device=node.meta["val"].device)
    for again in range(max(map(places.count, places))):  # each place is named once per round
        nth = {place: n for n, place in enumerate(places) if places[:n].count(place) == again}
        part = _pieces(graph, node, zeros, values, dim, [nth.get(place) for place in range(size)])
        total = part if total is None else emit(graph, node, aten.add.Tensor, total, part)
    return total


def _pieces(graph: Graph, node: Node, base: Any, values: Node, dim: int, sources: list[int | None]) -> Node:
    """Return the concatenation of what lies at each place of an axis: an element of `values`, by its number, or that of `base` there."""
    runs = []
    for kind, group in itertools.groupby(enumerate(sources), lambda pair: None if pair[1] is None else pair[1] - pair[0]):
        found = list(group)
        first = found[0][0] if kind is None else found[0][1] or 0
        runs.append(emit(graph, node, aten.slice.Tensor, base if kind is None else values, dim, first, first + len(found)))
    return emit(graph, node, aten.clone.default, runs[0]) if len(runs) == 1 else emit(graph, node, aten.cat.default, runs, dim)  # never a view


def _is_zero(node: Any) -> bool:
    """True for a tensor that is filled with 0."""
    if not isinstance(node, Node):
        return False
    is_filled = node.target in (aten.full.default, aten.full_like.default) and isinstance(node.args[1], (int, float))
    return node.target is aten.zeros_like.default or is_filled and bool(node.args[1] == 0)


def _known(graph: Graph, index: Any) -> list[int] | None:
    """Return the positions of an index that is a short list in the program's text; None for another one."""
    while isinstance(index, Node) and index.target in _SAME:
        index = index.args[0]
    if not isinstance(index, Node) or index.op != "get_attr":
        return None
    value = getattr(graph.owning_module, str(index.target), None)
    is_known = type(value) is torch.Tensor and value.dim() == 1 and 0 < value.numel() <= MOST_POSITIONS
    if not is_known or value.dtype not in (torch.int64, torch.int32):  # type: ignore[union-attr]
        return None
    with unset_fake_temporarily():  # it is a tensor of a GPU there, whose values a copy brings
        return value.tolist()  # type: ignore[union-attr]


__all__ = ["place_known"]
