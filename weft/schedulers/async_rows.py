"""InnerPersistent with rows loaded by TMA: a row per block ("tma"), or persistent blocks whose async warps load the next rows ("specialized").

    tma          rows: [BIDx]                                       inputs: [BIDx | row as one bulk copy]
    specialized  rows: [steps, BIDx = blocks, groups, grouped_rows]  inputs: the same, with stages; computed: groups on TIDy (or one group along TIDx)
    both         row of what is computed: [batches, TIDx, vector]; the row is copied to registers first, so that its stage is free before the math

Owns the template; its parameters are chosen in `async_rows_heuristic.py`. Read first: `apply_async_rows`.
"""

from __future__ import annotations

from typing import Any

from ..analysis.contiguity import rolled_axes
from ..analysis.lookups import lookup_of
from ..expr import is_int
from ..ir.block_ops import sample_of
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, TensorView
from ..schedule.caching import cache_after, cache_before
from ..schedule.circular import circular_buffer, warp_specialize
from ..schedule.inline import inline_to
from ..schedule.primitives import merge, set_memory_type, split
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.rfactor import rfactor
from ..schedule.staying_blocks import StayingBlocks
from .async_rows_heuristic import TILE_ROWS, TILE_STEPS, AsyncRowsParams
from .base import ScheduleResult
from .persistent_analysis import PersistentAnalysis
from .row_passes import Passes
from .rows import is_constant_along, merge_rows_and_row, peel_of
from .template import BOUND, Template


def apply_async_rows(fusion: Fusion, analysis: Any, params: AsyncRowsParams) -> ScheduleResult:
    """Schedule `fusion` in place."""
    template = Template(fusion)
    Passes(template, analysis, is_projected=params.project_to_inputs).separate()
    reference = template.reduction_behind(analysis.shape.reference.name)
    loaded = load_rows(template, analysis)
    stored = store_rows(template, analysis) if params.is_stored_in_bulk else {}
    row_axes = split_rows(reference, analysis, params)
    transform_like(reference)
    in_bulk = [*loaded, *stored.values()]
    for tensor in in_bulk:
        row_of(tensor).parallelize(ParallelType.tma)
    split(reference, -1, params.vector_elems)
    split(reference, -2, params.batches, False, multiple=params.part_multiple)
    reference.axis(-2).parallelize(ParallelType.block_x)
    bind_groups(reference, params)
    rank = len(reference.get_loop_domain())
    partial = rfactor(reference, [rank - 3, rank - 1])
    inputs = [source for source, _ in template.inputs]
    others = [t for t in fusion.tensors() if t not in in_bulk and t not in inputs]
    transform_like(partial, others)
    parallelize_like(partial, selected_tensors=others, selected_parallel_types=set(BOUND))
    for tensor in loaded:
        bind_blocks(tensor, params)
    for tensor in stored.values():
        bind_blocks(tensor, params)
        bind_groups(tensor, params)
    template.rfactor_others(reference, partial)
    if params.grouped_rows > 1:
        template.group_reductions(row_axes - 1)
    template.vectorize([t.name for t in analysis.limits.vectorizable], params.vector_elems, [*stored])
    for tensor in stored.values():
        row_of(tensor).parallelize(ParallelType.tma)
    inline(template, analysis, params, row_axes, loaded, list(stored))
    if params.stages > 1 and params.kind == "tma":
        for tensor in loaded:
            circular_buffer(tensor, params.stages)
    if params.kind == "specialized":
        axis = ParallelType.block_x if params.groups == 1 else ParallelType.block_y
        position = None if params.groups == 1 else 3
        for number, tensor in enumerate(loaded):
            warp_specialize(tensor, params.stages, params.stages - 1, axis, params.registers, number % params.async_warps, position)
    static = [(ParallelType.block_x, params.bdimx)]
    staying = StayingBlocks() if params.tile_rows > 1 else None
    peel = peel_of(analysis.shape, analysis.axes, params.fill, params.batches)
    return ScheduleResult(tuple(static), params.max_registers, peel=peel, staying=staying, access_bits=params.access_bits)


def load_rows(template: Template, analysis: PersistentAnalysis) -> list[TensorView]:
    """Load the inputs that depend on rows and on positions in them into shared memory by TMA; return the tensors there."""
    rows = {t.name for t in analysis.row_inputs if can_load(t, analysis)}
    out = []
    for source, _ in template.inputs:
        if source.name in rows:
            shared = cache_after(source, LoadStoreOpType.tma)
            set_memory_type(shared, MemoryType.shared)
            out.append(shared)
    return out


def can_load(source: TensorView, analysis: Any) -> bool:
    """True if rows of an input are contiguous, in the order of the loops; false for the source of a lookup. analysis: of rows."""
    if lookup_of(source) is not None or is_rolled_within(source, analysis):
        return False
    order = analysis.axes.memory_order(source)
    row = tuple(n for n in analysis.shape.order if n in analysis.shape.reduced and n in order)
    if order[len(order) - len(row) :] != row:
        return False
    axes = source.get_logical_domain()
    return source.domain().allocation is None and all(c for a, c in zip(axes, source.domain().contiguity) if not a.is_broadcast() and not is_int(a.sym, 1))


def is_rolled_within(tensor: TensorView, analysis: Any) -> bool:
    """True if the elements of a row are rotated; whole rows may be at other places."""
    return any(analysis.axes.of(axis) in analysis.shape.reduced for axis in rolled_axes(tensor))


def store_rows(template: Template, analysis: PersistentAnalysis) -> dict[TensorView, TensorView]:
    """Store the results of rows to global memory by bulk copies; return tensor in shared memory -> output."""
    rows = {t.name for t in analysis.row_outputs}
    out: dict[TensorView, TensorView] = {}
    for local, output in template.outputs:
        if sample_of(output) is None and template.name_of[output] in rows:
            shared = cache_before(output, LoadStoreOpType.tma)
            set_memory_type(shared, MemoryType.shared)
            out[shared] = output
    return out


def split_rows(reference: TensorView, analysis: PersistentAnalysis, params: AsyncRowsParams) -> int:
    """Transform the reference to [rows, row] and split the rows; return the number of loops over rows."""
    merge_rows_and_row(reference, analysis.shape, analysis.axes)
    if params.kind == "tma":
        return split_tiles(reference) if params.tile_rows > 1 else bind_first(reference)
    count = 2
    if params.grouped_rows > 1:
        split(reference, 0, params.grouped_rows)
        count += 1
    if params.groups > 1:
        split(reference, 0, params.groups)
        count += 1
    split(reference, 0, params.blocks)
    reference.axis(1).parallelize(ParallelType.grid_x)
    return count


def bind_first(reference: TensorView) -> int:
    """Bind rows to blocks, one each."""
    reference.axis(0).parallelize(ParallelType.grid_x)
    return 1


def split_tiles(reference: TensorView) -> int:
    """Give each block the rows of a scale tile whose scales are neighbours, in a loop."""
    split(reference, 0, TILE_ROWS)
    split(reference, 1, TILE_ROWS // TILE_STEPS)
    merge(reference, 0, 2)
    return bind_first(reference) + 1


def row_of(tensor: TensorView) -> IterDomain:
    """The innermost loop axis that is not a broadcast axis."""
    return next(a for a in reversed(tensor.get_loop_domain()) if not a.is_broadcast())


def bind_groups(tensor: TensorView, params: AsyncRowsParams) -> None:
    if params.groups > 1:
        tensor.axis(2).parallelize(ParallelType.block_y)


def bind_blocks(tensor: TensorView, params: AsyncRowsParams) -> None:
    tensor.axis(0 if params.kind == "tma" else 1).parallelize(ParallelType.grid_x)


def inline(
    template: Template, analysis: PersistentAnalysis, params: AsyncRowsParams, row_axes: int, loaded: list[TensorView], staged: list[TensorView]
) -> None:
    """Copy a whole row to registers before its first use; read weights once, before the loop over rows; inline everything else."""
    row_at = row_axes - (params.grouped_rows > 1)
    limits: dict[TensorView, int] = {}
    for tensor in template.fusion.tensors():
        loop = tensor.get_loop_domain()
        limits[tensor] = row_at if is_constant_along(loop[row_axes:]) else len(loop)
    axes, reduced = analysis.axes, analysis.shape.reduced
    of_rows = {t.name for t in axes.tensors if axes.stored(t) - reduced}
    of_groups = {t.name for t in analysis.group_inputs}
    for name, load in (*((source.name, cache) for source, cache in template.inputs), *template.lookups):
        if name in of_groups:
            limits[load] = min(limits[load], len(load.get_loop_domain()) - 1)
        else:
            limits[load] = min(limits[load], row_axes) if name in of_rows or params.kind == "tma" else 0
    for tensor in (*loaded, *staged):
        limits[tensor] = row_axes if params.kind == "tma" else 2
    inline_to(template.fusion, limits)
