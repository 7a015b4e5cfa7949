"""Between torch and the front end: data types, device properties, and what to do when memory runs out.

Owns the table of torch's types.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch

from ..dtypes import DataType
from ..errors import UserError
from .inputs import python_dtype

_TORCH_DTYPES: dict[Any, DataType] = {
    torch.cdouble: DataType.ComplexDouble, torch.cfloat: DataType.ComplexFloat, torch.double: DataType.Double, torch.float: DataType.Float,
    torch.half: DataType.Half, torch.bfloat16: DataType.BFloat16, torch.float8_e4m3fn: DataType.Float8_e4m3fn,
    torch.float8_e5m2: DataType.Float8_e5m2, torch.long: DataType.Int, torch.int: DataType.Int32, torch.bool: DataType.Bool,
}  # fmt: skip
for _name, _dtype in {"float8_e8m0fnu": DataType.Float8_e8m0fnu, "float4_e2m1fn_x2": DataType.Float4_e2m1fn_x2}.items():
    if hasattr(torch, _name):  # not in the oldest torch that is supported
        _TORCH_DTYPES[getattr(torch, _name)] = _dtype
_PYTHON_TYPES = (complex, float, int, bool)


class UnknownType(UserError, TypeError):
    code = "W140"
    what = "{kind} {value} has no data type of a fusion"
    fix = "use one of {known}"


def torch_dtype_to_nvfuser_dtype(dtype: Any) -> DataType:
    """Return the data type of a torch.dtype, or of one of the Python types complex, float, int, bool.

    Errors: UnknownType.
    """
    found = _TORCH_DTYPES.get(dtype)
    if found is None and isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        found = python_dtype(dtype())
    if found is None:
        raise UnknownType(kind="torch type", value=dtype, known=", ".join(map(str, _TORCH_DTYPES)))
    return found


def python_scalar_to_nvfuser_dtype(value: Any) -> DataType:
    """Return the data type of a Python number (complex ComplexDouble, float Double, int Int, bool Bool), or of its type.

    Errors: UnknownType.
    """
    if isinstance(value, type) and value in _PYTHON_TYPES:
        return python_dtype(value())
    if isinstance(value, _PYTHON_TYPES):
        return python_dtype(value)
    raise UnknownType(kind="scalar", value=repr(value), known="complex, float, int, bool")


def retry_on_oom_or_skip_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a test: when GPU memory runs out, free what is cached and try again; if it runs out again, skip the test."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            import pytest

            pytest.skip(f"out of GPU memory: {error}")

    return wrapper


@functools.cache
def get_device_properties() -> dict[str, Any]:
    """Return what the benchmarks want to know of the current device; {} without one.

    gpu_peak_bandwidth_gbps is 2 * bus width in bytes * memory clock.
    """
    if not torch.cuda.is_available():
        return {}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bus_bits = getattr(properties, "memory_bus_width", 0)
    return {
        "gpu_name": properties.name,
        "gpu_compute_capability_major": properties.major,
        "gpu_compute_capability_minor": properties.minor,
        "gpu_gmem_bytes": properties.total_memory,
        "gpu_sm_count": properties.multi_processor_count,
        "gpu_mem_clock_khz": clock_khz,
        "gpu_mem_bus_width": bus_bits,
        "gpu_peak_bandwidth_gbps": 2 * bus_bits * clock_khz / 8e6,
        "l2_size_bytes": getattr(properties, "L2_cache_size", 0),
    }


def __getattr__(name: str) -> Any:
    if name == "DEVICE_PROPERTIES":
        return get_device_properties()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
