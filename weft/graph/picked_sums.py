"""Sums of one element: sum over j of where(j == index, x[j], 0) is x[index] where the index is a position, else 0; with c added to each, n * c more.

So frameworks write a loss without a gather, and the gradient of one. As a lookup it costs a load for each row instead of a comparison for each element, and
what else folds the row may do so in one pass. Read first: `look_up_what_sums_pick`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..analysis.masks import position_of
from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import PointwiseOp, ReductionOp, Scalar, TensorView, Val
from ..ops.build import cast, constant, logical_axes, pointwise
from ..ops.lookups import take_along_axis
from ..ops.shapes import squeeze
from .padded_folds import keep_axes


@dataclass(frozen=True)
class Picked:
    """x: the value that is summed at position `index` along `dim`; `index` does not depend on `dim`. shape: the summed tensor. beside: a term added to all
    elements, constant along `dim`, if any.
    """

    x: Val
    index: TensorView
    dim: int
    shape: TensorView
    beside: Val | None = None


def look_up_what_sums_pick(fusion: Fusion) -> None:
    """Replace sums that pick one element of a row by lookups, in place.

    Before: no axis is open. After: results keep their names and, except for the sign of a zero, their bits; n * c is rounded once instead of n times.
    """
    for expr in fusion.tensor_exprs():
        found = _picked(expr) if isinstance(expr, ReductionOp) and expr.attributes["kind"] == "sum" and len(expr.inputs) == 1 else None
        if found is not None:
            _exchange(fusion, expr, found)  # type: ignore[arg-type]


def _picked(expr: ReductionOp) -> Picked | None:
    out = expr.tensor_outputs[0]
    folded = [d for d, axis in enumerate(out.get_logical_domain()) if axis.is_reduction()]
    summed = copied_value(expr.inputs[0])
    above = summed.definition()
    if len(folded) != 1 or out.has_root() or not isinstance(above, PointwiseOp) or not out.dtype().is_float:
        return None
    if above.op_name == "add":
        for beside, rest in (above.inputs, above.inputs[::-1]):
            found = _chosen(rest, folded[0]) if _is_even(beside, folded[0]) else None
            if found is not None:
                found = replace(found, shape=above.tensor_outputs[0], beside=beside)
                return found if _keeps_axes(found) else None
        return None
    found = _chosen(summed, folded[0])
    return found if found is not None and _keeps_axes(found) else None


def _is_even(value: Val, dim: int) -> bool:
    return not isinstance(value, TensorView) or logical_axes(value)[dim].is_broadcast()


def _chosen(value: Val, dim: int) -> Picked | None:
    """Return the value at one position along `dim`, if all others are 0."""
    choice = copied_value(value).definition()
    if not isinstance(choice, PointwiseOp) or choice.op_name != "where":
        return None
    test, x, other = choice.inputs
    equal = copied_value(test).definition()
    if not (isinstance(other, Scalar) and other.sym.is_const and other.sym.value == 0) or not isinstance(equal, PointwiseOp) or equal.op_name != "eq":
        return None
    for place, index in (equal.inputs, equal.inputs[::-1]):
        if position_of(place) == dim and isinstance(index, TensorView) and index.dtype().is_integer and logical_axes(index)[dim].is_broadcast():
            return Picked(x, index, dim, choice.tensor_outputs[0])
    return None


def _keeps_axes(found: Picked) -> bool:
    """True if the index and the picked value have all axes of the result except `dim`."""
    operands = [logical_axes(v) for v in (found.x, found.index, found.beside) if isinstance(v, TensorView)]
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
    nothing = constant(fusion, 0.0, out.dtype())
    operation: dict[str, object] = {"op": "where", "compute": out.dtype()}
    operands = [squeeze(fusion, is_inside, [dim]), value, nothing]  # type: ignore[arg-type]
    if found.beside is not None:
        beside = squeeze(fusion, found.beside, [dim], squeeze_expanded=True) if isinstance(found.beside, TensorView) else found.beside
        operands = [pointwise(fusion, "mul", beside, cast(fusion, extent, out.dtype())), pointwise(fusion, "where", *operands)]
        operation["op"] = "add"
    fusion.remove(expr)
    keep_axes(out, [a for a in out.get_logical_domain() if not a.is_reduction()])
    fusion.register(PointwiseOp(operands, [out], **operation))


__all__ = ["look_up_what_sums_pick"]
