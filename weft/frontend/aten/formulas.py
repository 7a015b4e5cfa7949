"""Functions of torch's that are formulas of ops with rules, for AOTAutograd: rounding to decimals, angles of real numbers, and the like.

Read first: `DECOMPOSITIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_opmath

aten = torch.ops.aten


def rounded_to_decimals(x: Tensor, *, decimals: int) -> Any:
    """torch.round(x, decimals=...): multiplied, rounded half to even, divided, as torch's kernel does."""
    if not x.is_floating_point():
        return NotImplemented
    return _rounded(x, 10.0 ** abs(decimals), decimals < 0)


@pw_cast_for_opmath
def _rounded(x: Tensor, power: float, is_coarse: bool) -> Tensor:
    return torch.round(x / power) * power if is_coarse else torch.round(x * power) / power


def angle(x: Tensor) -> Any:
    """Of a real number: pi below 0, else 0; NaN stays. Complex numbers have a rule of their own parts."""
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype)) if x.is_floating_point() else NotImplemented


def scaled_by_power(x: Tensor, exponent: Tensor) -> Tensor:
    """torch.ldexp. Powers of integers are float32, which the result is not for that."""
    scaled, dtype = x * torch.pow(2.0, exponent), torch.result_type(x, exponent)
    return scaled.to(dtype) if dtype.is_floating_point else scaled


def distance(a: Tensor, b: Tensor, p: float = 2) -> Tensor:
    """torch.dist: the norm of the difference."""
    return torch.linalg.vector_norm(a - b, p)


@pw_cast_for_opmath
def logit_backward(grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    """NaN where x is NaN, as torch's kernel has it and torch's decomposition has not; 0 where x is clamped."""
    low = 0.0 if eps is None else eps
    is_outside = (x < low) | (x > 1.0 - low)
    return torch.where(is_outside, math.nan if eps is None else 0.0, grad / (x * (1.0 - x)))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.round.decimals: rounded_to_decimals, aten.angle.default: angle, aten.ldexp.Tensor: scaled_by_power, aten.dist.default: distance,
    aten.logit_backward.default: logit_backward,
}  # fmt: skip
"""For AOTAutograd."""
