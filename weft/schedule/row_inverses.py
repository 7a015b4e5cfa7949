"""Divisions of a row's elements by a result of the row, as one reciprocal per row and a product per element.

Where results are seen in 16 bits at most; a division takes eight instructions there, one of them on the unit for special functions, and a product one.
Read first: `multiply_by_inverses`.
"""

from __future__ import annotations

from ..analysis.precision import wide_tensors
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import ExpandOp, Expr, PointwiseOp, TensorView, Val
from ..ops.build import logical_axes, pointwise
from .recompute import after_reduction

DIVISIONS = ("div", "truediv")


def multiply_by_inverses(fusion: Fusion) -> int:
    """Replace divisions by broadcast reduction results by products with their reciprocals, in place; return the number of divisors.

    Before: y = x / b.   After: y = x * narrow_inverse(b), where one element of b divides several of x; y stays the same tensor.
    Only if y is used with at most 16 bits, because a reciprocal and a product round twice.
    """
    divisions = [expr for expr in fusion.tensor_exprs() if _is_division(expr)]
    if not divisions:
        return 0
    wide, folded = wide_tensors(fusion), after_reduction(fusion)
    inverses: dict[TensorView, Val] = {}
    for expr in divisions:
        if expr.tensor_outputs[0] in wide:
            continue
        divided, divisor = expr.tensor_inputs
        while isinstance(above := divisor.definition(), ExpandOp):
            divisor = above.tensor_inputs[0]
        if divisor not in folded or not _repeats(divided, divisor):
            continue
        if divisor not in inverses:
            inverses[divisor] = pointwise(fusion, "narrow_inverse", divisor)
        fusion.remove(expr)
        fusion.register(PointwiseOp([divided, inverses[divisor]], list(expr.outputs), op="mul", compute=DataType.Float))
    return len(inverses)


def _is_division(expr: Expr) -> bool:
    """True for a division of a tensor of Float by another."""
    is_float = isinstance(expr, PointwiseOp) and expr.op_name in DIVISIONS and expr.attributes["compute"] is DataType.Float
    return is_float and len(expr.tensor_inputs) == 2


def _repeats(divided: TensorView, divisor: TensorView) -> bool:
    """True if each element of the divisor divides several elements, and the result has the shape of the dividend."""
    axes = [(a.is_broadcast(), b.is_broadcast()) for a, b in zip(logical_axes(divided), logical_axes(divisor), strict=True)]
    return (False, True) in axes and not any(is_broadcast for is_broadcast, _ in axes)


__all__ = ["multiply_by_inverses"]
