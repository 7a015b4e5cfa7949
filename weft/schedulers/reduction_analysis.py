"""The analysis of reductions whose results are not used over the axes that they reduced: what of `ReductionFacts` does not depend on sizes.

Read first: `analyze_reduction`.
"""

from __future__ import annotations

from ..analysis.lookup_work import LookupWork, lookup_work
from ..analysis.lookups import in_memory, loads, lookup_of
from ..analysis.loop_axes import LoopAxes, Obstacle
from ..analysis.op_cost import cost_of
from ..analysis.persistent import PersistentBuffers
from ..analysis.precision import wide_tensors
from ..analysis.reduction_shape import ReductionShape, without_rows
from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import SUB_PARTITIONS
from ..ir.fusion import Fusion
from ..ir.values import ReductionOp, TensorView
from ..ops.monoids import MONOIDS
from .base import Alignments, Sizes
from .facts import ReductionFacts
from .limits import UNROLLS
from .row_analysis import LEAST_RUN_BITS, RowAnalysis, analyze_rows, row_exprs, stands_still


MOST_OF_A_WINDOW = UNROLLS[-1]
"""Neighbours of a thread that share what they look up, at most: each has its sums in registers, beside what all of them have loaded."""


class ReductionAnalysis(RowAnalysis):
    """A fusion of reductions whose results are not used over the reduced loops."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, shape: ReductionShape, buffers: PersistentBuffers) -> None:
        super().__init__(fusion, axes, shape, buffers)
        self.names_read_again = fusion.read_again
        self.results_meet = _results_meet(fusion, shape)
        columns = frozenset(shape.runs[-1].classes)
        self.column_inputs = sum(not shape.is_inner and bool(axes.stored(t) & columns) and not axes.stored(t) & shape.reduced for t in loads(fusion))
        self.has_whole_columns = not shape.is_inner and all(axes.stored(t) & columns in (frozenset(), columns) for t in fusion.tensors())
        """Every tensor has all axes of the columns or none, so a vector that overlaps the one before has one index for all of them."""
        loops = [axes.of(a) for a in shape.reference.get_logical_domain()]
        self.has_simple_columns = self.has_whole_columns and len(loops) > 1 and None not in loops and not any(lookup_of(t) for t in fusion.tensors())
        self.has_simple_columns &= all(t.dtype().bits <= MAX_VECTOR_BITS for e in shape.reductions for t in e.tensor_outputs)
        """The same, no axis has one element, and one access has a result: blocks can divide rows and columns twice (`phased_columns.py`)."""
        self.still_axes = self.count_still_axes()
        varying = row_exprs(fusion, axes, shape.reduced)
        is_common = [not shape.is_inner and all(shape.order[-1] not in axes.concrete(o) for o in e.tensor_outputs) for e in varying]
        self.common = cost_of([e for e, common in zip(varying, is_common) if common], wide_tensors(fusion))
        self.reads_terms = any(frozenset(shape.order) <= axes.stored(t) for t in loads(fusion))
        self._window_work: dict[tuple[object, ...], tuple[int, LookupWork | None]] = {}
        self.exchange_factor = max((MONOIDS[e.attributes["kind"]].exchange_factor for e in shape.reductions if isinstance(e, ReductionOp)), default=1)

    def facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int = MAX_VECTOR_BITS) -> ReductionFacts:
        """Return the facts at these sizes; vectors end where an input changes that neighbouring elements share, unless they would be too narrow."""
        extents = self.axes.extents_elems(env)
        can_begin_anywhere = self.has_whole_columns and self.limits.can_begin_anywhere(self.shape.inner_position, alignment_bits)
        shared = self.shared_facts(env, alignment_bits, extents, max_access_bits)
        still = sum(stands_still(t, self.axes, self.shape) for t in loads(self.axes.fusion))
        if self.still_axes:  # vectors that do not cross the end of a run have one value of each
            limit = self.limits.limit_elems(len(self.shape.order) - self.still_axes, env, alignment_bits, shared["vector_bits"])
            is_within = LEAST_RUN_BITS <= limit * self.max_dtype_bits and self.min_vector_elems <= limit
            shared["vector_limit_elems"] = min(limit, shared["vector_limit_elems"]) if is_within else shared["vector_limit_elems"]
            still *= 1 if is_within else shared["vector_limit_elems"]
        window_elems, window = self.window(env, alignment_bits, extents) if self.windows and self.shape.is_inner else (1, None)
        if window is not None:
            shared["input_bits"] = self._bits_without_windows(env)
        return ReductionFacts(
            **shared, results_meet=self.results_meet, can_begin_anywhere=can_begin_anywhere, exchange_factor=self.exchange_factor,
            column_inputs=self.column_inputs, still_loads=still, looked_up=len(self.windows), window_elems=window_elems, window=window,
            columns_of_one=1 if self.shape.is_inner or self.reads_terms else extents[self.shape.order[-1]], common_instructions=self.common.instructions,
            free_columns=1 if self.shape.is_inner or self.limits.vectorizable or self.column_inputs else self.shape.runs[-1].extent_elems(extents),
        )  # fmt: skip


    def window(self, env: Sizes, alignment_bits: Alignments, extents: tuple[int, ...]) -> tuple[int, LookupWork | None]:
        """Return how many neighbours along the innermost loop a thread has, so that it does least for each, and what it does for all of them; None where
        several share nothing, so that these are no windows, and a vector's loads do not wait for banks of L1 longer than its instructions take."""
        key = tuple(sorted((str(size), value) for size, value in env.items())), tuple(sorted(alignment_bits.items()))
        if key not in self._window_work:
            inner = extents[self.shape.order[-1]]
            widths = [n for n in range(1, MOST_OF_A_WINDOW + 1) if inner % n == 0] or [1]
            loaded = [t for t in self.limits.vectorizable if t not in self.outputs]
            if any(t.definition() is None or t not in self.windows for t in loaded):
                limit = self.limits.limit_elems(len(self.shape.order) - 1, env, alignment_bits, self.vector_bits)
                widths = [n for n in widths if n <= limit and n & (n - 1) == 0]
            found = [(n, lookup_work(self.axes, self.shape.order, self.windows, env, n)[0]) for n in widths]
            best = min(found, key=lambda made: (made[1].operations + made[1].loads) / made[0])
            vector = [work for n, work in found if n > 1 and n * self.max_dtype_bits <= MAX_VECTOR_BITS]
            is_plain = best[0] == 1 and bool(vector) and vector[-1].bank_clocks <= vector[-1].operations / SUB_PARTITIONS
            self._window_work[key] = (1, None) if is_plain else best
        return self._window_work[key]

    def _bits_without_windows(self, env: Sizes) -> int:
        """Return the bits per element of inputs, those of tensors that are looked up once."""
        sources = dict.fromkeys(in_memory(t) for t in self.windows)
        return sum(t.dtype().bits for t in (*(t for t in self.row_inputs if t not in self.windows), *sources))


def _results_meet(fusion: Fusion, shape: ReductionShape) -> bool:
    """True if some expression depends on the results of two reductions that blocks do not exchange together (`lower.staying.merge_reductions`)."""
    behind: dict[TensorView, frozenset[object]] = {}
    for n, e in enumerate(shape.reductions):
        outs = e.tensor_outputs
        alike = (e.attributes["kind"], outs[0].dtype()) if len(outs) == 1 else n
        behind.update((out, frozenset([alike])) for out in outs)
    for expr in fusion.tensor_exprs():
        found = frozenset().union(*(behind.get(t, frozenset()) for t in expr.tensor_inputs)) if expr.tensor_inputs else frozenset()
        if len(found) > 1:
            return True
        for out in expr.outputs:
            behind.setdefault(out, found)  # type: ignore[arg-type]
    return False


def analyze_reduction(fusion: Fusion, axes: LoopAxes | None = None) -> ReductionAnalysis | Obstacle:
    """Return the size-independent facts of a fusion of reductions, or why it is not one."""
    found = analyze_rows(fusion, axes)
    if isinstance(found, Obstacle):
        return found
    if found[2].passes > 1:
        return Obstacle("a reduction's result is broadcast back over the reduced axes (a normalization)")
    without = without_rows(fusion, found[0], found[1])
    if without is not None:
        return Obstacle(f"{without} lacks an axis of the rows, and is computed from values that are repeated over that axis")
    return ReductionAnalysis(fusion, *found[:3])
