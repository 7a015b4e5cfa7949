"""Products in what is compared with its own elements: each is rounded before it is added to anything.

    y = a * b + c;   y[i] > y[j], of all pairs        y[i] and y[i] of the pair (i, i) are computed twice, in one kernel or in two

A compiler makes one instruction, with one rounding, of a product and a sum, but not in every place, so that an element could be larger than itself. Owns which
products are rounded by themselves. Read first: `round_compared_products`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.compared import compared_with_own
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp, ReshapeOp
from ..ir.values import BroadcastOp, ExpandOp, Expr, LoadStoreOp, PointwiseOp, SqueezeOp, TensorView
from .exact_quotients import power_of_two

SUMS = ("add", "sub")
PASSED = (PointwiseOp, LookupOp, ReshapeOp, BroadcastOp, ExpandOp, SqueezeOp, LoadStoreOp)
"""What may be computed more than once, in the loops of each reader."""


def round_compared_products(fusion: Fusion) -> None:
    """Round products whose sums are compared with their own elements, in place. Before: results of sums are final.   After: tensors keep their names."""
    compared = compared_with_own(fusion)
    for expr in _computed_again(compared) if compared else ():
        if isinstance(expr, PointwiseOp) and expr.op_name == "mul" and _is_rounded(expr):
            (out,) = expr.tensor_outputs
            attributes = {**expr.attributes, "op": "rounded_mul"}
            fusion.remove(expr)
            fusion.register(PointwiseOp(expr.inputs, [out], **attributes))


def _computed_again(tensors: Iterable[TensorView]) -> list[Expr]:
    """Return the ops, element by element, that compute tensors from what is in memory or is folded."""
    found: dict[Expr, None] = {}
    stack = list(tensors)
    while stack:
        expr = stack.pop().definition()
        if isinstance(expr, PASSED) and expr not in found:
            found[expr] = None
            stack += expr.tensor_inputs
    return list(found)


def _is_rounded(product: PointwiseOp) -> bool:
    """True for a product of floats that is added to something, and that is not exact."""
    (out,) = product.tensor_outputs
    is_added = any(isinstance(use, PointwiseOp) and use.op_name in SUMS for use in out.uses())
    return is_added and product.attributes["compute"].is_float and all(power_of_two(factor) is None for factor in product.inputs)


__all__ = ["round_compared_products"]
