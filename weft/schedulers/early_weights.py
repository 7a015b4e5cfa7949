"""Rows in registers whose weights are on their way together with them: in registers, too, or by cp.async in shared memory.

Owns what was measured of them and their candidates, which are ranked together with those of late weights. Pure: facts and arch in, candidates out.
Read first: `EarlyWeights.early_candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator

from .persistent_params import Candidate
from .register_rows import FEW_BATCHES, MANY_BATCHES, MIN_REGISTERS, OVERHEAD_REGISTERS, RANDOM_REGISTERS, Early, RegisterRows
from .throughput_heuristic import PORTABLE_CLUSTER_BLOCKS, ceil_div, next_power_of_two, round_up

BLOCK_THREADS = 256
"""Of a block, with four vectors each; longer rows are spread over a cluster. One H200, bf16, 64 Mi elements, of a copy, weights in registers: add + RMS norm of
16K 0.97 for 0.94, of 32K 0.96 for 0.91, of 64K 0.96 for 0.89, of 128K 0.96 for 0.83; RMS norm of float32 16K 0.99 for 0.95."""

# In registers.
LEAST_VECTORS = (128, 256)
"""Of rows that wait at one barrier, and at two: RMS norm of 1024 bf16 1.13 for 1.07, add + RMS norm 1.04 for 0.98; layer norm of 64K rows of these is 2 %
slower."""
SHORT_ROW_ELEMS = 4096
"""Up to which two vectors of a thread are as good as four where the row waits at one barrier: RMS norm of 4096 float32 0.99 for 0.98, bf16 0.98 for 0.97.
Rows that an index finds wait longer: RMS norm of 32768 rows of an embedding of 4096 columns bf16 0.939 with four, 0.927 with two."""
LEAST_REGISTERS = 48
WIDE_BESIDE_REGISTERS = 32
"""Beside row and weights for types of 32 bits and one barrier: RMS norm of 16K float32 in clusters of four is 0.99 with 64 registers, 0.92 with 48."""
GAIN = 0.05
LEAST_RANDOM_CLUSTER = 4
"""Blocks of a cluster that draws random numbers: dropout + layer norm of 1024 x 16K float32 62 us for 93, of 8192 columns slower than one block."""

# In shared memory. Source: 4 or 8 vectors of up to 256 or 512 threads, rows of 4K to 128K, 64 Mi elements, beside the choice without them in one process on
# one H200, November 2026; fractions of a copy.
SHARED_LEAST_VECTORS = {(1, False): 1024, (1, True): 4096, (2, False): 2048, (2, True): 2048}
"""By barriers that a row waits at, and whether types have 32 bits: RMS norm of 8192 bf16 0.986 for 0.967, of 16K 0.986 for 0.976, of 128K 0.966 for 0.917, of
float32 16K 0.980 for 0.976 (512 rows 0.993 for 0.942), 64K 0.971 for 0.945, 152064 1.005 for 0.860, but 8192 0.986 for 0.987; layer norm of 16K bf16 0.992
for 0.981, 24K 0.988 for 0.974, 64K 0.905 for 0.854, of float32 8192 0.965 for 0.959, 16K 1.000 for 0.960, 32K 0.988 for 0.940, but 12K bf16 0.964 for 0.974,
and in clusters of 16 blocks of float32 40000 0.894 for 0.958, 64K 0.887 for 0.891; add + RMS norm of 128K float32 0.898 for 0.759, bf16 0.965 for 0.947."""
SHARED_LEAST_RANDOM_VECTORS = 3072
"""The same where float32 rows draw random numbers: dropout + layer norm of 12K 0.948 for 0.897, of 16K 0.945 for 0.872, of 64K 0.866 for 0.774, of 128K 0.72
for 0.68, but of 8192 0.990 for 0.992."""
SHARED_BESIDE_REGISTERS, SHARED_TWICE_REGISTERS, SHARED_MANY_REGISTERS = 16, 32, 48
"""Beside the row where it waits at one barrier, at two, and at two with eight vectors. Layer norm of 64K bf16 0.905 with 48, 0.839 with 40, of 32K, with
eight, 0.963 with 80, 0.906 with 64; RMS norm is within 1 % with 32 and 40."""
SHARED_GAIN = 0.08


class EarlyWeights(RegisterRows):
    """Candidates of one set of facts."""

    def early_candidates(self) -> Iterator[Candidate]:
        """Rows in one block, or spread over the blocks of a cluster."""
        facts = self.facts
        if not facts.broadcast_operand_bits or facts.dimensions != 2 or self.is_phased or self.full_vectors() != 1:
            return
        yield from self.with_weights_in_registers()
        if self.has_shared_weights():
            yield from self.with_weights_in_shared()

    # ---- in registers
    def with_weights_in_registers(self) -> Iterator[Candidate]:
        """Rows short enough for the registers that their weights take, too."""
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
        """Numbers of blocks that may share a row: one where it waits for the cluster twice, and none with types of 32 bits (layer norm of 4096 0.91 for 0.98).

        With random numbers, only long rows of 32 bits gain.
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
        beside = WIDE_BESIDE_REGISTERS if self.is_wide and not facts.has_rng else OVERHEAD_REGISTERS + RANDOM_REGISTERS * facts.has_rng
        return max(LEAST_REGISTERS, round_up(held + beside + self.narrow_registers(), 8))

    # ---- in shared memory
    def has_shared_weights(self) -> bool:
        """True for rows long enough: those of one input, the longest of several, and those that draw random numbers meanwhile. Exponentials: not measured."""
        facts = self.facts
        if facts.has_exp:
            return False
        if facts.has_rng:
            return self.is_wide and self.row_vectors >= SHARED_LEAST_RANDOM_VECTORS
        if facts.vectorizable_inputs > 1:
            return self.levels == 1 and self.row_vectors >= self.arch.max_cluster_blocks * FEW_BATCHES * BLOCK_THREADS
        is_long = self.row_vectors >= SHARED_LEAST_VECTORS[min(self.levels, 2), self.is_wide]
        most = min(PORTABLE_CLUSTER_BLOCKS, self.arch.max_cluster_blocks) * FEW_BATCHES * BLOCK_THREADS
        return is_long and (self.levels == 1 or self.is_in_one_block() or self.row_vectors <= most)

    def with_weights_in_shared(self) -> Iterator[Candidate]:
        """Few registers, which let more blocks in."""
        wanted, blocks = self.shared_batches(), self.shared_blocks()
        is_longest = blocks == self.arch.max_cluster_blocks and self.facts.vectorizable_inputs == 1
        most = MANY_BATCHES if is_longest and not self.facts.has_rng else wanted
        for projected, bits in self.projections():
            for batches in range(1, most + 1):
                early = Early("shared", self.registers_beside_shared(bits, batches), wanted, SHARED_GAIN)
                yield from self.in_cluster(projected, bits, batches, blocks, early)

    def registers_beside_shared(self, bits: float, batches: int) -> int:
        """Registers of a thread that keeps `batches` vectors of the row, or holds those of all inputs when they arrive."""
        facts = self.facts
        is_several = facts.vectorizable_inputs > 1 and not facts.has_rng
        held = max(self.row_registers(bits, batches), self.loaded_registers(batches) * is_several)
        if self.levels == 1 and not facts.has_rng and not (is_several and self.is_wide):
            return max(MIN_REGISTERS, round_up(held + SHARED_BESIDE_REGISTERS, 8))
        return max(MIN_REGISTERS, round_up(held + (SHARED_MANY_REGISTERS if batches > FEW_BATCHES else SHARED_TWICE_REGISTERS), 8))

    def shared_batches(self) -> int:
        """Vectors of a thread: many where one block holds a row that waits twice."""
        return MANY_BATCHES if self.is_in_one_block() else FEW_BATCHES

    def is_in_one_block(self) -> bool:
        """True for rows that wait twice and that one block of many vectors each keeps. Layer norm of 24K bf16 0.988 in one, 0.888 in two."""
        facts = self.facts
        is_wide = self.is_wide or facts.has_rng
        return self.levels > 1 and not is_wide and facts.reduction_elems * facts.max_dtype_bits <= self.one_block_bytes * 8

    def shared_blocks(self) -> int:
        """Blocks of a cluster that share a row."""
        blocks = next_power_of_two(ceil_div(self.row_vectors, self.shared_batches() * BLOCK_THREADS))
        return 1 if self.is_in_one_block() else min(blocks, self.arch.max_cluster_blocks)
