"""Rows that are too long for registers: kept in shared memory, or read again by every pass.

The loop over a row has a run-time count and the block is static: one kernel for every length. Owns their candidates, which a model ranks.
Pure: facts and arch in, candidates out. Read first: `StreamedRows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..arch import MAX_GRID
from .persistent_params import Candidate, PersistentParams, RowsOf
from .arithmetic import ceil_div, previous_power_of_two, round_up
from .cost.parts import clusters_at_once
from .throughput_heuristic import (
    ACCESS_INSTRUCTIONS,
    BLOCK_REDUCTION_INSTRUCTIONS,
    INSTRUCTIONS_PER_OP,
    LATENCY_NS,
    MUFU_CLOCKS,
    WARP_INSTRUCTIONS,
    balance,
    clocks_per_ns,
    l2_bytes_per_ns,
    reduction_clocks,
    rereads_from_memory,
    roof_fraction,
    vector_latency_clocks,
)

GOOD_BYTES_PER_THREAD = 64
"""Four 16-byte loads of a tensor in flight."""
SHARED_FACTOR = 0.84
"""Rows in shared memory against the model."""
REREAD_FACTOR = 0.92
"""Rows read again against the model, which knows nothing of what the second reading costs in L1 and L2."""
MOST_SHARING, LEAST_ITERATIONS = 8, 2
"""Blocks of a cluster that share a row that is read again, at most, and iterations of each over its piece, at least."""
LONG_ROW_THREADS_PER_SM = 1536
"""Threads of a multiprocessor to plan registers for: 40 each."""


class StreamedRows(RowsOf):
    """Candidates of one set of facts."""

    def times_ns(self, warps: int, vectors: float, projected: bool) -> tuple[float, float]:
        """Return (rest, issue) of a block of `warps`, whose threads have `vectors` each; see `throughput_heuristic`."""
        facts, clock = self.facts, clocks_per_ns(self.arch)
        again = projected and facts.projected_bits is not None and facts.projected_bits < facts.persistent_bits
        ops = facts.instructions + (facts.recompute_instructions if again else 0)
        mufu = facts.mufu + (again and facts.recompute_has_exact_exp)
        tensors = max(1, facts.vectorizable_inputs) + facts.broadcast_operands + (facts.output_bits > 0)
        instructions = self.vector * max(ops * INSTRUCTIONS_PER_OP, mufu * MUFU_CLOCKS / 2) + tensors * ACCESS_INSTRUCTIONS
        clocks = vectors * max(vector_latency_clocks(self.vector, facts.passes), instructions * warps / 4)
        rest = LATENCY_NS + (clocks + self.levels * reduction_clocks(warps)) / clock
        return rest, warps / 4 * (vectors * instructions + self.levels * BLOCK_REDUCTION_INSTRUCTIONS + WARP_INSTRUCTIONS) / clock

    def block_sizes(self) -> tuple[int, ...]:
        """Blocks whose threads all have at least two vectors (the smallest one otherwise)."""
        sizes = tuple(t for t in (64, 128, 256, 512, 1024) if t * 2 <= self.row_vectors)
        return sizes[-3:] or (64,)

    def loop_unroll(self, threads: int) -> int:
        """Vectors of a thread whose loads are issued together."""
        wanted = previous_power_of_two(GOOD_BYTES_PER_THREAD * 8 // (self.vector * self.facts.max_dtype_bits))
        return min(8, wanted, previous_power_of_two(ceil_div(self.row_vectors, threads)))

    def shared_candidates(self) -> Iterator[Candidate]:
        """Rows in shared memory, for every size of block with which they fit."""
        facts, arch = self.facts, self.arch
        projected, bits = self.projections()[0]
        transfer = facts.reduction_elems * self.moved_bits / 8 / self.share
        for threads in self.block_sizes():
            widest = self.loop_unroll(threads)
            for unroll in (u for u in (8, 4, 2, 1) if u == widest or u < widest and u >= self.full_vectors()):
                held = round_up(self.row_vectors, threads * unroll) * self.vector  # whole iterations of the loop
                shared = round_up(math.ceil(held * bits / 8), 128) + self.workspace_bytes(threads)
                blocks = arch.blocks_per_sm(threads, 32, shared)
                if blocks:
                    yield self.long_row_candidate("shared", threads, unroll, blocks, transfer, transfer, projected, shared)
                    break

    def reread_candidates(self) -> Iterator[Candidate]:
        """Rows read again, for every size of block."""
        facts, arch = self.facts, self.arch
        for threads in self.block_sizes():
            blocks = arch.max_threads_per_sm // threads
            row_bytes = facts.reduction_elems * facts.input_bits / 8
            moved = facts.reduction_elems * self.moved_bits / 8
            again = (facts.passes - 1) * row_bytes
            in_work = min(arch.sm_count * blocks, facts.iteration_elems) * row_bytes
            memory = (moved + again * rereads_from_memory(in_work, arch)) / self.share
            through_l2 = (moved + again) / l2_bytes_per_ns(arch)
            made = self.long_row_candidate("reread", threads, self.loop_unroll(threads), blocks, moved / self.share, max(memory, through_l2), True, 0)
            yield replace(made, params=replace(made.params, cluster_blocks=self.sharing(threads * made.params.unroll)))

    def sharing(self, iteration_vectors: int) -> int:
        """Return how many blocks of a cluster share a row that is read again: as many as end first, where rows are long and fewer than multiprocessors."""
        facts, arch = self.facts, self.arch
        if 2 * facts.iteration_elems > arch.sm_count or facts.block_elems or facts.iteration_elems > MAX_GRID[1]:
            return 1
        most = min(MOST_SHARING, arch.max_cluster_blocks, self.row_vectors // (LEAST_ITERATIONS * iteration_vectors))
        sizes = [blocks for blocks in (1, 2, 4, 8) if blocks <= max(1, most)]
        return min(sizes, key=lambda blocks: (ceil_div(facts.iteration_elems, int(clusters_at_once(blocks, arch))) / blocks, -blocks))

    def long_row_candidate(
        self, storage: str, threads: int, unroll: int, blocks: int, needed_ns: float, spent_ns: float, projected: bool, shared: int
    ) -> Candidate:  # fmt: skip
        """`needed_ns`: transfer of a row that is read once, `spent_ns`: of what this storage reads and writes."""
        facts, arch = self.facts, self.arch
        vectors = ceil_div(self.row_vectors, threads)
        warps = threads // 32
        rest, issue = self.times_ns(warps, vectors, projected)
        rest += self.levels * LATENCY_NS if storage == "reread" else 0.0
        resident = min(blocks, ceil_div(facts.iteration_elems, arch.sm_count))
        factor = (SHARED_FACTOR if storage == "shared" else REREAD_FACTOR) * needed_ns / spent_ns
        score = factor * roof_fraction(resident, spent_ns, rest, issue) * balance(facts.iteration_elems, arch)
        registers = min(64, arch.registers_per_thread(min(LONG_ROW_THREADS_PER_SM // threads * threads, threads * blocks)))
        params = PersistentParams(
            kind="2d", storage=storage, project_to_inputs=projected and facts.projected_bits is not None, vector_elems=self.vector, batches=0, unroll=unroll,
            bdimx=threads, pad_to_warp=True, rows_per_block=1, row_unroll=1, bdimz=1, outer_batches=1, is_warp_only=False, max_registers=registers,
            block_lanes=self.block_lanes, still_axes=facts.still_axes,
        )  # fmt: skip
        in_flight = resident * threads * unroll * self.vector * (facts.input_bits - facts.late_input_bits) / 8
        waves = facts.iteration_elems / (arch.sm_count * blocks)
        return Candidate(params, score, 1.0, threads, 0, blocks, resident * warps, in_flight, shared, waves)
