"""What sums of bags read, so that it is not stored for the sum to read it: rows that are multiplied by a number, sum(x[i] * c) = c * sum(x[i]), and rows of an
axis that is not the first one in memory.

So the gradients of a scaled embedding, of rows that an index takes and a number multiplies, and of x[:, i] are written. Read first: `multiply_behind_bags`,
`read_in_any_order`.
"""

from __future__ import annotations

import math

from ..analysis.plain_copies import is_copy
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.graph_ops import BagOp, ReshapeOp
from ..ir.values import PointwiseOp, Scalar, TensorView, Val, no_reductions
from ..ops.build import logical_axes, pointwise
from ..ops.shapes import permute
from .exact_quotients import QUOTIENTS

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
            source, factors, order = _factored(expr.source)
            wide = DataType.Float if source.dtype().is_reduced_float else source.dtype()
            if factors and _is_in_memory(source) and wide is expr.tensor_outputs[0].dtype() and _has_rows(source, order):
                _rewrite(fusion, expr, source if order is None else permute(fusion, source, order), factors)


def read_in_any_order(fusion: Fusion) -> None:
    """Let sums of bags read a tensor in memory whose axes a copy would put in another order, in place. Results keep their names."""
    for expr in fusion.tensor_exprs():
        if isinstance(expr, BagOp):
            source, order = _unpermuted(expr.source)
            if order is not None and _is_in_memory(source) and _has_rows(source, order):
                positions = tuple(expr.positions[order.index(axis)] for axis in range(len(order)))
                fusion.remove(expr)
                fusion.register(BagOp([source, *expr.inputs[1:]], list(expr.outputs), **{**expr.attributes, "positions": positions}))


def _has_rows(source: TensorView, order: list[int] | None) -> bool:
    """True if neighbours in memory are of one row. Otherwise each thread would add single elements of other bags, and a transposed copy takes less time."""
    summed = logical_axes(source)[0 if order is None else order[0]]
    return order is None or no_reductions(source.get_allocation_domain())[-1] is not summed


def _unpermuted(tensor: TensorView) -> tuple[TensorView, list[int] | None]:
    """Return what copies show, axes in any order, and the order of its axes at the end; None if it is its own."""
    order: list[int] | None = None
    while is_copy(above := tensor.definition()):
        root = tensor.get_maybe_root_domain()
        order = _composed([root.index(axis) for axis in tensor.get_logical_domain()] if tensor.has_root() else None, order)
        tensor = above.tensor_inputs[0]  # type: ignore[union-attr]
    return tensor, order


def _composed(inner: list[int] | None, outer: list[int] | None) -> list[int] | None:
    return outer if inner is None else inner if outer is None else [inner[axis] for axis in outer]


def _factored(tensor: TensorView) -> tuple[TensorView, list[Factor], list[int] | None]:
    """Return the first tensor of a chain of permutations, casts, products and quotients of floats by numbers, the numbers, first to last, and the order of its
    axes at the end (None: its own)."""
    factors: list[Factor] = []
    tensor, order = _unpermuted(tensor)
    while tensor.dtype() in FLOATS and isinstance(above := tensor.definition(), PointwiseOp):
        if above.op_name != "cast":
            number = _number(above)
            if number is None:
                break
            factors.insert(0, (above.op_name, number))
        (source,) = above.tensor_inputs
        if source.dtype() not in FLOATS:
            break
        tensor, inner = _unpermuted(source)
        order = _composed(inner, order)
    return tensor, factors, order


def _is_in_memory(tensor: TensorView) -> bool:
    """True for an input, and for one in another shape."""
    made = tensor.definition()
    return tensor.is_fusion_input or isinstance(made, ReshapeOp) and made.tensor_inputs[0].is_fusion_input


def _number(expr: PointwiseOp) -> Scalar | None:
    """Return the finite number that an expression multiplies a tensor with, or divides it by."""
    if expr.op_name not in ("mul", *QUOTIENTS) or len(expr.tensor_inputs) != 1:
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


__all__ = ["multiply_behind_bags", "read_in_any_order"]
