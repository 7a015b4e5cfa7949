"""Transposes with a short contiguous run on one side, such as pixels of 3 channels: each tile contains whole runs.

    long side    [tile, one, TIDx, rows of the short run, vector]   a row of a tile lies along the other side's innermost run
    short side   [tile, one, unroll, TIDx, vector]                  the tile is one piece of memory: neighbours along the long run, each with its short run

Where the long run is too short for a block's threads, a block has several tiles, one on top of the other (TIDy, outside of `one`).

A thread has one vector of each row: as many elements of the short side, neighbours in memory. All arithmetic is there, in registers, in which elements change
places at no cost but moves. Shared memory only hands whole vectors from thread to thread, so that both sides' vectors are neighbours of those of other lanes.
The length of the short run is a number in the kernel: one of `ShortTileParams`, which the host checks.

Owns when there are such tiles, the candidates, and the template. Read first: `ShortTiles`, `schedule_short_tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from ..analysis.extents import substitute_extents
from ..analysis.loop_axes import LoopAxes
from ..analysis.lookups import lookup_of
from ..analysis.vectorization import SHIFTED_WORD_BITS, VectorLimits
from ..arch import BANK_BYTES, CP_ASYNC_BYTES, SHARED_BANKS, Arch
from ..expr import Sym, const, evaluate_int
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import SharedSwizzle, TensorView
from ..schedule.caching import cache_after, cache_before
from ..schedule.primitives import reorder, set_memory_type, swizzle_shared
from ..schedule.propagate import parallelize_like
from .arithmetic import ceil_div, next_power_of_two, round_up
from .base import Alignments, ScheduleResult, Sizes
from .cost.passing import passing_ns
from .cost.short_tiles import ShortTileFacts, ShortTileParts, work_of_short_tiles
from .limits import NEAR_TILES, ROW_THREAD_REGISTERS
from .rows import arrange, arrange_axes, merge_axes_at, merge_two_runs, places_in_order, split_axis
from .template import Template, set_lanes

THREADS = (256, 128, 512)
LEAST_FILLED = 0.5
"""Threads of a block that are tried, and the part of all tiles that must exist."""
MOST_THREAD_BITS = 32 * ROW_THREAD_REGISTERS
"""Bits of all inputs and outputs that a thread has in registers, in blocks of up to 256 threads with 128 registers each. Elements of 8 bits take a register
each while they are exchanged. Read off ptxas: docs/constants.md."""


@dataclass(frozen=True, slots=True)
class ShortTileParams:
    """Equal params (with equal structure, index type and device) mean the same kernel.

    short: extents of the short run's axes, outermost first. vector_elems: of an access, on both sides. threads: of a tile; each has one vector of each row.
    is_along: the short run is innermost on the straight side. tiles: of a block.
    """

    short: tuple[int, ...]
    vector_elems: int
    threads: int
    is_along: bool
    tiles: int = 1

    @property
    def short_elems(self) -> int:
        return math.prod(self.short)

    @property
    def block_threads(self) -> int:
        return self.threads * self.tiles

    @property
    def outer_axes(self) -> int:
        """Loops outside of `one` besides the blocks: those of a block's tiles, if it has several."""
        return int(self.tiles > 1)

    @property
    def tile_elems(self) -> int:
        """Elements of a tile along the long run."""
        return self.vector_elems * self.threads


@dataclass(frozen=True)
class ShortTiles:
    """The facts that do not depend on sizes. order: batch, then both runs. long, short: classes of the two runs, is_along: see the params. full: inputs and
    outputs over all axes; moved: names of those that go through shared memory. long_limits: vector limits along the long run; short_limits: along both, of the
    moved tensors. reference: the output whose loops all tensors get. instructions, mufu: of an element.
    """

    axes: LoopAxes
    order: tuple[int, ...]
    long: tuple[int, ...]
    short: tuple[int, ...]
    long_limits: VectorLimits
    short_limits: VectorLimits
    full: tuple[TensorView, ...]
    moved: frozenset[int]
    reference: TensorView
    instructions: float
    mufu: float
    is_along: bool

    @property
    def syms(self) -> tuple[Sym, ...]:
        """The extents of the short run's axes."""
        return tuple(self.axes.extent_sym(n) for n in self.short)

    def _extent(self, classes: Iterable[int], sizes: Sizes) -> int:
        return math.prod(evaluate_int(self.axes.extent_sym(n), sizes) for n in classes)

    def widest(self, sizes: Sizes, alignment_bits: Alignments) -> int:
        """Return the elements of the widest access that both sides allow."""
        runs = len(self.long) + len(self.short)
        along = self.long_limits.limit_elems(len(self.order) - len(self.long), sizes, alignment_bits)
        return min(along, self.short_limits.limit_elems(len(self.order) - runs, sizes, alignment_bits))

    def candidates(self, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[ShortTileParams]:
        """Return the params whose tiles are mostly full and fit registers and shared memory, with the widest possible vectors."""
        short = tuple(evaluate_int(sym, sizes) for sym in self.syms)
        elems, long = math.prod(short), self._extent(self.long, sizes)
        batches = self._extent(self.order, sizes) // max(1, long * elems)
        held, moved = sum(max(t.dtype().bits, 32 * (t.dtype().bits == 8)) for t in self.full), sum(t.dtype().bits for t in self.full if t.name in self.moved)
        widest, narrowest = (pick(t.dtype().bits for t in self.full) for pick in (max, min))
        vector, found = self.widest(sizes, alignment_bits), list[ShortTileParams]()
        while not found and vector > 1 and vector * narrowest >= 8 and vector * widest >= SHIFTED_WORD_BITS:
            for params in self._of_threads(short, vector, long):
                tiles = round_up(long, params.tile_elems) * round_up(batches, params.tiles)
                is_filled = long * batches >= LEAST_FILLED * tiles > 0
                is_held = vector * elems * held * max(256, params.block_threads) <= 256 * MOST_THREAD_BITS
                if is_filled and is_held and params.tiles * params.tile_elems * elems * moved <= 8 * arch.shared_per_block_optin_bytes // 2:
                    found.append(params)
            vector //= 2
        return found

    def _of_threads(self, short: tuple[int, ...], vector: int, long: int) -> list[ShortTileParams]:
        """Return the params with such vectors: one tile for a block, or several if the long run has fewer vectors than a block has threads."""
        threads = next_power_of_two(max(1, ceil_div(long, vector)))
        if threads >= min(THREADS):
            return [ShortTileParams(short, vector, of_block, self.is_along) for of_block in THREADS]
        return [ShortTileParams(short, vector, threads, self.is_along, tiles=of_block // threads) for of_block in THREADS]

    def ranked(self, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[list[ShortTileParams], list[float]]:
        """Return the candidates and their predicted times in ns, best first."""
        found = self.candidates(sizes, alignment_bits, arch)
        parts = ShortTileParts(*(np.array([getattr(params, field.name) for params in found]) for field in fields(ShortTileParts)))
        times = passing_ns(work_of_short_tiles(parts, self.facts(sizes), arch), arch)
        order: list[int] = np.argsort(np.floor((times / times.min() - 1) / NEAR_TILES), kind="stable").tolist()
        return [found[n] for n in order], [float(times[n]) for n in order]

    def facts(self, sizes: Sizes) -> ShortTileFacts:
        """Return the facts for the model, at these sizes."""
        moved = [t for t in self.full if t.name in self.moved]
        long, short = self._extent(self.long, sizes), self._extent(self.short, sizes)
        return ShortTileFacts(
            long, short, self._extent(self.order, sizes) // max(1, long * short), len(self.full) - len(moved), len(moved),
            sum(t.dtype().bits for t in self.full), sum(t.dtype().bits for t in moved), self.instructions, self.mufu,
        )  # fmt: skip


def short_tiles(
    axes: LoopAxes, reference: TensorView, ends: list[TensorView], order: tuple[int, ...], long: tuple[int, ...], short: tuple[int, ...],
    cost: tuple[float, float], is_along: bool,
) -> ShortTiles | None:  # fmt: skip
    """Return the tiles with all of `short`, if one of both runs is innermost in each tensor over all axes, contiguous if it is the short one.

    order: of the loops, outermost first. ends: inputs that are read, and outputs.
    """
    batch = tuple(n for n in order if n not in long and n not in short)
    full = [t for t in ends if len(axes.memory_order(t)) == len(order)]
    is_plain = not any(isinstance(e, LookupOp) for e in axes.fusion.tensor_exprs()) and not any(t.dtype().is_packed or lookup_of(t) is not None for t in ends)
    moved = [t for t in full if axes.memory_order(t)[-1] == short[-1]]
    straight = [t for t in full if axes.memory_order(t)[-1] == long[-1]]
    if not is_plain or not moved or not straight or len(moved) + len(straight) < len(full):
        return None
    long_limits = VectorLimits(axes, (*batch, *short, *long), [t for t in ends if t not in moved])
    short_limits = VectorLimits(axes, (*batch, *long, *short), moved)
    if set(short_limits.anywhere(len(batch))) != set(moved) or not set(straight) <= set(long_limits.vectorizable):
        return None
    names = frozenset(t.name for t in moved)
    return ShortTiles(axes, (*batch, *short, *long), long, short, long_limits, short_limits, tuple(full), names, reference, *cost, is_along)


def schedule_short_tiles(fusion: Fusion, found: ShortTiles, params: ShortTileParams) -> ScheduleResult:
    """Schedule `fusion` in place."""
    sizes = tuple((sym, extent) for sym, extent in zip(found.syms, params.short) if not sym.is_const)
    if sizes:
        substitute_extents(fusion, {sym: const(extent) for sym, extent in sizes})
        fusion.findings.clear()
    template = Template(fusion)
    name = found.reference.name
    reference = next(local for local, output in template.outputs if name in (local.name, output.name))
    by_short: list[TensorView] = []  # pieces of memory
    by_thread: list[TensorView] = []  # the part of such a piece in a thread
    lanes: list[TensorView] = []
    for source, cache in template.inputs:
        if source.name in found.moved:
            by_short.append(_shared_copy(source, params))
            by_thread.append(cache)
            lanes += [by_short[-1], cache]
    kept = list(by_thread)
    for local, output in template.outputs:
        if found.moved & {local.name, output.name}:
            shared, registers = cache_before(output), cache_before(output)
            turned = cache_before(shared)
            _lay_out(shared, params)
            by_thread += [turned, shared]
            by_short += [registers, output]
            lanes += [shared, registers, output]
            kept += [local, turned]
        elif local in by_thread:  # a copy of the input: stored in vectors along the long side, and in registers by pieces of memory
            cache_before(output)
    _tiles(reference, found, params)
    template.propagate(reference)
    for tensor in by_short:
        _short_side(tensor, params)
    _long_side(reference, params)
    template.propagate(reference)
    at = params.outer_axes
    for tensor in by_thread:
        reorder(tensor, {3 + at: 4 + at, 4 + at: 3 + at})
        flat = merge_axes_at(tensor, 3 + at, 2)
        split_axis(tensor, flat, params.vector_elems)  # type: ignore[arg-type]
    parallelize_like(reference)
    template.vectorize([t.name for t in found.long_limits.vectorizable], params.vector_elems)
    for tensor in lanes:
        set_lanes(tensor)
    loads = {cache: 3 + at for _, cache in template.inputs}
    in_tile, in_thread = dict.fromkeys(by_short, 1 + at), dict.fromkeys(kept, 3 + at)
    template.inline_fixed({**loads, **in_tile, **in_thread, **{t: 1 + at for t in by_thread if t.memory_type is MemoryType.shared}}, 0)
    threads = [(ParallelType.block_x, params.threads), (ParallelType.block_y, params.tiles)]
    return ScheduleResult(tuple(threads[: 1 + at]), sizes=sizes)


def _shared_copy(source: TensorView, params: ShortTileParams) -> TensorView:
    """Insert a copy in shared memory between an input and its registers; return it."""
    is_async = params.vector_elems * source.dtype().bits // 8 in CP_ASYNC_BYTES
    copy = cache_after(source, LoadStoreOpType.cp_async if is_async else LoadStoreOpType.set, propagate_allocation_domain=False)
    _lay_out(copy, params)
    return copy


def _lay_out(tensor: TensorView, params: ShortTileParams) -> None:
    """Put a tile in shared memory. Lanes access neighbouring vectors, and vectors `short_elems` apart, which are in different banks if that number is odd."""
    set_memory_type(tensor, MemoryType.shared)
    ways = SHARED_BANKS * BANK_BYTES * 8 // (params.vector_elems * tensor.dtype().bits) if params.short_elems % 2 == 0 else 1
    swizzle_shared(tensor, SharedSwizzle(params.vector_elems, ways, ways))


def _tiles(reference: TensorView, found: ShortTiles, params: ShortTileParams) -> None:
    """Transform the loops of the reference to [tiles, one, short, long], or [blocks, tiles, one, short, long]."""
    arrange(reference, places_in_order(found.reference.get_logical_domain(), found.order, found.axes))
    outer, short, long = merge_two_runs(reference, len(found.short), len(found.long))
    tiles, part = split_axis(reference, long, params.tile_elems)
    arrange_axes(reference, [*outer, tiles, short, part])
    merge_axes_at(reference, 0, len(outer) + 1)
    if params.outer_axes:
        split_axis(reference, reference.axis(0), params.tiles)
    split_axis(reference, reference.axis(params.outer_axes), 1)


def _bind(tensor: TensorView, params: ShortTileParams, *kinds: ParallelType) -> None:
    tiles = [ParallelType.block_y] * params.outer_axes
    for position, kind in enumerate([ParallelType.grid_x, *tiles, *kinds]):
        tensor.axis(position).parallelize(kind)


def _short_side(tensor: TensorView, params: ShortTileParams) -> None:
    """[tiles, one, short, long] -> [tiles, one, vectors of a thread, threads, vector]."""
    at = params.outer_axes
    reorder(tensor, {2 + at: 3 + at, 3 + at: 2 + at})
    vectors, _ = split_axis(tensor, merge_axes_at(tensor, 2 + at, 2), params.vector_elems)  # type: ignore[arg-type]
    split_axis(tensor, vectors, params.threads)
    _bind(tensor, params, ParallelType.unswitch, ParallelType.unroll, ParallelType.block_x)


def _long_side(reference: TensorView, params: ShortTileParams) -> None:
    """[tiles, one, short, long] -> [tiles, one, threads, short, vector]."""
    at = params.outer_axes
    split_axis(reference, reference.axis(3 + at), params.vector_elems)
    reorder(reference, {2 + at: 3 + at, 3 + at: 2 + at})
    _bind(reference, params, ParallelType.unswitch, ParallelType.block_x)


__all__ = ["ShortTileParams", "ShortTiles", "schedule_short_tiles", "short_tiles"]
