"""Products that are divided by one of their factors, (a * b) / b: the other factor, unless b is 0 or no finite number.

So gradients of x * log(x) are written. Read first: `cancel_factors`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import PointwiseOp, TensorView
from .row_inverses import is_division


def cancel_factors(fusion: Fusion) -> int:
    """Replace quotients of products in place; return their number.

    Before: y = (a * b) / b in Float.   After: y = cancelled(a, b), which is a, or NaN where b / b is NaN; y stays the same tensor.
    The result is nearer to the exact one than what two roundings leave, and where a * b would be infinite or denormal, too.
    """
    done = 0
    for expr in fusion.tensor_exprs():
        if not is_division(expr):
            continue
        product, divisor = expr.tensor_inputs
        above = product.definition()
        if not isinstance(above, PointwiseOp) or above.op_name != "mul" or above.attributes["compute"] is not DataType.Float or divisor not in above.inputs:
            continue
        other = above.inputs[1 - above.inputs.index(divisor)]
        if not isinstance(other, TensorView):
            continue
        fusion.remove(expr)
        fusion.register(PointwiseOp([other, divisor], list(expr.outputs), op="cancelled", compute=DataType.Float))
        done += 1
    return done


__all__ = ["cancel_factors"]
