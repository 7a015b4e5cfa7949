"""The cast between element types, as data.

Conversions follow C++ with round to nearest even for narrower floats; `weft::convert` is in the device library's block `cast`. Floats of 8 and 4 bits
saturate; `weft::convert_narrow` is in the block `narrow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import CUDA_NAMES, DataType
from .promotion import Rule
from .registry import OpDef, define


@dataclass(frozen=True)
class CastDef(OpDef):
    """The op `cast`: computes in the type of its operand, returns the type of its attribute `dtype`."""

    def cuda(self, args: Sequence[str], compute: DataType, out: DataType | None = None, *, is_narrow: bool = False) -> str:
        assert out is not None, "cast needs the type of its result"
        if compute.is_narrow_float or out.is_narrow_float:
            return f"weft::convert_narrow<{CUDA_NAMES[out]}>({args[0]})"
        return f"weft::convert<{CUDA_NAMES.get(out, 'long long')}>({args[0]})"

    def blocks_for(self, compute: DataType) -> tuple[str, ...]:
        return (*self.blocks, "complex") if compute.is_complex else self.blocks


def _same(x: Any) -> Any:
    return x  # the interpreter and the scalar expression coerce to their own types


CAST = define(
    CastDef(
        "cast", 1, Rule.keep, {"any": "weft::convert<{O}>({0})"}, _same, python=_same, blocks=("cast",), flops=1, source="docs/kernel_text.md, Types",
        gradient=lambda o, g, y, x: o.cast(g, x.dtype()),
    )
)  # fmt: skip
