"""Sums of one element: sum over j of where(j == index, x[j], 0) is x[index] where the index is a position, else 0; with factors that do not depend on j, their
product; with c added to each, n * c more.

So frameworks write a loss without a gather, and the gradient of one. As a lookup it costs a load for each row instead of a comparison for each element, and
what else folds the row may do so in one pass. Read first: `look_up_what_sums_pick`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..analysis.masks import position_of
from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import FullOp, PointwiseOp, ReductionOp, Scalar, TensorView, Val
from ..ops.build import cast, constant, logical_axes, pointwise
from ..ops.lookups import take_along_axis
from ..ops.shapes import squeeze
from .made_reductions import release_result


@dataclass(frozen=True)
class Picked:
    """x: the value that is summed at position `index` along `dim`; `index` does not depend on `dim`. shape: the summed tensor. dtype: of x, before factors.
    factors: of x, constant along `dim`. beside: a term added to all elements, constant along `dim`, if any.
    """

    x: Val
    index: TensorView
    dim: int
    shape: TensorView
    dtype: DataType
    factors: tuple[Val, ...] = ()
    beside: Val | None = None


def look_up_what_sums_pick(fusion: Fusion) -> None:
    """Replace sums that pick one element of a row by lookups, in place.

    Before: no axis is open. After: results keep their names and, except for the sign of a zero, their bits; n * c is rounded once instead of n times, and a
    factor that is infinite or NaN multiplies the one element, no zeros.
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
            found = _product(rest, folded[0], out.dtype()) if _is_even(beside, folded[0]) else None
            if found is not None:
                found = replace(found, shape=above.tensor_outputs[0], beside=beside)
                return found if _keeps_axes(found) else None
        return None
    found = _product(summed, folded[0], out.dtype())
    return found if found is not None and _keeps_axes(found) else None


def _is_even(value: Val, dim: int) -> bool:
    return not isinstance(value, TensorView) or logical_axes(value)[dim].is_broadcast()


def _product(value: Val, dim: int, dtype: DataType) -> Picked | None:
    """Return the value at one position along `dim`, if all others are 0, with its factors of type `dtype`."""
    factors: list[Val] = []
    value = _before_widening(value)
    while isinstance(above := value.definition(), PointwiseOp) and above.op_name == "mul" and above.attributes["compute"] is dtype:
        even = [v for v in above.inputs if _is_even(v, dim)]
        if len(even) != 1:
            return None
        factors += even
        value = _before_widening(next(v for v in above.inputs if v is not even[0]))
    found = _chosen(value, dim)
    return None if found is None else replace(found, factors=tuple(factors))


def _before_widening(value: Val) -> Val:
    """Return what a value is a copy of, or a cast of, from floats to floats of more bits."""
    value = copied_value(value)
    above = value.definition()
    if isinstance(above, PointwiseOp) and above.op_name == "cast":
        before, after = above.tensor_inputs[0].dtype(), above.tensor_outputs[0].dtype()
        if before.is_float and after.is_float and before.bits < after.bits:
            return copied_value(above.inputs[0])
    return value


def _is_zero(value: Val) -> bool:
    full = copied_value(value).definition()
    value = full.inputs[0] if isinstance(full, FullOp) else value
    return isinstance(value, Scalar) and value.sym.is_const and value.sym.value == 0


def _chosen(value: Val, dim: int) -> Picked | None:
    """Return the value at one position along `dim`, if all others are 0."""
    choice = copied_value(value).definition()
    if not isinstance(choice, PointwiseOp) or choice.op_name != "where":
        return None
    test, x, other = choice.inputs
    equal = copied_value(test).definition()
    if not _is_zero(other) or not isinstance(equal, PointwiseOp) or equal.op_name != "eq":
        return None
    for place, index in (equal.inputs, equal.inputs[::-1]):
        if position_of(place) == dim and isinstance(index, TensorView) and index.dtype().is_integer and logical_axes(index)[dim].is_broadcast():
            return Picked(x, index, dim, choice.tensor_outputs[0], choice.tensor_outputs[0].dtype())
    return None


def _keeps_axes(found: Picked) -> bool:
    """True if the index and the picked value have all axes of the result except `dim`."""
    operands = [logical_axes(v) for v in (found.x, found.index, *found.factors, found.beside) if isinstance(v, TensorView)]
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
    steps: list[tuple[str, list[Val | None]]] = [("where", [squeeze(fusion, is_inside, [dim]), value, constant(fusion, 0.0, found.dtype)])]  # type: ignore[arg-type]
    if found.dtype is not out.dtype():
        steps.append(("cast", [None]))
    steps += [("mul", [None, _without(fusion, factor, dim)]) for factor in found.factors]
    if found.beside is not None:
        all_beside = pointwise(fusion, "mul", _without(fusion, found.beside, dim), cast(fusion, extent, out.dtype()))
        steps.append(("add", [all_beside, None]))
    release_result(fusion, expr)
    _compute(fusion, steps, found.dtype, out)


def _compute(fusion: Fusion, steps: list[tuple[str, list[Val | None]]], narrow: DataType, out: TensorView) -> None:
    """Compute `out` by steps, in each of which None stands for the result of the step before. narrow: the type of the first step's result."""
    before: Val | None = None
    for name, operands in steps[:-1]:
        given = [before if v is None else v for v in operands]
        before = cast(fusion, given[0], out.dtype()) if name == "cast" else pointwise(fusion, name, *given)  # type: ignore[arg-type]
        before = cast(fusion, before, narrow) if name == "where" else before
    name, operands = steps[-1]
    more = {"dtype": out.dtype()} if name == "cast" else {}
    fusion.register(PointwiseOp([before if v is None else v for v in operands], [out], op=name, compute=out.dtype(), **more))  # type: ignore[misc]


def _without(fusion: Fusion, value: Val, dim: int) -> Val:
    return squeeze(fusion, value, [dim], squeeze_expanded=True) if isinstance(value, TensorView) else value


__all__ = ["look_up_what_sums_pick"]
