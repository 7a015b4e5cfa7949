"""Quotients by a power of two are products with its reciprocal, which have the same bits and no division. Read first: `multiply_by_reciprocals`."""

from __future__ import annotations

import math

from ..ir.fusion import Fusion
from ..ir.values import PointwiseOp, Scalar, Val
from ..ops.build import constant

QUOTIENTS = ("div", "truediv")
LARGEST_EXPONENT = 126
"""Of a float of 32 bits, or of bfloat16: the reciprocal of any power of two up to it is a normal number, too."""


def multiply_by_reciprocals(fusion: Fusion) -> None:
    """Replace quotients of floats by a constant that is a power of two, in place. After: results keep names and types."""
    for expr in fusion.tensor_exprs():
        if isinstance(expr, PointwiseOp) and expr.op_name in QUOTIENTS and expr.attributes["compute"].is_float:
            reciprocal = _reciprocal(expr.inputs[1])
            if reciprocal is not None:
                outputs = list(expr.outputs)
                fusion.remove(expr)
                fusion.register(PointwiseOp([expr.inputs[0], constant(fusion, reciprocal)], outputs, **{**expr.attributes, "op": "mul"}))


def _reciprocal(divisor: Val) -> float | None:
    """Return the reciprocal of a constant power of two, of either sign; None for anything else."""
    value = power_of_two(divisor)
    return 1.0 / value if value is not None and abs(math.frexp(value)[1] - 1) <= LARGEST_EXPONENT else None


def power_of_two(value: Val) -> float | None:
    """Return a constant that is a power of two, of either sign, and so changes the exponent of a number alone; None for anything else."""
    number = value.sym.payload if isinstance(value, Scalar) and value.sym.is_const else None
    return number if isinstance(number, (int, float)) and abs(math.frexp(number)[0]) == 0.5 else None


__all__ = ["QUOTIENTS", "multiply_by_reciprocals", "power_of_two"]
