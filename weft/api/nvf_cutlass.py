"""The `nvf_cutlass` namespace: every name is there, and raises Unsupported when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Unsupported

__all__ = ["grouped_mm", "mxfp8_scaled_mm", "nvfp4_scaled_grouped_mm", "nvfp4_scaled_mm", "nvfp4_scaled_mm_blockscale"]


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"nvf_cutlass.{name}", remedy="use torch's own matrix products")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Not in this version."
    return refuse


for _name in __all__:
    globals()[_name] = _refused(_name)
