"""`Fusion.print_math` and `Fusion.print_kernel`. Importing this module adds them."""

from __future__ import annotations

from typing import Any

from ..ir.fusion import Fusion
from ..ir.printing import math_text


def print_math(self: Fusion, from_outputs_only: bool = True) -> str:
    """Return the expressions of the fusion as text; with `from_outputs_only` False also those that no output needs."""
    return math_text(self, from_outputs_only)


def print_kernel(self: Fusion, compile_params: Any = None) -> str:
    """Return the CUDA text of the fusion as it is scheduled now. `compile_params.index_type` chooses the index type (Int when None)."""
    from ..compiler import program_of_scheduled
    from ..dtypes import DataType

    index_type = getattr(compile_params, "index_type", None) or DataType.Int
    return program_of_scheduled(self, index_type, name="kernel").text


Fusion.print_math, Fusion.print_kernel = print_math, print_kernel  # type: ignore[attr-defined]
