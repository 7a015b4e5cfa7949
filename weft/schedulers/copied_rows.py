"""Rows of several runs in the shared memory of a block or of a cluster, where cp.async brings them: channels of a batch norm.

No register holds the row, nor what is on its way, so that several blocks share a multiprocessor: while one waits for its row or for the others of its
cluster, another stores. Owns their candidates. Pure: facts and arch in, candidates out. Read first: `CopiedRows.copied_candidates`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import CP_ASYNC_BYTES, MAX_GRID
from .arithmetic import ceil_div, round_up
from .channel_rows import CLUSTER_LOSS, LEAST_LANES, LEAST_VECTORS
from .cost.long_rows import LongRows, work_of_copied_rows
from .cost.parts import LOOP_REGISTERS, THREAD_REGISTERS
from .cost.passing import passing_ns
from .limits import LOOP_THREAD_REGISTERS, REGISTER_STEP
from .persistent_params import Candidate, PersistentParams, RowsOf, share_of

LEAST_COPY_BYTES = MAX_VECTOR_BITS // 8
"""Bytes of all inputs per address computation, at least: those of a widest access. Measured: docs/constants.md."""
COPIED_UNROLLS = range(1, 4)
"""Vectors of each input that a thread reads from shared memory before the first is used. Measured: docs/constants.md."""
COPIED_THREADS = range(192, 1025, 32)
"""Threads of a block. Fewer are often slower, because every warp sends its results to every block of a cluster. Measured: docs/constants.md."""
COPY_REGISTERS = 2 * REGISTER_STEP
"""Registers per thread for the addresses of copies ahead and of reads. Source: machine code for sm_90a."""


class CopiedRows(RowsOf):
    """Candidates of one set of facts."""

    def can_be_copied(self) -> bool:
        """True for rows of several runs that all passes read from the inputs, with accesses that cp.async supports."""
        facts = self.facts
        is_plain = not (facts.block_elems or facts.has_lookup or facts.has_rng or facts.single_reads or facts.still_axes or facts.nested_sums)
        is_cheap = facts.projected_bits is not None and not facts.recompute_has_exact_exp
        widths = [self.vector * bits // 8 for bits in (facts.min_dtype_bits, facts.max_dtype_bits)]
        copied_bits = self.vector * (facts.input_bits - facts.late_input_bits)
        is_wide = all(width in CP_ASYNC_BYTES for width in widths) and copied_bits >= LEAST_COPY_BYTES * 8
        has_runs = facts.dimensions == 3 and facts.outer_run_elems > 1 and self.row_vectors >= LEAST_VECTORS
        return is_plain and is_cheap and is_wide and has_runs and not self.is_phased and self.arch.has_tma

    def copied_candidates(self) -> Iterator[Candidate]:
        """Yield every size of cluster, block and unrolled loop with which the row fits and few vector slots stay empty."""
        if not self.can_be_copied():
            return
        for blocks in (b for b in CLUSTER_LOSS if b <= self.arch.max_cluster_blocks and (b == 1 or self.facts.iteration_elems <= MAX_GRID[1])):
            share = share_of(self.row_vectors, blocks)
            for unroll in COPIED_UNROLLS:
                for threads in COPIED_THREADS:
                    iterations = ceil_div(share, threads * unroll)
                    if share >= LEAST_LANES * iterations * threads * unroll:
                        yield from self.copied(blocks, threads, unroll, iterations)

    def copied(self, blocks: int, threads: int, unroll: int, iterations: int) -> Iterator[Candidate]:
        """The candidate, if its block fits."""
        facts, arch = self.facts, self.arch
        bits = (facts.projected_bits or 0) / facts.reduction_elems
        loaded = ceil_div(self.vector * facts.input_bits, 32) * unroll
        least = round_up(THREAD_REGISTERS + LOOP_REGISTERS + COPY_REGISTERS + loaded, REGISTER_STEP)
        shared = round_up(math.ceil(iterations * unroll * threads * self.vector * bits / 8), 128) + blocks * self.workspace_bytes(threads)
        per_sm = arch.blocks_per_sm(threads, least, shared)
        if not per_sm:
            return
        limit = max(least, min(LOOP_THREAD_REGISTERS, arch.registers_per_thread(threads * per_sm) // REGISTER_STEP * REGISTER_STEP))
        rows = LongRows(False, self.vector, unroll, threads, limit, shared, True, blocks)
        work = work_of_copied_rows(rows, iterations, facts, arch)
        score = facts.total_elems * self.moved_bits / 8 / (arch.roof_bytes_per_s * 1e-9) / float(passing_ns(work, arch))
        params = PersistentParams(
            kind="2d", storage="shared", project_to_inputs=True, vector_elems=self.vector, batches=0, unroll=unroll, bdimx=threads, pad_to_warp=True,
            rows_per_block=1, row_unroll=1, bdimz=1, outer_batches=1, is_warp_only=False, max_registers=limit, cluster_blocks=blocks, is_copied=True,
        )  # fmt: skip
        resident = min(per_sm, ceil_div(facts.iteration_elems * blocks, arch.sm_count))
        lanes = share_of(self.row_vectors, blocks) / (iterations * unroll * threads)
        in_flight = resident * threads * unroll * iterations * self.vector * facts.input_bits / 8
        yield Candidate(params, score, lanes, threads, 0, per_sm, resident * threads // 32, in_flight, shared, work.blocks / work.seats)
