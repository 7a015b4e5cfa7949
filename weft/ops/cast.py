"""The casts between element types, as data: of values, and of bits.

Conversions follow C++ with round to nearest even for narrower floats; `weft::convert` is in the device library's block `cast`. Floats of 8 and 4 bits
saturate; `weft::convert_narrow` is in the block `narrow`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import CUDA_NAMES, DataType
from .promotion import Result, Rule
from .registry import OpDef, define, torch


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


@dataclass(frozen=True)
class BitcastDef(OpDef):
    """The op `bitcast`, between Float and Int32: the types of 32 bits that numbers are computed in."""

    def _template(self, compute: DataType) -> str | None:
        return self.text["any"] if compute in (DataType.Float, DataType.Int32) else None


def _bits(x: Any) -> Any:
    return x.to(torch.float32).view(torch.int32) if x.is_floating_point() else x.to(torch.int32).view(torch.float32)


def _bits_of_number(x: Any) -> Any:
    return struct.unpack("<f", struct.pack("<i", x))[0] if isinstance(x, int) else struct.unpack("<i", struct.pack("<f", x))[0]


BITCAST = define(
    BitcastDef(
        "bitcast", 1, Rule.bits, {"any": "weft::bit_cast<{O}>(({T})({0}))"}, _bits, result=Result.bits, python=_bits_of_number, is_steep=True,
        source="torch.Tensor.view(dtype): the same bits as a number of the other type",
    )
)  # fmt: skip
