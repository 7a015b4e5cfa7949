"""InnerOuterPersistent: the parameters of the template in `inner_outer.py`, and their choice by a model of what a row costs.

Pure: facts and arch in, params out. Every candidate that fits the chip is predicted by `inner_outer_model.py`, and the fastest is taken.
Read first: `InnerOuterParams`, `choose_inner_outer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..arch import BULK_BYTES, CP_ASYNC_BYTES, Arch
from ..ir.enums import ParallelType
from ..schedule.full_rows import fill_of_parts
from .persistent_params import SHARE_MULTIPLE
from .throughput_heuristic import ceil_div, next_power_of_two, round_up, tree_workspace_bytes, vector_elems
from .two_sides import TwoSidedFacts

LOADS = ("now", "ahead", "cp_async", "tma")
"""How rows come; see `InnerOuterParams`."""
LEAST_COLUMN_LANES, COLUMN_LANES = 2, 8
"""Threads along the columns when partial results are added up: with vectors of 16 bytes a sector to a line; the other threads share the rest."""
MOST_SLOTS_UNROLL = 9
"""Partial results of each column result that a thread loads at once, so that it waits once for all of them."""
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8)
MORE_BATCHES, MOST_NARROW_ELEMS = (10, 12, 14, 16, 20, 24, 28, 32), 32
"""Vectors of a row per thread; more, and so many elements at most, where vectors are narrow."""
MOST_ROW_THREADS, MOST_BLOCK_THREADS, MOST_THREADS_PER_SM = 768, 768, 1024
LEAST_THREADS_PER_SM = 256
GROUPED_ROW_THREADS = 128
"""Up to so many threads of a row, several rows lie side by side in a block."""
MOST_BULK_GROUPS = 2
"""One thread issues a bulk copy for each row of a block."""
ROW_UNROLLS = (1, 2, 4)
MOST_STAGES = 4
MOST_STEP_BYTES = 100_000
"""Of all inputs, that a block takes at once."""
MOST_ELEMS_IN_REGISTERS = 64
"""Of each input, that a thread loads into registers at once."""
SMALL_SHARED_BYTES = 3072
"""Barriers, workspaces, alignment."""
WIDE_ROW_BYTES = 24 * 1024
"""Of an input, from which on the blocks of a cluster may share a row."""
SUMS_FACTOR, ROW_REGISTERS, REREAD_REGISTERS, BASE_REGISTERS = 1.2, 8, 3, 32
"""Registers of a thread: for each that holds a column's sum, for each row at once, for each vector that passes read again, and what there is besides. Source:
which of 1,000 kernels spilled (H200). Kernels that spill much are kept out: of these two, ptxas of CUDA 13.0 used the stack pointer for something else."""
FULL_BLOCK_THREADS = 512
"""Of the block that takes what fits nowhere: its sums spill to memory."""


@dataclass(frozen=True, slots=True)
class InnerOuterParams:
    """A schedule of rows and columns; equal params (with equal structure, index type and device) mean the same kernel.

    vector_elems, batches: of a row (or of a block's piece of it), per thread. lanes, threads_y: threads of a row, along TIDx and TIDy; columns of the results
    lie along TIDx at the end. groups: rows side by side in a block, on TIDz. row_unroll: rows of a thread at once. blocks: of the grid, or clusters, which
    stay. cluster_blocks: blocks that share a row. project_to_inputs: keep inputs instead of what is computed from them.
    loads: rows come when needed ("now"), an iteration "ahead" into registers, or through a ring of `stages` in shared memory by "cp_async" or "tma".
    is_reread: passes read the ring again instead of keeping rows in registers. weights: inputs that all rows share are read once into "registers", or "late".
    is_shifted: rows begin anywhere in a unit of 16 bytes, and bulk copies bring the units that hold them.
    fill: what is known of the batches of a row, or of a block's piece: all are full ("whole"), all but the last ("leading"), nothing ("partial").
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
    fill: str = "whole"
    is_shifted: bool = False

    @property
    def grid_of_rows(self) -> ParallelType:
        """The blocks of a cluster lie along x, so that rows then go along y."""
        return ParallelType.grid_x if self.cluster_blocks == 1 else ParallelType.grid_y

    @property
    def threads(self) -> int:
        return self.lanes * self.threads_y * self.groups

    def is_whole(self, row_elems: int) -> bool:
        """True when every thread has a vector in every batch."""
        share = ceil_div(row_elems, self.cluster_blocks)
        return row_elems % self.cluster_blocks == 0 and share == self.lanes * self.threads_y * self.batches * self.vector_elems


def choose_inner_outer(
    facts: TwoSidedFacts, arch: Arch, is_loadable: bool = True, rejected: frozenset[InnerOuterParams] = frozenset(), loads: tuple[str, ...] = LOADS
) -> tuple[InnerOuterParams, str]:  # fmt: skip
    """Return params, and what was compared.

    is_loadable: bulk copies can bring the rows of all inputs. rejected: params that are not to be chosen. loads: how rows may come.
    """
    from .inner_outer_model import predicted_ns

    candidates = [p for p in Candidates(facts, arch, is_loadable).all() if p not in rejected and p.loads in loads]
    found = sorted(((predicted_ns(p, facts, arch), n, p) for n, p in enumerate(candidates)), key=lambda entry: entry[:2])
    if not found:
        params = Candidates(facts, arch, is_loadable).last_resort()
        return params, f"inner_outer_persistent: sums of a row fit into no block, and spill: {params}"
    lines = [f"  predicted {time / 1000:.1f} us: {params}" for time, _, params in found[:8]]
    return found[0][2], "\n".join([f"inner_outer_persistent: best of {len(found)} candidates", *lines])


class Candidates:
    """What fits the chip, for one set of facts."""

    def __init__(self, facts: TwoSidedFacts, arch: Arch, is_loadable: bool) -> None:
        self.facts, self.arch, self.rows = facts, arch, facts.rows
        rows = self.rows
        self.vector = vector_elems(rows.vector_limit_elems, rows.max_dtype_bits, rows.min_vector_elems, max(rows.vector_bits, arch.max_vector_bits))
        if facts.has_single_axes:
            self.vector = rows.min_vector_elems
        self.is_projected = rows.projected_bits is not None and (rows.projected_bits <= rows.persistent_bits and not rows.recompute_has_exact_exp)
        kept_bits = (rows.projected_bits if self.is_projected else rows.persistent_bits) or 0
        self.kept_bits = max(kept_bits / rows.reduction_elems, 0 if facts.has_row_results else rows.input_bits)
        bytes_of_vector = {self.vector * bits // 8 for bits in (rows.min_dtype_bits, rows.max_dtype_bits)}
        can_copy = arch.compute_capability >= (8, 0) and rows.vectorizable_inputs > 0 and not facts.has_single_axes
        self.has_cp_async = can_copy and bytes_of_vector <= set(CP_ASYNC_BYTES)
        row_bits = rows.reduction_elems * rows.min_dtype_bits
        can_bulk = is_loadable and arch.has_tma and can_copy
        self.is_shifted = can_bulk and row_bits % 128 != 0 and facts.begins_with_units
        begins_with_units = facts.begins_with_units and row_bits % 128 == 0 and self.vector * rows.max_dtype_bits >= 128
        self.has_tma = can_bulk and (begins_with_units or self.is_shifted)

    def all(self) -> Iterator[InnerOuterParams]:
        """Yield every candidate whose registers and shared memory the chip has."""
        for cluster in self.clusters():
            piece = self.piece_vectors(cluster)
            for batches in (*BATCHES, *(b for b in MORE_BATCHES if b * self.vector <= MOST_NARROW_ELEMS)):
                threads = ceil_div(piece, batches)
                lanes, threads_y = self.shape(threads)
                is_other = batches == 1 or threads > ceil_div(piece, batches + 1)
                if is_other and lanes * threads_y <= MOST_ROW_THREADS and (cluster == 1 or lanes * threads_y >= 64):
                    yield from self.with_threads(cluster, piece, batches, lanes, threads_y)

    def clusters(self) -> Iterator[int]:
        """Yield blocks that may share a row: several where it is wide, or where there are fewer rows than multiprocessors."""
        rows, arch = self.rows, self.arch
        row_bytes = rows.reduction_elems * rows.max_dtype_bits // 8
        for cluster in (1, 2, 4, 8, 16):
            is_few = rows.iteration_elems * cluster <= arch.sm_count and row_bytes >= 2048 * cluster
            if cluster == 1 or cluster <= arch.max_cluster_blocks and (row_bytes >= WIDE_ROW_BYTES * cluster // 2 or is_few):
                yield cluster

    def piece_vectors(self, cluster: int) -> int:
        """Vectors of a row that one block has."""
        vectors = ceil_div(self.rows.reduction_elems, self.vector)
        return vectors if cluster == 1 else round_up(ceil_div(vectors, cluster), SHARE_MULTIPLE)

    def shape(self, threads: int) -> tuple[int, int]:
        """Threads along x and y for so many of a row: few along x where there are few columns, so that all blocks add partial results up."""
        columns = ceil_div(self.rows.reduction_elems, self.column_vector() * self.arch.sm_count)
        lanes = min(COLUMN_LANES, max(LEAST_COLUMN_LANES, next_power_of_two(columns)))
        if threads <= 32:
            threads = next_power_of_two(threads)
            return (lanes, threads // lanes) if threads > lanes else (threads, 1)
        return lanes, round_up(threads, 32) // lanes

    def column_vector(self) -> int:
        """Columns of a thread when partial results are added up."""
        is_float = self.facts.column_accumulator_bits == 32 * self.facts.column_results
        return 4 if self.rows.reduction_elems % 4 == 0 and not self.facts.has_single_axes and is_float else 1

    def with_threads(self, cluster: int, piece: int, batches: int, lanes: int, threads_y: int) -> Iterator[InnerOuterParams]:
        """Yield the candidates with these threads for a row."""
        row_threads = lanes * threads_y
        for groups in (1, 2, 4, 8, 16, 32):
            block = row_threads * groups
            if groups > 1 and (row_threads > GROUPED_ROW_THREADS or cluster > 1) or block > MOST_BLOCK_THREADS or block % 32:
                continue
            for resident in (1, 2, 3, 4, 6, 8):
                if not LEAST_THREADS_PER_SM <= block * resident <= MOST_THREADS_PER_SM:
                    continue
                for unroll in ROW_UNROLLS:
                    if unroll == 1 or unroll * groups <= max(1, self.rows.iteration_elems // 2):
                        made = self.made(cluster, batches, lanes, threads_y, groups, unroll, resident)
                        yield from self.with_loads(made, piece, resident)

    def made(self, cluster: int, batches: int, lanes: int, threads_y: int, groups: int, unroll: int, resident: int) -> InnerOuterParams:
        """Return params whose rows are loaded when needed."""
        rows, arch = self.rows, self.arch
        seats = self.resident_clusters(cluster) * resident
        blocks = min(seats, max(2, next_power_of_two(ceil_div(rows.iteration_elems, unroll * groups))))
        rounds = ceil_div(blocks, threads_y * groups)
        slots_unroll = ceil_div(rounds, ceil_div(rounds, MOST_SLOTS_UNROLL))
        return InnerOuterParams(
            self.is_projected, self.vector, batches, lanes, threads_y, groups, unroll, blocks, "now", 1, False, "registers", self.column_vector(), slots_unroll,
            arch.registers_per_thread(lanes * threads_y * groups * resident), cluster,
            fill_of_parts(self.piece_vectors(1), batches, lanes * threads_y, lanes * threads_y, self.piece_vectors(cluster)),
        )  # fmt: skip

    def resident_clusters(self, cluster: int) -> int:
        """Clusters of this size that run at once for certain, each block with a multiprocessor of its own.

        A cluster lies within a group of multiprocessors, whose numbers the driver does not tell: pairs always fit, and larger ones leave up to an eighth idle.
        """
        return self.arch.sm_count // cluster if cluster <= 2 else max(1, (self.arch.sm_count - self.arch.sm_count // 8) // cluster)

    def with_loads(self, params: InnerOuterParams, piece: int, resident: int) -> Iterator[InnerOuterParams]:
        """Yield the ways to load rows that fit."""
        rows = self.rows
        beside_rows = 2 * BULK_BYTES * rows.vectorizable_inputs * self.is_shifted
        step_bytes = params.row_unroll * params.groups * (piece * self.vector * rows.input_bits // 8 + beside_rows)
        fixed = SMALL_SHARED_BYTES + tree_workspace_bytes(params.threads, params.column_vector_elems * self.facts.column_results, 32) * (params.threads_y > 1)
        fixed += tree_workspace_bytes(params.threads, self.vector, 64) * (params.groups > 1)
        room = self.arch.shared_per_sm_bytes // resident - fixed - 1024
        most = min(MOST_STAGES, max(0, room) // max(1, step_bytes))
        for loads in ("ahead", "now"):
            is_small = params.row_unroll * self.vector * params.batches <= MOST_ELEMS_IN_REGISTERS and room >= 0
            if is_small and self.fits(params, loads, False):
                yield replace(params, loads=loads)
        if step_bytes > MOST_STEP_BYTES and (params.row_unroll > 1 or params.groups > 1) or most < 2:
            return
        for loads, is_there in (("cp_async", self.has_cp_async), ("tma", self.has_tma and params.groups <= MOST_BULK_GROUPS)):
            for is_reread in (False, True) if is_there else ():
                if self.fits(params, loads, is_reread):
                    yield replace(params, loads=loads, stages=most, is_reread=is_reread, is_shifted=loads == "tma" and self.is_shifted)

    def fits(self, params: InnerOuterParams, loads: str, is_reread: bool) -> bool:
        """True when a thread needs no more registers than it has."""
        rows, elems = self.rows, params.batches * self.vector
        kept = 0.0 if is_reread else params.row_unroll * elems * max(self.kept_bits, 0) / 32
        ahead = params.row_unroll * elems * rows.input_bits / 32 * (loads == "ahead")
        weights = elems * rows.broadcast_operand_bits / 32
        sums = elems * self.facts.column_accumulator_bits / 32
        needed = SUMS_FACTOR * sums + kept + ahead + weights + ROW_REGISTERS * params.row_unroll + BASE_REGISTERS
        needed += REREAD_REGISTERS * params.batches * is_reread
        return needed <= params.max_registers

    def last_resort(self) -> InnerOuterParams:
        """Return params for rows whose sums fit into the registers of no block."""
        cluster = max(self.clusters())
        piece = self.piece_vectors(cluster)
        batches = ceil_div(piece, FULL_BLOCK_THREADS)
        lanes, threads_y = self.shape(ceil_div(piece, batches))
        groups = max(1, 32 // (lanes * threads_y))
        return replace(self.made(cluster, batches, lanes, threads_y, groups, 1, 1), weights="late")
