"""`Fusion.print_math` and `Fusion.print_kernel`. Importing this module adds them."""

from __future__ import annotations

from typing import Any

from ..ir.fusion import Fusion
from ..ir.printing import math_text
from .kernel_words import in_nvfusers_words


def print_math(self: Fusion, from_outputs_only: bool = True) -> str:
    """Return the expressions of the fusion as text; with `from_outputs_only` False also those that no output needs."""
    return math_text(self, from_outputs_only)


def print_kernel(self: Fusion, compile_params: Any = None) -> str:
    """Return the CUDA text of the fusion as it is scheduled now, indices as nvFuser writes them. `compile_params.index_type`: their type (Int when None)."""
    from ..compiler import program_of_scheduled
    from ..dtypes import DataType

    index_type = getattr(compile_params, "index_type", None) or DataType.Int
    text = program_of_scheduled(self, index_type, name="kernel").text
    return in_nvfusers_words(text) if index_type is DataType.Int else text


Fusion.print_math, Fusion.print_kernel = print_math, print_kernel  # type: ignore[attr-defined]
