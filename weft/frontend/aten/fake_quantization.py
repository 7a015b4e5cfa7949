"""Values rounded to the steps of an integer type, and kept as floats: torch's fake quantization, for AOTAutograd. Read first: `_quantized`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..windows import wide_type

aten = torch.ops.aten


def _quantized(x: Tensor, inverse: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Return x rounded to multiples of `scale` between those of `low` and `high`, and where it was not clamped. inverse: of the scale, as torch rounds it."""
    steps = torch.round(x.to(wide_type(x)) * inverse) + zero
    out = (steps.clamp(low, high) - zero) * scale
    return out.to(x.dtype), (steps >= low) & (steps <= high)


def per_tensor(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    (rounded,) = struct.unpack("f", struct.pack("f", scale))  # the scale and its inverse are float32
    return _quantized(x, 1.0 / rounded, rounded, zero_point, quant_min, quant_max)


def per_tensor_by_tensors(x: Tensor, scale: Tensor, zero_point: Tensor, is_enabled: Tensor, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    scale, is_off = scale.to(torch.float32), is_enabled.reshape(()) == 0
    out, mask = _quantized(x, scale.reciprocal(), scale, zero_point, quant_min, quant_max)
    return torch.where(is_off, x, out), mask | is_off


def per_channel(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    shape = [-1 if d == axis % x.dim() else 1 for d in range(x.dim())]
    scale, zero = scale.to(torch.float32).reshape(shape), zero_point.reshape(shape)
    return _quantized(x, scale.reciprocal(), scale, zero, quant_min, quant_max)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: per_tensor, aten.fake_quantize_per_channel_affine_cachemask.default: per_channel,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: per_tensor_by_tensors,
}  # fmt: skip
"""For AOTAutograd."""
