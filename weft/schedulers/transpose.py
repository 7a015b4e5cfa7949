"""Transpose: no reduction; tensors have two different contiguous axes. Tiles of the smaller group are transposed in shared memory.

    straight side   [BIDx = batch * tiles, serial, unroll, TIDx, vector]   over (across, along): a row of a tile lies along the larger group's innermost axis
    turned side     [BIDx = batch * tiles, serial, unroll, TIDx, vector]   over (along, across): a row of a tile lies along the smaller group's innermost axis

Both sides move vectors. All arithmetic is on the straight side, in registers. An input of the smaller group is loaded into shared memory on the turned side
(by cp.async where its vectors are wide enough) and read from there element by element on the straight side; an output of it goes the other way. What a slice
or a pad reads of an input is loaded into registers first, in the loops of its side. Chunks of a
tile's rows change places (`SharedSwizzle`), so that the lanes of a warp, which read different rows, meet different banks. Read first: `Transpose.apply`.

Where rows of a side begin within vectors, and an input is copied as it is, one statement moves each tile (`schedule/whole_tiles.py`): a row of a tile begins
with a sector of the output, up to a sector later than the row before, so that sectors are written whole; the tile has as many more rows of the input.

Where the innermost run of one side is shorter than a sector, a tile has all of it (`short_tiles.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..analysis.lookups import lookup_of
from ..analysis.loop_axes import LoopAxes, Obstacle, loop_order
from ..analysis.op_cost import cost_of
from ..analysis.precision import wide_tensors
from ..analysis.vectorization import MAX_VECTOR_BITS, SHIFTED_WORD_BITS, VectorLimits
from ..arch import BANK_BYTES, CP_ASYNC_BYTES, LINE_BYTES, SECTOR_BYTES, Arch
from ..expr import evaluate_int
from ..ir.block_ops import BlockFoldOp, BlockSampleOp
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, Fixed, LookupOp
from ..ir.values import IterDomain, SharedSwizzle, TensorView
from ..schedule.caching import cache_after, cache_before
from ..schedule.primitives import reorder, set_memory_type, swizzle_shared
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.row_lanes import LEAST_BYTES, load_rows_by_lanes
from ..schedule.whole_tiles import WholeTile, chain_of, move_whole_tiles
from .arithmetic import ceil_div, round_up
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .pointwise_analysis import analyze_pointwise
from .cost.passing import passing_ns
from .cost.transposes import TileFacts, Tiles, work_of_transposes
from .cost.short_tiles import ShortTileFacts
from .limits import FULL_BLOCK_THREADS, NEAR_TILES
from .rows import arrange, arrange_axes, merge_axes_at, merge_two_runs, places_in_order, split_axis
from .short_tiles import LEAST_FILLED, THREADS, ShortTileParams, ShortTiles, schedule_short_tiles, short_tiles
from .template import Template, set_lanes

TILE_CHUNKS, TILE_THREADS = (16, 8, 4), (*THREADS, 64)
"""Vectors of 16 bytes in a row of a tile, and threads of a block, to try."""
NEAR_CUT = 0.03
"""Instead of `NEAR_TILES` between numbers of threads, if rows begin within sectors and are written element by element: the most threads are taken, so that
fewer tiles have half-written sectors, as long as each thread has as many stores in flight. Measured: docs/constants.md."""
MOST_UNROLL = 4
WHOLE_BITS, WHOLE_CHUNKS, WHOLE_THREADS, WHOLE_FILLED = (16, 64), 16, FULL_BLOCK_THREADS // 2, LEAST_FILLED
"""If one statement moves whole tiles: bits of an element, vectors in a row of a tile, threads, and the least fraction of the tiles that is full. If
there is a tile for each multiprocessor, whole tiles are taken without the cost model, because they were always faster than its best. Measured:
docs/constants.md."""


@dataclass(frozen=True, slots=True)
class TransposeParams:
    """A schedule of tiles; equal params (with equal structure, index type and device) mean the same kernel.

    tile_elems: edge of a tile.
    along_vector, across_vector: elements of an access on the straight side, and on the turned one.
    threads: of a block. unroll, turned_unroll: vectors of each side that a thread has in flight at once. is_along_first: neighbouring blocks have neighbouring
    tiles along the straight side's rows, otherwise along the turned side's. across_anywhere: rows of the turned side's inputs begin anywhere, and lanes
    exchange the parts of their vectors.
    cut: which of the analysis' cuts into batch, across and along. is_whole: one statement moves a tile from memory to memory (`schedule/whole_tiles.py`).
    """

    tile_elems: int
    along_vector: int
    across_vector: int
    threads: int
    unroll: int
    turned_unroll: int
    is_along_first: bool
    across_anywhere: bool = False
    cut: int = 0
    is_whole: bool = False


AnyParams = TransposeParams | ShortTileParams


@dataclass(frozen=True)
class Cut:
    """One division of the axes into batch, across and along, with the vectors of both sides. along, across: classes of the loops that form the rows of a tile
    on the straight and on the turned side, outermost first; order: batch, across, along. divides_along, divides_across: these classes are not contiguous on the
    other side, which therefore divides to find each row of a tile.
    """

    order: tuple[int, ...]
    along: tuple[int, ...]
    across: tuple[int, ...]
    along_limits: VectorLimits
    across_limits: VectorLimits
    divides_along: bool = False
    divides_across: bool = False

    def vectors(self, widest: int, sizes: Sizes, alignment_bits: Alignments) -> tuple[int, int]:
        """Return elements of an access on the straight side, and on the turned one."""
        along, across = (
            limits.limit_elems(len(self.order) - len(classes), sizes, alignment_bits)
            for limits, classes in ((self.along_limits, self.along), (self.across_limits, self.across))
        )
        return min(widest, along), min(widest, across)


class TransposeAnalysis:
    """The facts that do not depend on sizes. cuts: divisions of the loop classes into batch, across and along. In the first, each side's classes are contiguous
    in all tensors; in others, for short rows, only in those of that side. turned: names of the inputs and outputs of the smaller group. in_vectors: names of
    the tensors that are accessed in vectors. packed: tensors with several elements per byte. is_plain: an output is a transposed copy of an input, both
    contiguous.
    """

    def __init__(
        self, fusion: Fusion, axes: LoopAxes, reference: TensorView, order: tuple[int, ...], ends: list[TensorView], turned: list[TensorView]
    ) -> None:  # fmt: skip
        self.axes, self.reference, self.ends = axes, reference, ends
        self.cost = cost_of(fusion.tensor_exprs(), wide_tensors(fusion))
        self.turned = tuple(t.name for t in turned)
        self.cuts = self._cuts(order, turned)
        self.in_vectors = {t.name for limits in (self.cuts[0].along_limits, self.cuts[0].across_limits) for t in limits.vectorizable}
        self.packed = [t for t in ends if t.dtype().is_packed]
        can_move = all(WHOLE_BITS[0] <= t.dtype().bits <= WHOLE_BITS[1] and _has_no_gap(t) and lookup_of(t) is None for t in ends)
        self.is_plain = len(ends) == 2 and can_move and not fusion.aliases and bool(chain_of(ends[0]))
        self.turned_bits = max(t.dtype().bits for t in turned)
        self.turned_tiles_bits = sum(t.dtype().bits for t in turned)
        self.widest_bits = max(8, self.turned_bits, *(t.dtype().bits for t in self.cuts[0].along_limits.vectorizable))

    @functools.cached_property
    def short_tiles(self) -> tuple[ShortTiles, ...]:
        """Tiles with all of one run, if it is too short for square tiles, and whole inputs are read."""
        if any(lookup_of(t) is not None for t in self.ends):
            return ()
        cut, work = self.cuts[0], (self.cost.instructions, self.cost.mufu)
        runs = ((cut.along, cut.across, False), (cut.across, cut.along, True))
        found = (short_tiles(self.axes, self.reference, self.ends, cut.order, long, short, work, is_along) for long, short, is_along in runs)
        return tuple(tiles for tiles in found if tiles is not None)

    def _cuts(self, order: tuple[int, ...], turned: list[TensorView]) -> tuple[Cut, ...]:
        """Return the cut into neighbours of all tensors, then those with a longer run on one side."""
        orders = [self.axes.memory_order(t) for t in turned]
        along = _common_run([order, *orders], order[-1], ())
        across = _common_run([orders[0], order, *orders[1:]], orders[0][-1], along)
        lacked = [n for n in order if any(n not in other for other in orders)]  # a turned tensor lacks them, and would have other tiles
        longer_across, longer_along = _common_run(orders, orders[0][-1], along), _common_run([order], order[-1], (*across, *lacked))
        out = [self._cut(order, along, across, turned)]
        if len(longer_across) > len(across):
            out.append(self._cut(order, along, longer_across, turned, divides_across=True))
        if len(longer_along) > len(along):
            out.append(self._cut(order, longer_along, across, turned, divides_along=True))
        return tuple(out)

    def _cut(self, order: tuple[int, ...], along: tuple[int, ...], across: tuple[int, ...], turned: list[TensorView], **divides: bool) -> Cut:
        whole = (*(n for n in order if n not in along and n not in across), *across, *along)
        turned_order = (*(n for n in whole if n not in across), *across)
        straight_limits = VectorLimits(self.axes, whole, [t for t in self.ends if t.name not in self.turned])
        return Cut(whole, along, across, straight_limits, VectorLimits(self.axes, turned_order, turned), **divides)

    def extent(self, classes: tuple[int, ...], sizes: Sizes) -> int:
        return math.prod(evaluate_int(self.axes.extent_sym(n), sizes) for n in classes)

    def facts(self, sizes: Sizes, cut: Cut) -> TileFacts:
        """Return what the model knows, at these sizes."""
        along, across = self.extents(cut, sizes)
        full = [t for t in self.ends if len(self.axes.memory_order(t)) == len(cut.order)]
        turned = [t for t in full if t.name in self.turned]
        written = [t for t in full if not _is_read(t)]
        along_bits, across_bits = ([t.dtype().bits for t in written if (t in turned) is is_turned] for is_turned in (False, True))
        sides = [(t.name in self.turned, _is_read(t)) for t in full]
        return TileFacts(
            along, across, self.extent(cut.order, sizes) // max(1, along * across), straight_inputs=sides.count((False, True)),
            turned_inputs=sides.count((True, True)), straight_outputs=sides.count((False, False)), turned_outputs=sides.count((True, False)),
            bits=sum(t.dtype().bits for t in full), turned_bits=sum(t.dtype().bits for t in turned), instructions=self.cost.instructions, mufu=self.cost.mufu,
            is_along_cut=any(along * bits % (8 * LINE_BYTES) for bits in along_bits),
            is_across_cut=any(across * bits % (8 * LINE_BYTES) for bits in across_bits),
            divides_along=cut.divides_along, divides_across=cut.divides_across,
        )  # fmt: skip

    @property
    def widest_elems(self) -> int:
        """Elements of the widest access."""
        return MAX_VECTOR_BITS // self.widest_bits

    def extents(self, cut: Cut, sizes: Sizes) -> tuple[int, int]:
        return self.extent(cut.along, sizes), self.extent(cut.across, sizes)

    def tiles(self, cut: Cut, tile_elems: int, sizes: Sizes) -> int:
        """Return the number of tiles."""
        rows = math.prod(ceil_div(extent, tile_elems) for extent in self.extents(cut, sizes))
        return rows * self.extent(cut.order, sizes) // max(1, math.prod(self.extents(cut, sizes)))

    def filled_cuts(self, sizes: Sizes) -> list[Cut]:
        """Return the cuts whose tiles are not mostly empty: the first, and if one of its runs is shorter than the largest tile, those with a longer one."""
        first, *longer = self.cuts
        short = [extent < TILE_CHUNKS[0] * self.widest_elems for extent in self.extents(first, sizes)]
        found = [first, *(cut for cut in longer if cut.divides_along and short[0] or cut.divides_across and short[1])]
        return [cut for cut in found if min(self.extents(cut, sizes)) * self.turned_bits >= 8 * SECTOR_BYTES]

    def can_begin_anywhere(self, cut: Cut, vector_elems: int) -> bool:
        """True if the turned tensors are inputs with contiguous rows, so that lanes can load vectors of them at any start."""
        moved = cut.across_limits.vectorizable
        is_wide = all(t.is_fusion_input and not t.dtype().is_packed and LEAST_BYTES * 8 <= vector_elems * t.dtype().bits for t in moved)
        return is_wide and len(moved) == len(self.turned) == len(cut.across_limits.anywhere(len(cut.order) - len(cut.across)))


def _common_run(orders: list[tuple[int, ...]], last: int, taken: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest run of neighbours in the first order that ends with `last`, has none of `taken`, and is the same in all orders."""
    first, run = orders[0], [last]
    while True:
        place = first.index(run[0])
        if place == 0 or first[place - 1] in taken:
            return tuple(run)
        before = first[place - 1]
        if not all(before in other and other.index(before) + 1 == other.index(run[0]) for other in orders):
            return tuple(run)
        run.insert(0, before)


class Transpose(Scheduler):
    """Schedules tensors with two different innermost axes; see the module."""

    name = SchedulerType.transpose

    def analyze(self, fusion: Fusion) -> TransposeAnalysis | Decline:
        found = analyze_pointwise(fusion)
        if isinstance(found, Obstacle):
            return Decline(str(found))
        if any(isinstance(e, BlockFoldOp) or isinstance(e, BlockSampleOp) and e.block > 1 for e in fusion.tensor_exprs()):
            return Decline("blocks of neighbours along a row lie across the threads of a tile")
        axes, reference = found.axes, found.reference
        parts = _parts(fusion)
        read = {t for e in fusion.tensor_exprs() if e.outputs[0] not in parts for t in e.tensor_inputs}
        inputs = [*(t for t in fusion.tensor_inputs() if t in read), *parts]
        outputs = [t for t in fusion.tensor_outputs() if not t.is_fusion_input]
        ends = [*outputs, *inputs]
        bits: dict[int, int] = {}
        for tensor in ends:
            if len(axes.memory_order(tensor)) == len(found.order) > 1:
                inner = axes.memory_order(tensor)[-1]
                bits[inner] = bits.get(inner, 0) + tensor.dtype().bits
        if not bits:
            return Decline("no tensor varies over all axes, or there is only one axis")
        along = max(bits, key=lambda n: bits[n])
        straight = [t for t in ends if axes.memory_order(t)[-1:] == (along,)]
        across = [t for t in ends if axes.memory_order(t)[-1:] not in ((), (along,)) and along in axes.memory_order(t)]
        if not across:
            return Decline("inputs and outputs have the same contiguous axis")
        filled = [t for t in across if (lookup := lookup_of(t)) is not None and any(isinstance(v, TensorView) for v in lookup.inputs[1:])]
        if filled:
            return Decline(f"{filled[0]} has values of another tensor where a pad has zeros, and that tensor is not read in the same order")
        widest = max(across, key=lambda t: (len(axes.stored(t)), t.dtype().bits, -t.name))
        turned = [t for t in across if axes.memory_order(t)[-1] == axes.memory_order(widest)[-1]]  # the others are accessed across memory
        order = loop_order(axes, [n for n in axes.logical_order(reference) if n in axes.stored(reference)], straight)
        return TransposeAnalysis(fusion, axes, reference, order, ends, turned)

    def accept(self, analysis: TransposeAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        cuts = analysis.filled_cuts(sizes)
        if not cuts:
            if any(tiles.candidates(sizes, alignment_bits, arch) for tiles in analysis.short_tiles):
                return None
            extent = min(analysis.extents(analysis.cuts[0], sizes))
            return Decline(f"a contiguous run has {extent} elements, less than {SECTOR_BYTES} bytes, so that tiles would be mostly empty")
        single = [t for t in analysis.packed if (t.name in analysis.turned or t.is_fusion_output) and t.name not in analysis.in_vectors]
        if single:
            return Decline(f"{single[0]} has several elements per byte, and elements that share a byte are not neighbours")
        narrowest = min(min(cut.vectors(analysis.widest_elems, sizes, alignment_bits)) for cut in cuts)
        packed = [t for t in analysis.packed if t.dtype().elems_per_unit > narrowest]
        return Decline(f"{packed[0]} has several elements per byte, but sizes, strides or alignments allow only vectors of {narrowest}") if packed else None

    def choose(self, analysis: TransposeAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[AnyParams, str]:
        facts, found, times = self._all_ranked(analysis, sizes, alignment_bits, arch)
        lines = [f"  {'  ' if n else '->'} {params}: {ns / 1e3:.2f} us" for n, (params, ns) in enumerate(zip(found[:4], times))]
        return found[0], "\n".join([f"transpose: {facts}, of {len(found)} candidates", *lines])

    def candidates(self, analysis: TransposeAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, AnyParams]]:
        _, found, _ = self._all_ranked(analysis, sizes, alignment_bits, arch)
        return [(f"tiles of {p.tile_elems}", p) for p in found]

    def _all_ranked(
        self, analysis: TransposeAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch
    ) -> tuple[TileFacts | ShortTileFacts, Sequence[AnyParams], list[float]]:
        """Return facts, candidates, and their predicted times in ns, best first."""
        if analysis.filled_cuts(sizes):
            found, times = self._ranked(analysis, sizes, alignment_bits, arch)
            return analysis.facts(sizes, analysis.cuts[found[0].cut]), found, times
        tiles = next(tiles for tiles in analysis.short_tiles if tiles.candidates(sizes, alignment_bits, arch))
        return tiles.facts(sizes), *tiles.ranked(sizes, alignment_bits, arch)

    def _ranked(self, analysis: TransposeAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[list[TransposeParams], list[float]]:
        """Return the candidates and their predicted times in ns, best first."""
        found: list[TransposeParams] = []
        times = np.empty(0)
        for cut in analysis.filled_cuts(sizes):
            made = self._of_cut(analysis, cut, sizes, alignment_bits, arch)
            columns = [np.array([getattr(params, field.name) for params in made]) for field in fields(Tiles)]
            found += made
            times = np.append(times, passing_ns(work_of_transposes(Tiles(*columns), analysis.facts(sizes, cut), arch), arch))
        order: list[int] = np.lexsort((np.arange(len(found)), np.floor((times / times.min() - 1) / NEAR_TILES))).tolist()
        first = found[order[0]]
        if first.along_vector == 1 and analysis.facts(sizes, analysis.cuts[first.cut]).is_along_cut:
            near = [n for n in order if times[n] <= (1 + NEAR_CUT) * times[order[0]] and _is_like(found[n], first) and found[n].unroll >= first.unroll]
            order.sort(key=max(near, key=lambda n: found[n].threads).__ne__)
        order.sort(key=lambda n: not (found[n].is_whole and analysis.tiles(analysis.cuts[found[n].cut], found[n].tile_elems, sizes) >= arch.sm_count))
        return [found[n] for n in order], [float(times[n]) for n in order]

    def _of_cut(self, analysis: TransposeAnalysis, cut: Cut, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[TransposeParams]:
        """Return the candidates of one cut."""
        widest = analysis.widest_elems
        along, narrow = cut.vectors(widest, sizes, alignment_bits)
        ways = [(narrow, False)]
        if narrow * analysis.turned_bits < SHIFTED_WORD_BITS and analysis.can_begin_anywhere(cut, widest):
            ways.append((widest, True))
        number, found = analysis.cuts.index(cut), []
        for tile, threads in ((chunks * widest, threads) for chunks in TILE_CHUNKS for threads in TILE_THREADS):
            is_small = tile * tile * analysis.turned_tiles_bits <= 8 * arch.shared_per_block_optin_bytes // 2
            for across, anywhere in ways:
                fits = tile * tile >= max(along, across) * threads and is_small
                if fits or tile == TILE_CHUNKS[-1] * widest and not anywhere:
                    unroll, turned_unroll = (max(1, min(MOST_UNROLL, tile * tile // (vector * threads))) for vector in (along, across))
                    found += [TransposeParams(tile, along, across, threads, unroll, turned_unroll, first, anywhere, number) for first in (True, False)]
        tile = WHOLE_CHUNKS * widest
        is_cut = along < widest or narrow * analysis.turned_bits < SHIFTED_WORD_BITS  # else inputs come by cp.async, and outputs leave in whole vectors
        is_filled = math.prod(extent / round_up(max(1, extent), tile) for extent in analysis.extents(cut, sizes)) >= WHOLE_FILLED
        if analysis.is_plain and not (cut.divides_along or cut.divides_across) and is_cut and is_filled:
            found.append(TransposeParams(tile, widest, widest, WHOLE_THREADS, 1, 1, True, False, number, True))
        return found

    def apply(self, fusion: Fusion, analysis: TransposeAnalysis, params: AnyParams) -> ScheduleResult:
        if isinstance(params, ShortTileParams):
            return schedule_short_tiles(fusion, next(tiles for tiles in analysis.short_tiles if tiles.is_along is params.is_along), params)
        name, cut = analysis.reference.name, analysis.cuts[params.cut]
        if params.is_whole:
            return _move_whole(fusion, analysis, cut, params)
        template = Template(fusion)
        reference = next(local for local, output in template.outputs if name in (local.name, output.name))
        turned = [source for source, _ in template.inputs if source.name in analysis.turned]
        looked_up = [result for name, result in template.lookups if name in analysis.turned]
        loaded = {_turn_input(source, params, has_vectors=source.name in analysis.in_vectors): source for source in (*turned, *looked_up)}
        for copy, source in loaded.items():
            readers = [use for use in copy.uses() if isinstance(use, LookupOp)]  # which take their values where they are outside of their source
            if source is reference:  # nothing is computed between the load and the store
                reference = cache_after(copy)
            elif readers or source in looked_up and len(copy.uses()) > 1:  # readers on the straight side have its loops by what they all read in registers
                cache_after(copy, cached_uses=readers)
        stored = [_turn_output(output, params) for _, output in template.outputs if template.name_of[output] in analysis.turned]
        in_vectors = {copy for copy, source in loaded.items() if source.name in analysis.in_vectors}
        in_vectors |= {output for _, output in template.outputs if template.name_of[output] in analysis.in_vectors}
        in_vectors |= {result for name, result in template.lookups if name in analysis.in_vectors}
        tiles_of(reference, analysis, cut, params)
        template.propagate(reference)
        for tensor in (*loaded, *looked_up, *(t for _, *rest in stored for t in rest)):
            _turned_side(tensor, params, has_vectors=tensor in in_vectors)
        _straight_side(reference, params)
        template.propagate(reference)
        parallelize_like(reference)
        template.vectorize([t.name for t in cut.along_limits.vectorizable], params.along_vector)
        for shared, *_ in stored:
            if params.along_vector > 1:
                set_lanes(shared)  # the straight side writes whole vectors to shared memory
        loads = {cache: 2 for source, cache in template.inputs if source.name not in analysis.turned} | {result: 2 for _, result in template.lookups}
        template.inline_fixed({**loads, **dict.fromkeys(loaded, 1), **{shared: 1 for shared, *_ in stored}}, 0)
        return ScheduleResult(((ParallelType.block_x, params.threads),))


def _parts(fusion: Fusion) -> list[TensorView]:
    """Return the results of slices and pads, which are loaded like inputs."""
    found = [e for e in fusion.tensor_exprs() if isinstance(e, LookupOp) and all(isinstance(place, (Along, Fixed)) for place in e.positions)]
    return [t for e in found for t in e.tensor_outputs if not t.is_fusion_output]


def _is_read(tensor: TensorView) -> bool:
    return tensor.is_fusion_input or lookup_of(tensor) is not None


def _has_no_gap(tensor: TensorView) -> bool:
    return (
        not tensor.domain().rolled
        and all(c is not False for c in tensor.domain().contiguity)
        and not any(a.is_broadcast() for a in tensor.get_logical_domain())
    )


def _move_whole(fusion: Fusion, analysis: TransposeAnalysis, cut: Cut, params: TransposeParams) -> ScheduleResult:
    """Schedule `fusion` in place: a block moves a tile."""
    (output,) = (t for t in fusion.tensors() if t.name == analysis.reference.name)
    along, across = tiles_of(output, analysis, cut, params)
    _, threads = split_axis(output, merge_axes_at(output, 1, 2), params.threads)  # type: ignore[arg-type]
    tiles, *within = output.get_loop_domain()
    tiles.parallelize(ParallelType.grid_x)
    threads.parallelize(ParallelType.block_x)
    source = chain_of(output)[-1].tensor_inputs[0]
    move_whole_tiles(output, WholeTile(along, across, params.tile_elems, tuple(within), params.threads, source))
    transform_like(output)
    parallelize_like(output)
    return ScheduleResult(((ParallelType.block_x, params.threads),))


def _is_like(a: TransposeParams, b: TransposeParams) -> bool:
    """True if the params differ only in threads."""
    return replace(a, threads=0, unroll=0, turned_unroll=0) == replace(b, threads=0, unroll=0, turned_unroll=0)


def _swizzle(tensor: TensorView, tile_elems: int, written: int, read: int) -> None:
    """Put a tile in shared memory, with rows written in vectors of `written` elements and columns read `read` at a time."""
    set_memory_type(tensor, MemoryType.shared)
    chunk = max(written, BANK_BYTES * 8 // tensor.dtype().bits)
    ways = tile_elems // chunk
    swizzle_shared(tensor, SharedSwizzle(chunk, ways, ways * read))


def _turn_input(source: TensorView, params: TransposeParams, *, has_vectors: bool) -> TensorView:
    """Insert a copy in shared memory between an input, or the registers of what is looked up, and registers; return it."""
    is_async = source.is_fusion_input and has_vectors and not params.across_anywhere and params.across_vector * source.dtype().bits // 8 in CP_ASYNC_BYTES
    copy = cache_after(source, LoadStoreOpType.cp_async if is_async else LoadStoreOpType.set, propagate_allocation_domain=False)
    _swizzle(copy, params.tile_elems, params.across_vector, params.along_vector)
    return copy


def _turn_output(output: TensorView, params: TransposeParams) -> tuple[TensorView, TensorView, TensorView]:
    """Insert copies in shared memory and in registers between an output and its source; return (shared, registers, output)."""
    shared = cache_before(output)
    registers = cache_before(output)
    _swizzle(shared, params.tile_elems, params.along_vector, params.across_vector)
    return shared, registers, output


def tiles_of(reference: TensorView, analysis: TransposeAnalysis, cut: Cut, params: TransposeParams) -> tuple[IterDomain, IterDomain]:
    """Transform the loops of the reference to [tiles, across, along]; return the axes along and across that were split into tiles."""
    arrange(reference, places_in_order(analysis.reference.get_logical_domain(), cut.order, analysis.axes))
    outer, across, along = merge_two_runs(reference, len(cut.across), len(cut.along))
    across_tiles, across_part = split_axis(reference, across, params.tile_elems)
    along_tiles, along_part = split_axis(reference, along, params.tile_elems)
    tiles = (across_tiles, along_tiles) if params.is_along_first else (along_tiles, across_tiles)
    arrange_axes(reference, [*outer, *tiles, across_part, along_part])
    merge_axes_at(reference, 0, len(outer) + 2)
    return along, across


def _turned_side(tensor: TensorView, params: TransposeParams, *, has_vectors: bool) -> None:
    """Transform the loops of a tensor from [tiles, across, along] to those of the turned side."""
    reorder(tensor, {1: 2, 2: 1})
    _threads(tensor, params.across_vector, params, params.turned_unroll)
    if has_vectors and params.across_vector > 1:
        tensor.axis(4).parallelize(ParallelType.vectorize)
        if params.across_anywhere:
            load_rows_by_lanes(tensor, params.tile_elems // params.across_vector)


def _straight_side(reference: TensorView, params: TransposeParams) -> None:
    """Transform the loops of the reference from [tiles, across, along] to those of the straight side."""
    _threads(reference, params.along_vector, params, params.unroll)


def _threads(tensor: TensorView, vector: int, params: TransposeParams, unroll: int) -> None:
    """[tiles, rows, elements of a row] -> [tiles, serial, unroll, threads, vector]."""
    split_axis(tensor, tensor.axis(2), vector)
    steps, _ = split_axis(tensor, merge_axes_at(tensor, 1, 2), params.threads)  # type: ignore[arg-type]
    split_axis(tensor, steps, unroll)
    for position, kind in ((0, ParallelType.grid_x), (1, ParallelType.unswitch), (2, ParallelType.unroll), (3, ParallelType.block_x)):
        tensor.axis(position).parallelize(kind)


__all__ = ["Transpose", "TransposeParams"]
