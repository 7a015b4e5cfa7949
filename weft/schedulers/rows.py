"""Shared by the templates: caches, the canonical loops of a reference tensor, vectorization, and inlining.

Tensors keep their names when a fusion is cloned, so an analysis of one clone speaks of another by name.
Read first: `Template`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.axes import axis_maps, is_row_major
from ..analysis.lookups import in_memory
from ..analysis.loop_axes import LoopAxes
from ..analysis.reduction_shape import ReductionShape
from ..analysis.vectorization import VectorLimits
from ..expr import Sym, const, variables
from ..errors import InternalError
from ..ir.block_ops import BlockFoldOp, sample_of
from ..ir.enums import CacheOp, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import IterDomain, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, TensorView
from ..ops.monoids import MONOIDS, StateMonoid
from ..schedule.caching import cache_and_fork_outputs, cache_inputs
from ..schedule.inline import inline_to
from ..schedule.peel import Peel, Phase
from ..schedule.primitives import merge, reorder, split
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.rfactor import rfactor


class Template:
    """A clone of a fusion being scheduled, with its caches.

    inputs: (global input, register cache); lookups: (name in the analysis, result in registers) of reads of inputs at computed positions;
    outputs: (local tensor, global output). name_of: global output -> its name in the analysis; if the output was forked, the local tensor has that name now.
    reductions: outputs of the reduction ops.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        lookups = [(e.outputs[0], e) for e in fusion.tensor_exprs() if isinstance(e, LookupOp)]
        names = {t.name for t in fusion.tensor_outputs()}
        self.inputs = cache_inputs(fusion)
        self.outputs = cache_and_fork_outputs(fusion)
        self.name_of = {output: output.name if output.name in names else local.name for local, output in self.outputs}
        self.lookups: list[tuple[int, TensorView]] = [(t.name, e.outputs[0]) for t, e in lookups]  # type: ignore[misc]
        self.reductions: list[TensorView] = [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp)]  # type: ignore[misc]

    @property
    def loads(self) -> list[TensorView]:
        """The tensors that are loaded from global memory into registers."""
        return [*(cache for _, cache in self.inputs), *(result for _, result in self.lookups)]

    def tensor(self, name: int) -> TensorView:
        """Return the tensor called T`name`."""
        return next(t for t in self.fusion.tensors() if t.name == name)

    def reduction_behind(self, name: int) -> TensorView:
        """Return the reduction output T`name`, or the one that T`name` is a copy of since outputs were cached."""
        tensor = self.tensor(name)
        while not isinstance(tensor.definition(), ReductionOp):
            tensor = tensor.definition().tensor_inputs[0]  # type: ignore[union-attr]
        return tensor

    def stream(self, axes: LoopAxes, loops: Iterable[int], kept: Collection[int] = ()) -> None:
        """Give loads of inputs that depend on all `loops` the streaming (evict first) cache policy, because each element is read once. For kernels that mostly
        read. kept: names of inputs that another kernel reads afterwards. Source: measured on an H200 after a flush that leaves L2 dirty, bf16 16384x4096: row
        sums go from 0.87 to 0.97 of a copy, but RMS norm falls from 0.99 to 0.96 and silu * y from 1.01 to 0.98. Without it, on an H100: softmax of 8M elements
        in two kernels 23.0 to 19.8 us.
        """
        full = frozenset(loops)
        names = {t.name for t in axes.tensors if t.is_fusion_input and axes.stored(t) == full and t.name not in kept}
        for source, cache in self.inputs:
            definition = cache.definition()
            if source.name in names and isinstance(definition, LoadStoreOp):
                definition.cache_op = CacheOp.streaming

    def propagate(self, reference: TensorView) -> None:
        """Give every tensor the transforms of `reference`."""
        transform_like(reference)

    def bind(self, reference: TensorView) -> None:
        """Give every tensor the parallel types and unswitched loops of `reference`."""
        parallelize_like(reference, selected_parallel_types={*BOUND, ParallelType.unswitch})

    def vectorize(self, names: Iterable[int], lanes: int, also: Iterable[TensorView] = (), stored: Iterable[int] = ()) -> None:
        """Vectorize loads and stores of the named inputs and outputs by `lanes` elements; also casts to narrow floats and random numbers in the same loops.
        stored: names of outputs of which only the stores are vectorized, such as results of lookups that are not read in vectors. also: copies made by the
        template; one that loads an input again is vectorized only if the input is named, because others are not contiguous along the lanes.
        """
        if lanes == 1:
            return
        wanted = set(names)
        of_stores = wanted.union(stored)
        for expr in self.fusion.tensor_exprs():
            if isinstance(expr, BlockFoldOp):  # ops up to the store of a scale stay in one loop over the lanes, where the compiler computes them once
                set_lanes(expr.outputs[0])  # type: ignore[arg-type]
        for copy in also:
            source = copy.definition().tensor_inputs[0]  # type: ignore[union-attr]
            if isinstance(copy.definition(), LookupOp):
                continue  # handled under its name in `lookups`
            if not source.is_fusion_input or source.name in wanted:
                set_lanes(copy)
        for source, cache in self.inputs:
            if source.name in wanted:
                set_lanes(cache)
                if cache.dtype().is_narrow_float:  # converted two at a time
                    for use in cache.uses():
                        if isinstance(use, PointwiseOp) and use.op_name == "cast":
                            set_lanes(use.outputs[0])  # type: ignore[arg-type]
        for name, result in self.lookups:
            if name in wanted:
                set_lanes(result)
        for local, output in self.outputs:
            if isinstance(local.definition(), LookupOp) and not (output.get_loop_domain() and is_row_major(output, output.axis(-1))):
                continue  # under this name the analysis has the layout of the lookup's source
            if sample_of(output) is None and self.name_of[output] in of_stores and _varies_along_lanes(local):
                set_lanes(output)
                definition = local.definition()
                if isinstance(definition, PointwiseOp) and definition.op_name == "cast" and local.dtype().is_reduced_float and lanes % 2 == 0:
                    if isinstance(source := definition.inputs[0], TensorView) and has_lanes(source) and self._have_equal_lanes(source, local):
                        set_lanes(local)
        random: list[TensorView] = [e.outputs[0] for e in self.fusion.tensor_exprs() if isinstance(e, RandomOp)]  # type: ignore[misc]
        if lanes % 4 == 0 and random:
            maps = axis_maps(self.fusion)
            innermost = (t.axis(-1) for t in self.fusion.tensors() if t.get_loop_domain())
            vectors = {maps.exact(a) for a in innermost if a.parallel is ParallelType.vectorize and a.sym is const(lanes)}  # others: of an earlier call
            for tensor in random:
                lane = tensor.axis(-1) if tensor.get_loop_domain() else None
                if tensor.dtype().bits == 32 and lane is not None and maps.exact(lane) in vectors and is_row_major(tensor, lane):
                    set_lanes(tensor)

    def _have_equal_lanes(self, source: TensorView, result: TensorView) -> bool:
        """True if neighbouring lanes of a result are neighbours in the registers of its source: a transposed source has them in another order."""
        maps = axis_maps(self.fusion)
        return maps.exact(source.axis(-1)) is maps.exact(result.axis(-1))

    def rfactor_others(self, reference: TensorView, partial: TensorView, nested: Collection[int] = ()) -> None:
        """Apply the rfactor of `reference` into `partial` and a rest to every other reduction. Errors: InternalError for one with loops other than those of the
        reference, such as after a lookup that reorders their axis.
        """
        serial = [n for n, axis in enumerate(partial.get_loop_domain()) if axis.is_reduction()]
        is_serial = [axis.is_reduction() for axis in partial.get_loop_domain() if axis.is_reduction() or axis.is_rfactor]
        for other in self.reductions:
            if other.name in nested:
                rfactor(other, [n for n in serial if other.axis(n).is_reduction()])
            elif other is not reference:
                reduced = [n for n, axis in enumerate(other.get_loop_domain()) if axis.is_reduction()]  # it may lack axes of extent 1 that the reference has
                if len(reduced) != len(is_serial):
                    raise InternalError(f"{other} does not have the loops of {reference}, with which it is to be computed")
                rfactor(other, [n for n, serial in zip(reduced, is_serial, strict=True) if serial])

    def group_reductions(self, position: int) -> None:
        """Group the elements of loop axis `position` (rows or lanes of one thread) in reductions across threads, so that they are reduced together."""
        for tensor in self.reductions:
            tensor.axis(position).parallelize(ParallelType.group)

    def fold_vectors(self, lanes: int) -> None:
        """Let partial results with a state of several fields absorb vectors along the innermost axis, if their monoid has a cheaper way for this."""
        for expr in self.fusion.tensor_exprs() if lanes > 1 else ():
            if isinstance(expr, ReductionOp):
                monoid, out = MONOIDS[expr.attributes["kind"]], expr.tensor_outputs[0]
                is_first = expr.tensor_inputs[0].dtype() is not out.dtype()
                if isinstance(monoid, StateMonoid) and monoid.takes_vectors and is_first and out.axis(-1).is_reduction():
                    out.axis(-1).parallelize(ParallelType.vectorize)

    def inline_fixed(self, fixed: dict[TensorView, int], row_axes: int, not_inlined: Sequence[TensorView] = (), *, is_across: bool = False) -> None:
        """Inline `fixed` at its positions, tensors that are constant within a row no deeper than the `row_axes` outer axes, all others as deep as possible.
        is_across: the rows lie across memory, so threads and lanes are columns, and tensors that depend only on these are constant within a row.
        """
        limits = dict(fixed)
        for tensor in self.fusion.tensors():
            inner = tensor.get_loop_domain()[row_axes:]
            varying = [a for a in inner if a.is_iteration() and not (is_across and (a.parallel.is_bound or a is inner[-1]))]
            if not varying and not any(a.is_reduction() for a in inner):
                limits[tensor] = min(row_axes, limits.get(tensor, row_axes))
        limits.update(dict.fromkeys(not_inlined, row_axes))
        inline_to(self.fusion, {t: limits.get(t, len(t.get_loop_domain())) for t in self.fusion.tensors()})


def whole_warps(bdimx: int, bdimy: int = 1, bdimz: int = 1) -> int:
    """Return `bdimx`, or the next multiple of a warp if the block would have a partial warp, because shuffles name all 32 lanes."""
    return bdimx if bdimx * bdimy * bdimz % 32 == 0 else -(-bdimx // 32) * 32


@dataclass
class Rows:
    """The canonical loops of a reduction's output, as axes: [rows | outer | row | single | vector].

    rows: the axes that are not reduced, merged; None if there are none. outer: the outer reduced runs, merged, if kept separate. row: the (inner) reduced run
    without its vector, merged with the outer ones if these are not kept separate. single: axes of one iteration (expanded ones, too) if there are no rows to
    merge them with. A tensor without them, such as an expanded input after its squeeze, shares only the loops outside of them.
    """

    rows: IterDomain | None
    outer: IterDomain | None
    row: IterDomain
    single: list[IterDomain]
    vector: IterDomain


def canonical_rows(
    tensor: TensorView, shape: ReductionShape, axes: LoopAxes, vector_elems: int, *, keep_outer: bool, is_phased: bool = False, inner_axes: int = 0
) -> Rows:  # fmt: skip
    """Transform the loops of a reduction over the innermost run to the canonical order.

    Before: loops are the logical axes.   After: [rows?, outer?, row, single, vector], in memory order, each run merged.
    is_phased: vectors are aligned in memory wherever rows begin. inner_axes: number of innermost loops in the inner run; 0: all of the last run.
    """
    domain = tensor.domain()
    order = class_order(tensor, shape, axes)
    arrange(tensor, order)
    run = inner_axes or len(shape.runs[-1].classes)
    merge_run(tensor, len(domain.loop) - run, run)
    split(tensor, -1, vector_elems, is_phased=is_phased)
    row, vector = domain.loop[-2:]
    reduced = [a for a in domain.loop[:-2] if a.is_reduction()]
    kept = [a for a in domain.loop[:-2] if not a.is_reduction()]
    kept, single = ([], kept) if all(a.is_broadcast() for a in kept) else (kept, [])
    arrange_axes(tensor, [*kept, *reduced, row, *single, vector])
    rows = merge_axes_at(tensor, 0, len(kept))
    at = 1 if kept else 0
    outer = merge_axes_at(tensor, at, len(reduced))
    if outer is not None and not keep_outer:
        merge(tensor, at, at + 1)
        outer, row = None, tensor.axis(at)
    return Rows(rows, outer, row, single, vector)


def peel_of(shape: ReductionShape, axes: LoopAxes, fill: str, batches: int, phase: Phase | None = None) -> Peel | None:
    """Return how rows kept in `batches`, with `fill` as in the params, are peeled; None if there is nothing to peel. Bounds also stay if a result depends only
    on the outer runs of a row: its loops are split into batches like the row, but are not full when the row is.
    """
    if fill == "partial" or any(t.is_fusion_output and lies_in_outer_runs(t, shape, axes) for t in axes.tensors):
        return None if phase is None else Peel(phase=phase)
    return Peel.filled(row_sizes(shape), batches, fill, phase=phase)


def row_sizes(shape: ReductionShape) -> frozenset[Sym]:
    """Return the variables of a row's length that rows do not share."""
    logical = shape.reference.get_logical_domain()
    row, others = ({v for a in logical if a.is_reduction() is kind for v in variables(a.sym)} for kind in (True, False))
    return frozenset(row - others)


def lies_in_outer_runs(tensor: TensorView, shape: ReductionShape, axes: LoopAxes) -> bool:
    """True when rows end in memory, and `tensor` varies over reduced axes, but has none of the innermost run, which is cut into vectors."""
    return shape.is_inner and bool(axes.stored(tensor) & shape.reduced) and not axes.concrete(tensor) & set(shape.runs[-1].classes)


def phase_of_rows(rows: Rows, params: Any, limits: VectorLimits, blocks: ParallelType | None) -> Phase:
    """Return what the phase of a row depends on. Before: the row is not split among threads. blocks: the blocks that share a row."""
    return phase_of(rows.rows, rows.row.definition().inputs[0], params, limits, blocks)  # type: ignore[union-attr, arg-type]


def phase_of(rows: IterDomain | None, row: IterDomain, params: Any, limits: VectorLimits, blocks: ParallelType | None) -> Phase:
    """Return what the phase of a row depends on. params: of any scheduler that has `is_phased` and `is_tailed`. blocks: the blocks that share a row."""
    aligned = [in_memory(t) for t in limits.vectorizable] if params.is_tailed else limits.phased
    return Phase(rows, row.sym, params.vector_elems, frozenset(t.name for t in aligned), blocks, params.is_tailed)


def names_in_vectors(limits: VectorLimits, position: int, params: Any) -> list[int]:
    """Return the names of the inputs and outputs that are accessed in vectors. With a phase, these are the whole rows, and outputs with aligned vectors.
    position: number of loops outside of a row. params: of any scheduler that has `is_phased` and `is_tailed`.
    """
    return [t.name for t in limits.in_vectors(position, params.is_phased and not params.is_tailed)]


def class_order(tensor: TensorView, shape: ReductionShape, axes: LoopAxes) -> list[int]:
    """Positions of the loop axes of `tensor` in the order of `shape`; axes of one iteration first."""
    return places_in_order(shape.reference.get_logical_domain(), shape.order, axes)


def places_in_order(domain: Sequence[IterDomain], order: Sequence[int], axes: LoopAxes) -> list[int]:
    """Positions of the axes of `domain` in the order of their classes; axes of one iteration first."""
    classes = [axes.of(a) for a in domain]
    place = {n: k for k, n in enumerate(order)}
    return sorted(range(len(classes)), key=lambda k: (-1 if classes[k] is None else place[classes[k]], k))  # type: ignore[index]


def merge_axes_at(tensor: TensorView, first: int, count: int) -> IterDomain | None:
    """Merge `count` loop axes from `first` on; return the result, None if there are none."""
    if count == 0:
        return None
    merge_run(tensor, first, count)
    return tensor.axis(first)


def merge_two_runs(tensor: TensorView, outer: int, inner: int) -> tuple[list[IterDomain], IterDomain, IterDomain]:
    """Merge the `inner` innermost loop axes, and the `outer` ones before them, at least one each; return the number of axes before both, and both."""
    first = len(tensor.get_loop_domain()) - inner
    merge_axes_at(tensor, first, inner)
    merge_axes_at(tensor, first - outer, outer)
    *left, of_outer, of_inner = tensor.get_loop_domain()
    return left, of_outer, of_inner


def split_axis(
    tensor: TensorView, axis: IterDomain, factor: int, inner_split: bool = True, multiple: int = 1, *, is_phased: bool = False
) -> tuple[IterDomain, IterDomain]:
    """Split a loop axis given as an axis; return (outer, inner)."""
    position = tensor.get_loop_domain().index(axis)
    split(tensor, position, factor, inner_split, multiple=multiple, is_phased=is_phased)
    return tensor.axis(position), tensor.axis(position + 1)


def positions(tensor: TensorView, axes: Iterable[IterDomain]) -> list[int]:
    return [tensor.get_loop_domain().index(a) for a in axes]


def arrange_axes(tensor: TensorView, axes: Sequence[IterDomain]) -> None:
    """Reorder all loop axes of `tensor` as given."""
    arrange(tensor, positions(tensor, axes))


BOUND = (
    ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z, ParallelType.block_x, ParallelType.block_y, ParallelType.block_z,
)  # fmt: skip


def has_lanes(tensor: TensorView) -> bool:
    """True if the innermost loop axis is the vector axis of the template and the tensor depends on it."""
    loop = tensor.get_loop_domain()
    return bool(loop) and loop[-1].is_iteration() and tensor.memory_type is MemoryType.local


def set_lanes(tensor: TensorView) -> None:
    """Make the innermost loop of a tensor the vector lanes of its accesses. Axes of one element without a loop may be inside of it; the lanes are moved behind
    them. A tensor whose innermost loop is bound to threads has one element for all lanes, and stays as it is.
    """
    loop = tensor.get_loop_domain()
    if tensor.dtype().is_packed:  # must be written in whole bytes, so repeated axes may be inside of the lanes
        loop = [a for a in loop if not a.is_broadcast()]
    last = _place_of_lanes(tensor, loop)
    if last is None or not loop[last].is_iteration() or loop[last].parallel in BOUND:
        return
    loop[last].parallelize(ParallelType.vectorize)
    if last < len(loop) - 1 and not tensor.dtype().is_packed:
        reorder(tensor, {last: -1})


def _varies_along_lanes(local: TensorView) -> bool:
    """False for a value that all lanes share: it is one element, of which no vector can be stored."""
    loop = local.get_loop_domain()
    place = _place_of_lanes(local, loop)
    return local.dtype().is_packed or place is None or not loop[place].is_broadcast()


def _place_of_lanes(tensor: TensorView, loop: Sequence[IterDomain]) -> int | None:
    """Return the position of the innermost of these loop axes, ignoring axes of one element without a loop."""
    own = tensor.get_logical_domain()
    return next((n for n in reversed(range(len(loop))) if not (loop[n].is_broadcast() and loop[n] in own)), None)


def arrange(tensor: TensorView, order: Sequence[int]) -> None:
    """Reorder the loop axes of `tensor`: new position n holds what was at order[n]."""
    reorder(tensor, {old: new for new, old in enumerate(order)})


def merge_run(tensor: TensorView, first: int, count: int) -> None:
    """Merge `count` neighbouring loop axes from position `first` on into one."""
    for _ in range(count - 1):
        merge(tensor, first, first + 1)
