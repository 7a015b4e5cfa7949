"""InnerOuterPersistent: the parameters of the template in `inner_outer.py`, and their choice.

Pure: facts and arch in, params out. Read first: `InnerOuterParams`, `choose_inner_outer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arch import Arch
from ..ir.enums import ParallelType
from .base import Decline
from .persistent_params import WARP_MULTIPLE
from .throughput_heuristic import ceil_div, next_power_of_two, round_up, vector_elems
from .two_sides import TwoSidedFacts


@dataclass(frozen=True, slots=True)
class InnerOuterParams:
    """A schedule of rows and columns; equal params (with equal structure, index type and device) mean the same kernel.

    vector_elems, batches: of a row, per thread. lanes, threads_y: threads of a row, along TIDx and TIDy; columns of the results lie along TIDx at the end.
    groups: rows side by side in a block, on TIDz. row_unroll: rows of a thread at once. blocks: of the grid, which stay. project_to_inputs: keep inputs
    instead of what is computed from them. weights: inputs that all rows share are read once into "registers", or "late", by every row.
    column_vector_elems, slots_unroll: columns of a thread and loads in flight when the partial results are added up.
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

    @property
    def grid_of_rows(self) -> ParallelType:
        """The blocks of a cluster lie along x, so that rows then go along y."""
        return ParallelType.grid_x if self.cluster_blocks == 1 else ParallelType.grid_y

    @property
    def part_multiple(self) -> int:
        return WARP_MULTIPLE if self.batches > 1 and self.threads_y > 1 else 1

    @property
    def threads(self) -> int:
        return self.lanes * self.threads_y * self.groups


def choose_inner_outer(facts: TwoSidedFacts, arch: Arch, loads: str = "ahead", stages: int = 1) -> tuple[InnerOuterParams | Decline, str]:
    """Return params, or why there are none, and what was compared."""
    rows = facts.rows
    vector = vector_elems(rows.vector_limit_elems, rows.max_dtype_bits, rows.min_vector_elems, arch.max_vector_bits)
    vectors = ceil_div(rows.reduction_elems, vector)
    batches = 1
    while ceil_div(vectors, batches) > 512:
        batches += 1
    threads = ceil_div(vectors, batches)
    if threads <= 32:
        lanes, threads_y = next_power_of_two(threads), 1
        groups = max(32 // lanes, min(64, 128 // lanes))
    else:
        lanes, groups = 8, 1
        threads_y = round_up(threads, 32) // lanes
    column_vector = 4 if rows.reduction_elems % 4 == 0 else 1
    blocks = min(arch.sm_count, max(2, next_power_of_two(ceil_div(rows.iteration_elems, groups))))
    params = InnerOuterParams(
        rows.projected_bits is not None and rows.projected_bits <= rows.persistent_bits, vector, batches, lanes, threads_y, groups, 1, blocks, loads,
        stages, False, "registers", column_vector, 4, arch.registers_per_thread(lanes * threads_y * groups),
    )  # fmt: skip
    return params, str(params)
