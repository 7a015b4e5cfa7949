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

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..arch import MAX_BLOCK_Z, MAX_GRID, Arch
from ..schedule.full_rows import fill_of_parts
from .facts import PersistentFacts
from .throughput_heuristic import (
    ACCESS_INSTRUCTIONS,
    BLOCK_REDUCTION_INSTRUCTIONS,
    INSTRUCTIONS_PER_OP,
    LATENCY_NS,
    MUFU_CLOCKS,
    WARP_INSTRUCTIONS,
    Trace,
    balance,
    best_first,
    ceil_div,
    clocks_per_ns,
    has_phase,
    l2_bytes_per_ns,
    next_power_of_two,
    previous_power_of_two,
    reduction_clocks,
    rereads_from_memory,
    roof_fraction,
    round_up,
    row_vectors,
    share_bytes_per_ns,
    vector_elems,
    vector_latency_clocks,
)

# Rows in registers. Source of what follows, where no other is named: all combinations of batches, rows per block, limits from 32 to 128 registers and
# clusters of 1 to 16 blocks, measured with the generated kernels on one H200 (driver 580, November 2026, L2 flushed, bf16), as fractions of a copy.
OVERHEAD_REGISTERS = 16
"""Registers beside the kept row: addresses, loop, one vector in the type computed in. Fewer registers let more blocks in, and the generated kernels do
not spill with these: RMS norm (16 kept + 16) is best with 32, layer norm (16 + 24) with 40, softmax (32 + 16) with 48: 8192x8192 is 0.96, with 56 0.91."""
OPERAND_REGISTERS = 4
"""For the vector of each weight."""
USUAL_TENSORS, TENSOR_REGISTERS = 2, 2
"""Tensors with rows that the overhead above counts, and the address of each one more (add + RMS norm spills with 48 registers, and not with 56)."""
RANDOM_REGISTERS = 8
"""For the state of Philox (dropout + layer norm is best with 64)."""
WARP_ROW_REGISTERS = 16
"""For rows in one warp, where blocks are small and many: RMS norm of 1024 columns is 1.09 with 64 registers, 0.58 with 32."""
WIDE_REGISTERS, WIDE_SLACK_REGISTERS = 24, 24
"""Beside the row for types of 32 bits, and what the limit lies above that: a tight limit makes the compiler load one vector after the other, without a
spill to show for it. Softmax of float32 4096x16384: 0.98 with a limit of 80, of which it uses 64, and 0.71 with 64; with 128 it uses 72, and one
block fewer fits: 0.80."""
MIN_REGISTERS = 32
"""2048 threads of a multiprocessor can have as many."""
FEW_BATCHES, MANY_BATCHES = 4, 8
"""16-byte vectors of a thread, where the row and its reductions allow the first: four loads per tensor. Eight for rows of more than 256 threads that wait
at two barriers or more: softmax 4096x16384 is 0.92 with 8 batches and 0.86 with 4; RMS norm, with one barrier, the other way round."""
MOST_NARROW = 4
"""Narrower vectors are taken in as many bytes, up to this many times the batches: softmax of 1023 columns is 0.58 with 4 elements per thread."""
NARROW_ACCESS_BITS = 32
"""Of an access, up to which bounds that are known to hold are left out: odd rows of bf16 gain 1.3 to 2 times (softmax of 4093: 0.43 to 0.67 of a copy, 65
instructions per element to 36), of float32 1.1 to 1.6. With 16-byte vectors the bounds cost nothing, and the straight code without them makes the
compiler spill: layer norm of 4096 falls from 0.93 to 0.48."""
FEW_BATCHES_BYTES = 16 * 1024
"""Bytes of a tensor's row up to which two barriers are not worth longer threads (256 threads of 4 vectors)."""
MAX_BATCHES = 32
MANY_BYTES_PER_THREAD = 192
"""Of a tensor, beyond which more batches are tried only when the row needs them (nvFuser stops at 10 to 12 vectors)."""
MAX_ELEMS_PER_THREAD = 256
"""Straight-line code of one thread; beyond that compile time and instruction cache suffer."""
OTHER_BATCHES_LOSS = 0.06
"""What each doubling away from the wanted batches costs; idle lanes cost their part."""
FEWER_CLUSTER_BATCHES_LOSS = 0.15
"""The same for each halving in a cluster: with 2 batches for 4, RMS norm of 64K falls from 0.84 to 0.71, layer norm from 0.71 to 0.54."""
TARGET_WARPS = 20
"""Resident warps per multiprocessor below which a kernel loses time, as it does with a single block, which overlaps with none (softmax of 16K: 24 warps
in 3 blocks reach 0.92; of 32K with 16 in one: 0.80)."""
FULL_BLOCK_WARPS = 32
"""Of a single block, from which it loses nothing with one barrier per row (RMS norm of 32K: 0.96)."""
FEW_WARPS_LOSS = 0.1
RECOMPUTED_EXP_LOSS = 0.07
"""What computing exponentials of full accuracy again costs where keeping them is possible (softmax 8192x8192: 0.89 for 0.96). Those whose results are seen in
16 bits are two instructions, and the kept row is half as long: softmax 4096x16384 is 0.97 projected, 0.95 with the exponentials kept."""
SMALL_BLOCK_THREADS = 64
NARROW_BLOCK_THREADS = 256
SHORT_ROW_BYTES = 512
"""Threads to which rows in one warp are gathered in a block; the second for rows that give a lane one 16-byte vector or less."""
FEW_LANES = 8
"""Fewer lanes than these hold a row only when they hold all of it at once: pieces of many rows in one access are not contiguous. An estimate."""

MOST_ROWS_AT_ONCE = 4
"""Rows per multiprocessor. One H200, bf16, 4096 columns, the choice for many rows and this one, fractions of a copy: layer norm of 1 row 0.66 and 0.95, of
132 0.91 and 1.1 to 1.27, of 512 0.99 and 1.13; RMS norm 0.72 and 1.0, 0.66 and 0.92, 0.78 and 0.93; 16384 columns, layer norm of 1 row 0.40 and 0.65."""
MOST_REGISTERS_AT_ONCE = 128

# Rows in the registers of a cluster.
ONE_BLOCK_BYTES, SOFTMAX_BLOCK_BYTES = 64 * 1024, 32 * 1024
"""Bytes of a tensor's row from which a cluster is better than one block (1024 threads of 4 vectors, or 512 of 8). The second for rows with exponentials
between two barriers: bf16 softmax of 16K 0.971 for 0.967, of 24K 0.974 for 0.962, of 32K 0.962 for 0.946; float32 of 12K 0.978 for 0.971, of 16K 0.979
for 0.962. Layer norm of 32K is 0.87 for 0.90, RMS norm 0.944 for 0.944."""
CLUSTER_OVERHEAD_REGISTERS, LONG_CLUSTER_OVERHEAD_REGISTERS, LONG_CLUSTER_KEPT_REGISTERS = 16, 24, 24
"""Registers beside those that keep a thread's part of the row; the second where these are more than the third. One H200: softmax 64K bf16 with 4 batches 0.946
with 32 registers, 0.897 with 40; with 8 batches 0.942 with 56, 0.934 with 48; 64K float32 with 8 0.952 with 56, 0.80 with 48, 0.916 with 80. RMS norm
64K float32 with 4 batches 0.934 with 32, 0.90 with 40."""
PHASE_REGISTERS = 8
"""For the ends of rows of odd length in such a cluster: softmax of 10007 float32 columns spills 28 bytes with 56."""
CLUSTER_SHARE_BYTES, SMALL_CLUSTER_SHARE_BYTES = 32 * 1024, 16 * 1024
"""Bytes of each block of a cluster, more where the largest cluster is not large enough; the second when two reductions without exponentials wait for the
cluster (layer norm of 64K: 0.71 for 0.70)."""
PORTABLE_CLUSTER_BLOCKS = 8
"""Larger clusters leave parts of a GPC unused: layer norm of 128K is 0.70 with 8 blocks, 0.67 with 16."""
CLUSTER_BLOCK_THREADS = (128, 512)
"""Fewest and most threads of a block of a cluster."""
CLUSTER_BATCHES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
MAX_CLUSTER_ELEMS_PER_THREAD = 128

# Rows in shared memory, rows read again.
GOOD_BYTES_PER_THREAD = 64
"""Four 16-byte loads of a tensor in flight."""
SHARED_FACTOR = 0.84
"""Rows in shared memory against the model: they pass through registers on their way (hand-written kernels, 4K to 32K elements: 0.79; asynchronous copies
0.94)."""
REREAD_FACTOR = 0.92
"""Rows read again against the model, which knows nothing of what the second reading costs in L1 and L2 (measured: 0.85 against 0.93 at 32K elements)."""
LONG_ROW_THREADS_PER_SM = 1536
"""Threads of a multiprocessor to plan registers for: 40 each."""


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
    cluster_blocks: blocks of a cluster that share a row (registers, 2-D, one row at a time); they exchange partial results through shared memory.
    is_phased: vectors are aligned in memory although rows are not, so that a row begins and ends inside of one.
    weights_first: inputs that all rows share are loaded before the reductions, not behind them.
    fill: which vectors of a row in registers all exist: "whole": every one of every thread; "leading": those of all batches but the last; "partial": not known.
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
    cluster_blocks: int = 1
    fill: str = "partial"
    is_phased: bool = False
    weights_first: bool = False

    def threads_x(self, facts: PersistentFacts, warp_threads: int = 32) -> int:
        """Threads of one row at launch."""
        if self.bdimx is not None:
            return self.bdimx
        row = facts.inner_run_elems if self.kind == "3d" else facts.reduction_elems
        threads = ceil_div(ceil_div(row_vectors(row, self.vector_elems, self.is_phased), self.cluster_blocks), self.batches)
        return round_up(threads, warp_threads) if self.pad_to_warp else threads

    def fill_of(self, facts: PersistentFacts) -> str:
        """Return `fill` for these sizes; "partial" also where accesses are wider than NARROW_ACCESS_BITS."""
        is_narrow = self.vector_elems * facts.max_dtype_bits <= NARROW_ACCESS_BITS
        if not is_narrow or self.storage != "register" or self.kind != "2d" or facts.reduction_elems % self.vector_elems:
            return "partial"
        vectors, threads = facts.reduction_elems // self.vector_elems, self.threads_x(facts)
        if threads * self.rows_per_block % 32:
            threads = round_up(threads, 32)  # as the launch does
        return fill_of_parts(vectors, self.batches, threads, self.cluster_blocks)

    def threads_per_block(self, facts: PersistentFacts) -> int:
        return self.threads_x(facts) * self.rows_per_block * self.bdimz


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the rows. score: the first of the criteria that it was compared by. kept_registers: of a thread, for its part of the row."""

    params: PersistentParams
    score: float
    lane_fraction: float
    threads_per_block: int
    kept_registers: int
    blocks_per_sm: int
    warps_per_sm: int
    bytes_in_flight_per_sm: float
    shared_bytes: int
    waves: float

    @property
    def key(self) -> tuple[float, int]:
        """Of two candidates, the one with the larger key is taken."""
        return round(self.score, 3), -self.threads_per_block

    def __str__(self) -> str:
        p = self.params
        where = p.storage + (f" of {p.cluster_blocks} blocks" if p.cluster_blocks > 1 else "") + (" projected" if p.project_to_inputs else "")
        batches = f"{p.batches}x{p.outer_batches}" if p.kind == "3d" else f"{p.batches}"
        return (
            f"{p.kind} {where} vector {p.vector_elems} batches {batches} threads {self.threads_per_block} ({p.rows_per_block} rows) "
            f"score {self.score:.3f} lanes {self.lane_fraction:.3f} registers {p.max_registers} ({self.kept_registers} kept) "
            f"blocks/SM {self.blocks_per_sm} warps/SM {self.warps_per_sm} in flight {self.bytes_in_flight_per_sm / 1024:.0f} KiB/SM "
            f"shared {self.shared_bytes} bytes waves {self.waves:.1f}"
        )


IN_REGISTERS = "score: lanes that hold data, less the losses measured for other batches, few warps and recomputed exponentials"
STREAMED = "score: predicted fraction of the memory roof"
FEWER_THREADS = "fewer threads per block"


def choose(facts: PersistentFacts, arch: Arch) -> PersistentParams:
    """Return the params of a normalization. Any facts give legal params: rows too long to be kept are read again."""
    return choose_with_trace(facts, arch)[0]


def choose_with_trace(facts: PersistentFacts, arch: Arch) -> tuple[PersistentParams, Trace]:
    """Return the params and why, best candidate first: registers of a cluster for long rows, else of a block, else shared memory or rows read again."""
    model = _Model(facts, arch)
    criterion, note = IN_REGISTERS, ""
    ranked: tuple[Candidate, ...] = ()
    at_once = model.at_once()
    if at_once is not None:
        ranked, note = (at_once,), "all rows are in work at once: as few vectors per thread and as many registers as that allows"
    elif facts.reduction_elems * facts.max_dtype_bits > model.one_block_bytes * 8:
        ranked = _ranked(model.cluster_candidates())
        note = f"a row of more than {model.one_block_bytes} bytes is spread over a cluster"
    if not ranked:
        ranked, note = _ranked(model.register_candidates()), ""
    if not ranked and model.is_phased:
        return choose_with_trace(dataclasses.replace(facts, phased_limit_elems=1), arch)
    if not ranked:
        ranked = _ranked((*model.shared_candidates(), *model.reread_candidates()))
        criterion, note = STREAMED, "registers cannot hold a row"
    chosen = ranked[0].params
    return chosen, Trace("persistent", facts, (criterion, FEWER_THREADS), ranked[:24], chosen, (note,) if note else ())


def are_at_once(facts: PersistentFacts, arch: Arch) -> bool:
    """True when the rows are so few that blocks hold all of them at once."""
    return _Model(facts, arch).at_once() is not None


def _ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return best_first(candidates, key=lambda candidate: candidate.key)


class _Model:
    """Candidates of one set of facts."""

    def __init__(self, facts: PersistentFacts, arch: Arch) -> None:
        self.facts, self.arch = facts, arch
        self.is_phased = has_phase(facts)
        limit = facts.phased_limit_elems if self.is_phased else facts.vector_limit_elems
        self.vector = vector_elems(limit, facts.max_dtype_bits, facts.min_vector_elems, arch.max_vector_bits)
        self.row_vectors = row_vectors(facts.reduction_elems, self.vector, self.is_phased)
        self.share = share_bytes_per_ns(arch)
        self.moved_bits = max(1, facts.input_bits + facts.output_bits)
        self.levels = max(1, facts.passes - 1)
        self.one_block_bytes = SOFTMAX_BLOCK_BYTES if facts.has_exp and self.levels > 1 else ONE_BLOCK_BYTES
        tensors = max(0, ceil_div(self.moved_bits, facts.max_dtype_bits) - USUAL_TENSORS)
        self.overhead = OVERHEAD_REGISTERS + TENSOR_REGISTERS * tensors + OPERAND_REGISTERS * facts.broadcast_operands + RANDOM_REGISTERS * facts.has_rng

    def workspace_bytes(self, block: int) -> int:
        """Shared memory in which the warps of a block exchange partial results."""
        return round_up(ceil_div(block, 32) * ceil_div(self.facts.accumulator_bits, 8) * self.levels, 128)

    # ---- rows in registers
    def projections(self) -> tuple[tuple[bool, float], ...]:
        """(is projected, kept bits per element) worth considering."""
        facts = self.facts
        plain = (False, facts.persistent_bits / facts.reduction_elems)
        if facts.projected_bits is None or facts.projected_bits >= facts.persistent_bits:
            return (plain,)
        projected = (True, facts.projected_bits / facts.reduction_elems)
        return (projected, plain) if facts.recompute_has_exact_exp else (projected,)

    def register_candidates(self) -> Iterator[Candidate]:
        facts = self.facts
        has_outer_run = facts.dimensions == 3 and facts.runs[0][0] and facts.runs[-1][0] and len(facts.runs) == 3
        for projected, bits in self.projections():
            for batches in self.batch_range(self.row_vectors):
                yield from self.in_registers(projected, bits, batches)
            if has_outer_run:
                yield from self.in_registers_3d(projected, bits)

    def at_once(self) -> Candidate | None:
        """The candidate for so few rows that all are in work at once: nothing hides a row's latency, so its chain of operations is what counts."""
        facts, arch = self.facts, self.arch
        rows = next_power_of_two(ceil_div(facts.iteration_elems, arch.sm_count))  # so that not every number of rows has a kernel of its own
        is_kept = facts.dimensions == 2 and facts.reduction_elems * facts.max_dtype_bits <= self.one_block_bytes * 8
        if rows > MOST_ROWS_AT_ONCE or not is_kept or self.row_vectors <= FEW_BATCHES * arch.warp_threads:
            return None
        for projected, bits in self.projections():
            for batches in self.batch_range(self.row_vectors):
                for found in self.in_registers(projected, bits, batches):
                    threads = found.threads_per_block * rows
                    limit = min(MOST_REGISTERS_AT_ONCE, arch.registers_per_thread(threads) // 8 * 8) if threads <= arch.max_threads_per_sm else 0
                    if limit >= max(MIN_REGISTERS, self.held_at_once(found)):
                        return self.with_limit(found, limit)
        return None

    def with_limit(self, found: Candidate, limit: int) -> Candidate:
        """The candidate with up to `limit` registers, and its weights loaded first when these hold them."""
        p, facts = found.params, self.facts
        weights = ceil_div(p.batches * p.vector_elems * facts.broadcast_operand_bits, 32)
        held = self.data_registers(found) + OVERHEAD_REGISTERS
        more_inputs = TENSOR_REGISTERS * (facts.vectorizable_inputs - 1)
        is_first = weights > 0 and held + more_inputs + weights <= limit and not p.is_phased
        return dataclasses.replace(found, params=dataclasses.replace(p, max_registers=limit, weights_first=is_first))

    def held_at_once(self, found: Candidate) -> int:
        """Registers of a thread: what it holds of the row and what is beside."""
        facts = self.facts
        beside = WIDE_REGISTERS if facts.max_dtype_bits >= 32 else OVERHEAD_REGISTERS
        operands = OPERAND_REGISTERS * facts.broadcast_operands if found.params.batches > 1 and facts.max_dtype_bits < 32 else 0
        return self.data_registers(found) + beside + operands

    def data_registers(self, found: Candidate) -> int:
        """Registers of a thread for its part of the row, or of all inputs when that is more, and for random numbers."""
        return max(found.kept_registers, self.loaded_registers(found.params.batches)) + RANDOM_REGISTERS * self.facts.has_rng

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
            padded = bdimx = max(next_power_of_two(threads), 2 * self.vector * self.is_phased)
            if padded < FEW_LANES and batches > 1:
                return
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
        is_warp_row = row_threads <= arch.warp_threads
        rows = self.rows_per_block(row_threads) if cluster_blocks == 1 else 1
        block = row_threads * rows
        vectors = batches * outer_batches
        kept = math.ceil(self.vector * bits / 32) * vectors
        wanted, limit = self.registers(kept, is_warp_row) if cluster_blocks == 1 else self.cluster_registers(kept, self.loaded_registers(vectors))
        blocks = arch.blocks_per_sm(block, wanted, self.workspace_bytes(block)) if wanted <= arch.max_registers_per_thread else 0
        if not blocks:
            return
        params = PersistentParams(
            kind=kind, storage="register", project_to_inputs=projected, vector_elems=self.vector, batches=batches, unroll=1, bdimx=bdimx,
            pad_to_warp=bdimx is None, rows_per_block=rows, row_unroll=1, bdimz=bdimz, outer_batches=outer_batches, is_warp_only=is_warp_row,
            max_registers=min(limit, arch.registers_per_thread(block)),  # with more, the block could not be launched
            cluster_blocks=cluster_blocks, is_phased=self.is_phased,
        )  # fmt: skip
        params = dataclasses.replace(params, fill=params.fill_of(facts))
        lanes = facts.reduction_elems / (row_threads * vectors * self.vector * cluster_blocks)
        grid = ceil_div(facts.iteration_elems, rows) * cluster_blocks
        resident = min(blocks, ceil_div(grid, arch.sm_count))
        warps = ceil_div(block, 32)
        in_flight = resident * block * vectors * self.vector * (facts.input_bits - facts.late_input_bits) / 8 * lanes
        score = self.score(params, vectors, lanes, blocks * warps, blocks)
        yield Candidate(params, score, lanes, block, kept, blocks, resident * warps, in_flight, 0, grid / (arch.sm_count * blocks))

    def registers(self, kept: int, is_warp_row: bool) -> tuple[int, int]:
        """Return (registers that a thread is expected to use, limit for the compiler) with `kept` registers of the row."""
        if self.facts.max_dtype_bits >= 32:
            random = self.overhead - OVERHEAD_REGISTERS if self.facts.has_rng else 0
            wanted = max(MIN_REGISTERS, round_up(kept + WIDE_REGISTERS + random, 8))
            return wanted, wanted + WIDE_SLACK_REGISTERS
        wanted = max(MIN_REGISTERS, (kept + self.overhead + WARP_ROW_REGISTERS * is_warp_row + 3) // 8 * 8)
        return wanted, wanted

    def cluster_registers(self, kept: int, loaded: int) -> tuple[int, int]:
        """The same for a thread of a cluster, whose inputs take `loaded` registers when they arrive."""
        held = max(kept, loaded)
        is_long = held > LONG_CLUSTER_KEPT_REGISTERS
        beside = CLUSTER_OVERHEAD_REGISTERS  # more blocks are worth more than a register or two of the weights
        if is_long:
            beside = LONG_CLUSTER_OVERHEAD_REGISTERS + OPERAND_REGISTERS * self.facts.broadcast_operands + PHASE_REGISTERS * self.is_phased
        wanted = max(MIN_REGISTERS, round_up(held + beside, 8))
        return wanted, wanted

    def loaded_registers(self, vectors: int) -> int:
        """Registers that `vectors` vectors of all inputs take when they arrive."""
        return ceil_div(self.vector * vectors * (self.facts.input_bits - self.facts.late_input_bits), 32)

    def rows_per_block(self, row_threads: int) -> int:
        """Rows side by side: enough for a small block, fewer when the chip would lack blocks; never a block below a warp when there are rows for one."""
        arch, facts = self.arch, self.facts
        is_short = facts.reduction_elems * facts.max_dtype_bits <= SHORT_ROW_BYTES * 8
        rows = max(1, (NARROW_BLOCK_THREADS if is_short else SMALL_BLOCK_THREADS) // row_threads)
        rows = min(rows, next_power_of_two(facts.iteration_elems))
        while rows > 1 and rows * row_threads > arch.warp_threads and ceil_div(facts.iteration_elems, rows) < arch.sm_count * 4:
            rows //= 2
        return rows

    def full_vectors(self) -> int:
        """Vectors that have the bytes of the widest access."""
        return max(1, self.arch.max_vector_bits // (self.vector * self.facts.max_dtype_bits))

    def wanted_batches(self, share_vectors: int, is_cluster: bool) -> int:
        """Vectors of a thread for `share_vectors` of a row in one block: the row in one warp, else few batches, or many where barriers are dear.

        Source for clusters: rows of 64K and 128K, bf16: layer norm 0.82 with 4 batches (0.80 with 8), softmax, recomputed, 0.94 with 8 (0.93 with 4).
        """
        narrow = min(MOST_NARROW, self.full_vectors())
        if share_vectors <= narrow * FEW_BATCHES * self.arch.warp_threads:
            return max(ceil_div(share_vectors, self.arch.warp_threads), min(share_vectors, self.full_vectors()))
        if is_cluster:
            return narrow * (MANY_BATCHES if self.facts.has_exp else FEW_BATCHES)
        is_few = self.levels == 1 or share_vectors * self.vector * self.facts.max_dtype_bits <= FEW_BATCHES_BYTES * 8
        return narrow * FEW_BATCHES if is_few else min(narrow * MANY_BATCHES, MOST_NARROW * FEW_BATCHES)

    def score(self, params: PersistentParams, vectors: int, lanes: float, warps: int, blocks: int) -> float:
        """Order of the candidates in registers: lanes that hold data, less what the measured losses say.

        Lanes count in sixteenths, so that neighbouring row lengths share a kernel.
        """
        is_cluster = params.cluster_blocks > 1
        doublings = math.log2(vectors / self.wanted_batches(ceil_div(self.row_vectors, params.cluster_blocks), is_cluster))
        other_batches = -doublings * FEWER_CLUSTER_BATCHES_LOSS if is_cluster and doublings < 0 else abs(doublings) * OTHER_BATCHES_LOSS
        has_few_warps = warps < TARGET_WARPS or blocks < 2 and (warps < FULL_BLOCK_WARPS or self.levels > 1)
        again = params.project_to_inputs and self.facts.recompute_has_exact_exp and not is_cluster
        return round(lanes * 16) / 16 - other_batches - FEW_WARPS_LOSS * has_few_warps - RECOMPUTED_EXP_LOSS * again

    def cluster_candidates(self) -> Iterator[Candidate]:
        """Rows too long for the registers of one block, spread over the blocks of a cluster."""
        arch = self.arch
        row_bytes = self.row_vectors * self.vector * self.facts.max_dtype_bits // 8
        blocks = next_power_of_two(ceil_div(row_bytes, CLUSTER_SHARE_BYTES))
        if self.levels > 1 and not self.facts.has_exp:
            blocks = max(blocks, min(PORTABLE_CLUSTER_BLOCKS, next_power_of_two(ceil_div(row_bytes, SMALL_CLUSTER_SHARE_BYTES))))
        blocks = min(blocks, arch.max_cluster_blocks)
        if blocks == 1 or self.facts.iteration_elems > MAX_GRID[1]:
            return
        share = ceil_div(self.row_vectors, blocks)
        for projected, bits in self.projections():
            for batches in (b for b in CLUSTER_BATCHES if b * self.vector <= MAX_CLUSTER_ELEMS_PER_THREAD):
                padded = round_up(ceil_div(share, batches), arch.warp_threads)
                if CLUSTER_BLOCK_THREADS[0] <= padded <= CLUSTER_BLOCK_THREADS[1]:
                    yield from self.with_threads("2d", projected, bits, batches, padded, None, 1, 1, blocks)

    # ---- rows in shared memory, rows read again
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
        facts, arch = self.facts, self.arch
        for threads in self.block_sizes():
            blocks = arch.max_threads_per_sm // threads
            row_bytes = facts.reduction_elems * facts.input_bits / 8
            moved = facts.reduction_elems * self.moved_bits / 8
            again = (facts.passes - 1) * row_bytes
            in_work = min(arch.sm_count * blocks, facts.iteration_elems) * row_bytes
            memory = (moved + again * rereads_from_memory(in_work, arch)) / self.share
            through_l2 = (moved + again) / l2_bytes_per_ns(arch)
            yield self.long_row_candidate("reread", threads, self.loop_unroll(threads), blocks, moved / self.share, max(memory, through_l2), True, 0)

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
        )  # fmt: skip
        in_flight = resident * threads * unroll * self.vector * (facts.input_bits - facts.late_input_bits) / 8
        waves = facts.iteration_elems / (arch.sm_count * blocks)
        return Candidate(params, score, 1.0, threads, 0, blocks, resident * warps, in_flight, shared, waves)
