"""Floats of 8 and 4 bits in torch: values from tensors in memory, rounding to their grid, and back. Independent of the device library.

torch computes with none of them, differs from release to release in what overflow gives, and has no conversion of 4 bits; so values are kept as float32 or
float64 here, and codes are counted from the grid of all values. Read first: `rounded`, `values_of`, `packed`.
"""

from __future__ import annotations

import functools

import torch

from ..dtypes import DataType


@functools.lru_cache(maxsize=None)
def grid(dtype: DataType) -> torch.Tensor:
    """Return the finite values without sign, smallest first, so that a value's place is its code. Shapes: [codes], float64."""
    if dtype is DataType.Float8_e8m0fnu:
        return torch.tensor([2.0 ** (code - 127) for code in range(255)], dtype=torch.float64)
    record = dtype.record
    bias, steps, largest = 2 ** (record.exponent_bits - 1) - 1, 2**record.mantissa_bits, record.largest
    values: list[float] = []
    while not values or values[-1] < largest:
        exponent, mantissa = divmod(len(values), steps)
        values.append(mantissa / steps * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa / steps) * 2.0 ** (exponent - bias))
    return torch.tensor(values, dtype=torch.float64)


def codes_of(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Return the codes of floats, by way of float32: nearest, ties to even, saturating; of e8m0 the next power of two. Shapes: as given, uint8."""
    x = values.to(torch.float32).to(torch.float64)
    table, size, is_nan = grid(dtype).to(x.device), x.abs(), x.isnan()
    if dtype is DataType.Float8_e8m0fnu:
        codes = torch.searchsorted(table, size).clamp(max=254)
        return torch.where(is_nan, 255, codes).to(torch.uint8)
    middles = (table[1:] + table[:-1]) / 2
    below, above = torch.searchsorted(middles, size), torch.searchsorted(middles, size, right=True)
    codes = torch.where(below % 2 == 0, below, above)  # they differ at ties only, by one
    signed = codes + torch.signbit(x) * (1 << (dtype.bits - 1))
    return torch.where(is_nan, 7 if dtype is DataType.Float4_e2m1fn else 0x7F, signed).to(torch.uint8)


def values_of_codes(codes: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Return the values of codes. Shapes: as given, float64."""
    half = 255 if dtype is DataType.Float8_e8m0fnu else 1 << (dtype.bits - 1)
    table = torch.full((half,), float("nan"), dtype=torch.float64)
    table[: len(grid(dtype))] = grid(dtype)
    if dtype.record.has_infinity:
        table[len(grid(dtype))] = float("inf")
    full = torch.cat([table, torch.full((1,), float("nan"), dtype=torch.float64)]) if dtype is DataType.Float8_e8m0fnu else torch.cat([table, -table])
    return full.to(codes.device)[codes.to(torch.int64)]


def rounded(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Return floats rounded to the values of a narrow type, in the type that they have."""
    return values_of_codes(codes_of(values, dtype), dtype).to(values.dtype)


def values_of(tensor: torch.Tensor, dtype: DataType, packed_dim: int = -1) -> torch.Tensor:
    """Return the values of a tensor in memory, float64; one of 4 bits has twice the elements along `packed_dim`."""
    codes = tensor.detach().contiguous().view(torch.uint8) if packed_dim in (-1, tensor.dim() - 1) else tensor.detach().view(torch.uint8)
    if dtype is DataType.Float4_e2m1fn:
        codes = torch.stack([codes & 15, codes >> 4], dim=packed_dim % codes.dim() + 1).flatten(packed_dim % codes.dim(), packed_dim % codes.dim() + 1)
    return values_of_codes(codes, dtype)


def packed(values: torch.Tensor, dtype: DataType, packed_dim: int = -1) -> torch.Tensor:
    """Return floats as a tensor in memory of torch's type for `dtype`."""
    from .torch_types import torch_dtype

    codes = codes_of(values, dtype)
    if dtype is DataType.Float4_e2m1fn:
        pairs = codes.movedim(packed_dim, -1).unflatten(-1, (-1, 2))
        codes = (pairs[..., 0] | pairs[..., 1] << 4).contiguous().view(torch_dtype(dtype))
        return codes.movedim(-1, packed_dim)
    return codes.view(torch_dtype(dtype))
