"""Rows that consist of several contiguous runs, or whose weights change from run to run: batch norm channels over N, H, W; groups of a group norm.

Threads along x stay within a run, so that no index is divided; threads along z, and the blocks of a cluster, share the runs. Owns what was measured of them
and their candidates. Pure: facts and arch in, candidates out. Read first: `ChannelRows.channel_candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..arch import MAX_BLOCK_Z, MAX_GRID
from .early_weights import EarlyWeights
from .persistent_params import Candidate, PersistentParams, share_of
from .arithmetic import ceil_div, round_up
from .cost.parts import THREAD_REGISTERS
from .limits import MANY_BATCHES, REGISTER_STEP, ROW_THREAD_REGISTERS

LEAST_VECTORS = 256
"""Vectors of a row, at least. Shorter rows are computed by one warp, or several rows by a block."""
LEAST_LANES = 0.6
"""The fraction of the threads along a run that have a vector, at least: idle lanes cost only issue slots."""
IN_FLIGHT_BYTES = 128 * 1024
"""Bytes in flight per multiprocessor, of all inputs and resident blocks."""
FLIGHT_POWER, LANE_POWER, ROUND_POWER = 0.35, 0.5, 0.4
LOOSE_REGISTERS = THREAD_REGISTERS + REGISTER_STEP
"""Registers besides the kept row, and a step more if the last pass reads an input. THREAD_REGISTERS are enough with one vector per run."""
TIGHT_LOSS = 0.02
SHARE_BYTES = (4 * 1024, 72 * 1024)
"""Least and most bytes of an input in each block, of a cluster or alone."""
LONG_SHARE_BYTES, LONG_BATCHES, LONG_REGISTERS = 104 * 1024, 25, 28
"""The most bytes if the largest cluster is not large enough; vectors per thread then, and registers besides them. Mean and squares are reduced together,
otherwise the compiler spills. Measured: docs/constants.md."""
CLUSTER_LOSS = {1: 0.0, 2: 0.0, 4: 0.0, 8: 0.01, 16: 0.06}
"""Clusters of 16 leave parts of a GPC unused."""
BLOCK_THREADS = (96, 512)


class ChannelRows(EarlyWeights):
    """Candidates of one set of facts."""

    def channel_candidates(self) -> Iterator[Candidate]:
        """Yield candidates with rows of several runs in the registers of a block or of a cluster; none if rows are short or do not fit."""
        facts = self.facts
        if facts.dimensions != 3 or facts.outer_run_elems < 2 or self.row_vectors < LEAST_VECTORS or facts.block_elems:
            return
        row_bytes = self.row_vectors * self.vector * facts.max_dtype_bits // 8
        for projected, bits in self.projections():
            for blocks in (b for b in CLUSTER_LOSS if b <= self.arch.max_cluster_blocks):
                share = ceil_div(row_bytes, blocks)
                is_long = share > SHARE_BYTES[1]
                is_largest = 2 * blocks > self.arch.max_cluster_blocks
                if is_long and (share > LONG_SHARE_BYTES or not is_largest or facts.late_input_bits or self.levels < 2):
                    continue
                if blocks > 1 and (share < SHARE_BYTES[0] or facts.iteration_elems > MAX_GRID[1]):
                    continue
                for along_run in (False,) if blocks == 1 else (False, True):
                    if along_run or blocks <= facts.outer_run_elems:
                        yield from self.in_runs(projected, bits, blocks, along_run=along_run, is_long=is_long)

    def in_runs(self, projected: bool, bits: float, blocks: int, *, along_run: bool, is_long: bool) -> Iterator[Candidate]:
        """Yield every distribution of a block's runs, or of its share of each run, among its threads."""
        facts, arch = self.facts, self.arch
        inner, outer = ceil_div(facts.inner_run_elems, self.vector), facts.outer_run_elems
        inner, outer = (share_of(inner, blocks), outer) if along_run else (inner, ceil_div(outer, blocks))
        most = (LONG_BATCHES if is_long else MANY_BATCHES) * self.full_vectors()
        for batches in range(1, min(inner, most) + 1):
            padded = round_up(ceil_div(inner, batches), arch.warp_threads)
            if inner < LEAST_LANES * padded * batches:
                continue
            for outer_batches in range(1, min(outer, most // batches) + 1):
                bdimz = ceil_div(outer, outer_batches)
                if bdimz <= MAX_BLOCK_Z and BLOCK_THREADS[0] <= padded * bdimz <= BLOCK_THREADS[1]:
                    yield from self.with_limits(projected, bits, (blocks, along_run, is_long), (padded, batches), (bdimz, outer_batches))

    def with_limits(
        self, projected: bool, bits: float, cluster: tuple[int, bool, bool], inner: tuple[int, int], outer: tuple[int, int]
    ) -> Iterator[Candidate]:  # fmt: skip
        """cluster: its blocks, whether they divide each run among them, whether their shares are long. inner, outer: threads and batches along a run, and over
        the runs."""
        facts, arch = self.facts, self.arch
        blocks, along_run, is_long = cluster
        (padded, batches), (bdimz, outer_batches) = inner, outer
        threads, vectors = padded * bdimz, batches * outer_batches
        kept = max(self.row_registers(bits, vectors), self.loaded_registers(vectors))
        is_tight = batches == 1 and not facts.nested_sums and not self.is_wide and not facts.still_axes and not facts.late_input_bits
        loose = LOOSE_REGISTERS + REGISTER_STEP * ((not is_tight and kept > 20) + self.is_wide + (facts.late_input_bits > 0))
        loose += ceil_div(facts.nested_bits * outer_batches, 32)
        most = ROW_THREAD_REGISTERS if is_long else arch.max_registers_per_thread
        for beside in (LONG_REGISTERS,) if is_long else (THREAD_REGISTERS, loose) if is_tight else (loose,):
            limit = max(32, round_up(kept + beside, 8))
            per_sm = arch.blocks_per_sm(threads, limit, self.workspace_bytes(threads)) if limit <= most else 0
            if not per_sm:
                continue
            lanes = facts.reduction_elems / (threads * vectors * self.vector * blocks)
            resident = min(per_sm, ceil_div(facts.iteration_elems * blocks, arch.sm_count))
            in_flight = resident * threads * vectors * self.vector * facts.input_bits / 8 * lanes
            flight = min(1.0, in_flight / IN_FLIGHT_BYTES) ** FLIGHT_POWER
            score = flight * min(1.0, lanes) ** LANE_POWER * self.rounds(per_sm, blocks) - CLUSTER_LOSS[blocks] - TIGHT_LOSS * (beside == THREAD_REGISTERS)
            params = PersistentParams(
                kind="3d", storage="register", project_to_inputs=projected, vector_elems=self.vector, batches=batches, unroll=1, bdimx=None, pad_to_warp=True,
                rows_per_block=1, row_unroll=1, bdimz=bdimz, outer_batches=outer_batches, is_warp_only=False, max_registers=limit, cluster_blocks=blocks,
                still_axes=facts.still_axes, late=2 * (facts.late_input_bits > 0), unswitch=not facts.still_axes,
                along_run=along_run, fewer_passes=is_long,
            )  # fmt: skip
            warps = resident * threads // 32
            yield Candidate(params, score, lanes, threads, kept, per_sm, warps, in_flight, 0, facts.iteration_elems * blocks / (arch.sm_count * per_sm))

    def rounds(self, per_sm: int, blocks: int) -> float:
        """The fraction of the chip that is used if there are few rounds of resident blocks: the last one is not full."""
        count, at_once = self.facts.iteration_elems * blocks, self.arch.sm_count * per_sm
        return 1.0 if count >= 8 * at_once else (count / at_once / ceil_div(count, at_once)) ** ROUND_POWER
