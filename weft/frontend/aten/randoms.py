"""Dropout and random tensors, drawn inside kernels: other numbers than eager torch's from the same seed, equally distributed.

With `torch._inductor.config.fallback_random`, by which programs ask compilers for eager torch's numbers, torch draws them. Read first: `drawn`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .rules import Declined, Operand, Translation, rule

aten = torch.ops.aten


def eager_numbers_are_wanted() -> bool:
    """True if a program asks for the numbers that eager torch draws. Who does so has imported the module of the setting."""
    config = sys.modules.get("torch._inductor.config")
    return config is not None and bool(config.fallback_random)


def _drawn_for(node: torch.fx.Node) -> torch.Tensor:
    """Return the result whose elements are drawn, traced: the first of dropout's two."""
    value = node.meta["val"]
    return value[0] if isinstance(value, (tuple, list)) else value


def _why_torch_draws(node: torch.fx.Node) -> str:
    """Why torch draws numbers, or ""."""
    if eager_numbers_are_wanted():
        return "torch._inductor.config.fallback_random asks for torch's own random numbers"
    value = _drawn_for(node)
    return "" if value.dim() and value.dtype.is_floating_point else "random numbers that are integers, or a single one"


def drawn(t: Translation, distribution: str, a: float, b: float, dtype: torch.dtype | None = None) -> Operand:
    """Return random numbers in the shape of the node, and in its type or `dtype`: "uniform" in [a, b), or "normal" with mean a and standard deviation b."""
    value = _drawn_for(t.node)
    wide = dtype or value.dtype
    computed = torch.float64 if wide is torch.float64 else torch.float32
    draw = t.ops.uniform if distribution == "uniform" else t.ops.normal
    return draw(t.constant(a, computed), t.constant(b, computed), shape=t.extents(value.shape), dtype=t.dtype(wide))


@rule(aten.native_dropout.default, claims=_why_torch_draws)
def native_dropout(t: Translation, x: Operand, p: float, train: bool | None) -> Any:
    """(values, mask of the kept elements). Errors: Declined if no random numbers are drawn."""
    if train is False or not 0 <= p < 1:
        raise Declined("dropout with probability 0 or 1")
    wide = t.wide(x)
    mask = t.ops.ge(drawn(t, "uniform", 0.0, 1.0, torch.float32), p)
    return t.ops.where(mask, t.ops.mul(wide, 1 / (1 - p)), t.zero(wide)), mask


@rule(aten.native_dropout_backward.default)
def native_dropout_backward(t: Translation, grad: Operand, mask: Operand, scale: float) -> Operand:
    grad = t.wide(grad)
    return t.ops.where(mask, t.ops.mul(grad, scale), t.zero(grad))


@rule(aten.rand.default, aten.rand_like.default, claims=_why_torch_draws)
def rand(t: Translation, *_: Any, **__: Any) -> Operand:
    return drawn(t, "uniform", 0.0, 1.0)


@rule(aten.randn.default, aten.randn_like.default, claims=_why_torch_draws)
def randn(t: Translation, *_: Any, **__: Any) -> Operand:
    return drawn(t, "normal", 0.0, 1.0)


@rule(aten.uniform.default, claims=_why_torch_draws)
def uniform(t: Translation, x: Operand, low: float = 0.0, high: float = 1.0, **_: Any) -> Operand:
    """`x.uniform_()`: x gives the shape."""
    return drawn(t, "uniform", low, high)


@rule(aten.normal_functional.default, claims=_why_torch_draws)
def normal(t: Translation, x: Operand, mean: float = 0.0, std: float = 1.0, **_: Any) -> Operand:
    """`x.normal_()`: x gives the shape."""
    return drawn(t, "normal", mean, std)


@rule(aten.normal.float_float, claims=_why_torch_draws)
def normal_of_sizes(t: Translation, mean: float, std: float, sizes: Any, **_: Any) -> Operand:
    return drawn(t, "normal", mean, std)


@rule(aten.exponential.default, claims=_why_torch_draws)
def exponential(t: Translation, x: Operand, rate: float = 1.0, **_: Any) -> Operand:
    """Never 0, as in torch: Gumbel noise is the logarithm of it."""
    wide = torch.float64 if t.result_dtype is torch.float64 else torch.float32
    waited = t.ops.neg(t.ops.log1p(t.ops.neg(drawn(t, "uniform", 0.0, 1.0, wide))))
    return t.ops.mul(t.ops.maximum(waited, t.constant(torch.finfo(wide).eps / 2, wide)), 1 / rate)


@rule(aten.bernoulli.p, claims=_why_torch_draws)
def bernoulli(t: Translation, x: Operand, p: float = 0.5, **_: Any) -> Operand:
    """1 with probability p, else 0."""
    return t.to(t.ops.lt(drawn(t, "uniform", 0.0, 1.0, torch.float32), p), t.result_dtype)


__all__ = ["drawn", "eager_numbers_are_wanted"]
