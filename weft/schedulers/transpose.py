"""Transpose: no reduction, and some inputs lie along another axis than the outputs. Tiles of those inputs turn in shared memory.

    outputs' side   [BIDx = batch * tiles, serial, unroll, TIDx, vector]   over (across, along): a row of the tile lies along the outputs' innermost axis
    staged input    [BIDx = batch * tiles, serial, unroll, TIDx, vector]   over (along, across): a row of the tile lies along the input's innermost axis

Both sides move vectors. All arithmetic is on the outputs' side, in registers; a staged input is loaded into shared memory (cp.async where its vectors
are wide enough), and read from there element by element. Chunks of a tile's rows change places (`SharedSwizzle`), so that the lanes of a warp, which read
different rows, meet different banks. Read first: `Transpose.apply`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..analysis.vectorization import VectorLimits
from ..arch import CP_ASYNC_BYTES, SECTOR_BYTES, Arch
from ..expr import evaluate_int
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import SharedSwizzle, TensorView
from ..schedule.caching import cache_after
from ..schedule.primitives import reorder, set_memory_type, swizzle_shared
from ..schedule.propagate import parallelize_like
from .base import Alignments, Decline, Launch, Scheduler, Sizes
from .facts import Obstacle, PointwiseAnalysis, analyze_pointwise
from .rows import Template, arrange, arrange_axes, merge_axes_at, split_axis

ROW_CHUNKS = 8
"""Vectors of 16 bytes in a row of a tile: 128 bytes, all banks of shared memory once."""
BANK_BYTES = 4
MOST_UNROLL = 8


@dataclass(frozen=True, slots=True)
class TransposeParams:
    """A schedule of tiles; equal params (with equal structure, index type and device) mean the same kernel.

    tile_elems: edge of a tile. along_vector, across_vector: elements of an access on the outputs' side, and of one on the staged inputs' side.
    threads: of a block. unroll: vectors of the outputs' side that a thread has under way at once; load_unroll: of the staged inputs'.
    is_along_first: neighbouring blocks have neighbouring tiles along the outputs' rows, else along the staged inputs' rows.
    """

    tile_elems: int
    along_vector: int
    across_vector: int
    threads: int
    unroll: int
    load_unroll: int
    is_along_first: bool


class TransposeAnalysis:
    """What is known without sizes. along, across: the loop classes of the tile's two sides, outermost first; batch: all others; staged: names of inputs."""

    def __init__(self, pointwise: PointwiseAnalysis, staged: list[TensorView]) -> None:
        self.pointwise, axes, order = pointwise, pointwise.axes, pointwise.order
        self.axes = axes
        orders = [axes.memory_order(t) for t in staged]
        self.along = _common_run(order, [order, *orders], order[-1], ())
        self.across = _common_run(orders[0], [order, *orders], orders[0][-1], self.along)
        tile = {*self.along, *self.across}
        self.batch = tuple(n for n in order if n not in tile)
        self.order = (*self.batch, *self.across, *self.along)
        self.staged = tuple(t.name for t in staged)
        outside = [n for n in orders[0] if n not in self.across]
        self.along_limits = VectorLimits(axes, self.order, [t for t in _ends(pointwise) if t.name not in self.staged])
        self.across_limits = VectorLimits(axes, (*outside, *self.across), staged)
        self.staged_bits = max(t.dtype().bits for t in staged)
        self.widest_bits = max(self.staged_bits, *(t.dtype().bits for t in self.along_limits.vectorizable), 8)

    def extent(self, classes: tuple[int, ...], sizes: Sizes) -> int:
        return math.prod(evaluate_int(self.axes.extent_sym(n), sizes) for n in classes)


def _ends(pointwise: PointwiseAnalysis) -> list[TensorView]:
    fusion = pointwise.axes.fusion
    return [t for t in (*fusion.inputs(), *fusion.outputs()) if isinstance(t, TensorView)]


def _common_run(order: tuple[int, ...], orders: list[tuple[int, ...]], last: int, taken: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest run of neighbours in `order` that ends with `last`, is free of `taken`, and stands the same in all `orders`."""
    run = [last]
    while True:
        place = order.index(run[0])
        before = order[place - 1] if place else None
        if before is None or before in taken:
            return tuple(run)
        if not all(before in other and other.index(before) + 1 == other.index(run[0]) for other in orders):
            return tuple(run)
        run.insert(0, before)


class Transpose(Scheduler):
    """Inputs that lie across the outputs; see the module."""

    name = SchedulerType.transpose

    def analyze(self, fusion: Fusion) -> TransposeAnalysis | Decline:
        found = analyze_pointwise(fusion)
        if isinstance(found, Obstacle):
            return Decline(str(found))
        if not found.order:
            return Decline("there is one element")
        axes, inner = found.axes, found.order[-1]
        read = {t for e in fusion.tensor_exprs() for t in e.tensor_inputs}
        across = [t for t in fusion.inputs() if isinstance(t, TensorView) and t in read and axes.memory_order(t)[-1:] not in ((), (inner,))]
        staged = [t for t in across if inner in axes.memory_order(t)]
        if not staged:
            return Decline("no input lies along another axis than the outputs")
        sides = {axes.memory_order(t)[-1] for t in staged}
        if len(sides) > 1:
            first = axes.memory_order(max(staged, key=lambda t: (len(axes.stored(t)), t.dtype().bits, -t.name)))[-1]
            staged = [t for t in staged if axes.memory_order(t)[-1] == first]  # the others are read across memory
        return TransposeAnalysis(found, staged)

    def accept(self, analysis: TransposeAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        for name, classes in (("outputs", analysis.along), ("inputs that lie across", analysis.across)):
            extent = analysis.extent(classes, sizes)
            if extent * analysis.staged_bits < 8 * SECTOR_BYTES:
                return Decline(f"the innermost axes of the {name} have {extent} elements, less than a sector of memory: tiles would be mostly empty")
        return None

    def choose(self, analysis: TransposeAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[TransposeParams, str]:
        widest = arch.max_vector_bits // analysis.widest_bits
        tile = ROW_CHUNKS * widest
        along = min(widest, analysis.along_limits.limit_elems(len(analysis.order) - len(analysis.along), sizes, alignment_bits))
        across_order = analysis.across_limits.order
        across = min(widest, analysis.across_limits.limit_elems(len(across_order) - len(analysis.across), sizes, alignment_bits))
        threads = 128
        unroll, load_unroll = (max(1, min(MOST_UNROLL, tile * tile // (vector * threads))) for vector in (along, across))
        params = TransposeParams(tile, along, across, threads, unroll, load_unroll, True)
        return params, f"transpose: tiles of {tile} x {tile}, vectors of {along} along the outputs and {across} along the staged inputs"

    def apply(self, fusion: Fusion, analysis: TransposeAnalysis, params: TransposeParams) -> Launch:
        template = Template(fusion)
        turned = self._stage(template, analysis, params)
        reference = template.tensor(analysis.pointwise.reference.name)
        self._tiles(reference, analysis, params)
        template.propagate(reference)
        for tensor in turned.values():
            self._loads(tensor, params)
        self._outputs_side(reference, params)
        template.propagate(reference)
        parallelize_like(reference)
        template.vectorize([t.name for t in analysis.along_limits.vectorizable], params.along_vector)
        loads = {cache: 2 for source, cache in template.inputs if source.name not in turned}
        template.inline_fixed({**loads, **{tensor: 1 for tensor in turned.values()}}, 0)
        return Launch(((ParallelType.block_x, params.threads),))

    def _stage(self, template: Template, analysis: TransposeAnalysis, params: TransposeParams) -> dict[int, TensorView]:
        """Put a copy in shared memory between each staged input and its registers; return the copies by the input's name."""
        turned = {}
        for source, _ in template.inputs:
            if source.name in analysis.staged:
                elem_bytes = source.dtype().bits // 8
                is_async = params.across_vector * elem_bytes in CP_ASYNC_BYTES
                copy = cache_after(source, LoadStoreOpType.cp_async if is_async else LoadStoreOpType.set, propagate_allocation_domain=False)
                set_memory_type(copy, MemoryType.shared)
                chunk = max(params.across_vector, BANK_BYTES // elem_bytes)
                ways = params.tile_elems // chunk
                swizzle_shared(copy, SharedSwizzle(chunk, ways, ways * params.along_vector))
                turned[source.name] = copy
        return turned

    def _tiles(self, reference: TensorView, analysis: TransposeAnalysis, params: TransposeParams) -> None:
        """Bring the loops of the reference to [tiles, across, along]."""
        classes = [analysis.axes.of(a) for a in analysis.pointwise.reference.get_logical_domain()]
        place = {n: k for k, n in enumerate(analysis.order)}
        arrange(reference, sorted(range(len(classes)), key=lambda k: (-1 if classes[k] is None else place[classes[k]], k)))  # type: ignore[index]
        rank = len(reference.get_loop_domain())
        along = merge_axes_at(reference, rank - len(analysis.along), len(analysis.along))
        across = merge_axes_at(reference, rank - len(analysis.along) - len(analysis.across), len(analysis.across))
        outer = reference.get_loop_domain()[:-2]
        across_tiles, across_part = split_axis(reference, across, params.tile_elems)  # type: ignore[arg-type]
        along_tiles, along_part = split_axis(reference, along, params.tile_elems)  # type: ignore[arg-type]
        tiles = (across_tiles, along_tiles) if params.is_along_first else (along_tiles, across_tiles)
        arrange_axes(reference, [*outer, *tiles, across_part, along_part])
        merge_axes_at(reference, 0, len(outer) + 2)

    def _loads(self, tensor: TensorView, params: TransposeParams) -> None:
        """Bring the loops of a staged input from [tiles, across, along] to [tiles, serial, unroll, threads, vector], along the input's rows."""
        reorder(tensor, {1: 2, 2: 1})
        chunks, vector = split_axis(tensor, tensor.axis(2), params.across_vector)
        chunks = merge_axes_at(tensor, 1, 2)  # type: ignore[assignment]
        steps, _ = split_axis(tensor, chunks, params.threads)
        split_axis(tensor, steps, params.load_unroll)
        for position, kind in ((0, ParallelType.grid_x), (2, ParallelType.unroll), (3, ParallelType.block_x)):
            tensor.axis(position).parallelize(kind)
        if params.across_vector > 1:
            vector.parallelize(ParallelType.vectorize)

    def _outputs_side(self, reference: TensorView, params: TransposeParams) -> None:
        """Bring the loops of the reference from [tiles, across, along] to [tiles, serial, unroll, threads, vector]."""
        split_axis(reference, reference.axis(2), params.along_vector)
        vectors = merge_axes_at(reference, 1, 2)
        steps, _ = split_axis(reference, vectors, params.threads)  # type: ignore[arg-type]
        split_axis(reference, steps, params.unroll)
        for position, kind in ((0, ParallelType.grid_x), (2, ParallelType.unroll), (3, ParallelType.block_x)):
            reference.axis(position).parallelize(kind)


__all__ = ["Transpose", "TransposeParams"]
