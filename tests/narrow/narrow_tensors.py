"""Tensors of narrow floats for tests: random codes, and the values that they stand for."""

from __future__ import annotations

import torch

from weft import DataType
from weft.reference import narrow
from weft.reference.torch_types import torch_dtype

FP4 = DataType.Float4_e2m1fn
NARROW = (DataType.Float8_e4m3fn, DataType.Float8_e5m2, DataType.Float8_e8m0fnu, FP4)
BESIDE = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16)
_FINITE_CODES = {DataType.Float8_e4m3fn: 0x7F, DataType.Float8_e5m2: 0x7C, DataType.Float8_e8m0fnu: 255}


def generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def random_codes(shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    """A tensor in memory of finite codes, logical sizes `shape`; e8m0 near 1."""
    draw = generator(*shape, dtype.bits)
    if dtype is FP4:
        return torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8, generator=draw).view(torch_dtype(dtype))
    low, high = (117, 138) if dtype is DataType.Float8_e8m0fnu else (0, _FINITE_CODES[dtype])
    codes = torch.randint(low, high, shape, dtype=torch.uint8, generator=draw)
    if dtype is not DataType.Float8_e8m0fnu:
        codes |= torch.randint(0, 2, shape, dtype=torch.uint8, generator=draw) << 7
    return codes.view(torch_dtype(dtype))


def random_values(shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    return (torch.randn(shape, generator=generator(*shape)) * 3).to(torch_dtype(dtype))


def random_tensor(shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
    return random_codes(shape, dtype) if dtype.is_narrow_float else random_values(shape, dtype)


def values(tensor: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """The values of a tensor in memory, in float64."""
    return narrow.values_of(tensor, dtype) if dtype.is_narrow_float else tensor.to(torch.float64)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, a.shape, b.dtype, b.shape)
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
