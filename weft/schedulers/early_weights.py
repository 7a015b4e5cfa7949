"""Rows in registers whose weights are loaded together with the row: into registers, or by cp.async into shared memory.

Owns what was measured of them and their candidates, which are ranked together with those of late weights. Pure: facts and arch in, candidates out.
Read first: `EarlyWeights.early_candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator

from .persistent_params import Candidate
from .register_rows import FEW_BATCHES, MIN_REGISTERS, RANDOM_REGISTERS, BUSY_REGISTERS, Early, RegisterRows
from .arithmetic import PORTABLE_CLUSTER_BLOCKS, ceil_div, next_power_of_two, round_up
from .cost.parts import THREAD_REGISTERS
from .limits import FULL_BLOCK_THREADS, MANY_BATCHES

BLOCK_THREADS = FULL_BLOCK_THREADS // 2
"""Threads of a block, with four vectors each; longer rows are spread over a cluster."""

# In registers. What was measured for each of these constants: docs/constants.md.
LEAST_VECTORS = (128, 256)
"""Vectors of a row, at least: of rows with one barrier, and with two."""
SHORT_ROW_ELEMS = 4096
"""Row length up to which two vectors per thread are as good as four, for rows with one barrier."""
LEAST_REGISTERS = 48
GAIN = 0.05
LEAST_RANDOM_CLUSTER = 4
"""Blocks of a cluster that draws random numbers, at least."""

# In shared memory.
SHARED_LEAST_VECTORS = {(1, False): 1024, (1, True): 4096, (2, False): 2048, (2, True): 2048}
"""Vectors of a row, at least, by (barriers per row, types of 32 bits)."""
SHARED_LEAST_RANDOM_VECTORS = 3072
"""The same for float32 rows with random numbers."""
SHARED_MANY_REGISTERS = BUSY_REGISTERS + THREAD_REGISTERS
"""Registers besides the row, for rows with two barriers and eight vectors per thread; BUSY_REGISTERS with four."""
SHARED_GAIN = 0.08


class EarlyWeights(RegisterRows):
    """Candidates of one set of facts."""

    def early_candidates(self) -> Iterator[Candidate]:
        """Yield candidates with rows in one block, or spread over the blocks of a cluster."""
        facts = self.facts
        if not facts.broadcast_operand_bits or facts.dimensions != 2 or self.is_phased or self.full_vectors() != 1:
            return
        yield from self.with_weights_in_registers()
        if self.has_shared_weights():
            yield from self.with_weights_in_shared()

    # ---- in registers
    def with_weights_in_registers(self) -> Iterator[Candidate]:
        """Yield candidates for rows that are short enough to keep the weights in registers, too."""
        facts = self.facts
        blocks = next_power_of_two(ceil_div(self.row_vectors, FEW_BATCHES * BLOCK_THREADS))
        if self.row_vectors < LEAST_VECTORS[self.levels > 1] or blocks not in self.blocks_in_registers():
            return
        is_short = self.levels == 1 and facts.reduction_elems <= SHORT_ROW_ELEMS and not facts.has_lookup
        wanted = FEW_BATCHES // 2 if is_short else FEW_BATCHES
        for projected, bits in self.projections():
            for batches in range(1, FEW_BATCHES + 1):
                early = Early("registers", self.registers_with_weights(self.row_registers(bits, batches), batches), wanted, GAIN)
                yield from self.in_cluster(projected, bits, batches, blocks, early)

    def blocks_in_registers(self) -> range:
        """Numbers of blocks that may share a row: one for rows with two cluster barriers, and none with types of 32 bits.

        With random numbers, only long rows of 32 bits gain. Measured: docs/constants.md.
        """
        facts, arch = self.facts, self.arch
        most = arch.max_cluster_blocks if facts.vectorizable_inputs > 1 else min(PORTABLE_CLUSTER_BLOCKS, arch.max_cluster_blocks)
        if facts.has_rng:
            return range(LEAST_RANDOM_CLUSTER, most + 1) if self.is_wide else range(0)
        if self.levels == 1:
            return range(1, most + 1)
        return range(0) if self.is_wide else range(1, 2)

    def registers_with_weights(self, kept: int, vectors: int) -> int:
        """Registers of a thread that holds its part of the row and of the weights."""
        facts = self.facts
        held = max(kept, self.loaded_registers(vectors) * (not facts.has_rng)) + self.weight_registers(vectors) + self.sum_registers(kept)
        beside = BUSY_REGISTERS if self.is_wide and not facts.has_rng else THREAD_REGISTERS + RANDOM_REGISTERS * facts.has_rng
        return max(LEAST_REGISTERS, round_up(held + beside + self.narrow_registers(), 8))

    # ---- in shared memory
    def has_shared_weights(self) -> bool:
        """True for rows that are long enough: rows of one input, the longest rows of several inputs, and rows with random numbers. Exponentials and weights
        of groups of rows: not measured."""
        facts = self.facts
        if facts.has_exp or facts.group_operands:
            return False
        if facts.has_rng:
            return self.is_wide and self.row_vectors >= SHARED_LEAST_RANDOM_VECTORS
        if facts.vectorizable_inputs > 1:
            return self.levels == 1 and self.row_vectors >= self.arch.max_cluster_blocks * FEW_BATCHES * BLOCK_THREADS
        is_long = self.row_vectors >= SHARED_LEAST_VECTORS[min(self.levels, 2), self.is_wide]
        most = min(PORTABLE_CLUSTER_BLOCKS, self.arch.max_cluster_blocks) * FEW_BATCHES * BLOCK_THREADS
        return is_long and (self.levels == 1 or self.is_in_one_block() or self.row_vectors <= most)

    def with_weights_in_shared(self) -> Iterator[Candidate]:
        """Yield candidates with weights in shared memory: fewer registers, so more resident blocks."""
        wanted, blocks = self.shared_batches(), self.shared_blocks()
        is_longest = blocks == self.arch.max_cluster_blocks and self.facts.vectorizable_inputs == 1
        most = MANY_BATCHES if is_longest and not self.facts.has_rng else wanted
        for projected, bits in self.projections():
            for batches in range(1, most + 1):
                early = Early("shared", self.registers_beside_shared(bits, batches), wanted, SHARED_GAIN)
                yield from self.in_cluster(projected, bits, batches, blocks, early)

    def registers_beside_shared(self, bits: float, batches: int) -> int:
        """Registers of a thread that keeps `batches` vectors of the row, or of all inputs when they arrive."""
        facts = self.facts
        is_several = facts.vectorizable_inputs > 1 and not facts.has_rng
        held = max(self.row_registers(bits, batches), self.loaded_registers(batches) * is_several)
        if self.levels == 1 and not facts.has_rng and not (is_several and self.is_wide):
            return max(MIN_REGISTERS, round_up(held + THREAD_REGISTERS, 8))
        return max(MIN_REGISTERS, round_up(held + (SHARED_MANY_REGISTERS if batches > FEW_BATCHES else BUSY_REGISTERS), 8))

    def shared_batches(self) -> int:
        """Vectors per thread: many if one block has a row with two barriers."""
        return MANY_BATCHES if self.is_in_one_block() else FEW_BATCHES

    def is_in_one_block(self) -> bool:
        """True for rows with two barriers that fit in one block with many vectors per thread, where a second block only costs. Measured:
        docs/constants.md."""
        facts = self.facts
        is_wide = self.is_wide or facts.has_rng
        return self.levels > 1 and not is_wide and facts.reduction_elems * facts.max_dtype_bits <= self.one_block_bytes * 8

    def shared_blocks(self) -> int:
        """Numbers of blocks of a cluster that may share a row."""
        blocks = next_power_of_two(ceil_div(self.row_vectors, self.shared_batches() * BLOCK_THREADS))
        return 1 if self.is_in_one_block() else min(blocks, self.arch.max_cluster_blocks)
