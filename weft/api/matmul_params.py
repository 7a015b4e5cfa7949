"""Parameters of the matmul scheduler under nvFuser's names. Records only: this version has no matmul scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..ir.enums import SchedulerType
from .enums import MatmulBufferingLoopLevel, MatmulCircularBufferingStrategy, MatmulTileRasterizationOrder, MatmulTilingStrategy, MmaMacroArch
from .params import HeuristicParams


@dataclass
class GemmTile:
    """Sizes of a tile in elements."""

    m: int
    n: int
    k: int


@dataclass
class MatMulTileOptions:
    cta_tile: GemmTile = field(default_factory=lambda: GemmTile(128, 128, 32))
    warp_tile: GemmTile = field(default_factory=lambda: GemmTile(64, 64, 32))


@dataclass
class CircularBufferOptions:
    circular_buffer_smem_read: bool = False
    circular_buffer_smem_write: bool = False
    smem_circular_buffer_stage: int = 2
    smem_circular_buffer_prefetch_gap: int = 1


@dataclass
class SupportedVectorization:
    """Vector widths in elements."""

    a: int
    b: int
    epilogue: int


@dataclass
class ClusterDims:
    """Sizes of a cluster in blocks."""

    m: int = 1
    n: int = 1


@dataclass
class MmaMacro:
    """One matrix instruction: its generation and its sizes."""

    arch: MmaMacroArch = MmaMacroArch.no_mma
    m: int = 0
    n: int = 0
    k: int = 0


@dataclass
class MmaMacroEncode:
    arch: MmaMacroArch
    m: int
    n: int
    k: int

    def mma_macro(self) -> MmaMacro:
        return MmaMacro(self.arch, self.m, self.n, self.k)


@dataclass
class MatmulParams(HeuristicParams):
    kind: ClassVar[SchedulerType] = SchedulerType.matmul
    tile_sizes: MatMulTileOptions = field(default_factory=MatMulTileOptions)
    circular_buffer_options: CircularBufferOptions = field(default_factory=CircularBufferOptions)
    supported_vec_size: SupportedVectorization = field(default_factory=lambda: SupportedVectorization(1, 1, 1))
    async_gmem_load_operands: bool = False
    grid_traversal_factor: tuple[int, int] = (1, 1)
    use_smem_epilogue: bool = False
    use_ldst_matrix: bool = False
    promote_prologue_smem_reuse: bool = False
    splitk_factor: int = 1
    tiling_strategy: MatmulTilingStrategy = MatmulTilingStrategy.one_tile_per_cta
    buffering_loop_level: MatmulBufferingLoopLevel = MatmulBufferingLoopLevel.cta_tiles
    circular_buffering_strategy: MatmulCircularBufferingStrategy = MatmulCircularBufferingStrategy.pipelined
    cta_order: MatmulTileRasterizationOrder = MatmulTileRasterizationOrder.row_major
    cluster_dims: ClusterDims = field(default_factory=ClusterDims)
    mma_macro: MmaMacro = field(default_factory=MmaMacro)
