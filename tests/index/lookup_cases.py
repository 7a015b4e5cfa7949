"""Definitions with lookups, beside what torch says they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.expr import const, var
from weft.ir.graph_ops import Along, Position
from weft.ir.values import TensorView
from weft.ops import build, lookups

TYPES = {
    torch.float32: DataType.Float, torch.float64: DataType.Double, torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half,
    torch.int64: DataType.Int, torch.int32: DataType.Int32, torch.bool: DataType.Bool, torch.complex64: DataType.ComplexFloat,
}  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    if dtype in (torch.int64, torch.int32):
        return torch.randint(-50, 50, shape, generator=generator, dtype=dtype)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randn(shape, generator=generator, dtype=dtype)


def places(below: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(below + sum(shape)), dtype=dtype)


def declare(fd: FusionDefinition, x: torch.Tensor) -> TensorView:
    """Declare a tensor with symbolic sizes and x's strides: contiguous where they are."""
    contiguity, running = [], 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride())):
        contiguity.append(stride == running)
        running = size * stride
    return fd.define_tensor([-1] * x.dim(), contiguity=contiguity[::-1], dtype=TYPES[x.dtype])


def run(define: Callable[..., Any], inputs: Sequence[torch.Tensor], wanted: torch.Tensor | Sequence[torch.Tensor], tolerance: float = 0.0) -> FusionDefinition:
    """Execute a definition over `inputs`, compare with `wanted` and with the interpreter; what a kernel does not write is NaN."""
    with FusionDefinition() as fd:
        out = define(fd, *(declare(fd, x) for x in inputs))
        for tensor in out if isinstance(out, tuple) else (out,):
            fd.add_output(tensor)
    with poisoned_outputs():
        results = fd.execute(list(inputs))
        fd.validate(list(inputs))
    for result, want in zip(results, [wanted] if isinstance(wanted, torch.Tensor) else wanted, strict=True):
        assert result.shape == want.shape
        if tolerance:
            torch.testing.assert_close(result, want.to(result.dtype), rtol=tolerance, atol=tolerance)
        else:
            assert torch.equal(result, want.to(result.dtype))
    return fd


def window(fd: FusionDefinition, x: TensorView, lows: Sequence[int], sizes: Sequence[Any], fill: float | None = None) -> TensorView:
    """x[low : low + size] along each axis, as slice and pad make it; `fill` outside of x. A size of None is the axis' own."""
    fusion = fd.fusion
    axes, positions = [], []
    for d, (axis, low, size) in enumerate(zip(build.logical_axes(x), lows, sizes)):
        axes.append(fusion.copy_axis(axis) if size is None else fusion.new_axis(size if not isinstance(size, int) else const(size)))
        positions.append(Along(d, const(low)))
    typed: list[Position] = list(positions)
    scalar = None if fill is None else build.constant(fusion, fill, x.dtype())
    return lookups.add_lookup(fusion, "slice" if fill is None else "pad", x, axes, typed, fill=scalar)


def kernel_text(fd: FusionDefinition, *inputs: torch.Tensor) -> str:
    """The CUDA text of the kernel that ran for these inputs."""
    return fd.fec.get_cuda_kernel(list(inputs))  # type: ignore[attr-defined,no-any-return]


__all__ = ["TYPES", "declare", "kernel_text", "numbers", "places", "run", "var", "window"]
