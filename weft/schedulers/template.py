"""What every template does to a clone of a fusion: caches of inputs and outputs, propagation, vector lanes, inlining.

Owns no loop; those of a reference tensor are in `rows.py`. Tensors keep their names when a fusion is cloned, so an analysis of one clone speaks of another by
name. Read first: `Template`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..analysis.axes import axis_maps, is_row_major
from ..analysis.loop_axes import LoopAxes
from ..expr import const
from ..errors import InternalError
from ..ir.block_ops import BlockFoldOp, sample_of
from ..ir.enums import CacheOp, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import IterDomain, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, TensorView
from ..ops.monoids import MONOIDS, StateMonoid
from ..schedule.caching import cache_and_fork_outputs, cache_inputs
from ..schedule.inline import inline_to
from ..schedule.primitives import reorder
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.rfactor import rfactor

BOUND = (
    ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z, ParallelType.block_x, ParallelType.block_y, ParallelType.block_z,
)  # fmt: skip


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

    def loads_in_vectors(self, names: Iterable[int]) -> list[TensorView]:
        """The same without results of lookups that are not among `names`."""
        wanted = set(names)
        return [*(cache for _, cache in self.inputs), *(result for name, result in self.lookups if name in wanted)]

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
        read. kept: names of inputs that another kernel reads afterwards, so that L2 should keep them. Kernels that write as much as they read become slower.
        Measured: docs/constants.md.
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
