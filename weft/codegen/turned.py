"""CUDA text of tiles that are moved whole, turned (device/turned.cuh).

`writer` is the CudaWriter of the kernel. Read first: `write_turned_tile`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import CUDA_NAMES
from ..expr import ZERO, equal
from ..lower.kernel_ir import TurnTile


def write_turned_tile(writer: Any, s: TurnTile, depth: int) -> None:
    """Write the call that moves a tile."""
    writer.blocks["turned"] = None
    target, source = s.outputs[0], s.operands[0]
    index = writer.scalars.index
    place = writer.in_shared(s.workspace, "unsigned char")
    sizes = f"{index(s.to_step)}, {index(s.from_step)}, {index(s.rows)}, {index(s.columns)}, {writer.scalars.condition(equal(s.first_row, ZERO))}"
    kind = f"{s.tile_elems}, {s.tile_elems}, {s.threads}, {s.lanes}, {CUDA_NAMES[target.buffer.dtype]}"
    writer.call(depth, f"weft::turn_tile<{kind}>({writer.address(target)}, {writer.address(source)}, {sizes}, {place});")


__all__ = ["write_turned_tile"]
