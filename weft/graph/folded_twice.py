"""Reductions of reductions: the sum over one axis of a sum over another is one sum over both; likewise products, maxima and minima.

So frameworks write the gradient of an axis that is repeated twice, and means of means. Two kernels would store what lies between. Read first:
`fold_at_once`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.plain_copies import is_plain_copy, sole_producers
from ..dtypes import StateType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, Expr, LoadStoreOp, PointwiseOp, ReductionOp, Scalar, SqueezeOp, TensorView, Val
from ..ops.build import pointwise
from .made_reductions import reduce_like, release_result

KINDS = ("sum", "prod", "max", "min")


@dataclass(frozen=True)
class Inner:
    """The reduction whose result another one reduces. folds: which axes of its result the other one reduces. factors: multiplications and divisions of a sum by
    numbers between the two, the first first."""

    expr: ReductionOp
    folds: tuple[bool, ...]
    factors: tuple[PointwiseOp, ...]


def fold_at_once(fusion: Fusion) -> None:
    """Merge a reduction with the one whose result it reduces, if nothing else reads that, in place.

    Before: no axis is open. After: results keep their names; terms are added in another order, and numbers multiply the sum.
    """
    for expr in fusion.tensor_exprs():
        if isinstance(expr, ReductionOp) and _is_plain(expr):
            found = _inner(expr)
            if found is not None:
                _merge(fusion, expr, found)


def _is_plain(expr: ReductionOp) -> bool:
    out = expr.tensor_outputs[0]
    is_one = len(expr.inputs) == 1 and not out.has_root() and not isinstance(out.dtype(), StateType)
    return is_one and expr.attributes["kind"] in KINDS and expr.tensor_inputs[0].dtype() is out.dtype()


def _inner(outer: ReductionOp) -> Inner | None:
    """Return the reduction above the operand of another one, through copies, and axes of one element that are added and dropped."""
    kind = outer.attributes["kind"]
    folds: list[bool | None] = [a.is_reduction() for a in outer.tensor_outputs[0].get_logical_domain()]  # None: not an axis of the outer one's operand
    factors: list[PointwiseOp] = []
    for above in sole_producers(outer.tensor_inputs[0], outer):
        if isinstance(above, ReductionOp):
            is_same = _is_plain(above) and above.attributes["kind"] == kind
            return Inner(above, tuple(map(bool, folds)), tuple(reversed(factors))) if is_same and None not in folds else None
        if isinstance(above, BroadcastOp):
            flags = above.attributes["flags"]
            if any(new and fold is False for new, fold in zip(flags, folds)):
                return None  # an axis of one element that the result has
            folds = [fold for fold, new in zip(folds, flags) if not new]
        elif isinstance(above, SqueezeOp):
            rest = iter(folds)
            folds = [None if dropped else next(rest) for dropped in above.attributes["flags"]]
        elif kind == "sum" and _is_scaling(above):
            factors.append(above)  # type: ignore[arg-type]
        elif not is_plain_copy(above):
            return None
    return None


def _is_scaling(expr: Expr | None) -> bool:
    """Tell whether an expression multiplies or divides a tensor of floats by a number."""
    if not isinstance(expr, PointwiseOp) or expr.op_name not in ("mul", "truediv") or not expr.tensor_outputs[0].dtype().is_float:
        return False
    return len(expr.tensor_inputs) == 1 and isinstance(expr.inputs[1 if expr.op_name == "truediv" or isinstance(expr.inputs[1], Scalar) else 0], Scalar)


def _merge(fusion: Fusion, outer: ReductionOp, inner: Inner) -> None:
    source, out = inner.expr.tensor_inputs[0], outer.tensor_outputs[0]
    rest = iter(inner.folds)
    is_folded = [axis.is_reduction() or next(rest) for axis in inner.expr.tensor_outputs[0].get_logical_domain()]
    value: Val = reduce_like(fusion, inner.expr, source, is_folded, out.dtype())
    for factor in inner.factors:
        value = pointwise(fusion, factor.op_name, *(value if isinstance(v, TensorView) else v for v in factor.inputs))
    release_result(fusion, outer)
    fusion.register(LoadStoreOp([value], [out]))
