"""All kernels for rows and columns that fit the chip, as arrays: a choice compares hundreds, and creating objects would take longer than comparing.

Pure: facts and arch in, arrays out. Read first: `Candidates.table`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..arch import BULK_BYTES, CP_ASYNC_BYTES, LINE_BYTES, MAX_GRID, MOST_SPILL_BYTES, REGISTER_BYTES, SECTOR_BYTES, WARP_THREADS, Arch
from ..schedule.peel import fill_of_parts, gains_by_phase, row_vectors
from .cost.parts import clusters_at_once
from .cost.two_sided import Kernels, Rows, needed_registers
from .inner_outer_params import LOADS, InnerOuterParams
from .persistent_params import SHARE_MULTIPLE
from .base import Decline
from .arithmetic import ceil_div, next_power_of_two, round_up, tree_workspace_bytes, vector_elems
from .two_sides import TwoSidedFacts
from .limits import BATCHES, FULL_BLOCK_THREADS, GROUPS, MANY_BATCHES, UNROLLS

LEAST_COLUMN_LANES, COLUMN_LANES = SECTOR_BYTES // 16, LINE_BYTES // 16
"""Threads along the columns when partial results are summed: with vectors of 16 bytes at least a sector and at most a cache line; the other threads divide the
partial results. More, up to a warp, if a block would otherwise loop over columns, because each iteration waits for L2."""
MOST_SLOTS_UNROLL = 14
"""Partial results per column result that a thread loads at once, so that it waits only once."""
MOST_NARROW_ELEMS = 32
"""Elements of a row per thread, if vectors are narrow and it keeps more than MANY_BATCHES of them."""
MOST_BLOCK_THREADS, MOST_THREADS_PER_SM = 768, 1024
LEAST_THREADS_PER_SM = 256
GROUPED_ROW_THREADS = 128
"""Threads of a row up to which a block has several rows side by side."""
MOST_BULK_GROUPS = 2
"""One thread issues a bulk copy for each row of a block."""
STAGES, STAGES_BEHIND = (2, 3), (3, 4)
"""Stages of circular buffers; the second with delayed second passes, where one stage has the previous row. More stages are slower.
Measured: docs/constants.md."""
MOST_RING_BYTES = 128 * 1024
"""Bytes of all circular buffers of a multiprocessor up to which a fourth stage helps delayed second passes. Measured: docs/constants.md."""
MOST_STEP_BYTES = 100_000
"""Bytes of all inputs that a block loads at once."""
MOST_ELEMS_IN_REGISTERS = 64
"""Elements of each input that a thread loads into registers at once."""
SMALL_SHARED_BYTES = 3072
"""Shared memory of barriers, workspaces and alignment."""
WIDE_ROW_BYTES = 24 * 1024
"""Bytes of a row of an input from which on the blocks of a cluster may share it."""
MOST_IDLE_BLOCKS = 64
"""Blocks that are launched even if there are fewer rows: each of them sums partial results of some columns."""
RESIDENT, ROW_UNROLLS = (1, 2, 3, 4, 6, 8), UNROLLS[:-1]
"""Resident blocks per multiprocessor; rows per thread at once."""
MOST_REGISTERS_OVER = 1.05
"""Limit of needed over available registers per thread; a third of the kernels at the limit spill."""
WAYS = (("ahead", False), ("now", False), ("cp_async", False), ("cp_async", True), ("tma", False), ("tma", True), ("tma behind", True))
"""How rows are loaded, and whether passes read them again; "tma behind": the second pass runs after the first pass of the next row."""
BEHIND_STEPS = 3
"""The least number of steps for that: the first and the last row overlap with no other one."""
BEHIND_RESIDENT = (1, 2, 4)
"""Resident blocks per multiprocessor with delayed second passes: more blocks hide nothing more. Measured: docs/constants.md."""
MOST_PASSES_OVER_BULK = 2
"""Passes that read a row again from a circular buffer of bulk copies: schedules with more are not implemented (`Template.rfactor_others` finds axes cut in
other ways)."""
FILLS = ("whole", "leading", "partial")


def kernel_of(params: InnerOuterParams) -> Kernels:
    """Return params as the cost model needs them."""
    numbers = {"loads": LOADS.index(params.loads), "fill": FILLS.index(params.fill)}
    return Kernels(**{field.name: numbers.get(field.name, getattr(params, field.name, None)) for field in fields(Kernels)})


@dataclass(frozen=True)
class Blocks:
    """Blocks, one at each place of the arrays. cluster: blocks that share a row. piece: vectors of it that a block has. batches: those of a thread. lanes,
    threads_y: threads of a row along x and y. fill: a position in FILLS. groups: rows side by side. resident: blocks of a multiprocessor. unroll: rows of a
    thread at once. is_alone: one block, or cluster, has a sample."""

    cluster: np.ndarray
    piece: np.ndarray
    batches: np.ndarray
    lanes: np.ndarray
    threads_y: np.ndarray
    fill: np.ndarray
    groups: np.ndarray
    resident: np.ndarray
    unroll: np.ndarray
    is_alone: np.ndarray

    @functools.cached_property
    def row_threads(self) -> np.ndarray:
        threads: np.ndarray = self.lanes * self.threads_y
        return threads

    @functools.cached_property
    def threads(self) -> np.ndarray:
        threads: np.ndarray = self.row_threads * self.groups
        return threads


@dataclass(frozen=True)
class Rings:
    """Circular buffers of the blocks at the same places. room_bytes: shared memory of a block for them. step_bytes: of a stage. stages: the most that there is
    room for, up to those that are ever used."""

    room_bytes: np.ndarray
    step_bytes: np.ndarray
    stages: np.ndarray


class Candidates:
    """The candidates that fit the chip, for one set of facts. slack: allowed ratio of needed to available registers. may_be_phased: rows that begin anywhere
    may be read in vectors that are aligned in memory. is_online: a maximum and the sum of exponentials relative to it are one reduction. any_cluster: blocks
    may share a row of any width, for fusions of which no block has registers for a whole row."""

    def __init__(
        self, facts: TwoSidedFacts, arch: Arch, is_loadable: bool, slack: float = MOST_REGISTERS_OVER, may_be_phased: bool = True, is_online: bool = False,
        any_cluster: bool = False,
    ) -> None:  # fmt: skip
        facts, self.is_online = (facts.online, True) if is_online and facts.online is not None else (facts, False)
        self.facts, self.arch, self.rows, self.slack, self.any_cluster = facts, arch, facts.rows, slack, any_cluster
        rows = self.rows
        self.vector = vector_elems(rows.vector_limit_elems, rows.max_dtype_bits, rows.min_vector_elems, rows.vector_bits)
        if facts.has_single_axes:
            self.vector = rows.min_vector_elems
        self.is_one_run = sum(is_reduced for is_reduced, _ in rows.runs) == 1
        """False where other rows lie in memory between the parts of a row: no bulk copy brings it, and its elements have no phase in common."""
        self.is_phased = may_be_phased and self._gains_by_phase()
        if self.is_phased:
            self.vector = vector_elems(rows.phased_limit_elems, rows.max_dtype_bits, rows.min_vector_elems, rows.vector_bits)
        self.is_projected = rows.projected_bits is not None and (rows.projected_bits <= rows.persistent_bits and not rows.recompute_has_exact_exp)
        kept_bits = (rows.projected_bits if self.is_projected else rows.persistent_bits) or 0
        self.kept_bits = max(kept_bits / rows.reduction_elems, 0 if facts.has_row_results else rows.input_bits)
        bytes_of_vector = {self.vector * bits // 8 for bits in (rows.min_dtype_bits, rows.max_dtype_bits)}
        can_copy = arch.compute_capability >= (8, 0) and rows.vectorizable_inputs > 0 and not facts.has_single_axes
        self.has_cp_async = can_copy and bytes_of_vector <= set(CP_ASYNC_BYTES)
        row_bits = rows.reduction_elems * rows.min_dtype_bits
        can_bulk = is_loadable and self.is_one_run and arch.has_tma and can_copy
        self.is_shifted = can_bulk and row_bits % 128 != 0 and facts.begins_with_units
        begins_with_units = facts.begins_with_units and row_bits % 128 == 0 and self.vector * rows.max_dtype_bits >= 128
        self.has_tma = can_bulk and (begins_with_units or self.is_shifted)
        is_float = facts.column_accumulator_bits == 32 * facts.column_results
        self.has_few_rows = facts.has_samples and 0 < rows.iteration_elems * rows.input_bits <= 2 * facts.column_accumulator_bits
        """True if partial results of several blocks of a sample move as many bytes as reading its rows again. Rows of pairs of points are computed, which takes
        time whatever they move."""
        self.column_vector = 4 if rows.reduction_elems % 4 == 0 and not facts.has_single_axes and is_float else 1
        """Columns per thread when partial results are summed."""

    def _gains_by_phase(self) -> bool:
        """True if rows begin anywhere and have vectors that are aligned in memory; then each block has rows of one phase."""
        rows = self.rows
        is_simple = not self.facts.has_single_axes and not rows.is_tailed and rows.min_vector_elems == 1 and rows.vectorizable_inputs > 0
        is_simple = is_simple and not self.facts.has_samples
        return is_simple and self.is_one_run and gains_by_phase(rows.reduction_elems, rows.vector_limit_elems, rows.phased_limit_elems, rows.max_dtype_bits)

    # ---- threads of a row
    def clusters(self) -> Iterator[int]:
        """Yield numbers of blocks that may share a row: several if it is wide, or if there are fewer rows than multiprocessors."""
        rows, arch = self.rows, self.arch
        row_bytes = rows.reduction_elems * rows.max_dtype_bits // 8
        for cluster in (1,) if self.is_phased and rows.min_dtype_bits < rows.max_dtype_bits else (1, 2, 4, 8, 16):  # a vector of each type must be one unit
            is_few = self.facts.samples * rows.iteration_elems * cluster <= arch.sm_count and row_bytes >= 2048 * cluster
            if cluster == 1 or cluster <= arch.max_cluster_blocks and (row_bytes >= WIDE_ROW_BYTES * cluster // 2 or is_few or self.any_cluster):
                yield cluster

    def piece_vectors(self, cluster: int) -> int:
        """Vectors of a row that one block has."""
        vectors = row_vectors(self.rows.reduction_elems, self.vector, self.is_phased and cluster == 1)
        return vectors if cluster == 1 else round_up(ceil_div(vectors, cluster), SHARE_MULTIPLE)

    def shape(self, threads: int) -> tuple[int, int]:
        """Return the threads along x and y of a row. Few along x if there are few columns, so that all blocks have some when partial results are summed.
        """
        columns = ceil_div(self.rows.reduction_elems, self.column_vector * self.arch.sm_count)
        lanes = min(COLUMN_LANES, max(LEAST_COLUMN_LANES, next_power_of_two(columns)))
        if threads <= 32:
            threads = next_power_of_two(threads)
            return (lanes, threads // lanes) if threads > lanes else (threads, 1)
        return lanes, round_up(threads, 32) // lanes

    def row_threads(self) -> list[tuple[int, ...]]:
        """Return clusters, vectors of a block's piece, batches, lanes, threads_y and fill (a position in FILLS)."""
        out: list[tuple[int, ...]] = []
        whole = self.piece_vectors(1)
        fewest = 2 * self.vector if self.is_phased else 1  # threads that do the ends of a row
        if self.is_phased:  # vectors that every row has
            whole = (self.rows.reduction_elems - self.vector + 1) // self.vector
        for cluster in self.clusters():
            piece = self.piece_vectors(cluster)
            for batches in (b for b in BATCHES if b <= MANY_BATCHES or b * self.vector <= MOST_NARROW_ELEMS):
                threads = ceil_div(piece, batches)
                lanes, threads_y = self.shape(threads)
                is_other = (batches == 1 or threads > ceil_div(piece, batches + 1)) and lanes * threads_y >= fewest
                if is_other and lanes * threads_y <= MOST_BLOCK_THREADS and (cluster == 1 or lanes * threads_y >= 64):
                    fill = FILLS.index(fill_of_parts(whole, batches, lanes * threads_y, lanes * threads_y, piece))
                    out.append((cluster, piece, batches, lanes, threads_y, fill))
        return out

    # ---- arrays
    def table(self) -> Kernels:
        """Return every candidate whose registers and shared memory the chip has."""
        made = self.blocks()
        rings, seats = self.rings(made), self.seats(made)
        count = self.block_counts(made, seats)
        lanes, threads_y = self.column_threads(made, count)
        rounds = -(-count // (threads_y * made.groups))
        slots_unroll = -(-rounds // -(-rounds // MOST_SLOTS_UNROLL))
        limit = _looked_up(self.arch.registers_per_thread, made.threads * made.resident)
        at, loads, is_reread, is_behind, stages = self.ways(made, rings, count)
        out = Kernels(
            self.is_projected, self.vector, made.batches[at], lanes[at], threads_y[at], made.groups[at], made.unroll[at], count[at], loads, stages,
            is_reread, self.column_vector, slots_unroll[at], limit[at], made.cluster[at], made.fill[at], is_behind, self.is_phased, self.is_online,
            made.is_alone[at],
        )  # fmt: skip
        slack = np.where(is_behind, 1.0, self.slack)  # kernels with too few registers spill, and each costs a compilation in the first call
        return out.where((needed_registers(out, self.facts_of_rows) <= limit[at] * slack) & (seats[at] > 0))

    def blocks(self) -> Blocks:
        """Return all blocks of a number of threads that a multiprocessor has."""
        rows, facts = self.rows, self.facts
        given = np.array(self.row_threads(), dtype=np.int64).reshape(-1, 6)
        variants = _variants(facts.has_samples)
        of_rows = np.repeat(given, len(variants[0]), axis=0).T
        made = Blocks(*of_rows, *(np.tile(values, len(given)) for values in variants))
        groups, unroll, cluster, threads = made.groups, made.unroll, made.cluster, made.threads
        fits = (groups == 1) | (made.row_threads <= GROUPED_ROW_THREADS) & (cluster == 1)
        fits &= (threads <= MOST_BLOCK_THREADS) & (threads % 32 == 0)
        fits &= (threads * made.resident >= LEAST_THREADS_PER_SM) & (threads * made.resident <= MOST_THREADS_PER_SM)
        fits &= (unroll == 1) | (unroll * groups <= max(1, rows.iteration_elems // 2))
        if self.is_phased:
            fits &= (groups == 1) | (made.batches == 1)
        # samples lie along y if clusters have them alone
        can_be_alone = (groups * unroll <= rows.iteration_elems) & ((cluster == 1) | (facts.samples <= MAX_GRID[1]))
        fits &= np.where(made.is_alone, can_be_alone, not self.has_few_rows)
        return Blocks(*(getattr(made, field.name)[fits] for field in fields(Blocks)))

    def rings(self, made: Blocks) -> Rings:
        """Return the circular buffers that blocks have room for."""
        rows = self.rows
        tree_bytes: Callable[..., Any] = tree_workspace_bytes  # of arrays, too
        beside_rows = 2 * BULK_BYTES * rows.vectorizable_inputs * self.is_shifted
        step_bytes = made.unroll * made.groups * (made.piece * self.vector * rows.input_bits // 8 + beside_rows)
        fixed = SMALL_SHARED_BYTES + tree_bytes(made.threads, self.column_vector * self.facts.column_results, 32) * (made.threads_y > 1)
        fixed = fixed + tree_bytes(made.threads, self.vector, 64) * (made.groups > 1)
        room = self.arch.shared_per_sm_bytes // made.resident - fixed - 1024
        return Rings(room, step_bytes, np.minimum(STAGES_BEHIND[-1], np.maximum(0, room) // np.maximum(1, step_bytes)))

    def seats(self, made: Blocks) -> np.ndarray:
        """Return how many blocks of a sample run at once."""
        return np.where(made.is_alone, 1, clusters_at_once(made.cluster, self.arch) * made.resident // self.facts.samples)

    def block_counts(self, made: Blocks, seats: np.ndarray) -> np.ndarray:
        """Return how many blocks, or clusters, to launch for a sample: no more than run at once, nor many that are idle."""
        rows, facts = self.rows, self.facts
        tiles = -(-made.piece * self.vector // (made.lanes * self.column_vector))
        wanted = np.maximum(np.minimum(MOST_IDLE_BLOCKS // facts.samples, tiles), -(-rows.iteration_elems // (made.unroll * made.groups)))
        count: np.ndarray = np.minimum(np.maximum(seats, 1), np.maximum(2 - made.is_alone, _looked_up(next_power_of_two, wanted)))
        if self.is_phased:  # as many of each phase
            count = np.maximum(count // self.vector, 1) * self.vector
        return count

    def column_threads(self, made: Blocks, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the threads along x and y of a row, of which those along x have the block's share of the columns when partial results are summed."""
        share = _looked_up(next_power_of_two, -(-made.piece * self.vector // (self.column_vector * count)))
        lanes = np.minimum(made.row_threads, np.clip(share, LEAST_COLUMN_LANES, WARP_THREADS))
        return lanes, made.row_threads // lanes

    def ways(self, made: Blocks, rings: Rings, count: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return each way in which a block can load its rows: the place of the block, loads (a position in LOADS), whether passes read rows again, whether
        second passes are delayed, and stages."""
        rows = self.rows
        has_ring = (rings.stages >= 2) & ((rings.step_bytes <= MOST_STEP_BYTES) | (made.unroll * made.groups == 1))
        is_small = (made.unroll * self.vector * made.batches <= MOST_ELEMS_IN_REGISTERS) & (rings.room_bytes >= 0)
        is_whole = ((made.fill == FILLS.index("whole")) | self.is_phased) & (made.groups == 1) & (made.row_threads > self.arch.warp_threads)
        can_be_behind = is_whole & np.isin(made.resident, BEHIND_RESIDENT) & (rings.stages >= STAGES_BEHIND[0]) & (rows.passes == 2)
        can_be_behind &= not rows.folds_last  # second passes without a barrier are what the next row's barrier is hidden by
        can_be_behind &= count * made.unroll * BEHIND_STEPS <= rows.iteration_elems
        found = []
        for way, is_reread in WAYS:
            loads, _, behind = way.partition(" ")
            if loads == "cp_async" and (not self.has_cp_async or self.is_phased) or loads == "tma" and not self.has_tma:
                continue
            if loads == "tma" and is_reread and rows.passes > MOST_PASSES_OVER_BULK:
                continue
            is_there = has_ring & (made.groups <= (MOST_BULK_GROUPS if loads == "tma" else GROUPS[-1])) if loads in ("cp_async", "tma") else is_small
            if behind:
                is_there = is_there & can_be_behind
            for stages in STAGES_BEHIND if behind else STAGES if loads in ("cp_async", "tma") else (1,):
                is_short = (stages <= STAGES[-1]) | (stages * rings.step_bytes * made.resident <= MOST_RING_BYTES)
                at = np.flatnonzero(is_there & ((rings.stages >= stages) & is_short | (stages == 1)))
                found.append((at, *(np.full(len(at), value) for value in (LOADS.index(loads), is_reread, bool(behind), stages))))
        return tuple(np.concatenate(values) for values in zip(*found))

    @functools.cached_property
    def facts_of_rows(self) -> Rows:
        """The facts of the fusion for the cost model."""
        facts, rows = self.facts, self.rows
        return Rows(
            rows=rows.iteration_elems, columns=rows.reduction_elems, input_bits=rows.input_bits, output_bits=rows.output_bits, inputs=facts.row_inputs,
            outputs=facts.row_outputs, instructions=rows.instructions, recompute_instructions=rows.recompute_instructions, mufu=rows.mufu,
            reductions=rows.reductions, phases=rows.passes - 1, column_results=facts.column_results, column_accumulator_bits=facts.column_accumulator_bits,
            weights=rows.broadcast_operands, kept_bits=self.kept_bits, folds=facts.row_folds,
            samples=facts.samples,
        )  # fmt: skip

    def params(self, table: Kernels, place: int) -> InnerOuterParams:
        """Return one candidate of the table."""
        values = {field.name: getattr(table, field.name) for field in fields(table)}
        one = {name: value[place].item() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        loads = LOADS[one.pop("loads")]
        whole_steps = one["is_behind"] and not one["is_phased"] and one["row_unroll"] > 1 and self.rows.iteration_elems % one["row_unroll"] == 0
        more = {"weights": "registers", "is_shifted": loads == "tma" and self.is_shifted, "has_whole_steps": whole_steps}
        return InnerOuterParams(**one | {"loads": loads, "fill": FILLS[one["fill"]], "has_samples": self.facts.has_samples, **more})

    def why_none_fits(self) -> Decline | None:
        """Return why not even the largest block has registers for a row and its column sums; None if it has, or if another kernel fits. A kernel that lacks
        more registers than may be spilled, each once, would be refused when it is compiled."""
        if self.facts.has_samples:
            return self._why_not_samples()
        last = self.last_resort()
        needed = math.ceil(needed_registers(kernel_of(last), self.facts_of_rows))
        if needed <= last.max_registers + MOST_SPILL_BYTES // REGISTER_BYTES or len(self.table().batches):
            return None
        if not self.any_cluster and len(Candidates(self.facts, self.arch, self.has_tma, self.slack, any_cluster=True).table().batches):
            return None
        return Decline(f"a thread would need {needed} registers for its part of a row and its column sums, but has only {last.max_registers}")

    def _why_not_samples(self) -> Decline | None:
        """Return why no kernel should have samples with columns of their own, or None."""
        facts, rows = self.facts, self.rows
        if gains_by_phase(rows.reduction_elems, rows.vector_limit_elems, rows.phased_limit_elems, rows.max_dtype_bits):  # which a kernel for rows alone has
            return Decline("rows that begin anywhere, of samples with columns of their own, would be read in narrow accesses")
        if len(self.table().batches) or len(Candidates(facts, self.arch, self.has_tma, self.slack, any_cluster=True).table().batches):
            return None
        if self.has_few_rows:
            return Decline(f"partial results of {rows.iteration_elems} rows per sample move as many bytes as reading these rows again")
        return Decline(f"{facts.samples} samples, with columns of their own, need more blocks than run at once")

    def last_resort(self) -> InnerOuterParams:
        """Return params for rows whose column sums do not fit into the registers of any block."""
        cluster = max(self.clusters())
        piece = self.piece_vectors(cluster)
        batches = ceil_div(piece, FULL_BLOCK_THREADS)
        lanes, threads_y = self.shape(ceil_div(piece, batches))
        groups = max(1, 32 // (lanes * threads_y))
        seats = int(clusters_at_once(cluster, self.arch)) // self.facts.samples
        is_alone = self.facts.has_samples and (seats < 2 or self.has_few_rows)
        blocks = 1 if is_alone else min(max(1, seats), max(2, next_power_of_two(ceil_div(self.rows.iteration_elems, groups))))
        rounds = ceil_div(blocks, threads_y * groups)
        return InnerOuterParams(
            self.is_projected, self.vector, batches, lanes, threads_y, groups, 1, blocks, "now", 1, False, "late", self.column_vector,
            ceil_div(rounds, ceil_div(rounds, MOST_SLOTS_UNROLL)), self.arch.registers_per_thread(lanes * threads_y * groups), cluster,
            fill_of_parts(self.piece_vectors(1), batches, lanes * threads_y, lanes * threads_y, piece), has_samples=self.facts.has_samples,
            is_alone=is_alone,
        )  # fmt: skip


@functools.cache
def _variants(has_samples: bool) -> tuple[np.ndarray, ...]:
    """Return all combinations of groups, resident blocks, rows of a thread, and whether a block has a sample alone."""
    return tuple(values.ravel() for values in np.meshgrid(GROUPS, RESIDENT, ROW_UNROLLS, (False, True)[: 1 + has_samples], indexing="ij"))


def _looked_up(function: Any, values: np.ndarray) -> np.ndarray:
    """Return the function's result for each value, calling it once for equal values."""
    different, place = np.unique(values, return_inverse=True)
    return np.array([function(int(value)) for value in different], dtype=np.int64)[place]
