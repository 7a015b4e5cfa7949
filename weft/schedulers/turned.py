"""Transposed outputs of tiles, which are contiguous along the reduced axis, such as codes of columns quantized in blocks of 16 rows.

A thread holds all rows of its columns, and stores of each column its rows as one vector. Neighbouring lanes lie along columns, the next ones along the tiles
above each other, whose parts of a column are neighbours in memory, so that a warp stores whole sectors.

Owns which outputs are turned, and the template. Read first: `turned_outputs`, `schedule_turned`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.loop_axes import LoopAxes
from ..analysis.reduction_shape import ReductionShape
from ..ir.block_ops import sample_of
from ..ir.enums import ParallelType
from ..ir.values import IterDomain, PointwiseOp, TensorView
from .row_passes import Passes
from .rows import arrange_axes, kept_and_reduced, merge_axes_at, split_axis, split_last_run
from .template import set_lanes

MOST_TURNED_ROWS = 32
LANES_ALONG_COLUMNS = 8
TURNED_THREADS = 128
READ_BITS = 64
"""Lanes of a warp along columns: with vectors of 16 bytes they read lines of 128 bytes, and the four rows of lanes store 32 bytes of a column of 4 bits. Bits
of neighbouring columns that are read from shared memory at once: lanes are 16 bytes apart, so reads of single columns would have bank conflicts."""


def turned_outputs(outputs: list[TensorView], axes: LoopAxes, shape: ReductionShape) -> list[TensorView]:
    """Return the outputs whose innermost axis in memory is the reduced one, if tiles can transpose them: it is a single axis with a small constant extent."""
    if shape.is_inner or len(shape.reduced) != 1:
        return []
    (reduced,) = shape.reduced
    rows = axes.extent_sym(reduced)
    if not rows.is_const or not 2 <= int(rows.value) <= MOST_TURNED_ROWS or rows.value & rows.value - 1:  # type: ignore[arg-type, operator]
        return []
    return [t for t in outputs if sample_of(t) is None and axes.memory_order(t)[-1:] == (reduced,)]


def schedule_turned(reference: TensorView, axes: LoopAxes, shape: ReductionShape, vector_elems: int, bdimx: int, bdimy: int, unswitch: bool) -> int:
    """Transform and bind [BIDx, BIDy, one, rows, TIDy = tiles above each other, TIDx, vector]; return the number of axes outside of the rows. unswitch: the
    whole work of a block is inside the unswitched axis `one`, because conditions between rows keep the compiler from computing several at once.
    """
    loops, line, vector = split_last_run(reference, shape, axes, vector_elems)
    blocks, threads_x = split_axis(reference, line, bdimx)
    blocks, one = split_axis(reference, blocks, 1)
    if unswitch:
        one.parallelize(ParallelType.unswitch)
    others, reduced = kept_and_reduced(loops)
    arrange_axes(reference, [*others, *reduced, blocks, one, threads_x, vector])
    outer = merge_axes_at(reference, 0, len(others))
    rows = reference.axis(int(bool(others)))
    front: list[IterDomain] = [blocks, one]
    threads_y: list[IterDomain] = []
    blocks.parallelize(ParallelType.grid_y if others else ParallelType.grid_x)
    if outer is not None:
        above, within = split_axis(reference, outer, bdimy)
        above.parallelize(ParallelType.grid_x)
        within.parallelize(ParallelType.block_y)
        front, threads_y = [above, blocks, one], [within]
    threads_x.parallelize(ParallelType.block_x)
    arrange_axes(reference, [*front, rows, *threads_y, threads_x, vector])
    return len(front)


def turn(turned: list[tuple[TensorView, TensorView]], passes: Passes, row_axes: int, again: Sequence[TensorView] = ()) -> None:
    """Make the rows of a thread the innermost, vectorized loop of transposed outputs and of tensors computed only for these. turned: (local tensor, output).
    Before: loops are those of `schedule_turned`. row_axes: number of axes outside of the rows. again: reads of shared memory only for these. After: [..., TIDx,
    pieces of columns, columns, rows], of `again` with the columns of a piece as the vector.
    """
    wanted: list[TensorView] = []
    for local, output in turned:
        wanted += [output, local]
    for tensor in wanted:
        definition = tensor.definition()
        for source in [] if definition is None else definition.tensor_inputs:
            is_own = all(any(out is t for t in wanted) for use in source.uses() for out in use.outputs)
            if is_own and passes.first.get(source.name, 0) and source.name not in passes.kept_names and not source.is_fusion_input and source not in wanted:
                wanted.append(source)
    piece = min((READ_BITS // t.dtype().bits for t in again), default=0)
    for tensor in [*wanted, *again]:
        loop = tensor.get_loop_domain()
        rows = loop[row_axes] if len(loop) > row_axes else None
        if rows is None or not rows.is_iteration() or rows.is_broadcast():
            continue
        *left, columns = (a for a in loop if a is not rows)
        columns.parallelize(ParallelType.serial)
        pieces = list(split_axis(tensor, columns, min(piece, int(columns.sym.value)))) if piece else [columns]  # type: ignore[arg-type]
        is_read = any(tensor is t for t in again)
        arrange_axes(tensor, [*left, pieces[0], rows, pieces[1]] if is_read else [*left, *pieces, rows])
        if is_read:
            set_lanes(tensor)
    for local, output in turned:
        set_lanes(output)
        definition = local.definition()
        if isinstance(definition, PointwiseOp) and definition.op_name == "cast" and local.dtype().is_narrow_float:
            set_lanes(local)
