"""The fusions that the scripts of this folder measure: each as a definition, and as the same math in torch.

Owns definitions, inputs and references; measuring is in `measure.py`. Read first: `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft import DataType, FusionDefinition

NAMES = {torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half, torch.float32: DataType.Float}
KEEP = 0.9
"""Part of the elements that dropout keeps."""


# ---------------------------------------------------------------- definitions
def matrix(fd: FusionDefinition, dtype: DataType) -> Any:
    """Add a contiguous input of two symbolic sizes."""
    return fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)


def wide_matrix(fd: FusionDefinition, dtype: DataType) -> Any:
    return fd.ops.cast(matrix(fd, dtype), dtype=DataType.Float)


def wide_vector(fd: FusionDefinition, dtype: DataType) -> Any:
    """Add a weight, and spread it over rows where it is used (vectors broadcast to matrices as in torch)."""
    return fd.ops.cast(fd.define_tensor(shape=[-1], contiguity=True, dtype=dtype), dtype=DataType.Float)


def output(fd: FusionDefinition, value: Any, dtype: DataType) -> None:
    fd.add_output(fd.ops.cast(value, dtype=dtype))


def row_sum_of(fd: FusionDefinition, value: Any) -> Any:
    return fd.ops.sum(value, dims=[1], keepdim=True)


def softmax(fd: FusionDefinition, dtype: DataType) -> None:
    x = wide_matrix(fd, dtype)
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    output(fd, fd.ops.mul(e, fd.ops.reciprocal(row_sum_of(fd, e))), dtype)


def softmax_backward(fd: FusionDefinition, dtype: DataType) -> None:
    grad, y = wide_matrix(fd, dtype), wide_matrix(fd, dtype)
    product = fd.ops.mul(grad, y)
    output(fd, fd.ops.sub(product, fd.ops.mul(y, row_sum_of(fd, product))), dtype)


def rms(fd: FusionDefinition, x: Any) -> Any:
    """1 / sqrt(mean(x^2) + epsilon), along rows."""
    mean = fd.ops.mul(row_sum_of(fd, fd.ops.mul(x, x)), fd.ops.reciprocal(x.size(1)))
    return fd.ops.rsqrt(fd.ops.add(mean, 1e-6))


def rms_norm(fd: FusionDefinition, dtype: DataType) -> None:
    x, weight = wide_matrix(fd, dtype), wide_vector(fd, dtype)
    output(fd, fd.ops.mul(fd.ops.mul(x, rms(fd, x)), weight), dtype)


def add_rms_norm(fd: FusionDefinition, dtype: DataType) -> None:
    h = fd.ops.add(wide_matrix(fd, dtype), wide_matrix(fd, dtype))
    weight = wide_vector(fd, dtype)
    output(fd, fd.ops.mul(fd.ops.mul(h, rms(fd, h)), weight), dtype)
    output(fd, h, dtype)


def normalized(fd: FusionDefinition, x: Any, weight: Any, bias: Any, dtype: DataType) -> None:
    """Add the outputs of a layer norm: the result, mean, and 1 / standard deviation."""
    var, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    rstd = fd.ops.rsqrt(fd.ops.add(var, 1e-5))
    output(fd, fd.ops.add(fd.ops.mul(fd.ops.mul(fd.ops.sub(x, mean), rstd), weight), bias), dtype)
    fd.add_output(mean)
    fd.add_output(rstd)


def layer_norm(fd: FusionDefinition, dtype: DataType) -> None:
    normalized(fd, wide_matrix(fd, dtype), wide_vector(fd, dtype), wide_vector(fd, dtype), dtype)


def dropout_layer_norm(fd: FusionDefinition, dtype: DataType) -> None:
    x, residual = matrix(fd, dtype), wide_matrix(fd, dtype)
    weight, bias = wide_vector(fd, dtype), wide_vector(fd, dtype)
    mask = fd.ops.lt(fd.ops.uniform(0.0, 1.0, shape=x.shape(), dtype=DataType.Float), KEEP)
    kept = fd.ops.mul(fd.ops.mul(fd.ops.cast(x, dtype=DataType.Float), fd.ops.cast(mask, dtype=DataType.Float)), 1 / KEEP)
    normalized(fd, fd.ops.add(residual, kept), weight, bias, dtype)
    fd.add_output(mask)


def silu_mul(fd: FusionDefinition, dtype: DataType) -> None:
    x, y = wide_matrix(fd, dtype), wide_matrix(fd, dtype)
    output(fd, fd.ops.mul(fd.ops.mul(x, fd.ops.reciprocal(fd.ops.add(fd.ops.exp(fd.ops.neg(x)), 1.0))), y), dtype)


def gelu_bias(fd: FusionDefinition, dtype: DataType) -> None:
    z = fd.ops.add(wide_matrix(fd, dtype), wide_vector(fd, dtype))
    cube = fd.ops.mul(z, fd.ops.mul(z, z))
    t = fd.ops.tanh(fd.ops.mul(fd.ops.add(z, fd.ops.mul(cube, 0.044715)), 0.7978845608028654))
    output(fd, fd.ops.mul(fd.ops.mul(z, 0.5), fd.ops.add(t, 1.0)), dtype)


def row_sum(fd: FusionDefinition, dtype: DataType) -> None:
    output(fd, fd.ops.sum(wide_matrix(fd, dtype), dims=[1]), dtype)


def col_sum(fd: FusionDefinition, dtype: DataType) -> None:
    output(fd, fd.ops.sum(wide_matrix(fd, dtype), dims=[0]), dtype)


# ---------------------------------------------------------------- the same in torch; `wide` is the type computed in
def torch_softmax(x, wide=torch.float32):
    return [torch.softmax(x.to(wide), -1).to(x.dtype)]


def torch_softmax_backward(grad, y, wide=torch.float32):
    product = grad.to(wide) * y.to(wide)
    return [(product - y.to(wide) * product.sum(-1, keepdim=True)).to(grad.dtype)]


def torch_rms_norm(x, weight, wide=torch.float32):
    h = x.to(wide)
    return [(h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.to(wide)).to(x.dtype)]


def torch_add_rms_norm(x, y, weight, wide=torch.float32):
    h = x.to(wide) + y.to(wide)
    return [(h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.to(wide)).to(x.dtype), h.to(x.dtype)]


def torch_normalized(h, weight, bias, dtype):
    var, mean = torch.var_mean(h, -1, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + 1e-5)
    return [((h - mean) * rstd * weight.to(h.dtype) + bias.to(h.dtype)).to(dtype), mean, rstd]


def torch_layer_norm(x, weight, bias, wide=torch.float32):
    return torch_normalized(x.to(wide), weight, bias, x.dtype)


def torch_dropout_layer_norm(x, residual, weight, bias, wide=torch.float32, mask=None):
    mask = torch.rand_like(x, dtype=torch.float32) < KEEP if mask is None else mask
    h = residual.to(wide) + x.to(wide) * mask.to(wide) * (1 / KEEP)
    return [*torch_normalized(h, weight, bias, x.dtype), mask]


def torch_silu_mul(x, y, wide=torch.float32):
    return [(torch.nn.functional.silu(x.to(wide)) * y.to(wide)).to(x.dtype)]


def torch_gelu_bias(x, bias, wide=torch.float32):
    return [torch.nn.functional.gelu(x.to(wide) + bias.to(wide), approximate="tanh").to(x.dtype)]


def torch_row_sum(x, wide=torch.float32):
    return [x.to(wide).sum(1).to(x.dtype)]


def torch_col_sum(x, wide=torch.float32):
    return [x.to(wide).sum(0).to(x.dtype)]


# ---------------------------------------------------------------- cases
@dataclass(frozen=True)
class Case:
    """A fusion. matrices, vectors: its inputs, in this order. math: the same in torch, with a list of the outputs."""

    name: str
    family: str
    define: Callable[[FusionDefinition, DataType], None]
    math: Callable[..., list[torch.Tensor]]
    matrices: int = 1
    vectors: int = 0

    def definition(self, dtype: torch.dtype) -> FusionDefinition:
        """Return a new definition for inputs of `dtype` and any sizes."""
        with FusionDefinition() as fd:
            self.define(fd, NAMES[dtype])
        return fd

    def inputs(self, rows: int, columns: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Return random inputs."""
        shapes = [(rows, columns)] * self.matrices + [(columns,)] * self.vectors
        return [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]

    def error(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> float:
        """Return the largest |output - exact| / |exact| (L2 norm); random masks are taken from the outputs.

        Over the outputs that are as large as the first input (a mean is near 0, and its relative error says nothing), or the first output.
        """
        masks = {"mask": outputs[-1]} if outputs[-1].dtype is torch.bool else {}
        exact = self.math(*(t.double() for t in inputs), wide=torch.float64, **masks)
        pairs = list(zip(outputs, exact))
        compared = [pair for pair in pairs if pair[0].numel() == inputs[0].numel()] or pairs[:1]
        return max(float((o.double() - e.double()).norm() / e.double().norm()) for o, e in compared)


CASES = (
    Case("softmax", "softmax", softmax, torch_softmax),
    Case("softmax_backward", "softmax", softmax_backward, torch_softmax_backward, matrices=2),
    Case("rms_norm", "norm", rms_norm, torch_rms_norm, vectors=1),
    Case("layer_norm", "norm", layer_norm, torch_layer_norm, vectors=2),
    Case("add_rms_norm", "residual norm", add_rms_norm, torch_add_rms_norm, matrices=2, vectors=1),
    Case("dropout_layer_norm", "random numbers", dropout_layer_norm, torch_dropout_layer_norm, matrices=2, vectors=2),
    Case("silu_mul", "pointwise", silu_mul, torch_silu_mul, matrices=2),
    Case("gelu_bias", "broadcast pointwise", gelu_bias, torch_gelu_bias, vectors=1),
    Case("row_sum", "inner reduction", row_sum, torch_row_sum),
    Case("col_sum", "outer reduction", col_sum, torch_col_sum),
)
BY_NAME = {case.name: case for case in CASES}
