"""Welford reductions as two passes: the mean, then the sum of squared deviations from it.

For persistent schedules, where the values of a row stay on chip and the second pass reads them again for nothing.
Read first: `translate_welford`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import product
from ..ir.fusion import Fusion
from ..ir.values import FullOp, PointwiseOp, ReductionOp, TensorView, WelfordOp
from ..ops.build import broadcast, pointwise
from .caching import require_not_inlined, without_reductions


def translate_welford(fusion: Fusion) -> list[tuple[TensorView, TensorView, TensorView]]:
    """Replace every WelfordOp by plain nodes; return the (average, squares, count) triples, which stay the same tensors.

    Before: avg, m2, n = welford(x).
    After:  avg = sum(x) / n;  m2 = sum((x - broadcast(avg))^2);  n = the number of reduced elements.
    Call it before transforming axes.
    """
    out = []
    for expr in fusion.tensor_exprs():
        if isinstance(expr, WelfordOp):
            out.append(_translate(fusion, expr))
    return out


def _translate(fusion: Fusion, expr: WelfordOp) -> tuple[TensorView, TensorView, TensorView]:
    x = expr.tensor_inputs[0]
    average, squares, count = expr.outputs
    assert isinstance(average, TensorView) and isinstance(squares, TensorView) and isinstance(count, TensorView)
    for tensor in (average, squares, count):
        require_not_inlined(tensor, "translate the Welford reduction of")
    fusion.remove(expr)
    axes = average.get_logical_domain()
    elements = fusion.new_scalar(product(a.logical_extent for a in axes if a.is_reduction()), DataType.Int)

    total = fusion.new_tensor([fusion.copy_axis(a) for a in axes], average.dtype())
    fusion.register(ReductionOp([x], [total], op="sum", kind="sum"))
    average._domain = without_reductions(average.domain())
    fusion.register(PointwiseOp([total, elements], [average], op="div", compute=average.dtype()))

    flags = tuple(a.is_reduction() for a in axes)
    deviation = pointwise(fusion, "sub", x, broadcast(fusion, average, flags))
    squared = pointwise(fusion, "mul", deviation, deviation)
    fusion.register(ReductionOp([squared], [squares], op="sum", kind="sum"))

    count._domain = without_reductions(count.domain())
    fusion.register(FullOp([elements], [count], op="full"))
    return average, squares, count


__all__ = ["translate_welford"]
