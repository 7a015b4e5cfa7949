"""The facts that heuristics may use: numbers about a fusion, for one set of sizes.

Owns the facts of each scheduler and their construction from the analyses. An `...Analysis` is the part that does not depend on sizes: make it once
per fusion, then `facts(env, alignment_bits)` is cheap. `env` maps the variables of the fusion's extents and strides to integers;
`alignment_bits` maps an input's name (`TensorView.name`) to the alignment of its first element, and inputs left out are fully aligned.
Read first: `PersistentFacts`, `analyze_persistent`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..analysis.blocks import block_needs, moved_bits
from ..analysis.broadcast_bits import BroadcastBits, broadcast_bits
from ..analysis.connected import is_connected
from ..analysis.index_work import IndexWork, index_work
from ..analysis.lookups import bad_source, loads, lookup_of
from ..analysis.loop_axes import LoopAxes, Obstacle, loop_axes, loop_order, pointwise_reference
from ..analysis.op_cost import OpCost, cost_of
from ..analysis.precision import wide_tensors
from ..analysis.persistent import PersistentBuffers, persistent_buffers
from ..analysis.reduction_shape import ReductionShape, reduced_classes, reduction_exprs, reduction_shapes, without_rows
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits
from ..ir.block_ops import SWIZZLED, sample_of
from ..ir.fusion import Fusion
from ..ir.values import Expr, ReductionOp, TensorView
from ..ops.monoids import MONOIDS, StateMonoid
from .base import Alignments, Decline, Sizes
from .packed import min_vector_elems, thread_vector_bits, why_not_vectors

@dataclass(frozen=True, slots=True)
class PointwiseFacts:
    """A fusion without reductions, whose loops are the axes of one output.

    extents_elems: loops, outermost first, in memory order. vector_limit_elems[p], broadcast[p]: for the loops from p on merged (p = 0: all). max_dtype_bits,
    min_dtype_bits: over the tensors that a vector access can be used on (all inputs and outputs when there is none).
    vectorizable_inputs, vectorizable_outputs: their number. full_inputs: inputs that depend on every loop.
    instructions, mufu: cost per element. min_vector_elems: fewest elements that fill the bytes of every output. vector_bits: see `packed.thread_vector_bits`.
    access_bits: of the widest access that the chip has and alignments allow. read_bits, written_bits: per element, of tensors that depend on every loop.
    divides_rows: with all loops merged, an index needs its row and column, by division. block_elems: neighbours in a row that must be in one thread or in few
    lanes. single_reads: names of inputs that must be read element by element, because their addresses do not allow the vectors that the outputs need.
    phased_limit_elems[p]: as vector_limit_elems, for vectors that need not fill a row; is_tailed[p]: all rows begin with one of these. index_work[p],
    phased_index_work[p]: accesses and divisions of an index there; the second for these vectors.
    spread: (bits of an element, the loops that it depends on) of each input that depends on some loops, but not on all.
    """

    extents_elems: tuple[int, ...]
    vector_limit_elems: tuple[int, ...]
    broadcast: tuple[BroadcastBits, ...]
    max_dtype_bits: int
    min_dtype_bits: int
    vectorizable_inputs: int
    vectorizable_outputs: int
    full_inputs: int
    instructions: int
    mufu: int
    has_exp: bool
    has_rng: bool
    min_vector_elems: int
    vector_bits: int = MAX_VECTOR_BITS
    access_bits: int = MAX_VECTOR_BITS
    read_bits: int = 0
    written_bits: int = 0
    divides_rows: bool = False
    block_elems: int = 0
    single_reads: tuple[int, ...] = ()
    phased_limit_elems: tuple[int, ...] = ()
    is_tailed: tuple[bool, ...] = ()
    index_work: tuple[IndexWork, ...] = ()
    phased_index_work: tuple[IndexWork, ...] = ()
    spread: tuple[tuple[int, frozenset[int]], ...] = ()

    @property
    def total_elems(self) -> int:
        return math.prod(self.extents_elems)


class RowShape:
    """Sizes of rows and their runs, common to both kinds of facts below. block_elems: neighbours in a row that must be in one thread or in few lanes."""

    __slots__ = ()
    iteration_elems: int
    reduction_elems: int
    runs: tuple[tuple[bool, int], ...]
    block_elems: int

    @property
    def is_inner(self) -> bool:
        return self.runs[-1][0]

    @property
    def inner_run_elems(self) -> int:
        return self.runs[-1][1]

    @property
    def outer_run_elems(self) -> int:
        """Elements of the reduced runs without the last run, if that is reduced."""
        return self.reduction_elems // max(1, self.inner_run_elems)

    @property
    def dimensions(self) -> int:
        """2: one reduced run and at most one other; 3: the reduced loops, or the others, are in several runs."""
        return 2 if len(self.runs) <= 2 else 3

    @property
    def total_elems(self) -> int:
        return self.iteration_elems * self.reduction_elems


@dataclass(frozen=True, slots=True)
class ReductionFacts(RowShape):
    """A fusion whose reductions reduce the same loops, once.

    runs: (is reduced, extent) of neighbouring loops of one kind, outermost first, in memory order. is_inner: the last run is reduced.
    vector_limit_elems: along the last run. phased_limit_elems, is_tailed: as in `PointwiseFacts`. input_bits, output_bits: bits per element of the loops, of
    inputs and outputs that depend on both reduced and other loops. reductions: results per row; accumulator_bits: bits of their state. results_meet: an
    expression uses two of them. exchange_factor: cost of combining partial results of threads, relative to a sum. can_begin_anywhere: vectors of columns need
    not be aligned, see `VectorLimits`.
    single_reads, access_bits: as in `PointwiseFacts`.
    column_inputs: inputs with one value per column, which a thread keeps while it loops down the column. still_loads: loads for each vector of inputs that
    neighbouring elements share, such as a value per channel.
    """

    iteration_elems: int
    reduction_elems: int
    runs: tuple[tuple[bool, int], ...]
    vector_limit_elems: int
    max_dtype_bits: int
    min_dtype_bits: int
    vectorizable_inputs: int
    input_bits: int
    output_bits: int
    reductions: int
    accumulator_bits: int
    instructions: int
    mufu: int
    has_exp: bool
    has_rng: bool
    min_vector_elems: int
    results_meet: bool = False
    can_begin_anywhere: bool = False
    phased_limit_elems: int = 1
    is_tailed: bool = False
    vector_bits: int = MAX_VECTOR_BITS
    access_bits: int = MAX_VECTOR_BITS
    block_elems: int = 0
    exchange_factor: int = 1
    column_inputs: int = 0
    still_loads: int = 0
    single_reads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PersistentFacts(RowShape):
    """A fusion that uses the result of a reduction over the axes that it reduced.

    As in `ReductionFacts`, and:
    input_bits, output_bits: bits per element of a row that must move. late_input_bits: the part of input_bits that only passes after the first one read.
    broadcast_operand_bits, broadcast_operands: inputs that depend on the reduced loops only (weights), read by every row, from L2; group_operands: those among
    them that differ between groups of rows (a scale per sample). persistent_bits: bits per
    element kept between passes. projected_bits: the same if inputs are kept instead; None if that is impossible. has_lookup: an index tensor, which is read
    first, selects the rows of an input. has_scale_tiles: block scales are stored in tiles of rows and columns. still_axes: number of innermost loops that some
    input does not depend on, although it depends on others of their run (a weight per channel of a group); the last of `runs` is then these loops, and vectors
    do not cross their end. 0: none, or vectors would be too narrow. nested_sums, nested_bits: number of reductions over only the innermost loops of a row,
    whose results are outputs, and bits of one result of each. passes: passes over the row; folded_passes: the same if dependent reductions are combined.
    recompute_instructions, recompute_has_exact_exp: what projection recomputes, per element; has_exact_exp as in `OpCost`.
    """

    iteration_elems: int
    reduction_elems: int
    runs: tuple[tuple[bool, int], ...]
    vector_limit_elems: int
    max_dtype_bits: int
    min_dtype_bits: int
    vectorizable_inputs: int
    input_bits: int
    late_input_bits: int
    output_bits: int
    broadcast_operand_bits: int
    broadcast_operands: int
    persistent_bits: int
    projected_bits: int | None
    recompute_instructions: int
    recompute_has_exact_exp: bool
    passes: int
    reductions: int
    accumulator_bits: int
    instructions: int
    mufu: int
    has_exp: bool
    has_rng: bool
    min_vector_elems: int
    phased_limit_elems: int = 1
    is_tailed: bool = False
    vector_bits: int = MAX_VECTOR_BITS
    access_bits: int = MAX_VECTOR_BITS
    block_elems: int = 0
    still_axes: int = 0
    has_lookup: bool = False
    single_reads: tuple[int, ...] = ()
    has_scale_tiles: bool = False
    nested_sums: int = 0
    nested_bits: int = 0
    folded_passes: int = 2
    group_operands: int = 0


# ---------------------------------------------------------------- from a fusion
def _inputs(fusion: Fusion) -> list[TensorView]:
    return loads(fusion)


def _outputs(fusion: Fusion) -> list[TensorView]:
    return [v for v in fusion.outputs() if isinstance(v, TensorView)]


def _dtype_bits(vectorizable: Sequence[TensorView], every: Sequence[TensorView]) -> tuple[int, int]:
    """Return the bits of the widest and narrowest type of the vectorizable tensors; of all tensors if there is none, 8 without tensors."""
    sizes = [t.dtype().bits for t in vectorizable] or [t.dtype().bits for t in every] or [8]
    return max(sizes), min(sizes)


def _row_exprs(fusion: Fusion, axes: LoopAxes, loops: frozenset[int]) -> list[Expr]:
    """Expressions that run once per element of `loops`, rather than once per row."""
    return [e for e in fusion.tensor_exprs() if any(axes.concrete(o) & loops for o in e.outputs)]  # type: ignore[arg-type]


def single_reads(
    limits: VectorLimits, position: int, wanted_elems: int, outputs: Sequence[TensorView], env: Sizes, alignment_bits: Alignments, vector_bits: int
) -> list[TensorView]:  # fmt: skip
    """Return the inputs and lookups that do not allow the vectors that packed outputs or blocks need, and so are read element by element."""
    if limits.limit_elems(position, env, alignment_bits, vector_bits) >= wanted_elems:
        return []
    others = [t for t in limits.vectorizable if not any(t is o for o in outputs)]
    return [t for t in others if limits.only(t).limit_elems(position, env, alignment_bits, vector_bits) < wanted_elems]


def phased_limit(limits: VectorLimits, position: int, env: Sizes, alignment_bits: Alignments) -> tuple[int, bool]:
    """Return the widest vector for rows (the loops from `position` on) whose length need not be a multiple of it, and whether every row begins aligned."""
    anywhere, tailed = limits.phased_limit_elems(position, alignment_bits), limits.tailed_limit_elems(position, env, alignment_bits)
    return max(anywhere, tailed), tailed > anywhere


NARROW_WORD_ELEMS = 4
"""For rows of 8 or 4 bits: if inputs at odd addresses allow only narrower vectors than this, they are read element by element, so that the others still move
words. One byte at a time takes a register each: a row of 262144 in floats of 8 and 4 bits, one of them at an odd address, spilled 556 bytes of each thread."""


def with_accesses(params: Any, facts: ReductionFacts | PersistentFacts) -> Any:
    """Return params with the accesses of the facts: the inputs that are read element by element, and the bits of the widest access."""
    if facts.single_reads:
        params = replace(params, single_reads=facts.single_reads)
    access_bits = access_bits_of(facts, params.vector_elems)
    return replace(params, access_bits=access_bits) if access_bits > MAX_VECTOR_BITS else params


def access_bits_of(facts: PointwiseFacts | ReductionFacts | PersistentFacts, vector_elems: int) -> int:
    """Return the bits of the widest access of a kernel with such vectors: 128, unless vectors are wider and the chip has wider accesses."""
    return facts.access_bits if vector_elems * facts.max_dtype_bits > MAX_VECTOR_BITS else MAX_VECTOR_BITS


class PointwiseAnalysis:
    """The facts of a pointwise fusion that do not depend on sizes. `reference` has the loops; `order` names them in memory order."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, reference: TensorView) -> None:
        self.axes, self.reference = axes, reference
        inputs, outputs = _inputs(fusion), _outputs(fusion)
        stored = axes.stored(reference)
        self.order = loop_order(axes, [n for n in axes.logical_order(reference) if n in stored], [reference, *outputs, *inputs])
        self.limits = VectorLimits(axes, self.order, [*inputs, *outputs])
        self.broadcast = broadcast_bits(axes, self.order, [*inputs, *outputs])
        vectorizable = self.limits.vectorizable
        self.max_dtype_bits, self.min_dtype_bits = _dtype_bits(vectorizable, [*inputs, *outputs])
        self.vectorizable_inputs = sum(map(set(vectorizable).__contains__, inputs))
        self.vectorizable_outputs = sum(map(set(vectorizable).__contains__, outputs))
        self.full_inputs = sum(axes.stored(t) == stored for t in inputs)
        self.read_bits = sum(t.dtype().bits for t in inputs if axes.stored(t) == stored)
        self.written_bits = moved_bits([t for t in outputs if axes.stored(t) == stored])
        self.divides_rows = any(sample.layout != "rows" for t in outputs if (sample := sample_of(t)) is not None)
        self.cost = cost_of(fusion.tensor_exprs(), wide_tensors(fusion))
        self.outputs, self.blocks = outputs, block_needs(fusion, axes, self.order[-1] if self.order else None)
        places = [frozenset(n for n, c in enumerate(self.order) if c in axes.stored(t)) for t in inputs]
        self.spread = tuple((t.dtype().bits, found) for t, found in zip(inputs, places) if 0 < len(found) < len(self.order))
        self.index_work, self.phased_index_work = (self._index_work([*inputs, *outputs], is_phased) for is_phased in (False, True))
        self.min_vector_elems, self.vector_bits = max(min_vector_elems(outputs), self.blocks.least_vector_elems), thread_vector_bits(vectorizable, outputs)

    def facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int = MAX_VECTOR_BITS) -> PointwiseFacts:
        """Return the facts for the choice, at these sizes. max_access_bits: the chip's widest access."""
        extents = self.axes.extents_elems(env)
        single = self._single_reads(env, alignment_bits)
        limits = self.limits.without(single) if single else self.limits
        access_bits, vector_bits = limits.access_bits(alignment_bits, max_access_bits), self.vector_bits
        if access_bits > MAX_VECTOR_BITS:
            vector_bits = max(access_bits, thread_vector_bits(limits.vectorizable, self.outputs, 0, access_bits))
        phased = [] if single or self.needs_vectors else [self._phased_limit(p, env, alignment_bits) for p in range(len(self.order))]
        return PointwiseFacts(
            extents_elems=tuple(extents[n] for n in self.order),
            vector_limit_elems=tuple(limits.limit_elems(p, env, alignment_bits, vector_bits) for p in range(max(1, len(self.order)))),
            broadcast=self.broadcast,
            max_dtype_bits=self.max_dtype_bits,
            min_dtype_bits=self.min_dtype_bits,
            vectorizable_inputs=self.vectorizable_inputs,
            vectorizable_outputs=self.vectorizable_outputs,
            full_inputs=self.full_inputs,
            instructions=self.cost.instructions,
            mufu=self.cost.mufu,
            has_exp=self.cost.has_exp,
            has_rng=self.cost.has_rng,
            min_vector_elems=self.min_vector_elems,
            vector_bits=vector_bits,
            access_bits=access_bits,
            read_bits=self.read_bits,
            written_bits=self.written_bits,
            divides_rows=self.divides_rows,
            block_elems=self.blocks.largest,
            single_reads=tuple(t.name for t in single),
            phased_limit_elems=tuple(elems for elems, _ in phased), is_tailed=tuple(tailed for _, tailed in phased),
            index_work=self.index_work,
            phased_index_work=tuple(self.index_work[p] if tailed else self.phased_index_work[p] for p, (_, tailed) in enumerate(phased)) or self.index_work,
            spread=self.spread,
        )

    def _phased_limit(self, position: int, env: Sizes, alignment_bits: Alignments) -> tuple[int, bool]:
        """As `phased_limit`; (1, False) if an output has one element for several of a row, because it is written in one iteration of the loop over a vector."""
        row = set(self.order[position:])
        if not all(row <= self.axes.stored(t) for t in self.outputs):
            return 1, False
        return phased_limit(self.limits, position, env, alignment_bits)

    def _index_work(self, tensors: Sequence[TensorView], is_phased: bool) -> tuple[IndexWork, ...]:
        places = range(max(1, len(self.order)))
        return tuple(index_work(self.axes, self.order, tensors, self.limits.in_vectors(p, is_phased), p) for p in places)

    def _single_reads(self, env: Sizes, alignment_bits: Alignments) -> list[TensorView]:
        wanted = self.min_vector_elems if self.needs_vectors else 1
        return single_reads(self.limits, 0, wanted, self.outputs, env, alignment_bits, self.vector_bits)

    @property
    def needs_vectors(self) -> bool:
        """True when an output is packed, or blocks of neighbours must be held together."""
        return self.min_vector_elems > 1 or self.blocks.largest > 0

    def why_not_vectors(self, facts: PointwiseFacts, chosen_elems: int) -> Decline | None:
        """Return why vectors of so many elements do not do for packed outputs, or for folds over blocks."""
        return why_not_vectors(self.outputs, self.limits, facts.vector_limit_elems[0], self.blocks, chosen_elems)


def analyze_pointwise(fusion: Fusion, axes: LoopAxes | None = None) -> PointwiseAnalysis | Obstacle:
    """Return the size-independent facts of a pointwise fusion, or why it is not one."""
    found = reduction_exprs(fusion)
    if found:
        return Obstacle(f"{found[0].outputs[0]} reduces")
    if not is_connected(fusion):
        return Obstacle("the outputs fall into groups that share no tensor")
    if reason := bad_source(fusion):
        return Obstacle(reason)
    axes = axes or loop_axes(fusion)
    reference = pointwise_reference(axes)
    return reference if isinstance(reference, Obstacle) else PointwiseAnalysis(fusion, axes, reference)


LEAST_RUN_BITS = 32
"""Bits of an access within a run, from which it is better than wider accesses across the end of runs, whose elements need separate weights."""


def stands_still(tensor: TensorView, axes: LoopAxes, shape: ReductionShape) -> bool:
    """True for a tensor that depends on a row, but is constant over neighbouring elements: the weights of a group norm, one per channel."""
    return shape.is_inner and bool(axes.stored(tensor) & shape.reduced) and shape.order[-1] not in axes.concrete(tensor)


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


class RowAnalysis:
    """What reductions and normalizations have in common: loops, runs, vectors, bits moved, cost."""

    can_read_singly = True
    """Its schedules can read inputs element by element if they do not allow the vectors that other tensors need."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, shape: ReductionShape, buffers: PersistentBuffers, nested: tuple[Expr, ...] = ()) -> None:
        self.axes, self.shape, self.buffers = axes, shape, buffers
        self.nested = nested
        """Reductions over the innermost loops of a row, whose results are outputs; see `why_not_nested`."""
        inputs, outputs = _inputs(fusion), _outputs(fusion)
        loops, reduced = frozenset(shape.order), shape.reduced
        has_rows = loops != reduced
        folds = frozenset().union(*(reduced_classes(e, axes) for e in nested))
        self.row_outputs = [t for t in outputs if axes.stored(t) & (reduced if not nested else folds)]
        # results of the reductions are few and may be stored one by one, so they do not limit the vector
        self.limits = VectorLimits(axes, shape.order, [*inputs, *self.row_outputs])
        vectorizable = self.limits.vectorizable
        along = [t for t in inputs if axes.stored(t) & reduced and not stands_still(t, axes, shape)]
        again = [t for t in along if buffers.passes == 1 or buffers.first_pass.get(t, 0) > 0]  # none of these are kept between passes
        self.group_inputs = [t for t in again if axes.stored(t) - reduced and not loops - reduced <= axes.stored(t) and lookup_of(t) is None]
        """Weights that differ between groups of rows, such as a scale per sample: the rows of a group read them from L2, like other weights. In sums of columns
        also values of rows."""
        self.row_inputs = [t for t in along if (axes.stored(t) - reduced or not has_rows) and t not in self.group_inputs]
        self.broadcast_inputs = [t for t in along if not any(t is r for r in self.row_inputs)]
        self.max_dtype_bits, self.min_dtype_bits = _dtype_bits(vectorizable, [*inputs, *outputs])
        self.vectorizable_inputs = sum(any(t is v for v in vectorizable) for t in self.row_inputs)
        self.cost: OpCost = cost_of(_row_exprs(fusion, axes, reduced), wide_tensors(fusion))
        results = [o for e in shape.reductions for o in e.outputs]
        self.reductions, self.accumulator_bits = len(results), sum(o.dtype().bits for o in results)  # type: ignore[attr-defined]
        self.outputs, self.blocks = outputs, block_needs(fusion, axes, shape.order[-1])
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
            vector_limit_elems=limits.limit_elems(shape.inner_position, env, alignment_bits, vector_bits),
            phased_limit_elems=phased, is_tailed=is_tailed,
            max_dtype_bits=self.max_dtype_bits,
            min_dtype_bits=self.min_dtype_bits,
            vectorizable_inputs=self.vectorizable_inputs,
            input_bits=sum(t.dtype().bits for t in self.row_inputs),
            output_bits=moved_bits(self.row_outputs),
            reductions=self.reductions,
            accumulator_bits=self.accumulator_bits,
            instructions=self.cost.instructions,
            mufu=self.cost.mufu,
            has_exp=self.cost.has_exp,
            has_rng=self.cost.has_rng,
            min_vector_elems=self.min_vector_elems,
            vector_bits=vector_bits,
            access_bits=access_bits,
            block_elems=self.blocks.largest,
            single_reads=tuple(t.name for t in single),
        )

    def _still_axes(self) -> int:
        """Return how many innermost reduced loops some input lacks, although it has others of their run; 0: none, or a result lacks them, too."""
        if self.nested:
            return len(reduced_classes(self.nested[0], self.axes))
        if not self.shape.is_inner or any(stands_still(t, self.axes, self.shape) for t in self.outputs):
            return 0
        run = self.shape.runs[-1].classes
        still = [self.axes.stored(t) for t in _inputs(self.axes.fusion) if stands_still(t, self.axes, self.shape)]
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

    @property
    def needs_vectors(self) -> bool:
        """True when an output is packed, or blocks of neighbours must be held together."""
        return self.min_vector_elems > 1 or self.blocks.largest > 0

    def why_not_vectors(
        self, facts: ReductionFacts | PersistentFacts, chosen_elems: int, *, is_tile: bool = False, turned: Sequence[TensorView] = ()
    ) -> Decline | None:
        """Return why vectors of so many elements do not do for packed outputs, or for folds over blocks.

        is_tile: threads lie along columns. turned: outputs with separate vectors, along columns.
        """
        if self.blocks.largest and not self.shape.is_inner and not is_tile:
            return Decline("the innermost axis is not reduced, but reductions over blocks of elements run along rows")
        outputs = [t for t in self.outputs if not any(t is other for other in turned)]
        return why_not_vectors(outputs, self.limits, facts.vector_limit_elems, self.blocks, chosen_elems)


class ReductionAnalysis(RowAnalysis):
    """A fusion of reductions whose results are not used over the reduced loops."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, shape: ReductionShape, buffers: PersistentBuffers) -> None:
        super().__init__(fusion, axes, shape, buffers)
        self.names_read_again = fusion.read_again
        self.results_meet = _results_meet(fusion, shape)
        columns = frozenset(shape.runs[-1].classes)
        self.column_inputs = sum(not shape.is_inner and bool(axes.stored(t) & columns) and not axes.stored(t) & shape.reduced for t in _inputs(fusion))
        self.has_whole_columns = not shape.is_inner and all(axes.stored(t) & columns in (frozenset(), columns) for t in fusion.tensors())
        """Every tensor has all axes of the columns or none, so a vector that overlaps the one before has one index for all of them."""
        loops = [axes.of(a) for a in shape.reference.get_logical_domain()]
        self.has_simple_columns = self.has_whole_columns and len(loops) > 1 and None not in loops and not any(lookup_of(t) for t in fusion.tensors())
        """The same, and no axis has one element: blocks can divide rows and columns twice (`phased_columns.py`)."""
        self.still_axes = self._still_axes()
        self.exchange_factor = max((MONOIDS[e.attributes["kind"]].exchange_factor for e in shape.reductions if isinstance(e, ReductionOp)), default=1)

    def facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int = MAX_VECTOR_BITS) -> ReductionFacts:
        """Return the facts at these sizes; vectors end where an input changes that neighbouring elements share, unless they would be too narrow."""
        can_begin_anywhere = self.has_whole_columns and self.limits.can_begin_anywhere(self.shape.inner_position, alignment_bits)
        shared = self.shared_facts(env, alignment_bits, self.axes.extents_elems(env), max_access_bits)
        still = sum(stands_still(t, self.axes, self.shape) for t in _inputs(self.axes.fusion))
        if self.still_axes:  # vectors that do not cross the end of a run have one value of each
            limit = self.limits.limit_elems(len(self.shape.order) - self.still_axes, env, alignment_bits, shared["vector_bits"])
            is_within = LEAST_RUN_BITS <= limit * self.max_dtype_bits and self.min_vector_elems <= limit
            shared["vector_limit_elems"] = min(limit, shared["vector_limit_elems"]) if is_within else shared["vector_limit_elems"]
            still *= 1 if is_within else shared["vector_limit_elems"]
        return ReductionFacts(
            **shared, results_meet=self.results_meet, can_begin_anywhere=can_begin_anywhere, exchange_factor=self.exchange_factor,
            column_inputs=self.column_inputs, still_loads=still,
        )  # fmt: skip


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


class PersistentAnalysis(RowAnalysis):
    """A normalization: results of reductions are used over the reduced loops."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, shape: ReductionShape, buffers: PersistentBuffers, nested: tuple[Expr, ...] = ()) -> None:
        super().__init__(fusion, axes, shape, buffers, nested)
        self.still_axes = self._still_axes()
        self.folded_passes = buffers.passes
        """Passes if dependent reductions are combined, as for rows and columns that each pass reads again; the scheduler counts them."""
        self.can_look_up_again = True
        """False if passes with separate lookups would have no common tensor that joins their loops, see `loops_stay_joined`."""

    def facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int = MAX_VECTOR_BITS) -> PersistentFacts:
        """Return the facts at these sizes; the last reduced run is split at the loops that an input lacks (`still_axes`), unless vectors would be too
        narrow."""
        facts = self._facts(env, alignment_bits, max_access_bits)
        if not self.still_axes:
            return facts
        extents, order = self.axes.extents_elems(env), self.shape.order
        limit = self.limits.limit_elems(len(order) - self.still_axes, env, alignment_bits, facts.vector_bits)
        if not self.nested and limit < facts.vector_limit_elems and (limit * facts.max_dtype_bits < LEAST_RUN_BITS or limit < facts.min_vector_elems):
            return facts
        inner = math.prod(extents[n] for n in order[-self.still_axes :])
        is_reduced, run = facts.runs[-1]
        runs = (*facts.runs[:-1], (is_reduced, run // inner), (is_reduced, inner))
        return replace(facts, runs=runs, still_axes=self.still_axes, vector_limit_elems=limit, phased_limit_elems=1)  # a phase needs a row of one run

    def _facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int) -> PersistentFacts:
        extents = self.axes.extents_elems(env)
        buffers = self.buffers
        return PersistentFacts(
            late_input_bits=self.late_input_bits,
            has_lookup=any(lookup_of(t) is not None for t in self.row_inputs),
            has_scale_tiles=any(sample.layout == SWIZZLED for t in self.outputs if (sample := sample_of(t)) is not None),
            broadcast_operand_bits=sum(t.dtype().bits for t in self.broadcast_inputs),
            broadcast_operands=len(self.broadcast_inputs),
            group_operands=len(self.group_inputs),
            persistent_bits=buffers.live_bits(extents, is_projected=False),
            projected_bits=None if buffers.projected is None else buffers.live_bits(extents, is_projected=True),
            recompute_instructions=buffers.recomputed.instructions,
            recompute_has_exact_exp=buffers.recomputed.has_exact_exp,
            passes=buffers.passes,
            folded_passes=self.folded_passes,
            nested_sums=len(self.nested),
            nested_bits=sum(e.tensor_outputs[0].dtype().bits for e in self.nested),
            **self.shared_facts(env, alignment_bits, extents, max_access_bits),
        )


def _analyze_rows(
    fusion: Fusion, axes: LoopAxes | None, *, can_nest: bool = False
) -> tuple[LoopAxes, ReductionShape, PersistentBuffers, tuple[Expr, ...]] | Obstacle:
    if not is_connected(fusion):
        return Obstacle("the outputs fall into groups that share no tensor")
    if reason := bad_source(fusion):
        return Obstacle(reason)
    if not _inputs(fusion):
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
    for tensor in (*_inputs(fusion), *_outputs(fusion)):
        if not axes.concrete(tensor) <= loops:
            return Obstacle(f"{tensor} has an axis that the reduction does not have")
    buffers = persistent_buffers(fusion, axes, shape)
    return buffers if isinstance(buffers, Obstacle) else (axes, shape, buffers, nested)


def analyze_reduction(fusion: Fusion, axes: LoopAxes | None = None) -> ReductionAnalysis | Obstacle:
    """Return the size-independent facts of a fusion of reductions, or why it is not one."""
    found = _analyze_rows(fusion, axes)
    if isinstance(found, Obstacle):
        return found
    if found[2].passes > 1:
        return Obstacle("a reduction's result is broadcast back over the reduced axes (a normalization)")
    without = without_rows(fusion, found[0], found[1])
    if without is not None:
        return Obstacle(f"{without} lacks an axis of the rows, and is computed from values that are repeated over that axis")
    return ReductionAnalysis(fusion, *found[:3])


def analyze_persistent(fusion: Fusion, axes: LoopAxes | None = None) -> PersistentAnalysis | Obstacle:
    """Return the size-independent facts of a normalization, or why it is not one."""
    found = _analyze_rows(fusion, axes, can_nest=True)
    if isinstance(found, Obstacle):
        return found
    if found[2].passes == 1:
        return Obstacle("no reduction's result is broadcast back over the reduced axes, so this is not a normalization")
    return PersistentAnalysis(fusion, *found)
