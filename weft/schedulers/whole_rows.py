"""Pointwise kernels whose threads have whole rows of a short innermost loop: coordinates, quaternions, small matrices, the numbers of a twist.

    rows: [BIDx, unroll, TIDx]     row: [vectors, vector_elems]

Elements of a row are known numbers then. What they share, such as a norm, a product of two rows or the element that a position picks, is computed once, and so
is what does not vary along the row. Threads next to each other read rows next to each other, so whole cache lines are used, by several accesses of a warp
one after the other. The length of a row is a number in the kernel, which the host checks.

A row may also be a column: all of a short loop that is not the innermost, as the steps of a loop over time.

Owns the params, which rows are short, the choice and the loops. Read first: `choose_whole_rows`, `schedule_whole_rows`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysis.extents import substitute_extents
from ..analysis.lookup_work import BANK_BYTES
from ..analysis.lookups import loads
from ..analysis.whole_rows import operations_of_elements, row_work
from ..arch import Arch
from ..expr import Sym, const
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp, ScatterStoreOp
from ..ir.values import IotaOp, PointwiseOp, TensorView
from .base import ScheduleResult, Sizes
from .cost.passing import passing_ns
from .cost.whole_rows import WholeRowFacts, work_of_whole_rows
from .facts import PointwiseFacts
from .limits import NEAR, UNROLLS
from .pointwise_analysis import PointwiseAnalysis
from .pointwise_heuristic import BLOCK_THREADS
from .reduction_heuristic import MOST_COLUMNS
from .row_analysis import RowAnalysis
from .rows import arrange, arrange_axes, merge_axes_at, places_in_order, split_axis
from .template import Template

MOST_ELEMS = 2 * MOST_COLUMNS
"""Elements of a row that a thread has."""
MOST_OF_A_COLUMN = 2 * MOST_ELEMS
"""The same for a column, along a loop that is not the innermost one: the loads of a warp are whole lines then."""
WORD_BITS = 8 * BANK_BYTES
ROW_UNROLLS = UNROLLS[:2]


@dataclass(frozen=True, slots=True)
class WholeRowParams:
    """Equal params (with equal structure, index type and device) mean the same kernel.

    extents: of the loops of a row, outermost first. vector_elems: of an access along it. unroll: rows of a thread. bdimx: threads of a block. column: the place
    of the loop that is the row of a thread, if that is not the innermost; None: rows are along the innermost loops.
    """

    extents: tuple[int, ...]
    vector_elems: int
    unroll: int
    bdimx: int
    max_registers: int
    column: int | None = None

    @property
    def elems(self) -> int:
        return math.prod(self.extents)

    @property
    def thread_elems(self) -> int:
        return self.elems * self.unroll


def choose_whole_rows(analysis: PointwiseAnalysis, facts: PointwiseFacts, sizes: Sizes, arch: Arch) -> list[tuple[float, WholeRowParams]]:
    """Return (predicted time in ns, params), best first; empty where elements of rows share little, and for what needs the loops of other templates."""
    if not facts.total_elems or facts.block_elems or facts.has_rng or analysis.needs_vectors or facts.single_reads or not may_share(analysis):
        return []
    shapes = list(itertools.product(ROW_UNROLLS, BLOCK_THREADS))
    out: list[tuple[float, WholeRowParams]] = []
    for count in range(1, len(facts.extents_elems)):
        extents = facts.extents_elems[-count:]
        if not 1 < math.prod(extents) <= MOST_ELEMS:
            continue
        found = facts_of_whole_rows(analysis, facts, sizes, count)
        vector = min(facts.vector_limit_elems[-count], found.elems & -found.elems)
        for unroll, bdimx in shapes if found.shares else ():
            time_ns = float(passing_ns(work_of_whole_rows(unroll, bdimx, found, arch), arch))
            params = WholeRowParams(extents, vector, unroll, bdimx, arch.max_registers_per_thread)
            out.append((time_ns, params))
    out += _columns(analysis, facts, sizes, arch)
    return sorted(out, key=lambda pair: pair[0])


def _columns(analysis: PointwiseAnalysis, facts: PointwiseFacts, sizes: Sizes, arch: Arch) -> list[tuple[float, WholeRowParams]]:
    """Return the same for threads that have columns: all of a short loop that is not the innermost, by whose positions the kernel selects, as among the stacked
    steps of a loop over time. Neighbouring threads have neighbouring columns, each access one element, so elements narrower than a word have no such kernel."""
    if facts.min_dtype_bits < WORD_BITS:
        return []
    out, extents = list[tuple[float, WholeRowParams]](), facts.extents_elems
    for place in range(len(extents) - 1):
        if not 1 < extents[place] <= MOST_OF_A_COLUMN or not _selects_along(analysis, analysis.order[place]):
            continue
        order = in_columns(analysis.order, place)
        found = shared_work(analysis, order, sizes, len(order) - 1, analysis.outputs, {}, facts.total_elems, is_column=True)
        for bdimx in BLOCK_THREADS if found.shares else ():
            time_ns = float(passing_ns(work_of_whole_rows(1, bdimx, found, arch), arch))
            out.append((time_ns, WholeRowParams((extents[place],), 1, 1, bdimx, arch.max_registers_per_thread, place)))
    return out


def in_columns(order: Sequence[int], place: int) -> tuple[int, ...]:
    """Return the loops with that at `place` as the last."""
    return (*order[:place], *order[place + 1 :], order[place])


def _selects_along(analysis: PointwiseAnalysis, loop: int) -> bool:
    """True if the kernel computes with positions along a loop."""
    return any(isinstance(e, IotaOp) and loop in analysis.axes.concrete(e.tensor_outputs[0]) for e in analysis.axes.fusion.tensor_exprs())


def may_share(analysis: PointwiseAnalysis) -> bool:
    """True if a value does not vary along the innermost loop, or elements are picked by their position, and nothing is scattered."""
    exprs, inner = analysis.axes.fusion.tensor_exprs(), analysis.order[-1] if analysis.order else None
    if any(isinstance(e, ScatterStoreOp) for e in exprs):
        return False
    return any(isinstance(e, LookupOp) or isinstance(e, PointwiseOp) and inner not in analysis.axes.stored(e.tensor_outputs[0]) for e in exprs)


def facts_of_whole_rows(analysis: PointwiseAnalysis, facts: PointwiseFacts, sizes: Sizes, count: int) -> WholeRowFacts:
    """Return the facts of rows along the `count` innermost loops."""
    position = len(facts.extents_elems) - count
    elems = math.prod(facts.extents_elems[position:])
    vector = min(facts.vector_limit_elems[position], elems & -elems)
    in_vectors = dict.fromkeys(analysis.limits.in_vectors(position, False), vector)
    return shared_work(analysis, analysis.order, sizes, position, analysis.outputs, in_vectors, facts.total_elems)


def shared_work(
    analysis: PointwiseAnalysis | RowAnalysis, order: Sequence[int], sizes: Sizes, position: int, results: Sequence[TensorView],
    in_vectors: Mapping[TensorView, int], total_elems: int, *, is_column: bool = False,
) -> WholeRowFacts:  # fmt: skip
    """Return the facts of rows of all loops in `order` from `position` on. results: what is computed of a row. in_vectors: tensors that are accessed in
    vectors, and their elements."""
    extents = analysis.axes.extents_elems(sizes)
    elems, tensors = math.prod(extents[n] for n in order[position:]), [*loads(analysis.axes.fusion), *analysis.outputs]
    alone = elems * operations_of_elements(analysis.axes, order, sizes, results)
    work = row_work(analysis.axes, order, sizes, position, results, tensors, in_vectors, is_column=is_column)
    return WholeRowFacts(total_elems // elems, elems, work, alone >= 2 * work.operations)


def is_faster(whole: WholeRowFacts, whole_ns: float, other_ns: float) -> bool:
    """Tell whether a thread for each row is better by the predicted times: by a quarter, if its elements share little, because the model does not know what
    stores cost that fill sectors one element after the other."""
    return whole_ns < (1 - NEAR) * other_ns and (whole.shares or 4 * whole_ns < 3 * other_ns)


def schedule_whole_rows(fusion: Fusion, analysis: PointwiseAnalysis, params: WholeRowParams) -> ScheduleResult:
    """Schedule `fusion` in place."""
    count = len(params.extents)
    order = analysis.order if params.column is None else in_columns(analysis.order, params.column)
    inner = [analysis.axes.extent_sym(n) for n in order[-count:]]
    known: tuple[tuple[Sym, int], ...] = tuple((sym, extent) for sym, extent in zip(inner, params.extents) if not sym.is_const)
    if known:
        substitute_extents(fusion, {sym: const(extent) for sym, extent in known})
        fusion.findings.clear()
    template = Template(fusion)
    reference = template.tensor(analysis.reference.name)
    arrange(reference, places_in_order(analysis.reference.get_logical_domain(), order, analysis.axes))
    rank = len(reference.get_loop_domain())
    row, rows = merge_axes_at(reference, rank - count, count), merge_axes_at(reference, 0, rank - count)
    vectors, vector = split_axis(reference, row, params.vector_elems)  # type: ignore[arg-type]
    blocks, threads = split_axis(reference, rows, params.bdimx)  # type: ignore[arg-type]
    blocks, unroll = split_axis(reference, blocks, params.unroll)
    blocks.parallelize(ParallelType.grid_x)
    threads.parallelize(ParallelType.block_x)
    arrange_axes(reference, [blocks, unroll, threads, vectors, vector])
    template.propagate(reference)
    template.bind(reference)
    in_vectors = analysis.limits.in_vectors(len(order) - count, False) if params.column is None else []
    template.vectorize([t.name for t in in_vectors], params.vector_elems)
    template.inline_fixed(dict.fromkeys(template.loads, 1), 3)
    return ScheduleResult(((ParallelType.block_x, params.bdimx),), params.max_registers, sizes=known)


__all__ = ["MOST_ELEMS", "WholeRowParams", "choose_whole_rows", "is_faster", "schedule_whole_rows", "shared_work"]
