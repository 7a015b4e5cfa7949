"""Logarithms of shares, log(exp(t) / b), as t - log(b): one logarithm per row instead of one per element.

So the loss of a softmax with itself as a target is written, sum(p * log(p)), and the gradient of that. Read first: `subtract_logs`.
"""

from __future__ import annotations

from ..analysis.precision import wide_tensors
from ..analysis.softmaxes import is_softmax
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import Expr, PointwiseOp, Val
from ..ops.build import pointwise
from .row_inverses import is_division, repeats


def subtract_logs(fusion: Fusion) -> int:
    """Replace logarithms of shares in place; return their number.

    Before: y = log(p), p = e / b, e = exp(t), t = x - m, where b and m have one element for several of x.
    After: y = log_of_share(p, t, log(b)), which is t - log(b), or what log(p) is where p is 0 or no number; y stays the same tensor.
    Only where the error of t - log(b), half a unit in the last place of t and of log(b), is no larger than that of log(p): where y is used with at most
    16 bits, or where b is the sum of these exponentials over the axes along which m is the maximum of x. Then b is at least 1, and t is 0 where p is near 1.
    """
    logs = [expr for expr in fusion.tensor_exprs() if _is(expr, "log")]
    if not logs:
        return 0
    wide, done = wide_tensors(fusion), 0
    row_logs: dict[Val, Val] = {}
    for expr in logs:
        out, share = expr.tensor_outputs[0], expr.tensor_inputs[0].definition()
        if share is None or not is_division(share):
            continue
        exponential, divisor = share.tensor_inputs
        made = exponential.definition()
        difference = made.tensor_inputs[0].definition() if made is not None and _is(made, "exp") else None
        if difference is None or not _is(difference, "sub") or len(difference.tensor_inputs) != 2:
            continue
        if not repeats(exponential, divisor) or not repeats(*difference.tensor_inputs):
            continue
        if out in wide and not is_softmax(exponential, divisor):
            continue
        if divisor not in row_logs:
            row_logs[divisor] = pointwise(fusion, "log", divisor)
        operands = [share.outputs[0], difference.outputs[0], row_logs[divisor]]
        fusion.remove(expr)
        fusion.register(PointwiseOp(operands, [out], op="log_of_share", compute=DataType.Float))
        done += 1
    return done


def _is(expr: Expr, name: str) -> bool:
    return isinstance(expr, PointwiseOp) and expr.op_name == name and expr.attributes["compute"] is DataType.Float


__all__ = ["subtract_logs"]
