"""torch's types for the data types of a fusion, as they lie in memory."""

from __future__ import annotations

import torch

from ..dtypes import DataType

_D = DataType
TORCH_TYPES: dict[DataType, torch.dtype] = {
    _D.Double: torch.float64, _D.Float: torch.float32, _D.Half: torch.float16, _D.BFloat16: torch.bfloat16, _D.Int: torch.int64, _D.Index: torch.int64,
    _D.Int32: torch.int32, _D.UInt64: torch.uint64, _D.Bool: torch.bool, _D.ComplexFloat: torch.complex64, _D.ComplexDouble: torch.complex128,
    _D.Float8_e4m3fn: torch.float8_e4m3fn, _D.Float8_e5m2: torch.float8_e5m2, _D.Float8_e8m0fnu: torch.float8_e8m0fnu,
}  # fmt: skip
NAMES: dict[torch.dtype, str] = {torch_type: dtype.value for dtype, torch_type in TORCH_TYPES.items() if dtype is not DataType.Index}
"""torch type -> the fusion's name of it, for messages."""
