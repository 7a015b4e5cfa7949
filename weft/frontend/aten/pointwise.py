"""Arithmetic, comparisons, casts and activations.

Arithmetic is in the type that eager torch computes in (float32 for 16-bit floats); a value is rounded to its own type where it leaves the region, not after
each op, as in every fusing compiler. Read first: `_binary`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ops.activations import gelu_gradient
from ...ops.operators import floor_of_quotient
from ...ops.registry import OPS
from .rules import Kind, Operand, Translation, meta_of, rule

aten, prims = torch.ops.aten, torch.ops.prims


# ---------------------------------------------------------------- tables
def _binary(name: str, kind: Kind, *targets: Any) -> None:
    @rule(*targets)
    def make(t: Translation, a: Operand, b: Operand) -> Operand:
        dtype = t.compute_dtype(kind)
        return getattr(t.ops, name)(t.to(a, dtype), t.to(b, dtype))


def _unary(name: str, kind: Kind, *targets: Any) -> None:
    @rule(*targets)
    def make(t: Translation, x: Operand) -> Operand:
        return getattr(t.ops, name)(t.to(x, t.compute_dtype(kind)))


for _name, _kind in {
    "neg": Kind.DEFAULT, "abs": Kind.COMPLEX_TO_FLOAT, "relu": Kind.DEFAULT, "floor": Kind.DEFAULT, "ceil": Kind.DEFAULT, "trunc": Kind.DEFAULT,
    "sign": Kind.DEFAULT, "frac": Kind.DEFAULT, "square": Kind.DEFAULT,
    "exp": Kind.INT_TO_FLOAT, "exp2": Kind.INT_TO_FLOAT, "expm1": Kind.INT_TO_FLOAT, "log": Kind.INT_TO_FLOAT, "log1p": Kind.INT_TO_FLOAT,
    "log2": Kind.INT_TO_FLOAT, "log10": Kind.INT_TO_FLOAT, "sqrt": Kind.INT_TO_FLOAT, "rsqrt": Kind.INT_TO_FLOAT, "reciprocal": Kind.INT_TO_FLOAT,
    "sin": Kind.INT_TO_FLOAT, "cos": Kind.INT_TO_FLOAT, "tan": Kind.INT_TO_FLOAT, "sinh": Kind.INT_TO_FLOAT, "cosh": Kind.INT_TO_FLOAT,
    "tanh": Kind.INT_TO_FLOAT, "asin": Kind.INT_TO_FLOAT, "acos": Kind.INT_TO_FLOAT, "atan": Kind.INT_TO_FLOAT, "asinh": Kind.INT_TO_FLOAT,
    "acosh": Kind.INT_TO_FLOAT, "atanh": Kind.INT_TO_FLOAT, "erf": Kind.INT_TO_FLOAT, "erfc": Kind.INT_TO_FLOAT, "erfinv": Kind.INT_TO_FLOAT,
    "lgamma": Kind.INT_TO_FLOAT, "digamma": Kind.INT_TO_FLOAT, "sigmoid": Kind.INT_TO_FLOAT, "signbit": Kind.ALWAYS_BOOL,
    "isnan": Kind.ALWAYS_BOOL, "isinf": Kind.ALWAYS_BOOL, "isfinite": Kind.ALWAYS_BOOL, "logical_not": Kind.ALWAYS_BOOL, "bitwise_not": Kind.DEFAULT,
}.items():  # fmt: skip
    _packet = getattr(aten, _name, None)
    if _packet is not None:
        _unary(_name, _kind, _packet.default)

_binary("mul", Kind.DEFAULT, aten.mul.Tensor, aten.mul.Scalar)
_binary("truediv", Kind.INT_TO_FLOAT, aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar)
_binary("maximum", Kind.DEFAULT, aten.maximum.default)
_binary("minimum", Kind.DEFAULT, aten.minimum.default)
_binary("atan2", Kind.INT_TO_FLOAT, aten.atan2.default)
_binary("logaddexp", Kind.INT_TO_FLOAT, aten.logaddexp.default)
_binary("hypot", Kind.INT_TO_FLOAT, aten.hypot.default)
_binary("copysign", Kind.INT_TO_FLOAT, aten.copysign.Tensor, aten.copysign.Scalar)
_binary("remainder", Kind.DEFAULT, aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
_binary("fmod", Kind.DEFAULT, aten.fmod.Tensor, aten.fmod.Scalar)
_binary("bitwise_and", Kind.DEFAULT, aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.bitwise_and.Scalar_Tensor)
_binary("bitwise_or", Kind.DEFAULT, aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor)
_binary("bitwise_xor", Kind.DEFAULT, aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, aten.bitwise_xor.Scalar_Tensor)
_binary(
    "bitwise_left_shift", Kind.DEFAULT, aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_left_shift.Scalar_Tensor,
    aten.__lshift__.Tensor, aten.__lshift__.Scalar
)
_binary(
    "bitwise_right_shift", Kind.DEFAULT, aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar, aten.bitwise_right_shift.Scalar_Tensor,
    aten.__rshift__.Tensor, aten.__rshift__.Scalar
)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _binary(_name, Kind.ALWAYS_BOOL, getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)


# ---------------------------------------------------------------- arithmetic
@rule(aten.fmax.default, aten.fmin.default)
def fmax(t: Translation, a: Operand, b: Operand) -> Operand:
    """The larger, or smaller, of two numbers; the other one if one is NaN."""
    dtype = t.compute_dtype(Kind.DEFAULT)
    a, b = t.to(a, dtype), t.to(b, dtype)
    best = (t.ops.maximum if t.node.target is aten.fmax.default else t.ops.minimum)(a, b)
    return t.ops.where(t.ops.ne(a, a), b, t.ops.where(t.ops.ne(b, b), a, best)) if dtype.is_floating_point else best


@rule(aten.gcd.default, claims=lambda node: "" if meta_of(node).dtype in (torch.int32, torch.int64) else "a type that is not computed in")
def gcd(t: Translation, a: Operand, b: Operand) -> Operand:
    return t.ops.gcd(*(t.to(x, t.result_dtype) for x in (a, b)))


@rule(aten.nextafter.default, claims=lambda node: "" if meta_of(node).dtype in (torch.float32, torch.float64) else "a type that is not computed in")
def nextafter(t: Translation, a: Operand, b: Operand) -> Operand:
    return t.ops.nextafter(*(t.to(x, t.result_dtype) for x in (a, b)))


@rule(aten.polygamma.default, claims=lambda node: "" if node.args[0] in (0, 1) else "a polygamma function of order 2 or more")
def polygamma(t: Translation, order: int, x: Operand) -> Operand:
    return (t.ops.trigamma if order else t.ops.digamma)(t.to(x, t.compute_dtype(Kind.INT_TO_FLOAT, t.node.args[1])))


@rule(aten.special_ndtri.default)
def ndtri(t: Translation, x: Operand) -> Operand:
    """The quantile of the normal distribution, by erfcinv, which keeps the digits of small x."""
    return t.ops.mul(t.ops.erfcinv(t.ops.mul(t.to(x, t.compute_dtype(Kind.INT_TO_FLOAT)), 2.0)), -math.sqrt(2))


@rule(aten.add.Tensor, aten.add.Scalar)
def add(t: Translation, a: Operand, b: Operand, alpha: Any = 1) -> Operand:
    dtype = t.compute_dtype(Kind.DEFAULT, *t.node.args[:2])
    a, b = t.to(a, dtype), t.to(b, dtype)
    return t.ops.add(a, b if alpha == 1 else t.ops.mul(b, alpha))


@rule(aten.sub.Tensor, aten.sub.Scalar)
def sub(t: Translation, a: Operand, b: Operand, alpha: Any = 1) -> Operand:
    dtype = t.compute_dtype(Kind.DEFAULT, *t.node.args[:2])
    a, b = t.to(a, dtype), t.to(b, dtype)
    return t.ops.sub(a, b if alpha == 1 else t.ops.mul(b, alpha))


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(t: Translation, a: Operand, b: Operand, alpha: Any = 1) -> Operand:
    return sub(t, b, a, alpha)


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(t: Translation, a: Operand, b: Operand, rounding_mode: str | None = None) -> Operand:
    """Division rounded down or towards zero."""
    dtype = t.compute_dtype(Kind.INT_TO_FLOAT if rounding_mode is None else Kind.DEFAULT, *t.node.args[:2])
    a, b = t.to(a, dtype), t.to(b, dtype)
    if rounding_mode == "floor":
        return floor_of_quotient(t.calls.fusion, a, b, is_integer=not dtype.is_floating_point)
    if rounding_mode == "trunc" and not dtype.is_floating_point:
        return t.ops.div(a, b)
    quotient = t.ops.truediv(a, b)
    return quotient if rounding_mode is None else t.ops.trunc(quotient)


@rule(aten.pow.Tensor_Scalar)
def pow_scalar(t: Translation, x: Operand, exponent: Any) -> Operand:
    """Small powers are products and roots."""
    dtype = t.compute_dtype(Kind.BOOL_TO_LONG)
    x = t.to(x, dtype)
    if exponent == 1:
        return x
    if exponent == 2:
        return t.ops.mul(x, x)
    if exponent == 3:
        return t.ops.mul(t.ops.mul(x, x), x)
    if dtype.is_floating_point:
        if exponent == 0.5:
            return t.ops.sqrt(x)
        if exponent == -0.5:
            return t.ops.rsqrt(x)
        if exponent == -1:
            return t.ops.reciprocal(x)
    return t.ops.pow(x, exponent)


@rule(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(t: Translation, x: Operand, exponent: Operand) -> Operand:
    dtype = t.compute_dtype(Kind.BOOL_TO_LONG)
    return t.ops.pow(t.to(x, dtype), t.to(exponent, dtype))


@rule(aten.addcmul.default)
def addcmul(t: Translation, x: Operand, a: Operand, b: Operand, value: Any = 1) -> Operand:
    dtype = t.compute_dtype(Kind.DEFAULT, *t.node.args[:3])
    product = t.ops.mul(t.to(a, dtype), t.to(b, dtype))
    return t.ops.add(t.to(x, dtype), product if value == 1 else t.ops.mul(product, value))


@rule("prims.fma.default")
def fma(t: Translation, a: Operand, b: Operand, x: Operand) -> Operand:
    """The op that Dynamo uses for sums with a tensor as factor, in optimizers."""
    dtype = t.compute_dtype(Kind.DEFAULT, *t.node.args)
    return t.ops.add(t.ops.mul(t.to(a, dtype), t.to(b, dtype)), t.to(x, dtype))


@rule(aten.addcdiv.default)
def addcdiv(t: Translation, x: Operand, a: Operand, b: Operand, value: Any = 1) -> Operand:
    dtype = t.compute_dtype(Kind.INT_TO_FLOAT, *t.node.args[:3])
    quotient = t.ops.truediv(t.to(a, dtype), t.to(b, dtype))
    return t.ops.add(t.to(x, dtype), quotient if value == 1 else t.ops.mul(quotient, value))


@rule(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(t: Translation, start: Operand, end: Operand, weight: Operand) -> Operand:
    dtype = t.compute_dtype(Kind.DEFAULT)
    return t.ops.lerp(t.to(start, dtype), t.to(end, dtype), t.to(weight, dtype))


@rule(aten.clamp.default, aten.clamp.Tensor)
def clamp(t: Translation, x: Operand, low: Operand = None, high: Operand = None) -> Operand:
    """Bounds may be tensors; NaN stays."""
    given = [a for a in (*t.node.args[:3], *t.node.kwargs.values()) if a is not None]
    dtype = t.compute_dtype(Kind.DEFAULT, *given)
    x = t.to(x, dtype)
    if low is not None:
        x = t.ops.maximum(x, t.to(low, dtype))
    return x if high is None else t.ops.minimum(x, t.to(high, dtype))


@rule(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(t: Translation, x: Operand, low: Operand) -> Operand:
    return clamp(t, x, low)


@rule(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(t: Translation, x: Operand, high: Operand) -> Operand:
    return clamp(t, x, None, high)


@rule(aten.round.default)
def round_even(t: Translation, x: Operand) -> Operand:
    return t.ops.round(t.to(x, t.compute_dtype(Kind.DEFAULT)))


# ---------------------------------------------------------------- logic
@rule(aten.logical_and.default)
def logical_and(t: Translation, a: Operand, b: Operand) -> Operand:
    return t.ops.bitwise_and(t.to(a, torch.bool), t.to(b, torch.bool))


@rule(aten.logical_or.default)
def logical_or(t: Translation, a: Operand, b: Operand) -> Operand:
    return t.ops.bitwise_or(t.to(a, torch.bool), t.to(b, torch.bool))


@rule(aten.logical_xor.default)
def logical_xor(t: Translation, a: Operand, b: Operand) -> Operand:
    return t.ops.bitwise_xor(t.to(a, torch.bool), t.to(b, torch.bool))


@rule(aten.where.self)
def where(t: Translation, condition: Operand, a: Operand, b: Operand) -> Operand:
    dtype = t.compute_dtype(Kind.DEFAULT, *t.node.args[1:3])
    a, b = (t.to(v, dtype) if not isinstance(v, (bool, int, float)) else t.constant(v, dtype) for v in (a, b))
    return t.ops.where(condition, a, b)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(t: Translation, x: Operand, mask: Operand, value: Operand) -> Operand:
    dtype = t.compute_dtype(Kind.DEFAULT, t.node.args[0])
    filled = t.constant(value, dtype) if isinstance(value, (bool, int, float)) else t.to(value, dtype)
    return t.ops.where(mask, filled, t.to(x, dtype))


# ---------------------------------------------------------------- activations and their gradients
@rule(aten.gelu.default)
def gelu(t: Translation, x: Operand, approximate: str = "none") -> Operand:
    return t.ops.gelu(t.wide(x), approximate=approximate)


@rule(aten.silu.default)
def silu(t: Translation, x: Operand) -> Operand:
    return t.ops.silu(t.wide(x))


def _backward(name: str, target: Any, reads: str) -> None:
    """The gradient of one of weft's ops, by the op's own derivative rule. reads: the value that aten passes to it, the op's "input" or its "result"."""
    gradient = OPS[name].gradient
    assert gradient is not None

    @rule(target)
    def make(t: Translation, grad: Operand, value: Operand) -> Operand:
        grad, value = t.wide(grad), t.wide(value)
        return gradient(t.calls, grad, *((None, value) if reads == "input" else (value, None)))


_backward("sigmoid", aten.sigmoid_backward.default, "result")
_backward("tanh", aten.tanh_backward.default, "result")
_backward("silu", aten.silu_backward.default, "input")


@rule(aten.threshold_backward.default)
def threshold_backward(t: Translation, grad: Operand, x: Operand, threshold: Any) -> Operand:
    grad = t.wide(grad)
    zero = t.constant(0.0, t.compute_dtype(Kind.DEFAULT, t.node.args[0]))
    return t.ops.where(t.ops.le(t.wide(x), threshold), zero, grad)  # which lets the gradient through at NaN, as torch does


@rule(aten.gelu_backward.default)
def gelu_backward(t: Translation, grad: Operand, x: Operand, approximate: str = "none") -> Operand:
    return gelu_gradient(t.calls, t.wide(grad), t.wide(x), approximate)
