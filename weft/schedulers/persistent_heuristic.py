"""How a normalization keeps its rows on chip and spreads them over threads.

Owns `PersistentParams` and the choice between rows in registers (2-D and 3-D), in shared memory, and read again. Pure: facts and arch in, params out.

A row of R elements is P = R / vector_elems vectors. In registers, each thread holds `batches` of them, loaded before the first is used; the threads
of a row are inferred at launch, ceil(P / batches) rounded up to whole warps, so one kernel serves every row length that leads to the same batches.
For rows in shared memory or read again, the loop over the row has a run-time count and the block is static: one kernel for every length.

Loops, outermost first:
    register, 2-D   rows: [BIDx, TIDy = rows_per_block]          row: [batches (static), TIDx (inferred or bdimx), vector_elems]
    register, 3-D   rows: as above     outer reduced run: [outer_batches (static), TIDz]     inner run: [batches, TIDx, vector_elems]
    shared, reread  rows: [BIDx]                                 row: [serial (run-time), unroll, TIDx = bdimx, vector_elems]
Read first: `choose`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..arch import MAX_BLOCK_Z, MAX_GRID, Arch
from .facts import PersistentFacts
from .throughput_heuristic import (
    ACCESS_INSTRUCTIONS,
    BLOCK_REDUCTION_INSTRUCTIONS,
    INSTRUCTIONS_PER_OP,
    LATENCY_NS,
    MUFU_CLOCKS,
    WARP_INSTRUCTIONS,
    WARP_REDUCTION_INSTRUCTIONS,
    Trace,
    balance,
    best_first,
    ceil_div,
    clocks_per_ns,
    l2_bytes_per_ns,
    next_power_of_two,
    previous_power_of_two,
    reduction_clocks,
    rereads_from_memory,
    roof_fraction,
    round_up,
    share_bytes_per_ns,
    vector_elems,
    vector_latency_clocks,
)

OVERHEAD_REGISTERS = 16
"""Registers beside the kept row: addresses, loop, one vector in the type computed in. Fewer registers let more blocks in, and the generated kernels do
not spill with these: RMS norm (16 kept + 16) is best with 32, layer norm (16 + 24) with 40, softmax (32 + 16) with 48. Source: all limits from 32 to
128 measured on one H200, driver 580, November 2026: softmax 8192x8192 is 0.96 of a copy with 48 registers, 0.91 with 56."""
OPERAND_REGISTERS = 4
"""For the vector of each weight (same source)."""
RANDOM_REGISTERS = 8
"""For the state of Philox (dropout + layer norm is best with 64)."""
WARP_ROW_REGISTERS = 16
"""For rows in one warp, where blocks are small and many: RMS norm of 1024 columns is 1.09 of a copy with 64 registers, 0.58 with 32."""
WIDE_REGISTERS, WIDE_SLACK_REGISTERS = 24, 24
"""Beside the row for types of 32 bits, and what the limit lies above that: a tight limit makes the compiler load one vector after the other, without a
spill to show for it. Softmax of float32 4096x16384: 0.98 of a copy with a limit of 80, of which it uses 64, and 0.71 with 64; with 128 it uses 72, and one
block fewer fits: 0.80."""
FEW_BATCHES, MANY_BATCHES = 4, 8
"""16-byte vectors of a thread, where the row and its reductions allow the first: four loads per tensor. Eight for rows of more than 256 threads that wait
at two barriers or more: softmax 4096x16384 is 0.92 with 8 batches and 0.86 with 4; RMS norm, with one barrier, the other way round."""
MOST_NARROW = 4
"""Narrower vectors are taken in as many bytes, up to this many times the batches: softmax of 1023 columns is 0.58 with 4 elements per thread."""
FEW_BATCHES_BYTES = 16 * 1024
"""Bytes of a tensor's row up to which two barriers are not worth longer threads (256 threads of 4 vectors)."""
ONE_BLOCK_BYTES = 64 * 1024
"""Bytes of a tensor's row from which a cluster is better than one block (1024 threads of 4 vectors, or 512 of 8)."""
CLUSTER_SHARE_BYTES, SMALL_CLUSTER_SHARE_BYTES = 32 * 1024, 16 * 1024
"""Bytes of each block of a cluster; the second when two reductions without exponentials wait for the cluster (layer norm of 64K: 0.71 for 0.70)."""
OTHER_BATCHES_LOSS = 0.06
"""What each doubling away from the wanted batches costs; idle lanes cost their part."""
TARGET_WARPS = 20
"""Resident warps per multiprocessor below which a kernel loses time, as it does with a single block, which overlaps with none (softmax of 16K: 24 warps
in 3 blocks reach 0.92; of 32K with 16 in one: 0.80)."""
FULL_BLOCK_WARPS = 32
FEW_WARPS_LOSS = 0.1
RECOMPUTED_EXP_LOSS = 0.07
"""What computing exponentials again costs where keeping them is possible (softmax 8192x8192: 0.89 for 0.96)."""
MIN_REGISTERS = 32
"""2048 threads of a multiprocessor can have as many."""
MAX_BATCHES = 32
MANY_BYTES_PER_THREAD = 192
"""Of a tensor, beyond which more batches are tried only when the row needs them (nvFuser stops at 10 to 12 vectors)."""
MAX_ELEMS_PER_THREAD = 256
"""Straight-line code of one thread; beyond that compile time and instruction cache suffer."""
GOOD_BYTES_PER_THREAD = 64
"""Four 16-byte loads of a tensor, for rows in shared memory or read again."""
STORAGE_MARGIN = 0.06
"""What another storage must gain over registers to be taken: the model is pessimistic about a single row in registers (32K elements: 0.79, measured 0.89)."""
SMALL_BLOCK_THREADS = 64
NARROW_BLOCK_THREADS = 256
SHORT_ROW_BYTES = 512
"""Threads to which rows in one warp are gathered in a block; the second for rows that give a lane one vector or less."""
CLUSTER_START_NS = 4000.0
CLUSTER_REDUCTION_NS = 500.0
"""What a cluster adds to the rest of its blocks (they start and end together), and each reduction over its blocks.
Source: hand-written norms, H200: rows of 64K in clusters of 4: 0.79 (RMS norm) and 0.72 (softmax) of the roof, 128K in 8 0.76 and 0.71, 256K 0.73, 0.65."""
PORTABLE_CLUSTER_BLOCKS = 8
CLUSTER_BLOCK_THREADS = (128, 512)
"""Fewest and most threads of a block of a cluster."""
REREAD_FACTOR = 0.92
"""Rows read again against the model, which knows nothing of what the second reading costs in L1 and L2 (measured: 0.85 against 0.93 at 32K elements)."""
LONG_ROW_THREADS_PER_SM = 1536
"""Threads of a multiprocessor to plan registers for when rows are not in registers: 40 each."""
THROUGH_REGISTERS_FACTOR = 0.84
"""Shared memory filled through registers instead of asynchronous copies (measured: 0.79 against 0.94 at 4K to 32K elements)."""


@dataclass(frozen=True, slots=True)
class PersistentParams:
    """A schedule of a normalization; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "2d" or "3d". storage: "register", "shared" or "reread". project_to_inputs: keep inputs instead of what is computed from them.
    vector_elems: elements of one access. batches: vectors per thread along the (inner) row, static; 0 when the loop count is known at launch only.
    unroll: vectors whose loads are issued together in such a loop (1 for registers: all of them are).
    bdimx: threads of a row; None: ceil(inner row / (vector_elems * batches)) at launch. pad_to_warp: rounded up to whole warps.
    rows_per_block: rows side by side in a block, on TIDy. row_unroll: rows of one thread, loaded together.
    bdimz, outer_batches: 3-D only, threads and static iterations along the outer reduced run.
    is_warp_only: the threads of a row are in one warp, so that no barrier is needed. max_registers: per thread, for the compiler.
    is_async_copy: rows go to shared memory by asynchronous copies (storage "shared" only), each thread reading back what it copied.
    cluster_blocks: blocks of a cluster that share a row (registers, 2-D, one row at a time); they exchange partial results through shared memory.
    """

    kind: str
    storage: str
    project_to_inputs: bool
    vector_elems: int
    batches: int
    unroll: int
    bdimx: int | None
    pad_to_warp: bool
    rows_per_block: int
    row_unroll: int
    bdimz: int
    outer_batches: int
    is_warp_only: bool
    max_registers: int
    is_async_copy: bool = False
    cluster_blocks: int = 1

    def threads_x(self, facts: PersistentFacts, warp_threads: int = 32) -> int:
        """Threads of one row at launch."""
        if self.bdimx is not None:
            return self.bdimx
        row = facts.inner_run_elems if self.kind == "3d" else facts.reduction_elems
        threads = ceil_div(ceil_div(ceil_div(row, self.vector_elems), self.cluster_blocks), self.batches)
        return round_up(threads, warp_threads) if self.pad_to_warp else threads

    def threads_per_block(self, facts: PersistentFacts) -> int:
        return self.threads_x(facts) * self.rows_per_block * self.bdimz


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the rows, with what the model says of it. `fraction`: predicted part of the memory roof."""

    params: PersistentParams
    fraction: float
    lane_fraction: float
    threads_per_block: int
    buffer_registers: int
    spare_registers: int
    blocks_per_sm: int
    warps_per_sm: int
    bytes_in_flight_per_sm: float
    shared_bytes: int
    waves: float
    key: tuple = field(compare=False)

    def __str__(self) -> str:
        p = self.params
        where = p.storage + (f" of {p.cluster_blocks} blocks" if p.cluster_blocks > 1 else "") + (" projected" if p.project_to_inputs else "")
        batches = f"{p.batches}x{p.outer_batches}" if p.kind == "3d" else f"{p.batches}"
        return (
            f"{p.kind} {where} vector {p.vector_elems} batches {batches} threads {self.threads_per_block} ({p.rows_per_block} rows) "
            f"fraction {self.fraction:.3f} lanes {self.lane_fraction:.3f} registers {p.max_registers} ({self.buffer_registers} kept, "
            f"{self.spare_registers} spare) blocks/SM {self.blocks_per_sm} warps/SM {self.warps_per_sm} in flight "
            f"{self.bytes_in_flight_per_sm / 1024:.0f} KiB/SM waves {self.waves:.1f}"
        )


CRITERIA = ("lanes that hold data, less the losses measured for other batches, few warps and recomputed exponentials", "fewer threads per block")


def choose(facts: PersistentFacts, arch: Arch, *, async_copies: bool = False) -> PersistentParams:
    """Return the params of a normalization. Any facts give legal params: rows too long to be kept are read again.

    async_copies: the template can fill shared memory with cp.async; without, shared memory rarely pays.
    """
    return choose_with_trace(facts, arch, async_copies=async_copies)[0]


def choose_with_trace(facts: PersistentFacts, arch: Arch, *, async_copies: bool = False) -> tuple[PersistentParams, Trace]:
    """Return the params and why, best candidate first."""
    model = _Model(facts, arch)
    register = best_first(model.register_candidates(), key=lambda c: c.key)
    is_long = facts.reduction_elems * facts.max_dtype_bits > ONE_BLOCK_BYTES * 8
    clusters = best_first(model.cluster_candidates(), key=lambda c: c.key) if is_long else ()
    others: tuple[Candidate, ...] = ()
    if not clusters and (not register or is_long):
        others = best_first((*model.shared_candidates(async_copies), *model.reread_candidates()), key=_long_row_key)
    notes: tuple[str, ...] = ()
    ranked = (*clusters, *register, *others)
    if clusters:
        notes = (f"a row of more than {ONE_BLOCK_BYTES} bytes is spread over a cluster",)
    elif not register:
        notes = ("registers cannot hold a row",)
    elif others and others[0].fraction > register[0].fraction + STORAGE_MARGIN:
        notes = (f"{others[0].params.storage} gains more than {STORAGE_MARGIN} over registers",)
        ranked = (others[0], *register, *others[1:])
    chosen = ranked[0].params
    return chosen, Trace("persistent", facts, CRITERIA, ranked[:24], chosen, notes)


def _long_row_key(candidate: Candidate) -> tuple[float, int]:
    """Fraction of the roof, less a little for each doubling of a cluster; more beyond the portable eight blocks, which leave parts of a GPC unused."""
    blocks = candidate.params.cluster_blocks
    return candidate.fraction - 0.01 * (blocks.bit_length() - 1) - (0.08 if blocks > PORTABLE_CLUSTER_BLOCKS else 0.0), -blocks


class _Model:
    """Candidates of one set of facts."""

    def __init__(self, facts: PersistentFacts, arch: Arch) -> None:
        self.facts, self.arch = facts, arch
        self.vector = vector_elems(facts.vector_limit_elems, facts.max_dtype_bits, facts.min_vector_elems, arch.max_vector_bits)
        self.row_vectors = ceil_div(facts.reduction_elems, self.vector)
        self.share = share_bytes_per_ns(arch)
        self.moved_bits = max(1, facts.input_bits + facts.output_bits)
        self.tensors = max(1, facts.vectorizable_inputs) + facts.broadcast_operands + (facts.output_bits > 0)
        self.levels = max(1, facts.passes - 1)
        self.overhead = OVERHEAD_REGISTERS + OPERAND_REGISTERS * facts.broadcast_operands + RANDOM_REGISTERS * facts.has_rng

    # ---- time of a block
    def vector_instructions(self, projected: bool) -> float:
        """Issue slots of one vector in all passes."""
        facts = self.facts
        again = projected and facts.projected_bits is not None and facts.projected_bits < facts.persistent_bits
        ops = facts.instructions + (facts.recompute_instructions if again else 0)
        mufu = facts.mufu + (again and facts.recompute_has_exp)
        return self.vector * max(ops * INSTRUCTIONS_PER_OP, mufu * MUFU_CLOCKS / 2) + self.tensors * ACCESS_INSTRUCTIONS

    def times_ns(self, row_warps: int, warps: int, vectors: float, projected: bool) -> tuple[float, float]:
        """Return (rest, issue) of a block whose threads hold `vectors` each."""
        clock = clocks_per_ns(self.arch)
        instructions = self.vector_instructions(projected)
        clocks = vectors * max(vector_latency_clocks(self.vector, self.facts.passes), instructions * warps / 4)
        rest = LATENCY_NS + (clocks + self.levels * reduction_clocks(row_warps)) / clock
        reduction = WARP_REDUCTION_INSTRUCTIONS if row_warps <= 1 else BLOCK_REDUCTION_INSTRUCTIONS
        return rest, max(1, warps) / 4 * (vectors * instructions + self.levels * reduction + WARP_INSTRUCTIONS) / clock

    def workspace_bytes(self, block: int) -> int:
        return round_up(ceil_div(block, 32) * ceil_div(self.facts.accumulator_bits, 8) * self.levels, 128)

    # ---- rows in registers
    def projections(self) -> tuple[tuple[bool, float], ...]:
        """(is projected, kept bits per element) worth considering."""
        facts = self.facts
        plain = (False, facts.persistent_bits / facts.reduction_elems)
        if facts.projected_bits is None or facts.projected_bits >= facts.persistent_bits:
            return (plain,)
        projected = (True, facts.projected_bits / facts.reduction_elems)
        return (projected, plain) if facts.recompute_has_exp else (projected,)

    def register_candidates(self) -> Iterator[Candidate]:
        facts = self.facts
        has_outer_run = facts.dimensions == 3 and facts.runs[0][0] and facts.runs[-1][0] and len(facts.runs) == 3
        for projected, bits in self.projections():
            for batches in self.batch_range(self.row_vectors):
                yield from self.in_registers(projected, bits, batches)
            if has_outer_run:
                yield from self.in_registers_3d(projected, bits)

    def batch_range(self, vectors: int) -> Iterator[int]:
        """Batches worth trying: every number up to 12, then in coarser steps."""
        fewest = max(1, ceil_div(vectors, self.arch.max_threads_per_block))
        usual = MANY_BYTES_PER_THREAD * 8 // (self.vector * self.facts.max_dtype_bits)
        most = min(MAX_BATCHES, max(1, MAX_ELEMS_PER_THREAD // self.vector), vectors, max(usual, 2 * fewest))
        return (b for b in range(fewest, most + 1) if b == fewest or b <= 12 or b % 4 == 0)

    def in_registers(self, projected: bool, bits: float, batches: int) -> Iterator[Candidate]:
        arch = self.arch
        threads = ceil_div(self.row_vectors, batches)
        bdimx = None
        if threads <= arch.warp_threads // 2:  # rows shorter than a warp share one: lanes in powers of two, for shuffles
            padded = bdimx = next_power_of_two(threads)
        else:
            padded = round_up(threads, arch.warp_threads)
        if padded <= arch.max_threads_per_block:
            yield from self.with_threads("2d", projected, bits, batches, padded, bdimx, 1, 1)

    def in_registers_3d(self, projected: bool, bits: float) -> Iterator[Candidate]:
        """Threads along x stay within the inner run, so that no index is divided; only where that wastes few lanes."""
        arch, facts = self.arch, self.facts
        inner, outer = ceil_div(facts.inner_run_elems, self.vector), facts.runs[0][1]
        for batches in self.batch_range(inner):
            padded = round_up(ceil_div(inner, batches), arch.warp_threads)
            if inner < 0.85 * padded * batches:
                continue
            for bdimz in (1, 2, 4, 8, 16, 32, MAX_BLOCK_Z):
                outer_batches = ceil_div(outer, bdimz)
                bdimz = ceil_div(outer, outer_batches)
                if padded * bdimz > arch.max_threads_per_block or outer_batches * batches > MAX_BATCHES:
                    continue
                yield from self.with_threads("3d", projected, bits, batches, padded, None, bdimz, outer_batches)

    def with_threads(
        self, kind: str, projected: bool, bits: float, batches: int, padded: int, bdimx: int | None, bdimz: int, outer_batches: int, cluster_blocks: int = 1
    ) -> Iterator[Candidate]:  # fmt: skip
        """The candidate with as few registers as the kept row needs, when a block fits with them."""
        arch, facts = self.arch, self.facts
        row_threads = padded * bdimz
        rows = self.rows_per_block(row_threads) if cluster_blocks == 1 else 1
        block = row_threads * rows
        vectors = batches * outer_batches
        buffer = math.ceil(self.vector * bits / 32) * vectors
        wanted, limit = self.registers(buffer, row_threads <= arch.warp_threads, cluster_blocks > 1)
        limit = min(limit, arch.registers_per_thread(round_up(block, arch.warp_threads)))  # or the block could not be launched
        blocks = arch.blocks_per_sm(block, wanted, self.workspace_bytes(block)) if wanted <= arch.max_registers_per_thread else 0
        if blocks:
            params = PersistentParams(
                kind=kind, storage="register", project_to_inputs=projected, vector_elems=self.vector, batches=batches, unroll=1, bdimx=bdimx,
                pad_to_warp=bdimx is None, rows_per_block=rows, row_unroll=1, bdimz=bdimz, outer_batches=outer_batches,
                is_warp_only=row_threads <= arch.warp_threads, max_registers=min(limit, arch.max_registers_per_thread), cluster_blocks=cluster_blocks,
            )  # fmt: skip
            yield self.register_candidate(params, row_threads, vectors, buffer, blocks)

    def registers(self, buffer: int, is_warp_row: bool, is_cluster: bool) -> tuple[int, int]:
        """Return (registers that a thread is expected to use, limit for the compiler) with `buffer` registers of the row kept."""
        if self.facts.max_dtype_bits >= 32:
            wanted = max(MIN_REGISTERS, round_up(buffer + WIDE_REGISTERS, 8))
            return wanted, wanted + WIDE_SLACK_REGISTERS
        overhead = OVERHEAD_REGISTERS if is_cluster else self.overhead  # in clusters more blocks are worth a few reloads
        wanted = max(MIN_REGISTERS, (buffer + overhead + WARP_ROW_REGISTERS * is_warp_row + 3) // 8 * 8)
        return wanted, wanted

    def rows_per_block(self, row_threads: int) -> int:
        """Rows side by side: enough for a small block, fewer when the chip would lack blocks; never a block below a warp when there are rows for one."""
        arch, facts = self.arch, self.facts
        is_short = facts.reduction_elems * facts.max_dtype_bits <= SHORT_ROW_BYTES * 8
        rows = max(1, (NARROW_BLOCK_THREADS if is_short else SMALL_BLOCK_THREADS) // row_threads)
        rows = min(rows, next_power_of_two(facts.iteration_elems))
        while rows > 1 and rows * row_threads > arch.warp_threads and ceil_div(facts.iteration_elems, rows) < arch.sm_count * 4:
            rows //= 2
        return rows

    def register_candidate(self, params: PersistentParams, row_threads: int, vectors: int, buffer: int, blocks: int) -> Candidate:
        arch, facts = self.arch, self.facts
        rows, block = params.rows_per_block, row_threads * params.rows_per_block
        held = row_threads * vectors * self.vector  # of a block's row, idle lanes included: the same for all rows that lead to this kernel
        lanes = facts.reduction_elems / (held * params.cluster_blocks)
        warps = ceil_div(block, 32)
        rest, issue = self.times_ns(ceil_div(row_threads, 32), warps, vectors, params.project_to_inputs)
        rest += CLUSTER_START_NS + self.levels * CLUSTER_REDUCTION_NS if params.cluster_blocks > 1 else 0.0
        grid = ceil_div(facts.iteration_elems, rows) * params.cluster_blocks
        resident = min(blocks, ceil_div(grid, arch.sm_count))
        sixteenths = max(1, round(lanes * 16))
        transfer = rows * held * sixteenths / 16 * self.moved_bits / 8 / self.share
        fraction = roof_fraction(resident, transfer, rest, issue) * balance(grid, arch)
        spare = params.max_registers - buffer
        key = (round(self.score(params, vectors, sixteenths / 16, blocks * warps, blocks), 3), -block)
        in_flight = resident * block * vectors * self.vector * (facts.input_bits - facts.late_input_bits) / 8 * lanes
        return Candidate(params, fraction, lanes, block, buffer, spare, blocks, resident * warps, in_flight, 0, grid / (arch.sm_count * blocks), key)

    def wanted_batches(self, share_vectors: int, is_cluster: bool) -> int:
        """Vectors of a thread for `share_vectors` of a row in one block: the row in one warp, else few batches, or many where barriers are dear.

        Source for clusters: rows of 64K and 128K, bf16: layer norm 0.72 with 4 batches (0.70 with 8), softmax, recomputed, 0.70 with 8 (0.64 with 4).
        """
        narrow = max(1, min(MOST_NARROW, self.arch.max_vector_bits // (self.vector * self.facts.max_dtype_bits)))
        if share_vectors <= narrow * FEW_BATCHES * self.arch.warp_threads:
            return ceil_div(share_vectors, self.arch.warp_threads)
        if is_cluster:
            return narrow * (MANY_BATCHES if self.facts.has_exp else FEW_BATCHES)
        is_few = self.levels == 1 or share_vectors * self.vector * self.facts.max_dtype_bits <= FEW_BATCHES_BYTES * 8
        return narrow * FEW_BATCHES if is_few else min(narrow * MANY_BATCHES, MOST_NARROW * FEW_BATCHES)

    def score(self, params: PersistentParams, vectors: int, lanes: float, warps: int, blocks: int) -> float:
        """Order of the candidates in registers: lanes that hold data, less what the measured losses say."""
        is_cluster = params.cluster_blocks > 1
        wanted = self.wanted_batches(ceil_div(self.row_vectors, params.cluster_blocks), is_cluster)
        again = params.project_to_inputs and self.facts.recompute_has_exp and not is_cluster
        return (
            lanes
            - OTHER_BATCHES_LOSS * abs(math.log2(vectors / wanted))
            - FEW_WARPS_LOSS * (warps < TARGET_WARPS or blocks < 2 and (warps < FULL_BLOCK_WARPS or self.levels > 1))
            - RECOMPUTED_EXP_LOSS * again
        )

    def cluster_candidates(self) -> Iterator[Candidate]:
        """Rows too long for the registers of one block, spread over the blocks of a cluster."""
        arch = self.arch
        row_bytes = self.row_vectors * self.vector * self.facts.max_dtype_bits // 8
        blocks = next_power_of_two(ceil_div(row_bytes, CLUSTER_SHARE_BYTES))
        if self.levels > 1 and not self.facts.has_exp:
            blocks = max(blocks, min(PORTABLE_CLUSTER_BLOCKS, next_power_of_two(ceil_div(row_bytes, SMALL_CLUSTER_SHARE_BYTES))))
        if blocks > arch.max_cluster_blocks or self.facts.iteration_elems > MAX_GRID[1]:
            return
        share = ceil_div(self.row_vectors, blocks)
        for projected, bits in self.projections():
            for batches in (2, 3, 4, 6, 8, 12, 16):
                padded = round_up(ceil_div(share, batches), arch.warp_threads)
                if CLUSTER_BLOCK_THREADS[0] <= padded <= CLUSTER_BLOCK_THREADS[1]:
                    yield from self.with_threads("2d", projected, bits, batches, padded, None, 1, 1, blocks)

    # ---- rows in shared memory, rows read again
    def block_sizes(self) -> tuple[int, ...]:
        """Blocks whose threads all have at least two vectors (the smallest one otherwise)."""
        sizes = tuple(t for t in (64, 128, 256, 512, 1024) if t * 2 <= self.row_vectors)
        return sizes[-3:] or (64,)

    def shared_candidates(self, async_copies: bool) -> Iterator[Candidate]:
        facts, arch = self.facts, self.arch
        projected, bits = self.projections()[0]
        is_async = async_copies and self.vector * facts.min_dtype_bits in (32, 64, 128) and (projected or facts.projected_bits == facts.persistent_bits)
        for threads in self.block_sizes():
            shared = round_up(math.ceil(facts.reduction_elems * bits / 8), 128) + self.workspace_bytes(threads)
            blocks = min(arch.blocks_per_sm(threads, 32, shared), arch.max_threads_per_sm // threads)
            if not blocks:
                continue
            transfer = facts.reduction_elems * self.moved_bits / 8 / self.share
            factor = 1.0 if is_async else THROUGH_REGISTERS_FACTOR
            yield self.long_row_candidate("shared", threads, blocks, transfer, transfer, projected, shared, factor, is_async)

    def reread_candidates(self) -> Iterator[Candidate]:
        facts, arch = self.facts, self.arch
        for threads in self.block_sizes():
            blocks = arch.max_threads_per_sm // threads
            row_bytes = facts.reduction_elems * facts.input_bits / 8
            moved = facts.reduction_elems * self.moved_bits / 8
            again = (facts.passes - 1) * row_bytes
            in_work = min(arch.sm_count * blocks, facts.iteration_elems) * row_bytes
            memory = (moved + again * rereads_from_memory(in_work, arch)) / self.share
            through_l2 = (moved + again) / l2_bytes_per_ns(arch)
            yield self.long_row_candidate("reread", threads, blocks, moved / self.share, max(memory, through_l2), True, 0, REREAD_FACTOR, False)

    def long_row_candidate(
        self, storage: str, threads: int, blocks: int, needed_ns: float, spent_ns: float, projected: bool, shared: int, factor: float, is_async: bool
    ) -> Candidate:  # fmt: skip
        facts, arch = self.facts, self.arch
        vectors = ceil_div(self.row_vectors, threads)
        warps = threads // 32
        rest, issue = self.times_ns(warps, warps, vectors, projected)
        if storage == "reread":
            rest += self.levels * LATENCY_NS
        resident = min(blocks, ceil_div(facts.iteration_elems, arch.sm_count))
        fraction = factor * roof_fraction(resident, spent_ns, rest, issue) * needed_ns / spent_ns * balance(facts.iteration_elems, arch)
        unroll = max(1, min(8, previous_power_of_two(GOOD_BYTES_PER_THREAD * 8 // (self.vector * facts.max_dtype_bits)), previous_power_of_two(vectors)))
        is_kept_by_inputs = projected and facts.projected_bits is not None
        registers = min(64, arch.registers_per_thread(min(LONG_ROW_THREADS_PER_SM // threads * threads or threads, threads * blocks)))
        params = PersistentParams(
            kind="2d", storage=storage, project_to_inputs=is_kept_by_inputs, vector_elems=self.vector, batches=0, unroll=unroll, bdimx=threads,
            pad_to_warp=True, rows_per_block=1, row_unroll=1, bdimz=1, outer_batches=1, is_warp_only=False, max_registers=registers, is_async_copy=is_async,
        )  # fmt: skip
        per_thread = (vectors if is_async else unroll) * self.vector * (facts.input_bits - facts.late_input_bits) / 8
        return Candidate(
            params, fraction, 1.0, threads, 0, registers, blocks, resident * warps, resident * threads * per_thread, shared,
            facts.iteration_elems / (arch.sm_count * blocks), (),
        )  # fmt: skip
