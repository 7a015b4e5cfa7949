"""What the analyses of reductions and of normalizations have in common: rows, their runs and vectors, bits moved, cost.

Owns the part that does not depend on sizes (`RowAnalysis`), and why a fusion has no such rows (`analyze_rows`). `reduction_analysis.py` and
`persistent_analysis.py` add what each kind needs. Arguments of `facts` are described in `pointwise_analysis.py`. Read first: `RowAnalysis`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..analysis.blocks import block_needs, moved_bits
from ..analysis.connected import is_connected
from ..analysis.lookup_work import FEWEST_OF_A_WINDOW, computed_lookups
from ..analysis.lookups import bad_source, is_reading, loads, lookup_of
from ..analysis.loop_axes import LoopAxes, Obstacle, loop_axes
from ..analysis.op_cost import OpCost, cost_of
from ..analysis.persistent import PersistentBuffers, persistent_buffers
from ..analysis.precision import wide_tensors
from ..analysis.reduction_shape import ReductionShape, reduced_classes, reduction_shapes
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits
from ..ir.fusion import Fusion
from ..ir.values import Expr, ReductionOp, TensorView
from ..ops.monoids import MONOIDS, StateMonoid
from .accesses import Analysis, dtype_bits, phased_limit, single_reads
from .base import Alignments, Decline, Sizes
from .facts import PersistentFacts, ReductionFacts
from .packed import min_vector_elems, thread_vector_bits, why_not_vectors

NARROW_WORD_ELEMS = 4
"""For rows of 8 or 4 bits: if inputs at odd addresses allow only narrower vectors than this, they are read element by element, so that the others still move
words: loaded one by one, each byte takes a register. Measured: docs/constants.md."""
NO_GROUPS = "groups of elements of a row are folded, too, and only threads that keep rows of contiguous elements hold such groups"
LEAST_RUN_BITS = 32
"""Bits of an access within a run, from which it is better than wider accesses across the end of runs, whose elements need separate weights."""


class RowAnalysis(Analysis):
    """What reductions and normalizations have in common: loops, runs, vectors, bits moved, cost."""

    can_hold_groups = False
    """Its schedules can give a group of neighbours to the threads of several warps."""
    can_read_singly = True
    """Its schedules can read inputs element by element if they do not allow the vectors that other tensors need."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, shape: ReductionShape, buffers: PersistentBuffers, nested: tuple[Expr, ...] = ()) -> None:
        self.axes, self.shape, self.buffers = axes, shape, buffers
        self.nested = nested
        """Reductions over the innermost loops of a row, whose results are outputs; see `why_not_nested`."""
        inputs, outputs = loads(fusion), fusion.tensor_outputs()
        loops, reduced = frozenset(shape.order), shape.reduced
        has_rows = loops != reduced
        folds = frozenset().union(*(reduced_classes(e, axes) for e in nested))
        self.row_outputs = [t for t in outputs if axes.stored(t) & (reduced if not nested else folds)]
        # results of the reductions are few and may be stored one by one, so they do not limit the vector
        self.limits = VectorLimits(axes, shape.order, [*inputs, *self.row_outputs])
        vectorizable = self.limits.vectorizable
        singles = [t for t in computed_lookups(inputs) if shape.order[-1] in axes.stored(t) and not any(t is v for v in vectorizable)]
        self.windows = tuple(singles) if len(singles) >= FEWEST_OF_A_WINDOW else ()
        """Lookups of windows of images and the like, which are read element by element."""
        along = [t for t in inputs if axes.stored(t) & reduced and not stands_still(t, axes, shape)]
        again = [t for t in along if buffers.passes == 1 or buffers.first_pass.get(t, 0) > 0]  # none of these are kept between passes
        of_groups = [t for t in again if axes.stored(t) - reduced and not loops - reduced <= axes.stored(t)]
        self.group_inputs = [t for t in of_groups if lookup_of(t) is None or buffers.passes == 1 and is_reading(t)]
        """Weights that differ between groups of rows, such as a scale per sample: the rows of a group read them from L2, like other weights. In sums of columns
        also values of rows."""
        self.row_inputs = [t for t in along if (axes.stored(t) - reduced or not has_rows) and t not in self.group_inputs]
        self.broadcast_inputs = [t for t in along if not any(t is r for r in self.row_inputs)]
        self.max_dtype_bits, self.min_dtype_bits = dtype_bits(vectorizable, [*inputs, *outputs])
        self.vectorizable_inputs = sum(any(t is v for v in vectorizable) for t in self.row_inputs)
        self.cost: OpCost = cost_of(row_exprs(fusion, axes, reduced), wide_tensors(fusion))
        results = [o for e in shape.reductions for o in e.outputs]
        self.reductions, self.accumulator_bits = len(results), sum(o.dtype().bits for o in results)  # type: ignore[attr-defined]
        self.outputs, self.blocks = outputs, block_needs(fusion, axes, shape.order[-1], shape.runs[-1].classes)
        self.min_vector_elems = max(min_vector_elems(outputs), self.blocks.least_vector_elems)
        self.vector_bits = thread_vector_bits(vectorizable, outputs, self.blocks.largest)
        self.late_input_bits = sum(t.dtype().bits for t in self.row_inputs if t in buffers.first_pass and buffers.first_pass[t] > 0)

    def shared_facts(
        self, env: Sizes, alignment_bits: Alignments, extents: tuple[int, ...], max_access_bits: int = MAX_VECTOR_BITS
    ) -> dict[str, Any]:  # fmt: skip
        """Return the fields that the facts of reductions and of normalizations have in common. max_access_bits: the chip's widest access."""
        shape = self.shape
        single = self.single_reads(env, alignment_bits)
        limits = self.limits.without(single) if single else self.limits
        access_bits, vector_bits = limits.access_bits(alignment_bits, max_access_bits), self.vector_bits
        if access_bits > MAX_VECTOR_BITS:
            vector_bits = thread_vector_bits(limits.vectorizable, self.outputs, self.blocks.largest, access_bits)
        phased, is_tailed = (1, False) if single or self.blocks.largest else phased_limit(limits, shape.inner_position, env, alignment_bits)
        return dict(
            iteration_elems=math.prod(extents[n] for n in shape.order if n not in shape.reduced),
            reduction_elems=math.prod(extents[n] for n in shape.reduced),
            runs=tuple((run.is_reduction, run.extent_elems(extents)) for run in shape.runs),
            vector_limit_elems=min(limits.limit_elems(shape.inner_position, env, alignment_bits, vector_bits), self.blocks.most_vector_elems),
            phased_limit_elems=phased, is_tailed=is_tailed,
            **self.facts_of_elements(),
            input_bits=sum(t.dtype().bits for t in self.row_inputs),
            output_bits=moved_bits(self.row_outputs),
            reductions=self.reductions,
            accumulator_bits=self.accumulator_bits,
            vector_bits=vector_bits,
            access_bits=access_bits,
            single_reads=tuple(t.name for t in single),
            group_elems=self.blocks.groups,
        )

    def kept_facts(self, extents: tuple[int, ...]) -> dict[str, Any]:
        """Return the fields of `PersistentFacts` about what passes over a row read, keep and recompute."""
        buffers = self.buffers
        return dict(
            late_input_bits=self.late_input_bits,
            broadcast_operand_bits=sum(t.dtype().bits for t in self.broadcast_inputs),
            broadcast_operands=len(self.broadcast_inputs),
            persistent_bits=buffers.live_bits(extents, is_projected=False),
            projected_bits=None if buffers.projected is None else buffers.live_bits(extents, is_projected=True),
            recompute_instructions=buffers.recomputed.instructions,
            recompute_has_exact_exp=buffers.recomputed.has_exact_exp,
            passes=buffers.passes,
            folds_last=any(buffers.first_pass.get(t, 0) >= buffers.passes for e in self.shape.reductions for t in e.tensor_outputs),
        )

    def count_still_axes(self) -> int:
        """Return how many innermost reduced loops some input lacks, although it has others of their run; 0: none, or a result lacks them, too."""
        if self.nested:
            return len(reduced_classes(self.nested[0], self.axes))
        if not self.shape.is_inner or any(stands_still(t, self.axes, self.shape) for t in self.outputs):
            return 0
        run = self.shape.runs[-1].classes
        still = [self.axes.stored(t) for t in loads(self.axes.fusion) if stands_still(t, self.axes, self.shape)]
        last = [max((n for n, c in enumerate(run) if c in stored), default=-1) for stored in still]
        return len(run) - 1 - max(last) if last and max(last) >= 0 else 0

    def single_reads(self, env: Sizes, alignment_bits: Alignments) -> list[TensorView]:
        """Return the inputs that are read element by element, see `single_reads`."""
        position = self.shape.inner_position

        def found(wanted: int) -> list[TensorView]:
            return single_reads(self.limits, position, wanted, self.outputs, env, alignment_bits, self.vector_bits)

        if not self.can_read_singly:
            return []
        if self.needs_vectors:
            return found(self.min_vector_elems)
        if not self.shape.is_inner or not any(t.dtype().is_narrow_float for t in self.row_inputs):
            return []
        single = found(NARROW_WORD_ELEMS)
        return single if self.limits.without(single).limit_elems(position, env, alignment_bits, self.vector_bits) >= NARROW_WORD_ELEMS else []

    def why_not_vectors(
        self, facts: ReductionFacts | PersistentFacts, chosen_elems: int, *, is_tile: bool = False, turned: Sequence[TensorView] = ()
    ) -> Decline | None:
        """Return why vectors of so many elements do not do for packed outputs, or for folds over blocks.

        is_tile: threads lie along columns. turned: outputs with separate vectors, along columns.
        """
        if self.blocks.largest and not self.shape.is_inner and not is_tile:
            return Decline("the innermost axis is not reduced, but reductions over blocks of elements run along rows")
        outputs = [t for t in self.outputs if not any(t is other for other in turned)]
        return why_not_vectors(outputs, self.limits, facts.vector_limit_elems, self.blocks, chosen_elems, is_held_by_warps=self.can_hold_groups)


def analyze_rows(
    fusion: Fusion, axes: LoopAxes | None, *, can_nest: bool = False
) -> tuple[LoopAxes, ReductionShape, PersistentBuffers, tuple[Expr, ...]] | Obstacle:
    """Return the loops, the rows, what is kept between passes, and with `can_nest` the reductions within rows (`why_not_nested`); or why there are no rows."""
    if not is_connected(fusion):
        return Obstacle("the outputs fall into groups that share no tensor")
    if reason := bad_source(fusion):
        return Obstacle(reason)
    if not loads(fusion):
        return Obstacle("there is no tensor input")
    axes = axes or loop_axes(fusion)
    shapes = reduction_shapes(fusion, axes)
    if isinstance(shapes, Obstacle):
        return shapes
    nested: tuple[Expr, ...] = ()
    shape = max(shapes, key=lambda s: len(s.reduced))
    if len(shapes) > 1:
        if not can_nest or len(shapes) > 2:
            return Obstacle(f"{shapes[0].reference} and {shapes[1].reference} reduce different axes")
        within = next(s for s in shapes if s is not shape)
        why_not = why_not_nested(fusion, axes, shape, within)
        if why_not is not None:
            return Obstacle(why_not)
        nested = within.reductions
    if not shape.reduced:
        return Obstacle("the reduced axes have only one element")
    loops = frozenset(shape.order)
    for tensor in (*loads(fusion), *fusion.tensor_outputs()):
        if not axes.concrete(tensor) <= loops:
            return Obstacle(f"{tensor} has an axis that the reduction does not have")
    buffers = persistent_buffers(fusion, axes, shape)
    return buffers if isinstance(buffers, Obstacle) else (axes, shape, buffers, nested)


def why_not_nested(fusion: Fusion, axes: LoopAxes, shape: ReductionShape, within: ReductionShape) -> str | None:
    """Return why the reductions `within` cannot run in the kernel of `shape`, or None.

    They can if they reduce only the innermost loops of a row, in its first pass, and their results are outputs: sums of each channel of a group.
    """
    if any(not isinstance(e, ReductionOp) or isinstance(MONOIDS[e.attributes["kind"]], StateMonoid) for e in within.reductions):
        return f"{within.reference} reduces a part of what {shape.reference} reduces, to a state of several fields"
    refuses = f"{shape.reference} and {within.reference} reduce different axes"
    count = len(within.reduced)
    if not shape.is_inner or not within.reduced < shape.reduced or frozenset(shape.runs[-1].classes[-count:]) != within.reduced:
        return refuses
    results = {out for e in within.reductions for out in e.outputs}
    folded = {out for e in shape.reductions for out in e.outputs}
    for expr in fusion.tensor_exprs():
        reads = set(expr.tensor_inputs)
        if reads & folded:
            folded.update(expr.outputs)
        if reads & results:
            if expr in shape.reductions or expr in within.reductions or any(axes.concrete(t) & within.reduced for t in expr.tensor_outputs):
                return f"{within.reference} reduces a part of what {shape.reference} reduces, and is used again"
            results.update(expr.outputs)
    if results & folded:
        return f"{within.reference} reduces a part of what {shape.reference} reduces, and needs its result"
    return None


def stands_still(tensor: TensorView, axes: LoopAxes, shape: ReductionShape) -> bool:
    """True for a tensor that depends on a row, but is constant over neighbouring elements: the weights of a group norm, one per channel."""
    return shape.is_inner and bool(axes.stored(tensor) & shape.reduced) and shape.order[-1] not in axes.concrete(tensor)


def row_exprs(fusion: Fusion, axes: LoopAxes, loops: frozenset[int]) -> list[Expr]:
    """Expressions that run once per element of `loops`, rather than once per row."""
    return [e for e in fusion.tensor_exprs() if any(axes.concrete(o) & loops for o in e.outputs)]  # type: ignore[arg-type]
