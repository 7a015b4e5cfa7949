"""Positions that are counted once and used along two axes, as a framework that removes equal nodes writes arange(n)[:, None] < arange(n).

A kernel runs one loop for an axis and all that is computed from it, so two axes of a tensor that both come from one `iota` would have the same loop. Computed
once for each, the positions have a loop of their own. Read first: `separate_positions`.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..analysis.loop_axes import loop_axes
from ..analysis.plain_copies import is_plain_copy
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, PointwiseOp, SqueezeOp, TensorView
from ..ops.build import compute_again

COUNTED = (IotaOp, FullOp, PointwiseOp, BroadcastOp, SqueezeOp, ExpandOp)


def separate_positions(fusion: Fusion) -> None:
    """Compute values that depend on no tensor of the user once for each place of their axes, in place, if two axes of a tensor would have one loop.

    Before: no axis is open. After: results keep their names; readers that add or drop other axes read copies.
    """
    exprs = fusion.tensor_exprs()
    if not any(isinstance(e, IotaOp) for e in exprs) or loop_axes(fusion).conflict is None:
        return
    counted: set[TensorView] = set()
    for expr in exprs:
        if (isinstance(expr, COUNTED) or is_plain_copy(expr)) and all(t in counted for t in expr.tensor_inputs):
            counted.update(expr.tensor_outputs)
    places: dict[TensorView, Hashable] = {}
    for expr in reversed(exprs):
        if expr.tensor_outputs[0] in counted:
            _copy_for_places(fusion, expr, places)


def _copy_for_places(fusion: Fusion, expr: Expr, places: dict[TensorView, Hashable]) -> None:
    """Give the readers of a result whose axes end up in other places a copy. places: of the results behind, by the axes that are added and dropped up to a
    reader that depends on a tensor of the user."""
    out = expr.tensor_outputs[0]
    readers: dict[Hashable, list[Expr]] = {}
    for use in out.uses():
        place = places.get(use.outputs[0])  # type: ignore[call-overload]
        changed = (type(use), use.attributes["flags"], place) if isinstance(use, (BroadcastOp, SqueezeOp)) else place
        readers.setdefault(changed, []).append(use)
    for number, (place, uses) in enumerate(readers.items()):
        copy = out if number == 0 else compute_again(fusion, expr, expr.inputs)
        places[copy] = place
        if copy is not out:
            fusion.replace_inputs(uses, out, copy)


__all__ = ["separate_positions"]
