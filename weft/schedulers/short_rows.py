"""Reductions of rows of a few elements: pairs, coordinates, windows of pixels. A thread reduces neighbouring rows alone and stores their results at once.

    results: [BIDx, TIDx = bdimx, results]     reduced: [serial, unroll, vector_elems]

A thread for each row, or several, would have one access of a few bytes under way. Threads next to each other read rows next to each other, so whole cache lines
are used, by several accesses of a warp one after the other. Elements of a row that share most of what is computed are in one thread for that, too, as in
`whole_rows.py`. Owns which rows are short, the params, and the loops. Read first: `choose_short`, `schedule_short`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.lookups import lookup_of
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits
from ..arch import LINE_BYTES, SECTOR_BYTES, Arch
from ..ir.enums import ParallelType
from ..ir.values import IterDomain, TensorView
from .arithmetic import ceil_div
from .base import Alignments, Sizes
from .cost.passing import passing_ns
from .cost.whole_rows import WholeRowFacts, work_of_whole_rows
from .facts import ReductionFacts, RowFacts
from .limits import FULL_BLOCK_THREADS, UNROLLS
from .pointwise_heuristic import BLOCK_THREADS
from .reduction_analysis import ReductionAnalysis
from .reduction_heuristic import ReductionParams
from .row_analysis import RowAnalysis
from .rows import arrange_axes, canonical_rows, split_axis
from .whole_rows import MOST_ELEMS, is_faster, shared_work

MOST_LOADS = 2 * UNROLLS[-1]
"""Loads of a thread that are under way at once, at most: all that it needs."""
LOADS_PER_LINE = LINE_BYTES // SECTOR_BYTES
"""How many accesses of a warp may read from the same cache line, at most, so that each uses a sector of it: L1 gives each of them the line in a clock, which
is faster than memory delivers the bytes. Measured: docs/constants.md."""
MOST_TERMS = 4 * MOST_LOADS
"""Elements that a thread looks up, at most, before it adds them: as many as its registers hold beside positions and weights."""
SHORT_THREADS = FULL_BLOCK_THREADS // 2


def choose_short(analysis: ReductionAnalysis, facts: ReductionFacts, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> ReductionParams | None:
    """Return the params for short rows, or None where a vector of the usual size lies in one row, and for what needs the loops of other templates."""
    lanes = min(facts.vector_limit_elems, max(1, MAX_VECTOR_BITS // facts.max_dtype_bits))
    has_lookups = any(lookup_of(t) is not None for t in analysis.row_inputs)
    is_short = facts.is_inner and lanes * facts.max_dtype_bits < MAX_VECTOR_BITS and (has_lookups or 0 < facts.reduction_elems <= MOST_LOADS * lanes)
    has_rows = facts.iteration_elems > 0 and not all(is_reduced for is_reduced, _ in facts.runs)
    if not is_short or not has_rows or analysis.row_outputs or analysis.needs_vectors or facts.single_reads:
        return None
    if has_lookups:
        return _choose_windows(facts, lanes, arch)
    of_a_run = ceil_div(facts.runs[-1][1], lanes)
    loads = of_a_run * (facts.reduction_elems // facts.runs[-1][1])
    if of_a_run > 2 * LOADS_PER_LINE or loads > MOST_LOADS:
        return None
    results = stored_at_once(analysis, sizes, alignment_bits)
    most = min(LOADS_PER_LINE // of_a_run, MOST_LOADS // loads, facts.iteration_elems // (SHORT_THREADS * arch.sm_count))
    while results > max(1, most):
        results //= 2
    return _params(lanes, loads, results, arch)


def _choose_windows(facts: ReductionFacts, lanes: int, arch: Arch) -> ReductionParams | None:
    """Return the params for rows that are looked up, as windows of an image are: a thread that has a row alone computes each of its positions and weights once.
    None where vectors are read beside them, for windows too wide to be under way at once, and for fewer rows than threads that fill the chip."""
    terms = facts.reduction_elems if facts.reduction_elems <= MOST_TERMS else facts.runs[-1][1]
    if lanes > 1 or not 0 < terms <= MOST_TERMS or facts.iteration_elems < SHORT_THREADS * arch.sm_count:
        return None
    return _params(1, terms, 1, arch)


def _params(lanes: int, loads: int, results: int, arch: Arch) -> ReductionParams:
    return ReductionParams(
        kind="short", vector_elems=lanes, unroll=loads, bdimx=SHORT_THREADS, bdimy=1, bdimz=1, grid_split=1, is_warp_only=False,
        max_registers=arch.registers_per_thread(arch.max_threads_per_sm // 2), results=results,
    )  # fmt: skip


def choose_whole(analysis: ReductionAnalysis, facts: ReductionFacts, sizes: Sizes, arch: Arch, other_ns: float) -> ReductionParams | None:
    """Return params with which a thread has a row, if that is faster than another way that takes `other_ns`; None for rows that are longer, of unknown length,
    or covered by one vector, and for fewer than threads that fill the chip."""
    if not is_of_a_thread(analysis, facts, arch) or facts.vector_limit_elems >= facts.reduction_elems:
        return None
    lanes = min(facts.vector_limit_elems, facts.reduction_elems & -facts.reduction_elems)
    found = shared_row(analysis, facts, sizes, lanes, analysis.row_outputs)
    time_ns = float(passing_ns(work_of_whole_rows(1, BLOCK_THREADS[0], found, arch), arch))
    if not is_faster(found, time_ns, other_ns):
        return None
    return ReductionParams(
        kind="short", vector_elems=lanes, unroll=facts.reduction_elems // lanes, bdimx=BLOCK_THREADS[0], bdimy=1, bdimz=1, grid_split=1, is_warp_only=False,
        max_registers=arch.max_registers_per_thread,
    )  # fmt: skip


def is_of_a_thread(analysis: RowAnalysis, facts: RowFacts, arch: Arch) -> bool:
    """True for rows that a thread can have alone, as many as fill the chip, of a length that is a number in the kernel."""
    extents = [analysis.axes.extent_sym(n) for n in analysis.shape.runs[-1].classes] if analysis.shape.runs else []
    is_short = [is_reduced for is_reduced, _ in facts.runs] == [False, True] and facts.reduction_elems <= MOST_ELEMS and all(sym.is_const for sym in extents)
    is_plain = not (analysis.needs_vectors or facts.single_reads or facts.has_rng)
    return is_short and is_plain and max(1, SHORT_THREADS * arch.sm_count) <= facts.iteration_elems


def shared_row(analysis: RowAnalysis, facts: RowFacts, sizes: Sizes, vector_elems: int, outputs: Iterable[TensorView]) -> WholeRowFacts:
    """Return what a thread does that has a row. outputs: those that are computed in the loops of rows."""
    position = analysis.shape.inner_position
    results = [*(t for e in analysis.shape.reductions for t in e.tensor_inputs), *outputs]
    in_vectors = dict.fromkeys(analysis.limits.in_vectors(position, False), vector_elems)
    return shared_work(analysis, analysis.shape.order, sizes, position, results, in_vectors, facts.total_elems)


def stored_at_once(analysis: ReductionAnalysis, sizes: Sizes, alignment_bits: Alignments) -> int:
    """Return how many neighbouring results every output takes in one store."""
    shape = analysis.shape
    order = [n for n in shape.order if n not in shape.reduced]
    run = next((len(r.classes) for r in reversed(shape.runs) if not r.is_reduction), 0)
    limits = VectorLimits(analysis.axes, order, analysis.outputs)
    if not run or len(limits.vectorizable) < len(analysis.outputs):
        return 1
    return limits.limit_elems(len(order) - run, sizes, alignment_bits)


def schedule_short(reference: TensorView, analysis: ReductionAnalysis, params: ReductionParams) -> tuple[list[IterDomain], int]:
    """Transform and bind a reduction of short rows; return the serial axes, and the number of axes outside of the loads."""
    rows = canonical_rows(reference, analysis.shape, analysis.axes, params.vector_elems, keep_outer=False)
    blocks, group = split_axis(reference, rows.rows, params.results)  # type: ignore[arg-type]
    blocks, threads = split_axis(reference, blocks, params.bdimx)
    rest, unrolled = split_axis(reference, rows.row, params.unroll)
    blocks.parallelize(ParallelType.grid_x)
    threads.parallelize(ParallelType.block_x)
    arrange_axes(reference, [blocks, rest, unrolled, threads, group, rows.vector])
    return [rest, unrolled, rows.vector], 2
