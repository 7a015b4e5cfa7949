"""What tests of normalizations along rows define alike: inputs, the norms themselves, and weights.

Read first: `rms_norm`, `weight`.
"""

from __future__ import annotations

import torch

from weft import DataType, FusionDefinition
from weft.ir.values import TensorView

TORCH = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16}


def numbers(dtype: DataType, *shape: int) -> torch.Tensor:
    """The same numbers each time; Bool: which of them are positive."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values > 0 if dtype is DataType.Bool else values.to(TORCH[dtype])


def wide(fd: FusionDefinition, x: TensorView) -> TensorView:
    return fd.ops.cast(x, DataType.Float)


def weight(fd: FusionDefinition, dtype: DataType, like: TensorView, is_contiguous: bool = True) -> TensorView:
    """Add an input that all rows of `like` share."""
    return fd.ops.broadcast_in_dim(wide(fd, fd.define_tensor([-1], contiguity=is_contiguous, dtype=dtype)), like.shape(), [1])


def rms_norm(fd: FusionDefinition, y: TensorView, like: TensorView) -> TensorView:
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(y, y), [1], True), like.size(1))
    return fd.ops.mul(y, fd.ops.rsqrt(fd.ops.add(mean, 1e-6)))


def layer_norm(fd: FusionDefinition, y: TensorView, like: TensorView) -> TensorView:
    var, mean = fd.ops.var_mean(y, [1], correction=0, keepdim=True)
    return fd.ops.mul(fd.ops.sub(y, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))
