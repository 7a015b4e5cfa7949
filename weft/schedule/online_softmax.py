"""Online softmax: max and sum of exponentials as one reduction, so that softmax, log-softmax, logsumexp and cross entropy read their rows one time less.

Owns the pattern and the rewrite; which schedules want it, `compiler.prepare` and the templates say. Read first: `fold_online`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..expr import product
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, PointwiseOp, ReductionOp, Scalar, TensorView, Val
from ..ops.build import pointwise
from ..ops.states import MAX_SUM, MAX_SUM_BELOW
from .caching import require_not_inlined, without_reductions
from .states import fold_into_state


@dataclass(frozen=True)
class ExpSum:
    """A sum of exp(x - max(x)) over the axes of the maximum, found in a fusion. is_guarded: x - 0 if the maximum is infinite. logarithms: the sum of x - max(x)
    - log(total) over the same axes, if there is one (label smoothing).
    """

    x: TensorView
    largest: TensorView
    total: TensorView
    is_guarded: bool
    logarithms: TensorView | None = None


def exp_sums(fusion: Fusion) -> list[ExpSum]:
    """Return the sums of exp(x - max(x)) in which both reduce the same axes of the same tensor of Float or Double; one for each maximum."""
    found: dict[TensorView, ExpSum] = {}
    for expr in fusion.tensor_exprs():
        match = _match(expr)
        if match is not None:
            found.setdefault(match.largest, match)
    for expr in fusion.tensor_exprs() if found else ():
        pair = _of_logarithms(expr, found)
        if pair is not None and pair.logarithms is None:
            found[pair.largest] = replace(pair, logarithms=expr.tensor_outputs[0])
    return list(found.values())


def _of_logarithms(expr: Expr, pairs: dict[TensorView, ExpSum]) -> ExpSum | None:
    """Return the pair of which `expr` sums up x - max(x) - log(total)."""
    summed = _reduced(expr, "sum")
    outer = None if summed is None else _operands(expr.inputs[0], "sub")
    inner = None if outer is None else _operands(outer[0], "sub")
    if summed is None or outer is None or inner is None:
        return None
    folded = tuple(axis.is_reduction() for axis in summed.get_logical_domain())
    pair = next((p for p in pairs.values() if not p.is_guarded and copied_value(inner[0]) is p.x and _spread(inner[1], folded) == (p.largest, 0)), None)
    return pair if pair is not None and _spread(outer[1], folded) == (pair.total, 1) else None


def _operands(value: Val, op: str) -> tuple[Val, Val] | None:
    expr = copied_value(value).definition()
    return (expr.inputs[0], expr.inputs[1]) if isinstance(expr, PointwiseOp) and expr.op_name == op else None


def _spread(value: Val, folded: tuple[bool, ...]) -> tuple[Val, int] | None:
    """Return the tensor that is broadcast over the reduced axes to `value`, and the number of logarithms between them; None if there is none."""
    flags: tuple[bool, ...] | None = None
    logarithms = 0
    while True:
        value = copied_value(value)
        expr = value.definition()
        if isinstance(expr, BroadcastOp):
            flags = _new_axes(expr, flags)
        elif isinstance(expr, PointwiseOp) and expr.op_name == "log" and not logarithms:
            logarithms = 1
        elif not isinstance(expr, ExpandOp):
            return (value, logarithms) if flags == folded else None
        value = expr.inputs[0]


def _new_axes(broadcast: BroadcastOp, below: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """Return which axes a broadcast adds, as seen below another one that adds the axes `below` to its result: an axis kept by a sum over merged axes."""
    own = tuple(broadcast.attributes["flags"])
    if below is None:
        return own
    rest = iter(own)
    return tuple(is_new or next(rest) for is_new in below)


def _match(expr: Expr) -> ExpSum | None:
    total = _reduced(expr, "sum")
    shifted = _operand(copied_value(expr.inputs[0]).definition(), "exp") if total is not None else None
    difference = copied_value(shifted).definition() if shifted is not None else None
    if total is None or not isinstance(difference, PointwiseOp) or difference.op_name != "sub":
        return None
    x, spread = map(copied_value, difference.inputs)
    flags: tuple[bool, ...] | None = None
    is_guarded = False
    while True:
        above = spread.definition()
        if isinstance(above, PointwiseOp) and not is_guarded:
            inner = _guarded(above)
            if inner is None:
                return None
            is_guarded, spread = True, inner
        elif isinstance(above, BroadcastOp):
            flags, spread = _new_axes(above, flags), above.inputs[0]
        elif isinstance(above, ExpandOp):
            spread = above.inputs[0]
        elif copied_value(spread) is not spread:
            spread = copied_value(spread)
        else:
            break
    largest = None if above is None else _reduced(above, "max")
    if largest is None or copied_value(above.inputs[0]) is not x or not isinstance(x, TensorView) or x.dtype() not in (DataType.Float, DataType.Double):  # type: ignore[union-attr]
        return None
    folded = [tuple(axis.is_reduction() for axis in t.get_logical_domain()) for t in (largest, total)]
    return ExpSum(x, largest, total, is_guarded) if folded[0] == folded[1] == flags else None


def _guarded(expr: PointwiseOp) -> Val | None:
    """Return m of where(isinf(m), 0, m), as torch.logsumexp guards its maximum; None for other ops."""
    if expr.op_name != "where" or not (isinstance(expr.inputs[1], Scalar) and expr.inputs[1].sym.is_const and expr.inputs[1].sym.value == 0):
        return None
    test = expr.inputs[0].definition()
    is_test = isinstance(test, PointwiseOp) and test.op_name == "isinf" and test.inputs[0] is expr.inputs[2]
    return expr.inputs[2] if is_test else None


def _reduced(expr: Expr, kind: str) -> TensorView | None:
    """Return the result of a reduction of this kind whose axes are not transformed yet."""
    if not isinstance(expr, ReductionOp) or expr.attributes["kind"] != kind:
        return None
    out = expr.tensor_outputs[0]
    return None if out.has_root() else out


def _operand(expr: Expr | None, op: str) -> TensorView | None:
    is_op = isinstance(expr, PointwiseOp) and expr.op_name == op and isinstance(expr.inputs[0], TensorView)
    return expr.inputs[0] if is_op else None  # type: ignore[union-attr, return-value]


def fold_online(fusion: Fusion) -> int:
    """Make max(x) and the sum of exp(x - max(x)) one reduction, in place; return the number of pairs.

    Before: m = max(x); s = sum(exp(x - m)).   After: state = max_sum(x); m, s = its fields, which stay the same tensors.
    With r = sum(x - m - log(s)): state = max_sum_below(x); r = state.below - n * log(s): both are at most 0, so there is no cancellation.
    Other readers of m and of the exponentials stay as they are.
    Contract: m is the same; s is the same sum in another order, with terms that were scaled down step by step (the bound stands with `MAX_SUM`); if m is
    infinite or NaN, s is NaN, because x - m is; guarded, s is infinite or 0 there. Call it before transforming axes.
    """
    found = exp_sums(fusion)
    for pair in found:
        if pair.logarithms is not None:
            _fold_three(fusion, pair, pair.logarithms)
            continue
        results = (("largest", pair.largest), ("guarded" if pair.is_guarded else "total", pair.total))
        fold_into_state(fusion, MAX_SUM, pair.x, pair.largest, results, "fold the exponentials of")
    return len(found)


def _fold_three(fusion: Fusion, pair: ExpSum, logarithms: TensorView) -> None:
    """Make the maximum, the sum of exponentials and the sum of differences one reduction; `logarithms` is computed from its fields."""
    axes = logarithms.get_logical_domain()
    count = fusion.new_scalar(product(axis.logical_extent for axis in axes if axis.is_reduction()), DataType.Int)
    below = fusion.new_tensor([fusion.copy_axis(axis) for axis in axes], logarithms.dtype())
    fusion.register(ReductionOp([pair.x], [below], op="sum", kind="sum"))
    results = (("largest", pair.largest), ("total", pair.total), ("below", below))
    fold_into_state(fusion, MAX_SUM_BELOW, pair.x, pair.largest, results, "fold the exponentials of")
    require_not_inlined(logarithms, "fold the exponentials of")
    fusion.remove(logarithms.definition())  # type: ignore[arg-type]
    logarithms._domain = without_reductions(logarithms.domain())
    shift = pointwise(fusion, "mul", pointwise(fusion, "log", pair.total), count)
    fusion.register(PointwiseOp([below, shift], [logarithms], op="sub", compute=logarithms.dtype()))


__all__ = ["ExpSum", "exp_sums", "fold_online"]
