"""Positions that are in range whatever the data: those that argmax, max, topk, sort and their like find. Checks of them are left out.

`one_hot` checks its classes: two kernels for all of them, and two more ops, for what a router or a quantizer has just counted itself.
Read first: `is_below`, `drop_checks`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

PASSED = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.select.int, aten.slice.Tensor, aten.expand.default, aten.clone.default, aten.detach.default, aten.alias.default,
})  # fmt: skip
"""Ops whose result has elements of their operand, unchanged."""
FOUND_BESIDE: dict[Any, int] = {
    aten.topk.default: 2, aten.sort.default: 1, aten.max.dim: 1, aten.min.dim: 1, aten.median.dim: 1, aten.nanmedian.dim: 1, aten.mode.default: 1,
    aten.kthvalue.default: 2, aten.cummax.default: 1, aten.cummin.default: 1,
}  # fmt: skip
"""Ops whose second result is positions along an axis, and the place of that axis among their arguments; without it, it is the last."""
FOUND: dict[Any, int] = {aten.argmax.default: 1, aten.argmin.default: 1}
"""Ops whose result is positions along an axis; without the axis, among all elements."""


def is_below(index: Any, size: Any) -> bool:
    """True if a tensor of positions has values from 0 to below `size`."""
    extent = _extent(_shown(index))
    return extent is not None and bool(statically_known_true(extent <= size))


def _shown(node: Any) -> Any:
    while isinstance(node, Node) and node.target in PASSED:
        node = node.args[0]
    return node


def _extent(node: Any) -> Any:
    """Return how many positions a tensor of positions chooses from; None if it is no such tensor."""
    if not isinstance(node, Node):
        return None
    source, at = node, FOUND.get(node.target)
    if getattr(node.target, "__name__", "") == "getitem" and node.args[1] == 1:
        source = node.args[0]  # type: ignore[assignment]
        at = FOUND_BESIDE.get(source.target)
    if at is None:
        return None
    value = source.args[0].meta["val"]  # type: ignore[union-attr]
    dim = source.args[at] if len(source.args) > at else None if source is node else -1
    return value.numel() if dim is None else value.shape[dim] if value.dim() else 1


def drop_checks(graph: Graph) -> None:
    """Erase checks that all positions are at least 0, or below the number of places, where both are known."""
    for node in list(graph.nodes):
        if node.target is aten._assert_async.msg and _holds(node.args[0]):
            graph.erase_node(node)


def _holds(checked: Any) -> bool:
    """True for `all` of a comparison that holds for every position."""
    if not isinstance(checked, Node) or checked.target is not aten.all.default:
        return False
    test: Any = checked.args[0]
    if not isinstance(test, Node) or test.target not in (aten.ge.Scalar, aten.lt.Scalar):
        return False
    index, bound = test.args
    bound = bound.meta["val"] if isinstance(bound, Node) else bound
    if test.target is aten.lt.Scalar:
        return is_below(index, bound)
    return _extent(_shown(index)) is not None and bool(bound == 0)


__all__ = ["drop_checks", "is_below"]
