"""torch's element types and `DataType`, both ways.

Owns the two maps. Importing this module imports torch.
"""

from __future__ import annotations

import torch

from ..dtypes import DataType
from ..errors import UserError

_D = DataType
_TO_TORCH: dict[DataType, torch.dtype] = {
    _D.ComplexDouble: torch.complex128, _D.ComplexFloat: torch.complex64, _D.Double: torch.float64, _D.Float: torch.float32, _D.Half: torch.float16,
    _D.BFloat16: torch.bfloat16, _D.Int: torch.int64, _D.Int32: torch.int32, _D.Bool: torch.bool,
}  # fmt: skip
for _dtype, _name in (
    (_D.Float8_e4m3fn, "float8_e4m3fn"), (_D.Float8_e5m2, "float8_e5m2"), (_D.Float8_e8m0fnu, "float8_e8m0fnu"), (_D.Float4_e2m1fn_x2, "float4_e2m1fn_x2"),
):  # fmt: skip
    if hasattr(torch, _name):  # torch releases differ in the narrow floats that they have
        _TO_TORCH[_dtype] = getattr(torch, _name)
_FROM_TORCH = {t: d for d, t in _TO_TORCH.items()}
_FROM_PYTHON: dict[type, DataType] = {complex: _D.ComplexDouble, float: _D.Double, int: _D.Int, bool: _D.Bool}


class NoSuchType(UserError):
    code = "W350"
    what = "{given} has no counterpart in {side}"
    fix = "use one of: {known}"


def torch_dtype_to_nvfuser_dtype(dtype: torch.dtype | type) -> DataType:
    """Return the DataType of a torch dtype, or of a Python number type. Errors: NoSuchType."""
    found = _FROM_PYTHON.get(dtype) if isinstance(dtype, type) else _FROM_TORCH.get(dtype)
    if found is None:
        raise NoSuchType(given=dtype, side="DataType", known=", ".join(map(str, _FROM_TORCH)))
    return found


def python_scalar_to_nvfuser_dtype(value: complex | float | int | bool) -> DataType:
    """Return the DataType of a Python number. Errors: NoSuchType."""
    found = _FROM_PYTHON.get(type(value))
    if found is None:
        raise NoSuchType(given=type(value).__name__, side="DataType", known="complex, float, int, bool")
    return found


_MORE = {_D.Index: torch.int64, _D.UInt64: getattr(torch, "uint64", torch.int64)}


def torch_dtype(dtype: DataType) -> torch.dtype:
    """Return the torch dtype of a DataType (Index is int64). Errors: NoSuchType."""
    found = _TO_TORCH.get(dtype) or _MORE.get(dtype)
    if found is None:
        raise NoSuchType(given=dtype, side="torch", known=", ".join(map(str, _TO_TORCH)))
    return found
