"""Pointwise ops of one operand, as data.

Owns names, types, CUDA text, torch references, cost and accuracy of the unary ops. `set`, `segment_set` and the random ops are no pointwise ops
(see `build.py`). Read first: `registry.OpDef`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .promotion import Result, Rule
from .registry import OpDef, Parity, define, flat, torch

_MATH = ("math",)
_ODD, _EVEN = Parity.odd, Parity.even


def _unary(name: str, rule: Rule, text: Mapping[str, str], reference: Callable[..., Any], python: Callable[..., Any] | None = None, **rest: Any) -> OpDef:
    return define(OpDef(name, 1, rule, text, reference, python=python, blocks=rest.pop("blocks", _MATH), **rest))


def _function(
    name: str, reference: Callable[..., Any], python: Callable[..., Any] | None = None, *, complex: bool = True, narrow_flops: int = 0, **rest: Any
) -> OpDef:  # fmt: skip
    """A function of floats that is `weft::name` in the device library, and `weft::narrow_name` where its results are seen in 16 bits at most."""
    text = {"real": f"weft::{name}({{0}})"} | ({"complex": f"weft::{name}({{0}})"} if complex else {})
    text |= {"narrow": f"weft::narrow_{name}({{0}})"} if narrow_flops else {}
    return _unary(name, Rule.floating, text, reference, python, narrow_flops=narrow_flops, **rest)


_CUDA = "CUDA C++ Programming Guide, mathematical functions: largest error"

# ---- exponentials and logarithms
_function("exp", lambda x: torch.exp(x), math.exp, narrow_flops=2, flops=8, is_exp=True, is_mufu=True, ulp=2, source=_CUDA, gradient=lambda o, g, y, x: g * y)
_function(
    "exp2", lambda x: torch.exp2(x), narrow_flops=1, flops=4, is_exp=True, is_mufu=True, ulp=2, source=_CUDA,
    gradient=lambda o, g, y, x: g * y * math.log(2),
)  # fmt: skip
_function(
    "expm1", lambda x: torch.expm1(x), math.expm1, narrow_flops=7, flops=16, is_exp=True, is_mufu=True, ulp=2, source=_CUDA,
    gradient=lambda o, g, y, x: g * (y + 1.0),
)  # fmt: skip
_function("log", lambda x: torch.log(x), math.log, narrow_flops=8, flops=16, is_exp=True, ulp=2, source=_CUDA, gradient=lambda o, g, y, x: g / x)
_function(
    "log10", lambda x: torch.log10(x), math.log10, narrow_flops=9, flops=16, is_exp=True, ulp=3, source=_CUDA,
    gradient=lambda o, g, y, x: g / (x * math.log(10)),
)  # fmt: skip
_function("log1p", lambda x: torch.log1p(x), math.log1p, narrow_flops=8, flops=16, is_exp=True, ulp=2, source=_CUDA, gradient=lambda o, g, y, x: g / (x + 1.0))
_function(
    "log2", lambda x: torch.log2(x), math.log2, narrow_flops=9, flops=14, is_exp=True, ulp=2, source=_CUDA,
    gradient=lambda o, g, y, x: g / (x * math.log(2)),
)  # fmt: skip
_function(
    "sigmoid", lambda x: torch.sigmoid(x), narrow_flops=4, flops=11, is_exp=True, is_mufu=True, ulp=4,
    source="1 / (1 + exp(-x)); exp 2 ulp, reciprocal 1, sum 0.5",
    gradient=lambda o, g, y, x: g * y * (1.0 - y),
)  # fmt: skip
_function(
    "silu", lambda x: x * torch.sigmoid(x), narrow_flops=5, flops=12, is_exp=True, is_mufu=True, ulp=5, source="x * sigmoid(x)",
    gradient=lambda o, g, y, x: g * (lambda s: s * (1.0 + x * (1.0 - s)))(o.sigmoid(x)),
)  # fmt: skip
# ---- powers
_function("sqrt", lambda x: torch.sqrt(x), math.sqrt, narrow_flops=3, flops=8, is_mufu=True, ulp=1, source=_CUDA, gradient=lambda o, g, y, x: g / (y * 2.0))
_function(
    "rsqrt", lambda x: torch.rsqrt(x), lambda x: 1 / math.sqrt(x), flops=4, is_mufu=True, ulp=2, source=_CUDA,
    gradient=lambda o, g, y, x: g * y * y * y * -0.5,
)  # fmt: skip
_function(
    "reciprocal", lambda x: torch.reciprocal(x), lambda x: 1 / x, narrow_flops=3, parity=_ODD, flops=5, is_mufu=True, ulp=1,
    source="approximation, one Newton step; weft/device/math.cuh", gradient=lambda o, g, y, x: -g * y * y,
)  # fmt: skip
# ---- trigonometric and hyperbolic functions
_function(
    "sin", lambda x: torch.sin(x), math.sin, narrow_flops=13, parity=_ODD, flops=29, is_exp=True, is_steep=True, ulp=2, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.cos(x),
)  # fmt: skip
_function(
    "cos", lambda x: torch.cos(x), math.cos, narrow_flops=14, parity=_EVEN, flops=29, is_exp=True, is_steep=True, ulp=2, source=_CUDA,
    gradient=lambda o, g, y, x: -g * o.sin(x),
)  # fmt: skip
_function(
    "tan", lambda x: torch.tan(x), math.tan, parity=_ODD, flops=28, is_exp=True, is_steep=True, ulp=4, source=_CUDA,
    gradient=lambda o, g, y, x: g * (1.0 + y * y),
)  # fmt: skip
_function(
    "asin", lambda x: torch.asin(x), math.asin, parity=_ODD, flops=20, is_exp=True, ulp=4, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.rsqrt(1.0 - x * x),
)  # fmt: skip
_function("acos", lambda x: torch.acos(x), math.acos, flops=20, is_exp=True, ulp=4, source=_CUDA, gradient=lambda o, g, y, x: -g * o.rsqrt(1.0 - x * x))
_function("atan", lambda x: torch.atan(x), math.atan, parity=_ODD, flops=20, is_exp=True, ulp=2, source=_CUDA, gradient=lambda o, g, y, x: g / (1.0 + x * x))
_function(
    "sinh", lambda x: torch.sinh(x), math.sinh, parity=_ODD, flops=20, is_exp=True, is_mufu=True, ulp=4, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.cosh(x),
)  # fmt: skip
_function(
    "cosh", lambda x: torch.cosh(x), math.cosh, parity=_EVEN, flops=14, is_exp=True, is_mufu=True, ulp=4, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.sinh(x),
)  # fmt: skip
_function(
    "tanh",
    lambda x: torch.tanh(x),
    math.tanh,
    narrow_flops=15,  # two of them special; with these, kernels get two vectors per thread (docs/constants.md)
    parity=_ODD,
    flops=15,
    is_exp=True,
    is_mufu=True,
    ulp=4,
    source="polynomial below 0.55, else 1 - 2 / (exp(2x) + 1); weft/device/math.cuh",
    gradient=lambda o, g, y, x: g * (1.0 - y * y),
)
_function(
    "asinh", lambda x: torch.asinh(x), math.asinh, parity=_ODD, flops=28, is_exp=True, ulp=4, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.rsqrt(x * x + 1.0),
)  # fmt: skip
_function("acosh", lambda x: torch.acosh(x), math.acosh, flops=28, is_exp=True, ulp=4, source=_CUDA, gradient=lambda o, g, y, x: g * o.rsqrt(x * x - 1.0))
_function("atanh", lambda x: torch.atanh(x), math.atanh, parity=_ODD, flops=24, is_exp=True, ulp=4, source=_CUDA, gradient=lambda o, g, y, x: g / (1.0 - x * x))
# ---- special functions
_function(
    "erf", lambda x: torch.erf(x), math.erf, complex=False, narrow_flops=15, parity=_ODD, flops=22, is_exp=True, is_mufu=True, ulp=2, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.exp(-x * x) * (2 / math.sqrt(math.pi)),
)  # fmt: skip
_function(
    "erfc", lambda x: torch.erfc(x), math.erfc, complex=False, flops=26, is_exp=True, is_mufu=True, ulp=4, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.exp(-x * x) * (-2 / math.sqrt(math.pi)),
)  # fmt: skip
_function(
    "erfinv", lambda x: torch.erfinv(x), complex=False, parity=_ODD, flops=30, is_exp=True, ulp=4, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.exp(y * y) * (math.sqrt(math.pi) / 2),
)  # fmt: skip
_function(
    "erfcinv", lambda x: _erfcinv(x), complex=False, flops=34, is_exp=True, ulp=5, source=_CUDA,
    gradient=lambda o, g, y, x: g * o.exp(y * y) * (-math.sqrt(math.pi) / 2),
)  # fmt: skip
_function(
    "lgamma", lambda x: torch.lgamma(x), complex=False, flops=60, is_exp=True, ulp=8, source=_CUDA + "; absolute near the zeros 1 and 2 and for negative x",
    gradient=lambda o, g, y, x: g * o.digamma(x),
)  # fmt: skip
_function(
    "digamma", lambda x: _digamma(x), complex=False, flops=90, is_exp=True, ulp=8,
    source="recurrence to an argument where the asymptotic series has all digits; absolute near zeros and for negative x",
    gradient=lambda o, g, y, x: g * o.trigamma(x),
)  # fmt: skip
_function(
    "trigamma", lambda x: _trigamma(x), complex=False, flops=90, is_exp=True, ulp=8,
    source="as digamma; for negative x by reflection",
)  # fmt: skip


def _digamma(x: Any) -> Any:
    """torch's, reflected below 0, where torch loses digits near the poles."""
    part = x - torch.round(x)
    reflected = torch.where(part == 0, math.nan, torch.digamma(1 - x) - math.pi / torch.tan(math.pi * part))
    return torch.where(x < 0, reflected, torch.digamma(x))


def _trigamma(x: Any) -> Any:
    """The Hurwitz zeta function of 2, which has all digits of a double; torch.polygamma has nine. Reflected below 1/2."""
    wave = torch.sin(math.pi * (x - torch.round(x)))
    reflected = math.pi**2 / (wave * wave) - torch.special.zeta(2.0, 1 - x)
    return torch.where(x < 0.5, reflected, torch.where(x == math.inf, 0.0, torch.special.zeta(2.0, x.clamp(min=0.5))))


def _erfcinv(x: Any) -> Any:
    """erfinv(1 - x) near 1, where the difference is exact; else by the normal quantile, which keeps its digits for small x."""
    return torch.where((x - 1).abs() < 0.5, torch.erfinv(1 - x), -torch.special.ndtri(x / 2) * math.sqrt(0.5))


# ---- rounding (half to even, as torch); integers are unchanged
def _rounding(name: str, reference: Callable[..., Any], python: Callable[..., Any], parity: Parity = Parity.none) -> OpDef:
    def keep_integers(x: Any) -> Any:
        return reference(x) if x.is_floating_point() else x

    text = {"real": f"weft::{name}({{0}})", "int": "({0})", "bool": "({0})"}
    return _unary(name, Rule.number, text, keep_integers, python, is_steep=True, gradient=flat, parity=parity)


_rounding("ceil", lambda x: torch.ceil(x), math.ceil)
_rounding("floor", lambda x: torch.floor(x), math.floor)
_rounding("round", lambda x: torch.round(x), round, _ODD)
_rounding("trunc", lambda x: torch.trunc(x), math.trunc, _ODD)
_unary(
    "frac",
    Rule.number,
    {"real": "weft::frac({0})", "int": "weft::zero_of<{T}>({0})", "bool": "weft::zero_of<bool>({0})"},
    lambda x: torch.frac(x) if x.is_floating_point() else x * 0,
    lambda x: x - math.trunc(x),
    flops=2,
    parity=_ODD,
    is_steep=True,
    gradient=lambda o, g, y, x: g,
)

# ---- sign
_unary(
    "neg", Rule.number, {"real": "(-({0}))", "int": "weft::int_neg<{T}>({0})", "bool": "({0})", "complex": "(-({0}))"},
    lambda x: x if x.dtype == torch.bool else -x, lambda x: -x, gradient=lambda o, g, y, x: -g, parity=_ODD,
)  # fmt: skip
_unary(
    "abs",
    Rule.number,
    {"real": "weft::abs({0})", "int": "weft::int_abs<{T}>({0})", "bool": "({0})", "complex": "weft::abs({0})"},
    lambda x: x if x.dtype == torch.bool else torch.abs(x),
    abs,
    result=Result.real,
    gradient=lambda o, g, y, x: g * o.sign(x),
    parity=_EVEN,
)
_unary(
    "sign",
    Rule.number,
    {"number": "weft::sign<{T}>({0})", "bool": "({0})"},
    lambda x: torch.sign(x),
    lambda x: (x > 0) - (x < 0),
    flops=3,
    parity=_ODD,
    is_steep=True,
    source="torch.sign: 0 for NaN",
    gradient=flat,
)
_unary(
    "signbit",
    Rule.number,
    {"real": "weft::signbit({0})", "int": "weft::int_signbit<{T}>({0})", "bool": "weft::zero_of<bool>({0})"},
    lambda x: torch.signbit(x),
    lambda x: math.copysign(1.0, x) < 0,
    result=Result.boolean,
    gradient=flat,
)
_unary(
    "relu",
    Rule.number,
    {"real": "weft::relu({0})", "int": "weft::int_relu<{T}>({0})", "bool": "({0})"},
    lambda x: x if x.dtype == torch.bool else torch.relu(x),
    source="NaN stays NaN",
    gradient=lambda o, g, y, x: o.where(o.gt(y, 0.0), g, 0.0),
)


# ---- predicates
def _predicate(
    name: str, reference: Callable[..., Any], python: Callable[..., Any], of_integer: bool, *, complex: bool = True, parity: Parity = Parity.none
) -> OpDef:
    constant = f"weft::constant_of<{str(of_integer).lower()}>({{0}})"
    text = {"real": f"weft::{name}({{0}})", "int": constant, "bool": constant}
    if complex:
        text["complex"] = f"weft::{name}({{0}})"
    return _unary(name, Rule.number, text, reference, python, result=Result.boolean, gradient=flat, parity=parity)


_predicate("isfinite", lambda x: torch.isfinite(x), math.isfinite, True, parity=_EVEN)
_predicate("isinf", lambda x: torch.isinf(x), math.isinf, False, parity=_EVEN)
_predicate("isnan", lambda x: torch.isnan(x), math.isnan, False, parity=_EVEN)
_unary(
    "magnitude", Rule.full_float, {"float": "weft::larger(0.f, weft::magnitude({0}))"}, lambda x: x.abs().nan_to_num(nan=0.0, posinf=math.inf), abs,
    blocks=("blocks",), source="what counts for the largest of a block: NaN does not", is_internal=True,
)  # fmt: skip
for _name, _sign in (("nan_without_sign", 1.0), ("nan_with_sign", -1.0)):
    _unary(
        _name, Rule.full_float, {"real": f"weft::{_name}({{0}})"},
        lambda x, sign=_sign: torch.where(x.isnan(), math.copysign(math.nan, sign), x),
        lambda x, sign=_sign: math.copysign(x, sign) if math.isnan(x) else x,
        blocks=("scatter",), source="the sign with which comparisons of bits put a NaN before all others", is_internal=True,
    )  # fmt: skip
_unary(
    "e8m0_inverse", Rule.keep, {"reduced": "weft::inverse_scale({0})"}, lambda x: 1.0 / x, lambda x: 1.0 / x, blocks=("narrow",),
    source="the exponent's complement; computed in e8m0, its result is Float", is_internal=True,
)  # fmt: skip
_LARGEST = 3.4028234663852886e38
_unary(
    "e4m3_inverse", Rule.keep, {"reduced": "weft::inverse_scale({0})"}, lambda x: (1.0 / x).clamp(max=_LARGEST).nan_to_num(nan=_LARGEST),
    lambda x: min(1.0 / x, _LARGEST), blocks=("narrow",), flops=13, is_mufu=True,
    source="a reciprocal without the branches of a division; computed in e4m3, its result is Float", is_internal=True,
)  # fmt: skip
_unary(
    "e2m1_scale", Rule.full_float, {"float": "weft::e2m1_scale({0})"},
    lambda x: torch.where(x < 3000.0, x, 3000.0) / 6.0, lambda x: (x if x < 3000.0 else 3000.0) / 6.0,
    blocks=("narrow",), flops=10, is_mufu=True, source="of magnitudes: a division without its branches, where what is too large saturates next",
    is_internal=True,
)  # fmt: skip
_unary(
    "narrow_inverse", Rule.full_float, {"float": "weft::narrow_inverse({0})"},
    lambda x: torch.where(x == 0, 1.0 / x, (1.0 / x).clamp(-_LARGEST, _LARGEST)), lambda x: max(-_LARGEST, min(1.0 / x, _LARGEST)),
    blocks=("math",), flops=6, is_mufu=True, ulp=1, source="a divisor of many elements that are seen in 16 bits; 0 times it is 0 but for a divisor of 0",
    is_internal=True,
)  # fmt: skip
_unary(
    "row_scale", Rule.full_float, {"float": "weft::row_scale({0})"},
    lambda x: torch.where(x.abs() < 2.0**-100, 2.0**64, 1.0).to(x.dtype), lambda x: 2.0**64 if abs(x) < 2.0**-100 else 1.0,
    blocks=("math",), flops=2, is_steep=True, source="a factor for a divisor, so that its reciprocal is a finite number", is_internal=True,
)  # fmt: skip
_predicate("isneginf", lambda x: torch.isneginf(x), lambda x: x == -math.inf, False, complex=False)
_predicate("isposinf", lambda x: torch.isposinf(x), lambda x: x == math.inf, False, complex=False)
_unary(
    "isreal",
    Rule.number,
    {"complex": "weft::isreal({0})", "any": "weft::constant_of<true>({0})"},
    lambda x: torch.isreal(x),
    lambda x: complex(x).imag == 0,
    result=Result.boolean,
    gradient=flat,
)

# ---- parts of complex numbers
_unary("real", Rule.number, {"complex": "weft::real({0})", "any": "({0})"}, lambda x: torch.real(x), lambda x: x.real, result=Result.real, flops=0)
_unary(
    "imag",
    Rule.number,
    {"complex": "weft::imag({0})", "any": "weft::zero_of<{T}>({0})"},
    lambda x: torch.imag(x) if x.is_complex() else torch.zeros_like(x),
    lambda x: x.imag,
    result=Result.real,
    flops=0,
)

# ---- logic
_unary(
    "bitwise_not", Rule.bitwise, {"int": "(~({0}))", "bool": "(!({0}))"}, lambda x: torch.bitwise_not(x), lambda x: not x if isinstance(x, bool) else ~x,
    gradient=flat,
)  # fmt: skip
_unary("logical_not", Rule.logical, {"bool": "(!({0}))"}, lambda x: torch.logical_not(x), lambda x: not x, gradient=flat)
