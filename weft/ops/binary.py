"""Pointwise ops of two operands, as data.

Owns names, types, CUDA text, torch references, cost and accuracy of the binary ops. Integers follow C: `div` and `mod` truncate, `remainder` takes the
sign of the divisor, division by zero gives 0 and does not trap. Read first: `registry.OpDef`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import CUDA_NAMES, DataType
from ..errors import UserError
from ..ir.values import Scalar, TensorView
from .promotion import Result, Rule
from .registry import OpDef, define, flat, torch

_MATH = ("math",)


def _binary(name: str, rule: Rule, text: Mapping[str, str], reference: Callable[..., Any], python: Callable[..., Any] | None = None, **rest: Any) -> OpDef:
    return define(OpDef(name, 2, rule, text, reference, python=python, blocks=rest.pop("blocks", _MATH), **rest))


def _shared(o: Any, g: Any, a: Any, b: Any, wins: Callable[..., Any]) -> tuple[Any, Any]:
    """The gradients of maximum and minimum: half each where the operands are equal."""
    half = o.where(o.eq(a, b), g * 0.5, g)
    return o.where(wins(a, b), half, 0.0), o.where(wins(b, a), half, 0.0)


_LITERAL = re.compile(r"\(?(-?\d+(\.\d*)?(e[+-]?\d+)?)f?\)?")
"""A number in the text of an operand."""


def _literal_of(text: str) -> int | None:
    found = _LITERAL.fullmatch(text)
    return int(found[1]) if found and not found[2] and not found[3] else None


@dataclass(frozen=True)
class NegatingDef(OpDef):
    """An op that negates integers of 32 bits where one operand is a certain constant: then `weft::int_neg` does.

    The compiler would make it a negation, which ptxas of CUDA 13.0 loses in front of a minimum of three. positive: of two operand texts what is to be negated.
    """

    positive: Callable[[str, str], str | None] = lambda a, b: None

    def cuda(self, args: Sequence[str], compute: DataType, out: DataType | None = None, *, is_narrow: bool = False) -> str:
        """Return one C++ expression; see `OpDef.cuda`."""
        negated = self.positive(*args) if compute is DataType.Int32 else None
        return f"weft::int_neg<int>({negated})" if negated is not None else super().cuda(args, compute, out, is_narrow=is_narrow)

    def blocks_for(self, compute: DataType) -> tuple[str, ...]:
        """Return device library blocks; see `OpDef.blocks_for`."""
        return _MATH if compute is DataType.Int32 else super().blocks_for(compute)


def _magnitude(text: str) -> int | None:
    """Return 2^n where the text is the constant -2^n, for n up to 30: the constants that become a shift or a quotient, and a negation of it."""
    value = _literal_of(text)
    return -value if value is not None and -(1 << 30) <= value < 0 and -value & (-value - 1) == 0 else None


def _of_difference(a: str, b: str) -> str | None:
    return b if _literal_of(a) == 0 else None


def _of_product(a: str, b: str) -> str | None:
    for factor, other in ((a, b), (b, a)):
        if magnitude := _magnitude(factor):
            return other if magnitude == 1 else f"{other} * {magnitude}"
    return None


def _of_quotient(a: str, b: str) -> str | None:
    magnitude = _magnitude(b)
    return None if magnitude is None else a if magnitude == 1 else f"weft::int_div<int>({a}, {magnitude})"


def _negating(name: str, rule: Rule, text: Mapping[str, str], reference: Callable[..., Any], python: Callable[..., Any], **rest: Any) -> OpDef:
    return define(NegatingDef(name, 2, rule, text, reference, python=python, **rest))


# ---- arithmetic
_binary(
    "add",
    Rule.number,
    {"any": "({0} + {1})", "bool": "({0} || {1})"},
    lambda a, b: a + b,
    lambda a, b: (a or b) if isinstance(a, bool) and isinstance(b, bool) else a + b,
    blocks=(),
    gradient=lambda o, g, y, a, b: (g, g),
    commutes=True,
)
_negating(
    "sub", Rule.number, {"any": "({0} - {1})", "bool": "({0} != {1})"}, lambda a, b: a ^ b if a.dtype == torch.bool else a - b, lambda a, b: a - b,
    gradient=lambda o, g, y, a, b: (g, -g), positive=_of_difference,
)  # fmt: skip
_negating(
    "mul", Rule.number, {"any": "({0} * {1})", "bool": "({0} && {1})"}, lambda a, b: a * b, lambda a, b: a * b,
    gradient=lambda o, g, y, a, b: (g * b, g * a), positive=_of_product, commutes=True,
)  # fmt: skip
_binary(
    "rounded_mul", Rule.floating, {"real": "weft::rounded_mul({0}, {1})"}, lambda a, b: a * b, lambda a, b: a * b, commutes=True, ulp=1,
    gradient=lambda o, g, y, a, b: (g * b, g * a), source="a product that is rounded before it is added to anything: the same bits in every kernel",
)  # fmt: skip


class DivisionByZero(UserError, ZeroDivisionError):
    code = "W398"
    what = "{sentence}: {a} {sign} 0, computed from scalars on the host"
    fix = "pass a divisor other than 0"


def _truncated(a: int, b: int, sign: str = "/") -> int:
    """a / b rounded toward zero, of scalars. Errors: DivisionByZero."""
    if b == 0:
        raise DivisionByZero(sentence="Integer division by zero detected" if sign == "/" else "Modulo zero detected", a=a, sign=sign)
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _guarded(divide: Callable[[Any, Any], Any], of_minus_one: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `divide` for integer tensors with 0 for a divisor of 0; a divisor of -1 is apart, for the smallest integer traps on x86.

    No unsigned divisor is -1, although torch finds 255 in 8 bits equal to it.
    """

    def function(a: Any, b: Any) -> Any:
        is_minus_one = (b == -1) if b.dtype.is_signed else torch.zeros_like(b, dtype=torch.bool)
        safe = torch.where((b == 0) | is_minus_one, torch.ones_like(b), b)
        return torch.where(b == 0, torch.zeros_like(a), torch.where(is_minus_one, of_minus_one(a), divide(a, safe)))

    return function


_int_div = _guarded(lambda a, b: torch.div(a, b, rounding_mode="trunc"), lambda a: -a)
_int_mod = _guarded(lambda a, b: torch.fmod(a, b), lambda a: torch.zeros_like(a))
_int_remainder = _guarded(lambda a, b: torch.remainder(a, b), lambda a: torch.zeros_like(a))


def _is_int(*operands: Any) -> bool:
    return not any(x.is_floating_point() or x.is_complex() for x in operands)


def _div(a: Any, b: Any) -> Any:
    return _int_div(a, b) if _is_int(a, b) else a / b


def _python_div(a: Any, b: Any) -> Any:
    return _truncated(a, b) if isinstance(a, int) and isinstance(b, int) else a / b


_DIVISION = "C++ division; 0 for an integer divisor of 0"
_QUOTIENT = {"real": "({0} / {1})", "narrow": "weft::narrow_div({0}, {1})", "complex": "({0} / {1})"}
_negating(
    "div",
    Rule.arithmetic,
    {**_QUOTIENT, "int": "weft::int_div<{T}>({0}, {1})"},
    _div,
    _python_div,
    flops=10,
    narrow_flops=6,
    is_mufu=True,
    ulp=1,
    source=_DIVISION,
    blocks=_MATH,
    gradient=lambda o, g, y, a, b: (g / b, -g * y / b),
    positive=_of_quotient,
)
_binary(
    "truediv", Rule.floating, _QUOTIENT, lambda a, b: a / b, lambda a, b: a / b, flops=10, narrow_flops=6, is_mufu=True, ulp=1,
    gradient=lambda o, g, y, a, b: (g / b, -g * y / b),
)  # fmt: skip
_binary(
    "mod",
    Rule.arithmetic,
    {"real": "weft::fmod({0}, {1})", "int": "weft::int_mod<{T}>({0}, {1})"},
    lambda a, b: _int_mod(a, b) if _is_int(a, b) else torch.fmod(a, b),
    lambda a, b: a - b * _truncated(a, b, "%") if isinstance(a, int) and isinstance(b, int) else math.fmod(a, b),
    flops=20,
    is_steep=True,
    source=_DIVISION,
    gradient=lambda o, g, y, a, b: (g, -g * o.trunc(a / b)),
)
_binary(
    "fmod",
    Rule.arithmetic,
    {"real": "weft::fmod({0}, {1})", "int": "weft::int_mod<{T}>({0}, {1})"},
    lambda a, b: _int_mod(a, b) if _is_int(a, b) else torch.fmod(a, b),
    math.fmod,
    flops=40,
    is_steep=True,
    source="the sign of the dividend",
    gradient=lambda o, g, y, a, b: (g, -g * o.trunc(a / b)),
)
_binary(
    "remainder",
    Rule.arithmetic,
    {"real": "weft::remainder({0}, {1})", "int": "weft::int_remainder<{T}>({0}, {1})"},
    lambda a, b: _int_remainder(a, b) if _is_int(a, b) else torch.remainder(a, b),
    lambda a, b: a % b,
    flops=44,
    is_steep=True,
    source="torch.remainder: the sign of the divisor",
    gradient=lambda o, g, y, a, b: (g, -g * o.floor(a / b)),
)
_binary("gcd", Rule.integer, {"int": "weft::gcd<{T}>({0}, {1})"}, lambda a, b: torch.gcd(a, b).abs(), math.gcd, flops=100, source="Euclid", gradient=flat)


def _position(a: Any, b: Any) -> Any:
    outside = (a < 0) | (a >= b)
    if outside.any():
        place = int(torch.broadcast_to(a, outside.shape)[outside][0])
        raise IndexError(f"position {place} is out of range of an axis of {int(torch.as_tensor(b).max())} elements")
    return a


_binary(
    "checked_position",
    Rule.integer,
    {"int": "weft::position<{T}>({0}, {1})"},
    _position,
    lambda a, b: a if 0 <= a < b else 0,
    blocks=("lookup",),
    flops=3,
    source="a position of an index; out of range it is 0, and an error in the emulator and under the setting `bounds`",
    is_internal=True,
    gradient=flat,
)


def _pow(a: Any, b: Any) -> Any:
    if not _is_int(a, b):
        return torch.pow(a, b)
    magnitude = torch.pow(a, torch.clamp(b, min=0))
    inverse = torch.where(a == 1, torch.ones_like(a), torch.where(a == -1, 1 - 2 * (b % 2), torch.zeros_like(a)))
    return torch.where(b < 0, inverse, magnitude)


def _pow_gradient(o: Any, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """0 for an exponent of 0, and for the exponent of a base of 0: as torch."""
    if not isinstance(b, TensorView) and b.sym.is_const:
        n = b.sym.value
        return (g * 0.0 if n == 0 else g * (a * n if n == 2 else o.pow(a, n - 1.0) * n), None)
    of_base = o.where(o.eq(b, 0.0), 0.0, g * b * o.pow(a, b - 1.0))
    safe = o.where(o.gt(a, 0.0), a, 1.0)
    return of_base, o.where(o.eq(a, 0.0), 0.0, g * y * o.log(safe))


def _python_pow(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a**b if b >= 0 else 1 if a == 1 else (-1 if b % 2 else 1) if a == -1 else 0
    if isinstance(a, complex) or isinstance(b, complex):
        return a**b
    return math.pow(a, b)


# Exponents that are computed without a logarithm (torch has some of them, too), with the cost of each.
_SPECIAL_POWERS = {
    2.0: ("weft::square<{T}>({0})", 1), 3.0: ("weft::cube<{T}>({0})", 2), 4.0: ("weft::fourth<{T}>({0})", 2), 0.5: ("weft::sqrt({0})", 8),
    1.5: ("weft::power_3_2({0})", 11), -0.5: ("weft::rsqrt({0})", 4), -1.0: ("weft::reciprocal({0})", 5),
    **{float(n): (f"weft::whole_power<{n}, {{T}}>({{0}})", n.bit_length() + f"{n:b}".count("1") - 2) for n in range(5, 9)},
}  # fmt: skip
"""Products of n factors are off by less than n / 2 units in the last place, so that more than eight are less exact than a logarithm."""
_MOST_NARROW_POWER = 8.0
"""An exponent multiplies the error of the base's logarithm (`weft::narrow_pow`)."""


@dataclass(frozen=True)
class PowDef(OpDef):
    """The op `pow`: an exponent that is a literal of a special value has a text of its own."""

    def cuda(self, args: Sequence[str], compute: DataType, out: DataType | None = None, *, is_narrow: bool = False) -> str:
        """Return one C++ expression; see `OpDef.cuda`."""
        literal = _LITERAL.fullmatch(args[1]) if compute in (DataType.Float, DataType.Double) else None
        exponent = float(literal[1]) if literal else math.inf
        if special := _SPECIAL_POWERS.get(exponent):
            return special[0].format(args[0], T=CUDA_NAMES[compute])
        return super().cuda(args, compute, out, is_narrow=is_narrow and 0 < abs(exponent) <= _MOST_NARROW_POWER)

    def instructions(self, operands: Sequence[Any], *, is_narrow: bool) -> int:
        """Return the cost per element; see `OpDef.instructions`."""
        exponent = operands[1].sym.value if isinstance(operands[1], Scalar) and operands[1].sym.is_const else None
        value = float(exponent) if isinstance(exponent, (int, float)) else math.inf
        if special := _SPECIAL_POWERS.get(value):
            return special[1]
        return super().instructions(operands, is_narrow=is_narrow and 0 < abs(value) <= _MOST_NARROW_POWER)


define(
    PowDef(
        "pow",
        2,
        Rule.arithmetic,
        {"real": "weft::pow({0}, {1})", "narrow": "weft::narrow_pow({0}, {1})", "int": "weft::int_pow<{T}>({0}, {1})", "complex": "weft::pow({0}, {1})"},
        _pow,
        python=_python_pow,
        blocks=_MATH,
        flops=40,
        narrow_flops=10,
        is_exp=True,
        ulp=4,
        source="powf of CUDA; integers by squaring",
        gradient=lambda o, g, y, a, b: _pow_gradient(o, g, y, a, b),
    )
)
_binary(
    "atan2", Rule.floating, {"real": "weft::atan2({0}, {1})"}, lambda a, b: torch.atan2(a, b), math.atan2, flops=30, is_exp=True, ulp=4,
    gradient=lambda o, g, y, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b)),
)  # fmt: skip
_binary(
    "logaddexp", Rule.floating, {"real": "weft::logaddexp({0}, {1})"}, lambda a, b: torch.logaddexp(a, b), flops=40, is_exp=True, ulp=4,
    source="the larger one, plus log1p(exp(-|a - b|)): two functions of 2 units each",
    gradient=lambda o, g, y, a, b: (g / (1.0 + o.exp(b - a)), g / (1.0 + o.exp(a - b))),
)  # fmt: skip
_binary(
    "hypot", Rule.floating, {"real": "weft::hypot({0}, {1})"}, lambda a, b: torch.hypot(a, b), math.hypot, flops=25, ulp=3,
    source="CUDA C++ Programming Guide, accuracy of hypotf", gradient=lambda o, g, y, a, b: (g * a / y, g * b / y),
)  # fmt: skip
_binary(
    "copysign", Rule.floating, {"real": "weft::copysign({0}, {1})"}, lambda a, b: torch.copysign(a, b), math.copysign,
    gradient=lambda o, g, y, a, b: (o.where(o.eq(a, 0.0), 0.0, g * o.sign(a) * o.sign(y)), o.sign(b) * 0.0),
)  # fmt: skip
_binary("nextafter", Rule.full_float, {"real": "weft::nextafter({0}, {1})"}, lambda a, b: torch.nextafter(a, b), flops=10)

# ---- extrema, which propagate NaN
_binary(
    "maximum",
    Rule.number,
    {"real": "weft::maximum({0}, {1})", "int": "weft::int_max<{T}>({0}, {1})", "bool": "({0} || {1})"},
    lambda a, b: torch.maximum(a, b),
    lambda a, b: a if a != a or a >= b else b,
    gradient=lambda o, g, y, a, b: _shared(o, g, a, b, o.ge),
    commutes=True,
)
_binary(
    "minimum",
    Rule.number,
    {"real": "weft::minimum({0}, {1})", "int": "weft::int_min<{T}>({0}, {1})", "bool": "({0} && {1})"},
    lambda a, b: torch.minimum(a, b),
    lambda a, b: a if a != a or a <= b else b,
    gradient=lambda o, g, y, a, b: _shared(o, g, a, b, o.le),
    commutes=True,
)


# ---- comparisons
def _comparison(name: str, symbol: str, reference: Callable[..., Any], *, complex: bool = False, commutes: bool = False) -> None:
    text = {"number": f"({{0}} {symbol} {{1}})", "bool": f"({{0}} {symbol} {{1}})"} | ({"complex": f"({{0}} {symbol} {{1}})"} if complex else {})
    _binary(name, Rule.number, text, reference, reference, result=Result.boolean, blocks=(), gradient=flat, commutes=commutes)


_comparison("eq", "==", lambda a, b: a == b, complex=True, commutes=True)
_comparison("ne", "!=", lambda a, b: a != b, complex=True, commutes=True)
_comparison("lt", "<", lambda a, b: a < b)
_comparison("le", "<=", lambda a, b: a <= b)
_comparison("gt", ">", lambda a, b: a > b)
_comparison("ge", ">=", lambda a, b: a >= b)

# ---- logic and bits
_binary(
    "bitwise_and", Rule.bitwise, {"int": "({0} & {1})", "bool": "({0} && {1})"}, lambda a, b: a & b, lambda a, b: a & b,
    blocks=(), gradient=flat, commutes=True,
)  # fmt: skip
_binary(
    "bitwise_or", Rule.bitwise, {"int": "({0} | {1})", "bool": "({0} || {1})"}, lambda a, b: a | b, lambda a, b: a | b,
    blocks=(), gradient=flat, commutes=True,
)  # fmt: skip
_binary(
    "bitwise_xor", Rule.bitwise, {"int": "({0} ^ {1})", "bool": "({0} != {1})"}, lambda a, b: a ^ b, lambda a, b: a ^ b,
    blocks=(), gradient=flat, commutes=True,
)  # fmt: skip
_binary(
    "logical_and", Rule.logical, {"bool": "({0} && {1})"}, lambda a, b: torch.logical_and(a, b), lambda a, b: bool(a and b),
    blocks=(), gradient=flat, commutes=True,
)  # fmt: skip
_binary(
    "logical_or", Rule.logical, {"bool": "({0} || {1})"}, lambda a, b: torch.logical_or(a, b), lambda a, b: bool(a or b),
    blocks=(), gradient=flat, commutes=True,
)  # fmt: skip


def _bits(x: Any) -> int:
    return int(x.element_size()) * 8


def _logical_right_shift(a: Any, b: Any) -> Any:
    """Shift zeros in from the left; torch has arithmetic shifts only."""
    bits = _bits(a)
    inside = (b >= 0) & (b < bits)
    count = torch.where(inside, b, torch.zeros_like(b))
    keep = torch.where(count == 0, torch.full_like(a, -1), ~torch.bitwise_left_shift(torch.full_like(a, -1), (bits - count) % bits))
    return torch.where(inside, torch.bitwise_right_shift(a, count) & keep, torch.zeros_like(a))


_SHIFT = "a count outside of the type's bits shifts everything out"
_binary(
    "bitwise_left_shift",
    Rule.integer,
    {"int": "weft::shift_left<{T}>({0}, {1})"},
    lambda a, b: torch.bitwise_left_shift(a, b),
    lambda a, b: a << b if 0 <= b < 64 else 0,
    source=_SHIFT,
    gradient=flat,
)
_binary(
    "bitwise_right_shift",
    Rule.integer,
    {"int": "weft::shift_right<{T}>({0}, {1})"},
    lambda a, b: torch.bitwise_right_shift(a, b),
    lambda a, b: a >> b if 0 <= b < 64 else (-1 if a < 0 else 0),
    source=_SHIFT,
    gradient=flat,
)
_binary(
    "logical_right_shift",
    Rule.integer,
    {"int": "weft::shift_right_logical<{T}>({0}, {1})"},
    _logical_right_shift,
    lambda a, b: (a % (1 << 64)) >> b if 0 <= b < 64 else 0,
    source=_SHIFT,
    gradient=flat,
)

# ---- inside of kernels
_binary(
    "cancelled", Rule.full_float, {"float": "weft::cancelled({0}, {1})"}, lambda a, b: torch.where((b != 0) & torch.isfinite(b), a, math.nan),
    lambda a, b: a if b and math.isfinite(b) else math.nan, blocks=_MATH, flops=3, source="a * b / b, without overflow",
    is_internal=True,
)  # fmt: skip

# ---- complex numbers
_binary(
    "complex",
    Rule.full_float,
    {"real": "weft::complex<{T}>{{{0}, {1}}}"},
    lambda a, b: torch.complex(a, b),
    complex,
    result=Result.complex_of,
    flops=0,
    blocks=("math", "complex"),
)
