"""Mean and squared deviations as one reduction, for rows that each pass reads again: var_mean then reads them one time less.

Owns the pattern and the rewrite; which schedules want it, the templates say. Read first: `fold_moments`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DataType
from ..expr import product
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, PointwiseOp, ReductionOp, Scalar, TensorView, Val
from ..ops.moments import MOMENTS
from .states import fold_into_state


@dataclass(frozen=True)
class Deviations:
    """squares: the sum of (x - average)^2 over the axes of the average, which is the sum of x divided by the number of its elements."""

    x: TensorView
    average: TensorView
    squares: TensorView


def deviations(fusion: Fusion) -> list[Deviations]:
    """Return the sums of squared deviations of tensors of Float or Double from their mean over the same axes; one for each mean."""
    found: dict[TensorView, Deviations] = {}
    for expr in fusion.tensor_exprs():
        match = _match(expr.tensor_outputs[0]) if isinstance(expr, ReductionOp) else None
        if match is not None:
            found.setdefault(match.average, match)
    return list(found.values())


def _match(squares: TensorView) -> Deviations | None:
    squared = _summed(squares)
    times = squared.definition() if squared is not None else None
    if not isinstance(times, PointwiseOp) or times.op_name != "mul" or times.inputs[0] is not times.inputs[1]:
        return None
    difference = times.inputs[0].definition()
    if not isinstance(difference, PointwiseOp) or difference.op_name != "sub":
        return None
    x, spread = difference.inputs
    average, flags = _narrow(spread)
    total = _mean_of(average)
    if total is None or _summed(total) is not x or not isinstance(x, TensorView) or x.dtype() not in (DataType.Float, DataType.Double):
        return None
    folded = [tuple(axis.is_reduction() for axis in t.get_logical_domain()) for t in (total, squares)]
    return Deviations(x, average, squares) if folded[0] == folded[1] == flags and isinstance(average, TensorView) else None


def _summed(total: TensorView) -> TensorView | None:
    """Return the operand of the sum `total`, whose axes must not be transformed yet."""
    expr = total.definition()
    is_sum = isinstance(expr, ReductionOp) and expr.attributes["kind"] == "sum" and not total.has_root()
    return expr.tensor_inputs[0] if is_sum and expr is not None else None


def _narrow(value: Val) -> tuple[Val, tuple[bool, ...] | None]:
    """Return the tensor that one broadcast and an expand turn into `value`, and the axes of that broadcast."""
    flags: tuple[bool, ...] | None = None
    while True:
        expr = value.definition()
        if isinstance(expr, BroadcastOp) and flags is None:
            flags = tuple(expr.attributes["flags"])
        elif not isinstance(expr, ExpandOp):
            return value, flags
        value = expr.inputs[0]


def _mean_of(average: Val) -> TensorView | None:
    """Return the sum of which `average` is the quotient by the number of elements; None if it has other readers than the division."""
    expr = average.definition()
    if not isinstance(expr, PointwiseOp) or expr.op_name != "div":
        return None
    total, count = expr.inputs
    if not isinstance(total, TensorView) or not isinstance(count, Scalar):
        return None
    elements = product(axis.logical_extent for axis in total.get_logical_domain() if axis.is_reduction())
    return total if count.sym is elements and len(total.uses()) == 1 and not total.is_fusion_output else None


def fold_moments(fusion: Fusion) -> int:
    """Make the mean of x and its squared deviations one reduction, in place; return the number of pairs.

    Before: m = sum(x) / n; s = sum((x - m)^2).   After: state = moments(x); m, s = its fields, which stay the same tensors.
    Other readers of m and of the deviations stay as they are.
    Contract: the same values in another order of summation (the bound stands with `MOMENTS`). Call it before transforming axes.
    """
    found = deviations(fusion)
    for pair in found:
        results = (("average", pair.average), ("squares", pair.squares))
        fold_into_state(fusion, MOMENTS, pair.x, pair.squares, results, "fold the deviations of")
    return len(found)


__all__ = ["Deviations", "deviations", "fold_moments"]
