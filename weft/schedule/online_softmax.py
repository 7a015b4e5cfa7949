"""Max and sum of exponentials as one reduction: softmax, log-softmax, logsumexp and cross entropy read their rows once less.

Owns the pattern and the rewrite; which schedules want it, `compiler.prepare` and the templates say. Read first: `fold_online`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, PointwiseOp, ReductionOp, Scalar, TensorView, Val
from ..ops.states import MAX_SUM
from .states import fold_into_state


@dataclass(frozen=True)
class ExpSum:
    """A sum of exp(x - max(x)) over the axes of the maximum, found in a fusion. is_guarded: x - 0 where the maximum is infinite."""

    x: TensorView
    largest: TensorView
    total: TensorView
    is_guarded: bool


def exp_sums(fusion: Fusion) -> list[ExpSum]:
    """Return the sums of exp(x - max(x)) where both fold the same axes of the same tensor of Float or Double; one for each maximum."""
    found: dict[TensorView, ExpSum] = {}
    for expr in fusion.tensor_exprs():
        match = _match(expr)
        if match is not None:
            found.setdefault(match.largest, match)
    return list(found.values())


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
        elif isinstance(above, BroadcastOp) and flags is None:
            flags, spread = tuple(above.attributes["flags"]), above.inputs[0]
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
    """Return the result of a reduction of this kind whose axes nobody has cut yet."""
    if not isinstance(expr, ReductionOp) or expr.attributes["kind"] != kind:
        return None
    out = expr.tensor_outputs[0]
    return None if out.has_root() else out


def _operand(expr: Expr | None, op: str) -> TensorView | None:
    is_op = isinstance(expr, PointwiseOp) and expr.op_name == op and isinstance(expr.inputs[0], TensorView)
    return expr.inputs[0] if is_op else None  # type: ignore[union-attr, return-value]


def fold_online(fusion: Fusion) -> int:
    """Fold max(x) and the sum of exp(x - max(x)) together, in place; return how many pairs there were.

    Before: m = max(x); s = sum(exp(x - m)).   After: state = max_sum(x); m, s = its fields, which stay the same tensors.
    Other readers of m and of the exponentials stay as they are.
    Contract: m is the same; s is the same sum in another order, with terms that were scaled down step by step (the bound stands with `MAX_SUM`); where m is
    infinite or no number, s is no number, as x - m is none; guarded, s is infinite or 0 there. Call it before transforming axes.
    """
    found = exp_sums(fusion)
    for pair in found:
        results = (("largest", pair.largest), ("guarded" if pair.is_guarded else "total", pair.total))
        fold_into_state(fusion, MAX_SUM, pair.x, pair.largest, results, "fold the exponentials of")
    return len(found)


__all__ = ["ExpSum", "exp_sums", "fold_online"]
