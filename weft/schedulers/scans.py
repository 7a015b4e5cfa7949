"""Greedy: scans (cumsum and the like) with pointwise work around them. A block has whole rows, or a strip of columns.

    rows      others: [BIDx]              row: [BIDy, pieces, unroll, TIDx, vector]
    columns   columns and others: [BIDx, TIDx]   column: [BIDy, pieces, TIDy, group]

Pieces are a serial loop, and what they fold to is carried along in a register. Few long rows or columns are shared by blocks along y, which read them twice
(`lower.scans.share_scans`). Owns the template and its parameters. Read first: `Scans.apply`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..analysis.connected import is_connected
from ..analysis.loop_axes import LoopAxes, Obstacle, loop_axes, loop_order, pointwise_reference
from ..analysis.lookups import bad_source, loads
from ..analysis.reduction_shape import reduction_exprs
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits
from ..arch import MAX_GRID, WARP_THREADS, Arch
from ..dtypes import DataType
from ..ir.block_ops import BlockFoldOp
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.graph_ops import At, LookupOp, ScanOp
from ..ir.values import Expr, IterDomain, TensorView
from ..schedule.staying_blocks import StayingBlocks
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .rows import Template, arrange, arrange_axes, merge_axes_at, split_axis
from .arithmetic import ceil_div, next_power_of_two, previous_power_of_two
from .limits import FULL_BLOCK_THREADS, LOOP_THREAD_REGISTERS

TYPES = (
    DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16, DataType.Int, DataType.Int32,
)  # fmt: skip
ROW_THREADS = 128
ROW_UNROLL = 2
"""Vectors per thread whose loads are issued together."""
COLUMN_THREADS, NARROW_COLUMN_THREADS = FULL_BLOCK_THREADS, FULL_BLOCK_THREADS // 2
LEAST_PIECES = 4
"""For each block that shares a row, which it reads twice."""
MOST_SHARING = WARP_THREADS * WARP_THREADS
"""The most blocks that share a row: each lane of a warp reads up to 32 of their totals."""
COLUMN_NEIGHBOURS = 8
"""Rows per thread in one piece; the loads of the next piece are in flight meanwhile."""


@dataclass(frozen=True)
class ScanParams:
    """A schedule of scans; equal params (with equal structure, index type and device) mean the same kernel. is_ahead: the loads of the next piece are issued
    before the present one is scanned. blocks: those that share a row or column; all of them run at once.
    """

    is_row: bool
    neighbours: int
    unroll: int
    bdimx: int
    bdimy: int
    max_registers: int
    is_ahead: bool = False
    blocks: int = 1


class ScanAnalysis:
    """Loops of a fusion of scans along one of them, `along`. reference: the output that has all loops."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, reference: TensorView, along: int, scans: Sequence[TensorView]) -> None:
        self.axes, self.reference, self.along = axes, reference, along
        self.is_shareable = not any(depends_on(t, scans) for t in scans)
        self.scans = [t.name for t in scans]
        outputs = [v for v in fusion.outputs() if isinstance(v, TensorView)]
        stored = axes.stored(reference)
        order = loop_order(axes, [n for n in axes.logical_order(reference) if n in stored], [*loads(fusion), *outputs])
        self.is_row = order[-1] == along
        self.order = order
        self.limits = VectorLimits(axes, order, [*loads(fusion), *outputs])
        self.max_dtype_bits = max(t.dtype().bits for t in (*loads(fusion), *outputs))


class Scans(Scheduler):
    """Scans; see the module."""

    name = SchedulerType.greedy
    takes_scans = True

    def analyze(self, fusion: Fusion) -> ScanAnalysis | Decline:
        scans = [e for e in fusion.tensor_exprs() if isinstance(e, ScanOp)]
        if not scans:
            return Decline("there is no scan (running fold)")
        if found := reduction_exprs(fusion):
            return Decline(f"{found[0].outputs[0]} is a reduction")
        if not is_connected(fusion):
            return Decline("the outputs fall into groups that share no tensor")
        if reason := bad_source(fusion):
            return Decline(reason)
        if any(isinstance(e, BlockFoldOp) for e in fusion.tensor_exprs()):
            return Decline("blocks of neighbours are held together by the loops of rows and of pointwise fusions alone")
        axes = loop_axes(fusion)
        reference = pointwise_reference(axes)
        if isinstance(reference, Obstacle):
            return Decline(str(reference))
        results: list[TensorView] = [e.outputs[0] for e in scans]  # type: ignore[misc]
        along = {axes.of(t.get_logical_domain()[e.attributes["dim"]]) for e, t in zip(scans, results)}
        if len(along) != 1 or None in along:
            return Decline("the scans run along different axes, or along an axis of one element")
        for tensor in results:
            if axes.stored(tensor) != axes.stored(reference):
                return Decline(f"{tensor} lacks an axis of {reference}")
            if tensor.dtype() not in TYPES:
                return Decline(f"torch runs scans of {tensor.dtype()}")
        return ScanAnalysis(fusion, axes, reference, next(iter(along)), results)  # type: ignore[arg-type]

    def choose(self, analysis: ScanAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[ScanParams, str]:
        extents = analysis.axes.extents_elems(sizes)
        row, others = extents[analysis.along], math.prod(extents[n] for n in analysis.order if n != analysis.along)
        if analysis.is_row:
            limit = analysis.limits.limit_elems(len(analysis.order) - 1, sizes, alignment_bits)
            vector = min(limit, max(1, MAX_VECTOR_BITS // analysis.max_dtype_bits))
            threads = min(ROW_THREADS, max(32, next_power_of_two(ceil_div(row, vector * 2))))
            unroll = min(ROW_UNROLL, next_power_of_two(ceil_div(row, vector * threads)))
            params = ScanParams(True, vector, unroll, threads, 1, arch.registers_per_thread(2048))
        else:
            is_wide = analysis.max_dtype_bits >= 32
            threads, rounds = (COLUMN_THREADS, 1) if is_wide else (NARROW_COLUMN_THREADS, 2)
            bdimx = 32
            while bdimx > 8 and ceil_div(others, bdimx) < rounds * arch.sm_count:
                bdimx //= 2
            bdimy = max(1, min(threads // bdimx, next_power_of_two(ceil_div(row, COLUMN_NEIGHBOURS))))
            bdimy = max(bdimy, 32 // bdimx)
            registers = LOOP_THREAD_REGISTERS if is_wide else arch.registers_per_thread(2048)
            params = ScanParams(False, COLUMN_NEIGHBOURS, 1, bdimx, bdimy, registers, is_ahead=is_wide)
        params = replace(params, blocks=blocks_of_a_row(params, row, others, arch) if analysis.is_shareable else 1)
        return params, f"greedy: {others} running folds of {row} elements, {params}"

    def candidates(self, analysis: ScanAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, ScanParams]]:
        chosen, _ = self.choose(analysis, sizes, alignment_bits, arch)
        out = [chosen]
        if chosen.is_row:
            out += [replace(chosen, bdimx=threads, unroll=unroll) for threads in (64, 128, 256) for unroll in (1, 2)]
        else:
            threads = chosen.bdimx * chosen.bdimy
            out += [replace(chosen, bdimx=bdimx, bdimy=max(1, threads // bdimx)) for bdimx in (8, 16, 32)]
        extents = analysis.axes.extents_elems(sizes)
        row, others = extents[analysis.along], math.prod(extents[n] for n in analysis.order if n != analysis.along)
        out = [replace(params, blocks=min(chosen.blocks, blocks_of_a_row(params, row, others, arch))) for params in out]
        return [("rows" if params.is_row else "columns", params) for params in dict.fromkeys(out)]

    def accept(self, analysis: ScanAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        extents = analysis.axes.extents_elems(sizes)
        others = math.prod(extents[n] for n in analysis.order if n != analysis.along)
        return Decline(f"{others} scans are more than the largest grid") if others > MAX_GRID[0] else None

    def apply(self, fusion: Fusion, analysis: ScanAnalysis, params: ScanParams) -> ScheduleResult:
        template = Template(fusion)
        reference = template.tensor(analysis.reference.name)
        names = {t.name for t in fusion.tensors()}
        scans: list[TensorView] = [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ScanOp)]  # type: ignore[misc]
        assert names
        loads_at = schedule_rows(reference, analysis, params) if params.is_row else schedule_columns(reference, analysis, params)
        template.propagate(reference)
        template.bind(reference)
        if params.is_row:
            template.vectorize([t.name for t in analysis.limits.vectorizable], params.neighbours)
        group = len(reference.get_loop_domain()) - (1 if params.is_row else 2)  # after it scans may have additional broadcast axes
        for tensor in scans:
            tensor.axis(group).parallelize(ParallelType.group)
        template.inline_fixed(dict.fromkeys(template.loads, loads_at), 0)
        static = ((ParallelType.block_x, params.bdimx), (ParallelType.block_y, params.bdimy))
        ahead = frozenset(t.name for t in template.loads if not is_indirect(t.definition()))  # an index would have to be loaded two pieces ahead
        staying = StayingBlocks(ahead) if params.is_ahead else None
        return ScheduleResult(static if params.bdimy > 1 or not params.is_row else static[:1], params.max_registers, staying=staying)


def blocks_of_a_row(params: ScanParams, row: int, others: int, arch: Arch) -> int:
    """Return how many blocks share a row or column: as many as fit on the chip, if one block per row or column would leave half of it idle."""
    threads = params.bdimx * params.bdimy
    piece = params.neighbours * params.unroll * (params.bdimx if params.is_row else params.bdimy)
    used = others if params.is_row else ceil_div(others, params.bdimx)
    seats = arch.sm_count * arch.blocks_per_sm(threads, params.max_registers, 2 * threads * DataType.Double.bits // 8)
    most = min(seats // max(1, used), ceil_div(row, piece) // LEAST_PIECES, MOST_SHARING)
    return previous_power_of_two(most) if most > 1 and 2 * used <= arch.sm_count else 1


def depends_on(tensor: TensorView, others: Sequence[TensorView]) -> bool:
    """True if a tensor is computed from one of the others."""
    stack, seen = [tensor], {tensor}
    while stack:
        made = stack.pop().definition()
        more = [t for t in (made.tensor_inputs if made is not None else ()) if t not in seen]
        if any(t in others for t in more):
            return True
        seen.update(more)
        stack += more
    return False


def is_indirect(expr: Expr | None) -> bool:
    """True for a lookup whose positions an index tensor gives."""
    return isinstance(expr, LookupOp) and any(isinstance(place, At) for place in expr.positions)


def _in_order(reference: TensorView, analysis: ScanAnalysis) -> int:
    """Put the loops of the reference in memory order, the scanned one last; return the number of others. Axes of one element are merged with the scanned one,
    because with separate loops the reference would not share loops with tensors without them.
    """
    classes = [analysis.axes.of(a) for a in analysis.reference.get_logical_domain()]
    place: dict[int | None, int] = {n: k for k, n in enumerate(analysis.order)}
    place[None], place[analysis.along] = len(place), len(place) + 1
    arrange(reference, sorted(range(len(classes)), key=lambda k: (place[classes[k]], k)))
    ones = classes.count(None)
    merge_axes_at(reference, len(classes) - 1 - ones, 1 + ones)
    return len(classes) - 1 - ones


def schedule_rows(reference: TensorView, analysis: ScanAnalysis, params: ScanParams) -> int:
    """Transform and bind rows; return the number of axes outside of the unrolled part."""
    others = merge_axes_at(reference, 0, _in_order(reference, analysis))
    outer, vector = split_axis(reference, reference.axis(-1), params.neighbours)
    outer, threads = split_axis(reference, outer, params.bdimx)
    pieces, unroll = split_axis(reference, outer, params.unroll)
    shared, pieces = share(reference, pieces, params.blocks)
    threads.parallelize(ParallelType.block_x)
    if others is not None:
        others.parallelize(ParallelType.grid_x)
    arrange_axes(reference, [*([] if others is None else [others]), *shared, pieces, unroll, threads, vector])
    return 1 + len(shared) + (others is not None)


def share(reference: TensorView, pieces: IterDomain, blocks: int) -> tuple[list[IterDomain], IterDomain]:
    """Split the pieces into contiguous parts, one per block; return the axis of the blocks, if there are several, and that of the pieces of each."""
    if blocks == 1:
        return [], pieces
    shared, own = split_axis(reference, pieces, blocks, False)
    shared.parallelize(ParallelType.grid_y)
    return [shared], own


def schedule_columns(reference: TensorView, analysis: ScanAnalysis, params: ScanParams) -> int:
    """Transform and bind columns; return the number of axes outside of a piece."""
    columns = merge_axes_at(reference, 0, _in_order(reference, analysis))
    assert columns is not None
    blocks, across = split_axis(reference, columns, params.bdimx)
    outer, group = split_axis(reference, reference.axis(-1), params.neighbours)
    pieces, down = split_axis(reference, outer, params.bdimy)
    shared, pieces = share(reference, pieces, params.blocks)
    blocks.parallelize(ParallelType.grid_x)
    across.parallelize(ParallelType.block_x)
    down.parallelize(ParallelType.block_y)
    arrange_axes(reference, [blocks, *shared, pieces, down, group, across])
    return 2 + len(shared)
