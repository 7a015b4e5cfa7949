"""Chooses how a reduction that reads its operands once is distributed over threads and blocks.

Owns `ReductionParams`, which of them are candidates, and the choice. Pure: facts and arch in, params out.

Loops, outermost first:
    inner   rows: [BIDx, TIDy = bdimy]                      row: [BIDy = grid_split, serial, unswitch, unroll, TIDx = bdimx, vector_elems]
    outer   columns: [BIDx, TIDx = bdimx, vector_elems]     reduced: [BIDy = grid_split, serial, unswitch, unroll, TIDy = bdimy]
    3d      rows: [BIDx, TIDy = bdimy]    outer reduced run: [BIDy = grid_split, serial, TIDz = bdimz]    inner run: [serial, unroll, TIDx, vector_elems]
In "inner" and "outer" several runs of a kind are merged to one loop. With grid_split > 1 blocks leave partial results in a workspace, and the last one of
a row or column finishes; blocks of a cluster (columns on BIDy, its blocks on BIDx) hand them to each other instead.
Read first: `choose`, `Candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from ..analysis.vectorization import MAX_VECTOR_BITS, largest_power_of_two_divisor
from ..arch import Arch
from ..remembered import remembered
from ..schedule.peel import row_vectors
from .arithmetic import Trace, ceil_div, few_digits, next_power_of_two, previous_power_of_two, tree_workspace_bytes, vectors_along_rows, whole_warps
from .cost.passing import passing_ns
from .cost.reductions import Reductions, needed_registers, work_of_reductions
from .facts import ReductionFacts
from .limits import MOST_EARLY_LOOKUPS, MOST_LOOKED_UP, NEAR, SHOWN, UNROLLS

MOST_SHIFTED_UNROLL = 1
ROUNDS_OF_BLOCKS = (1, 2, 4, 8)
"""Blocks per multiprocessor among which rows or columns are divided."""
INNER_THREADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MOST_LONE_VECTORS = 16
"""The most vectors of a thread if its row has less than a warp."""
BLOCK_THREADS = (128, 256, 512)
RUN_THREADS = (32, 64, 128, 256)
"""Threads along the inner run of "3d"; the last is the block's, too."""
OUTER_THREADS_X = (1, 2, 4, 8, 16, 32, 64, 128)
LEAST_WIDTH = 8
"""Vectors of a row that a block of columns reads, at least, if rows are that long."""
FEW_ELEMS = 4 * UNROLLS[-1]
"""Columns of at most so many elements may be reduced by one thread each."""
MOST_CLUSTER = 2
NEAR_CHEAP = 0.05
"""Predictions this close count as equal for rows with little arithmetic, which wait for memory; memory then hides more of the rest than the model says. For
other rows the prediction alone decides: criteria for rows that are predicted to take almost the same time lost more than they gained. Measured:
docs/constants.md."""
CHEAP_INSTRUCTIONS = 3
"""Instructions per element and input, up to which a reduction counts as cheap."""
SHIFTED_ELEMS = 4
"""Columns per thread if vectors begin at any element: three words of 32 bits for four elements of 16."""
MOST_COLUMNS = 8
"""The most columns per thread if they have 4 bits, or if they are all columns of the innermost loop because what it computes for one is nearly what it computes
for the others. Each has a separate sum, which the block and the grid reduce."""


@dataclass(frozen=True, slots=True)
class ReductionParams:
    """A schedule of a reduction; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "inner", "outer", "3d", or "short" (`short_rows.py`). vector_elems: along the innermost loop, reduced or not. unroll: loads issued before the first
    is used.
    bdimx, bdimy, bdimz: threads, see the module. grid_split: blocks that share a row or column, 1: none.
    is_phased: vectors are aligned in memory although rows are not ("inner" only); is_tailed: rows begin aligned but end inside a vector.
    is_cluster: the grid_split blocks are a cluster ("outer" only).
    unswitch: the serial loop has one test for the bounds of all unrolled loads.
    overlaps: vectors begin at any element, and the last one of the columns repeats some of the one before ("outer" only).
    single_reads: names of inputs that are read element by element. access_bits: of the widest access to global memory. kept: names of inputs that are to stay
    in L2, where a later kernel finds them. results: neighbouring results of a thread ("short" only). are_all: the columns of a thread are the whole innermost
    loop, read element by element ("outer" only). window_axes: number of innermost loops whose end vectors do not cross, because their elements share what they
    look up ("inner" only; 0: all of the row). lookups: as in `PointwiseParams`;
    "few" if "short".
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
    access_bits: int = MAX_VECTOR_BITS
    is_tailed: bool = False
    kept: tuple[int, ...] = ()
    results: int = 1
    are_all: bool = False
    window_axes: int = 0
    lookups: str = "few"

    @property
    def threads_per_block(self) -> int:
        return self.bdimx * self.bdimy * self.bdimz

    @property
    def rows_per_block(self) -> int:
        """Results per block: rows, or columns for an outer reduction."""
        return self.bdimx * (self.vector_elems if self.kind == "outer" else self.results) if self.kind in ("outer", "short") else self.bdimy

    @property
    def is_grid_reduction(self) -> bool:
        return self.grid_split > 1


TIME = f"predicted time (to 0% or {NEAR_CHEAP:.0%})"
CRITERIA = (TIME, "no loop over the row", "no grid reduction", "fewer blocks per row", "two loads at once")
COLUMN_CRITERIA = (f"predicted time (to {NEAR:.0%})", "no grid reduction", "fewer blocks per column", "more neighbouring columns", "two loads at once")


def _gains_by_all(facts: ReductionFacts, vector: int) -> bool:
    """Tell whether most of what a thread computes for a column is the same for all columns of the innermost loop, which it can have although they are no
    vector in memory."""
    is_wider = vector < facts.columns_of_one <= MOST_COLUMNS and facts.min_vector_elems == 1
    return is_wider and 2 * facts.common_instructions > facts.instructions


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the reduction; `time_ns` is predicted by the model, `fraction` relative to memory bandwidth. blocks: of the grid; blocks_per_sm: resident
    ones."""

    params: ReductionParams
    time_ns: float
    fraction: float
    blocks: int
    blocks_per_sm: int

    def __str__(self) -> str:
        p = self.params
        return (
            f"{p.kind} vector {p.vector_elems} unroll {p.unroll} block {p.bdimx}x{p.bdimy}x{p.bdimz} split {p.grid_split}{' cluster' * p.is_cluster} "
            f"time {self.time_ns / 1e3:.2f} us fraction {self.fraction:.3f} blocks {self.blocks} ({self.blocks_per_sm}/SM)"
        )


def choose(facts: ReductionFacts, arch: Arch) -> ReductionParams:
    """Return the params of a reduction. All facts give valid params."""
    return choose_with_trace(facts, arch)[0]


def choose_with_trace(facts: ReductionFacts, arch: Arch) -> tuple[ReductionParams, Trace]:
    """Return the params and why, best candidate first."""
    ranked = Candidates(facts, arch).ranked(SHOWN)
    return ranked[0].params, Trace("reduction", facts, CRITERIA if facts.is_inner else COLUMN_CRITERIA, tuple(ranked), ranked[0].params)


TUNED = 60
"""Number of candidates from which tuning selects some of every way."""


def candidates(facts: ReductionFacts, arch: Arch) -> list[tuple[str, ReductionParams]]:
    """Return (way, params) to time, the choice first: rows or columns in one block, divided among blocks of the grid, and among those of a cluster."""
    found = [c.params for c in Candidates(facts, arch).ranked(TUNED)]
    return [(f"{p.kind}, {'cluster' if p.is_cluster else 'one block' if p.grid_split == 1 else 'several blocks'}", p) for p in found]


_COLUMNS = ("is_3d", "unroll", "bdimx", "bdimy", "bdimz", "grid_split", "is_cluster", "max_registers")
_Shape = tuple[bool, int, int, int, int, int, bool, int]
"""Of one kernel, what these columns say."""


class Candidates:
    """The kernels that are compared, for one set of facts."""

    def __init__(self, facts: ReductionFacts, arch: Arch) -> None:
        self.facts, self.arch = facts, arch
        self.registers_of, self.column_registers_of = remembered(self.registers), remembered(self.column_registers)  # candidates have few different block sizes
        self.unrolls_of = remembered(self._unrolls)
        self.is_phased, self.vector = (False, facts.window_elems) if facts.window is not None else vectors_along_rows(facts)
        if not facts.is_inner and facts.max_dtype_bits < 8:
            self.vector = min(self.vector, MOST_COLUMNS)
        self.are_all = _gains_by_all(facts, self.vector)
        if not facts.is_inner and self.vector == 1:
            in_one_access = max(1, MAX_VECTOR_BITS * facts.reductions // facts.accumulator_bits)  # results
            self.vector = min(previous_power_of_two(in_one_access), largest_power_of_two_divisor(facts.free_columns))
        can_overlap = facts.can_begin_anywhere and self.vector == 1 and facts.inner_run_elems >= SHIFTED_ELEMS and facts.min_vector_elems == 1
        self.overlaps = can_overlap and not self.are_all
        if self.overlaps:
            self.vector = SHIFTED_ELEMS
        if self.are_all:
            self.vector = facts.columns_of_one
        self.looked_up = facts.looked_up * self.vector if facts.window is None else facts.window.loads
        self.loaded_registers = ceil_div(self.vector * facts.max_dtype_bits, 32) * max(1, facts.vectorizable_inputs)
        self.shapes: list[_Shape] = list(dict.fromkeys(self._inner() if facts.is_inner else self._outer()))

    def table(self) -> Reductions:
        """Return the candidates as arrays."""
        columns = dict(zip(_COLUMNS, np.fromiter(chain.from_iterable(self.shapes), float).reshape(-1, len(_COLUMNS)).T))
        same: dict[str, Any] = {"is_outer": not self.facts.is_inner, "is_phased": self.is_phased, "overlaps": self.overlaps, "are_all": self.are_all}
        same["vector_elems"] = float(self.vector)
        return Reductions(**(same | columns | {"is_cluster": columns["is_cluster"] > 0}))

    def ranked(self, count: int) -> list[Candidate]:
        """Return the `count` best, best first."""
        work = work_of_reductions(self.table(), self.facts, self.arch)
        times = passing_ns(work, self.arch)
        order = np.argsort(times, kind="stable").tolist()
        near = int(np.count_nonzero(times <= times.min() * (1 + self._near())))
        order = [*sorted(order[:near], key=lambda place: self._later(self.shapes[place])), *order[near:count]]
        ideal = self.facts.total_elems * max(1, self.facts.input_bits + self.facts.output_bits) / 8 / (self.arch.roof_bytes_per_s * 1e-9)
        blocks, resident = (np.broadcast_to(values, times.shape) for values in (work.blocks, work.resident))
        return [
            Candidate(self.params(self.shapes[n]), float(times[n]), min(1.0, ideal / float(times[n])), int(blocks[n]), int(resident[n])) for n in order[:count]
        ]

    def _near(self) -> float:
        facts = self.facts
        if not facts.is_inner:
            return NEAR
        is_cheap = facts.instructions <= CHEAP_INSTRUCTIONS * max(1, facts.vectorizable_inputs)
        is_full = facts.iteration_elems >= ROUNDS_OF_BLOCKS[-1] * self.arch.sm_count
        return NEAR_CHEAP if facts.dimensions == 2 and is_cheap and is_full else 0.0

    def _later(self, shape: _Shape) -> tuple[Any, ...]:
        """The criteria above after the first one, for kernels with equal predictions."""
        is_3d, unroll, bdimx, bdimy, bdimz, split, _, _ = shape
        loads = abs(unroll.bit_length() - 2)
        if not self.facts.is_inner:
            return split > 1, split, -bdimx, loads
        has_loop = self.vectors(bdimx, bdimy, bdimz, split, is_3d=is_3d) > unroll
        return has_loop, split > 1, split, loads, -min(bdimx * bdimy * bdimz, BLOCK_THREADS[1]), bdimx

    def params(self, shape: _Shape) -> ReductionParams:
        """Return the params of a candidate."""
        is_3d, unroll, bdimx, bdimy, bdimz, split, is_cluster, registers = shape
        is_outer = not self.facts.is_inner
        vectors = self.vectors(bdimx, bdimy, bdimz, split, is_3d=is_3d)
        is_warp_only = not is_outer and bdimx * (bdimz if is_3d else 1) <= self.arch.warp_threads
        params = ReductionParams(
            kind="3d" if is_3d else "outer" if is_outer else "inner", vector_elems=self.vector, unroll=unroll, bdimx=bdimx, bdimy=bdimy, bdimz=bdimz,
            grid_split=split, is_warp_only=is_warp_only, max_registers=registers, is_phased=self.is_phased,
            is_tailed=self.is_phased and self.facts.is_tailed,
            unswitch=vectors > unroll > 1 and not is_3d, is_cluster=is_cluster, overlaps=self.overlaps,
            are_all=self.are_all,
        )  # fmt: skip
        if unroll * self.looked_up >= MOST_EARLY_LOOKUPS:
            params = replace(params, lookups="early")
        return params if self.facts.window is None else replace(params, window_axes=1)

    def vectors(self, bdimx: int, bdimy: int, bdimz: int, split: int, *, is_3d: bool = False) -> int:
        """Return the vectors per thread; with "3d" those along the inner run."""
        facts = self.facts
        if not facts.is_inner:
            return ceil_div(ceil_div(facts.reduction_elems, split), bdimy)
        if is_3d:
            return ceil_div(ceil_div(facts.inner_run_elems, self.vector), bdimx)
        return ceil_div(ceil_div(row_vectors(facts.reduction_elems, self.vector, self.is_phased), split), bdimx)

    def unrolls(self, vectors: int) -> list[int]:
        """Return the unroll factors to try for a thread with so many vectors."""
        return self.unrolls_of(min(vectors, UNROLLS[-1] + 1))  # more vectors than that make no difference

    def _unrolls(self, vectors: int) -> list[int]:
        most = MOST_SHIFTED_UNROLL if self.overlaps else UNROLLS[-1]
        if max(self.facts.looked_up * self.vector, self.facts.vectorizable_inputs) >= MOST_LOOKED_UP:
            return [1]
        fewest = 1 if self.facts.is_inner or vectors <= UNROLLS[-1] else 2
        return sorted({min(vectors, most), *(unroll for unroll in UNROLLS if fewest <= unroll < min(vectors, most))})

    def registers(self, threads: int) -> int:
        if self.facts.window is not None:
            return self.arch.registers_per_thread(threads)
        return min(self.arch.max_registers_per_thread, self.arch.registers_per_thread(max(threads, self.arch.max_threads_per_sm // 2)))

    def column_registers(self, threads: int, unroll: int) -> int:
        """The same for columns, whose loads must all have registers: with a tight limit the compiler issues them one after the other. Also twice as many, if
        the values that a thread keeps for its columns leave none for loads."""
        usual = self.registers_of(threads)
        is_held = self.facts.column_inputs and needed_registers(self.facts, unroll * self.loaded_registers, self.vector, is_outer=True) > usual
        return max(usual, min(2 * usual, self.arch.registers_per_thread(threads))) if unroll == UNROLLS[-1] or is_held else usual

    def row_registers(self, threads: int, unroll: int) -> int:
        """The same for rows; up to twice as many if the values that neighbouring elements share leave none for loads."""
        usual, still = self.registers_of(threads), self.facts.still_loads
        needed = needed_registers(self.facts, unroll * (self.loaded_registers + still), self.vector, is_outer=False) if still else 0
        return min(2 * usual, self.arch.registers_per_thread(threads)) if needed > usual else usual

    def splits(self, blocks: int, most: int, threads: int) -> Iterator[int]:
        """Numbers of blocks among which a row is divided: 1, and as many as give each multiprocessor a few blocks, all of which run at the same time. Only 1 if
        results meet, because a different block may be the last for each of them.
        """
        yield 1
        most = min(most, self.arch.sm_count * ROUNDS_OF_BLOCKS[-1] // max(1, blocks))
        if self.facts.results_meet or most <= 1:
            return
        last = 1
        for wanted in ROUNDS_OF_BLOCKS:
            split = few_digits(max(1, min(most, self.arch.sm_count * wanted // max(1, blocks))))
            if split > last and wanted * threads <= self.arch.max_threads_per_sm:
                last = split
                yield split

    def holds_blocks(self, bdimx: int) -> bool:
        """True when threads along a row have whole blocks of elements, or blocks do not lie along rows, which `RowAnalysis.why_not_vectors` declines."""
        block = self.facts.block_elems
        return self.vector >= block or self.facts.inner_run_elems % block > 0 or bdimx * self.vector % block == 0

    # ---- the innermost loop is reduced
    def _inner(self) -> Iterator[_Shape]:
        facts = self.facts
        row = row_vectors(facts.reduction_elems, self.vector, self.is_phased)
        fewest = 2 * self.vector if self.is_phased else 1  # threads that do the ends of a row
        inner, sizes = (INNER_THREADS, BLOCK_THREADS) if facts.window is None else (INNER_THREADS[:-2], BLOCK_THREADS[:-1])  # with registers for windows
        for bdimx in inner:
            if not self.holds_blocks(bdimx) or bdimx < fewest or bdimx > fewest and bdimx // 2 >= row:
                continue
            if ceil_div(row, bdimx) > MOST_LONE_VECTORS and bdimx < self.arch.warp_threads:
                continue
            for bdimy in {max(1, min(threads // bdimx, next_power_of_two(facts.iteration_elems))) for threads in sizes}:
                threads = bdimx * bdimy
                for split in self.splits(ceil_div(facts.iteration_elems, bdimy), row // (2 * bdimx), threads):
                    for unroll in self.unrolls(ceil_div(ceil_div(row, split), bdimx)):
                        yield False, unroll, bdimx, bdimy, 1, split, False, self.row_registers(threads, unroll)
        if facts.dimensions == 3 and facts.runs[0][0] and len(facts.runs) == 3 and facts.window is None:
            yield from self._inner_3d()

    def _inner_3d(self) -> Iterator[_Shape]:
        """Yield candidates whose threads along x stay within the inner run, so that no index is divided."""
        facts = self.facts
        outer = facts.runs[0][1]
        row = ceil_div(facts.inner_run_elems, self.vector)
        for bdimx in filter(self.holds_blocks, RUN_THREADS):
            for unroll in self.unrolls(ceil_div(row, bdimx)):
                bdimz = max(1, min(RUN_THREADS[-1] // bdimx, previous_power_of_two(outer)))
                for split in self.splits(facts.iteration_elems, outer // bdimz, bdimx * bdimz):
                    yield True, unroll, bdimx, 1, bdimz, split, False, self.row_registers(bdimx * bdimz, unroll)

    # ---- the innermost loop is kept
    def _outer(self) -> Iterator[_Shape]:
        facts, arch = self.facts, self.arch
        row = ceil_div(facts.iteration_elems, self.vector)
        whole = (row,) if row < arch.warp_threads and row not in OUTER_THREADS_X else ()
        for bdimx in (*OUTER_THREADS_X, *whole):
            if bdimx not in whole and (bdimx > 1 and bdimx // 2 >= row or bdimx < LEAST_WIDTH and row >= 2 * LEAST_WIDTH):
                continue
            columns = ceil_div(row, bdimx)
            heights = [previous_power_of_two(n // bdimx) for n in BLOCK_THREADS[1:]]
            if facts.reduction_elems <= FEW_ELEMS and bdimx >= arch.warp_threads:
                heights.append(1)  # a thread reduces its columns alone: nothing to fold in the block
            for bdimy in dict.fromkeys(self.fitting(bdimx, max(1, min(height, next_power_of_two(facts.reduction_elems)))) for height in heights):
                if bdimx in whole and bdimy < arch.warp_threads:  # blocks of whole warps
                    continue
                threads = bdimx * bdimy
                most = facts.reduction_elems // (2 * bdimy)
                for split in self.splits(columns, most, threads):
                    for unroll in self.unrolls(self.vectors(bdimx, bdimy, 1, split)):
                        yield False, unroll, bdimx, bdimy, 1, split, False, self.column_registers_of(threads, unroll)
                split = MOST_CLUSTER
                # each block of a cluster combines its part of the columns from as many threads as there are blocks
                if split <= min(most, bdimy, arch.max_cluster_blocks) and columns * split <= arch.sm_count:
                    for unroll in self.unrolls(self.vectors(bdimx, bdimy, 1, split)):
                        yield False, unroll, bdimx, bdimy, 1, split, True, self.column_registers_of(threads, unroll)

    def fitting(self, bdimx: int, bdimy: int) -> int:
        """Return the largest number of threads along y, up to bdimy, whose partial results fit shared memory."""
        bits, most = self.facts.accumulator_bits, self.arch.shared_per_block_optin_bytes
        while bdimy > 1 and tree_workspace_bytes(whole_warps(bdimx, bdimy) * bdimy, self.vector, bits) > most:
            bdimy //= 2
        return bdimy
