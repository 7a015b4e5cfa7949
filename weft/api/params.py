"""Parameters under nvFuser's names: what a user may read, set and compare.

Owns plain mutable records. Our schedulers choose frozen params of their own (`weft.schedulers`); these are the form that the API shows.
Read first: `HeuristicParams`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, ClassVar

from ..dtypes import DataType
from ..errors import UserError, shown
from ..ir.enums import ParallelType, SchedulerType

UNSET = -1
"""A launch dimension that is not chosen."""


class NotALaunchSize(UserError, TypeError):
    code = "W195"
    what = "LaunchParams: {name} is {value}, which is no number of blocks or threads"
    fix = "pass a whole number of at least 1, or omit {name}, which means -1: not chosen"


@dataclass
class LaunchParams:
    """Sizes of the grid in blocks and of the block in threads; -1 where none is chosen. Errors: NotALaunchSize, also when one is assigned."""

    gdimx: int = UNSET
    gdimy: int = UNSET
    gdimz: int = UNSET
    bdimx: int = UNSET
    bdimy: int = UNSET
    bdimz: int = UNSET

    def __setattr__(self, name: str, value: Any) -> None:
        is_size = isinstance(value, Integral) and not isinstance(value, bool) and (value == UNSET or int(value) > 0)
        if name in LaunchParams.__dataclass_fields__ and not is_size:
            raise NotALaunchSize(name=name, value=shown(value))
        super().__setattr__(name, value)


@dataclass(kw_only=True)
class CompileParams:
    """How a kernel is compiled. index_type: Int or Int32, None to choose by the sizes. maxrregcount: registers per thread at most.

    bdimx, bdimy, bdimz: the block, where its axes are symbolic; compute_bdimx and so on: the same without async warps.
    """

    index_type: DataType | None = None
    maxrregcount: int = 255
    enable_magic_zero: bool = True
    enable_ptxas_verbose: bool = False
    device: Any = None
    include_paths: list[str] = field(default_factory=list)
    bdimx: int = UNSET
    bdimy: int = UNSET
    bdimz: int = UNSET
    compute_bdimx: int = UNSET
    compute_bdimy: int = UNSET
    compute_bdimz: int = UNSET


@dataclass
class HeuristicParams:
    """What a scheduler decided. `hash()` is equal for equal params."""

    kind: ClassVar[SchedulerType] = SchedulerType.none
    lparams: LaunchParams = field(default_factory=LaunchParams)
    cparams: CompileParams = field(default_factory=CompileParams)

    @property
    def scheduler_type(self) -> SchedulerType:
        """The scheduler that these are for."""
        return self.kind

    def hash(self) -> int:
        return hash((type(self).__name__, *(repr(getattr(self, f.name)) for f in fields(self))))


@dataclass
class PointwiseParams(HeuristicParams):
    """Parameters of the pointwise scheduler. break_point: axes before it are the outer part of a two-dimensional schedule."""

    kind: ClassVar[SchedulerType] = SchedulerType.pointwise
    break_point: int = 0
    split_block: bool = False
    split_grid_y_dim: bool = False
    flip_grid_binding: bool = False
    vectorization_factor: int = 1
    unroll_factor_inner: int = 1
    unroll_factor_outer: int = 1


@dataclass
class ReductionParams(HeuristicParams):
    """Parameters of the reduction and persistent schedulers."""

    kind: ClassVar[SchedulerType] = SchedulerType.reduction
    fastest_dim: bool = False
    persistent_kernel: bool = False
    project_persistent_buffers: bool = False
    schedule_3D: bool = False
    flip_grid: bool = False
    cross_block_inner_reduction: bool = False
    cross_grid_inner_reduction: bool = False
    unroll_factor_inner_reduction: int = 1
    unroll_factor_top_of_vectorization: int = 1
    vectorize_inner_reduction: bool = False
    split_grid_dim_inner_reduction: bool = False
    pad_inner_reduction_to_warp: bool = False
    batches_per_block_inner_reduction: int = 1
    block_dim_inner_reduction: ParallelType = ParallelType.serial
    grid_dim_inner_reduction: ParallelType = ParallelType.serial
    multiple_reds_per_blk: bool = False
    unroll_factor_iter_dom: int = 1
    vectorize_iter_dom: bool = False
    split_grid_dim_iter_dom_inner: bool = False
    split_grid_dim_iter_dom_outer: bool = False
    block_dim_iter_dom: ParallelType = ParallelType.serial
    grid_dim_iter_dom: ParallelType = ParallelType.serial
    cross_block_outer_reduction: bool = False
    cross_grid_outer_reduction: bool = False
    batches_per_block_outer_reduction: int = 1
    unroll_factor_outer_reduction: int = 1
    block_dim_outer_reduction: ParallelType = ParallelType.serial
    grid_dim_outer_reduction: ParallelType = ParallelType.serial
    compute_persistent_buffer_with_first_consumer: bool = False
    static_bdimx: bool = False
    static_bdimy: bool = False
    combined_inner_outer: bool = False
    tidx_for_outer_reduction: bool = False
    pad_outer_reduction_to_warp: bool = False
    combined_split_grid_inner_dim: bool = False
    vectorization_factor_outer: int = 1
    vectorization_factor_tmp_gmem_write: int = 1
    block_dim_inner_reduction_extra: ParallelType = ParallelType.serial
