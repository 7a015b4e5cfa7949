"""Made by docs/make_stubs.py from the tables of behind.py."""

from collections.abc import Callable

import torch

from .functions import Results

FUNCTIONS: dict[str, Callable[..., Results]]

def behind(before: str, recipe: str) -> Callable[..., Results]: ...
def rms_norm_nvfp4(x: torch.Tensor, weight: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """nvfp4 of rms_norm(x) * weight."""
def rms_norm_mxfp8(x: torch.Tensor, weight: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """mxfp8 of rms_norm(x) * weight."""
def rms_norm_mxfp4(x: torch.Tensor, weight: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """mxfp4 of rms_norm(x) * weight."""
def rms_norm_per_row(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-05) -> Results:
    """per_row of rms_norm(x) * weight."""
def rms_norm_per_tensor(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, eps: float = 1e-05) -> Results:
    """per_tensor of rms_norm(x) * weight."""
def rms_norm_per_1x128(x: torch.Tensor, weight: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """per_1x128 of rms_norm(x) * weight."""
def add_rms_norm_nvfp4(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """nvfp4 of rms_norm(x + residual) * weight, and x + residual."""
def add_rms_norm_mxfp8(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """mxfp8 of rms_norm(x + residual) * weight, and x + residual."""
def add_rms_norm_mxfp4(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """mxfp4 of rms_norm(x + residual) * weight, and x + residual."""
def add_rms_norm_per_row(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-05) -> Results:
    """per_row of rms_norm(x + residual) * weight, and x + residual."""
def add_rms_norm_per_tensor(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, eps: float = 1e-05) -> Results:
    """per_tensor of rms_norm(x + residual) * weight, and x + residual."""
def add_rms_norm_per_1x128(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """per_1x128 of rms_norm(x + residual) * weight, and x + residual."""
def layer_norm_nvfp4(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """nvfp4 of layer_norm(x)."""
def layer_norm_mxfp8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """mxfp8 of layer_norm(x)."""
def layer_norm_mxfp4(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """mxfp4 of layer_norm(x)."""
def layer_norm_per_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-05) -> Results:
    """per_row of layer_norm(x)."""
def layer_norm_per_tensor(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, eps: float = 1e-05) -> Results:
    """per_tensor of layer_norm(x)."""
def layer_norm_per_1x128(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, layout: str = 'rows', eps: float = 1e-05) -> Results:
    """per_1x128 of layer_norm(x)."""
def silu_mul_nvfp4(x: torch.Tensor, y: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = 'rows') -> Results:
    """nvfp4 of silu(x) * y."""
def silu_mul_mxfp8(x: torch.Tensor, y: torch.Tensor, layout: str = 'rows') -> Results:
    """mxfp8 of silu(x) * y."""
def silu_mul_mxfp4(x: torch.Tensor, y: torch.Tensor, layout: str = 'rows') -> Results:
    """mxfp4 of silu(x) * y."""
def silu_mul_per_row(x: torch.Tensor, y: torch.Tensor) -> Results:
    """per_row of silu(x) * y."""
def silu_mul_per_tensor(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Results:
    """per_tensor of silu(x) * y."""
def silu_mul_per_1x128(x: torch.Tensor, y: torch.Tensor, layout: str = 'rows') -> Results:
    """per_1x128 of silu(x) * y."""
