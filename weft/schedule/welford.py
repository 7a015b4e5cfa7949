"""Welford reductions as plain nodes: in two passes, the mean and then the sum of squared deviations from it, or as one reduction of a state.

Two passes are for persistent schedules, where the values of a row stay on chip and the second pass reads them again for nothing. The state is for reductions
scheduled by hand: its loops are those of the Welford reduction. Read first: `translate_welford`, `fold_scheduled_welford`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import product
from ..ir.fusion import Fusion
from ..ir.values import FullOp, PointwiseOp, ReductionOp, TensorView, WelfordOp
from ..ops.build import broadcast, pointwise
from ..ops.moments import MOMENTS
from .caching import _computed_alike, require_not_inlined, without_reductions
from .inline import inline_to


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


def fold_scheduled_welford(fusion: Fusion) -> None:
    """Replace every WelfordOp of a scheduled fusion by one reduction of a state in the same loops.

    Before: avg, m2, n = welford(x).   After: state = moments(x); avg, m2 = its fields; n = the number of reduced elements.
    """
    positions = {tensor: tensor.compute_at for tensor in fusion.tensors()}
    found = [expr for expr in fusion.tensor_exprs() if isinstance(expr, WelfordOp)]
    for tensor in positions if found else ():
        tensor.compute_at = 0
    for expr in found:
        x, (average, squares, count) = expr.tensor_inputs[0], expr.tensor_outputs
        elements = fusion.new_scalar(product(a.logical_extent for a in average.get_logical_domain() if a.is_reduction()), DataType.Int)
        state = _computed_alike(fusion, average)
        state._dtype = kind = MOMENTS.state(x.dtype())
        positions[state] = len(state.get_loop_domain())
        fusion.remove(expr)
        fusion.register(ReductionOp([x], [state], op=MOMENTS.kind, kind=MOMENTS.kind))
        for tensor in (average, squares, count):
            tensor._domain = without_reductions(tensor.domain())
            positions[tensor] = len(tensor.get_loop_domain())
        for field, tensor in (("average", average), ("squares", squares)):
            fusion.register(PointwiseOp([state], [tensor], op=f"{MOMENTS.kind}.{field}", compute=kind))
        fusion.register(FullOp([elements], [count], op="full"))
    if found:
        inline_to(fusion, positions)


__all__ = ["fold_scheduled_welford", "translate_welford"]
