"""The `nvf_cutlass` namespace: every name is there, and raises Unsupported when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Unsupported


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"nvf_cutlass.{name}", remedy="use torch's own matrix products")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Not in this version."
    return refuse


grouped_mm = _refused("grouped_mm")
mxfp8_scaled_mm = _refused("mxfp8_scaled_mm")
nvfp4_scaled_grouped_mm = _refused("nvfp4_scaled_grouped_mm")
nvfp4_scaled_mm = _refused("nvfp4_scaled_mm")
nvfp4_scaled_mm_blockscale = _refused("nvfp4_scaled_mm_blockscale")
