"""The parameters of the template in `inner_outer.py`. Read first: `InnerOuterParams`."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.enums import ParallelType
from .arithmetic import ceil_div

LOADS = ("now", "ahead", "cp_async", "tma")
"""How rows are loaded; see `InnerOuterParams`."""


@dataclass(frozen=True, slots=True)
class InnerOuterParams:
    """A schedule of rows and columns; equal params (with equal structure, index type and device) mean the same kernel.

    vector_elems, batches: of a row (or of a block's piece of it), per thread. lanes, threads_y: threads of a row, along TIDx and TIDy; columns of the results
    are bound to TIDx at the end. groups: rows side by side in a block, on TIDz. row_unroll: rows of a thread at once. blocks: staying blocks of the grid, or
    clusters. cluster_blocks: blocks that share a row. project_to_inputs: keep inputs instead of what is computed from them.
    loads: rows are loaded when needed ("now"), an iteration "ahead" into registers, or into a circular buffer of `stages` in shared memory by "cp_async" or
    "tma". is_reread: passes read the buffer again instead of keeping rows in registers. weights: inputs common to all rows are read once into "registers", or
    "late". is_shifted: rows begin anywhere in a unit of 16 bytes, and bulk copies load the units that contain them. is_behind: a row's second pass runs after
    the first pass of the next row, while the sums of that one are exchanged. has_whole_steps: row_unroll divides the number of rows, so that delayed second
    passes check only the first row of a step. is_online: a maximum and the sum of exponentials relative to it are one reduction, so that a row needs one
    barrier for both (`schedule/online_softmax.py`).
    fill: which batches of a row, or of a block's piece, are known to be full: all ("whole"), all except the last ("leading"), none ("partial"). is_phased:
    vectors are aligned in memory although rows are not; the rows of a block all begin at the same offset in a vector, so that its threads keep their columns
    (`weft.schedule.peel`).
    column_vector_elems, slots_unroll: columns per thread and loads in flight when the partial results are summed. has_samples: samples have columns of their
    own, and `blocks` are those of one sample. is_alone: one block, or cluster, has all rows of a sample, so that no blocks meet: its threads have the columns.
    """

    project_to_inputs: bool
    vector_elems: int
    batches: int
    lanes: int
    threads_y: int
    groups: int
    row_unroll: int
    blocks: int
    loads: str
    stages: int
    is_reread: bool
    weights: str
    column_vector_elems: int
    slots_unroll: int
    max_registers: int
    cluster_blocks: int = 1
    fill: str = "whole"
    is_shifted: bool = False
    is_behind: bool = False
    is_phased: bool = False
    has_whole_steps: bool = False
    is_online: bool = False
    has_samples: bool = False
    is_alone: bool = False

    @property
    def grid_of_rows(self) -> ParallelType:
        """The blocks of a cluster lie along x, so that rows then go along y."""
        return ParallelType.grid_x if self.cluster_blocks == 1 else ParallelType.grid_y

    @property
    def grid_of_samples(self) -> ParallelType:
        """Samples that blocks have alone may be more than fit along z."""
        return self.grid_of_rows if self.is_alone else ParallelType.grid_z

    @property
    def loops_of_blocks(self) -> dict[int, ParallelType]:
        """The loops of rows that are bound to blocks: those over rows, if blocks share them, and those over samples."""
        rows = {} if self.is_alone else {1: self.grid_of_rows}
        return rows | ({3: self.grid_of_samples} if self.has_samples else {})

    @property
    def is_tailed(self) -> bool:
        """False: rows with gaps between them are not implemented."""
        return False

    @property
    def row_thread_types(self) -> tuple[ParallelType, ...]:
        """The parallel types of the threads of a row, innermost first."""
        return (ParallelType.block_x, ParallelType.block_y) if self.threads_y > 1 else (ParallelType.block_x,)

    @property
    def threads(self) -> int:
        return self.lanes * self.threads_y * self.groups

    @property
    def static_block(self) -> tuple[tuple[ParallelType, int], ...]:
        """The threads of a block along each of its axes that is used."""
        threads = ((ParallelType.block_x, self.lanes), (ParallelType.block_y, self.threads_y), (ParallelType.block_z, self.groups))
        return tuple((kind, n) for kind, n in threads if n > 1 or kind is ParallelType.block_x)

    def is_whole(self, row_elems: int) -> bool:
        """True if every thread has a vector in every batch."""
        share = ceil_div(row_elems, self.cluster_blocks)
        return row_elems % self.cluster_blocks == 0 and share == self.lanes * self.threads_y * self.batches * self.vector_elems
