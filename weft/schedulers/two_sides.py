"""Analysis of fusions that reduce rows and columns: which tensors belong to the rows, which to the columns, and the facts for the heuristic.

Owns the split of a fusion into two phases, and their facts. Rows: everything before the column reductions' results; columns: these and what is computed
from them. Samples: axes that neither reduces, such as those of a scale per sample; each sample has rows and columns of its own. Read first:
`analyze_two_sides`.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace

from ..analysis.blocks import block_needs
from ..analysis.connected import components, is_connected
from ..analysis.lookups import bad_source, loads, looked_up_only
from ..analysis.loop_axes import LoopAxes, Obstacle, loop_axes
from ..analysis.op_cost import OpCost, cost_of
from ..analysis.persistent import PersistentBuffers, persistent_buffers
from ..analysis.precision import wide_tensors
from ..analysis.reduction_shape import ReductionShape, reduction_shapes
from ..analysis.vectorization import VectorLimits
from ..arch import BULK_BYTES
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, ReductionOp, TensorView
from ..ops.monoids import MONOIDS
from .accesses import dtype_bits
from .base import Alignments, Sizes
from .facts import PersistentFacts
from .packed import min_vector_elems, thread_vector_bits
from .row_analysis import RowAnalysis


@dataclass(frozen=True, slots=True)
class TwoSidedFacts:
    """Numbers of a fusion with row and column reductions, for one set of sizes.

    rows: facts of the part before the column results, with the outputs and weights of the rows, of one sample. has_row_results: the result of a row reduction
    is used over the row. column_results: number of reductions over the rows. column_accumulator_bits: of all of them, per column. column_bits: bits read and
    written per column at the end. has_single_axes: some tensors have axes of one element inside others, which prevents vectors; as outermost axes they do not
    matter. begins_with_units: all row inputs begin at a unit of bulk copies. row_inputs, row_outputs: tensors that are rows.
    row_folds: dependent reductions across lanes that combine the partial results of a row. online: the same facts with a maximum and the sum of exponentials
    relative to it as one reduction; None if there is no such pair. samples: elements of the axes that neither reduces; has_samples: there are such axes.
    """

    rows: PersistentFacts
    has_row_results: bool
    column_results: int
    column_accumulator_bits: int
    column_bits: int
    has_single_axes: bool = False
    begins_with_units: bool = True
    row_inputs: int = 1
    row_outputs: int = 1
    row_folds: int = 1
    online: TwoSidedFacts | None = None
    samples: int = 1
    has_samples: bool = False


class TwoSidedAnalysis(RowAnalysis):
    """The facts that do not depend on sizes. shape: of the row reductions; columns: of the others; samples: the loops that neither reduces; single_samples:
    the axes of one element that neither reduces; column_tensors: column results and the tensors that depend on them."""

    can_read_singly = False

    def __init__(
        self, fusion: Fusion, axes: LoopAxes, shape: ReductionShape, columns: ReductionShape, column_tensors: set[TensorView], buffers: PersistentBuffers,
        single_samples: Set[IterDomain],
    ) -> None:  # fmt: skip
        self.axes, self.shape, self.columns, self.column_tensors, self.buffers = axes, shape, columns, column_tensors, buffers
        self.samples, self.single_samples = frozenset(shape.order) - shape.reduced - columns.reduced, single_samples
        of_columns = column_operands(column_tensors)
        inputs = loads(fusion)
        outputs = fusion.tensor_outputs()
        reduced = shape.reduced
        row_side = [t for t in inputs if t not in of_columns or any(not set(u.outputs) <= column_tensors for u in t.uses())]
        self.row_outputs = [t for t in outputs if axes.stored(t) & reduced and t not in column_tensors]
        self.column_outputs = [t for t in outputs if t in column_tensors]
        self.limits = VectorLimits(axes, shape.order, [*row_side, *self.row_outputs])
        self.row_inputs = [t for t in row_side if axes.stored(t) & reduced and axes.stored(t) & columns.reduced]
        self.broadcast_inputs = [t for t in row_side if axes.stored(t) & reduced and t not in self.row_inputs]
        self.column_inputs = [t for t in inputs if t in of_columns]
        vectorizable = self.limits.vectorizable
        self.max_dtype_bits, self.min_dtype_bits = dtype_bits(vectorizable, [*inputs, *outputs])
        self.vectorizable_inputs = sum(any(t is v for v in vectorizable) for t in self.row_inputs)
        row_exprs = [e for e in fusion.tensor_exprs() if any(axes.concrete(o) & reduced and o not in column_tensors for o in e.outputs)]  # type: ignore[arg-type]
        self.cost: OpCost = cost_of(row_exprs, wide_tensors(fusion))
        results = [o for e in shape.reductions for o in e.outputs]
        self.reductions, self.accumulator_bits = len(results), sum(o.dtype().bits for o in results)  # type: ignore[attr-defined]
        self.min_vector_elems, self.vector_bits = min_vector_elems(outputs), thread_vector_bits(vectorizable, outputs)
        self.outputs, self.blocks = outputs, block_needs(fusion, axes, shape.order[-1])
        self.has_single_axes = any(_has_single_axes(t, axes) for t in (shape.reference, columns.reference))
        self.late_input_bits = sum(t.dtype().bits for t in self.row_inputs if buffers.first_pass.get(t, 0) > 0)
        self.row_folds = max((MONOIDS[e.attributes["kind"]].lane_folds for e in shape.reductions if isinstance(e, ReductionOp)), default=1)
        self.online: TwoSidedAnalysis | None = None
        """The analysis of the fusion with each maximum and the sum of exponentials relative to it as one reduction."""

    def facts(self, env: Sizes, alignment_bits: Alignments) -> TwoSidedFacts:
        """Return the facts for these sizes."""
        extents, buffers = self.axes.extents_elems(env), self.buffers
        rows = PersistentFacts(
            **self.kept_facts(extents),
            **self.shared_facts(env, alignment_bits, extents),
        )
        samples = max(1, math.prod(extents[n] for n in self.samples))
        rows = replace(rows, iteration_elems=rows.iteration_elems // samples)
        accumulators = sum(o.dtype().bits for e in self.columns.reductions for o in e.outputs)  # type: ignore[attr-defined]
        moved = sum(t.dtype().bits for t in (*self.column_outputs, *self.column_inputs))
        begins_with_units = all(alignment_bits.get(t.name, BULK_BYTES * 8) % (BULK_BYTES * 8) == 0 for t in self.row_inputs)
        return TwoSidedFacts(
            rows, buffers.passes > 1, len(self.columns.reductions), accumulators, moved, self.has_single_axes, begins_with_units,
            len(self.row_inputs), len(self.row_outputs), self.row_folds, None if self.online is None else self.online.facts(env, alignment_bits),
            samples, bool(self.samples or self.single_samples),
        )  # fmt: skip

    def is_sample(self, axis: IterDomain) -> bool:
        """True for an axis of a reduction's result that neither kind of reductions reduces."""
        return self.axes.of(axis) in self.samples or self.axes.maps.exact(axis) in self.single_samples


def column_operands(column_tensors: set[TensorView]) -> set[TensorView]:
    """Return the tensors that are read together with column results, back to the inputs."""
    found: set[TensorView] = set()
    stack = [t for tensor in column_tensors if not _is_total(tensor) for t in _operands(tensor) if t not in column_tensors]
    while stack:
        tensor = stack.pop()
        if tensor not in found:
            found.add(tensor)
            stack += _operands(tensor)
    return found


def _operands(tensor: TensorView) -> list[TensorView]:
    definition = tensor.definition()
    return [] if definition is None else definition.tensor_inputs


def _is_total(tensor: TensorView) -> bool:
    """True for the output of a reduction."""
    return any(a.is_reduction() for a in tensor.get_logical_domain())


def analyze_two_sides(fusion: Fusion, axes: LoopAxes | None = None) -> TwoSidedAnalysis | Obstacle:
    """Return the size-independent facts of a fusion with row and column reductions, or why it is not one."""
    if not is_connected(fusion):
        return Obstacle("the outputs fall into groups that share no tensor")
    if not any(isinstance(v, TensorView) for v in fusion.inputs()):
        return Obstacle("there is no tensor input")
    if reason := bad_source(fusion):
        return Obstacle(reason)
    axes = axes or loop_axes(fusion)
    shapes = reduction_shapes(fusion, axes)
    if isinstance(shapes, Obstacle):
        return shapes
    if len(shapes) != 2:
        return Obstacle(f"the reductions run over {len(shapes)} sets of axes; this template takes two, rows and columns")
    inner = next((s for s in shapes if s.is_inner), None)
    if inner is None:
        return Obstacle("no reduction runs over the innermost axis")
    outer = shapes[1] if inner is shapes[0] else shapes[0]
    loops = frozenset(inner.order)
    if not inner.reduced or not outer.reduced:
        return Obstacle("the reduced axes have only one element")
    if outer.reduced & inner.reduced:
        return Obstacle(f"{outer.reference} reduces an axis that {inner.reference} reduces, too")
    read_elsewhere = looked_up_only(fusion)
    for tensor in axes.tensors:
        if tensor not in read_elsewhere and not axes.concrete(tensor) <= loops:
            return Obstacle(f"{tensor} has an axis that the reductions do not have")
    totals: list[TensorView] = [e.outputs[0] for e in outer.reductions]  # type: ignore[misc]
    of_one = [_axes_of_one_element(t, axes) for t in totals]
    kept = _axes_of_one_element(inner.reference, axes)
    samples = kept.intersection(*of_one)
    of_one, kept = [own - samples for own in of_one], kept - samples
    stuck = next((t for t, own in zip(totals, of_one) if own & kept), totals[0] if kept and all(of_one) else None)
    if stuck is not None:
        return Obstacle(f"{inner.reference} keeps an axis of one element that cannot be merged with the rows that {stuck} reduces")
    column_tensors, kept_by_columns = behind(fusion, outer), loops - outer.reduced
    if (samples or kept_by_columns != inner.reduced) and (kept or any(of_one)):
        return Obstacle(f"{totals[0]} keeps axes that {inner.reference} keeps, too, and only one of them has an axis of one element")
    if without := _without_loops(fusion, axes, inner, outer, column_tensors) or _apart(fusion, axes, inner, column_tensors | read_elsewhere):
        return Obstacle(without)
    for tensor in column_tensors:
        if not axes.stored(tensor) <= kept_by_columns or tensor in {o for e in inner.reductions for o in e.outputs}:
            return Obstacle(f"{tensor} is computed from a column reduction and has an axis of the rows")
        if any(not _is_total(tensor) and axes.stored(t) & outer.reduced for t in _operands(tensor)):
            return Obstacle(f"{tensor} is computed from a column reduction and from a tensor that varies over the rows")
    buffers = persistent_buffers(fusion, axes, inner, kept_by_columns)
    return buffers if isinstance(buffers, Obstacle) else TwoSidedAnalysis(fusion, axes, inner, outer, column_tensors, buffers, samples)


def _without_loops(fusion: Fusion, axes: LoopAxes, inner: ReductionShape, outer: ReductionShape, column_tensors: set[TensorView]) -> str | None:
    """Return a tensor that neither the loops over rows nor those over columns compute, or None."""
    columns = frozenset(inner.order) - outer.reduced
    for total in (e.outputs[0] for e in outer.reductions):
        operand = _operands(total)[0]  # type: ignore[arg-type]
        if not columns <= axes.concrete(operand):
            return f"{total} reduces {operand}, which repeats over some of the columns"
    for output in fusion.outputs():
        if isinstance(output, TensorView) and output not in column_tensors and not axes.concrete(output) & outer.reduced:
            return f"{output} does not depend on a column reduction and has no rows"
    for tensor in column_operands(column_tensors):
        if not _operands(tensor) and tensor.definition() is not None and not columns <= axes.concrete(tensor):
            return f"{tensor} is needed for the column results, but has only some of the columns"
    return None


def _apart(fusion: Fusion, axes: LoopAxes, inner: ReductionShape, others: set[TensorView]) -> str | None:
    """Return a reduction of rows that no tensor of whole rows connects with the others, so that it would not get their loops; or None."""
    results = {e.outputs[0] for e in inner.reductions}
    groups = components(fusion, lambda t: t in results or t not in others and inner.reduced <= axes.concrete(t))
    of_reference = next(group for group in groups if inner.reference in group)
    apart = next((t for t in axes.tensors if t in results and t not in of_reference), None)
    return None if apart is None else f"{apart} and {inner.reference} reduce rows that have no tensor in common"


def behind(fusion: Fusion, columns: ReductionShape) -> set[TensorView]:
    """Return the results of `columns` and all that is computed from them."""
    found: set[TensorView] = {o for e in columns.reductions for o in e.outputs}  # type: ignore[misc]
    for expr in fusion.tensor_exprs():
        if any(t in found for t in expr.tensor_inputs):
            found.update(expr.outputs)  # type: ignore[arg-type]
    return found


def _axes_of_one_element(tensor: TensorView, axes: LoopAxes) -> set[IterDomain]:
    """Return the axes of one element of a reduction's output, each as the representative of its class."""
    return {axes.maps.exact(a) for a in tensor.get_logical_domain() if a.is_broadcast()}


def _has_single_axes(tensor: TensorView, axes: LoopAxes) -> bool:
    """True if an axis of one element is inside an axis that has a loop."""
    has_loop = [axes.of(a) is not None for a in tensor.get_logical_domain()]
    return True in has_loop and not all(has_loop[has_loop.index(True) :])
