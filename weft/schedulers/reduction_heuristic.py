"""How a reduction without reuse of its operands is spread over threads and blocks.

Owns `ReductionParams` and its choice. Pure: facts and arch in, params out.

Loops, outermost first:
    inner   rows: [BIDx, TIDy = bdimy]                      row: [BIDy = grid_split, serial, unroll, TIDx = bdimx, vector_elems]
    outer   columns: [BIDx, TIDx = bdimx, vector_elems]     reduced: [BIDy = grid_split, serial, unroll, TIDy = bdimy]
    3d      rows: [BIDx, TIDy = bdimy]    outer reduced run: [BIDy = grid_split, serial, TIDz = bdimz]    inner run: [serial, unroll, TIDx, vector_elems]
In "inner" and "outer" several runs of a kind are merged to one loop. With grid_split > 1 blocks leave partial results in a workspace, and the last one of
a row or column finishes.
Read first: `choose`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..arch import Arch
from .facts import ReductionFacts
from .throughput_heuristic import (
    ACCESS_INSTRUCTIONS,
    BLOCK_REDUCTION_NS,
    BLOCK_START_NS,
    MEMORY_LATENCY_NS,
    WARP_REDUCTION_NS,
    Trace,
    best_first,
    busy_fraction,
    bytes_in_flight_per_sm,
    ceil_div,
    issue_ns,
    next_power_of_two,
    previous_power_of_two,
    share_bytes_per_ns,
    vector_elems,
)

IN_FLIGHT_BYTES_PER_THREAD = 64
"""Four 16-byte loads in flight per thread."""
MAX_UNROLL = 8
GRID_REDUCTION_NS = 2500.0
"""Partial results through L2, a counter, and a last block that reads them."""
LONE_SM_GAIN = 1.6
"""What a multiprocessor can draw beyond its share while others idle."""
TIME_STEP = 0.02
"""Predicted times this close (relative) count as equal; the later criteria decide."""
MAX_GRID_SPLIT = 1024
INNER_THREADS = (32, 64, 128, 256, 512)
OUTER_THREADS_X = (8, 16, 32, 64, 128)
OUTER_BLOCK_THREADS = (256, 512)
SEGMENT_COST = {8: 2.5, 16: 1.6, 32: 1.25, 64: 1.05}
"""Relative time per byte of rows read in pieces of so many bytes; wider pieces cost 1. An estimate: sectors have 32 bytes, DRAM bursts 64."""


@dataclass(frozen=True, slots=True)
class ReductionParams:
    """A schedule of a reduction; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "inner", "outer" or "3d". vector_elems: along the innermost loop, reduced or not. unroll: loads issued before the first is used.
    bdimx, bdimy, bdimz: threads, see the module. pad_to_warp: always whole warps along x when the row is reduced there.
    grid_split: blocks that share a row or column, 1: none. rows_per_block: iteration indices per block (columns when outer).
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
    key: tuple = field(compare=False, default=())

    def __str__(self) -> str:
        p = self.params
        return (
            f"{p.kind} vector {p.vector_elems} unroll {p.unroll} block {p.bdimx}x{p.bdimy}x{p.bdimz} split {p.grid_split} time {self.time_ns / 1e3:.2f} us "
            f"fraction {self.fraction:.3f} lanes {self.lane_fraction:.3f} blocks {self.blocks} ({self.blocks_per_sm}/SM) in flight {self.bytes_in_flight_per_sm / 1024:.0f} KiB/SM"
        )


CRITERIA = (f"predicted time (in steps of {TIME_STEP:.0%})", "no grid reduction", "fewer blocks per row", "more threads along x", "smaller blocks")


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


def _nice(value: int) -> int:
    """Round down to at most two binary digits after the first (..., 8, 10, 12, 14, 16, 20, ...): fewer kernels for nearly the same split."""
    step = max(1, previous_power_of_two(value) // 4)
    return max(1, value // step * step)


class _Model:
    """Candidates of one set of facts."""

    def __init__(self, facts: ReductionFacts, arch: Arch) -> None:
        self.facts, self.arch = facts, arch
        self.vector = vector_elems(facts.vector_limit_elems, facts.max_dtype_bits, facts.min_vector_elems, arch.max_vector_bits)
        self.share = share_bytes_per_ns(arch)
        self.row_bits = facts.input_bits + facts.output_bits
        inputs = max(1, facts.vectorizable_inputs)
        wanted = IN_FLIGHT_BYTES_PER_THREAD * 8 // (self.vector * facts.max_dtype_bits * inputs)
        self.unroll = max(1, min(MAX_UNROLL, previous_power_of_two(wanted)))
        self.instructions = facts.instructions + (inputs + (facts.output_bits > 0)) * ACCESS_INSTRUCTIONS / self.vector
        self.ideal_ns = facts.total_elems * self.row_bits / 8 / (self.share * arch.sm_count)

    def candidate(self, params: ReductionParams, elems_per_block: float, lane_fraction: float, blocks: int, segment_bytes: float, partial_bytes: float) -> Candidate:
        arch, facts = self.arch, self.facts
        threads = params.threads_per_block
        kept = params.unroll * ceil_div(self.vector * facts.max_dtype_bits, 32) * max(1, facts.vectorizable_inputs)
        registers = min(128, 32 + kept + ceil_div(facts.accumulator_bits, 32) * (self.vector if params.kind == "outer" else 1))
        per_sm = max(1, arch.blocks_per_sm(threads, registers))
        resident = min(per_sm, ceil_div(blocks, arch.sm_count))
        transfer = elems_per_block * self.row_bits / 8 / self.share
        warps = ceil_div(threads, 32)
        rest = MEMORY_LATENCY_NS + BLOCK_START_NS + WARP_REDUCTION_NS + (0 if params.is_warp_only else BLOCK_REDUCTION_NS)
        rest += issue_ns(arch, warps, params.unroll * self.vector, self.instructions, facts.mufu)
        in_flight = resident * threads * params.unroll * self.vector * facts.input_bits / 8 * lane_fraction
        boost = min(LONE_SM_GAIN, max(1.0, arch.sm_count / blocks))
        busy = min(busy_fraction(resident, transfer, rest), in_flight / (bytes_in_flight_per_sm(arch) / 2)) * boost
        per_elem = max(self.instructions, facts.mufu * 8)
        elems_per_ns = self.share * 8 / self.row_bits
        busy = min(busy, 4 * 32 * arch.sm_clock_khz * 1e-6 * lane_fraction / (elems_per_ns * per_elem))
        on_one_sm = ceil_div(blocks, arch.sm_count) if blocks < 8 * arch.sm_count else blocks / arch.sm_count
        cost = next((c for width, c in SEGMENT_COST.items() if segment_bytes <= width), 1.0)
        time = on_one_sm * transfer / max(busy, 1e-6) * cost + MEMORY_LATENCY_NS
        if params.grid_split > 1:
            time += GRID_REDUCTION_NS + 2 * partial_bytes / (self.share * arch.sm_count)
        key = (params.grid_split == 1, -params.grid_split, min(params.bdimx, 32 if params.kind == "outer" else 128), -threads)
        return Candidate(params, time, min(1.0, self.ideal_ns / time), lane_fraction, blocks, per_sm, in_flight, key)

    def registers(self, threads: int) -> int:
        return min(self.arch.max_registers_per_thread, self.arch.registers_per_thread(max(threads, self.arch.max_threads_per_sm // 2)))

    def splits(self, blocks: int, most: int) -> Iterator[int]:
        """Ways to share a row among blocks: 1, and as many as make whole rounds of the chip."""
        yield 1
        seen = {1}
        for per_sm in (1, 2, 3, 4, 6, 8):
            split = _nice(min(most, MAX_GRID_SPLIT, self.arch.sm_count * per_sm // max(1, blocks)))
            if split not in seen:
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
        vectors = ceil_div(facts.reduction_elems, self.vector)
        for bdimx in INNER_THREADS:
            if bdimx > 32 and bdimx // 2 * self.unroll >= vectors:
                break  # half as many threads would do
            unroll = min(self.unroll, next_power_of_two(ceil_div(vectors, bdimx)))
            bdimy = max(1, min(128 // bdimx, next_power_of_two(facts.iteration_elems)))
            rows = ceil_div(facts.iteration_elems, bdimy)
            for split in self.splits(rows, vectors // (bdimx * unroll)):
                vectors_per_block = ceil_div(vectors, split)
                lanes = vectors_per_block / (ceil_div(vectors_per_block, bdimx) * bdimx)
                params = ReductionParams(
                    kind="inner", vector_elems=self.vector, unroll=unroll, bdimx=bdimx, bdimy=bdimy, bdimz=1, grid_split=split,
                    is_warp_only=bdimx <= arch.warp_threads, max_registers=self.registers(bdimx * bdimy),
                )  # fmt: skip
                elems = vectors_per_block * self.vector * bdimy
                partial = facts.iteration_elems * split * facts.accumulator_bits / 8
                yield self.candidate(params, elems, lanes, rows * split, 512, partial)

    def inner_3d(self) -> Iterator[Candidate]:
        """Threads along x stay within the inner run, so no index is divided; only where that wastes few lanes."""
        facts, arch = self.facts, self.arch
        outer = facts.runs[0][1]
        vectors = ceil_div(facts.inner_run_elems, self.vector)
        for bdimx in (32, 64, 128, 256):
            lanes = vectors / (ceil_div(vectors, bdimx) * bdimx)
            if lanes < 0.85:
                continue
            unroll = min(self.unroll, previous_power_of_two(ceil_div(vectors, bdimx)))
            bdimz = max(1, min(256 // bdimx, previous_power_of_two(outer)))
            for split in self.splits(facts.iteration_elems, outer // bdimz):
                params = ReductionParams(
                    kind="3d", vector_elems=self.vector, unroll=unroll, bdimx=bdimx, bdimy=1, bdimz=bdimz, grid_split=split,
                    is_warp_only=bdimx * bdimz <= arch.warp_threads, max_registers=self.registers(bdimx * bdimz),
                )  # fmt: skip
                elems = ceil_div(outer, split) * facts.inner_run_elems
                partial = facts.iteration_elems * split * facts.accumulator_bits / 8
                yield self.candidate(params, elems, lanes, facts.iteration_elems * split, 512, partial)

    # ---- the innermost loop is kept
    def outer(self) -> Iterator[Candidate]:
        facts, arch = self.facts, self.arch
        vectors = ceil_div(facts.iteration_elems, self.vector)
        for bdimx in OUTER_THREADS_X:
            if bdimx > 8 and bdimx // 2 >= vectors:
                break
            columns = ceil_div(vectors, bdimx)
            lanes = vectors / (columns * bdimx)
            for threads in OUTER_BLOCK_THREADS:
                bdimy = max(1, min(threads // bdimx, next_power_of_two(facts.reduction_elems)))
                unroll = min(self.unroll, next_power_of_two(ceil_div(facts.reduction_elems, bdimy)))
                for split in self.splits(columns, facts.reduction_elems // (bdimy * unroll)):
                    params = ReductionParams(
                        kind="outer", vector_elems=self.vector, unroll=unroll, bdimx=bdimx, bdimy=bdimy, bdimz=1, grid_split=split,
                        is_warp_only=False, max_registers=self.registers(bdimx * bdimy),
                    )  # fmt: skip
                    elems = min(facts.iteration_elems, bdimx * self.vector) * ceil_div(facts.reduction_elems, split)
                    partial = facts.iteration_elems * split * facts.accumulator_bits / 8
                    segment = bdimx * self.vector * facts.max_dtype_bits / 8
                    yield self.candidate(params, elems, lanes, columns * split, segment, partial)
