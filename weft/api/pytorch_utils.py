"""Between torch and the front end: data types, device properties, and what to do when memory runs out.

Owns the last two; the table of types is `weft.reference.torch_types`.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch

from ..reference.torch_types import python_scalar_to_nvfuser_dtype, torch_dtype_to_nvfuser_dtype

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


__all__ = ["get_device_properties", "python_scalar_to_nvfuser_dtype", "retry_on_oom_or_skip_test", "torch_dtype_to_nvfuser_dtype"]
