"""torch's element types and `DataType`, both ways.

Owns the two maps. Importing this module imports torch.
"""

from __future__ import annotations

import torch

from ..dtypes import RECORDS, TORCH_NAMES, DataType
from ..errors import UserError

_D = DataType
_TO_TORCH: dict[DataType, torch.dtype] = {
    dtype: getattr(torch, record.torch)  # torch releases differ in the narrow floats that they have
    for dtype, record in RECORDS.items()
    if record.torch and hasattr(torch, record.torch)
}
_FROM_TORCH = {getattr(torch, name): dtype for name, dtype in TORCH_NAMES.items() if hasattr(torch, name) and dtype is not _D.UInt64}  # of seeds only
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


def is_known(dtype: torch.dtype) -> bool:
    """Tell whether a torch dtype has a DataType."""
    return dtype in _FROM_TORCH


def python_scalar_to_nvfuser_dtype(value: complex | float | int | bool) -> DataType:
    """Return the DataType of a Python number. Errors: NoSuchType."""
    found = _FROM_PYTHON.get(type(value))
    if found is None:
        raise NoSuchType(given=type(value).__name__, side="DataType", known="complex, float, int, bool")
    return found


def torch_dtype(dtype: DataType) -> torch.dtype:
    """Return the torch dtype of a DataType (Index is int64; types of 4 bits are torch's pairs of them). Errors: NoSuchType."""
    found = _TO_TORCH.get(dtype)
    if found is None:
        raise NoSuchType(given=dtype, side="torch", known=", ".join(map(str, _TO_TORCH)))
    return found
