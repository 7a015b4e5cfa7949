"""Assignments of a program (`x[...] = y`, `x[mask] = number`, `x.copy_(y)`) in the functional graph that AOTAutograd makes of them.

- A copy into a tensor takes only its type, sizes and order in memory: it is a copy of what is copied. A backward has one of a new, empty tensor for each
  assignment; torch would ask for memory that depends on the last one, so that no two of them shared a kernel.
- A number, or a value that is the same for all chosen elements, at the places of a mask is a choice between both. torch would count the chosen elements, for
  which the host waits.

Read first: `simplify_assignments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from .own_results import has_own_results
from .rewrites import drop_unread, emit, equal_sizes, replace

aten = torch.ops.aten


def simplify_assignments(graph: Graph) -> None:
    """Rewrite copies into tensors, and values put at the places of a mask, in place."""
    rewrites = {aten.copy.default: _copied, aten.index_put.default: _chosen, aten._unsafe_index_put.default: _chosen}
    found = [node for node in graph.nodes if node.op == "call_function" and node.target in rewrites]
    for node in found:
        made = rewrites[node.target](graph, node)
        if made is not None:
            replace(graph, node, made)
    if found:
        drop_unread(graph)


def _laid_out_like(graph: Graph, node: Node, made: Node) -> Node | None:
    """Return what replaces a node if it has the node's order in memory; None otherwise."""
    if equal_sizes(made.meta["val"].stride(), node.meta["val"].stride()):
        return made
    graph.erase_node(made)
    return None


def _copied(graph: Graph, node: Node) -> Node | None:
    """Return what is copied, in the type and sizes of the node: itself for all ops that compute something, if it lies in memory like the node."""
    source, value = node.args[1], node.meta["val"]
    if not isinstance(source, Node) or not isinstance(source.meta.get("val"), torch.Tensor) or source.meta["val"].device != value.device:
        return None
    given = source.meta["val"]
    if given.dtype is value.dtype and equal_sizes(given.shape, value.shape) and equal_sizes(given.stride(), value.stride()):
        copied: Node = source
        node.replace_all_uses_with(copied, delete_user_cb=lambda user: _may_read(user, copied))
    if not equal_sizes(given.shape, value.shape):
        source = emit(graph, node, aten.expand.default, source, list(value.shape))
    made = emit(graph, node, aten.clone.default, source) if given.dtype is value.dtype else emit(graph, node, aten._to_copy.default, source, dtype=value.dtype)
    return _laid_out_like(graph, node, made)


def _may_read(user: Node, source: Node) -> bool:
    """Tell whether a reader of a copy may read what is copied: not if it shows the copy, which may be returned, nor if it changes an argument at the end, when
    another change may have come before, of what is copied."""
    return has_own_results(user.target) or (user.target is aten.copy_.default and has_own_results(source.target))


def _chosen(graph: Graph, node: Node) -> Node | None:
    """Return the choice between values and what was there, for a mask alone and values that are the same at all of its places."""
    base, indices, values, adds = (*node.args, False)[:4]
    first, mask = _only_mask(indices)
    if mask is None or not isinstance(base, Node) or not isinstance(values, Node):
        return None
    given, covered = base.meta["val"], mask.meta["val"].dim()
    behind = given.dim() - first - covered
    shape = list(values.meta["val"].shape)
    if len(shape) > behind:
        place = len(shape) - behind - 1  # of the axis that counts the chosen elements
        if not covered or not isinstance(shape[place], int) or shape[place] != 1:
            return None
        values = emit(graph, node, aten.view.default, values, [*shape[:place], *[1] * covered, *shape[place + 1 :]])
    for axis in range(behind):
        mask = emit(graph, node, aten.unsqueeze.default, mask, covered + axis)
    values = emit(graph, node, aten.add.Tensor, base, values) if adds else values
    made = emit(graph, node, aten.where.self, mask, values, base)
    if not equal_sizes(made.meta["val"].stride(), node.meta["val"].stride()):  # the mask lies in another order
        made = emit(graph, node, aten.copy.default, base, made)
    return _laid_out_like(graph, node, made)


def _only_mask(indices: Any) -> tuple[int, Node | None]:
    """Return the only index, if it is a mask, and the axis at which it begins."""
    given = [(place, index) for place, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        return 0, None
    place, mask = given[0]
    is_mask = isinstance(mask, Node) and mask.meta["val"].dtype is torch.bool
    return place, mask if is_mask else None


__all__ = ["simplify_assignments"]
