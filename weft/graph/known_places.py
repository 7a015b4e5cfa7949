"""What is known of a computed tensor at known places: the parts of a cat that one element of each row does not come from need not be computed.

A cat is a selection by position. Where a lookup names the position, as the select of one of several stacked values does, its conditions are known.
Owns the evaluation of conditions on positions. Read first: `chosen`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..expr import EVALUATORS, ZERO, add, const
from ..ir.graph_ops import Along, At, Fixed, LookupOp
from ..ir.values import BroadcastOp, Expr, FullOp, IotaOp, LoadStoreOp, PointwiseOp, Scalar, SqueezeOp, TensorView, Val
from ..ops.build import is_plain_broadcast, logical_axes
from ..ops.registry import lookup as op_named

Places = tuple[object, ...]
"""One per axis of a tensor: a `Fixed` position, or anything else, of which nothing is known."""


def chosen(expr: Expr, places: Sequence[object]) -> Val | None:
    """Return the operand that a `where` takes at these places of its result, if its condition is known there; else None."""
    if not isinstance(expr, PointwiseOp) or expr.op_name != "where" or not isinstance(expr.inputs[0], TensorView):
        return None
    known = value_at(expr.inputs[0], places_of_operand(expr, expr.inputs[0], tuple(places)))
    return None if known is None else expr.inputs[1 if known else 2]


def places_of_operand(expr: Expr, operand: TensorView, places: Places) -> Places:
    """Return where the operand of an expression is read for these places of the result."""
    axes = logical_axes(operand)
    if isinstance(expr, BroadcastOp):
        found = tuple(p for p, new in zip(places, expr.attributes["flags"]) if not new)
    elif isinstance(expr, SqueezeOp):
        rest = iter(places)
        found = tuple(Fixed(ZERO) if dropped else next(rest) for dropped in expr.attributes["flags"])
    elif isinstance(expr, LookupOp) and operand is expr.source:
        found = tuple(_composed(expr, p, places) for p in expr.positions)
    elif isinstance(expr, PointwiseOp) or isinstance(expr, LoadStoreOp) and not expr.tensor_outputs[0].has_root():
        found = places
    else:
        found = (None,) * len(axes)
    return tuple(Fixed(ZERO) if is_plain_broadcast(axis) else place for axis, place in zip(axes, found, strict=True))


def _composed(lookup: LookupOp, position: object, places: Places) -> object:
    """Return the place in the source of a lookup, if it is known."""
    if isinstance(position, Along):
        place = places[position.axis]
        return Fixed(add(place.position, position.offset)) if isinstance(place, Fixed) else None
    if isinstance(position, At):
        index = lookup.inputs[position.operand]
        assert isinstance(index, TensorView)
        known = value_at(index, tuple(Fixed(ZERO) if is_plain_broadcast(a) else p for a, p in zip(logical_axes(index), places, strict=True)))
        return None if known is None else Fixed(const(known))
    return position


def value_at(tensor: TensorView, places: Places) -> int | None:
    """Return the value of what is computed from positions, at places that are known; None for all else."""
    made = tensor.definition()
    if not (tensor.dtype().is_integer or tensor.dtype().is_bool):
        return None
    if isinstance(made, FullOp):
        return _number(made.inputs[0])
    if isinstance(made, IotaOp):
        start, step = (_number(v) for v in made.inputs[1:])
        place = places[0] if len(places) == 1 else None
        if not isinstance(place, Fixed) or not place.position.is_const or start is None or step is None:
            return None
        return start + step * int(place.position.value)  # type: ignore[arg-type]
    if isinstance(made, BroadcastOp):
        return value_at(made.tensor_inputs[0], places_of_operand(made, made.tensor_inputs[0], places))
    if not isinstance(made, PointwiseOp) or made.op_name not in OF_POSITIONS:
        return None
    values = [value_at(v, places_of_operand(made, v, places)) if isinstance(v, TensorView) else _number(v) for v in made.inputs]
    if None in values:
        return None
    return values[0] if made.op_name == "cast" else int(EVALUATORS[op_named(made.op_name).sym_name](*values))  # type: ignore[arg-type]


OF_POSITIONS = ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "div", "remainder", "cast")
"""Ops of integers that positions and conditions on them are made of."""


def _number(value: Val) -> int | None:
    found = value.sym.value if isinstance(value, Scalar) and value.sym.is_const else None
    return int(found) if isinstance(found, int) else None


__all__ = ["Places", "chosen", "places_of_operand", "value_at"]
