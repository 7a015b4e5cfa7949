"""InnerPersistent with rows that TMA loads: a row per block ("tma"), or blocks that stay and go from row to row while async warps load ahead ("specialized").

    tma          rows: [BIDx]                                       inputs: [BIDx | row as one bulk copy]
    specialized  rows: [steps, BIDx = blocks, groups, grouped_rows]  inputs: the same, with stages; computed: groups on TIDy (or one group along TIDx)
    both         row of what is computed: [batches, TIDx, vector]; the row is copied to registers first, so that its stage is free before the math

Owns the template and a first choice of its parameters, pure as all choices; when to prefer it to rows in registers is decided elsewhere.
Read first: `AsyncRowsParams`, `apply_async_rows`, `choose_async_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..arch import Arch
from ..expr import is_int
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, TensorView
from ..schedule.caching import cache_after, cache_before
from ..schedule.circular import split_registers, warp_specialize
from ..schedule.full_rows import fill_of_parts
from ..schedule.inline import inline_to
from ..schedule.primitives import set_memory_type, split
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.rfactor import rfactor
from .base import Decline, Launch
from .facts import PersistentAnalysis, PersistentFacts
from .row_passes import Passes
from .rows import BOUND, Template, arrange, class_order, full_rows, merge_axes_at
from .throughput_heuristic import ceil_div, round_up, vector_elems

ASYNC_THREADS = 128
BULK_BITS = 128
"""A bulk copy moves multiples of 16 bytes."""
MOST_ASYNC_WARPS = 4
MOST_STAGES = 12
MOST_BATCHES = 16
GROUP_THREADS = 128
"""Threads of a compute group on TIDy: with the async ones they are whole warpgroups."""


@dataclass(frozen=True, slots=True)
class AsyncRowsParams:
    """A schedule of a normalization whose rows TMA loads; equal params (with equal structure, index type and device) mean the same kernel.

    kind: "tma" or "specialized". bdimx: threads of a row. groups: compute groups of a block, on TIDy (1: along TIDx). grouped_rows: rows that a group takes
    at once. blocks: of the grid, which stay. stages: per group. async_warps: roles that share the inputs. registers: of async and compute threads.
    is_stored_in_bulk: results leave through shared memory. project_to_inputs, vector_elems, batches, fill: as for rows in registers.
    """

    kind: str
    project_to_inputs: bool
    vector_elems: int
    batches: int
    bdimx: int
    groups: int = 1
    grouped_rows: int = 1
    blocks: int = 0
    stages: int = 1
    async_warps: int = 1
    registers: tuple[int, int] | None = None
    is_stored_in_bulk: bool = False
    max_registers: int | None = None
    fill: str = "partial"

    def filled(self, facts: PersistentFacts) -> AsyncRowsParams:
        """Return the params with `fill` for rows of these sizes."""
        return replace(self, fill=fill_of_parts(facts.reduction_elems // self.vector_elems, self.batches, self.bdimx))


def apply_async_rows(fusion: Fusion, analysis: Any, params: AsyncRowsParams) -> Launch:
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
    split(reference, -2, params.batches, False)
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
    inline(template, params, row_axes, loaded, list(stored))
    if params.kind == "specialized":
        axis = ParallelType.block_x if params.groups == 1 else ParallelType.block_y
        position = None if params.groups == 1 else 3
        for number, tensor in enumerate(loaded):
            warp_specialize(tensor, params.stages, params.stages - 1, axis, params.registers, number % params.async_warps, position)
    static = [(ParallelType.block_x, params.bdimx)]
    return Launch(tuple(static), params.max_registers, full_rows=full_rows(analysis.shape, params.fill, params.batches))


def load_rows(template: Template, analysis: PersistentAnalysis) -> list[TensorView]:
    """Let TMA bring the inputs that vary over rows and within them into shared memory; return the tensors there."""
    rows = {t.name for t in analysis.row_inputs}
    out = []
    for source, _ in template.inputs:
        if source.name in rows and can_load(source):
            shared = cache_after(source, LoadStoreOpType.tma)
            set_memory_type(shared, MemoryType.shared)
            out.append(shared)
    return out


def can_load(source: TensorView) -> bool:
    """True when rows of an input lie contiguously."""
    axes = source.get_logical_domain()
    return source.domain().allocation is None and all(c for a, c in zip(axes, source.domain().contiguity) if not a.is_broadcast() and not is_int(a.sym, 1))


def store_rows(template: Template, analysis: PersistentAnalysis) -> dict[TensorView, TensorView]:
    """Let bulk copies take the results of rows to global memory; return tensor in shared memory -> output."""
    rows = {t.name for t in analysis.row_outputs}
    out: dict[TensorView, TensorView] = {}
    for local, output in template.outputs:
        if output.name in rows or local.name in rows:
            shared = cache_before(output, LoadStoreOpType.tma)
            set_memory_type(shared, MemoryType.shared)
            out[shared] = output
    return out


def split_rows(reference: TensorView, analysis: PersistentAnalysis, params: AsyncRowsParams) -> int:
    """Bring the reference into the form [rows, row] and split the rows; return how many loops the rows have."""
    shape = analysis.shape
    arrange(reference, class_order(reference, shape, analysis.axes))
    loop = reference.domain().loop
    kept = [n for n, a in enumerate(loop) if not a.is_reduction()]
    arrange(reference, [*kept, *(n for n, a in enumerate(loop) if a.is_reduction())])
    merge_axes_at(reference, len(kept), len(reference.get_loop_domain()) - len(kept))
    merge_axes_at(reference, 0, len(kept))
    if params.kind == "tma":
        reference.axis(0).parallelize(ParallelType.grid_x)
        return 1
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


def row_of(tensor: TensorView) -> IterDomain:
    """The innermost loop axis that has elements."""
    return next(a for a in reversed(tensor.get_loop_domain()) if not a.is_broadcast())


def bind_groups(tensor: TensorView, params: AsyncRowsParams) -> None:
    if params.groups > 1:
        tensor.axis(2).parallelize(ParallelType.block_y)


def bind_blocks(tensor: TensorView, params: AsyncRowsParams) -> None:
    tensor.axis(0 if params.kind == "tma" else 1).parallelize(ParallelType.grid_x)


def inline(template: Template, params: AsyncRowsParams, row_axes: int, loaded: list[TensorView], staged: list[TensorView]) -> None:
    """Copy a whole row to registers before its first use; read weights once, before the loop over rows; inline all else."""
    row_at = row_axes - (params.grouped_rows > 1)
    limits: dict[TensorView, int] = {}
    for tensor in template.fusion.tensors():
        loop = tensor.get_loop_domain()
        inner = loop[row_axes:]
        is_per_row = all(not a.is_iteration() for a in inner) and not any(a.is_reduction() for a in inner)
        limits[tensor] = row_at if is_per_row else len(loop)
    for source, cache in template.inputs:
        varies_by_row = any(a.is_iteration() for a in cache.get_loop_domain()[:row_axes]) and not is_weight(source)
        limits[cache] = min(limits[cache], row_axes) if varies_by_row or params.kind == "tma" else 0
    for tensor in (*loaded, *staged):
        limits[tensor] = 1 if params.kind == "tma" else 2
    inline_to(template.fusion, limits)


def is_weight(source: TensorView) -> bool:
    """True for an input of one axis that is not broadcast: all rows read it."""
    return len([a for a in source.get_logical_domain() if not a.is_broadcast()]) == 1


# ---------------------------------------------------------------- the choice
TMA_ROW_BYTES = (64 * 1024, 128 * 1024)
"""More than the first and at most the second: rows that registers would spread over a cluster. One H200, fractions of a copy, registers against "tma":
float32 24K layer norm 0.63 and 0.78, softmax 0.80 and 0.84, RMS norm 0.82 and 0.88; float32 32K 0.58 and 0.77, 0.80 and 0.88, 0.83 and 0.84;
bf16 64K layer norm 0.71 and 0.72, but softmax 0.73 and 0.63, RMS norm 0.87 and 0.82; of 160 KiB, layer norm 0.57 and 0.55."""


def is_best_by_tma(facts: PersistentFacts, arch: Arch) -> bool:
    """True where a block that loads its whole row by TMA was measured to be faster than a cluster with the row in its registers."""
    row_bytes = facts.reduction_elems * facts.max_dtype_bits // 8
    is_wide = facts.max_dtype_bits >= 32 or facts.reductions > 1 and not facts.has_exp
    is_alone = facts.vectorizable_inputs == 1 and not facts.has_rng
    return is_alone and is_wide and TMA_ROW_BYTES[0] < row_bytes <= TMA_ROW_BYTES[1] and facts.iteration_elems >= arch.sm_count


def choose_async_rows(facts: PersistentFacts, arch: Arch, kind: str, *, async_warps: int = 0, is_stored_in_bulk: bool = False) -> AsyncRowsParams | Decline:
    """Return params of kind "tma" or "specialized", or why there are none. async_warps: 0 for one per input, up to 4."""
    if not arch.has_tma:
        return Decline(f"{arch.name} has no TMA")
    if all(is_reduced for is_reduced, _ in facts.runs):
        return Decline("all axes are reduced: there is one row")
    if len(facts.runs) > 2:
        return Decline("the reduced axes are in several runs")
    vector = vector_elems(facts.vector_limit_elems, facts.max_dtype_bits, facts.min_vector_elems, arch.max_vector_bits)
    if vector * facts.max_dtype_bits < BULK_BITS or facts.reduction_elems * facts.min_dtype_bits % BULK_BITS:
        return Decline("the bytes of a row are no multiple of 16")
    vectors = facts.reduction_elems // vector
    row_bytes = facts.reduction_elems * facts.input_bits // 8
    staging = facts.reduction_elems * facts.output_bits // 8 if is_stored_in_bulk else 0
    shared = arch.shared_per_block_optin_bytes - 4096  # barriers, workspaces, alignment
    projected = facts.projected_bits is not None and facts.projected_bits <= facts.persistent_bits
    if kind == "tma":
        if row_bytes + staging > shared:
            return Decline(f"a row of {row_bytes} bytes does not fit into shared memory")
        batches = next((b for b in (4, 8, MOST_BATCHES) if ceil_div(vectors, b) <= 1024), None)
        if batches is None:
            return Decline("a row has more vectors than a block can hold")
        batches = min(batches, max(1, ceil_div(vectors, 32)))
        bdimx = round_up(ceil_div(vectors, batches), 32)
        registers = arch.registers_per_thread(bdimx)
        made = AsyncRowsParams("tma", projected, vector, batches, bdimx, is_stored_in_bulk=is_stored_in_bulk, max_registers=registers)
        return made.filled(facts)
    warps = async_warps or max(1, min(MOST_ASYNC_WARPS, facts.vectorizable_inputs))
    for groups, bdimx in ((2, GROUP_THREADS), (1, 256), (1, 384), (1, 512)):
        batches = ceil_div(vectors, bdimx)
        stages = min(MOST_STAGES, (shared - groups * staging) // (groups * row_bytes))
        if batches <= (8 if groups > 1 else MOST_BATCHES) and stages >= 2:
            compute = groups * bdimx
            threads = compute + ASYNC_THREADS
            each = arch.registers_per_thread(threads)
            split_ = split_registers(each, compute, ASYNC_THREADS) if each < 248 else None
            made = AsyncRowsParams(
                "specialized", projected, vector, batches, bdimx, groups, 1, arch.sm_count, stages, warps, split_, is_stored_in_bulk,
            )  # fmt: skip
            return made.filled(facts)
    return Decline(f"two rows of {row_bytes} bytes do not fit into shared memory, or one not into the registers of a block")


__all__ = ["AsyncRowsParams", "apply_async_rows", "choose_async_rows"]
