"""InnerPersistent: normalizations along the innermost axes. Each row is kept between the reduction and its use.

    register  rows: [BIDx, TIDy, row_unroll]   row: [outer batches, TIDz] [batches, TIDx, vector]   the row is in registers
    cluster   rows: [BIDy]                     row: [BIDx = blocks of a cluster, batches, TIDx, vector]   the row is in the registers of a cluster
    shared    rows: [BIDx]                     row: [serial, unroll, TIDx, vector]                  the row is in shared memory
    reread    rows: [BIDx]                     row: [serial, unroll, TIDx, vector]                  every pass reads the row again

Running folds along the row are ops of a pass over rows in shared memory, or read again (`row_scans.py`).
Owns the template; the parameters are chosen in `persistent_heuristic.py`, what is kept is found in `analysis/persistent.py`.
Read first: `InnerPersistent.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..analysis.loop_axes import Obstacle
from ..analysis.masks import needed_elements
from ..arch import CP_ASYNC_BYTES, Arch
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, TensorView
from ..schedule.caching import cache_after
from ..schedule.primitives import set_memory_type
from ..schedule.rfactor import rfactor
from .arithmetic import whole_warps
from .accesses import with_accesses
from .async_rows import apply_async_rows, can_load, is_rolled_within
from .async_rows_heuristic import AsyncRowsParams
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .facts import PersistentFacts
from .limits import BATCHES
from .nested_rows import choose_nested, nested_params, why_not_worth
from .persistent_analysis import PersistentAnalysis, analyze_persistent
from .persistent_heuristic import choose_with_trace, every_candidate, is_held
from .persistent_params import SHARE_MULTIPLE, PersistentParams, RowsOf
from .register_rows import CLUSTER_BLOCK_THREADS
from .row_passes import NOT_JOINED, Passes, folded_passes, in_fewer_passes, keep_elsewhere, loops_stay_joined
from .row_scans import group_scans, scanned_candidates, why_not_scanned, why_scanned_apart
from .row_ways import choose_rows, way_candidates, way_of
from .several_kernels import several_ns, why_not_turned, why_several
from .streamed_rows import StreamedRows
from .cost.passing import passing_ns
from .rows_of_threads import row_of_a_thread
from .rows import Rows, canonical_rows, names_in_vectors, peel_of, phase_of_rows, positions, split_axis
from .template import Template


MASKED_ELEMS, MASKED_REGISTERS = 32, 48
"""Elements of a row per thread, and registers per thread, that `keep_what_a_mask_left` allows. Measured: docs/constants.md."""


class InnerPersistent(Scheduler):
    """Normalizations that keep rows on chip; see the module."""

    name = SchedulerType.inner_persistent
    takes_scans = True

    def analyze(self, fusion: Fusion) -> PersistentAnalysis | Decline:
        found = analyze_persistent(fusion)
        if isinstance(found, Obstacle):
            return Decline(str(found))
        if not found.shape.is_inner:
            return Decline("the innermost axis is not reduced, and this template needs rows that are contiguous in memory")
        if found.scans and (why := why_not_scanned(found)) is not None:
            return why
        if found.scans and reads_under_a_mask(found):
            return Decline("a mask of positions removes elements of rows that are scanned")
        found.can_look_up_again = loops_stay_joined(fusion, found)
        found.folded_passes = folded_passes(fusion, found)
        if found.nested and (found.needs_vectors or not found.can_look_up_again or reads_under_a_mask(found)):
            return Decline("parts of a row are reduced on their own: not possible with lookups, masks of positions, or outputs stored in blocks or whole bytes")
        return found

    def accept(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        if analysis.nested:
            return why_not_worth(analysis, sizes, arch)
        if analysis.scans:
            return why_scanned_apart(analysis, analysis.facts(sizes, alignment_bits, arch.max_access_bits), arch)
        if not analysis.can_look_up_again and not _reads_once(self.choose(analysis, sizes, alignment_bits, arch)[0]):
            return Decline(NOT_JOINED)
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
        if not analysis.needs_vectors:
            return why_not_in_one_kernel(facts, arch) or why_not_turned(analysis, facts, sizes, arch)
        declined = analysis.why_not_vectors(facts, RowsOf(facts, arch).vector)
        return declined or why_not_held(facts, arch) or why_not_in_one_kernel(facts, arch) if facts.group_elems else declined

    def choose(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[PersistentParams, str]:
        return self.choose_way(analysis, sizes, alignment_bits, arch, "register")

    def choose_way(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch, way: str) -> tuple[Any, str]:
        if analysis.nested:
            return choose_nested(analysis, sizes, alignment_bits, arch)
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
        if analysis.scans:
            chosen = scanned_candidates(analysis, facts, arch)[0]
            return chosen.params, f"inner_persistent, with running folds: {chosen}"
        is_masked = reads_under_a_mask(analysis)
        params, trace = choose_rows(facts, arch, is_loadable=is_loadable(analysis, facts, is_masked), way=way)
        params = with_accesses(params, facts)
        whole = None if is_masked else row_of_a_thread(params, analysis, facts, sizes, arch) if isinstance(params, PersistentParams) else None
        if whole is not None:
            return whole, f"a thread has a row: {whole}\n{trace}"
        return keep_what_a_mask_left(params) if is_masked else params, trace

    def choose_other(
        self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch, rejected: Mapping[Any, int]
    ) -> tuple[Any, str] | None:  # fmt: skip
        """Return the best params with which a thread keeps less of a row than with the rejected ones; None if there are none."""
        if analysis.nested:
            return None
        facts = analysis.facts(sizes, alignment_bits, arch.max_access_bits)
        if analysis.scans:
            left = (c.params for c in scanned_candidates(analysis, facts, arch) if c.params not in rejected)
            return next(((other, f"inner_persistent: what was chosen first is refused: {other}") for other in left), None)
        least = min((_kept_vectors(params) for params in rejected if isinstance(params, PersistentParams)), default=MOST_KEPT)
        for candidate in every_candidate(facts, arch):
            params = with_accesses(candidate.params, facts)
            is_other = params not in rejected and (_kept_vectors(params) < least or not _kept_vectors(params))
            if is_other and (analysis.can_look_up_again or _reads_once(params)):
                return params, f"inner_persistent: what was chosen first is refused: {params}"
        return None

    def candidates(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, Any]]:
        if analysis.nested:
            return [(way_of(params), params) for params in nested_params(analysis, sizes, alignment_bits, arch)]
        if analysis.scans:
            scanned = scanned_candidates(analysis, analysis.facts(sizes, alignment_bits, arch.max_access_bits), arch)
            return [(way_of(c.params), c.params) for c in scanned]
        chosen = self.choose_way(analysis, sizes, alignment_bits, arch, "auto")[0]
        facts, is_masked = analysis.facts(sizes, alignment_bits, arch.max_access_bits), reads_under_a_mask(analysis)
        ways = way_candidates(facts, arch, is_loadable=is_loadable(analysis, facts, is_masked))
        found = [(way, with_accesses(params, facts)) for way, params in ways]
        if analysis.needs_vectors:
            found = [(way, params) for way, params in found if params.vector_elems == chosen.vector_elems]
        if not analysis.can_look_up_again:
            found = [(way, params) for way, params in found if _reads_once(params)]
        if is_masked:
            found = [pair for way, params in found for pair in ((way, keep_what_a_mask_left(params)), (way, params))]
        return list(dict.fromkeys([(way_of(chosen), chosen), *found]))

    def apply(self, fusion: Fusion, analysis: PersistentAnalysis, params: Any) -> ScheduleResult:
        if isinstance(params, AsyncRowsParams):
            return apply_async_rows(fusion, analysis, params)
        return apply_persistent(fusion, analysis, params)


def why_not_held(facts: PersistentFacts, arch: Arch) -> Decline | None:
    """Return why no block of threads can hold rows of whole groups, or None."""
    if is_held(facts, arch):
        return None
    rows = RowsOf(facts, arch)
    sizes = " and ".join(map(str, sorted(set(facts.group_elems))))
    return Decline(
        f"groups of {sizes} elements, {rows.vector} in a thread, take {rows.block_lanes} threads: no block of whole warps holds them in rows of "
        f"{facts.reduction_elems} elements"
    )


def why_not_in_one_kernel(facts: PersistentFacts, arch: Arch) -> Decline | None:
    """Return why several kernels are better than one whose passes read few long rows again."""
    if facts.iteration_elems >= arch.sm_count or facts.block_elems and not facts.group_elems:
        return None
    params = choose_with_trace(facts, arch)[0]
    if params.storage != "reread":
        return None
    work = StreamedRows(facts, arch).work_of(params)
    moved = facts.total_elems * (facts.folded_passes * facts.input_bits + facts.output_bits) / 8
    others_ns = several_ns(work, moved, facts.folded_passes, arch)
    return why_several(float(passing_ns(work, arch)), others_ns, f"share {facts.iteration_elems} long rows among all blocks")


MOST_KEPT = BATCHES[-1] + 1


def _kept_vectors(params: PersistentParams) -> int:
    """Return how many vectors of a row a thread keeps in registers."""
    return params.batches * params.outer_batches if params.storage == "register" else 0


def _reads_once(params: Any) -> bool:
    """True if no pass after the first reads from global memory."""
    return not isinstance(params, PersistentParams) or params.storage == "register"


def nested_names(template: Template, analysis: Any) -> set[int]:
    """Names of the reductions over parts of rows in a template."""
    return {template.reduction_behind(e.outputs[0].name).name for e in analysis.nested}


def is_loadable(analysis: PersistentAnalysis, facts: PersistentFacts, is_masked: bool) -> bool:
    """True if rows of all inputs can be loaded by bulk copies, and results stored by them."""
    if any(is_rolled_within(t, analysis) for t in analysis.row_outputs):
        return False
    return not facts.still_axes and not facts.single_reads and not is_masked and all(can_load(t, analysis) for t in analysis.row_inputs)


def reads_under_a_mask(analysis: PersistentAnalysis) -> bool:
    """True if a mask of positions removes elements of the rows, which are then not loaded."""
    needed = needed_elements(analysis.axes.fusion)
    return any(tensor in needed for tensor in analysis.row_inputs)


def keep_what_a_mask_left(params: Any) -> Any:
    """Keep computed rows instead of recomputing them from the inputs, if they take at most 32 registers per thread.

    Vectors that the mask removes entirely are then constants, and cost nothing in every pass. Measured: docs/constants.md.
    """
    fits = isinstance(params, PersistentParams) and params.storage == "register" and params.batches * params.outer_batches * params.vector_elems <= MASKED_ELEMS
    if not fits or not params.project_to_inputs or params.row_unroll > 1:
        return params
    return replace(params, project_to_inputs=False, max_registers=max(params.max_registers, MASKED_REGISTERS))


def apply_persistent(fusion: Fusion, analysis: Any, params: PersistentParams) -> ScheduleResult:
    """Schedule `fusion` in place."""
    is_folded = params.storage == "reread" or params.fewer_passes
    if is_folded:
        analysis = in_fewer_passes(fusion, analysis)
    template = Template(fusion)
    passes = Passes(template, analysis, is_projected=params.project_to_inputs)
    kept = passes.separate()
    reference = template.reduction_behind(analysis.shape.reference.name)
    rows = canonical_rows(
        reference, analysis.shape, analysis.axes, params.vector_elems, keep_outer=params.kind == "3d", is_phased=params.is_phased, inner_axes=params.still_axes
    )
    shared = ParallelType.grid_x if params.cluster_blocks > 1 else None
    phase = phase_of_rows(rows, params, analysis.limits, shared) if params.is_phased else None
    serial = split_row(reference, rows, params)
    row_axes = bind_rows(reference, rows, params) + (params.cluster_blocks > 1)
    in_vectors = [n for n in names_in_vectors(analysis.limits, analysis.shape.inner_position, params) if n not in params.single_reads]
    copies, in_shared = keep_elsewhere(kept, passes, params, in_vectors)
    weights = {t.name for t in analysis.broadcast_inputs}
    early = copy_to_shared(template, weights & set(in_vectors), params.vector_elems) if params.weights == "shared" else {}
    partial = rfactor(reference, positions(reference, serial))
    template.propagate(partial)
    template.bind(partial)
    nested = nested_names(template, analysis)
    template.rfactor_others(reference, partial, nested)
    own = [t for t in template.reductions if t.name in nested]
    runs_at = row_axes - (params.along_run and params.cluster_blocks > 1)
    for tensor in own:
        tensor.axis(runs_at).parallelize(ParallelType.group)
    if params.row_unroll > 1:
        template.group_reductions(row_axes - 1 - (params.cluster_blocks > 1))
    group_scans(fusion)
    template.vectorize(in_vectors, params.vector_elems, [*copies, *in_shared, *early.values()])
    if is_folded:
        template.fold_vectors(params.vector_elems)
    loads_at = row_axes if params.storage == "register" else row_axes + 1  # all loads of a row, or of one iteration, are issued before their first use
    loads = {t: loads_at for t in (*template.loads, *copies) if t not in early}
    of_groups = {t.name for t in analysis.group_inputs}
    loads |= {cache: len(cache.get_loop_domain()) - 1 for source, cache in template.inputs if source.name in of_groups}
    if params.weights == "registers":
        loads |= {cache: 0 for source, cache in template.inputs if source.name in weights}
    loads |= dict.fromkeys(early.values(), 0)
    if params.late:
        loads |= {t: row_axes + (1 if params.late == 1 else len(serial) + 1) for t in template.loads if passes.first.get(t.name, 0)}
    for tensor in own:
        loads |= dict.fromkeys((tensor, *tensor.definition().tensor_inputs), runs_at)  # type: ignore[union-attr]
    template.inline_fixed(loads, row_axes - (params.row_unroll > 1) - (params.cluster_blocks > 1), in_shared)
    bdimx = 32 if params.is_warp_only and params.bdimx is None else params.bdimx  # a row in one warp needs no barrier, which the text must know
    static = [] if bdimx is None else [(ParallelType.block_x, whole_warps(bdimx, params.rows_per_block, params.bdimz))]
    peel = peel_of(analysis.shape, analysis.axes, params.fill, params.batches, phase)
    most_threads = CLUSTER_BLOCK_THREADS[1] if params.cluster_blocks > 1 and params.storage == "register" else None
    return ScheduleResult(tuple(static), params.max_registers, params.cluster_blocks, peel, access_bits=params.access_bits, most_threads=most_threads)


def copy_to_shared(template: Template, names: set[int], vector_elems: int) -> dict[TensorView, TensorView]:
    """Load the named inputs by cp.async into shared memory, where it supports their vectors; return {register cache that reads from there: tensor there}."""
    out: dict[TensorView, TensorView] = {}
    for source, cache in template.inputs:
        if source.name in names and source.dtype().bits * vector_elems // 8 in CP_ASYNC_BYTES:
            out[cache] = shared = cache_after(source, LoadStoreOpType.cp_async)
            set_memory_type(shared, MemoryType.shared)
    return out


def split_row(reference: TensorView, rows: Rows, params: PersistentParams) -> list[IterDomain]:
    """Split the row of the reference and bind its threads; return its serial axes (batches or loop and unroll, vector)."""
    serial = [rows.vector]
    if params.cluster_blocks > 1:
        if rows.outer is None or params.along_run:
            blocks, rows.row = split_axis(reference, rows.row, params.cluster_blocks, False, SHARE_MULTIPLE)
        else:
            blocks, rows.outer = split_axis(reference, rows.outer, params.cluster_blocks, False)
        blocks.parallelize(ParallelType.grid_x)
    if rows.outer is not None:
        batches, threads = split_axis(reference, rows.outer, params.outer_batches, False)
        threads.parallelize(ParallelType.block_z)
        serial.append(batches)
        if params.unswitch:
            switch, batches = split_axis(reference, batches, 1, False)
            switch.parallelize(ParallelType.unswitch)
            serial[-1:] = [switch, batches]
    if params.storage == "register":
        batches, threads = split_axis(reference, rows.row, params.batches, False, params.part_multiple)
        serial.append(batches)
    else:
        loop, threads = split_axis(reference, rows.row, params.bdimx)  # type: ignore[arg-type]
        serial += split_axis(reference, loop, params.unroll)
    threads.parallelize(ParallelType.block_x)
    if params.pad_to_warp:
        threads.pad_to_multiple_of_warp()
    return serial


def bind_rows(reference: TensorView, rows: Rows, params: PersistentParams) -> int:
    """Bind the reference's rows to blocks and threads; return the number of loop axes left of the row."""
    if rows.rows is None:
        return 0
    outer, count = rows.rows, 1
    if params.row_unroll > 1:
        outer, _ = split_axis(reference, outer, params.row_unroll)
        count += 1
    if params.rows_per_block > 1:
        outer, inner = split_axis(reference, outer, params.rows_per_block)
        inner.parallelize(ParallelType.block_y)
        count += 1
    outer.parallelize(ParallelType.grid_x if params.cluster_blocks == 1 else ParallelType.grid_y)
    return count
