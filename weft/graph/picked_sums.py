"""Sums of one element: sum over j of where(j == index, x[j], 0) is x[index] where the index is a position, else 0.

So frameworks write a loss without a gather, and the gradient of one. As a lookup it costs a load for each row instead of a comparison for each element, and
what else folds the row may do so in one pass. Read first: `look_up_what_sums_pick`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.masks import position_of
from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import PointwiseOp, ReductionOp, Scalar, TensorView, Val
from ..ops.build import constant, logical_axes, pointwise
from ..ops.lookups import take_along_axis
from ..ops.shapes import squeeze
from .padded_folds import keep_axes


@dataclass(frozen=True)
class Picked:
    """x: what is summed where the position along `dim` is `index`, which does not vary along it. shape: the tensor that is summed."""

    x: Val
    index: TensorView
    dim: int
    shape: TensorView


def look_up_what_sums_pick(fusion: Fusion) -> None:
    """Replace sums that pick one element of a row by lookups, in place.

    Before: no axis is open. After: results keep their names and, but for the sign of a zero, their bits.
    """
    for expr in fusion.tensor_exprs():
        found = _picked(expr) if isinstance(expr, ReductionOp) and expr.attributes["kind"] == "sum" and len(expr.inputs) == 1 else None
        if found is not None:
            _exchange(fusion, expr, found)  # type: ignore[arg-type]


def _picked(expr: ReductionOp) -> Picked | None:
    out = expr.tensor_outputs[0]
    folded = [d for d, axis in enumerate(out.get_logical_domain()) if axis.is_reduction()]
    choice = copied_value(expr.inputs[0]).definition()
    if len(folded) != 1 or out.has_root() or not isinstance(choice, PointwiseOp) or choice.op_name != "where":
        return None
    (dim,), (test, x, other) = folded, choice.inputs
    equal = copied_value(test).definition()
    if not (isinstance(other, Scalar) and other.sym.is_const and other.sym.value == 0) or not isinstance(equal, PointwiseOp) or equal.op_name != "eq":
        return None
    shape = choice.tensor_outputs[0]
    for place, index in (equal.inputs, equal.inputs[::-1]):
        if position_of(place) == dim and isinstance(index, TensorView) and index.dtype().is_integer and logical_axes(index)[dim].is_broadcast():
            found = Picked(x, index, dim, shape)
            return found if _keeps_axes(found) else None
    return None


def _keeps_axes(found: Picked) -> bool:
    """True when the index and what is picked have all axes of the result but `dim`."""
    operands = [logical_axes(v) for v in (found.x, found.index) if isinstance(v, TensorView)]
    others = [(axis, *of) for d, (axis, *of) in enumerate(zip(logical_axes(found.shape), *operands)) if d != found.dim]
    return all(axis.is_broadcast() is all(a.is_broadcast() for a in of) and axis.expanded_extent is None for axis, *of in others)


def _exchange(fusion: Fusion, expr: ReductionOp, found: Picked) -> None:
    out, dim = expr.tensor_outputs[0], found.dim
    zero, extent = constant(fusion, 0, DataType.Int), fusion.new_scalar(logical_axes(found.shape)[dim].logical_extent, DataType.Int)
    is_inside = pointwise(fusion, "logical_and", pointwise(fusion, "ge", found.index, zero), pointwise(fusion, "lt", found.index, extent))
    value = found.x
    if isinstance(value, TensorView):
        if not logical_axes(value)[dim].is_broadcast():
            value = take_along_axis(fusion, value, pointwise(fusion, "where", is_inside, found.index, zero), dim)  # type: ignore[arg-type]
        value = squeeze(fusion, value, [dim], squeeze_expanded=True)
    fusion.remove(expr)
    keep_axes(out, [a for a in out.get_logical_domain() if not a.is_reduction()])
    nothing = constant(fusion, False if out.dtype().is_bool else 0 if out.dtype().is_integer else 0j if out.dtype().is_complex else 0.0, out.dtype())
    fusion.register(PointwiseOp([squeeze(fusion, is_inside, [dim]), value, nothing], [out], op="where", compute=out.dtype()))  # type: ignore[arg-type]


__all__ = ["look_up_what_sums_pick"]
