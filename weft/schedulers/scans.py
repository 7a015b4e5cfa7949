"""Greedy: scans (cumsum and the like) with pointwise work around them. A block has whole rows, or a strip of columns.

    rows      others: [BIDx, TIDy]        row: [BIDy, pieces, unroll, TIDx, vector]
    columns   columns and others: [BIDx, TIDx, vector]   column: [BIDy, pieces, TIDy, group]

Pieces are a serial loop, and what they fold to is carried along in a register. A warp, or a part of one, has a short row, and a block several. Few long rows or
columns are shared by blocks along y, which read them twice (`lower.scans.share_scans`). Results of rows that begin anywhere go through shared memory
(`stage_outputs`). Owns the template and its parameters. Read first: `Scans.apply`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..analysis.connected import is_connected
from ..analysis.lookup_work import FEWEST_OF_A_WINDOW, computed_lookups
from ..analysis.loop_axes import LoopAxes, Obstacle, loop_axes, loop_order, pointwise_reference
from ..analysis.lookups import bad_source, loads
from ..analysis.reduction_shape import reduction_exprs
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits
from ..arch import MAX_GRID, SECTOR_BYTES, WARP_THREADS, Arch
from ..dtypes import DataType, StateType
from ..ir.block_ops import BlockFoldOp
from ..ir.enums import MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.graph_ops import At, LookupOp, ScanOp
from ..ir.values import Expr, IterDomain, TensorView
from ..schedule.caching import cache_before
from ..schedule.primitives import set_memory_type
from ..schedule.staying_blocks import StayingBlocks
from .arithmetic import ceil_div, few_digits, next_power_of_two, previous_power_of_two
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .cost.passing import FEW_WAVES
from .limits import FULL_BLOCK_THREADS, LOOP_THREAD_REGISTERS
from .rows import arrange, arrange_axes, merge_axes_at, split_axis
from .template import Template

TYPES = (
    DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16, DataType.Int, DataType.Int32,
)  # fmt: skip
ROW_THREADS = 128
SHARED_ROW_THREADS = 2 * ROW_THREADS
"""Threads of a block that has a row, or a part of one."""
LANE_BLOCK_THREADS = SHARED_ROW_THREADS
"""Threads of a block whose warps have a row each, or several."""
ROW_UNROLL = 2
"""Vectors per thread whose loads are issued together."""
WARP_PIECES = 2 * ROW_UNROLL
"""The most pieces of a row, each of a vector for each lane, that a warp scans alone, in two rounds of loads: blocks that have a row of a few kB each start more
slowly than memory delivers the rows. Counted: docs/constants.md."""
COLUMN_THREADS = FULL_BLOCK_THREADS // 2
LEAST_PIECES = 2
"""For each block that shares a row, which it reads twice."""
MOST_SHARING = WARP_THREADS * WARP_THREADS
"""The most blocks that share a row: each thread of a column, or row, reads the totals of some."""
MOST_POSITIONS = (1 << 31) - 1
"""Elements of an axis whose positions are counted in a state, in 32 bits."""
COLUMN_NEIGHBOURS = 8
STAGED_ELEMS = COLUMN_NEIGHBOURS
"""Elements that a thread loads together, one by one, of a row that begins anywhere."""
COLUMN_ELEMS, FEW_COLUMNS = 2 * COLUMN_NEIGHBOURS, COLUMN_NEIGHBOURS // 2
COLUMNS_OF_A_THREAD = COLUMN_ELEMS // COLUMN_NEIGHBOURS
"""The most rows of a thread in one piece, elements, and columns, unless there are no more than the last; the loads of the next piece are in flight meanwhile.
Each row costs addresses and bounds, and each column an exchange with other threads; with more columns and fewer rows, more threads wait for each other's
totals. Counted: docs/constants.md."""
IDLE_SHARE = 10
"""Columns are divided among as few blocks as leave less than one in so many multiprocessors idle: wide pieces of memory count for more than the rest."""


@dataclass(frozen=True)
class ScanParams:
    """A schedule of scans; equal params (with equal structure, index type and device) mean the same kernel. neighbours: elements along a row or column that a
    thread has in a vector (rows) or in a piece (columns). is_ahead: the loads of the next piece are issued before the present one is scanned. blocks: those
    that share a row or column; all of them run at once. bdimy: rows of a block, each of which bdimx lanes of a warp have. columns: those of a thread, in a
    vector. is_staged: rows begin anywhere, so a thread loads its neighbours one by one, and stores go through shared memory, in which they become those of
    neighbouring threads.
    """

    is_row: bool
    neighbours: int
    unroll: int
    bdimx: int
    bdimy: int
    max_registers: int
    is_ahead: bool = False
    blocks: int = 1
    columns: int = 1
    is_staged: bool = False


class ScanAnalysis:
    """Loops of a fusion of scans along one of them, `along`. reference: the output that has all loops. neighbour_bits: of the widest type that decides how many
    neighbours of a row a thread has; positions, of 64 bits in memory, are stored in several accesses. column_elems: the most elements of a thread in one
    piece of its columns; a state takes the registers of several. operands: tensors that an element of a scan is made of, each of which a thread loads, beside
    its position. is_wide: an element has more than 32 bits, or a state more than 64."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, reference: TensorView, along: int, scans: Sequence[TensorView]) -> None:
        self.axes, self.reference, self.along = axes, reference, along
        self.is_shareable = not any(depends_on(t, scans) for t in scans)
        self.scans = [t.name for t in scans]
        outputs = fusion.tensor_outputs()
        stored = axes.stored(reference)
        order = loop_order(axes, [n for n in axes.logical_order(reference) if n in stored], [*loads(fusion), *outputs])
        self.is_row = order[-1] == along
        self.order = order
        self.limits = VectorLimits(axes, order, [*loads(fusion), *outputs])
        self.has_positions = any(isinstance(dtype := t.dtype(), StateType) and DataType.Int32 in dtype.fields for t in scans)
        self.operands = max(map(_operands, scans))
        self.max_dtype_bits = max(t.dtype().bits for t in (*loads(fusion), *outputs))
        of_values = [t.dtype().bits for t in (*loads(fusion), *(t for t in outputs if t.dtype() is not DataType.Int))]
        self.neighbour_bits = max([*of_values, DataType.Int32.bits]) if self.has_positions or self.operands > 1 else self.max_dtype_bits
        states = [t.dtype().bits for t in scans if isinstance(t.dtype(), StateType)]
        self.column_elems = min([COLUMN_ELEMS, *(COLUMN_ELEMS * 32 // bits for bits in states)]) // self.operands
        self.is_wide = any(t.dtype().bits > (64 if isinstance(t.dtype(), StateType) else 32) for t in scans)
        self.has_windows = len(computed_lookups(loads(fusion))) >= FEWEST_OF_A_WINDOW

    def columns_of_a_thread(self, others: int, sizes: Sizes, alignment_bits: Alignments) -> int:
        """Return how many neighbouring columns of `others` a thread has: as many as it can access together; one where it looks up a window for each element."""
        limit = self.limits.limit_elems(self.order.index(self.along) + 1, sizes, alignment_bits)
        return 1 if self.is_wide or self.has_windows else min(limit, FEW_COLUMNS if others <= FEW_COLUMNS else COLUMNS_OF_A_THREAD)

    def is_divided_enough(self, blocks: int, columns: int, row: int, arch: Arch) -> bool:
        """True if so many blocks of columns keep the chip busy: few multiprocessors are idle, and each loads at once what memory moves for it during
        the latencies of a load and a store.

        Less is slower, and so is more in narrower pieces. Measured: docs/constants.md.
        """
        resident = blocks / arch.sm_count
        loaded = resident * column_threads(blocks, arch) * most_neighbours(row, columns, self.column_elems) * columns * self.max_dtype_bits / 8
        wanted = (arch.latencies.dram_latency_ns + arch.latencies.l2_latency_ns) * arch.share_bytes_per_ns
        return IDLE_SHARE * resident >= IDLE_SHARE - 1 and loaded >= wanted


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
        if len({bool(e.attributes.get("reverse")) for e in scans}) > 1:
            return Decline("some scans begin at the last element, others at the first")
        if len(along) != 1 or None in along:
            return Decline("the scans run along different axes, or along an axis of one element")
        for tensor in results:
            if axes.stored(tensor) != axes.stored(reference):
                return Decline(f"{tensor} lacks an axis of {reference}")
            if tensor.dtype() not in TYPES and not isinstance(tensor.dtype(), StateType):
                return Decline(f"torch runs scans of {tensor.dtype()}")
        return ScanAnalysis(fusion, axes, reference, next(iter(along)), results)  # type: ignore[arg-type]

    def choose(self, analysis: ScanAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[ScanParams, str]:
        extents = analysis.axes.extents_elems(sizes)
        row, others = extents[analysis.along], math.prod(extents[n] for n in analysis.order if n != analysis.along)
        if analysis.is_row:
            widest = max(1, MAX_VECTOR_BITS // analysis.neighbour_bits)
            limit = analysis.limits.limit_elems(len(analysis.order) - 1, sizes, alignment_bits, max(MAX_VECTOR_BITS, widest * analysis.max_dtype_bits))
            is_staged = 2 * limit < widest and row >= widest * WARP_THREADS
            vector = widest if is_staged else min(limit, widest)
            is_alone = not (analysis.is_shareable and is_shared(others, arch))
            staged_elems = STAGED_ELEMS // 2 if analysis.has_positions else STAGED_ELEMS  # a value and its position take the registers of two
            most_unroll = max(1, (staged_elems // vector if is_staged else ROW_UNROLL) // analysis.operands)
            threads, rows = lanes_of_rows(ceil_div(row, vector), others, arch) if is_alone else (SHARED_ROW_THREADS, 1)
            if rows == 1:
                most_threads = row_threads(others, arch) if is_alone else SHARED_ROW_THREADS
                threads = min(most_threads, max(WARP_THREADS, next_power_of_two(ceil_div(row, vector * most_unroll))))
            unroll = min(most_unroll, next_power_of_two(ceil_div(row, vector * threads)))
            is_ahead = row > vector * unroll * threads
            params = ScanParams(True, vector, unroll, threads, rows, LOOP_THREAD_REGISTERS, is_ahead=is_ahead, is_staged=is_staged)
        else:
            columns, threads = analysis.columns_of_a_thread(others, sizes, alignment_bits), COLUMN_THREADS
            across = ceil_div(others, columns)
            bdimx = WARP_THREADS
            of_a_sector = ceil_div(8 * SECTOR_BYTES, columns * analysis.max_dtype_bits)
            while bdimx > of_a_sector and not analysis.is_divided_enough(ceil_div(across, bdimx), columns, row, arch):
                bdimx //= 2
            if analysis.is_shareable and is_shared(ceil_div(across, bdimx), arch):
                bdimx = ceil_div(across, ceil_div(across, WARP_THREADS))
            else:
                threads = column_threads(ceil_div(across, bdimx), arch)
            params = column_params(row, columns, bdimx, threads, analysis.column_elems)
        params = replace(params, blocks=blocks_of_a_row(params, row, others, arch) if analysis.is_shareable else 1)
        return params, f"greedy: {others} running folds of {row} elements, {params}"

    def candidates(self, analysis: ScanAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, ScanParams]]:
        chosen, _ = self.choose(analysis, sizes, alignment_bits, arch)
        out = [chosen]
        if chosen.is_row:
            kinds = itertools.product((64, 128, 256), (1, 2), (False, True))
            out += [replace(chosen, bdimx=threads, bdimy=1, unroll=unroll, is_ahead=is_ahead) for threads, unroll, is_ahead in kinds]
        else:
            row = analysis.axes.extents_elems(sizes)[analysis.along]
            threads = (COLUMN_THREADS, FULL_BLOCK_THREADS)
            out += [column_params(row, chosen.columns, bdimx, count, analysis.column_elems) for bdimx in (4, 8, 16, 32) for count in threads]
        extents = analysis.axes.extents_elems(sizes)
        row, others = extents[analysis.along], math.prod(extents[n] for n in analysis.order if n != analysis.along)
        out = [replace(params, blocks=min(chosen.blocks, blocks_of_a_row(params, row, others, arch))) for params in out]
        return [("rows" if params.is_row else "columns", params) for params in dict.fromkeys(out)]

    def accept(self, analysis: ScanAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        extents = analysis.axes.extents_elems(sizes)
        others = math.prod(extents[n] for n in analysis.order if n != analysis.along)
        if analysis.has_positions and extents[analysis.along] > MOST_POSITIONS:
            return Decline(f"positions in a state have 32 bits, and the axis has {extents[analysis.along]} elements")
        return Decline(f"{others} scans are more than the largest grid") if others > MAX_GRID[0] else None

    def apply(self, fusion: Fusion, analysis: ScanAnalysis, params: ScanParams) -> ScheduleResult:
        template = Template(fusion)
        reference = template.tensor(analysis.reference.name)
        scans: list[TensorView] = [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ScanOp)]  # type: ignore[misc]
        loads_at = schedule_rows(reference, analysis, params) if params.is_row else schedule_columns(reference, analysis, params)
        template.propagate(reference)
        template.bind(reference)
        end = len(reference.get_loop_domain())  # after it scans may have additional broadcast axes
        staged = stage_outputs(template, reference, params) if params.is_staged else []
        if not params.is_staged:
            template.vectorize([t.name for t in analysis.limits.vectorizable], params.neighbours if params.is_row else params.columns)
        for tensor in scans:
            for place in range(end - (1 if params.columns == 1 else 2), end):
                tensor.axis(place).parallelize(ParallelType.group)
        template.inline_fixed(dict.fromkeys((*template.loads, *staged), loads_at), 0)
        static = ((ParallelType.block_x, params.bdimx), (ParallelType.block_y, params.bdimy))
        ahead = frozenset(t.name for t in template.loads if not is_indirect(t.definition()))  # an index would have to be loaded two pieces ahead
        staying = StayingBlocks(ahead) if params.is_ahead else None
        return ScheduleResult(static if params.bdimy > 1 or not params.is_row else static[:1], params.max_registers, staying=staying)


def blocks_of_a_row(params: ScanParams, row: int, others: int, arch: Arch) -> int:
    """Return how many blocks share a row or column: as many as fit on the chip, if one block per row or column would leave half of it idle."""
    threads = params.bdimx * params.bdimy
    others = ceil_div(others, params.columns)
    piece = params.neighbours * params.unroll * (params.bdimx if params.is_row else params.bdimy)
    used = others if params.is_row else ceil_div(others, params.bdimx)
    of_a_total = DataType.Double.bits // 8
    shared_bytes = 2 * params.columns * max(threads // WARP_THREADS * (1 if params.is_row else params.bdimx), 1) * of_a_total
    shared_bytes += params.is_staged * params.neighbours * params.unroll * threads * of_a_total
    seats = arch.sm_count * arch.blocks_per_sm(threads, params.max_registers, shared_bytes)
    most = min(seats // max(1, used), ceil_div(row, piece) // LEAST_PIECES, MOST_SHARING)
    return few_digits(most) if most > 1 and is_shared(used, arch) else 1


def is_shared(blocks: int, arch: Arch) -> bool:
    """True if so many blocks leave half of the chip idle."""
    return 2 * blocks <= arch.sm_count


def lanes_of_rows(vectors: int, rows: int, arch: Arch) -> tuple[int, int]:
    """Return the threads of a row of so many vectors, and the rows of a block: lanes of one warp for rows that one piece covers, or a few if there are as many
    rows as warps that fill the chip; otherwise a block has one row."""
    lanes = min(WARP_THREADS, next_power_of_two(vectors))
    is_filled = rows * WARP_THREADS >= arch.sm_count * arch.max_threads_per_sm // 2
    if rows > 1 and (vectors <= WARP_THREADS or vectors <= WARP_PIECES * WARP_THREADS and is_filled):
        return lanes, LANE_BLOCK_THREADS // lanes
    return WARP_THREADS, 1


def row_threads(rows: int, arch: Arch) -> int:
    """Return the threads of a block that has a row: more where few rounds of blocks would leave much of the chip idle in the last one."""
    threads = ROW_THREADS
    while threads < FULL_BLOCK_THREADS and rows < FEW_WAVES * arch.sm_count * arch.blocks_per_sm(threads, LOOP_THREAD_REGISTERS, 0):
        threads *= 2
    return threads


def column_threads(blocks: int, arch: Arch) -> int:
    """Return the threads of a block: with `LOOP_THREAD_REGISTERS` a multiprocessor has room for two blocks of the most threads, four of half as many, and so
    on; as many threads as let all blocks run at once, if possible."""
    threads = 2 * FULL_BLOCK_THREADS // max(1, ceil_div(blocks, arch.sm_count))
    return COLUMN_THREADS if threads < ROW_THREADS else min(FULL_BLOCK_THREADS, previous_power_of_two(threads))


def most_neighbours(row: int, columns: int, elems: int) -> int:
    """Return the rows of a column of `row` elements that a thread has in one piece. columns: of the thread; elems: the most of the thread."""
    return min(COLUMN_NEIGHBOURS, elems // columns, row)


def column_params(row: int, columns: int, bdimx: int, threads: int, elems: int) -> ScanParams:
    """Return a schedule of columns of `row` elements. columns: of a thread, bdimx: threads across, threads: of a block, which consists of whole
    warps, elems: the most of a thread in a piece."""
    neighbours = next_power_of_two(most_neighbours(row, columns, elems))
    of_warps = WARP_THREADS // math.gcd(bdimx, WARP_THREADS)
    most = max(1, round(threads / (bdimx * of_warps)))
    bdimy = of_warps * min(most, next_power_of_two(ceil_div(row, neighbours * of_warps)))
    return ScanParams(False, neighbours, 1, bdimx, bdimy, LOOP_THREAD_REGISTERS, is_ahead=True, columns=columns)


def _operands(scan: TensorView) -> int:
    """Return how many tensors the elements of a scan are made of, beside their positions."""
    dtype, made = scan.dtype(), scan.definition()
    assert isinstance(made, ScanOp)
    return len(made.elements) - (isinstance(dtype, StateType) and DataType.Int32 in dtype.fields and len(made.elements) > 1)


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
    rows: list[IterDomain] = []
    if others is not None and params.bdimy > 1:
        others, of_block = split_axis(reference, others, params.bdimy)
        of_block.parallelize(ParallelType.block_y)
        rows = [of_block]
    outer, vector = split_axis(reference, reference.axis(-1), params.neighbours)
    outer, threads = split_axis(reference, outer, params.bdimx)
    pieces, unroll = split_axis(reference, outer, params.unroll)
    shared, pieces = share(reference, pieces, params.blocks)
    threads.parallelize(ParallelType.block_x)
    if others is not None:
        others.parallelize(ParallelType.grid_x)
    arrange_axes(reference, [*([] if others is None else [others]), *rows, *shared, pieces, unroll, threads, vector])
    return 1 + len(shared) + len(rows) + (others is not None)


def stage_outputs(template: Template, reference: TensorView, params: ScanParams) -> list[TensorView]:
    """Let each piece of an output go through shared memory, from which neighbouring threads store neighbouring elements. Return the copies there.

    Before: [..., unroll, TIDx, neighbours].   After: an output has [..., elements, TIDx], of the same piece.
    """
    copies: list[TensorView] = []
    for _, output in template.outputs:
        if len(output.get_loop_domain()) == len(reference.get_loop_domain()) and all(a.is_iteration() for a in output.get_loop_domain()[-3:]):
            copies.append(set_memory_type(cache_before(output), MemoryType.shared))
            first = len(output.get_loop_domain()) - 3
            for axis in output.get_loop_domain()[first:]:
                axis.parallelize(ParallelType.serial)
            elements, threads = split_axis(output, merge_axes_at(output, first, 3), params.bdimx)  # type: ignore[arg-type]
            elements.parallelize(ParallelType.unroll)
            threads.parallelize(ParallelType.block_x)
    return copies


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
    columns, vector = split_axis(reference, columns, params.columns) if params.columns > 1 else (columns, None)
    blocks, across = split_axis(reference, columns, params.bdimx)
    outer, group = split_axis(reference, reference.axis(-1), params.neighbours)
    pieces, down = split_axis(reference, outer, params.bdimy)
    shared, pieces = share(reference, pieces, params.blocks)
    blocks.parallelize(ParallelType.grid_x)
    across.parallelize(ParallelType.block_x)
    down.parallelize(ParallelType.block_y)
    arrange_axes(reference, [blocks, *shared, pieces, down, across, group, *([] if vector is None else [vector])])
    return 2 + len(shared)
