"""PointWise: no reduction. The axes of one output are merged left and right of a break point and distributed over blocks, threads and vectors.

    1-D   [BIDx, unroll, TIDx, vector]
    2-D   left: [BIDy, TIDy, unroll]   right: [BIDx, unroll, TIDx, vector]     where a broadcast operand is read once per block instead of once per element,
                                                                               or once per thread, whose rows share what does not vary along them

Where elements of a short innermost loop share most of what is computed, a thread has all of them (`whole_rows.py`).

Owns the template; parameters are chosen in `pointwise_heuristic.py`. Read first: `PointWise.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..analysis.loop_axes import Obstacle
from ..arch import MAX_GRID, Arch
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, TensorView
from ..schedule.peel import Peel, Phase
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .cost.parts import fitting_elems
from .late_lookups import WHY_LATE, accepted_spill_bytes, late_instead
from .limits import NEAR
from .pointwise_analysis import PointwiseAnalysis, analyze_pointwise
from .pointwise_heuristic import PointwiseParams, choose_with_trace, variants, with_fewer_elems
from .rows import arrange, arrange_axes, merge_axes_at, names_in_vectors, phase_of, places_in_order, split_axis
from .template import Template
from .whole_rows import WholeRowParams, choose_whole_rows, schedule_whole_rows


class PointWise(Scheduler):
    """Schedules elementwise fusions with broadcasts, casts, permutes and random numbers."""

    name = SchedulerType.pointwise
    takes_scatters = True

    def analyze(self, fusion: Fusion) -> PointwiseAnalysis | Decline:
        found = analyze_pointwise(fusion)
        return Decline(str(found)) if isinstance(found, Obstacle) else found

    def accept(self, analysis: PointwiseAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits, arch.atomic_vector_bits)
        return analysis.why_not_vectors(facts, choose_with_trace(facts, arch)[0].vector_elems) if analysis.needs_vectors else None

    def choose(self, analysis: PointwiseAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[PointwiseParams | WholeRowParams, str]:
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits, arch.atomic_vector_bits)
        params, trace = choose_with_trace(facts, arch)
        for time_ns, whole in choose_whole_rows(analysis, facts, sizes, arch)[:1]:
            if time_ns < (1 - NEAR) * trace.candidates[0].time_ns:
                return whole, f"a thread has whole rows, predicted {time_ns / 1e3:.2f} us: {whole}\n{trace}"
        return params, str(trace)

    def choose_other(
        self, analysis: PointwiseAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch, rejected: Mapping[Any, int]
    ) -> tuple[PointwiseParams, str] | None:  # fmt: skip
        """Return the rejected params with late lookups instead of early ones; else the best params with which a thread has as many elements as probably have
        registers, fewer than with the rejected ones; None if there are none."""
        if (other := late_instead(rejected)) is not None:
            return other, f"pointwise: {WHY_LATE}: {other}"
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits, arch.atomic_vector_bits)
        most = min(fitting_elems(params.thread_elems, params.max_registers, spilled) for params, spilled in rejected.items())
        other = with_fewer_elems(facts, arch, most) if most >= 1 and not analysis.needs_vectors else None
        return None if other is None or other in rejected else (other, f"pointwise: what was chosen first is refused: {other}")

    def candidates(
        self, analysis: PointwiseAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch
    ) -> list[tuple[str, PointwiseParams | WholeRowParams]]:  # fmt: skip
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits, arch.atomic_vector_bits)
        found = variants(facts, arch)
        if analysis.needs_vectors:
            return [(way, p) for way, p in found if p.vector_elems == found[0][1].vector_elems]
        whole = [("whole rows", params) for _, params in choose_whole_rows(analysis, facts, sizes, arch)]
        first = self.choose(analysis, sizes, alignment_bits, arch)[0]
        return sorted([*found, *whole], key=lambda made: made[1] != first)

    def apply(self, fusion: Fusion, analysis: PointwiseAnalysis, params: PointwiseParams | WholeRowParams) -> ScheduleResult:
        if isinstance(params, WholeRowParams):
            return schedule_whole_rows(fusion, analysis, params)
        template = Template(fusion)
        reference = template.tensor(analysis.reference.name)
        static, loads_at, phase = schedule_reference(reference, analysis, params)
        template.propagate(reference)
        template.bind(reference)
        names = names_in_vectors(analysis.limits, params.break_point, params)
        template.vectorize([name for name in names if name not in params.single_reads], params.vector_elems)
        still = analysis.still_rows[params.break_point] if params.shares_rows else None
        kept = [template.tensor(name) for name in (still.kept if still is not None else ())]
        loads = template.loads_in_vectors(names) if params.lookups == "late" else template.loads
        template.inline_fixed(dict.fromkeys([*loads, *kept], loads_at), 0)
        peel, spilled = None if phase is None else Peel(phase=phase), accepted_spill_bytes(params)
        return ScheduleResult(tuple(static), params.max_registers, peel=peel, access_bits=params.access_bits, most_spill_bytes=spilled)


def schedule_reference(reference: TensorView, analysis: PointwiseAnalysis, params: PointwiseParams) -> tuple[list[tuple[ParallelType, int]], int, Phase | None]:
    """Transform and bind the loops of the reference; return static block dimensions, the number of axes outside of the unrolled part, and the phase of rows."""
    axes, order = analysis.axes, analysis.order
    arrange(reference, places_in_order(analysis.reference.get_logical_domain(), order, axes))
    rank = len(reference.get_loop_domain())
    if rank == 0:
        return [], 0, None
    left_count = rank - len(order) + params.break_point if params.break_point else 0
    right = merge_axes_at(reference, left_count, rank - left_count)
    rows = split_axis(reference, reference.axis(left_count - 1), params.unroll_outer)[1] if params.shares_rows else None
    left = merge_axes_at(reference, 0, left_count)
    phase = None
    if params.is_phased:
        across = ParallelType.grid_y if params.is_left_fastest else ParallelType.grid_x
        phase = phase_of(left, right, params, analysis.limits, across)  # type: ignore[arg-type]
    outer, vector = split_axis(reference, right, params.vector_elems, is_phased=params.is_phased)  # type: ignore[arg-type]
    outer, threads = split_axis(reference, outer, params.bdimx)
    blocks, unroll = split_axis(reference, outer, params.unroll_inner)
    threads.parallelize(ParallelType.block_x)
    static = [(ParallelType.block_x, params.bdimx)]
    if left is None:
        blocks.parallelize(ParallelType.grid_x)
        arrange_axes(reference, [blocks, unroll, threads, vector])
        return static, 1, None
    static += _bind_left(reference, left, rows, (blocks, unroll, threads, vector), params)
    return static, 2 + (params.bdimy > 1) + params.split_grid_y, phase


def _bind_left(
    reference: TensorView, left: IterDomain, left_unroll: IterDomain | None, right_parts: tuple[IterDomain, ...], params: PointwiseParams
) -> list[tuple[ParallelType, int]]:  # fmt: skip
    blocks, unroll, threads, vector = right_parts
    static, front = [], []
    if left_unroll is None:
        left, left_unroll = split_axis(reference, left, params.unroll_outer)
    if params.bdimy > 1:
        left, rows = split_axis(reference, left, params.bdimy)
        rows.parallelize(ParallelType.block_y)
        static, front = [(ParallelType.block_y, params.bdimy)], [rows]
    on_x, on_y = (left, blocks) if params.is_left_fastest else (blocks, left)
    serial = []
    if params.split_grid_y:
        loop, on_y_inner = split_axis(reference, on_y, MAX_GRID[1])
        serial, on_y = [loop], on_y_inner
    on_x.parallelize(ParallelType.grid_x)
    on_y.parallelize(ParallelType.grid_y)
    arrange_axes(reference, [*serial, on_y, on_x, *front, left_unroll, unroll, threads, vector])
    return static
