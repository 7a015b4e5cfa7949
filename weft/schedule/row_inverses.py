"""Divisions of a row's elements by one value of the row, as one reciprocal per row and products per element.

A division takes eight instructions where results are seen in 16 bits at most, and a product one. Otherwise a division that rounds takes a dozen and a branch,
which keeps the compiler from mixing the work of several elements; the same result without a branch takes six. Read first: `multiply_by_inverses`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.precision import wide_tensors
from ..analysis.softmaxes import is_softmax
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import ExpandOp, Expr, PointwiseOp, ReductionOp, TensorView, Val
from ..ops.build import logical_axes, pointwise
from .recompute import after_reduction

DIVISIONS = ("div", "truediv")


@dataclass
class _Divisor:
    """What a row computes once for all its divisions.

    narrow: the reciprocal, for results seen in 16 bits. share: reciprocal and negative of the divisor of a softmax. For other divisions that round: `scale`, a
    power of two that makes the reciprocal finite; the divisor times it, with a minus; the reciprocal of that product.
    """

    narrow: Val | None = None
    share: tuple[Val, Val] | None = None
    scale: Val | None = None
    negated: Val | None = None
    inverse: Val | None = None


def multiply_by_inverses(fusion: Fusion) -> int:
    """Replace divisions by a value that several elements share by products with its reciprocal, in place; return the number of divisors.

    Before: y = x / b, where one element of b divides several of x; b depends on a reduction, or the fusion has others.
    After, if y is used with at most 16 bits: y = x * narrow_inverse(b), which rounds twice. Otherwise a product and its remainder (Markstein, 1990):
    q = x * r, y = q + (x - q * b) * r with r = 1 / b, rounded as a division rounds but for denormal y; q where that is no finite number,
    which does not occur in a softmax. y stays the same tensor.
    """
    exprs = fusion.tensor_exprs()
    divisions = [expr for expr in exprs if is_division(expr)]
    if not divisions or not any(isinstance(expr, ReductionOp) for expr in exprs):
        return 0
    wide, folded = wide_tensors(fusion), after_reduction(fusion)
    divisors: dict[TensorView, _Divisor] = {}
    for expr in divisions:
        is_wide = expr.tensor_outputs[0] in wide
        divided, divisor = expr.tensor_inputs
        while isinstance(above := divisor.definition(), ExpandOp):
            divisor = above.tensor_inputs[0]
        if (divisor not in folded and not is_wide) or not repeats(divided, divisor):
            continue
        row, is_share = divisors.setdefault(divisor, _Divisor()), is_wide and is_softmax(divided, divisor)
        fusion.remove(expr)
        if is_share:
            name, operands = "fma", _share(fusion, divided, divisor, row)
        else:
            name, operands = "mul", _corrected(fusion, divided, divisor, row) if is_wide else [divided, _narrow(fusion, divisor, row)]
        fusion.register(PointwiseOp(operands, list(expr.outputs), op=name, compute=DataType.Float))
    return len(divisors)


def _narrow(fusion: Fusion, divisor: TensorView, row: _Divisor) -> Val:
    if row.narrow is None:
        row.narrow = pointwise(fusion, "narrow_inverse", divisor)
    return row.narrow


def _share(fusion: Fusion, divided: TensorView, divisor: TensorView, row: _Divisor) -> list[Val]:
    """Return the operands of the `fma` that corrects a softmax: nothing is infinite or needs a scale."""
    if row.share is None:
        row.share = pointwise(fusion, "reciprocal", divisor), pointwise(fusion, "neg", divisor)
    inverse, negated = row.share
    near = pointwise(fusion, "mul", divided, inverse)
    return [pointwise(fusion, "fma", near, negated, divided), inverse, near]


def _corrected(fusion: Fusion, divided: TensorView, divisor: TensorView, row: _Divisor) -> list[Val]:
    """Return the quotient by the scaled divisor, and the scale that it is to be multiplied with."""
    if row.scale is None or row.inverse is None or row.negated is None:
        row.scale = pointwise(fusion, "row_scale", divisor)
        scaled = pointwise(fusion, "mul", divisor, row.scale)
        row.inverse, row.negated = pointwise(fusion, "reciprocal", scaled), pointwise(fusion, "neg", scaled)
    near = pointwise(fusion, "mul", divided, row.inverse)
    rest = pointwise(fusion, "fma", near, row.negated, divided)
    better = pointwise(fusion, "fma", rest, row.inverse, near)
    return [pointwise(fusion, "where", pointwise(fusion, "isfinite", better), better, near), row.scale]


def is_division(expr: Expr) -> bool:
    """True for a division of a tensor of Float by another."""
    is_float = isinstance(expr, PointwiseOp) and expr.op_name in DIVISIONS and expr.attributes["compute"] is DataType.Float
    return is_float and len(expr.tensor_inputs) == 2


def repeats(divided: TensorView, divisor: TensorView) -> bool:
    """True if each element of the divisor divides several elements, and the result has the shape of the dividend."""
    axes = [(a.is_broadcast(), b.is_broadcast()) for a, b in zip(logical_axes(divided), logical_axes(divisor), strict=True)]
    return (False, True) in axes and not any(is_broadcast for is_broadcast, _ in axes)


__all__ = ["is_division", "multiply_by_inverses", "repeats"]
