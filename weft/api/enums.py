"""Enumerations that only the front end names; the IR's own are in `weft.ir.enums`.

Plain enumerations (never IntEnum): `not SchedulerType.none` is False, as with nvFuser's.
"""

from __future__ import annotations

from enum import Enum

from ..dtypes import DataType
from ..ir.enums import CacheOp, IdMappingMode, LoadStoreOpType, MemoryType, ParallelType, SchedulerType


class CommunicatorBackend(Enum):
    nccl = "nccl"
    ucc = "ucc"
    cuda = "cuda"


class MatmulTilingStrategy(Enum):
    one_tile_per_cta = "one_tile_per_cta"
    distribute_tiles_across_sms = "distribute_tiles_across_sms"
    distribute_stages_across_sms = "distribute_stages_across_sms"


class MatmulBufferingLoopLevel(Enum):
    cta_tiles = "cta_tiles"
    warp_tiles = "warp_tiles"


class MatmulCircularBufferingStrategy(Enum):
    pipelined = "pipelined"
    warp_specialized = "warp_specialized"


class MatmulTileRasterizationOrder(Enum):
    column_major = "column_major"
    row_major = "row_major"


class MmaMacroArch(Enum):
    no_mma = "no_mma"
    volta = "volta"
    turing = "turing"
    ampere = "ampere"
    hopper = "hopper"
    blackwell_1cta = "blackwell_1cta"
    blackwell_2cta = "blackwell_2cta"


ENUMS: tuple[type[Enum], ...] = (
    DataType, ParallelType, SchedulerType, LoadStoreOpType, MemoryType, CacheOp, IdMappingMode, CommunicatorBackend, MatmulTilingStrategy,
    MatmulBufferingLoopLevel, MatmulCircularBufferingStrategy, MatmulTileRasterizationOrder, MmaMacroArch,
)  # fmt: skip


def _list_entries(enum: type[Enum]) -> None:
    """Give the enumeration `__entries`: name -> (member, its documentation)."""
    if "__entries" not in enum.__dict__:
        setattr(enum, "__entries", {member.name.rstrip("_"): (member, None) for member in enum})


for _enum in ENUMS:
    _list_entries(_enum)

__all__ = [
    "ENUMS", "CacheOp", "CommunicatorBackend", "DataType", "IdMappingMode", "LoadStoreOpType", "MatmulBufferingLoopLevel", "MatmulCircularBufferingStrategy",
    "MatmulTileRasterizationOrder", "MatmulTilingStrategy", "MemoryType", "MmaMacroArch", "ParallelType", "SchedulerType",
]  # fmt: skip
