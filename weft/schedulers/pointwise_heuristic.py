"""Chooses how a pointwise kernel divides its loops into blocks, threads and vectors.

Owns `PointwiseParams`, which of them are candidates, and the choice. Pure: facts and arch in, params out.

Loops, outermost first, of the reference's axes merged left and right of the break point:
    break_point 0   all: [BIDx, unroll_inner, TIDx = bdimx, vector_elems]
    otherwise       left: [BIDy, unroll_outer, TIDy = bdimy]     right: [BIDx, unroll_inner, TIDx = bdimx, vector_elems]
    shares_rows     unroll_outer is split off the innermost loop on the left, before the others are merged
    is_phased: rows of the right side begin anywhere, and their vectors where aligned ones do
`is_left_fastest` swaps the roles of BIDx and BIDy, so that blocks which share right indices run at the same time.
Read first: `choose`, `Candidates`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import MAX_GRID, WARP_THREADS, Arch
from ..schedule.peel import gains_by_phase, row_vectors
from .arithmetic import Trace, ceil_div, vector_elems
from .cost.parts import rereads_from_memory
from .cost.passing import passing_ns
from .cost.pointwise import Pointwise, step_bytes, work_of_pointwise
from .accesses import access_bits_of
from .facts import PointwiseFacts
from .late_lookups import late
from .limits import MOST_EARLY_LOOKUPS, NEAR, SHOWN, TIMED, UNROLLS
from .still_rows import StillRows

BLOCK_THREADS = (128, 64, 256)
"""Threads of a block; of equal predictions the first is taken."""
ROW_THREADS = (4, 8, 16, 32, 64, 96, 128, 160, 192, 256)
"""Threads along a row."""


@dataclass(frozen=True, slots=True)
class PointwiseParams:
    """A schedule of a pointwise fusion; equal params (with equal structure, index type and device) mean the same kernel.

    break_point: number of loops on the left; 0: one dimension. unroll_outer: left indices per thread; unroll_inner: vectors per thread on the right.
    split_grid_y: the loop on BIDy has more than 65535 iterations and gets a serial loop around it. max_registers: per thread, for the compiler.
    single_reads: names of inputs that are read element by element. is_phased: vectors are aligned in memory although the right side's rows are not, so that
    a row begins and ends inside of one; with is_tailed it only ends inside of one. access_bits: of the widest access of a thread. shares_rows: what does not
    vary along the innermost loop on the left is loaded and computed once for the unroll_outer indices of a thread, which are all of that loop.
    lookups: "few"; "early" if a thread loads much that it looks up element by element before it uses any of it; "late" if it loads each of these where it uses
    it, because the kernel spills otherwise.
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
    shares_rows: bool = False
    lookups: str = "few"

    @property
    def thread_elems(self) -> int:
        return self.vector_elems * self.unroll_outer * self.unroll_inner


@dataclass(frozen=True, slots=True)
class Candidate:
    """Params and the time that the model predicts."""

    params: PointwiseParams
    time_ns: float

    def __str__(self) -> str:
        p = self.params
        marks = " left first" * p.is_left_fastest + " any start" * p.is_phased + " shared rows" * p.shares_rows
        return (
            f"break {p.break_point} vector {p.vector_elems} unroll {p.unroll_outer}x{p.unroll_inner} block {p.bdimx}x{p.bdimy}{marks} "
            f"time {self.time_ns / 1e3:.2f} us"
        )


TIME = f"predicted time (to {NEAR:.0%})"
CRITERIA = (TIME, "wider vectors", "one row per block", "fewer idle lanes", f"{BLOCK_THREADS[0]} threads", "fewer vectors of a thread")


def choose(facts: PointwiseFacts, arch: Arch) -> PointwiseParams:
    """Return the params of a pointwise fusion. All facts give valid params."""
    return choose_with_trace(facts, arch)[0]


def choose_with_trace(facts: PointwiseFacts, arch: Arch) -> tuple[PointwiseParams, Trace]:
    """Return the params and why, best candidate first."""
    ranked = Candidates(facts, arch).ranked(SHOWN)
    return ranked[0].params, Trace("pointwise", facts, CRITERIA, tuple(ranked), ranked[0].params)


def with_fewer_elems(facts: PointwiseFacts, arch: Arch, most_elems: int) -> PointwiseParams:
    """Return the best params of which a thread has up to `most_elems` elements, or as many as an output's bytes need."""
    most = max(most_elems, facts.min_vector_elems)
    limits, phased = (tuple(min(most, elems) for elems in limit) for limit in (facts.vector_limit_elems, facts.phased_limit_elems))
    narrow = replace(facts, vector_limit_elems=limits, phased_limit_elems=phased)
    return late(Candidates(narrow, arch, most).ranked(1)[0].params)  # type: ignore[no-any-return]


def variants(facts: PointwiseFacts, arch: Arch) -> list[tuple[str, PointwiseParams]]:
    """Return (way, params) to time, the choice first; each break position is a way."""
    return [(f"break {c.params.break_point}", c.params) for c in Candidates(facts, arch).ranked(TIMED)]


@dataclass(frozen=True, slots=True)
class Break:
    """A legal break position and its widest vector."""

    position: int
    left: int
    right: int
    vector_elems: int
    is_phased: bool


def breaks(facts: PointwiseFacts) -> list[Break]:
    """Return the legal break positions; position 0 always is."""
    out: list[Break] = []
    for position in range(max(1, len(facts.extents_elems))):
        left, right = math.prod(facts.extents_elems[:position]), math.prod(facts.extents_elems[position:])
        limit = facts.vector_limit_elems[position] if position < len(facts.vector_limit_elems) else 1
        phased_limit = facts.phased_limit_elems[position] if position and facts.phased_limit_elems else 1
        is_phased = gains_by_phase(right, limit, phased_limit, facts.max_dtype_bits)
        vector = phased_limit if is_phased else vector_elems(limit, facts.max_dtype_bits, facts.min_vector_elems, facts.vector_bits)
        if position and (left <= 1 or not is_phased and vector > max(1, limit)):
            continue  # no loop is on the left, or packed elements need wider vectors than possible
        is_simpler = facts.divides_rows or _still(facts, position) or facts.index_work[position].scalar_divisions < facts.index_work[0].scalar_divisions
        if position and not is_simpler and vector <= out[0].vector_elems:
            continue  # neither simpler indices nor wider vectors than with one dimension
        out.append(Break(position, left, right, vector, is_phased))
    return out


def looked_up(facts: PointwiseFacts, position: int, vector: int, is_phased: bool) -> int:
    """Return how many elements a thread looks up for a vector, element by element."""
    tables, others = (facts.phased_lookups, facts.phased_other_lookups) if is_phased else (facts.lookups, facts.other_lookups)
    work = tables[position] if position < len(tables) else ()
    return (work[min(vector.bit_length(), len(work)) - 1].loads if work else 0) + (vector * others[position] if others else 0)


def rows_on_left(facts: PointwiseFacts, position: int, outer: int) -> int:
    """Return the number of indices left of a break position, with the innermost loop a multiple of `outer`."""
    *others, last = facts.extents_elems[:position] or (1,)
    return math.prod(others) * ceil_div(last, outer) * outer


def _still(facts: PointwiseFacts, position: int) -> StillRows | None:
    return facts.still_rows[position] if position < len(facts.still_rows) else None


_COLUMNS = ("break_point", "vector_elems", "unroll_outer", "unroll_inner", "bdimx", "bdimy", "is_left_fastest", "is_phased", "shares_rows")


class Candidates:
    """The kernels that are compared, for one set of facts. rows: one per kernel, with these columns. most_elems: of a thread, if not as many as are best."""

    def __init__(self, facts: PointwiseFacts, arch: Arch, most_elems: int | None = None) -> None:
        if not facts.total_elems:  # no kernel runs; any params are valid
            facts = replace(facts, extents_elems=tuple(max(1, n) for n in facts.extents_elems))
        self.facts, self.arch = facts, arch
        self.breaks = {at.position: at for at in breaks(self.facts)}
        self.rows = np.concatenate([self._of(at) for at in self.breaks.values()])
        if most_elems is not None:
            self.rows = self.rows[self.rows[:, 1:4].prod(1) <= most_elems]

    def table(self) -> Pointwise:
        """Return the candidates as arrays."""
        columns: dict[str, Any] = dict(zip(_COLUMNS, self.rows.T))
        numbers = {name: columns[name].astype(float) for name in _COLUMNS[1:6]}
        marks = {name: columns[name] > 0 for name in _COLUMNS[6:]}
        return Pointwise(break_point=columns["break_point"], **numbers, **marks)

    def ranked(self, count: int) -> list[Candidate]:
        """Return the `count` best, best first."""
        times = passing_ns(work_of_pointwise(self.table(), self.facts, self.arch), self.arch)
        return [Candidate(self.params(self.rows[n]), float(times[n])) for n in in_order(self.rows, times, self.facts)[:count]]

    def params(self, row: np.ndarray) -> PointwiseParams:
        """Return the params of a candidate."""
        position, vector, outer, inner, bdimx, bdimy, left_fastest, is_phased, shares = row.tolist()
        at = self.breaks[position]
        left = rows_on_left(self.facts, position, outer if shares else 1)
        y_blocks = ceil_div(row_vectors(at.right, vector, at.is_phased), bdimx * inner) if left_fastest else ceil_div(left, bdimy * outer)
        return PointwiseParams(
            break_point=position, vector_elems=vector, unroll_outer=outer, unroll_inner=inner, bdimx=bdimx, bdimy=bdimy, is_left_fastest=left_fastest > 0,
            split_grid_y=position > 0 and y_blocks > MAX_GRID[1], max_registers=self.arch.max_registers_per_thread,
            single_reads=self.facts.single_reads, is_phased=is_phased > 0, access_bits=access_bits_of(self.facts, vector),
            is_tailed=is_phased > 0 and self.facts.is_tailed[position], shares_rows=shares > 0,
            lookups="early" if outer * inner * looked_up(self.facts, position, vector, is_phased > 0) >= MOST_EARLY_LOOKUPS else "few",
        )  # fmt: skip

    def _of(self, at: Break) -> np.ndarray:
        """Return the candidates of a break position."""
        shapes, widths = _ROWS if at.position else _FLAT, self._widths(at)
        bdimx, bdimy, outer, inner = np.tile(shapes, (len(widths), 1)).T
        vector = np.repeat(widths, len(shapes))
        vectors = -(-at.right // vector)
        # not if half of a thread's vectors, or of the threads, would be unused
        keep = ((inner == 1) | (inner // 2 * bdimx < vectors)) & ((bdimx // 2 < vectors) | (bdimx == (ROW_THREADS if at.position else BLOCK_THREADS)[0]))
        keep &= (bdimx >= WARP_THREADS) | (vectors < 2 * WARP_THREADS)  # the lanes of a warp read neighbours, if rows are long enough
        if at.is_phased:
            keep &= bdimx >= 2 * at.vector_elems  # each element at the ends of a row needs a thread
        if at.is_phased or self.facts.block_elems:
            keep &= outer == 1  # each row has its own phase; lanes that hold a block of elements together are neighbours
        if self.facts.block_elems:
            is_whole = bdimx * vector % self.facts.block_elems == 0  # the threads along a row hold whole blocks of elements
            keep = keep & is_whole if (keep & is_whole).any() else is_whole & (outer * inner == 1)
        place, phased, down, shares = (np.full(len(vector), value) for value in (at.position, int(at.is_phased), 0, 0))
        if at.is_phased:  # a thread has one row, and the grid may be smaller along that side
            down = (-(-at.left // bdimy) > MAX_GRID[1]).astype(int)
        rows: np.ndarray = np.stack((place, vector, outer, inner, bdimx, bdimy, down, phased, shares), 1)[keep]
        if _still(self.facts, at.position):
            rows = np.concatenate((rows, self._sharing(rows, at.position)))
        if not self._loses_operands(at.position):
            return rows
        others = rows[rows[:, 6] == 0]
        others[:, 6] = 1
        return np.concatenate((rows, others))

    def _sharing(self, rows: np.ndarray, position: int) -> np.ndarray:
        """Return the candidates whose rows share values: of those with several rows, no more than their loop has. A thread may also have all rows of a short
        loop, such as the 3 colors of a pixel, and computes once what they share."""
        extent = self.facts.extents_elems[position - 1]
        found: np.ndarray = rows[(rows[:, 2] > 1) & (rows[:, 2] <= extent)]
        if extent <= UNROLLS[-1] and extent not in UNROLLS:
            whole = found[(found[:, 2] == max(n for n in UNROLLS if n <= extent)) & (extent * found[:, 3] <= UNROLLS[-1])]
            whole[:, 2] = extent
            found = np.concatenate((found, whole))
        found[:, _COLUMNS.index("shares_rows")] = 1
        return found

    def _widths(self, at: Break) -> list[int]:
        """Return the vector widths to try: the widest, and narrower ones if it would leave threads of the chip idle, or if lookups are read element by element:
        each access of a warp touches fewer lines of memory then."""
        fewest = at.vector_elems
        lookups = self.facts.phased_lookups if at.is_phased else self.facts.lookups
        is_full = self.facts.total_elems >= at.vector_elems * self.arch.sm_count * self.arch.max_threads_per_sm
        if not (at.is_phased or self.facts.block_elems or is_full) or not at.is_phased and any(lookups[at.position : at.position + 1]):
            fewest = min(fewest, self.facts.min_vector_elems)
        return [width for width in (at.vector_elems >> n for n in range(at.vector_elems.bit_length())) if width >= fewest]

    def _loses_operands(self, position: int) -> bool:
        """True if L2 evicts operands along a row before the next row reads them, unless consecutive blocks run over the left side first."""
        is_along = any(min(places) == position for _, places in self.facts.spread)
        return position > 0 and is_along and rereads_from_memory(step_bytes(self.facts, position), self.arch) > 0


def in_order(rows: np.ndarray, times: np.ndarray, facts: PointwiseFacts) -> np.ndarray:
    """Return the indices of candidates, best first, by the criteria above. rows: break_point, vector_elems, unrolls and threads of each."""
    order = np.argsort(times, kind="stable")
    near = int(np.count_nonzero(times <= times.min() * (1 + NEAR)))
    position, vector, outer, inner, bdimx, bdimy = rows[order[:near], :6].T
    right = np.array([math.prod(facts.extents_elems[n:]) for n in range(max(1, len(facts.extents_elems)))])[position]
    vectors, in_block = -(-right // vector), bdimx * inner
    digits = 4 if any(facts.lookups) else 1  # vectors with bounds checks share no elements that are looked up
    idle = np.where(position == 0, 1.0, np.round(-(-vectors // in_block) * in_block / vectors, digits))  # in one dimension only the last block has idle threads
    later = np.lexsort((outer * inner, abs(bdimx * bdimy - BLOCK_THREADS[0]), idle, bdimy > 1, -vector))
    return np.concatenate((order[:near][later], order[near:]))


def _row_shapes() -> list[tuple[int, int, int, int]]:
    out = []
    for bdimx in ROW_THREADS:
        rows = {max(1, threads // bdimx) for threads in BLOCK_THREADS if bdimx * max(1, threads // bdimx) >= BLOCK_THREADS[1]}
        out += [(bdimx, bdimy, outer, inner) for bdimy in sorted(rows) for outer in UNROLLS for inner in UNROLLS if outer * inner <= UNROLLS[-1]]
    return out


_FLAT = np.array([(threads, 1, 1, inner) for threads in BLOCK_THREADS for inner in UNROLLS])
_ROWS = np.array(_row_shapes())
"""bdimx, bdimy, unroll_outer, unroll_inner of kernels of one and of two dimensions."""
