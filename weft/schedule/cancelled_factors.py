"""Products that are divided by one of their factors, (a * b) / b or (a * b) / (b / c): the other factor, times c, unless b is 0 or no finite number.

So gradients of x * log(x) and x * log(x / y) are written. Read first: `cancel_factors`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import Expr, PointwiseOp, TensorView, Val
from ..ops.build import pointwise
from .row_inverses import is_division


def cancel_factors(fusion: Fusion) -> int:
    """Replace quotients of products in place; return their number.

    Before: y = (a * b) / b in Float.   After: y = cancelled(a, b), which is a, or NaN where b / b is NaN; y stays the same tensor. Likewise
    (a * b) / (b / c) = cancelled(a * c, b), and cancelled(a * b, d) / b = cancelled(cancelled(a, b), d).
    The result is nearer to the exact one than what two roundings leave, and where a * b would be infinite or denormal, too.
    """
    done = 0
    for expr in fusion.tensor_exprs():
        if not is_division(expr):
            continue
        product, divisor = expr.tensor_inputs
        guards: list[Val] = []  # what must be finite and not 0, besides the divisor
        while isinstance(above := product.definition(), PointwiseOp) and above.op_name == "cancelled":
            product, guard = above.tensor_inputs
            guards.append(guard)
        found = _cancelled(fusion, above, divisor)
        if found is None:
            continue
        value, guard = found
        for outer in reversed(guards):
            value, guard = pointwise(fusion, "cancelled", value, guard), outer  # type: ignore[assignment]
        fusion.remove(expr)
        fusion.register(PointwiseOp([value, guard], list(expr.outputs), op="cancelled", compute=DataType.Float))
        done += 1
    return done


def _cancelled(fusion: Fusion, product: Expr | None, divisor: TensorView) -> tuple[Val, TensorView] | None:
    """Return what is left of a product that is divided, and the factor that went; None if it has no factor in common with the divisor."""
    if not isinstance(product, PointwiseOp) or product.op_name != "mul" or product.attributes["compute"] is not DataType.Float:
        return None
    above = divisor.definition()
    factor, more = (above.tensor_inputs[0], above.tensor_inputs[1]) if above is not None and is_division(above) else (divisor, None)
    if divisor in product.inputs:
        factor, more = divisor, None
    if factor not in product.inputs:
        return None
    other = product.inputs[1 - product.inputs.index(factor)]
    if not isinstance(other, TensorView):
        return None
    return (other if more is None else pointwise(fusion, "mul", other, more)), factor


__all__ = ["cancel_factors"]
