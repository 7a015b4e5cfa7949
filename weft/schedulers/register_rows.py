"""Rows kept in the registers of a block, or of the blocks of a cluster.

Owns what was measured of them and their candidates, which are ranked by the lanes that hold data, less the losses that were measured. Pure: facts and arch in,
candidates out. Read first: `RegisterRows.candidates`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from ..arch import LINE_BYTES, MAX_BLOCK_Z, MAX_GRID, Arch
from .facts import PersistentFacts
from .persistent_params import SHARE_MULTIPLE, Candidate, PersistentParams, RowsOf, share_of
from .arithmetic import PORTABLE_CLUSTER_BLOCKS, ceil_div, next_power_of_two, previous_power_of_two, round_up
from .limits import BATCHES, FULL_BLOCK_THREADS, MANY_BATCHES, REGISTER_STEP, ROW_THREAD_REGISTERS, TARGET_WARPS
from .cost.parts import ADDRESS_REGISTERS, LOOP_REGISTERS, THREAD_REGISTERS
from ..analysis.vectorization import MAX_VECTOR_BITS

# Rows in registers. What was measured for each of these constants: docs/constants.md.
NARROW_CAPABILITY = (9, 0)
"""A step of registers for conversions to 8 and 4 bits before Hopper, which has minima of three and packs in one instruction, and for the second half of a
vector of 16 beside exponentials."""
BLOCKS_OF_4_BITS = 3
"""Number of such steps for 4 bits with a scale per block, because the elements are encoded together."""
OPERAND_REGISTERS = MAX_VECTOR_BITS // 32
"""Registers for a vector of each weight."""
USUAL_TENSORS = 2
"""Number of tensors with rows that THREAD_REGISTERS include; each further one needs an address. Measured: docs/constants.md."""
RANDOM_REGISTERS = REGISTER_STEP
"""Registers for the state of Philox if all rows are resident at once; otherwise none for types of 16 bits, and twice as many, without slack, for types of
32."""
WIDE_REGISTERS = THREAD_REGISTERS + LOOP_REGISTERS
"""Registers besides the row for types of 32 bits, and the slack of the limit: with a tight limit the compiler loads one vector after the other, without a
visible spill. Not needed for rows of up to THREAD_REGISTERS with two barriers and without exponentials."""
MIN_REGISTERS = 32
"""Registers per thread with 2048 threads per multiprocessor."""
FEW_BATCHES = 4
"""16-byte vectors per thread, if the row and its reductions allow it: four loads per tensor. MANY_BATCHES for rows of more than 256 threads with two barriers
or more."""
MOST_NARROW = 4
"""Narrower vectors get more batches, for the same bytes, up to this factor."""
FEW_BATCHES_BYTES = FULL_BLOCK_THREADS // 2 * FEW_BATCHES * MAX_VECTOR_BITS // 8
"""Bytes of a tensor's row up to which two barriers do not justify more vectors per thread."""
MANY_BYTES_PER_THREAD = 192
"""Bytes of a tensor per thread above which more batches are tried only if the row needs them (nvFuser stops at 10 to 12 vectors)."""
MAX_ELEMS_PER_THREAD = 256
"""Elements per thread in straight-line code; with more, compile time and instruction cache misses increase."""
OTHER_BATCHES_LOSS = 0.06
"""Loss of the score per doubling away from the wanted batches; idle lanes cost their fraction."""
FEWER_CLUSTER_BATCHES_LOSS = 0.15
"""The same per halving in a cluster."""
FULL_BLOCK_WARPS = 32
"""Warps of a single resident block from which it loses nothing with one barrier per row."""
FEW_WARPS_LOSS = 0.1
RECOMPUTED_EXP_LOSS = 0.07
"""Loss of the score for recomputing full-accuracy exponentials although they could be kept."""
SMALL_BLOCK_THREADS = 64
NARROW_BLOCK_THREADS = 256
SHORT_ROW_BYTES = 512
"""Threads to which rows in one warp are gathered in a block; the second for rows that give a lane one 16-byte vector or less."""
FEW_LANES = LINE_BYTES * 8 // MAX_VECTOR_BITS
"""Lanes whose vectors are a line of memory: fewer hold a row only if they hold all of it at once, as accesses to pieces of many rows are not contiguous."""

# Few rows.
MOST_ROWS_AT_ONCE, MANY_ROWS_AT_ONCE = 8, 4
"""Rows per multiprocessor; more than the second only if registers hold the weights, too."""
MOST_THREADS_AT_ONCE, CLUSTER_THREADS_AT_ONCE = FULL_BLOCK_THREADS, FULL_BLOCK_THREADS // 2
"""Threads of a block, alone and in a cluster, at most: more make a row's reductions slower. Measured: docs/constants.md."""
LEAST_CLUSTER_VECTORS, LEAST_SHARE_VECTORS, LONG_ROW_VECTORS = 1024, 256, 4096
"""Vectors of a row from which it is spread over a cluster; least vectors of each of its blocks; vectors of a row from which two blocks may share a
multiprocessor."""

# Rows in the registers of a cluster.
ONE_BLOCK_BYTES = 64 * 1024
SHORT_BLOCK_BYTES = ONE_BLOCK_BYTES // 2
"""Bytes of a tensor's row from which a cluster is better than one block (1024 threads of 4 vectors, or 512 of 8). The second for rows with exponentials
between two barriers."""
LONG_CLUSTER_REGISTERS = WIDE_REGISTERS
"""Registers besides those for a thread's part of the row in a cluster, if that part takes more than this."""
BUSY_REGISTERS = 32
"""Registers besides the row if a thread has more in flight: the loop over rows of specialized warps, weights in shared memory and two barriers, rows of several
inputs of 32 bits in a cluster. With fewer the compiler does not spill: it issues two of eight loads, and waits for them before the next.
Measured: docs/constants.md."""
CLUSTER_SHARE_BYTES = SHORT_BLOCK_BYTES
"""Bytes of a row in each block of a cluster; more if the largest cluster is not large enough."""
CLUSTER_BLOCK_THREADS = (128, 512)
"""Fewest and most threads of a block of a cluster."""
MAX_CLUSTER_ELEMS_PER_THREAD = MAX_ELEMS_PER_THREAD // 2


@dataclasses.dataclass(frozen=True)
class Early:
    """How weights are loaded together with the row. weights: as in the params. registers: per thread. batches: wanted vectors per thread. gain: in the score
    over late weights.
    """

    weights: str
    registers: int
    batches: int
    gain: float


class RegisterRows(RowsOf):
    """Candidates of one set of facts. word_registers: registers per thread for weights that are read word by word after two barriers."""

    def __init__(self, facts: PersistentFacts, arch: Arch) -> None:
        super().__init__(facts, arch)
        is_short = facts.has_exp and self.levels > 1 or facts.has_rng
        self.one_block_bytes = SHORT_BLOCK_BYTES if is_short else ONE_BLOCK_BYTES
        tensors = max(0, ceil_div(self.moved_bits, facts.max_dtype_bits) - USUAL_TENSORS)
        self.is_random_wide = facts.has_rng and self.is_wide
        self.overhead = THREAD_REGISTERS + ADDRESS_REGISTERS * tensors + OPERAND_REGISTERS * facts.broadcast_operands
        self.word_registers = REGISTER_STEP * (self.is_phased and self.levels > 1 and facts.broadcast_operands > 0)
        self.overhead += self.narrow_registers()

    # ---- in the registers of a block
    def candidates(self) -> Iterator[Candidate]:
        """Yield candidates with rows in one block, for every number of batches; rows of two reduced runs also with threads along the outer one."""
        facts = self.facts
        has_outer_run = facts.dimensions == 3 and facts.outer_run_elems > 1
        for projected, bits in self.projections():
            for batches in self.batch_range(self.row_vectors):
                yield from self.in_registers(projected, bits, batches)
            if has_outer_run:
                yield from self.in_registers_3d(projected, bits)

    # ---- all rows at once
    def at_once(self) -> Candidate | None:
        """Return the candidate for so few rows that all are resident at once: nothing hides the latency of a row, so the length of its dependency chain
        decides."""
        facts, arch = self.facts, self.arch
        blocks = self.cluster_at_once()
        share = ceil_div(self.row_vectors, blocks)
        resident = next_power_of_two(ceil_div(facts.iteration_elems * blocks, arch.sm_count))  # so that not every number of rows gets a separate kernel
        most_bytes = ONE_BLOCK_BYTES if self.is_random_wide and blocks == 1 else self.one_block_bytes
        is_kept = facts.dimensions == 2 and ceil_div(facts.reduction_elems, blocks) * facts.max_dtype_bits <= most_bytes * 8
        if resident > MOST_ROWS_AT_ONCE or not is_kept or self.row_vectors <= FEW_BATCHES * arch.warp_threads:
            return None
        for projected, bits in self.projections():
            for batches in self.batches_at_once(share, blocks > 1):
                for found in self.in_registers(projected, bits, batches) if blocks == 1 else self.in_cluster(projected, bits, batches, blocks):
                    threads = found.threads_per_block * resident
                    limit = min(ROW_THREAD_REGISTERS, arch.registers_per_thread(threads) // 8 * 8) if threads <= arch.max_threads_per_sm else 0
                    if limit >= max(MIN_REGISTERS, self.held_at_once(found)):
                        made = self.with_limit(found, limit)
                        return made if resident <= MANY_ROWS_AT_ONCE or made.params.weights == "registers" or not facts.broadcast_operands else None
        return None

    def batches_at_once(self, share: int, is_cluster: bool) -> range:
        """Vectors per thread for `share` vectors in a block. In a cluster fewer warps are better, because every warp sends its results to every block.
        Measured: docs/constants.md.
        """
        if is_cluster:
            wanted = ceil_div(share, CLUSTER_THREADS_AT_ONCE)
            return range(max(2, wanted if wanted <= FEW_BATCHES else ceil_div(share, MOST_THREADS_AT_ONCE)), MANY_BATCHES + 1)
        is_large = self.is_random_wide and share > FEW_BATCHES * MOST_THREADS_AT_ONCE
        most = MANY_BATCHES if self.levels > 1 and not self.is_wide and not self.facts.has_rng else FEW_BATCHES
        return range(ceil_div(share, self.arch.max_threads_per_block if is_large else MOST_THREADS_AT_ONCE), most + 1)

    def cluster_at_once(self) -> int:
        """Number of blocks that share a row if there are fewer rows than multiprocessors: as many as have work."""
        if self.row_vectors < LEAST_CLUSTER_VECTORS:
            return 1
        loaded = self.row_vectors * max(1, self.facts.vectorizable_inputs) if not self.facts.has_rng else self.row_vectors
        of_each = 2 if loaded >= LONG_ROW_VECTORS else 1
        idle = max(1, of_each * self.arch.sm_count // self.facts.iteration_elems)
        most = min(PORTABLE_CLUSTER_BLOCKS, self.arch.max_cluster_blocks)
        blocks = previous_power_of_two(min(most, idle, self.row_vectors // LEAST_SHARE_VECTORS))
        return 1 if blocks == 2 and self.is_random_wide and self.row_vectors <= FEW_BATCHES * self.arch.max_threads_per_block else blocks

    def with_limit(self, found: Candidate, limit: int) -> Candidate:
        """Return the candidate with up to `limit` registers, and its weights loaded first if the registers can hold them. Otherwise they are loaded late,
        because in shared memory they gain nothing. Measured: docs/constants.md.
        """
        p, facts = found.params, self.facts
        weights = self.weight_registers(p.batches)
        held = self.data_registers(found) + THREAD_REGISTERS
        more_inputs = ADDRESS_REGISTERS * (facts.vectorizable_inputs - 1)
        is_first = weights > 0 and held + more_inputs + weights <= limit and not p.is_phased and not (facts.has_rng and p.batches == 1)
        return dataclasses.replace(found, params=dataclasses.replace(p, max_registers=limit, weights="registers" if is_first else "late"))

    def held_at_once(self, found: Candidate) -> int:
        """Registers per thread: for its part of the row and besides it."""
        facts = self.facts
        beside = WIDE_REGISTERS if self.is_wide else THREAD_REGISTERS
        operands = OPERAND_REGISTERS * facts.broadcast_operands if found.params.batches > 1 and not self.is_wide else 0
        return self.data_registers(found) + beside + operands

    def data_registers(self, found: Candidate) -> int:
        """Registers per thread for its part of the row, or of all inputs if that is more, and for random numbers."""
        return max(found.kept_registers, self.loaded_registers(found.params.batches)) + RANDOM_REGISTERS * self.facts.has_rng

    def batch_range(self, vectors: int) -> Iterator[int]:
        """Batches worth trying: every number up to 12, then in coarser steps."""
        fewest = max(1, ceil_div(vectors, self.arch.max_threads_per_block))
        usual = MANY_BYTES_PER_THREAD * 8 // (self.vector * self.facts.max_dtype_bits)
        most = min(BATCHES[-1], max(1, MAX_ELEMS_PER_THREAD // self.vector), vectors, max(usual, 2 * fewest))
        return (b for b in range(fewest, most + 1) if b == fewest or b <= 12 or b % 4 == 0)

    def in_registers(self, projected: bool, bits: float, batches: int) -> Iterator[Candidate]:
        """Yield candidates with a row in the threads of one block, if it has enough."""
        arch = self.arch
        threads = round_up(ceil_div(self.row_vectors, batches), self.block_lanes)
        bdimx = None
        if threads <= arch.warp_threads // 2:  # rows shorter than a warp share one warp, with a power of two of lanes each, for shuffles
            padded = bdimx = max(next_power_of_two(threads), 2 * self.vector * self.is_phased)
            if batches > 1 and (padded < FEW_LANES or padded % self.block_lanes):
                return
        else:
            padded = round_up(threads, self.block_multiple(batches))
        if padded <= arch.max_threads_per_block:
            yield from self.with_threads("2d", projected, bits, batches, padded, bdimx, 1, 1)

    def in_registers_3d(self, projected: bool, bits: float) -> Iterator[Candidate]:
        """Yield candidates whose threads along x stay within the inner run, so that no index is divided; only if that wastes few lanes."""
        arch, facts = self.arch, self.facts
        inner, outer = ceil_div(facts.inner_run_elems, self.vector), facts.outer_run_elems
        most = arch.max_threads_per_block
        for batches in self.batch_range(inner):
            padded = round_up(ceil_div(inner, batches), self.block_multiple(batches))
            if inner < 0.85 * padded * batches:
                continue
            for outer_batches in dict.fromkeys(ceil_div(outer, bdimz) for bdimz in (1, 2, 4, 8, 16, 32, MAX_BLOCK_Z)):
                bdimz = ceil_div(outer, outer_batches)
                if padded * bdimz <= most and outer_batches * batches <= BATCHES[-1]:
                    yield from self.with_threads("3d", projected, bits, batches, padded, None, bdimz, outer_batches)

    def with_threads(
        self, kind: str, projected: bool, bits: float, batches: int, padded: int, bdimx: int | None, bdimz: int, outer_batches: int, cluster_blocks: int = 1,
        early: Early | None = None,
    ) -> Iterator[Candidate]:  # fmt: skip
        """Return the candidate with as few registers as the kept row needs, if a block fits with them."""
        arch, facts = self.arch, self.facts
        row_threads = padded * bdimz
        is_warp_row = row_threads <= arch.warp_threads
        rows = self.rows_per_block(row_threads) if cluster_blocks == 1 else 1
        block = row_threads * rows
        vectors = batches * outer_batches
        kept = self.row_registers(bits, vectors)
        if early is not None:
            wanted = limit = early.registers
        elif cluster_blocks > 1:
            wanted = limit = self.in_pairs(self.cluster_registers(kept, self.loaded_registers(vectors)), kept, block)
        else:
            wanted, limit = self.registers(kept, is_warp_row)
            if is_warp_row and not self.is_wide and facts.reduction_elems == row_threads * vectors * self.vector:
                wanted = limit = max(wanted, self.converted_registers(kept, vectors))
        weights = "late" if early is None else early.weights
        if early is None and is_warp_row and cluster_blocks == 1 and self.loads_tables_first(vectors):
            weights, wanted, limit = "registers", wanted + THREAD_REGISTERS, limit + THREAD_REGISTERS
        weights_bytes = block * vectors * self.vector * facts.broadcast_operand_bits // 8 if weights == "shared" else 0
        shared_bytes = self.workspace_bytes(block) + weights_bytes
        blocks = arch.blocks_per_sm(block, wanted, shared_bytes) if wanted <= arch.max_registers_per_thread else 0
        if not blocks:
            return
        params = PersistentParams(
            kind=kind, storage="register", project_to_inputs=projected, vector_elems=self.vector, batches=batches, unroll=1, bdimx=bdimx,
            pad_to_warp=bdimx is None, rows_per_block=rows, row_unroll=1, bdimz=bdimz, outer_batches=outer_batches, is_warp_only=is_warp_row,
            max_registers=min(limit, arch.registers_per_thread(block)),  # with more registers the block could not be launched
            cluster_blocks=cluster_blocks, is_phased=self.is_phased, weights=weights, block_lanes=self.block_lanes,
            still_axes=facts.still_axes, is_tailed=self.is_phased and facts.is_tailed,
            late=2 * (cluster_blocks > 1 and facts.late_input_bits > 0),  # registers of a cluster's threads are counted without these inputs
        )  # fmt: skip
        params = dataclasses.replace(params, fill=params.fill_of(facts))
        lanes = facts.reduction_elems / (row_threads * vectors * self.vector * cluster_blocks)
        grid = ceil_div(facts.iteration_elems, rows) * cluster_blocks
        resident = min(blocks, ceil_div(grid, arch.sm_count))
        warps = ceil_div(block, 32)
        in_flight = resident * block * vectors * self.vector * (facts.input_bits - facts.late_input_bits) / 8 * lanes
        score = self.score(params, vectors, lanes, blocks * warps, blocks, early)
        yield Candidate(params, score, lanes, block, kept, blocks, resident * warps, in_flight, weights_bytes, grid / (arch.sm_count * blocks))

    def loads_tables_first(self, vectors: int) -> bool:
        """True if a row in one warp has operands that not all rows share (cosines and sines of a position, weights of a head), and registers for them.

        Operands that all rows share are in L1 or L2 anyway, so there it makes no difference. Measured: docs/constants.md.
        """
        return self.facts.group_operands > 0 and self.weight_registers(vectors) < BUSY_REGISTERS

    def registers(self, kept: int, is_warp_row: bool) -> tuple[int, int]:
        """Return (expected registers per thread, limit for the compiler) with `kept` registers of the row."""
        facts = self.facts
        if not self.is_wide:
            beside = self.overhead + THREAD_REGISTERS * is_warp_row
            wanted = max(MIN_REGISTERS, (kept + self.sum_registers(kept) + beside + 3) // 8 * 8, round_up(kept + THREAD_REGISTERS + self.word_registers, 8))
            return wanted, wanted
        wanted = max(MIN_REGISTERS, round_up(kept + WIDE_REGISTERS + 2 * RANDOM_REGISTERS * facts.has_rng, 8))
        is_tight = facts.has_rng or self.levels > 1 and not facts.has_exp and kept <= THREAD_REGISTERS
        return wanted, wanted + WIDE_REGISTERS * (not is_tight)

    def converted_registers(self, kept: int, vectors: int) -> int:
        """Return the registers of a thread of a row in one warp that has all its vectors: without a branch or barrier between the passes, the compiler keeps
        converted elements from one to the next. With a step less than this it spills more than a step.
 Read off
        ptxas: docs/constants.md.
        """
        return round_up(kept + self.vector * vectors + REGISTER_STEP, REGISTER_STEP)

    def narrow_registers(self) -> int:
        """Registers besides rows that are converted to 8 or 4 bits."""
        if self.facts.min_dtype_bits > 8:
            return 0
        is_old = self.arch.compute_capability < NARROW_CAPABILITY
        are_blocks = self.facts.min_dtype_bits < 8 and self.facts.block_elems > 0
        return REGISTER_STEP * (is_old + (self.facts.has_exp and self.vector > 8) + BLOCKS_OF_4_BITS * are_blocks)

    def sum_registers(self, kept: int) -> int:
        """Registers besides a row computed from several inputs of 16 bits with two barriers: between them a part of it is kept in both types.

        Read off ptxas: docs/constants.md.
        """
        facts = self.facts
        return kept // 2 if self.levels > 1 and facts.vectorizable_inputs > 1 and not self.is_wide and not facts.has_rng else 0

    def cluster_registers(self, kept: int, loaded: int) -> int:
        """The same for a thread of a cluster, whose inputs take `loaded` registers after loading."""
        held = max(kept, loaded)
        is_long = held > LONG_CLUSTER_REGISTERS
        beside = THREAD_REGISTERS + self.word_registers  # more resident blocks are worth more than a register or two for weights
        if is_long:
            operands = OPERAND_REGISTERS * self.facts.broadcast_operands * (self.is_wide or self.levels == 1)
            beside = LONG_CLUSTER_REGISTERS + operands + REGISTER_STEP * self.is_phased
        if self.is_wide and self.facts.vectorizable_inputs > 1 and not self.facts.has_rng:
            beside = BUSY_REGISTERS + REGISTER_STEP * (self.is_phased and held >= BUSY_REGISTERS)
        return max(MIN_REGISTERS, round_up(held + beside, 8))

    def in_pairs(self, registers: int, kept: int, block: int) -> int:
        """Return fewer registers per thread of a cluster's block if the last pass reads inputs that the others do not, and with fewer two blocks share a
        multiprocessor, whose threads still have room for the row: while one waits for these inputs, the other loads. Measured: docs/constants.md.
        """
        of_two = self.arch.registers_per_thread(2 * block) // 8 * 8 if 2 * block <= self.arch.max_threads_per_sm else 0
        return of_two if self.facts.late_input_bits and kept + THREAD_REGISTERS <= of_two < registers else registers

    def row_registers(self, bits: float, vectors: int) -> int:
        """Registers that `vectors` vectors of a row take, of which `bits` per element are kept."""
        return math.ceil(self.vector * bits / 32) * vectors

    def loaded_registers(self, vectors: int) -> int:
        """Registers that `vectors` vectors of all inputs take after loading."""
        return ceil_div(self.vector * vectors * (self.facts.input_bits - self.facts.late_input_bits), 32)

    def weight_registers(self, vectors: int) -> int:
        """Registers that `vectors` vectors of all weights take."""
        return ceil_div(self.vector * vectors * self.facts.broadcast_operand_bits, 32)

    def rows_per_block(self, row_threads: int) -> int:
        """Rows side by side in a block: enough for a small block, fewer if the chip would have too few blocks; never less than a warp if there are enough
        rows."""
        arch, facts = self.arch, self.facts
        is_short = facts.reduction_elems * facts.max_dtype_bits <= SHORT_ROW_BYTES * 8
        threads = NARROW_BLOCK_THREADS // (2 if facts.group_operands else 1) if is_short else SMALL_BLOCK_THREADS
        rows = max(1, threads // row_threads)
        rows = min(rows, next_power_of_two(facts.iteration_elems))
        while rows > 1 and rows * row_threads > arch.warp_threads and ceil_div(facts.iteration_elems, rows) < arch.sm_count * 4:
            rows //= 2
        return rows

    def wanted_batches(self, share_vectors: int, is_cluster: bool) -> int:
        """Wanted vectors per thread for `share_vectors` of a row in one block: as many as put the row in one warp, else few batches, or many if barriers are
        expensive.

        Rows that begin anywhere read their weights word by word, a latency that more warps hide better, so they get few. Measured: docs/constants.md.
        """
        facts = self.facts
        narrow = min(MOST_NARROW, self.full_vectors())
        if share_vectors <= narrow * FEW_BATCHES * self.arch.warp_threads:
            return max(ceil_div(share_vectors, self.arch.warp_threads), min(share_vectors, self.full_vectors()))
        if self.is_phased and facts.broadcast_operands:
            return narrow * FEW_BATCHES
        if is_cluster:
            return narrow * (MANY_BATCHES if facts.has_exp or self.levels > 1 and not self.is_wide and not facts.has_rng else FEW_BATCHES)
        share_bytes = share_vectors * self.vector * facts.max_dtype_bits // 8
        is_short = share_bytes <= FEW_BATCHES_BYTES or self.is_wide and not facts.has_exp and share_bytes <= 2 * FEW_BATCHES_BYTES
        is_few = is_short or self.levels == 1 or facts.has_rng
        return narrow * FEW_BATCHES if is_few else min(narrow * MANY_BATCHES, MOST_NARROW * FEW_BATCHES)

    def score(self, params: PersistentParams, vectors: int, lanes: float, warps: int, blocks: int, early: Early | None) -> float:
        """Score of a candidate in registers: the fraction of lanes that hold data, minus the measured losses. Lanes count in sixteenths, so that similar row
        lengths share a kernel.
        """
        is_cluster = params.cluster_blocks > 1
        wanted = early.batches if early is not None else self.wanted_batches(ceil_div(self.row_vectors, params.cluster_blocks), is_cluster)
        doublings = math.log2(vectors / wanted)
        other_batches = -doublings * FEWER_CLUSTER_BATCHES_LOSS if is_cluster and doublings < 0 else abs(doublings) * OTHER_BATCHES_LOSS
        has_few_warps = warps < TARGET_WARPS or blocks < 2 and (warps < FULL_BLOCK_WARPS or self.levels > 1)
        again = params.project_to_inputs and self.facts.recompute_has_exact_exp and not is_cluster
        recomputed = max(RECOMPUTED_EXP_LOSS * again, self.recomputed_loss() * params.project_to_inputs)
        losses = other_batches + FEW_WARPS_LOSS * has_few_warps + recomputed
        return round(lanes * 16) / 16 - losses + (0.0 if early is None else early.gain)

    # ---- in the registers of a cluster
    def cluster_candidates(self) -> Iterator[Candidate]:
        """Yield candidates for rows that are too long for the registers of one block, spread over the blocks of a cluster."""
        row_bytes = self.row_vectors * self.vector * self.facts.max_dtype_bits // 8
        blocks = min(next_power_of_two(ceil_div(row_bytes, CLUSTER_SHARE_BYTES)), self.arch.max_cluster_blocks)
        if blocks == 1:
            return
        least = ceil_div(share_of(self.row_vectors, blocks), CLUSTER_BLOCK_THREADS[1])
        most = max(least, MANY_BATCHES * min(MOST_NARROW, self.full_vectors()))
        for projected, bits in self.projections():
            for batches in (b for b in BATCHES[1:] if b * self.vector <= MAX_CLUSTER_ELEMS_PER_THREAD and b <= most):
                yield from (c for c in self.in_cluster(projected, bits, batches, blocks) if c.threads_per_block >= CLUSTER_BLOCK_THREADS[0])

    def in_cluster(self, projected: bool, bits: float, batches: int, blocks: int, early: Early | None = None) -> Iterator[Candidate]:
        """Yield candidates with a row in so many blocks of a cluster (or in one), of up to 512 threads each."""
        padded = round_up(ceil_div(share_of(self.row_vectors, blocks), batches), self.block_multiple(batches))
        if SHARE_MULTIPLE % self.block_lanes and blocks > 1:
            return
        if padded <= CLUSTER_BLOCK_THREADS[1] and (blocks == 1 or self.facts.iteration_elems <= MAX_GRID[1]):
            yield from self.with_threads("2d", projected, bits, batches, padded, None, 1, 1, blocks, early)
