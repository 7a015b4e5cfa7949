"""Column reductions of a kernel whose blocks reduce rows, too: partial results of blocks in global memory, and their sum behind the grid-wide barrier.

    partials  [slot = block, columns] in global memory; then all blocks meet
    columns   [serial, BIDx, serial slots, unroll, TIDy and TIDz = slots, TIDx, vector]     every sum in a fixed order, so that runs agree in every bit

Owns the loops of what is computed behind that barrier; `inner_outer.py` and `phased_columns.py` have the loops before it.
Read first: `cut`, `schedule_columns`.
"""

from __future__ import annotations

from ..ir.enums import CacheOp, LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import ELEMENTWISE, Expr, IterDomain, RandomOp, TensorView, no_reductions
from ..schedule.caching import cache_after
from ..schedule.peel import write_partials_by_phase
from ..schedule.primitives import set_allocation_domain, set_memory_type
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.recompute import recompute_chain
from ..schedule.rfactor import rfactor
from .inner_outer_params import InnerOuterParams
from .row_analysis import RowAnalysis
from .row_passes import load_again
from .rows import arrange_axes, merge_axes_at, places_in_order, split_axis
from .template import BOUND, Template
from .two_sides import TwoSidedAnalysis


def separate_columns(template: Template, totals: list[TensorView]) -> None:
    """Give the computation from column results its own copies of tensors that rows also use, because the loops of the two phases have nothing in common."""
    fusion = template.fusion
    columns = set(after(totals))
    memo: dict[TensorView, TensorView] = {}
    uses: list[Expr] = [e for e in fusion.tensor_exprs() if set(e.outputs) & columns]
    for use in uses:
        for operand in use.tensor_inputs:
            if operand not in columns and operand not in totals:
                recompute_chain(operand, use, memo, cloned=(*ELEMENTWISE, LookupOp, RandomOp))
    made = {clone for source, clone in memo.items() if clone is not source} | columns
    for _, cache in template.inputs:
        later = [use for use in cache.uses() if set(use.outputs) & made]
        if later and len(later) < len(cache.uses()):
            load_again(cache, later)


def after(tensors: list[TensorView]) -> list[TensorView]:
    """Return what is computed from `tensors`, in order."""
    fusion: Fusion = tensors[0].fusion  # type: ignore[assignment]
    seen, found = set(tensors), []
    for expr in fusion.tensor_exprs():
        if any(t in seen for t in expr.tensor_inputs):
            seen.update(expr.outputs)  # type: ignore[arg-type]
            found += expr.outputs
    return found  # type: ignore[return-value]


def column_side(fusion: Fusion, read: list[TensorView]) -> list[TensorView]:
    """Return all tensors computed after the grid-wide barrier: `read`, what is computed from it, and what only that needs."""
    found = {*read, *after(read)}
    handed_over = {t for copy in read for t in copy.definition().tensor_inputs}  # type: ignore[union-attr]
    for expr in reversed(fusion.tensor_exprs()):
        for tensor in expr.tensor_outputs:
            uses = tensor.uses()
            if uses and tensor not in handed_over and all(set(use.outputs) <= found for use in uses):
                found.add(tensor)
    return [t for t in fusion.tensors() if t in found]


def columns_in_memory(reduction: Expr, analysis: RowAnalysis) -> list[int]:
    """Return the order in memory of the kept axes of a column reduction, outermost first."""
    total: TensorView = reduction.outputs[0]  # type: ignore[assignment]
    return places_in_order(no_reductions(total.get_logical_domain()), analysis.shape.order, analysis.axes)


def cut(total: TensorView, row_axes: int, params: InnerOuterParams, order: list[int]) -> TensorView:
    """Split a column reduction: sum the rows of a block, write the partial result to global memory, and sum those of all blocks; return the copy that is read
    there.

    Before: loops as `split_rows` leaves them.   After: [blocks, samples?, row].
    """
    unrolled = [row_axes - 1] if params.row_unroll > 1 else []
    partial = rfactor(total, [0, 2, *unrolled])
    if params.groups > 1:
        partial = rfactor(total, [1 + params.has_samples])
    stored = cache_after(partial)
    set_memory_type(stored, MemoryType.global_)
    if params.is_phased:
        write_partials_by_phase(stored, params.vector_elems)
    place = slot_place(total)
    slots, columns = stored.get_logical_domain()[place], [a for n, a in enumerate(stored.get_logical_domain()) if n != place]
    set_allocation_domain(stored, [slots, *(columns[n] for n in order)], True)
    arrange_axes(total, sorted(total.get_loop_domain(), key=lambda a: not a.is_reduction()))
    first = 1 + params.has_samples
    merge_axes_at(total, first, len(total.get_loop_domain()) - first)  # axes of one iteration were not part of the reference's row
    return cache_after(stored, LoadStoreOpType.set, CacheOp.global_)


def sum_in_block(totals: list[TensorView], row_axes: int, params: InnerOuterParams) -> list[TensorView]:
    """Split column reductions of blocks that have all rows of their columns: sum the rows of a thread in the loop over rows, and behind it those of the rows
    side by side in a block; return the column reductions.

    Before: loops as `split_rows` leaves them.   After: [blocks, samples, groups?, row].
    """
    for total in totals:
        rfactor(total, [0, 2, *([row_axes - 1] if params.row_unroll > 1 else [])])
    return totals


def slot_place(total: TensorView) -> int:
    """Return the position of the blocks' slots among the axes of a column reduction that was cut."""
    return next(n for n, a in enumerate(total.get_logical_domain()) if a.is_reduction())


def schedule_columns(total: TensorView, params: InnerOuterParams, of_columns: list[TensorView]) -> TensorView:
    """Transform the sum of the blocks' partial results, and all that is computed from it; return the partial sum of a thread."""
    (slots,) = (a for a in total.get_loop_domain() if a.is_reduction())
    columns = [a for a in total.get_loop_domain() if a is not slots]
    if len(columns) == 1 + params.has_samples:  # otherwise it was transformed with another one that it is combined with
        *samples, whole = columns
        loop, vector = split_axis(total, whole, params.column_vector_elems)
        loop, lanes = split_axis(total, loop, params.lanes)
        loop, blocks = split_axis(total, loop, params.blocks * params.cluster_blocks)
        columns = [loop, *samples, *(split_axis(total, blocks, params.cluster_blocks) if params.cluster_blocks > 1 else [blocks]), lanes, vector]
    loop, *blocks_of, lanes, vector = columns
    threads = []
    for count in (params.groups, params.threads_y):
        if count > 1:
            slots, of_threads = split_axis(total, slots, count)
            threads.append(of_threads)
    slots, unrolled = split_axis(total, slots, params.slots_unroll)
    arrange_axes(total, [loop, *blocks_of, slots, unrolled, *threads, lanes, vector])
    partial = rfactor(total, [1 + len(blocks_of), 2 + len(blocks_of)]) if threads else total
    transform_like(partial, of_columns)
    return partial


def put_slots_inside(tensor: TensorView, place: int) -> None:
    """Move the slot axes between the blocks and the lanes of the columns. place: position of the slots among the axes of a tensor with both."""
    first = tensor.get_maybe_root_domain()[place]

    def is_slot(axis: IterDomain) -> bool:
        transform = axis.definition()
        return axis.is_reduction() or axis is first or transform is not None and all(is_slot(source) for source in transform.inputs)  # type: ignore[arg-type]

    loop = tensor.get_loop_domain()
    columns = [a for a in loop if not is_slot(a)]
    arrange_axes(tensor, [*columns[:-2], *(a for a in loop if is_slot(a)), *columns[-2:]])


def parallel_columns(
    totals: list[TensorView], partials: list[TensorView], read: list[TensorView], places: list[int], of_columns: list[TensorView], params: InnerOuterParams
) -> None:  # fmt: skip
    """Bind the tensors after the grid-wide barrier."""
    grids = [ParallelType.grid_z] * params.has_samples + [params.grid_of_rows] + [ParallelType.grid_x] * (params.cluster_blocks > 1)
    kinds = [ParallelType.block_z] * (params.groups > 1) + [ParallelType.block_y] * (params.threads_y > 1) + [ParallelType.block_x]
    for total, partial, copy, place in zip(totals, partials, read, places):
        for tensor in (total, partial, copy):  # another one that it is combined with may have moved its axes
            put_slots_inside(tensor, place)
        for position, kind in enumerate(grids):
            partial.axis(1 + position).parallelize(kind)
        for position, kind in enumerate(kinds):
            partial.axis(3 + len(grids) + position).parallelize(kind)
        parallelize_like(partial, selected_tensors=[t for t in (*of_columns, total) if t is not partial], selected_parallel_types=set(BOUND))
        if total is not partial:
            total.axis(-1).parallelize(ParallelType.group)


def vectorize_partials(read: list[TensorView], params: InnerOuterParams) -> list[TensorView]:
    """Store and load partial results in vectors; return the sums of a block, which are stored. read: the copies that are loaded."""
    sums: list[TensorView] = []
    for copy in read:
        (stored,) = copy.definition().tensor_inputs  # type: ignore[union-attr]
        if params.vector_elems > 1:
            stored.axis(-1).parallelize(ParallelType.vectorize)
        if params.column_vector_elems > 1:
            copy.axis(-1).parallelize(ParallelType.vectorize)
        sums += stored.definition().tensor_inputs  # type: ignore[union-attr]
    return sums


def lies_along_columns(output: TensorView, analysis: TwoSidedAnalysis) -> bool:
    """True if the columns of an output have the same order in memory as those of the rows."""
    columns = tuple(n for n in analysis.shape.order if n in analysis.shape.reduced)
    return (
        not output.domain().rolled
        and analysis.axes.memory_order(output)[-len(columns) :] == columns
        and all(c is not False for c in output.domain().contiguity)
    )
