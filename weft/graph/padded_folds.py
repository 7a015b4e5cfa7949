"""Folds of padded tensors: what a pad adds is the identity of the fold, so that the tensor itself is folded, and the result is padded where it keeps axes.

sum(pad(x)) = pad(sum(x)). Loads of x are then those of any fold: without a question per element, in vectors, and shared by folds over other axes.
A padded tensor that is an output is folded as it is: the kernel that writes it has its loops.
Read first: `fold_before_padding`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import ZERO, Number, Sym, add, mul
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp
from ..ir.values import Expr, PointwiseOp, ReductionOp, Scalar, TensorView
from ..ops.build import cast, constant, logical_axes
from ..ops.monoids import MONOIDS, StateMonoid
from .made_reductions import reduce_like, release_result
from .questions import Questions


def fold_before_padding(fusion: Fusion, questions: Questions) -> None:
    """Let reductions read the source of a pad instead of the padded tensor, in place, if the padding does not change the result.

    Before: no axis is open. After: results keep their names; the bits of sums may differ, because their terms are added in another order.
    """
    for expr in fusion.tensor_exprs():
        if isinstance(expr, ReductionOp) and len(expr.inputs) == 1:
            casts, pad = _above(expr.tensor_inputs[0])
            if pad is not None and pad.tensor_outputs[0] not in fusion.outputs() and _is_neutral(expr, casts, pad, questions):
                _exchange(fusion, expr, casts, pad)


def _above(tensor: TensorView) -> tuple[list[Expr], LookupOp | None]:
    """Return the casts before a tensor, last first, and the pad before them."""
    casts: list[Expr] = []
    definition = tensor.definition()
    while isinstance(definition, PointwiseOp) and definition.op_name == "cast":
        casts.append(definition)
        definition = definition.tensor_inputs[0].definition()
    is_pad = isinstance(definition, LookupOp) and definition.op_name == "pad" and definition.is_masked
    return casts, definition if is_pad else None  # type: ignore[return-value]


def _is_neutral(expr: ReductionOp, casts: list[Expr], pad: LookupOp, questions: Questions) -> bool:
    """Tell whether the padding is the identity of the reduction, and all elements of the source are reduced."""
    monoid, fill = MONOIDS[expr.attributes["kind"]], pad.inputs[-1]
    out = expr.tensor_outputs[0]
    if isinstance(monoid, StateMonoid) or not isinstance(fill, Scalar) or not fill.sym.is_const or out.dtype().is_complex or out.dtype().is_bool:
        return False
    if fill.sym.value != monoid.identity_value(out.dtype()) or not all(_has_number(one.tensor_outputs[0].dtype(), fill.sym.value) for one in casts):
        return False
    padded = logical_axes(pad.tensor_outputs[0])
    for dim, (source, axis, place) in enumerate(zip(logical_axes(pad.source), padded, pad.positions)):
        if not isinstance(place, Along) or place.axis != dim:
            return False
        left = mul(place.offset, -1)
        if left is ZERO and source.logical_extent is axis.logical_extent:
            continue
        is_inside = not questions.is_less(left, ZERO) and not questions.is_less(axis.logical_extent, add(source.logical_extent, left))
        if source.is_broadcast() or axis.is_broadcast() or out.get_logical_domain()[dim].is_reduction() and not is_inside:
            return False
    return True


def _has_number(dtype: DataType, number: Number) -> bool:
    """Tell whether a cast to a type keeps an identity: 0, 1, the extrema of integers, infinities."""
    if number in (0, 1):
        return True
    if dtype.is_integer:
        least, largest = (MONOIDS[kind].identity_value(dtype) for kind in ("max", "min"))
        return least <= number <= largest  # type: ignore[operator]
    return dtype.is_float and not dtype.is_narrow_float and abs(number) == float("inf")


def _exchange(fusion: Fusion, expr: ReductionOp, casts: list[Expr], pad: LookupOp) -> None:
    out, source = expr.tensor_outputs[0], pad.source
    folded = [a.is_reduction() for a in out.get_logical_domain()]
    for one in reversed(casts):
        source = cast(fusion, source, one.tensor_outputs[0].dtype())  # type: ignore[assignment]
    result = reduce_like(fusion, expr, source, folded, out.dtype())
    release_result(fusion, expr)
    kept = [place for place, fold in zip(pad.positions, folded) if not fold]
    identity = constant(fusion, MONOIDS[expr.attributes["kind"]].identity_value(out.dtype()), out.dtype())
    positions = tuple(Along(n, _offset(place)) for n, place in enumerate(kept))
    fusion.register(LookupOp([result, identity], [out], op="pad", positions=positions, is_masked=True))


def _offset(place: object) -> Sym:
    assert isinstance(place, Along)
    return place.offset


__all__ = ["fold_before_padding"]
