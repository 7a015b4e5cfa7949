"""Reduction: sums and the like whose results are not broadcast back (no normalization). Inner, outer and 3-D, within a block and across blocks.

    inner   rows: [BIDx, TIDy]           row: [BIDy, serial, unswitch, unroll, TIDx, vector]
    outer   columns: [BIDx, TIDx, vector]   reduced: [BIDy, serial, unswitch, unroll, TIDy]      in clusters BIDx and BIDy change places
    3d      rows: [BIDx, TIDy]           outer run: [BIDy, serial, TIDz]   inner run: [serial, unroll, TIDx, vector]

The unswitched axis, where there is one, has extent 1: the bounds of all unrolled loads are one test in each iteration of the serial loop.

Owns the template; parameters are chosen in `reduction_heuristic.py`. Read first: `Reduction.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..analysis.axes import axis_maps
from ..analysis.loop_axes import Obstacle
from ..arch import LINE_BYTES, Arch
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, ReductionOp, TensorView
from ..schedule.peel import Peel, Phase
from ..schedule.rfactor import rfactor
from .accesses import with_accesses
from .arithmetic import whole_warps
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .facts import ReductionFacts
from .inner_outer_params import InnerOuterParams
from .late_lookups import WHY_LATE, accepted_spill_bytes, late_instead
from .limits import TIMED_OF_A_WAY
from .phased_columns import apply_phased_columns, phased_candidates
from .reduction_analysis import ReductionAnalysis, analyze_reduction
from .reduction_heuristic import ReductionParams, candidates, choose_with_trace
from .row_analysis import NO_GROUPS, RowAnalysis
from .rows import (
    arrange_axes, canonical_rows, kept_and_reduced, merge_axes_at, names_in_vectors, phase_of_rows, positions, split_axis, split_last_run,
)  # fmt: skip
from .several_kernels import start_ns, why_several
from .spilled_reductions import other_reduction
from .short_rows import choose_short, choose_whole, schedule_short
from .template import Template

TOUCHED_TWICE = 0.33
"""Fraction added to the time of the bytes of column sums if rows begin anywhere, because cache lines are touched twice; the model of plain reductions does not
include this. Measured: docs/constants.md."""
_STATIC = (ParallelType.block_x, ParallelType.block_y, ParallelType.block_z)


class Reduction(Scheduler):
    """Schedules sums, products and extrema over any axes, with pointwise ops before and after."""

    name = SchedulerType.reduction

    def analyze(self, fusion: Fusion) -> ReductionAnalysis | Decline:
        found = analyze_reduction(fusion)
        if isinstance(found, Obstacle):
            return Decline(str(found))
        if found.blocks.groups:
            return Decline(NO_GROUPS)
        return found

    def accept(self, analysis: ReductionAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
        if not analysis.needs_vectors:
            return why_results_meet_elsewhere(facts, arch)
        return analysis.why_not_vectors(facts, choose_with_trace(facts, arch)[0].vector_elems)

    def choose(
        self, analysis: ReductionAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch
    ) -> tuple[ReductionParams | InnerOuterParams, str]:  # fmt: skip
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
        short = choose_short(analysis, facts, sizes, alignment_bits, arch)
        if short is not None:
            return with_kept_inputs(short, analysis, facts, arch), f"rows of {facts.reduction_elems} elements, several for each thread: {short}"
        params, trace = choose_with_trace(facts, arch)
        whole = choose_whole(analysis, facts, sizes, arch, trace.candidates[0].time_ns)
        if whole is not None:
            whole = with_kept_inputs(whole, analysis, facts, arch)
            return whole, f"a thread has a row: {whole}\n{trace}"
        for time_ns, phased in phased_candidates(facts, arch)[:1] if analysis.has_simple_columns else ():
            bytes_ns = facts.total_elems * facts.input_bits / 8 / (arch.roof_bytes_per_s * 1e-9)
            if time_ns < trace.candidates[0].time_ns + TOUCHED_TWICE * bytes_ns:
                return phased, f"rows of one phase in a block, predicted {time_ns / 1e3:.2f} us: {phased}\n{trace}"
        return with_kept_inputs(with_accesses(params, facts), analysis, facts, arch), str(trace)

    def choose_other(
        self, analysis: ReductionAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch, rejected: Mapping[Any, int]
    ) -> tuple[ReductionParams, str] | None:  # fmt: skip
        if (late := late_instead(rejected)) is not None:
            return late, f"reduction: {WHY_LATE}: {late}"
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
        other = other_reduction(facts, arch, rejected)
        return None if other is None else (with_kept_inputs(other, analysis, facts, arch), f"reduction: what was chosen first is refused: {other}")

    def candidates(
        self, analysis: ReductionAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch
    ) -> list[tuple[str, ReductionParams | InnerOuterParams]]:  # fmt: skip
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
        found = [(name, with_kept_inputs(with_accesses(params, facts), analysis, facts, arch)) for name, params in candidates(facts, arch)]
        phased = phased_candidates(facts, arch)[:TIMED_OF_A_WAY] if analysis.has_simple_columns else []
        first = self.choose(analysis, sizes, alignment_bits, arch)[0]
        found += [("short rows", first)] if isinstance(first, ReductionParams) and first.kind == "short" else []
        return sorted([*found, *(("outer, rows of one phase", params) for _, params in phased)], key=lambda made: made[1] != first)

    def apply(self, fusion: Fusion, analysis: ReductionAnalysis, params: ReductionParams | InnerOuterParams) -> ScheduleResult:
        if isinstance(params, InnerOuterParams):
            return apply_phased_columns(fusion, analysis, params)
        template = Template(fusion)
        template.stream(analysis.axes, analysis.shape.order, params.kept)
        reference = template.reduction_behind(analysis.shape.reference.name)
        phase: Phase | None = None
        if params.kind == "short":
            return self.apply_short(template, reference, analysis, params)
        if params.kind == "outer":
            serial, loads_at = schedule_outer(
                reference, analysis, params, grid_split=params.grid_split, unswitch=params.unswitch, is_cluster=params.is_cluster,
                overlaps=params.overlaps, are_all=params.are_all,
            )  # fmt: skip
        else:
            serial, loads_at, phase = schedule_inner(reference, analysis, params)
        partial = rfactor(reference, positions(reference, serial))
        template.propagate(partial)
        template.bind(partial)
        template.rfactor_others(reference, partial)
        if params.kind == "outer" and params.vector_elems > 1:
            template.group_reductions(-1)
        names = [] if params.are_all else names_in_vectors(analysis.limits, analysis.shape.inner_position, params)
        if params.window_axes:  # vectors need not be as wide as an access
            names = [name for name in names if not any(t.name == name for t in analysis.outputs)]
        stored = results_along_columns(analysis) if params.kind == "outer" and not params.overlaps and not params.are_all else []
        if params.overlaps:
            names = [t.name for t in analysis.limits.anywhere(analysis.shape.inner_position) if t.is_fusion_input]
        template.vectorize([name for name in names if name not in params.single_reads], params.vector_elems, stored=stored)
        if params.kind != "outer":
            template.fold_vectors(params.vector_elems)
        first = next((n for n, a in enumerate(reference.get_loop_domain()) if a.is_reduction()), 0)
        apart = read_on_both_sides(template) if params.kind == "outer" else []
        loads = template.loads_in_vectors(names) if params.lookups == "late" else template.loads
        fixed = {t: own_position(fusion, t, partial, loads_at) if params.kind == "outer" else loads_at for t in loads}
        template.inline_fixed(fixed, first, apart, is_across=params.are_all)
        threads = (whole_warps(params.bdimx, params.bdimy, params.bdimz), params.bdimy, params.bdimz)
        static = tuple((kind, n) for kind, n in zip(_STATIC, threads) if n > 1 or kind is ParallelType.block_x)
        peel, spilled = None if phase is None else Peel(phase=phase), accepted_spill_bytes(params)
        clusters = params.grid_split if params.is_cluster else 1
        return ScheduleResult(static, params.max_registers, clusters, peel, access_bits=params.access_bits, most_spill_bytes=spilled)


    def apply_short(self, template: Template, reference: TensorView, analysis: ReductionAnalysis, params: ReductionParams) -> ScheduleResult:
        """Each thread reduces its rows from the first to the last element, so no part of a reduction is left to others."""
        serial, loads_at = schedule_short(reference, analysis, params)
        template.propagate(reference)
        template.bind(reference)
        template.vectorize([t.name for t in analysis.limits.vectorizable], params.vector_elems)
        template.vectorize([], params.results, stored=[t.name for t in analysis.outputs])
        along = positions(reference, serial)
        # what a row has once is loaded in front of its elements: what follows the reductions may read it, too
        loops = {t: t.get_loop_domain() for t in template.loads}
        fixed = {t: along[0] if along[-1] < len(own) and all(own[n].is_broadcast() for n in along) else loads_at for t, own in loops.items()}
        template.inline_fixed(fixed, along[0])
        return ScheduleResult(((ParallelType.block_x, params.bdimx),), params.max_registers, access_bits=params.access_bits)


def with_kept_inputs(params: ReductionParams, analysis: ReductionAnalysis, facts: ReductionFacts, arch: Arch) -> ReductionParams:
    """Return params whose loads leave in L2 what a later kernel of the definition reads again, if all of that fits there."""
    again = [t for t in analysis.row_inputs if t.name in analysis.names_read_again]
    bytes_ = facts.total_elems * sum(t.dtype().bits for t in again) / 8
    return replace(params, kept=tuple(t.name for t in again)) if 0 < bytes_ <= arch.l2_bytes else params


def why_results_meet_elsewhere(facts: ReductionFacts, arch: Arch) -> Decline | None:
    """Return why what is computed from several results is better left to another kernel: only then can blocks share the few long rows of this one."""
    in_a_block = 1 if facts.is_inner else 8 * LINE_BYTES // facts.max_dtype_bits
    if not facts.results_meet or facts.iteration_elems >= arch.sm_count * in_a_block:
        return None
    together, apart = (choose_with_trace(made, arch)[1].candidates[0].time_ns for made in (facts, replace(facts, results_meet=False)))
    why = f"share {facts.iteration_elems} long rows or columns, of which {facts.reductions} results meet, among all blocks"
    return why_several(together, apart + start_ns(arch), why)


def own_position(fusion: Fusion, tensor: TensorView, reference: TensorView, position: int) -> int:
    """Return where the loops of a tensor are divided as those of `reference` are at `position`: it may lack some, as an index of rows has no columns. Without
    the first loop behind that, at `position`."""
    loops, others, maps = tensor.get_loop_domain(), reference.get_loop_domain(), axis_maps(fusion)
    if len(loops) == len(others) or position == len(others):
        return position
    first = maps.exact(others[position])
    return next((n for n, axis in enumerate(loops) if maps.exact(axis) is first), position)


def read_on_both_sides(template: Template) -> list[TensorView]:
    """Return the tensors that are read both in the loop of the reductions and after it: inlined in that loop, they would pull in ops that need the results.
    They do not depend on reduced axes, as tensors that do are not read after it.
    """
    behind: set[TensorView] = set(template.reductions)
    out = []
    for expr in template.fusion.tensor_exprs():
        if any(t in behind for t in expr.tensor_inputs):
            behind.update(expr.tensor_outputs)
    for tensor in template.fusion.tensors():
        places = {any(t in behind for t in use.tensor_outputs) and not isinstance(use, ReductionOp) for use in tensor.uses()}
        if tensor not in behind and not tensor.is_fusion_input and len(places) > 1:
            out.append(tensor)
    return out


def results_along_columns(analysis: ReductionAnalysis) -> list[int]:
    """Names of the outputs that are contiguous along the innermost run of columns, so that a vector of columns is also a vector of theirs."""
    run = analysis.shape.runs[-1].classes
    out = []
    for tensor in analysis.axes.tensors:
        contiguity = tensor.domain().contiguity
        if tensor.is_fusion_output and not tensor.domain().rolled and analysis.axes.memory_order(tensor)[-len(run) :] == run and all(contiguity[-len(run) :]):
            out.append(tensor.name)
    return out


def schedule_inner(reference: TensorView, analysis: ReductionAnalysis, params: ReductionParams) -> tuple[list[IterDomain], int, Phase | None]:
    """Transform and bind a reduction along memory; return its serial axes, the number of axes outside of the unrolled loads, and the phase of its rows."""
    rows = canonical_rows(
        reference, analysis.shape, analysis.axes, params.vector_elems, keep_outer=params.kind == "3d", is_phased=params.is_phased,
        inner_axes=params.window_axes,
    )  # fmt: skip
    shared = ParallelType.grid_y if params.grid_split > 1 else None
    phase = phase_of_rows(rows, params, analysis.limits, shared) if params.is_phased else None
    front: list[IterDomain] = []
    if rows.rows is not None:
        blocks = rows.rows
        if params.bdimy > 1:
            blocks, threads = split_axis(reference, blocks, params.bdimy)
            threads.parallelize(ParallelType.block_y)
            front = [threads]
        blocks.parallelize(ParallelType.grid_x)
        front = [blocks, *front]
    loop, threads = split_axis(reference, rows.row, params.bdimx)
    threads.parallelize(ParallelType.block_x)
    loop, *unrolled = unswitched(reference, *split_axis(reference, loop, params.unroll), params.unswitch)
    serial = [loop, *unrolled, rows.vector]
    middle: list[IterDomain] = []
    if rows.outer is not None:
        outer, outer_threads = split_axis(reference, rows.outer, params.bdimz)
        outer_threads.parallelize(ParallelType.block_z)
        outer, middle = _share(reference, outer, params.grid_split)
        serial.append(outer)
        middle += [outer, outer_threads]
    else:
        loop, middle = _share(reference, loop, params.grid_split)
        serial[0] = loop
    arrange_axes(reference, [*front, *middle, loop, *unrolled, threads, *rows.single, rows.vector])
    return serial, len(front) + len(middle) + len(unrolled), phase


def unswitched(reference: TensorView, loop: IterDomain, unroll: IterDomain, is_wanted: bool) -> list[IterDomain]:
    """Return the serial and the unrolled axis, with an unswitched one between them if wanted."""
    if not is_wanted:
        return [loop, unroll]
    switch, unroll = split_axis(reference, unroll, 1, False)
    switch.parallelize(ParallelType.unswitch)
    return [loop, switch, unroll]


def _share(
    reference: TensorView, loop: IterDomain, count: int, kind: ParallelType = ParallelType.grid_y
) -> tuple[IterDomain, list[IterDomain]]:  # fmt: skip
    """Divide `loop` among `count` blocks; return the remaining loop and the axis bound to blocks."""
    if count == 1:
        return loop, []
    blocks, loop = split_axis(reference, loop, count, False)
    blocks.parallelize(kind)
    return loop, [blocks]


def columns_and_rest(
    reference: TensorView, analysis: RowAnalysis, vector_elems: int, overlaps: bool = False, are_all: bool = False
) -> tuple[IterDomain, IterDomain, IterDomain]:  # fmt: skip
    """Transform a reduction across memory to [columns, reduced, vector], each one axis; return them. overlaps: of the vectors, see `Split`. are_all: a vector
    is the innermost loop."""
    others, line, vector = split_last_run(reference, analysis.shape, analysis.axes, vector_elems, inner_axes=int(are_all), overlaps=overlaps)
    kept, reduced = kept_and_reduced([*others, line])
    arrange_axes(reference, [*kept, *reduced, vector])
    columns = merge_axes_at(reference, 0, len(kept))
    rest = merge_axes_at(reference, 1, len(reduced))
    return columns, rest, vector  # type: ignore[return-value]


def schedule_outer(
    reference: TensorView, analysis: RowAnalysis, params: Any, *, grid_split: int = 1, unswitch: bool = False, is_cluster: bool = False,
    overlaps: bool = False, are_all: bool = False,
) -> tuple[list[IterDomain], int]:  # fmt: skip
    """Transform and bind a reduction across memory; return its serial axes and the number of axes outside of the unrolled loads. params: vector_elems, bdimx,
    bdimy and unroll as in ReductionParams, as are the keywords.
    """
    columns, rest, vector = columns_and_rest(reference, analysis, params.vector_elems, overlaps, are_all)
    blocks, threads_x = split_axis(reference, columns, params.bdimx)
    rest, threads_y = split_axis(reference, rest, params.bdimy)
    rest, *unrolled = unswitched(reference, *split_axis(reference, rest, params.unroll), unswitch)
    of_columns, of_rest = (ParallelType.grid_y, ParallelType.grid_x) if is_cluster else (ParallelType.grid_x, ParallelType.grid_y)
    rest, share = _share(reference, rest, grid_split, of_rest)
    blocks.parallelize(of_columns)
    threads_x.parallelize(ParallelType.block_x)
    threads_y.parallelize(ParallelType.block_y)
    arrange_axes(reference, [blocks, *share, rest, *unrolled, threads_y, threads_x, vector])
    return [rest, *unrolled], 1 + len(share) + len(unrolled)
