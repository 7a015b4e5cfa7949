"""How a reduction without reuse of its operands is spread over threads and blocks.

Owns `ReductionParams` and its choice. Pure: facts and arch in, params out.

Loops, outermost first:
    inner   rows: [BIDx, TIDy = bdimy]                      row: [BIDy = grid_split, serial, unswitch, unroll, TIDx = bdimx, vector_elems]
    outer   columns: [BIDx, TIDx = bdimx, vector_elems]     reduced: [BIDy = grid_split, serial, unswitch, unroll, TIDy = bdimy]
    3d      rows: [BIDx, TIDy = bdimy]    outer reduced run: [BIDy = grid_split, serial, TIDz = bdimz]    inner run: [serial, unroll, TIDx, vector_elems]
In "inner" and "outer" several runs of a kind are merged to one loop. With grid_split > 1 blocks leave partial results in a workspace, and the last one of
a row or column finishes; blocks of a cluster (columns on BIDy, its blocks on BIDx) hand them to each other instead.
Read first: `choose`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..arch import Arch
from .facts import ReductionFacts
from .arithmetic import Trace, best_first, ceil_div, has_phase, next_power_of_two, previous_power_of_two, row_vectors, tree_workspace_bytes, vector_elems
from .throughput_heuristic import (
    ACCESS_INSTRUCTIONS,
    BLOCK_REDUCTION_INSTRUCTIONS,
    INSTRUCTIONS_PER_OP,
    LATENCY_NS,
    MUFU_CLOCKS,
    WARP_INSTRUCTIONS,
    WARP_REDUCTION_INSTRUCTIONS,
    balance,
    bytes_in_flight_per_sm,
    clocks_per_ns,
    reduction_clocks,
    roof_fraction,
    share_bytes_per_ns,
    vector_latency_clocks,
)

IN_FLIGHT_BYTES_PER_THREAD = 32
"""Two 16-byte loads in flight per thread, over all inputs."""
LOOP_BYTES_PER_THREAD = 64
"""The same where threads loop over a long row or column."""
LOOP_FACTOR, FOUR_VECTORS_FACTOR = 0.86, 0.93
"""What a loop over the row costs against loading all of it at once, and what more than two vectors of a thread do."""
SHORT_OF_FLIGHT_POWER = 0.6
"""Fraction of the roof reached with a part r of the bytes in flight that are needed: r to this power (0.7 reaches 0.8; same source)."""
LOOP_FLIGHT = 1.5
"""In a loop a thread has nothing in flight part of the time: needs this much more."""
TOO_MUCH_IN_FLIGHT = 0.03
"""Lost for each multiple of the bytes needed in flight beyond 1.5 (same source as above)."""
MAX_UNROLL = 8
GRID_REDUCTION_NS = 2500.0
"""Partial results through L2, a counter, and a last block that reads them."""
LONE_SM_GAIN = 1.6
"""What a multiprocessor can draw beyond its share while others idle."""
TIME_STEP = 0.02
"""Predicted times this close (relative) count as equal; the later criteria decide."""
MAX_GRID_SPLIT = 1024
INNER_THREADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
INNER_BLOCK_THREADS = 256
OUTER_THREADS_X = (1, 2, 4, 8, 16, 32, 64, 128)
OUTER_BLOCK_THREADS = (256, 512)
SEGMENT_COST = {8: 2.5, 16: 1.6, 32: 1.25, 64: 1.1}
"""Relative time per byte of rows read in pieces of so many bytes; wider pieces cost 1. 64: measured on an H200; below: an estimate, sectors have 32 bytes."""

LONG_COLUMN_ELEMS = 1024
MOST_COLUMNS_PER_SM = 4
COLUMN_WIDTHS, COLUMN_THREADS, COLUMN_UNROLL = (8, 16, 32, 64), 512, 8
MOST_COLUMN_CLUSTER = 2
SHARED_COLUMN_BLOCK, SHARED_COLUMN_UNROLL, SHARED_BLOCKS_PER_SM = (16, 32), 4, 2
SHIFTED_ELEMS = 4
"""Columns of a thread where vectors begin at any element: three words of 32 bits for four elements of 16."""
FULL_CHIP = 0.85
SHORT_COLUMN_ELEMS, SHORT_FULL_CHIP = 4096, 0.55
"""Columns up to which sharing them costs more than multiprocessors without a block."""
"""Long columns read with the widest accesses. Where blocks of 512 threads, the narrowest of these widths that gives no multiprocessor two, alone or sharing
their columns in clusters or through global memory, fill this part of the chip, they do; else more and smaller ones share columns. Source: generated kernels
on one H200, bf16, of a copy, medians over six placements: 8192x8192 0.95 with 8x64 by unroll 8 and 128 registers (0.85 with 64), 0.94 with 8x128 by 4, 0.92
with 8x64 in clusters of two; 4096x16384 0.95 with 16x32 by 8, 0.93 with 8x64 by 8; 9362x7168 1.00 with 8x64 by 8; 16384x4096 0.92 with 8x64 by 8 in clusters
of two, 0.90 in two blocks without, 16x32 in four 0.90, in clusters of four 0.85; 65536x1024 0.88 with 8x64 by 8 in eight blocks, 0.84 in clusters of eight;
8000x5000 0.90 with 16x32 by 4 in six, 0.93 with 16x16 in eight; 104857x640 0.88 with 16x32 by 4 in 26, 0.87 with 16x16 in 64; 1048576x64 0.87 with 8x64 by 8
in 128. Narrow accesses need more bytes in flight than these blocks have, and follow the model."""


@dataclass(frozen=True, slots=True)
class ReductionParams:
    """A schedule of a reduction; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "inner", "outer" or "3d". vector_elems: along the innermost loop, reduced or not. unroll: loads issued before the first is used.
    bdimx, bdimy, bdimz: threads, see the module. grid_split: blocks that share a row or column, 1: none.
    is_phased: vectors are aligned in memory although rows are not ("inner" only). is_cluster: the grid_split blocks are a cluster ("outer" only).
    unswitch: the serial loop tests the bounds of all unrolled loads at once.
    overlaps: vectors begin at any element, and the last one of the columns repeats some of the one before ("outer" only).
    single_reads: names of inputs that are read element by element.
    """

    kind: str
    vector_elems: int
    unroll: int
    bdimx: int
    bdimy: int
    bdimz: int
    grid_split: int
    is_warp_only: bool
    max_registers: int
    is_phased: bool = False
    unswitch: bool = False
    is_cluster: bool = False
    overlaps: bool = False
    single_reads: tuple[int, ...] = ()

    @property
    def threads_per_block(self) -> int:
        return self.bdimx * self.bdimy * self.bdimz

    @property
    def rows_per_block(self) -> int:
        """Results of one block: rows, or columns when the reduction is an outer one."""
        return self.bdimx * self.vector_elems if self.kind == "outer" else self.bdimy

    @property
    def is_grid_reduction(self) -> bool:
        return self.grid_split > 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the reduction; `time_ns` as the model predicts it, `fraction` of the roof."""

    params: ReductionParams
    time_ns: float
    fraction: float
    lane_fraction: float
    blocks: int
    blocks_per_sm: int
    bytes_in_flight_per_sm: float
    key: tuple[float, ...] = field(compare=False, default=())

    def __str__(self) -> str:
        p = self.params
        return (
            f"{p.kind} vector {p.vector_elems} unroll {p.unroll} block {p.bdimx}x{p.bdimy}x{p.bdimz} split {p.grid_split} time {self.time_ns / 1e3:.2f} us "
            f"fraction {self.fraction:.3f} lanes {self.lane_fraction:.3f} blocks {self.blocks} ({self.blocks_per_sm}/SM) "
            f"in flight {self.bytes_in_flight_per_sm / 1024:.0f} KiB/SM"
        )


CRITERIA = (f"predicted time (in steps of {TIME_STEP:.0%})", "no grid reduction", "fewer blocks per row", "blocks of 256 threads", "fewer threads along x")


def choose(facts: ReductionFacts, arch: Arch) -> ReductionParams:
    """Return the params of a reduction. Any facts give legal params."""
    return choose_with_trace(facts, arch)[0]


def choose_with_trace(facts: ReductionFacts, arch: Arch) -> tuple[ReductionParams, Trace]:
    """Return the params and why, best candidate first."""
    model = _Model(facts, arch)
    candidates = list(model.inner() if facts.is_inner else model.outer())
    best_ns = min(c.time_ns for c in candidates)
    ranked = best_first(candidates, key=lambda c: (-int((c.time_ns / best_ns - 1) / TIME_STEP), *c.key))
    return ranked[0].params, Trace("reduction", facts, CRITERIA, ranked[:24], ranked[0].params)


def variants(facts: ReductionFacts, arch: Arch) -> list[tuple[str, ReductionParams]]:
    """Return (way, params) to time, the choice first: rows or columns in one block, shared through memory, and in clusters."""
    model = _Model(facts, arch)
    chosen = choose(facts, arch)
    found = list(model.inner() if facts.is_inner else model.outer_everywhere())
    ranked = [chosen, *(c.params for c in sorted(found, key=lambda c: c.time_ns) if c.params != chosen)]
    return [(f"{p.kind}, {'cluster' if p.is_cluster else 'one block' if p.grid_split == 1 else 'several blocks'}", p) for p in dict.fromkeys(ranked)]


def _nice(value: int) -> int:
    """Round down to at most two binary digits after the first (..., 8, 10, 12, 14, 16, 20, ...): fewer kernels for nearly the same split."""
    step = max(1, previous_power_of_two(value) // 4)
    return max(1, value // step * step)


MOST_NARROW_COLUMNS = 8
"""Of a thread, for columns of 4 bits: each has a sum of its own, which the block and the grid fold."""


class _Model:
    """Candidates of one set of facts."""

    def __init__(self, facts: ReductionFacts, arch: Arch) -> None:
        self.facts, self.arch = facts, arch
        self.is_phased = facts.is_inner and has_phase(facts)
        limit = facts.phased_limit_elems if self.is_phased else facts.vector_limit_elems
        self.vector = vector_elems(limit, facts.max_dtype_bits, facts.min_vector_elems, max(facts.vector_bits, arch.max_vector_bits))
        if not facts.is_inner and facts.max_dtype_bits < 8:
            self.vector = min(self.vector, MOST_NARROW_COLUMNS)
        self.overlaps = facts.can_begin_anywhere and self.vector == 1 and facts.inner_run_elems >= SHIFTED_ELEMS and facts.min_vector_elems == 1
        if self.overlaps:
            self.vector = SHIFTED_ELEMS
        self.share = share_bytes_per_ns(arch)
        self.moved_bits = max(1, facts.input_bits + facts.output_bits)
        self.inputs = max(1, facts.vectorizable_inputs)
        self.vector_bytes = self.vector * facts.max_dtype_bits * self.inputs / 8
        tensors = self.inputs + (facts.output_bits > 0)
        per_elem = max(facts.instructions * INSTRUCTIONS_PER_OP, facts.mufu * MUFU_CLOCKS / 2)
        self.instructions = self.vector * per_elem + tensors * ACCESS_INSTRUCTIONS
        self.clock = clocks_per_ns(arch)
        self.vector_clocks = vector_latency_clocks(self.vector, 1)
        self.loaded_registers = ceil_div(self.vector * facts.max_dtype_bits, 32) * self.inputs
        self.accumulator_registers = ceil_div(facts.accumulator_bits, 32)
        self.wanted_in_flight = bytes_in_flight_per_sm(arch) * (facts.input_bits / self.moved_bits)
        self.ideal_ns = facts.total_elems * self.moved_bits / 8 / (self.share * arch.sm_count)

    def unroll(self, vectors: int) -> int:
        """Loads before the first use, when a thread has `vectors` of them: all, where they are few."""
        loop = max(1, previous_power_of_two(int(LOOP_BYTES_PER_THREAD / self.vector_bytes)))
        return min(MAX_UNROLL, vectors if vectors <= loop else loop)

    def candidate(self, params: ReductionParams, vectors: int, row_warps: int, lanes: float, blocks: int, segment_bytes: float) -> Candidate:
        """`vectors` of a thread, idle lanes included; `lanes`: part of them that holds data; `segment_bytes`: contiguous piece that a block reads."""
        arch, facts = self.arch, self.facts
        threads = params.threads_per_block
        warps = ceil_div(threads, arch.warp_threads)
        kept = params.unroll * self.loaded_registers
        accumulators = self.accumulator_registers * (self.vector if params.kind == "outer" else 1)
        registers = 16 + (kept if vectors <= params.unroll else ceil_div(kept, 2)) + accumulators
        shared = tree_workspace_bytes(threads, self.vector, facts.accumulator_bits) if params.kind == "outer" else 0
        per_sm = max(1, arch.blocks_per_sm(threads, min(registers, params.max_registers), shared))
        transfer = threads * vectors * self.vector * lanes * self.moved_bits / 8 / self.share
        at_once = min(vectors, params.unroll)
        rest = LATENCY_NS + (at_once * self.vector_clocks + facts.exchange_factor * reduction_clocks(row_warps)) / self.clock
        reduction = facts.exchange_factor * (WARP_REDUCTION_INSTRUCTIONS if row_warps <= 1 else BLOCK_REDUCTION_INSTRUCTIONS)
        issue = max(1, warps) / 4 * (vectors * self.instructions + reduction + WARP_INSTRUCTIONS) / self.clock
        one_block_in_flight = threads * at_once * self.vector * facts.input_bits / 8 * lanes

        def fraction(resident: int) -> float:
            if not facts.input_bits:  # every input varies over rows alone or columns alone: few bytes, that wait for nothing
                return roof_fraction(resident, transfer, rest, issue)
            in_flight = resident * one_block_in_flight / self.wanted_in_flight
            if vectors > params.unroll:
                factor = LOOP_FACTOR * min(1.0, (in_flight / LOOP_FLIGHT) ** SHORT_OF_FLIGHT_POWER)
            else:
                factor = min(1.0, in_flight**SHORT_OF_FLIGHT_POWER) - TOO_MUCH_IN_FLIGHT * min(2.0, max(0.0, in_flight - 1.5))
                factor *= FOUR_VECTORS_FACTOR if vectors * self.vector_bytes > IN_FLIGHT_BYTES_PER_THREAD else 1.0
            return roof_fraction(resident, transfer, rest, issue) * float(max(factor, 1e-6))

        full, tail = divmod(ceil_div(blocks, arch.sm_count), per_sm)
        boost = min(LONE_SM_GAIN, max(1.0, arch.sm_count / blocks))
        if full < 4:  # whole rounds of resident blocks, and a last one that fills the chip in part
            time = (full * per_sm * transfer / fraction(per_sm) if full else 0.0) + (tail * transfer / fraction(tail) if tail else 0.0)
        else:
            time = blocks / arch.sm_count * transfer / fraction(per_sm) / balance(blocks, arch)
        time = time / boost * next((c for width, c in SEGMENT_COST.items() if segment_bytes <= width), 1.0) + LATENCY_NS
        if params.grid_split > 1:
            partial_bytes = facts.iteration_elems * params.grid_split * facts.accumulator_bits / 8
            time += GRID_REDUCTION_NS + 2 * partial_bytes / (self.share * arch.sm_count)
        in_flight = min(per_sm, ceil_div(blocks, arch.sm_count)) * one_block_in_flight
        key = (params.grid_split == 1, -params.grid_split, -abs(threads - INNER_BLOCK_THREADS), -params.bdimx)
        return Candidate(params, time, min(1.0, self.ideal_ns / time), lanes, blocks, per_sm, in_flight, key)

    def registers(self, threads: int) -> int:
        return min(self.arch.max_registers_per_thread, self.arch.registers_per_thread(max(threads, self.arch.max_threads_per_sm // 2)))

    def column_registers(self, threads: int, unroll: int) -> int:
        """The same for columns, whose loads must all have registers: a tight limit makes the compiler issue one after the other."""
        usual = self.registers(threads)
        return max(usual, min(2 * usual, self.arch.registers_per_thread(threads))) if unroll == COLUMN_UNROLL else usual

    def splits(self, blocks: int, most: int, per_sm: int) -> Iterator[int]:
        """Ways to share a row among blocks: 1, and as many as fill the chip once, with fewer or more blocks on a multiprocessor.

        Only 1 where results meet: another block may be the last for each of them.
        """
        yield 1
        if self.facts.results_meet:
            return
        seen = {1}
        for wanted in (1, 2, 4, per_sm):
            split = _nice(min(most, MAX_GRID_SPLIT, self.arch.sm_count * wanted // max(1, blocks)))
            if split not in seen and wanted <= per_sm:
                seen.add(split)
                yield split

    # ---- the innermost loop is reduced
    def inner(self) -> Iterator[Candidate]:
        yield from self.inner_merged()
        facts = self.facts
        if facts.dimensions == 3 and facts.runs[0][0] and len(facts.runs) == 3:
            yield from self.inner_3d()

    def inner_merged(self) -> Iterator[Candidate]:
        facts, arch = self.facts, self.arch
        row = row_vectors(facts.reduction_elems, self.vector, self.is_phased)
        fewest = 2 * self.vector if self.is_phased else 1  # threads that do the ends of a row
        for bdimx in INNER_THREADS:
            if bdimx < fewest or bdimx > fewest and bdimx // 2 >= row or ceil_div(row, bdimx) > 16 and bdimx < 32:
                continue
            bdimy = max(1, min(INNER_BLOCK_THREADS // bdimx, next_power_of_two(facts.iteration_elems)))
            rows = ceil_div(facts.iteration_elems, bdimy)
            for split in self.splits(rows, row // (2 * bdimx), arch.max_threads_per_sm // (bdimx * bdimy)):
                share = ceil_div(row, split)
                unroll = self.unroll(ceil_div(share, bdimx))
                vectors = ceil_div(share, bdimx * unroll) * unroll
                params = ReductionParams(
                    kind="inner", vector_elems=self.vector, unroll=unroll, bdimx=bdimx, bdimy=bdimy, bdimz=1, grid_split=split,
                    is_warp_only=bdimx <= arch.warp_threads, max_registers=self.registers(bdimx * bdimy), is_phased=self.is_phased,
                    unswitch=vectors > unroll > 1,
                )  # fmt: skip
                lanes = share / (vectors * bdimx)
                yield self.candidate(params, vectors, ceil_div(bdimx, 32), lanes, rows * split, 512)

    def inner_3d(self) -> Iterator[Candidate]:
        """Threads along x stay within the inner run, so no index is divided; only where that wastes few lanes."""
        facts, arch = self.facts, self.arch
        outer = facts.runs[0][1]
        row = ceil_div(facts.inner_run_elems, self.vector)
        for bdimx in (32, 64, 128, 256):
            unroll = self.unroll(ceil_div(row, bdimx))
            inner_vectors = ceil_div(row, bdimx * unroll) * unroll
            lanes = row / (inner_vectors * bdimx)
            if lanes < 0.85:
                continue
            bdimz = max(1, min(INNER_BLOCK_THREADS // bdimx, previous_power_of_two(outer)))
            for split in self.splits(facts.iteration_elems, outer // bdimz, arch.max_threads_per_sm // (bdimx * bdimz)):
                params = ReductionParams(
                    kind="3d", vector_elems=self.vector, unroll=unroll, bdimx=bdimx, bdimy=1, bdimz=bdimz, grid_split=split,
                    is_warp_only=bdimx * bdimz <= arch.warp_threads, max_registers=self.registers(bdimx * bdimz),
                )  # fmt: skip
                vectors = inner_vectors * ceil_div(outer, bdimz * split)
                yield self.candidate(params, vectors, ceil_div(bdimx * bdimz, 32), lanes, facts.iteration_elems * split, 512)

    # ---- the innermost loop is kept
    def outer(self) -> Iterator[Candidate]:
        """Long columns, few of them: what was measured; else what the model says of many shapes."""
        facts, arch = self.facts, self.arch
        row = ceil_div(facts.iteration_elems, self.vector)
        is_wide = self.vector * facts.max_dtype_bits == arch.max_vector_bits
        if is_wide and facts.reduction_elems >= LONG_COLUMN_ELEMS and ceil_div(row, COLUMN_WIDTHS[0]) <= MOST_COLUMNS_PER_SM * arch.sm_count:
            yield self.full_chip(row) or self.shared_columns(row)
            return
        yield from self.outer_modelled(row)

    def outer_everywhere(self) -> Iterator[Candidate]:
        """Every candidate for columns, whatever their length."""
        row = ceil_div(self.facts.iteration_elems, self.vector)
        if found := self.full_chip(row):
            yield found
        yield self.shared_columns(row)
        yield from self.outer_modelled(row)

    def outer_modelled(self, row: int) -> Iterator[Candidate]:
        """What the model says of many shapes."""
        facts, arch = self.facts, self.arch
        for bdimx in OUTER_THREADS_X:
            if bdimx > 1 and bdimx // 2 >= row or bdimx < 8 and bdimx < row:
                continue
            columns = ceil_div(row, bdimx)
            for threads in OUTER_BLOCK_THREADS:
                bdimy = self.fitting(bdimx, max(1, min(threads // bdimx, next_power_of_two(facts.reduction_elems))))
                for split in self.splits(columns, facts.reduction_elems // (2 * bdimy), arch.max_threads_per_sm // (bdimx * bdimy)):
                    unroll = self.unroll(ceil_div(ceil_div(facts.reduction_elems, split), bdimy))
                    yield self.outer_candidate(row, bdimx, bdimy, split, unroll)

    def full_chip(self, row: int) -> Candidate | None:
        """Blocks, alone or in clusters, that fill the chip once; None where there are none."""
        facts, arch = self.facts, self.arch
        bdimx = next((width for width in COLUMN_WIDTHS if ceil_div(row, width) <= arch.sm_count), 0)
        if not bdimx or row < bdimx:
            return None
        blocks = ceil_div(row, bdimx)
        bdimy = self.fitting(bdimx, COLUMN_THREADS // bdimx)
        split = previous_power_of_two(min(arch.sm_count // blocks, max(1, facts.reduction_elems // (bdimy * COLUMN_UNROLL))))
        is_cluster = 1 < split <= min(MOST_COLUMN_CLUSTER, arch.max_cluster_blocks)
        least = SHORT_FULL_CHIP if split == 1 and facts.reduction_elems <= SHORT_COLUMN_ELEMS else FULL_CHIP
        if blocks * split < least * arch.sm_count or split > 1 and not is_cluster and facts.results_meet:
            return None
        return self.outer_candidate(row, bdimx, bdimy, split, COLUMN_UNROLL, is_cluster=is_cluster)

    def shared_columns(self, row: int) -> Candidate:
        """Blocks that share columns through global memory, a few for each multiprocessor; one per column where results meet."""
        facts, arch = self.facts, self.arch
        (bdimx, bdimy), unroll = SHARED_COLUMN_BLOCK, SHARED_COLUMN_UNROLL
        if row < bdimx:
            bdimx, bdimy = next_power_of_two(row), bdimx * bdimy // next_power_of_two(row)
        bdimy = self.fitting(bdimx, bdimy)
        wanted = SHARED_BLOCKS_PER_SM * arch.sm_count // ceil_div(row, bdimx)
        split = _nice(max(1, min(wanted, MAX_GRID_SPLIT, facts.reduction_elems // (bdimy * unroll))))
        return self.outer_candidate(row, bdimx, bdimy, 1 if facts.results_meet else split, unroll)

    def fitting(self, bdimx: int, bdimy: int) -> int:
        """Return as many of the threads along y as have shared memory to fold all results of the kernel in."""
        while bdimy > 1 and tree_workspace_bytes(bdimx * bdimy, self.vector, self.facts.accumulator_bits) > self.arch.shared_per_block_optin_bytes:
            bdimy //= 2
        return bdimy

    def outer_candidate(self, row: int, bdimx: int, bdimy: int, split: int, unroll: int, is_cluster: bool = False) -> Candidate:
        facts = self.facts
        columns, share = ceil_div(row, bdimx), ceil_div(facts.reduction_elems, split)
        vectors = ceil_div(share, bdimy * unroll) * unroll
        params = ReductionParams(
            kind="outer", vector_elems=self.vector, unroll=unroll, bdimx=bdimx, bdimy=bdimy, bdimz=1, grid_split=split,
            is_warp_only=False, max_registers=self.column_registers(bdimx * bdimy, unroll), unswitch=vectors > unroll > 1, is_cluster=is_cluster,
            overlaps=self.overlaps,
        )  # fmt: skip
        lanes = row / (columns * bdimx) * share / (vectors * bdimy)
        segment = min(row, bdimx) * self.vector * facts.max_dtype_bits / 8
        return self.candidate(params, vectors, ceil_div(bdimx * bdimy, 32), lanes, columns * split, segment)
