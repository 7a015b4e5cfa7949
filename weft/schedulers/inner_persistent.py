"""InnerPersistent: normalizations along the innermost axes. Each row is kept between the reduction and its use.

    register  rows: [BIDx, TIDy, row_unroll]   row: [outer batches, TIDz] [batches, TIDx, vector]   the row is in registers
    cluster   rows: [BIDy]                     row: [BIDx = blocks of a cluster, batches, TIDx, vector]   the row is in the registers of a cluster
    shared    rows: [BIDx]                     row: [serial, unroll, TIDx, vector]                  the row is in shared memory
    reread    rows: [BIDx]                     row: [serial, unroll, TIDx, vector]                  every pass reads the row again

Owns the template; the parameters are chosen in `persistent_heuristic.py`, what is kept is found in `analysis/persistent.py`.
Read first: `InnerPersistent.apply`.
"""

from __future__ import annotations

from typing import Any

from ..arch import Arch
from ..expr import variables
from ..ir.enums import MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import Expr, IterDomain, LoadStoreOp, ReductionOp, TensorView
from ..schedule.caching import cache_after
from ..schedule.full_rows import FullRows
from ..schedule.primitives import set_memory_type
from ..schedule.recompute import recompute_chain
from ..schedule.rfactor import rfactor
from .base import Alignments, Decline, Launch, Scheduler, Sizes
from .facts import Obstacle, PersistentAnalysis, analyze_persistent
from .persistent_heuristic import PersistentParams, choose_with_trace
from .rows import Rows, Template, canonical_rows, positions, split_axis, whole_warps


class InnerPersistent(Scheduler):
    """Rows kept on chip; see the module."""

    name = SchedulerType.inner_persistent

    def analyze(self, fusion: Fusion) -> PersistentAnalysis | Decline:
        found = analyze_persistent(fusion)
        if isinstance(found, Obstacle):
            return Decline(str(found))
        if not found.shape.is_inner:
            return Decline("the innermost axis is not reduced: this template keeps rows that lie in memory as rows")
        return found

    def choose(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[PersistentParams, str]:
        return self.choose_variant(analysis, sizes, alignment_bits, arch, "register")

    def choose_variant(self, analysis: PersistentAnalysis, sizes: Sizes, alignment_bits: Alignments, arch: Arch, variant: str) -> tuple[Any, str]:
        from .async_rows import AsyncRowsParams, can_load, choose_async_rows, is_best_by_tma

        facts = analysis.facts(sizes, alignment_bits)  # type: ignore[arg-type]
        if variant == "auto" and is_best_by_tma(facts, arch) and all(can_load(t) for t in analysis.row_inputs):
            by_tma = choose_async_rows(facts, arch, "tma")
            if isinstance(by_tma, AsyncRowsParams):
                return by_tma, f"rows of one input that registers would spread over a cluster: {by_tma}"
        found = choose_async_rows(facts, arch, variant) if variant in ("tma", "specialized") else None
        if isinstance(found, AsyncRowsParams):
            return found, f"forced: {found}"
        params, trace = choose_with_trace(facts, arch)
        return params, str(trace) if found is None else f"not {variant}: {found.reason}\n{trace}"

    def apply(self, fusion: Fusion, analysis: PersistentAnalysis, params: Any) -> Launch:
        from .async_rows import AsyncRowsParams, apply_async_rows

        if isinstance(params, AsyncRowsParams):
            return apply_async_rows(fusion, analysis, params)
        return apply_persistent(fusion, analysis, params)


def apply_persistent(fusion: Fusion, analysis: Any, params: PersistentParams) -> Launch:
    """Schedule `fusion` in place."""
    template = Template(fusion)
    passes = Passes(template, analysis, is_projected=params.project_to_inputs)
    kept = passes.separate()
    reference = template.reduction_behind(analysis.shape.reference.name)
    rows = canonical_rows(reference, analysis.shape, analysis.axes, params.vector_elems, keep_outer=params.kind == "3d")
    serial = split_row(reference, rows, params)
    row_axes = bind_rows(reference, rows, params) + (params.cluster_blocks > 1)
    copies, in_shared = keep_elsewhere(kept, passes, params)
    partial = rfactor(reference, positions(reference, serial))
    template.propagate(partial)
    template.bind(partial)
    template.rfactor_others(reference, partial)
    if params.row_unroll > 1:
        template.group_reductions(row_axes - 1)
    template.vectorize([t.name for t in analysis.limits.vectorizable], params.vector_elems, [*copies, *in_shared])
    loads_at = row_axes if params.storage == "register" else row_axes + 1  # all loads of a row, or of one iteration, before their first use
    loads = {t: loads_at for t in (*(cache for _, cache in template.inputs), *copies)}
    template.inline_fixed(loads, row_axes - (params.row_unroll > 1), in_shared)
    bdimx = 32 if params.is_warp_only and params.bdimx is None else params.bdimx  # a row in one warp needs no barrier, which the text must know
    static = [] if bdimx is None else [(ParallelType.block_x, whole_warps(bdimx, params.rows_per_block, params.bdimz))]
    return Launch(tuple(static), params.max_registers, params.cluster_blocks, full_rows(analysis, params))


def full_rows(analysis: Any, params: PersistentParams) -> FullRows | None:
    """Return what `params.fill` says of rows, in the sizes of the fusion."""
    if params.fill == "partial":
        return None
    axes = analysis.shape.reference.get_logical_domain()
    row, others = ({v for a in axes if a.is_reduction() is kind for v in variables(a.sym)} for kind in (True, False))
    return FullRows(frozenset(row - others), params.batches, params.fill == "whole")


def split_row(reference: TensorView, rows: Rows, params: PersistentParams) -> list[IterDomain]:
    """Split the row of the reference and bind its threads; return its serial axes (batches or loop and unroll, vector)."""
    serial = [rows.vector]
    if params.cluster_blocks > 1:
        blocks, rows.row = split_axis(reference, rows.row, params.cluster_blocks, False)
        blocks.parallelize(ParallelType.grid_x)
    if rows.outer is not None:
        batches, threads = split_axis(reference, rows.outer, params.outer_batches, False)
        threads.parallelize(ParallelType.block_z)
        serial.append(batches)
    if params.storage == "register":
        batches, threads = split_axis(reference, rows.row, params.batches, False)
        serial.append(batches)
    else:
        loop, threads = split_axis(reference, rows.row, params.bdimx)  # type: ignore[arg-type]
        serial += split_axis(reference, loop, params.unroll)
    threads.parallelize(ParallelType.block_x)
    if params.pad_to_warp:
        threads.pad_to_multiple_of_warp()
    return serial


def bind_rows(reference: TensorView, rows: Rows, params: PersistentParams) -> int:
    """Bind the reference's rows to blocks and threads; return how many loop axes stand left of the row."""
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


class Passes:
    """The walks over a row: which expression belongs to which, and what each computes again instead of keeping."""

    def __init__(self, template: Template, analysis: Any, *, is_projected: bool) -> None:
        self.template = template
        buffers = analysis.buffers
        chosen = buffers.projected if is_projected and buffers.projected is not None else buffers.buffers
        self.kept_names = {b.tensor.name for b in chosen}
        self.first: dict[int, int] = {t.name: p for t, p in buffers.first_pass.items()}
        for source, cache in template.inputs:
            self.first[cache.name] = self.first.get(source.name, 0)
        for local, output in template.outputs:
            self.first.setdefault(local.name, self.first.get(output.name, 0))
        self.varying = {t.name for t in analysis.axes.tensors if analysis.axes.stored(t) & analysis.shape.reduced}

    def of_use(self, use: Expr) -> int:
        """The pass in which an expression runs; a reduction runs as soon as its operand can be computed."""
        if isinstance(use, ReductionOp):
            return self.first.get(use.inputs[0].name, 0)
        return self.first.get(use.outputs[0].name, 0)

    def separate(self) -> list[TensorView]:
        """Let later passes compute again what is not kept; return what is kept between passes (caches of inputs, or computed tensors)."""
        template = self.template
        cache_of = {source.name: cache for source, cache in template.inputs}
        kept: list[TensorView] = []
        for tensor in template.fusion.tensors():
            if tensor.name in self.kept_names:
                kept.append(cache_of.get(tensor.name, tensor))
        memos: dict[int, dict[TensorView, TensorView]] = {}
        for tensor in template.fusion.tensors():
            if tensor.name not in self.varying or tensor.name in self.kept_names or tensor.is_fusion_input or tensor.is_fusion_output:
                continue
            for use in tensor.uses():
                at = self.of_use(use)
                if at > self.first.get(tensor.name, 0):
                    memo = memos.setdefault(at, {k: k for k in kept})
                    clone = recompute_chain(tensor, use, memo)
                    self.first[clone.name] = at
                    for made in memo.values():
                        self.first.setdefault(made.name, at)
        return kept

    def operands(self, kept: list[TensorView]) -> list[TensorView]:
        """Return the caches of inputs that vary along the row and are not kept, as weights: a pass that walks in a loop loads them itself."""
        return [cache for source, cache in self.template.inputs if source.name in self.varying and cache not in kept and cache.uses()]


def keep_elsewhere(kept: list[TensorView], passes: Passes, params: PersistentParams) -> tuple[list[TensorView], list[TensorView]]:
    """Where rows are not kept in registers, give later passes their copies; return (register copies, tensors in shared memory)."""
    copies: list[TensorView] = []
    in_shared: list[TensorView] = []
    for tensor in kept:
        if params.storage == "shared":
            made = keep_in_shared(tensor, passes)
            copies += made
            in_shared += [c.definition().tensor_inputs[0] for c in made[:1]]  # type: ignore[union-attr]
        elif params.storage == "reread":
            copies += read_again(tensor, passes)
    if params.storage != "register":
        copies += [copy for cache in passes.operands(kept) for copy in read_again(cache, passes)]
    return copies, in_shared


def later_uses(tensor: TensorView, passes: Passes) -> dict[int, list[Expr]]:
    """Uses of `tensor` in passes after the first that reads it, by pass."""
    uses: dict[int, list[Expr]] = {}
    start = min(passes.of_use(u) for u in tensor.uses())
    for use in tensor.uses():
        if passes.of_use(use) > start:
            uses.setdefault(passes.of_use(use), []).append(use)
    return uses


def keep_in_shared(tensor: TensorView, passes: Passes) -> list[TensorView]:
    """Store `tensor` to shared memory as it is made; later passes read it from there. Return the register copies."""
    later = later_uses(tensor, passes)
    if not later:
        return []
    every = [use for uses in later.values() for use in uses]
    stored = cache_after(tensor, cached_uses=every)
    set_memory_type(stored, MemoryType.shared)
    return [cache_after(stored, cached_uses=uses) for uses in later.values()]


def read_again(tensor: TensorView, passes: Passes) -> list[TensorView]:
    """Let each later pass load `tensor` from global memory itself. Return the new register caches."""
    definition = tensor.definition()
    if not isinstance(definition, LoadStoreOp) or not definition.tensor_inputs[0].is_fusion_input:
        return []
    source, copies = definition.tensor_inputs[0], []
    for uses in later_uses(tensor, passes).values():
        copy = cache_after(source, cached_uses=[definition])
        fusion = tensor.fusion
        fusion.replace_input(definition, copy, source)  # type: ignore[union-attr]
        for use in uses:
            fusion.replace_input(use, tensor, copy)  # type: ignore[union-attr]
        copies.append(copy)
    return copies

