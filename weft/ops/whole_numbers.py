"""Floats that are integers in disguise: what an index becomes when `where` joins it with a float scalar.

torch's rules make `where(valid, target, 0.0)` of an Int target a Float; nvFuser takes that as an index, and programs rely on it (lightning-thunder's cross
entropy does). Owns the way back to integers, without rounding. Read first: `as_integers`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, PointwiseOp, Scalar, TensorView, Val
from .build import broadcast, constant, pointwise

INTEGERS = (DataType.Int, DataType.Int32)


def as_integers(fusion: Fusion, value: Val) -> Val | None:
    """Return the integers that `value` was made of by casts, `where` and broadcasts, equal in every element; None where it may be no integer."""
    if isinstance(value, Scalar):
        number = value.sym.value if value.sym.is_const else None
        return constant(fusion, int(number), DataType.Int) if isinstance(number, (int, float)) and float(number).is_integer() else None
    assert isinstance(value, TensorView)
    if value.dtype() in INTEGERS:
        return value
    node = value.definition()
    if isinstance(node, BroadcastOp):
        source = as_integers(fusion, node.inputs[0])
        return broadcast(fusion, source, node.attributes["flags"]) if isinstance(source, TensorView) else None
    if isinstance(node, PointwiseOp) and node.attributes["op"] == "cast":
        source = node.inputs[0]
        return source if source.dtype() in INTEGERS else None  # type: ignore[attr-defined]
    if isinstance(node, PointwiseOp) and node.attributes["op"] == "where":
        condition, *choices = node.inputs
        whole = [as_integers(fusion, choice) for choice in choices]
        return None if None in whole else pointwise(fusion, "where", condition, *whole)  # type: ignore[arg-type]
    return None


__all__ = ["as_integers"]
