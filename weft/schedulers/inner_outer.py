"""InnerOuterPersistent: a persistent kernel that reduces rows and columns (backward of layer norm and RMS norm).

    rows      [steps, BIDx = blocks, TIDz = groups, row_unroll]   row: [batches, TIDy, TIDx, vector]   columns are summed in registers over the steps
    partials  [slot = block, columns] in global memory; then all blocks meet
    columns   [serial, BIDx, serial slots, unroll, TIDy and TIDz = slots, TIDx, vector]     every sum in a fixed order, so that runs agree in every bit

Samples that have columns of their own, such as the gradients of a scale per sample, are bound to BIDz: the blocks of a sample do the same as all blocks do
otherwise.

Owns the template; the loops behind the barrier are in `column_partials.py`. Its parameters are chosen in `inner_outer_heuristic.py`, and what belongs to rows
and to columns is found in `two_sides.py`.
Read first: `apply_inner_outer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..analysis.loop_axes import Obstacle
from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import CP_ASYNC_BYTES, Arch
from ..errors import InternalError
from ..expr import Sym, evaluate_int
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import ReductionOp, TensorView
from ..schedule.caching import cache_after
from ..schedule.circular import circular_buffer, load_whole_units
from ..schedule.peel import Peel, Phase
from ..schedule.inline import inline_to
from ..schedule.online_softmax import exp_sums, fold_online
from ..schedule.primitives import set_memory_type, split
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.rfactor import rfactor
from ..schedule.staying_blocks import StayingBlocks
from .async_rows import can_load, row_of
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .column_partials import lies_along_columns, separate_columns
from .column_results import ColumnResults, column_results
from .inner_outer_candidates import Candidates
from .inner_outer_heuristic import choose_inner_outer
from .inner_outer_params import LOADS, InnerOuterParams
from .limits import STEP_BYTES, TIMED_OF_A_WAY
from .persistent_params import SHARE_MULTIPLE, WARP_MULTIPLE
from .row_analysis import NO_GROUPS
from .row_passes import Passes, later_uses, load_again
from .rows import arrange, arrange_axes, class_order, is_constant_along, merge_axes_at, names_in_vectors, row_sizes, split_axis
from .template import BOUND, Template
from .two_sides import TwoSidedAnalysis, analyze_two_sides


NOT_SPECIALIZED = (
    "rows and columns are reduced by blocks whose threads refill a ring themselves, behind the barrier that a step has anyway; a kernel by hand whose ring "
    "was refilled by a warp of its own reached 0.82 of a copy where the ring alone reached 0.91 (RMS norm backward, 16384 x 4096, H200)"
)
"""Why this scheduler has no warp-specialized kernel."""


FEW_SPILL_BYTES = 2 * STEP_BYTES
"""Spilled bytes per thread above which other params are taken, if there are any. Measured: docs/constants.md."""


class InnerOuterPersistent(Scheduler):
    """Rows and columns reduced in one kernel; see the module."""

    name = SchedulerType.inner_outer_persistent

    def analyze(self, fusion: Fusion) -> TwoSidedAnalysis | Decline:
        wide = wide_state(fusion)
        if wide is not None:
            return Decline(f"partial results of {wide} have {wide.dtype().bits} bits, more than one memory access can move")
        found = analyze_two_sides(fusion)
        if isinstance(found, Obstacle):
            return Decline(str(found))
        if found.blocks.groups:
            return Decline(NO_GROUPS)
        found.online = analysis_online(fusion)
        return found

    def accept(self, analysis: TwoSidedAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        facts = analysis.facts(sizes, alignment_bits)
        candidates = Candidates(facts, arch, all(can_load(t, analysis) for t in analysis.row_inputs))
        return analysis.why_not_vectors(facts.rows, candidates.vector) or candidates.why_none_fits()

    def choose(self, analysis: TwoSidedAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[InnerOuterParams, str]:
        return choose_inner_outer(analysis.facts(sizes, alignment_bits), arch, all(can_load(t, analysis) for t in analysis.row_inputs))

    def choose_way(
        self, analysis: TwoSidedAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch, way: str
    ) -> tuple[InnerOuterParams, str]:  # fmt: skip
        params, trace = self.choose(analysis, sizes, alignment_bits, arch)
        if way == "auto":
            return params, trace
        if way == "specialized":
            return params, f"not specialized: {NOT_SPECIALIZED}\n{trace}"
        wanted = {"tma": ("tma",), "register": ("now", "ahead")}[way]
        facts = analysis.facts(sizes, alignment_bits)
        forced, compared = choose_inner_outer(facts, arch, all(can_load(t, analysis) for t in analysis.row_inputs), loads=wanted)
        if forced.loads not in wanted:
            return params, f"not {way}: no such kernel fits the chip at these sizes\n{trace}"
        return forced, f"forced {way}: {compared}"

    def choose_other(
        self, analysis: TwoSidedAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch, rejected: Mapping[InnerOuterParams, int]
    ) -> tuple[InnerOuterParams, str] | None:  # fmt: skip
        loadable = all(can_load(t, analysis) for t in analysis.row_inputs)
        found = choose_inner_outer(analysis.facts(sizes, alignment_bits), arch, loadable, rejected)
        return None if found[0] in rejected else found

    def candidates(self, analysis: TwoSidedAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, InnerOuterParams]]:
        facts, loadable = analysis.facts(sizes, alignment_bits), all(can_load(t, analysis) for t in analysis.row_inputs)
        out = [self.choose(analysis, sizes, alignment_bits, arch)[0]]
        for loads in LOADS:
            seen: dict[InnerOuterParams, int] = {}
            while len(seen) < TIMED_OF_A_WAY:
                params, _ = choose_inner_outer(facts, arch, loadable, seen, (loads,))
                if params in seen or params.loads != loads:
                    break
                seen[params] = 0
                out.append(params)
        return [(params.loads, params) for params in dict.fromkeys(out)]

    def apply(self, fusion: Fusion, analysis: TwoSidedAnalysis, params: InnerOuterParams) -> ScheduleResult:
        return apply_inner_outer(fusion, analysis, params)


def wide_state(fusion: Fusion) -> TensorView | None:
    """Return a result of a reduction with more bits than one access, if there is one."""
    states = (t for e in fusion.tensor_exprs() if isinstance(e, ReductionOp) for t in e.tensor_outputs)
    return next((t for t in states if t.dtype().bits > MAX_VECTOR_BITS), None)


def analysis_online(fusion: Fusion) -> TwoSidedAnalysis | None:
    """Return the analysis of `fusion` with each maximum and the sum of exponentials relative to it as one reduction; None if it has none, or they are too
    wide."""
    if not exp_sums(fusion):
        return None
    clone, _ = fusion.clone()
    fold_online(clone)
    found = None if wide_state(clone) is not None else analyze_two_sides(clone)
    return None if isinstance(found, Obstacle) else found


def apply_inner_outer(fusion: Fusion, analysis: TwoSidedAnalysis, params: InnerOuterParams) -> ScheduleResult:
    """Schedule `fusion` in place."""
    if params.is_online:
        analysis = folded_online(fusion)
    template = Template(fusion)
    totals = [template.reduction_behind(e.outputs[0].name) for e in analysis.columns.reductions]
    separate_columns(template, totals)
    passes = Passes(template, analysis, is_projected=params.project_to_inputs)
    passes.separate()
    reference = template.reduction_behind(analysis.shape.reference.name)
    template.reductions = [t for t in template.reductions if t not in totals]
    row_axes, phase = split_rows(reference, analysis, params)
    loaded = load_rows(template, analysis, params)
    again = read_stages_again(loaded, passes) if params.is_reread else []
    transform_like(reference)
    columns = column_results(fusion, analysis, totals, row_axes, params)
    rows = [t for t in fusion.tensors() if columns.in_loops_of_rows(t) and not t.is_fusion_input]
    share_rows(reference, params, rows)
    if phase is not None and params.cluster_blocks > 1:
        phase = replace(phase, piece=reference.axis(-1).sym)
    whole = {t: list(t.get_loop_domain()) for t in loaded if params.loads == "tma"}
    schedule_rows(template, params, reference, [t for t in rows if t not in whole], row_axes, list(whole) if params.is_reread else [])
    for tensor, loop in whole.items():  # a bulk copy loads a whole row, however its readers split it
        tensor.domain().loop = loop
        bind_bulk_load(tensor, params)
    columns.schedule()
    vectorize(template, analysis, params, columns, loaded, again)
    inline(template, analysis, params, row_axes, columns, loaded)
    for tensor in loaded:
        circular_buffer(tensor, params.stages, params.stages - 1)
    of_rows = [cache for source, cache in template.inputs if cache not in columns.of_columns and source.name not in {t.name for t in analysis.broadcast_inputs}]
    ahead = {t.name for t in of_rows if params.loads == "ahead" or not varies_along_row(t, row_axes)}
    ahead -= {use.outputs[0].name for tensor in loaded for use in tensor.uses()}
    peel = Peel.filled(row_sizes(analysis.shape), params.batches, params.fill, keeps_guards=params.fill == "whole", phase=phase)  # they keep the passes apart
    rows_of_step = params.row_unroll if params.has_whole_steps else 1
    staying = StayingBlocks(frozenset(ahead), params.is_behind, lengths_of(analysis, params), True, rows_of_step)
    return ScheduleResult(params.static_block, params.max_registers, params.cluster_blocks, peel, staying=staying, most_spill_bytes=FEW_SPILL_BYTES)


def folded_online(fusion: Fusion) -> TwoSidedAnalysis:
    """Make a maximum and the sum of exponentials relative to it one reduction, in place; return the new analysis of `fusion`."""
    fold_online(fusion)
    found = analyze_two_sides(fusion)
    if isinstance(found, Obstacle):
        raise InternalError(f"rows and columns are none any more when reductions of the rows are folded together: {found}")
    return found


def lengths_of(analysis: TwoSidedAnalysis, params: InnerOuterParams) -> tuple[tuple[Sym, int], ...]:
    """Return the length of a row if all threads have all of their vectors and it is one size; equal params then mean equal lengths."""
    extents = [a.sym for a in analysis.shape.reference.get_logical_domain() if a.is_reduction() and not a.sym.is_const]
    if params.fill != "whole" or params.is_phased or len(extents) != 1 or not extents[0].is_var or extents[0] not in row_sizes(analysis.shape):
        return ()
    fixed = math.prod(evaluate_int(a.sym, {}) for a in analysis.shape.reference.get_logical_domain() if a.is_reduction() and a.sym.is_const)
    length = params.cluster_blocks * params.lanes * params.threads_y * params.batches * params.vector_elems
    return ((extents[0], length // fixed),)


def split_rows(reference: TensorView, analysis: TwoSidedAnalysis, params: InnerOuterParams) -> tuple[int, Phase | None]:
    """Transform the reference to [rows, row] and split the rows; return the number of loops over rows, and the phase of a row. With a phase, the row stride of
    a block is a multiple of the vector's elements, so all of its rows have the phase of the first.
    After: [steps, blocks, unswitched, samples?, groups?, unrolled?, row].
    """
    order, axes = class_order(reference, analysis.shape, analysis.axes), analysis.shape.reference.get_logical_domain()
    row = [n for n in order if axes[n].is_reduction()]
    samples = [n for n in order if n not in row and analysis.is_sample(axes[n])]
    rows = [n for n in order if n not in row and n not in samples]
    arrange(reference, [*rows, *samples, *row])
    for first, places in ((len(rows) + len(samples), row), (len(rows), samples), (0, rows)):
        merge_axes_at(reference, first, len(places))
    return split_steps(reference, params, frozenset(t.name for t in analysis.limits.phased))


def split_steps(reference: TensorView, params: InnerOuterParams, aligned: frozenset[int]) -> tuple[int, Phase | None]:
    """Split the rows of a tensor with loops [rows, samples?, row] among blocks and steps, see `split_rows`. aligned: names of the inputs whose vectors are
    aligned."""
    blocks = ParallelType.grid_x if params.cluster_blocks > 1 else None
    phase: Phase | None = None
    if params.is_phased:
        _, phase_rows = split_axis(reference, reference.axis(0), params.vector_elems)
        phase = Phase(phase_rows, reference.axis(-1).sym, params.vector_elems, aligned, blocks, of_threads=params.row_thread_types)
    count = 2
    for factor in (params.row_unroll, params.groups):
        if factor > 1:
            split(reference, 0, factor)
            count += 1
    split(reference, 0, params.blocks // params.vector_elems if params.is_phased else params.blocks)
    split(reference, 0, 1)  # one test for the bounds of all rows of an iteration
    loop = reference.get_loop_domain()
    if phase is not None:
        arrange_axes(reference, [loop[0], loop[2], loop[-2], loop[1], *loop[3:-2], loop[-1]])
        merge_axes_at(reference, 1, 2)
    else:
        samples = loop[-2:-1] if params.has_samples else []
        arrange_axes(reference, [loop[0], loop[2], loop[1], *samples, *(a for a in loop[3:] if a not in samples)])
    return count + 1 + params.has_samples, phase


def load_rows(template: Template, analysis: TwoSidedAnalysis, params: InnerOuterParams) -> list[TensorView]:
    """Load the inputs that are whole rows into shared memory by asynchronous copies, where possible; return the tensors there."""
    if params.loads not in ("cp_async", "tma"):
        return []
    rows = {t.name for t in analysis.row_inputs if t in analysis.limits.vectorizable and (params.loads != "tma" or can_load(t, analysis))}
    out = []
    for source, _ in template.inputs:
        if source.name in rows and (params.loads == "tma" or source.dtype().bits * params.vector_elems // 8 in CP_ASYNC_BYTES):
            out.append(cache_after(source, LoadStoreOpType.tma if params.loads == "tma" else LoadStoreOpType.cp_async))
            set_memory_type(out[-1], MemoryType.shared)
            if params.is_shifted:
                load_whole_units(out[-1], params.vector_elems if params.is_phased and params.cluster_blocks > 1 else 0)
    return out


def read_stages_again(loaded: list[TensorView], passes: Passes) -> list[TensorView]:
    """Let every pass read the row from shared memory, so that no row stays in registers; return the additional copies."""
    out = []
    for shared in loaded:
        (load,) = shared.uses()
        cache: TensorView = load.outputs[0]  # type: ignore[assignment]
        if load.outputs[0].uses():
            out += [load_again(cache, uses) for uses in later_uses(cache, passes).values()]
    return out


def share_rows(reference: TensorView, params: InnerOuterParams, rows: list[TensorView]) -> None:
    """Give each block of a cluster a piece of every row. After: loops [..., cluster, piece]."""
    if params.cluster_blocks > 1:
        split(reference, -1, params.cluster_blocks, False, multiple=SHARE_MULTIPLE * params.vector_elems)
        transform_like(reference, rows)


def bind_bulk_load(tensor: TensorView, params: InnerOuterParams) -> None:
    """Load a row, or a block's piece of it, with one bulk copy."""
    row_of(tensor).parallelize(ParallelType.tma)
    bind_blocks(tensor, params)
    if params.cluster_blocks > 1:
        tensor.axis(-2).parallelize(ParallelType.grid_x)


def bind_blocks(tensor: TensorView, params: InnerOuterParams) -> None:
    """Bind rows and samples to blocks."""
    for position, kind in params.loops_of_blocks.items():
        tensor.axis(position).parallelize(kind)


def bind_rows(tensor: TensorView, params: InnerOuterParams) -> None:
    """Bind rows to blocks and groups, and the last but one loop, the vectors of one batch, to the threads of a row."""
    if params.threads_y > 1:
        split(tensor, -2, params.lanes)
        tensor.axis(-3).parallelize(ParallelType.block_y)
    tensor.axis(-2).parallelize(ParallelType.block_x)
    bind_blocks(tensor, params)
    if params.groups > 1:
        tensor.axis(3 + params.has_samples).parallelize(ParallelType.block_z)


def schedule_rows(
    template: Template, params: InnerOuterParams, reference: TensorView, rows: list[TensorView], row_axes: int, stages: list[TensorView]
) -> None:  # fmt: skip
    """Transform and bind `rows`, the tensors before the grid-wide barrier. stages: also transformed, because propagation goes through them, but not bound."""
    split(reference, -1, params.vector_elems, is_phased=params.is_phased)
    if params.cluster_blocks > 1:
        reference.axis(-3).parallelize(ParallelType.grid_x)
    part = params.lanes * params.threads_y
    if params.fill == "whole":  # asked per part: without that branch the compiler mixes the passes and spills (docs/constants.md)
        split(reference, -2, params.batches, False, multiple=WARP_MULTIPLE if params.batches > 1 and part > WARP_MULTIPLE else 1)
    else:
        split(reference, -2, params.batches, False, part=part if part > 1 else 0)
    bind_rows(reference, params)
    reference.axis(2).parallelize(ParallelType.unswitch)
    shares = params.cluster_blocks > 1
    partial = rfactor(reference, [row_axes + shares, len(reference.get_loop_domain()) - 1])
    rows = [*rows, partial]
    transform_like(partial, [*rows, *stages])
    parallelize_like(partial, selected_tensors=rows, selected_parallel_types={*BOUND, ParallelType.unswitch})
    template.rfactor_others(reference, partial)
    if params.row_unroll > 1:
        template.group_reductions(row_axes - 1)
    template.fold_vectors(params.vector_elems)


def vectorize(
    template: Template, analysis: TwoSidedAnalysis, params: InnerOuterParams, columns: ColumnResults, loaded: list[TensorView],
    again: list[TensorView],
) -> None:  # fmt: skip
    """Vectorize loads and stores of rows, and what `columns` stores."""
    also = [*(loaded if params.loads == "cp_async" else ()), *again]
    in_vectors = names_in_vectors(analysis.limits, analysis.shape.inner_position, params)
    template.vectorize(in_vectors, params.vector_elems, also)
    columns.vectorize(template, [t.name for t in analysis.column_outputs if lies_along_columns(t, analysis)])


def varies_along_row(tensor: TensorView, row_axes: int) -> bool:
    """True if a tensor has more than one element per row."""
    return any(a.is_iteration() and not a.is_broadcast() for a in tensor.get_loop_domain()[row_axes:])


def inline(
    template: Template, analysis: TwoSidedAnalysis, params: InnerOuterParams, row_axes: int, columns: ColumnResults, loaded: list[TensorView]
) -> None:  # fmt: skip
    """Load all of a row before its first use; read weights once, before the loop over rows; inline everything else."""
    row_at = row_axes - (params.row_unroll > 1)
    weights = {t.name for t in analysis.broadcast_inputs}
    of_columns = columns.of_columns
    limits: dict[TensorView, int] = {}
    for tensor in template.fusion.tensors():
        loop = tensor.get_loop_domain()
        limits[tensor] = len(loop)
        if loop and tensor not in of_columns:
            limits[tensor] = row_at if is_constant_along(loop[row_axes:]) else len(loop)
    for source, cache in template.inputs:
        if cache not in of_columns and cache in limits:  # otherwise no tensor of the rows reads it any more
            if params.is_reread and cache.definition().tensor_inputs[0] in loaded:  # type: ignore[union-attr]
                continue  # each vector is loaded when it is needed
            if source.name in weights:
                limits[cache] = 0 if params.weights == "registers" else limits[cache]
            elif cache in limits:  # skips tensors that no row needs any more, such as an input that only columns read
                limits[cache] = min(limits[cache], 2)
    for tensor, position in limits.items():
        if 0 < position <= 2 < len(tensor.get_loop_domain()) and tensor not in of_columns:  # an input of one element has none of the loops
            tensor.axis(2).parallelize(ParallelType.serial)  # loads of a row stand before the test of its bounds
    limits.update(columns.limits())
    for tensor in loaded:
        limits[tensor] = 2
    inline_to(template.fusion, limits)
