"""Sums of bags of rows that are multiplied by a number: sum(x[i] * c) = c * sum(x[i]), so that the product is not stored for the sum to read it.

So the gradient of a scaled embedding, or of rows that an index takes and a number multiplies, is written. Read first: `multiply_behind_bags`.
"""

from __future__ import annotations

import math

from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.graph_ops import BagOp, ReshapeOp
from ..ir.values import PointwiseOp, Scalar, TensorView, Val
from ..ops.build import logical_axes, pointwise

FLOATS = (DataType.Float, DataType.Double, DataType.BFloat16, DataType.Half)
Factor = tuple[str, Scalar]
"""A product or quotient, and its second operand."""


def multiply_behind_bags(fusion: Fusion) -> None:
    """Multiply the results of sums of bags, instead of what they sum, in place.

    Before: the rows are an input of floats, times finite numbers.   After: results keep their names; the input itself is summed, in the same order, and rounded
    only behind that. Tensors stay where they are: one that is infinite must not reach the sum of no rows.
    """
    for expr in fusion.tensor_exprs():
        if isinstance(expr, BagOp):
            source, factors = _factored(expr.source)
            wide = DataType.Float if source.dtype().is_reduced_float else source.dtype()
            if factors and _is_in_memory(source) and wide is expr.tensor_outputs[0].dtype():
                _rewrite(fusion, expr, source, factors)


def _factored(tensor: TensorView) -> tuple[TensorView, list[Factor]]:
    """Return the first tensor of a chain of casts, products and quotients of floats by numbers, and what follows it, first to last."""
    factors: list[Factor] = []
    tensor = copied_value(tensor)  # type: ignore[assignment]
    while tensor.dtype() in FLOATS and isinstance(above := tensor.definition(), PointwiseOp):
        if above.op_name != "cast":
            number = _number(above)
            if number is None:
                break
            factors.insert(0, (above.op_name, number))
        (source,) = above.tensor_inputs
        if source.dtype() not in FLOATS:
            break
        tensor = copied_value(source)  # type: ignore[assignment]
    return tensor, factors


def _is_in_memory(tensor: TensorView) -> bool:
    """True for an input, and for one in another shape."""
    made = tensor.definition()
    return tensor.is_fusion_input or isinstance(made, ReshapeOp) and made.tensor_inputs[0].is_fusion_input


def _number(expr: PointwiseOp) -> Scalar | None:
    """Return the finite number that an expression multiplies a tensor with, or divides it by."""
    if expr.op_name not in ("mul", "div", "truediv") or len(expr.tensor_inputs) != 1:
        return None
    first, second = expr.inputs
    number = first if expr.op_name == "mul" and isinstance(first, Scalar) else second
    if not isinstance(number, Scalar) or not number.sym.is_const or isinstance(number.sym.value, complex):
        return None
    return number if math.isfinite(number.sym.value) and (expr.op_name == "mul" or number.sym.value != 0) else None


def _rewrite(fusion: Fusion, expr: BagOp, source: TensorView, factors: list[Factor]) -> None:
    out = expr.tensor_outputs[0]
    total: Val = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(out)], out.dtype())
    fusion.remove(expr)
    fusion.register(BagOp([source, *expr.inputs[1:]], [total], **expr.attributes))
    for name, factor in factors[:-1]:
        total = pointwise(fusion, name, total, factor)
    name, factor = factors[-1]
    fusion.register(PointwiseOp([total, factor], [out], op=name, compute=out.dtype()))


__all__ = ["multiply_behind_bags"]
