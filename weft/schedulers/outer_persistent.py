"""OuterPersistent: normalization along an outer axis (variance over rows, batch norm statistics).

    register   columns: [BIDx, TIDx, vector]   reduced: [batches, TIDy]                                 columns are in the registers of a block
    cluster    columns: [BIDy, TIDx, vector]   reduced: [BIDx = blocks of a cluster, batches, TIDy]     of the blocks of a cluster
    reread     columns: [BIDx, TIDx, vector]   reduced: [serial, unroll, TIDy]                          every pass reads the columns again

Owns the template and its parameters. Read first: `OuterPersistent.apply`.
"""

from __future__ import annotations

from dataclasses import replace

from ..analysis.loop_axes import Obstacle
from ..analysis.persistent import NO_INPUT
from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import CP_ASYNC_BYTES, Arch
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, SqueezeOp, TensorView
from ..schedule.caching import cache_after
from ..schedule.primitives import set_memory_type
from ..schedule.rfactor import rfactor
from .accesses import with_accesses
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes
from .facts import PersistentFacts
from .kept_columns import COLUMN_REGISTERS, KEPT_REGISTERS, OuterParams, columns_in_registers, kept_candidates
from .persistent_analysis import PersistentAnalysis, analyze_persistent
from .persistent_params import RowsOf
from .reduction import columns_and_rest, schedule_outer
from .cost.parts import clusters_at_once, rereads_from_memory
from .cost.passing import unevenness
from .arithmetic import PORTABLE_CLUSTER_BLOCKS, ceil_div, next_power_of_two, previous_power_of_two, round_up, tree_workspace_bytes
from .limits import FULL_BLOCK_THREADS, MANY_BATCHES, TIMED_OF_A_WAY
from .row_analysis import NO_GROUPS
from .row_passes import NOT_JOINED, Passes, folded_passes, later_uses, load_again, loops_stay_joined, separate_reads
from .rows import arrange_axes, kept_and_reduced, merge_axes_at, positions, split_axis, split_last_run
from .several_kernels import start_ns, why_not_turned, why_several
from .template import Template
from .turned import LANES_ALONG_COLUMNS, TURNED_THREADS, schedule_turned, turn, turned_outputs

BESIDE_REGISTERS = KEPT_REGISTERS + 8 * COLUMN_REGISTERS
"""Registers of a thread besides its part of eight columns."""

def tile_in_registers(facts: PersistentFacts, arch: Arch) -> OuterParams | None:
    """Return the params for columns of a few rows together with blocks along these rows, a few vectors per thread; None if they do not fit.

    For blocks of 16 and 32 that are quantized along both axes from one read.
    """
    rows, vector = facts.reduction_elems, min(facts.vector_limit_elems, MAX_VECTOR_BITS // facts.max_dtype_bits)
    lanes = ceil_div(facts.block_elems, vector)
    if rows > MOST_TILE_ROWS or lanes > arch.warp_threads or facts.projected_bits is None:
        return None
    batches = min(MANY_BATCHES, next_power_of_two(rows))
    is_projected = facts.projected_bits < facts.persistent_bits  # if equal, recomputing gains nothing
    kept_bits = facts.projected_bits if is_projected else facts.persistent_bits
    registers = round_up(ceil_div(int(vector * max(kept_bits / rows, facts.input_bits)), 32) * batches + BESIDE_REGISTERS, 8)
    return OuterParams(vector, 1, arch.warp_threads, ceil_div(rows, batches), registers, "register", batches, 1, is_projected, is_tile=True)


def turned_tile(facts: PersistentFacts, arch: Arch) -> OuterParams | None:
    """Return the params for tiles with turned outputs; None if a thread cannot hold its columns, or a block along a row is wider than its lanes. Columns of a
    single input are kept in shared memory. For several inputs, the computed values stay in registers: fewer columns per thread, and more lanes along rows.
    """
    rows, vector = facts.reduction_elems, min(facts.vector_limit_elems, MAX_VECTOR_BITS // facts.max_dtype_bits)
    is_staged = facts.vectorizable_inputs == 1
    kept_bits = max(facts.persistent_bits / rows, facts.input_bits)
    least = max(1, facts.min_vector_elems)
    while not is_staged and vector > least and vector * rows * kept_bits > 32 * MOST_TURNED_REGISTERS:
        vector //= 2
    bdimx = max(LANES_ALONG_COLUMNS * max(1, MAX_VECTOR_BITS // (vector * facts.max_dtype_bits)), ceil_div(facts.block_elems, vector))
    if facts.projected_bits is None or bdimx > arch.warp_threads:
        return None
    registers = STAGED_REGISTERS if is_staged else round_up(ceil_div(int(vector * kept_bits), 32) * rows + BESIDE_REGISTERS, 8)
    if registers > arch.max_registers_per_thread:
        return None
    storage = "shared" if is_staged else "register"
    return OuterParams(vector, 1, bdimx, TURNED_THREADS // bdimx, registers, storage, rows, 1, is_staged, is_tile=True, is_turned=True, unswitch=not is_staged)


STAGED_REGISTERS, MOST_TURNED_REGISTERS = 96, 64
"""Registers of a thread whose columns are in shared memory; registers for the columns of a thread that keeps them in registers. Measured:
docs/constants.md."""
MOST_TILE_ROWS = 128
LEAST_SHARED = 8192
PIECES_BYTES, LEAST_BUSY = (128, 64, 32), 0.4
"""If columns are few, the blocks of a cluster share them: neighbouring bytes of a row per block, the largest with which at least this fraction of the
multiprocessors has a block."""
MOST_FROM_MEMORY = 0.5
"""Largest fraction of re-read columns that may come from memory instead of L2; with more, a kernel for each reduction is faster. Measured:
docs/constants.md."""


class OuterPersistent(Scheduler):
    """Columns read again for every pass; see the module."""

    name = SchedulerType.outer_persistent

    def analyze(self, fusion: Fusion) -> PersistentAnalysis | Decline:
        found = analyze_persistent(fusion)
        if isinstance(found, Obstacle):
            return Decline(str(found))
        if found.shape.is_inner:
            return Decline("the innermost axis is reduced, which is the case of inner_persistent")
        if found.blocks.groups:
            return Decline(NO_GROUPS)
        if any(isinstance(e, SqueezeOp) and found.axes.stored(e.tensor_outputs[0]) & found.shape.reduced for e in fusion.tensor_exprs()):
            return Decline("values of rows lose the axis of the columns, which threads are bound to: they would be kept for all rows")
        if found.buffers.projection_obstacle == NO_INPUT:  # nothing has to be kept or read: each pass computes such tensors again
            found.buffers = replace(found.buffers, projected=(), projection_obstacle="")
        if found.buffers.projected is None:
            return Decline(f"columns would have to be read again, but {found.buffers.projection_obstacle}")
        found.folded_passes = folded_passes(fusion, found, is_online=False)
        found.can_look_up_again = loops_stay_joined(fusion, found)
        return found

    def accept(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        if not analysis.can_look_up_again and self.choose(analysis, sizes, alignment_bits, arch)[0].storage == "reread":
            return Decline(NOT_JOINED)
        if not analysis.needs_vectors:
            facts = analysis.facts(sizes, alignment_bits)
            return self.why_not_in_one_kernel(analysis, facts, arch) or why_not_turned(analysis, facts, sizes, arch)
        facts = analysis.facts(sizes, alignment_bits)
        tile, turned = self.tile(analysis, facts, arch)
        return analysis.why_not_vectors(facts, tile.vector_elems if tile else RowsOf(facts, arch).vector, is_tile=tile is not None, turned=turned)

    def why_not_in_one_kernel(self, analysis: PersistentAnalysis, facts: PersistentFacts, arch: Arch) -> Decline | None:
        """Return why several kernels are better than columns that are read again: L2 does not keep them, and some multiprocessors would be idle; or
        only few would have work, each of which moves at most about twice its share of the bandwidth."""
        if columns_in_registers(facts, arch) is not None:
            return None
        from_memory = rereads_from_memory(facts.total_elems * facts.input_bits / 8, arch)
        params = self.choose_reread(facts, arch)[0]
        blocks = ceil_div(ceil_div(facts.iteration_elems, params.vector_elems), params.bdimx) * params.cluster_blocks
        of_pass, stored = (facts.total_elems * bits / 8 for bits in (facts.input_bits, facts.output_bits))
        moved, what = facts.passes * of_pass + stored, f"{facts.iteration_elems} long columns"
        if analysis.folded_passes == 2 and from_memory > MOST_FROM_MEMORY and blocks < arch.sm_count:
            return Decline(f"{blocks} blocks for {what}, which L2 does not keep: {facts.passes} kernels, one for each reduction, can use more")
        at_once = int(clusters_at_once(params.cluster_blocks, arch)) * params.cluster_blocks if params.cluster_blocks > 1 else arch.sm_count
        bytes_ns = moved / (arch.roof_bytes_per_s * 1e-9)
        return why_several(bytes_ns * unevenness(blocks, at_once, arch), bytes_ns + (facts.passes - 1) * start_ns(arch), f"share {what} among all blocks")

    def tile(self, analysis: PersistentAnalysis, facts: PersistentFacts, arch: Arch) -> tuple[OuterParams | None, list[TensorView]]:
        """Return the params of a tile, if there is one, and the outputs that it transposes, because several threads would otherwise write one byte of them."""
        turned = turned_outputs(analysis.row_outputs, analysis.axes, analysis.shape)
        if any(t.dtype().is_packed for t in turned):
            params = turned_tile(facts, arch)
            return params, turned if params is not None else []
        return tile_in_registers(facts, arch) if facts.block_elems else None, []

    def choose(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[OuterParams, str]:
        facts = analysis.facts(sizes, alignment_bits)
        kept = self.tile(analysis, facts, arch)[0]
        if kept is None and not facts.block_elems:
            kept = columns_in_registers(facts, arch)
        if kept is not None:
            return with_accesses(kept, facts), f"outer_persistent: columns of {facts.reduction_elems} elements are kept in registers"
        read, why = self.choose_reread(facts, arch)
        return with_accesses(read, facts), why

    def choose_reread(self, facts: PersistentFacts, arch: Arch) -> tuple[OuterParams, str]:
        """Return the params for columns that every pass reads again."""
        vector = max(1, min(facts.vector_limit_elems, MAX_VECTOR_BITS // facts.max_dtype_bits))
        shared = self.shared_columns(facts, arch, vector)
        if shared is not None:
            return shared, f"outer_persistent: blocks of a cluster share columns, {shared.bdimx * vector} a block"
        while vector > facts.min_vector_elems and facts.iteration_elems < 2 * arch.sm_count * vector:
            vector //= 2  # having columns for every multiprocessor matters more than wide accesses
        columns = ceil_div(facts.iteration_elems, vector)
        bdimx = max(1, min(32, previous_power_of_two(ceil_div(columns, arch.sm_count))))
        bdimy = max(32 // bdimx, min(FULL_BLOCK_THREADS // bdimx, previous_power_of_two(facts.reduction_elems)))
        while bdimx * bdimy > arch.warp_threads and tree_workspace_bytes(bdimx * bdimy, vector, facts.accumulator_bits) > arch.shared_per_block_optin_bytes:
            bdimy //= 2
        params = OuterParams(vector, 4, bdimx, bdimy, arch.registers_per_thread(2 * FULL_BLOCK_THREADS))
        return params, f"outer_persistent: {columns} vectors of columns over {arch.sm_count} multiprocessors"

    def shared_columns(self, facts: PersistentFacts, arch: Arch, vector: int) -> OuterParams | None:
        """Return the params for few long columns, which the blocks of a cluster share, so that a block reads whole sectors of each row; else None."""
        bits = vector * facts.max_dtype_bits
        columns = ceil_div(facts.iteration_elems, vector)
        if columns >= 2 * arch.sm_count or facts.reduction_elems < LEAST_SHARED or arch.max_cluster_blocks < PORTABLE_CLUSTER_BLOCKS:
            return None
        for piece_bytes in PIECES_BYTES:
            bdimx = ceil_div(8 * piece_bytes, bits)
            blocks = ceil_div(columns, bdimx)
            if blocks * PORTABLE_CLUSTER_BLOCKS >= LEAST_BUSY * arch.sm_count:
                break
        cluster = min(PORTABLE_CLUSTER_BLOCKS, next_power_of_two(ceil_div(arch.sm_count, blocks)))
        bdimy = max(1, FULL_BLOCK_THREADS // bdimx)
        if bdimx > arch.warp_threads or tree_workspace_bytes(bdimx * bdimy, vector, facts.accumulator_bits) > arch.shared_per_block_optin_bytes:
            return None
        return OuterParams(vector, 4, bdimx, bdimy, arch.registers_per_thread(2 * FULL_BLOCK_THREADS), cluster_blocks=cluster)

    def candidates(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, OuterParams]]:
        facts = analysis.facts(sizes, alignment_bits)
        read = with_accesses(self.choose_reread(facts, arch)[0], facts)
        kept = [] if facts.block_elems or self.tile(analysis, facts, arch)[0] else kept_candidates(facts, arch)[:TIMED_OF_A_WAY]
        out = [self.choose(analysis, sizes, alignment_bits, arch)[0], *(with_accesses(params, facts) for params in kept), read]
        for bdimx in (read.bdimx, max(1, read.bdimx // 2), min(32, 2 * read.bdimx)):
            bdimy = previous_power_of_two(max(1, min(read.bdimx * read.bdimy, FULL_BLOCK_THREADS) // bdimx))
            out += [replace(read, bdimx=bdimx, bdimy=bdimy, unroll=unroll) for unroll in (4, 2, 8)]
        return [(params.storage, params) for params in dict.fromkeys(out) if analysis.can_look_up_again or params.storage != "reread"]

    def apply(self, fusion: Fusion, analysis: PersistentAnalysis, params: OuterParams) -> ScheduleResult:
        is_reread = params.storage == "reread"
        template = Template(fusion)
        passes = Passes(template, analysis, is_projected=params.project_to_inputs)
        copies = separate_reads(passes) if is_reread else []
        if not is_reread:
            passes.separate()
        reference = template.reduction_behind(analysis.shape.reference.name)
        if params.is_turned:
            return self.apply_turned(template, passes, analysis, params)
        if is_reread:
            serial, loads_at = schedule_outer(reference, analysis, params, grid_split=params.cluster_blocks, is_cluster=params.cluster_blocks > 1)
        elif params.is_tile:
            serial, loads_at = schedule_tile(reference, analysis, params)
        else:
            serial, loads_at = schedule_kept_columns(reference, analysis, params)
        partial = rfactor(reference, positions(reference, serial))
        template.propagate(partial)
        template.bind(partial)
        template.rfactor_others(reference, partial)
        if params.vector_elems > 1:
            template.group_reductions(-1)
        template.vectorize([t.name for t in analysis.limits.vectorizable if t.name not in params.single_reads], params.vector_elems, copies)
        row_axes = loads_at - is_reread
        template.inline_fixed(dict.fromkeys([*template.loads, *copies], loads_at), row_axes, is_across=True)
        static = ((ParallelType.block_x, params.bdimx), (ParallelType.block_y, params.bdimy))
        return ScheduleResult(static, params.max_registers, params.cluster_blocks)

    def apply_turned(self, template: Template, passes: Passes, analysis: PersistentAnalysis, params: OuterParams) -> ScheduleResult:
        """Schedule a tile with turned outputs: the reduction is in a thread."""
        reference = template.reduction_behind(analysis.shape.reference.name)
        names = {t.name for t in turned_outputs(analysis.row_outputs, analysis.axes, analysis.shape)}
        wide = {t.name for t in analysis.limits.vectorizable if t.name not in params.single_reads}
        staged, again = stage_columns(template, passes, params, wide) if params.storage == "shared" else ([], [])
        row_axes = schedule_turned(reference, analysis.axes, analysis.shape, params.vector_elems, params.bdimx, params.bdimy, params.unswitch)
        template.propagate(reference)
        template.bind(reference)
        template.vectorize(wide, params.vector_elems, staged)
        turn([(local, output) for local, output in template.outputs if template.name_of[output] in names], passes, row_axes, again)
        sources = [t.definition().tensor_inputs[0] for t in staged]  # type: ignore[union-attr]
        kept = [cache for source, cache in template.inputs if source not in sources]
        fixed = dict.fromkeys([*kept, *staged, *(result for _, result in template.lookups)], row_axes)
        fixed |= {t: len(t.get_loop_domain()) - 2 for t in again}
        template.inline_fixed(fixed, row_axes, is_across=True)
        return ScheduleResult(((ParallelType.block_x, params.bdimx), (ParallelType.block_y, params.bdimy)), params.max_registers, keeps_places=True)


def stage_columns(template: Template, passes: Passes, params: OuterParams, wide: set[int]) -> tuple[list[TensorView], list[TensorView]]:
    """Load a thread's columns into shared memory by asynchronous copies, and let every pass read them from there; return the tensors there, and the later
    reads. wide: names of inputs that are read in vectors; the others stay in registers.
    """
    staged, again = [], []
    for source, cache in template.inputs:
        if source.name in wide and source.dtype().bits * params.vector_elems // 8 in CP_ASYNC_BYTES:
            staged.append(cache_after(source, LoadStoreOpType.cp_async))
            set_memory_type(staged[-1], MemoryType.shared)
            again += [load_again(cache, uses) for uses in later_uses(cache, passes).values()]
    return staged, again


def schedule_kept_columns(reference: TensorView, analysis: PersistentAnalysis, params: OuterParams) -> tuple[list[IterDomain], int]:
    """Transform and bind columns of which each thread keeps its batches; return the serial axes and the number of axes outside of the batches."""
    columns, rest, vector = columns_and_rest(reference, analysis, params.vector_elems)
    blocks, threads_x = split_axis(reference, columns, params.bdimx)
    share: list[IterDomain] = []
    if params.cluster_blocks > 1:
        of_cluster, rest = split_axis(reference, rest, params.cluster_blocks, False)
        of_cluster.parallelize(ParallelType.grid_x)
        share = [of_cluster]
    batches, threads_y = split_axis(reference, rest, params.batches, False)
    serial = [batches]
    if params.unswitch:
        switch, batches = split_axis(reference, batches, 1, False)
        switch.parallelize(ParallelType.unswitch)
        serial = [switch, batches]
    blocks.parallelize(ParallelType.grid_y if share else ParallelType.grid_x)
    threads_x.parallelize(ParallelType.block_x)
    threads_y.parallelize(ParallelType.block_y)
    arrange_axes(reference, [blocks, *share, *serial, threads_y, threads_x, vector])
    return serial, 1 + len(share)


def schedule_tile(reference: TensorView, analysis: PersistentAnalysis, params: OuterParams) -> tuple[list[IterDomain], int]:
    """Transform and bind [BIDx = other columns, BIDy, batches, TIDy, TIDx, vector] with TIDx along the last run; return what `schedule_kept_columns` does."""
    loops, line, vector = split_last_run(reference, analysis.shape, analysis.axes, params.vector_elems)
    blocks, threads_x = split_axis(reference, line, params.bdimx)
    others, reduced = kept_and_reduced(loops)
    arrange_axes(reference, [*others, *reduced, blocks, threads_x, vector])
    outer = merge_axes_at(reference, 0, len(others))
    rest = merge_axes_at(reference, int(bool(others)), len(reduced))
    batches, threads_y = split_axis(reference, rest, params.batches, False)  # type: ignore[arg-type]
    blocks.parallelize(ParallelType.grid_y if others else ParallelType.grid_x)
    if outer is not None:
        outer.parallelize(ParallelType.grid_x)
    threads_x.parallelize(ParallelType.block_x)
    threads_y.parallelize(ParallelType.block_y)
    front = [blocks] if outer is None else [outer, blocks]
    arrange_axes(reference, [*front, batches, threads_y, threads_x, vector])
    return [batches], len(front)
