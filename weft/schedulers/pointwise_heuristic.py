"""How a pointwise kernel cuts its loops into blocks, threads and vectors.

Owns `PointwiseParams` and its choice. Pure: facts and arch in, params out.

Loops, outermost first, of the reference's axes merged left and right of the break point:
    break_point 0   all: [BIDx, unroll_inner, TIDx = bdimx, vector_elems]
    otherwise       left: [BIDy, unroll_outer, TIDy = bdimy]     right: [BIDx, unroll_inner, TIDx = bdimx, vector_elems]
    is_phased: rows of the right side begin anywhere, and their vectors where aligned ones do
`is_left_fastest` swaps the roles of BIDx and BIDy, so that blocks which share right indices run at the same time.
Read first: `choose`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import MAX_GRID, WARP_THREADS, Arch
from ..schedule.peel import gains_by_phase, row_vectors
from .facts import PointwiseFacts, access_bits_of
from .arithmetic import Trace, ceil_div, next_power_of_two, previous_power_of_two, round_up, vector_elems
from .throughput_heuristic import INSTRUCTIONS_PER_OP, bytes_in_flight_per_sm, clocks_per_ns, share_bytes_per_ns

BLOCK_THREADS = 128
"""Small blocks start and end at different times, which keeps loads and stores mixed; 16 of them fill a multiprocessor."""
MIN_ROW_THREADS, MOST_ROW_THREADS = 2 * WARP_THREADS, 3 * BLOCK_THREADS // 2
"""Of a block that has one row, or a part of one."""
ROWS_TOGETHER = 0.8
"""Speed of blocks that have several rows, whose index is then each thread's own."""
MIN_BLOCK_BYTES = 1280
"""Of a tensor, below which a block costs more to start than to run."""
MIN_SAVING = 0.1
"""Two dimensions must move this much less than one: they cost an index calculation more."""
LANES_FOR_TWO_DIMENSIONS = 32
"""The right side must fill a warp with vectors."""
MAX_UNROLL = 8
BUSY_UNROLL, BUSY_ROW_BYTES = 2, 32
MIN_WAVES = 2
"""Blocks per slot of the chip below which unrolling starves it."""
BUSY_ISSUE = 0.4
"""Part of the issue slots that a kernel at the roof would use, from which on independent work of several vectors pays."""
NARROW_ACCESS_COST = {8: 2.0, 16: 1.4, 32: 1.15}
"""Relative time per bit of accesses of so many bits per thread; wider ones cost 1."""


DIVISIONS_COST = 1.25
"""Relative time where a thread divides for the row and column of what it stores in tiles."""


@dataclass(frozen=True, slots=True)
class PointwiseParams:
    """A schedule of a pointwise fusion; equal params (with equal structure, index type and device) mean the same kernel.

    break_point: number of loops on the left; 0: one dimension. unroll_outer: left indices per thread; unroll_inner: vectors per thread on the right.
    split_grid_y: the loop on BIDy has more than 65535 iterations and gets a serial loop around it. max_registers: per thread, for the compiler.
    single_reads: names of inputs that are read element by element. is_phased: vectors are aligned in memory although the right side's rows are not, so that
    a row begins and ends inside of one; with is_tailed it only ends inside of one. access_bits: of the widest access of a thread.
    """

    break_point: int
    vector_elems: int
    unroll_outer: int
    unroll_inner: int
    bdimx: int
    bdimy: int
    is_left_fastest: bool
    split_grid_y: bool
    max_registers: int
    single_reads: tuple[int, ...] = ()
    is_phased: bool = False
    access_bits: int = MAX_VECTOR_BITS
    is_tailed: bool = False


@dataclass(frozen=True, slots=True)
class BreakCandidate:
    """A break position: bits moved, vector width, and why it is out (empty when it is not)."""

    position: int
    transferred_bits: int
    cost: float
    vector_elems: int
    declined: str
    is_phased: bool = False

    def __str__(self) -> str:
        declined = f", declined: {self.declined}" if self.declined else ""
        return f"break {self.position}: {self.transferred_bits} bits, vector {self.vector_elems}, cost {self.cost:.4g}{declined}"


CRITERIA = ("bits moved, weighted by the width of an access",)


def choose(facts: PointwiseFacts, arch: Arch) -> PointwiseParams:
    """Return the params of a pointwise fusion. Any facts give legal params."""
    return choose_with_trace(facts, arch)[0]


def choose_with_trace(facts: PointwiseFacts, arch: Arch) -> tuple[PointwiseParams, Trace]:
    """Return the params and why."""
    breaks = break_candidates(facts, arch)
    best = min((c for c in breaks if not c.declined), key=lambda c: c.cost)
    params = _with_break(facts, arch, best)
    ranked = (best, *(c for c in breaks if c is not best))
    return params, Trace("pointwise", facts, CRITERIA, ranked, params)


def variants(facts: PointwiseFacts, arch: Arch) -> list[tuple[str, PointwiseParams]]:
    """Return (way, params) to time: of each break position that is legal the choice, with other numbers of vectors per thread and other blocks."""
    breaks = break_candidates(facts, arch)
    best = min((c for c in breaks if not c.declined), key=lambda c: c.cost)
    out: list[tuple[str, PointwiseParams]] = []
    for found in (best, *sorted((c for c in breaks if c is not best and c.declined not in NEVER), key=lambda c: c.cost)):
        chosen, way = _with_break(facts, arch, found), f"break {found.position}"
        here = chosen.unroll_inner
        unrolls = sorted((u for u in (1, 2, 4, MAX_UNROLL) if u != here), key=lambda u, here=here: max(u, here) / min(u, here))  # type: ignore[misc]
        threads = [t for t in (2 * BLOCK_THREADS, BLOCK_THREADS // 2) if not found.position]
        others = [replace(chosen, unroll_inner=u) for u in unrolls] + [replace(chosen, bdimx=t) for t in threads]
        out += [(way, params) for params in (chosen, *others) if not params.is_left_fastest or params == chosen]
    return out


NEVER = frozenset({"nothing is on the left", "a 4-bit type needs a vector of two there"})
"""Why a break position is out, whatever it would cost."""


def break_candidates(facts: PointwiseFacts, arch: Arch) -> tuple[BreakCandidate, ...]:
    """Return every break position with what it moves; position 0 is never declined."""
    extents = facts.extents_elems
    out: list[BreakCandidate] = []
    for position in range(max(1, len(extents))):
        left, right = math.prod(extents[:position]), math.prod(extents[position:])
        bits = facts.broadcast[position].transferred_bits(left, right)
        vector = _vector(facts, arch, position)
        is_phased = position > 0 and _is_phased(facts, position, right)
        if is_phased:
            vector = facts.phased_limit_elems[position]
        cost = bits * NARROW_ACCESS_COST.get(previous_power_of_two(vector * facts.max_dtype_bits), 1.0)
        if facts.divides_rows and position != len(extents) - 1:
            cost *= DIVISIONS_COST
        declined = ""
        if position:
            if left <= 1:
                declined = "nothing is on the left"
            elif right < LANES_FOR_TWO_DIMENSIONS * vector and not is_phased:
                declined = "the right side does not fill a warp"
            elif cost > (1 - MIN_SAVING) * out[0].cost:
                declined = f"saves less than {MIN_SAVING:.0%}"
            elif left * right * 2 <= arch.sm_count * BLOCK_THREADS:
                declined = "too few elements to matter"
            elif not is_phased and not _is_legal_vector(facts, position, vector):
                declined = "a 4-bit type needs a vector of two there"
        out.append(BreakCandidate(position, bits, cost, vector, declined, is_phased))
    return tuple(out)


def _is_phased(facts: PointwiseFacts, position: int, right: int) -> bool:
    """True when rows of the right side that begin anywhere are what makes accesses narrow."""
    limit = facts.phased_limit_elems[position] if facts.phased_limit_elems else 1
    return gains_by_phase(right, facts.vector_limit_elems[position], limit, facts.max_dtype_bits)


def _is_legal_vector(facts: PointwiseFacts, position: int, vector: int) -> bool:
    return vector <= max(1, facts.vector_limit_elems[position])


def _vector(facts: PointwiseFacts, arch: Arch, position: int) -> int:
    """Width at a break position: the widest legal one; a single element when even one warp per multiprocessor would lack work."""
    limit = facts.vector_limit_elems[position] if position < len(facts.vector_limit_elems) else 1
    widest = vector_elems(limit, facts.max_dtype_bits, facts.min_vector_elems, facts.vector_bits)
    least, right = widest * arch.sm_count * arch.warp_threads, math.prod(facts.extents_elems[position:])
    if facts.access_bits > MAX_VECTOR_BITS and (facts.total_elems < least or position and right < LANES_FOR_TWO_DIMENSIONS * widest):
        narrower = vector_elems(limit, facts.max_dtype_bits, facts.min_vector_elems, MAX_VECTOR_BITS)
        widest, least = narrower, narrower * arch.sm_count * arch.warp_threads
    return widest if facts.total_elems >= least else min(widest, facts.min_vector_elems)


def _with_break(facts: PointwiseFacts, arch: Arch, chosen: BreakCandidate) -> PointwiseParams:
    extents, position, vector = facts.extents_elems, chosen.position, chosen.vector_elems
    left, right = math.prod(extents[:position]), math.prod(extents[position:])
    vectors = row_vectors(right, vector, chosen.is_phased)
    unroll = _unroll(facts, arch, vector, ceil_div(left * vectors, BLOCK_THREADS), position > 0)
    bits = facts.broadcast[position] if position else None
    block = _block_of_rows(facts, arch, chosen, left, vectors, unroll) if position else _block_of_all(vectors, unroll)
    rows = ceil_div(left, block.bdimy * block.unroll_outer)
    left_fastest = chosen.is_phased and rows > MAX_GRID[1]  # a thread has one row, since each has a phase of its own
    if bits is not None and bits.right_only_bits >= bits.left_only_bits:
        # a row of blocks along the right side would push the right-only values out of L2 before the next row reads them
        left_fastest |= 2 * bits.left_step_bits(right) > arch.l2_bytes * 8
    y_blocks = ceil_div(vectors, block.bdimx * block.unroll_inner) if left_fastest else rows
    return PointwiseParams(
        break_point=position, vector_elems=vector, **asdict(block), is_left_fastest=left_fastest,
        split_grid_y=bool(position) and y_blocks > MAX_GRID[1], max_registers=arch.max_registers_per_thread,
        single_reads=facts.single_reads, is_phased=chosen.is_phased, access_bits=access_bits_of(facts, vector),
        is_tailed=chosen.is_phased and facts.is_tailed[position],
    )  # fmt: skip


@dataclass(frozen=True)
class _Block:
    """Threads of a block, and rows (outer) and vectors along a row (inner) of a thread."""

    bdimx: int
    bdimy: int
    unroll_outer: int
    unroll_inner: int


def _block_of_all(vectors: int, unroll: int) -> _Block:
    """The block where all axes are one loop of so many vectors."""
    inner = min(unroll, next_power_of_two(ceil_div(vectors, BLOCK_THREADS)))
    while inner > 1 and _used_lanes(vectors, BLOCK_THREADS * inner) < USED_LANES:
        inner //= 2
    return _Block(BLOCK_THREADS, 1, 1, inner)


def _block_of_rows(facts: PointwiseFacts, arch: Arch, chosen: BreakCandidate, left: int, vectors: int, unroll: int) -> _Block:
    """The block for `left` rows of so many vectors."""
    threads, inner = _along_the_right(vectors, unroll, PHASED_USED_LANES if chosen.is_phased else USED_LANES)
    bdimx = max(threads, 2 * chosen.vector_elems * chosen.is_phased)  # the ends of a row have a thread for each element
    block = _Block(bdimx, BLOCK_THREADS // bdimx if bdimx < MIN_ROW_THREADS else 1, 1, inner)
    if chosen.is_phased or facts.block_elems:
        return block
    return replace(block, unroll_outer=_rows_of_a_thread(facts, arch, left, vectors, chosen.vector_elems, block))


def _along_the_right(vectors: int, unroll: int, least_used: float) -> tuple[int, int]:
    """Return (threads, vectors per thread) of a block along a row of so many vectors: whole warps that waste few lanes, with up to `unroll` vectors each.

    least_used: lanes that must have a vector where a thread has several. A row of its own for each block, where that fills two warps and wastes few lanes:
    its index is then the same for all threads, and costs few instructions.
    """
    inner = unroll
    while inner > 1 and _best_threads(vectors, inner)[1] < least_used:
        inner //= 2
    threads, used = _best_threads(vectors, inner)
    few = {n: _used_lanes(vectors, n) for n in (32, 16)}
    if inner > 1 or threads >= MIN_ROW_THREADS and used >= ROWS_TOGETHER * max(few.values()):
        return threads, inner
    return next((n for n, used in few.items() if used >= USED_LANES), max(few, key=few.__getitem__)), inner


def _best_threads(vectors: int, inner: int) -> tuple[int, float]:
    """Return (threads, part of their lanes that have a vector) of equal blocks along a row, of which each has about BLOCK_THREADS."""
    whole = ceil_div(vectors, BLOCK_THREADS * inner)
    found = []
    for blocks in (whole, whole - 1):
        threads = round_up(ceil_div(vectors, blocks * inner), WARP_THREADS) if blocks else MOST_ROW_THREADS + 1
        if threads <= MOST_ROW_THREADS:
            found.append((vectors / (blocks * threads * inner) if inner == 1 or threads >= MIN_ROW_THREADS else 0.0, threads))
    used, threads = max(found)
    return threads, used


def _rows_of_a_thread(facts: PointwiseFacts, arch: Arch, left: int, vectors: int, vector_elems: int, block: _Block) -> int:
    """Rows of a thread, until a block has enough to do; fewer where the chip would lack blocks."""
    parts = ceil_div(vectors, block.bdimx * block.unroll_inner)
    block_bytes = block.bdimy * vectors * vector_elems / parts * facts.max_dtype_bits / 8
    blocks, slots = ceil_div(left, block.bdimy) * parts, arch.sm_count * (arch.max_threads_per_sm // BLOCK_THREADS)
    outer = 1
    while outer * block_bytes < MIN_BLOCK_BYTES and 2 * outer * block.unroll_inner <= MAX_UNROLL and blocks >= 2 * outer * slots * MIN_WAVES:
        outer *= 2
    return outer


USED_LANES = 0.875
"""Of the vectors that blocks have along the right side, below which a thread has fewer vectors."""
PHASED_USED_LANES = 0.75
"""The same for rows that begin anywhere, whose ends are work for every thread of a warp."""


def _used_lanes(vectors: int, block: int) -> float:
    """Return which part of the vectors of blocks that have `block` each along the right side exists."""
    return vectors / round_up(vectors, block)


def _unroll(facts: PointwiseFacts, arch: Arch, vector: int, blocks: int, has_rows: bool) -> int:
    """Vectors per thread: no more than the bytes in flight need, since small blocks that come and go mix loads and stores best; two when arithmetic is dear.

    Source: H200, x -> -x: one 16-byte vector per thread 0.97 of the roof, two 0.96, four 0.92; with 2-byte accesses one 0.21, four 0.78, eight 0.87.
    Rows of one thread are no help: bias + tanh with eight of them 0.86 of a copy. MXFP8, where four lanes share a block: one vector 0.90, two 0.96, four 0.94.
    FP4 to bf16, of 8 elements: one 0.973, two 0.975, four 0.955; to float, of 4: one 0.90, two 0.95, four 0.92.
    """
    inputs, outputs = max(1, facts.full_inputs), max(1, facts.vectorizable_outputs)
    read_bits = facts.read_bits or facts.max_dtype_bits * inputs
    moved_bits = read_bits + (facts.written_bits or facts.max_dtype_bits * outputs)
    per_vector_bits = vector * read_bits
    needed_bits = bytes_in_flight_per_sm(arch) * 8 * read_bits / moved_bits / arch.max_threads_per_sm
    wanted = next_power_of_two(math.ceil(needed_bits / per_vector_bits))
    elems_per_ns = share_bytes_per_ns(arch) * 8 / moved_bits
    issue_per_ns = 4 * arch.warp_threads * clocks_per_ns(arch)
    is_busy = elems_per_ns * facts.instructions * INSTRUCTIONS_PER_OP > BUSY_ISSUE * issue_per_ns
    if is_busy or facts.block_elems > vector:  # lanes that share a block wait for each other
        wanted = max(wanted, BUSY_UNROLL, 8 * BUSY_ROW_BYTES // (vector * facts.max_dtype_bits) if has_rows else 0)
    if facts.full_inputs == 0 and facts.vectorizable_inputs == 0:
        wanted = 1  # nothing to wait for
    unroll = min(MAX_UNROLL, wanted)
    slots = arch.sm_count * (arch.max_threads_per_sm // BLOCK_THREADS)
    while unroll > 1 and blocks < unroll * slots * MIN_WAVES:
        unroll //= 2
    return unroll
