"""Recipes behind norms and activations, one kernel each: definitions of a few lines, of which anybody may write more with `quantize`.

Those per tensor also return the largest magnitude; behind a norm, a second kernel folds one number per row to it.
Read first: `rms_norm_nvfp4`.
"""

from __future__ import annotations

import torch

from ..runtime.argument_kinds import checked
from .formats import E4M3, Mx, Per1x128, PerRow, PerTensor, layout_for
from .functions import Results, _nvfp4, quantize


def _mx(layout: str) -> Mx:
    return Mx(E4M3, layout_for("blocks", layout))


@checked
def rms_norm_nvfp4(x: torch.Tensor, weight: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = "128x4", eps: float = 1e-5) -> Results:
    """nvfp4 of rms_norm(x) * weight."""
    return quantize(_nvfp4(global_scale, layout), x, weight, before="rms_norm", scale=global_scale, eps=eps)


@checked
def rms_norm_mxfp8(x: torch.Tensor, weight: torch.Tensor, layout: str = "128x4", eps: float = 1e-5) -> Results:
    """mxfp8 of rms_norm(x) * weight."""
    return quantize(_mx(layout), x, weight, before="rms_norm", eps=eps)


@checked
def rms_norm_per_row(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> Results:
    """per_row of rms_norm(x) * weight."""
    return quantize(PerRow(), x, weight, before="rms_norm", eps=eps)


@checked
def rms_norm_per_tensor(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, eps: float = 1e-5) -> Results:
    """per_tensor of rms_norm(x) * weight."""
    return quantize(PerTensor(is_by_rows=True), x, weight, before="rms_norm", scale=scale, eps=eps)


@checked
def rms_norm_per_1x128(x: torch.Tensor, weight: torch.Tensor, layout: str = "rows", eps: float = 1e-5) -> Results:
    """per_1x128 of rms_norm(x) * weight."""
    return quantize(Per1x128(E4M3, layout_for("1x128", layout)), x, weight, before="rms_norm", eps=eps)


@checked
def add_rms_norm_nvfp4(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = "128x4", eps: float = 1e-5
) -> Results:  # fmt: skip
    """nvfp4 of rms_norm(x + residual) * weight, and x + residual."""
    return quantize(_nvfp4(global_scale, layout), x, residual, weight, before="add_rms_norm", scale=global_scale, eps=eps)


@checked
def add_rms_norm_mxfp8(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, layout: str = "128x4", eps: float = 1e-5) -> Results:
    """mxfp8 of rms_norm(x + residual) * weight, and x + residual."""
    return quantize(_mx(layout), x, residual, weight, before="add_rms_norm", eps=eps)


@checked
def add_rms_norm_per_row(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> Results:
    """per_row of rms_norm(x + residual) * weight, and x + residual."""
    return quantize(PerRow(), x, residual, weight, before="add_rms_norm", eps=eps)


@checked
def add_rms_norm_per_tensor(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, eps: float = 1e-5) -> Results:
    """per_tensor of rms_norm(x + residual) * weight, and x + residual."""
    return quantize(PerTensor(is_by_rows=True), x, residual, weight, before="add_rms_norm", scale=scale, eps=eps)


@checked
def add_rms_norm_per_1x128(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, layout: str = "rows", eps: float = 1e-5) -> Results:
    """per_1x128 of rms_norm(x + residual) * weight, and x + residual."""
    return quantize(Per1x128(E4M3, layout_for("1x128", layout)), x, residual, weight, before="add_rms_norm", eps=eps)


@checked
def layer_norm_nvfp4(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = "128x4", eps: float = 1e-5
) -> Results:  # fmt: skip
    """nvfp4 of layer_norm(x)."""
    return quantize(_nvfp4(global_scale, layout), x, weight, bias, before="layer_norm", scale=global_scale, eps=eps)


@checked
def layer_norm_mxfp8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layout: str = "128x4", eps: float = 1e-5) -> Results:
    """mxfp8 of layer_norm(x)."""
    return quantize(_mx(layout), x, weight, bias, before="layer_norm", eps=eps)


@checked
def layer_norm_per_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> Results:
    """per_row of layer_norm(x)."""
    return quantize(PerRow(), x, weight, bias, before="layer_norm", eps=eps)


@checked
def layer_norm_per_tensor(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, eps: float = 1e-5) -> Results:
    """per_tensor of layer_norm(x)."""
    return quantize(PerTensor(is_by_rows=True), x, weight, bias, before="layer_norm", scale=scale, eps=eps)


@checked
def layer_norm_per_1x128(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layout: str = "rows", eps: float = 1e-5) -> Results:
    """per_1x128 of layer_norm(x)."""
    return quantize(Per1x128(E4M3, layout_for("1x128", layout)), x, weight, bias, before="layer_norm", eps=eps)


@checked
def silu_mul_nvfp4(x: torch.Tensor, y: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = "128x4") -> Results:
    """nvfp4 of silu(x) * y."""
    return quantize(_nvfp4(global_scale, layout), x, y, before="silu_mul", scale=global_scale)


@checked
def silu_mul_mxfp8(x: torch.Tensor, y: torch.Tensor, layout: str = "128x4") -> Results:
    """mxfp8 of silu(x) * y."""
    return quantize(_mx(layout), x, y, before="silu_mul")


@checked
def silu_mul_per_row(x: torch.Tensor, y: torch.Tensor) -> Results:
    """per_row of silu(x) * y."""
    return quantize(PerRow(), x, y, before="silu_mul")


@checked
def silu_mul_per_tensor(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Results:
    """per_tensor of silu(x) * y."""
    return quantize(PerTensor(), x, y, before="silu_mul", scale=scale)


@checked
def silu_mul_per_1x128(x: torch.Tensor, y: torch.Tensor, layout: str = "rows") -> Results:
    """per_1x128 of silu(x) * y."""
    return quantize(Per1x128(E4M3, layout_for("1x128", layout)), x, y, before="silu_mul")
