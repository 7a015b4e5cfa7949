"""The least and the largest value of integers that are computed from counted positions, such as `iota(10).sub(1).clamp(0, 7)`.

What is known to be inside an axis needs no test when it is looked up, and conditions and clamps that ranges decide no instructions. Sizes that differ between
calls have no range. Read first: `range_of`, `kept_operand`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import DataType
from ..expr import product
from ..ir.values import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, LoadStoreOp, PointwiseOp, Scalar, SqueezeOp, TensorView, Val, no_reductions

Range = tuple[int, int]

_BITS = {DataType.Int: 64, DataType.Int32: 32}


def range_of(value: Val, known: dict[Val, Range | None] | None = None) -> Range | None:
    """Return the least and the largest value that a tensor of integers or conditions may have, or a scalar; None if that is not known, or a step may overflow.
    known: ranges of tensors found so far."""
    if isinstance(value, Scalar):
        number = int(value.sym.value) if value.sym.is_const and value.dtype().is_integer else None  # type: ignore[arg-type]
        return None if number is None else (number, number)
    assert isinstance(value, TensorView)
    known = {} if known is None else known
    if value.dtype() is DataType.Bool:
        return _of_condition(value.definition(), known)
    if value.dtype() not in _BITS:
        return None
    if value not in known:
        known[value] = None  # to stop recursion
        found = _of(value.definition(), value, known)
        limit = 1 << (_BITS[value.dtype()] - 1)
        known[value] = found if found is not None and -limit <= found[0] and found[1] < limit else None
    return known[value]


def _of_condition(expr: Expr | None, known: dict[Val, Range | None]) -> Range:
    """Return (1, 1) if a condition is known to hold everywhere, (0, 0) if nowhere."""
    if isinstance(expr, (BroadcastOp, SqueezeOp, ExpandOp, LoadStoreOp)):
        return range_of(expr.inputs[0], known) or (0, 1)
    if not isinstance(expr, PointwiseOp) or expr.op_name not in _CONDITIONS:
        return 0, 1
    a, b = (range_of(v, known) for v in expr.inputs)
    return (0, 1) if a is None or b is None else _CONDITIONS[expr.op_name](a, b)


def _joins_bits(expr: PointwiseOp) -> bool:
    """True for `and` and `or` of integers, whose results are numbers, not one of two truths."""
    return expr.op_name in _JUNCTIONS and any(isinstance(v, (Scalar, TensorView)) and v.dtype() is not DataType.Bool for v in expr.inputs)


def kept_operand(expr: Expr, known: dict[Val, Range | None] | None = None) -> int | None:
    """Return the number of the operand that the result of an op always is: of a clamp that has no effect, or a selection by a known condition; None if there is
    no such operand."""
    if not isinstance(expr, PointwiseOp) or expr.op_name not in _CHOICES or _joins_bits(expr):
        return None
    return _CHOICES[expr.op_name](*(range_of(v, known) if isinstance(v, (Scalar, TensorView)) else None for v in expr.inputs))


def is_inside(value: Val, extent: int) -> bool:
    """True if an integer tensor is known to have no value outside of 0 to extent - 1."""
    found = range_of(value)
    return found is not None and found[0] >= 0 and found[1] < extent


def _of(expr: Expr | None, value: Val, known: dict[Val, Range | None]) -> Range | None:
    if isinstance(expr, IotaOp):
        return _counted(expr, value)
    if isinstance(expr, (BroadcastOp, SqueezeOp, ExpandOp, LoadStoreOp, FullOp)):
        return range_of(expr.inputs[0], known)
    if not isinstance(expr, PointwiseOp) or expr.op_name not in _RULES:
        return None
    operands = expr.inputs[1:] if expr.op_name == "where" else expr.inputs
    found = [range_of(v, known) for v in operands]
    return None if None in found else _RULES[expr.op_name](*found)


def _counted(expr: IotaOp, value: Val) -> Range | None:
    assert isinstance(value, TensorView)
    _, start, step = (v.sym for v in expr.inputs)  # type: ignore[attr-defined]
    count = product(axis.logical_extent for axis in no_reductions(value.get_logical_domain()) if not axis.is_broadcast())
    if not all(n.is_const for n in (start, step, count)) or not count.value:
        return None
    ends = int(start.value), int(start.value) + (int(count.value) - 1) * int(step.value)  # type: ignore[arg-type]
    return min(ends), max(ends)


def _corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Return the rule of an operation that is monotone in each operand."""

    def rule(a: Range, b: Range) -> Range:
        found = [function(x, y) for x in a for y in b]
        return min(found), max(found)

    return rule


def _magnitude(a: Range) -> Range:
    ends = sorted(map(abs, a))
    return (0 if a[0] <= 0 <= a[1] else ends[0]), ends[1]


def _quotient(a: Range, b: Range) -> Range | None:
    """Rounded towards zero, by a positive number."""
    return _corners(lambda x, y: -(-x // y) if x < 0 else x // y)(a, b) if b[0] > 0 else None


def _remainder(a: Range, b: Range) -> Range | None:
    return (0, min(a[1], b[1] - 1)) if a[0] >= 0 and b[0] > 0 else None


def _less(a: Range, b: Range) -> Range:
    return int(a[1] < b[0]), int(a[0] < b[1])


def _at_most(a: Range, b: Range) -> Range:
    return int(a[1] <= b[0]), int(a[0] <= b[1])


def _larger(a: Range | None, b: Range | None) -> int | None:
    return None if a is None or b is None else 0 if a[0] >= b[1] else 1 if b[0] >= a[1] else None


def _smaller(a: Range | None, b: Range | None) -> int | None:
    return None if a is None or b is None else 0 if a[1] <= b[0] else 1 if b[1] <= a[0] else None


def _truth(a: Range) -> Range:
    """Return the range of whether a number is not 0."""
    return int(a[0] > 0 or a[1] < 0), int(a != (0, 0))


def _both(a: Range, b: Range) -> Range:
    return _corners(min)(_truth(a), _truth(b))


def _either(a: Range, b: Range) -> Range:
    return _corners(max)(_truth(a), _truth(b))


def _chosen(condition: Range | None, *_: Range | None) -> int | None:
    return None if condition is None or condition[0] != condition[1] else 1 if condition[0] else 2


_CONDITIONS: dict[str, Callable[[Range, Range], Range]] = {
    "lt": _less, "le": _at_most, "gt": lambda a, b: _less(b, a), "ge": lambda a, b: _at_most(b, a),
    **dict.fromkeys(("bitwise_and", "logical_and"), _both), **dict.fromkeys(("bitwise_or", "logical_or"), _either),
}  # fmt: skip
"""By the names of ops whose results are conditions."""
_JUNCTIONS = ("bitwise_and", "logical_and", "bitwise_or", "logical_or")
_CHOICES: dict[str, Callable[..., int | None]] = {
    "maximum": _larger, "minimum": _smaller, "where": _chosen, **dict.fromkeys(("bitwise_and", "logical_and"), _smaller),
    **dict.fromkeys(("bitwise_or", "logical_or"), _larger),
}  # fmt: skip
_RULES: dict[str, Callable[..., Range | None]] = {
    "add": _corners(lambda x, y: x + y), "sub": _corners(lambda x, y: x - y), "mul": _corners(lambda x, y: x * y), "minimum": _corners(min),
    "maximum": _corners(max), "neg": lambda a: (-a[1], -a[0]), "abs": _magnitude, "cast": lambda a: a, "div": _quotient,
    "fmod": _remainder, "remainder": _remainder,
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])), "clamp": lambda x, low, high: _corners(min)(_corners(max)(x, low), high),
}  # fmt: skip

__all__ = ["Range", "is_inside", "kept_operand", "range_of"]
