"""Rows too long for registers: kept in shared memory, or read again by every pass.

The loop over a row has a run-time count and the block is static: one kernel for every length. Owns their candidates, which a model ranks.
Pure: facts and arch in, candidates out. Read first: `StreamedRows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..arch import MAX_GRID
from .persistent_params import Candidate, PersistentParams, RowsOf
from .arithmetic import PORTABLE_CLUSTER_BLOCKS, ceil_div, previous_power_of_two, round_up
from .cost.long_rows import LongRows, work_of_long_rows
from .cost.parts import registers
from .cost.passing import Passing, passing_ns
from .limits import LOOP_THREAD_REGISTERS, REGISTER_STEP

GOOD_BYTES_PER_THREAD = 64
"""Bytes per thread of a tensor: four 16-byte loads in flight."""
LEAST_ITERATIONS = 2
"""Iterations over its piece, at least, of each block of a cluster that shares a row which is read again."""


class StreamedRows(RowsOf):
    """Candidates of one set of facts."""

    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes with at least two vectors per thread (otherwise the smallest size)."""
        multiple, most = self.block_multiple(2), self.arch.max_threads_per_block
        sizes = tuple(t for t in (64, 128, 256, 512, 1024) if t * 2 <= self.row_vectors)[-3:] or (64,)
        return tuple(dict.fromkeys(threads for t in sizes if (threads := round_up(t, multiple)) <= most))

    def loop_unroll(self, threads: int) -> int:
        """Vectors of a thread whose loads are issued together."""
        wanted = previous_power_of_two(GOOD_BYTES_PER_THREAD * 8 // (self.vector * self.facts.max_dtype_bits))
        return min(8, wanted, previous_power_of_two(ceil_div(self.row_vectors, threads)))

    def shared_candidates(self) -> Iterator[Candidate]:
        """Yield candidates with rows in shared memory, for every block size with which they fit."""
        projected, bits = self.projections()[0]
        for threads in self.block_sizes():
            widest = self.loop_unroll(threads)
            for unroll in (u for u in (8, 4, 2, 1) if u == widest or u < widest and u >= self.full_vectors()):
                held = round_up(self.row_vectors, threads * unroll) * self.vector  # whole iterations of the loop
                shared = round_up(math.ceil(held * bits / 8), 128) + self.workspace_bytes(threads)
                if self.arch.blocks_per_sm(threads, 32, shared):
                    yield self.long_row_candidate("shared", threads, unroll, projected, shared, 1)
                    break

    def reread_candidates(self) -> Iterator[Candidate]:
        """Yield candidates with rows that are read again, for every block size and cluster size."""
        for threads in self.block_sizes():
            unroll = self.loop_unroll(threads)
            for blocks in self.cluster_sizes(threads * unroll):
                yield self.long_row_candidate("reread", threads, unroll, True, 0, blocks)

    def cluster_sizes(self, iteration_vectors: int) -> list[int]:
        """Return how many blocks may share a row that is read again: several only if rows are long, and one for each would leave half of the chip idle."""
        facts, arch = self.facts, self.arch
        if 2 * facts.iteration_elems > arch.sm_count or facts.block_elems or facts.iteration_elems > MAX_GRID[1]:
            return [1]
        most = min(PORTABLE_CLUSTER_BLOCKS, arch.max_cluster_blocks, self.row_vectors // (LEAST_ITERATIONS * iteration_vectors))
        return [blocks for blocks in (1, 2, 4, 8) if blocks <= max(1, most)]

    def registers_of(self, threads: int, unroll: int) -> int:
        """Return the register limit of a thread, which loads so many vectors of each input before it uses the first."""
        facts = self.facts
        needed = registers(unroll * self.vector * facts.input_bits / 32, facts.instructions, held=facts.reductions * facts.accumulator_bits / 32)
        return min(LOOP_THREAD_REGISTERS, self.arch.registers_per_thread(threads), round_up(math.ceil(needed), REGISTER_STEP))

    def work_of(self, params: PersistentParams, shared_bytes: int = 0) -> Passing:
        """Return the work of the kernel of a candidate. shared_bytes: per block."""
        rows = LongRows(
            params.storage == "reread", params.vector_elems, params.unroll, params.threads_x(self.facts), params.max_registers, shared_bytes,
            params.project_to_inputs, params.cluster_blocks,
        )  # fmt: skip
        return work_of_long_rows(rows, self.facts, self.arch)

    def long_row_candidate(self, storage: str, threads: int, unroll: int, projected: bool, shared: int, cluster_blocks: int) -> Candidate:
        """Return a candidate, with the predicted fraction of memory bandwidth as its score."""
        facts, arch = self.facts, self.arch
        limit = self.registers_of(threads, unroll)
        ideal = facts.total_elems * self.moved_bits / 8 / (arch.roof_bytes_per_s * 1e-9)
        params = PersistentParams(
            kind="2d", storage=storage, project_to_inputs=projected and facts.projected_bits is not None, vector_elems=self.vector, batches=0, unroll=unroll,
            bdimx=threads, pad_to_warp=True, rows_per_block=1, row_unroll=1, bdimz=1, outer_batches=1, is_warp_only=False, max_registers=limit,
            block_lanes=self.block_lanes, cluster_blocks=cluster_blocks, still_axes=facts.still_axes,
        )  # fmt: skip
        work = self.work_of(params, shared)
        blocks = int(work.resident)
        resident = min(blocks, ceil_div(facts.iteration_elems * cluster_blocks, arch.sm_count))
        in_flight = resident * threads * unroll * self.vector * (facts.input_bits - facts.late_input_bits) / 8
        score = ideal / float(passing_ns(work, arch))
        return Candidate(params, score, 1.0, threads, 0, blocks, resident * threads // 32, in_flight, shared, work.blocks / work.seats)
