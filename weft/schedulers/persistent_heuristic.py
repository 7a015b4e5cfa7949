"""How a normalization keeps its rows on chip and spreads them over threads.

Owns `PersistentParams` and the choice between rows in registers (2-D and 3-D), in shared memory, and read again. Pure: facts and arch in, params out.

A row of R elements is P = R / vector_elems vectors. In registers, each thread holds `batches` of them, loaded before the first is used; the threads
of a row are inferred at launch, ceil(P / batches) rounded up to whole warps, so one kernel serves every row length that leads to the same batches.
For rows in shared memory or read again, the loop over the row has a run-time count and the block is static: one kernel for every length.

Loops, outermost first:
    register, 2-D   rows: [BIDx, TIDy = rows_per_block]          row: [batches (static), TIDx (inferred or bdimx), vector_elems]
    register, 3-D   rows: as above     outer reduced run: [outer_batches (static), TIDz = bdimz]     inner run: [batches, TIDx, vector_elems]
    shared, reread  rows: [BIDx]                                 row: [serial (run-time), unroll, TIDx = bdimx, vector_elems]
Read first: `choose`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..analysis.loop_axes import Obstacle
from ..arch import Arch
from .facts import PersistentFacts
from .throughput_heuristic import (
    ACCESS_INSTRUCTIONS,
    BLOCK_REDUCTION_NS,
    BLOCK_START_NS,
    L2_SHARE_FOR_REUSE,
    MEMORY_LATENCY_NS,
    SHARED_BYTES_PER_CLOCK,
    WARP_REDUCTION_NS,
    Trace,
    balance,
    best_first,
    busy_fraction,
    ceil_div,
    issue_ns,
    l2_bytes_per_ns,
    next_power_of_two,
    previous_power_of_two,
    round_up,
    share_bytes_per_ns,
    vector_elems,
)

OVERHEAD_REGISTERS = 16
"""Fewest registers beside the kept row (addresses, loop, partial results) with which a kernel does not spill (nvFuser's figure)."""
OVERHEAD_REGISTERS_EXP = 32
"""The same with exponentials."""
COMFORTABLE_EXTRA_REGISTERS = 16
"""On top of the overhead: room to convert one vector while another is on its way."""
TARGET_WARPS = 28
"""Resident warps per multiprocessor from which more no longer help (nvFuser's figure, 44 % of 64)."""
TARGET_WARPS_EXP = 16
"""With exponentials on a chip whose memory is quick compared with its arithmetic: registers are worth more than warps there."""
MAX_BATCHES = 32
MAX_ELEMS_PER_THREAD = 256
"""Straight-line code of one thread; beyond that compile time and instruction cache suffer."""
GOOD_BYTES_PER_THREAD = 64
"""Four 16-byte loads of a tensor in flight per thread."""
FRACTION_STEP = 0.02
"""Predicted fractions of the roof this close count as equal; the later criteria decide."""
STORAGE_MARGIN = 0.03
"""What another storage must gain over registers to be taken."""
SMALL_BLOCK_THREADS = 128


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

    def threads_x(self, facts: PersistentFacts, warp_threads: int = 32) -> int:
        """Threads of one row at launch."""
        if self.bdimx is not None:
            return self.bdimx
        row = facts.inner_run_elems if self.kind == "3d" else facts.reduction_elems
        threads = ceil_div(row, self.vector_elems * self.batches)
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
    bytes_per_thread: float
    bytes_in_flight_per_sm: float
    waves: float
    key: tuple = field(compare=False)

    def __str__(self) -> str:
        p = self.params
        return (
            f"{p.kind} {p.storage}{' projected' if p.project_to_inputs else ''} vector {p.vector_elems} batches {p.batches}"
            f"{f'x{p.outer_batches}' if p.kind == '3d' else ''} threads {self.threads_per_block} ({p.rows_per_block} rows) fraction {self.fraction:.3f} "
            f"lanes {self.lane_fraction:.3f} registers {p.max_registers} ({self.buffer_registers} kept, {self.spare_registers} spare) "
            f"blocks/SM {self.blocks_per_sm} warps/SM {self.warps_per_sm} in flight {self.bytes_in_flight_per_sm / 1024:.0f} KiB/SM waves {self.waves:.1f}"
        )


CRITERIA = (
    f"predicted fraction of the roof (in steps of {FRACTION_STEP})",
    "occupancy reaches the target",
    "lanes that hold data (in sixteenths)",
    "spare registers are comfortable",
    "bytes per thread near four 16-byte loads",
    "fewer threads per block",
)


def choose(facts: PersistentFacts, arch: Arch) -> PersistentParams:
    """Return the params of a normalization. Any facts give legal params: rows too long to be kept are read again."""
    return choose_with_trace(facts, arch)[0]


def choose_with_trace(facts: PersistentFacts, arch: Arch) -> tuple[PersistentParams, Trace]:
    """Return the params and why, best candidate first."""
    vector = vector_elems(facts.vector_limit_elems, facts.max_dtype_bits, facts.min_vector_elems, arch.max_vector_bits)
    model = _Model(facts, arch, vector)
    register = best_first(model.register_candidates(), key=lambda c: c.key)
    if not (facts.is_inner and facts.dimensions == 3):
        pass
    others = best_first((*model.shared_candidates(), *model.reread_candidates()), key=lambda c: c.key) if not register or register[0].blocks_per_sm < 3 else ()
    notes = []
    ranked = register
    if others and (not register or others[0].fraction > register[0].fraction + STORAGE_MARGIN):
        notes.append("registers cannot hold the row" if not register else f"{others[0].params.storage} gains more than {STORAGE_MARGIN} over registers")
        ranked = (others[0], *register, *others[1:])
    elif others:
        ranked = (*register, *others)
    chosen = ranked[0].params
    return chosen, Trace("persistent", facts, CRITERIA, ranked[:24], chosen, tuple(notes))


def needs_rereading(facts: PersistentFacts, arch: Arch) -> bool:
    """True when no storage on chip holds a row."""
    return choose(facts, arch).storage == "reread"


class _Model:
    """Candidates of one set of facts. `vector`: elements of one access."""

    def __init__(self, facts: PersistentFacts, arch: Arch, vector: int) -> None:
        self.facts, self.arch, self.vector = facts, arch, vector
        self.row_vectors = ceil_div(facts.reduction_elems, vector)
        self.share = share_bytes_per_ns(arch)
        self.moved_bits = facts.input_bits + facts.output_bits
        self.tensors = max(1, facts.vectorizable_inputs) + facts.broadcast_operands + (1 if facts.output_bits else 0)
        self.early_input_bits = max(1, facts.input_bits - facts.late_input_bits)

    # ---- costs
    def instructions(self, *, projected: bool) -> float:
        facts = self.facts
        again = facts.recompute_instructions if projected and facts.persistent_bits != facts.projected_bits else 0
        return facts.instructions + again + self.tensors * ACCESS_INSTRUCTIONS / self.vector

    def mufu(self, *, projected: bool) -> float:
        return self.facts.mufu + (1 if projected and self.facts.recompute_has_exp else 0)

    def rest_ns(self, threads: int, rows: int, elems_per_thread: float, projected: bool, *, warp_only: bool) -> float:
        """Time in which one block does not use the memory."""
        levels = max(1, self.facts.passes - 1)
        reduction = WARP_REDUCTION_NS + (0 if warp_only else BLOCK_REDUCTION_NS)
        issue = issue_ns(self.arch, ceil_div(threads, 32), elems_per_thread, self.instructions(projected=projected), self.mufu(projected=projected))
        return MEMORY_LATENCY_NS + BLOCK_START_NS + levels * reduction + issue

    def issue_bound(self, elems_per_ns: float, lane_fraction: float, projected: bool) -> float:
        """Largest fraction of the roof that the instruction issue allows when the roof asks for `elems_per_ns` elements."""
        per_elem = max(self.instructions(projected=projected), self.mufu(projected=projected) * 8)
        lanes_per_ns = 4 * self.arch.warp_threads * self.arch.sm_clock_khz * 1e-6
        return min(1.0, lanes_per_ns * lane_fraction / (elems_per_ns * per_elem))

    # ---- rows in registers
    def projections(self) -> tuple[bool, ...]:
        """Which of (as it is, projected) are worth considering."""
        facts = self.facts
        if facts.projected_bits is None or facts.projected_bits >= facts.persistent_bits:
            return (False,)
        return (True, False) if not facts.recompute_has_exp else (False, True)

    def register_candidates(self) -> Iterator[Candidate]:
        for projected in self.projections():
            kept_bits = self.facts.projected_bits if projected else self.facts.persistent_bits
            for batches in self.batch_range():
                yield from self.with_batches(batches, projected, kept_bits / self.facts.reduction_elems)  # type: ignore[operator]

    def batch_range(self) -> range:
        most = min(MAX_BATCHES, max(1, MAX_ELEMS_PER_THREAD // self.vector), self.row_vectors)
        return range(ceil_div(self.row_vectors, self.arch.max_threads_per_block), most + 1)

    def with_batches(self, batches: int, projected: bool, kept_bits_per_elem: float) -> Iterator[Candidate]:
        arch, facts = self.arch, self.facts
        threads = ceil_div(self.row_vectors, batches)
        bdimx = None
        if threads <= arch.warp_threads // 2:  # rows shorter than a warp share one: lanes in powers of two, for shuffles
            padded = bdimx = next_power_of_two(threads)
        else:
            padded = round_up(threads, arch.warp_threads)
        if padded > arch.max_threads_per_block:
            return
        warp_only = padded <= arch.warp_threads
        rows = max(1, SMALL_BLOCK_THREADS // padded)
        while rows > 1 and (ceil_div(facts.iteration_elems, rows) < arch.sm_count * 4 and rows * padded > arch.warp_threads or rows > next_power_of_two(facts.iteration_elems)):
            rows //= 2
        block = padded * rows
        kept = -(-self.vector * kept_bits_per_elem // 32) * batches
        buffer = int(kept)
        overhead = OVERHEAD_REGISTERS_EXP if facts.has_exp else OVERHEAD_REGISTERS
        seen = set()
        for wanted in (buffer + overhead + COMFORTABLE_EXTRA_REGISTERS, buffer + overhead):
            if wanted > arch.max_registers_per_thread:
                continue
            blocks = arch.blocks_per_sm(block, wanted, self.workspace_bytes(block))
            if not blocks or blocks in seen:
                continue
            seen.add(blocks)
            registers = max(wanted, min(arch.max_registers_per_thread, arch.registers_per_thread(round_up(block, arch.warp_threads) * blocks)))
            yield self.register_candidate(batches, projected, padded, bdimx, rows, buffer, overhead, registers, blocks, warp_only)

    def workspace_bytes(self, block: int) -> int:
        return ceil_div(block, 32) * ceil_div(self.facts.accumulator_bits, 8) * max(1, self.facts.passes - 1)

    def register_candidate(
        self, batches: int, projected: bool, padded: int, bdimx: int | None, rows: int, buffer: int, overhead: int, registers: int, blocks: int, warp_only: bool
    ) -> Candidate:  # fmt: skip
        arch, facts = self.arch, self.facts
        block = padded * rows
        held_elems = padded * batches * self.vector  # of a row, idle lanes included: the same for all rows that lead to this kernel
        lane_fraction = facts.reduction_elems / held_elems
        transfer = rows * held_elems * self.moved_bits / 8 / self.share
        elems_per_thread = batches * self.vector
        rest = self.rest_ns(block, rows, elems_per_thread, projected, warp_only=warp_only)
        grid = ceil_div(facts.iteration_elems, rows)
        resident = min(blocks, ceil_div(grid, arch.sm_count))
        elems_per_ns = self.share * 8 / max(1, self.moved_bits)
        fraction = min(busy_fraction(resident, transfer, rest), self.issue_bound(elems_per_ns, 1.0, projected)) * balance(grid, arch)
        bytes_per_thread = elems_per_thread * self.early_input_bits / 8
        per_tensor = elems_per_thread * facts.max_dtype_bits / 8
        warps = resident * ceil_div(block, 32)
        target = TARGET_WARPS_EXP if facts.has_exp and arch.high_bandwidth_per_flop else TARGET_WARPS
        spare = registers - buffer
        params = PersistentParams(
            kind="2d", storage="register", project_to_inputs=projected, vector_elems=self.vector, batches=batches, unroll=1, bdimx=bdimx,
            pad_to_warp=bdimx is None, rows_per_block=rows, row_unroll=1, bdimz=1, outer_batches=1, is_warp_only=warp_only, max_registers=registers,
        )  # fmt: skip
        key = (
            round(fraction * min(1.0, lane_fraction * 1.25) / FRACTION_STEP),
            blocks * ceil_div(block, 32) >= target,
            int(lane_fraction * 16 + 0.01),
            spare >= overhead + COMFORTABLE_EXTRA_REGISTERS,
            -abs((per_tensor / GOOD_BYTES_PER_THREAD if per_tensor >= GOOD_BYTES_PER_THREAD else GOOD_BYTES_PER_THREAD / per_tensor)),
            -block,
        )
        return Candidate(
            params, fraction, lane_fraction, block, buffer, spare, blocks, warps, bytes_per_thread, resident * block * bytes_per_thread * lane_fraction,
            grid / (arch.sm_count * blocks), key,
        )  # fmt: skip

    # ---- rows in shared memory, rows read again
    def shared_candidates(self) -> Iterator[Candidate]:
        facts, arch = self.facts, self.arch
        if self.vector * facts.min_dtype_bits % 8:
            return
        projected = facts.projected_bits is not None and facts.projected_bits < facts.persistent_bits
        kept_bits = facts.projected_bits if projected else facts.persistent_bits
        for threads in (256, 512, 1024):
            row_bytes = round_up(ceil_div(kept_bits, 8), 128)  # type: ignore[arg-type]
            shared = row_bytes + round_up(self.workspace_bytes(threads), 128)
            registers = min(arch.max_registers_per_thread, arch.registers_per_thread(threads))
            blocks = min(arch.blocks_per_sm(threads, 32, shared), arch.max_threads_per_sm // threads)
            if not blocks or threads * self.vector * 2 > facts.reduction_elems and threads > 256:
                continue
            registers = min(128, arch.registers_per_thread(threads * blocks))
            elems = facts.reduction_elems / threads
            transfer = facts.reduction_elems * self.moved_bits / 8 / self.share
            through_shared = facts.passes * row_bytes / (SHARED_BYTES_PER_CLOCK * arch.sm_clock_khz * 1e-6)
            rest = self.rest_ns(threads, 1, elems, projected, warp_only=False) + through_shared
            yield self.long_row_candidate("shared", threads, registers, blocks, transfer, transfer, rest, projected, elems)

    def reread_candidates(self) -> Iterator[Candidate]:
        facts, arch = self.facts, self.arch
        for threads in (256, 512, 1024):
            if threads * self.vector * 2 > facts.reduction_elems and threads > 256:
                continue
            blocks = max(1, min(arch.max_threads_per_sm // 2 // threads, arch.blocks_per_sm(threads, 48)))
            row_bytes = facts.reduction_elems * facts.input_bits / 8
            transfer = facts.reduction_elems * self.moved_bits / 8 / self.share
            in_l2 = arch.sm_count * blocks * row_bytes <= arch.l2_bytes * L2_SHARE_FOR_REUSE
            again = (facts.passes - 1) * row_bytes
            traffic = transfer + (0 if in_l2 else again / self.share)
            through_l2 = (facts.reduction_elems * self.moved_bits / 8 + again) / l2_bytes_per_ns(arch)
            elems = facts.reduction_elems / threads
            rest = self.rest_ns(threads, 1, 0, True, warp_only=False) + (facts.passes - 1) * MEMORY_LATENCY_NS / 2
            registers = min(128, arch.registers_per_thread(threads * blocks))
            yield self.long_row_candidate("reread", threads, registers, blocks, transfer, max(traffic, through_l2), rest, True, elems)

    def long_row_candidate(
        self, storage: str, threads: int, registers: int, blocks: int, needed_ns: float, spent_ns: float, rest: float, projected: bool, elems: float
    ) -> Candidate:  # fmt: skip
        facts, arch = self.facts, self.arch
        grid = facts.iteration_elems
        resident = min(blocks, ceil_div(grid, arch.sm_count))
        elems_per_ns = self.share * 8 / max(1, self.moved_bits)
        fraction = busy_fraction(resident, spent_ns, rest) * needed_ns / spent_ns
        fraction = min(fraction, self.issue_bound(elems_per_ns, 1.0, projected)) * balance(grid, arch)
        unroll = max(1, min(4, previous_power_of_two(GOOD_BYTES_PER_THREAD * 8 // (self.vector * facts.max_dtype_bits))))
        per_thread = unroll * self.vector * self.early_input_bits / 8
        params = PersistentParams(
            kind="2d", storage=storage, project_to_inputs=projected, vector_elems=self.vector, batches=0, unroll=unroll, bdimx=threads, pad_to_warp=True,
            rows_per_block=1, row_unroll=1, bdimz=1, outer_batches=1, is_warp_only=False, max_registers=registers,
        )  # fmt: skip
        key = (round(fraction / FRACTION_STEP), resident * threads // 32 >= 16, storage == "shared", -threads)
        return Candidate(
            params, fraction, 1.0, threads, 0, registers, blocks, resident * threads // 32, per_thread, resident * threads * per_thread,
            grid / (arch.sm_count * blocks), key,
        )  # fmt: skip


__all__ = ["Candidate", "Obstacle", "PersistentParams", "choose", "choose_with_trace"]
