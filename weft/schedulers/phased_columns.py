"""Column sums over unaligned rows in a persistent kernel: all rows of a block have the same offset from an aligned vector (the same phase).

    rows      [steps, BIDy = blocks, unswitched, TIDz = groups, row_unroll]   row: [BIDx = pieces, TIDy, TIDx, vector]   summed in registers over the steps
    partials  [blocks, columns] in global memory; then all blocks meet
    columns   as in `column_partials.py`

A row of an odd length begins in the middle of a vector, and every eighth row (of 16 bits) at the same place of one. A block that has every eighth row loads
whole vectors, and its threads keep their columns. The ends of rows, fewer than two vectors, have a thread for each element (`weft.schedule.peel`).
Read first: `apply_phased_columns`; for the choice: `candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import WARP_THREADS, Arch
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.values import Merge, TensorView
from ..schedule.inline import inline_to
from ..schedule.peel import Peel, Phase, gains_by_phase, row_vectors
from ..schedule.primitives import split
from ..schedule.propagate import parallelize_like, transform_like
from ..schedule.staying_blocks import StayingBlocks
from .arithmetic import ceil_div, next_power_of_two, round_up, tree_workspace_bytes, vector_elems
from .base import ScheduleResult
from .column_partials import columns_in_memory, separate_columns
from .column_results import ColumnResults, shared_column_results
from .cost.model import time_ns
from .cost.passing import piece_cost
from .cost.reductions import needed_registers
from .cost.work import Work
from .facts import ReductionFacts
from .inner_outer import bind_rows, split_steps
from .inner_outer_candidates import LEAST_COLUMN_LANES, MOST_SLOTS_UNROLL
from .inner_outer_params import InnerOuterParams
from .limits import FULL_BLOCK_THREADS, GROUPS, TIMED, UNROLLS
from .reduction_analysis import ReductionAnalysis
from .rows import arrange, class_order, merge_axes_at, names_in_vectors
from .template import BOUND, Template

MOST_PIECES = 32
"""Of a row, each of a block."""
LEAST_THREADS, MOST_THREADS_PER_SM = 128, 1536
"""Of a block, the fewest, and of a multiprocessor the most; FULL_BLOCK_THREADS are the most of a block and the fewest of a multiprocessor."""
RESIDENT = (1, 2, 3, 4)
NARROW_COLUMN_BITS = MAX_VECTOR_BITS // 2
"""Of an access down columns, up to which sums by phase are compared: each narrow piece of a row that begins within a sector touches one sector more."""
MOST_LOADED_REGISTERS = 48
"""Per thread, for vectors whose loads are in flight."""


# ---- the choice
def has_phases(facts: ReductionFacts) -> bool:
    """True where the length of rows is all that forbids wide vectors along the columns."""
    is_plain = not facts.is_inner and not facts.is_tailed and facts.dimensions == 2
    has_vectors = facts.min_vector_elems == 1 and facts.vectorizable_inputs > 0 and not facts.block_elems
    limits = facts.vector_limit_elems, facts.phased_limit_elems
    return is_plain and has_vectors and gains_by_phase(facts.inner_run_elems, *limits, facts.max_dtype_bits, NARROW_COLUMN_BITS)


def phased_candidates(facts: ReductionFacts, arch: Arch) -> list[tuple[float, InnerOuterParams]]:
    """Return (predicted ns, params) of all that fit the chip, best first; none where rows begin with a vector.

    Of the params, cluster_blocks are the pieces of a row: no cluster, blocks of their own.
    """
    if not has_phases(facts):
        return []
    vector = vector_elems(facts.phased_limit_elems, facts.max_dtype_bits, 1, facts.vector_bits)
    shapes = np.array(list(_shapes(facts, arch, vector)), dtype=np.int64).reshape(-1, 6)
    if not len(shapes):
        return []
    column_vector = 4 if facts.iteration_elems % 4 == 0 and facts.accumulator_bits == 32 * facts.reductions else 1
    times = time_ns(work_of_columns(shapes, facts, arch, vector, column_vector), arch)
    return [(float(times[n]), _params(shapes[n].tolist(), facts, arch, vector, column_vector)) for n in np.argsort(times, kind="stable")[:TIMED]]


def _shapes(facts: ReductionFacts, arch: Arch, vector: int) -> Iterator[tuple[int, ...]]:
    """Yield pieces of a row, threads of a piece, rows side by side, rows of a thread at once, blocks along the rows, and registers of a thread."""
    vectors = row_vectors(facts.inner_run_elems, vector, True)
    loaded = loaded_registers(facts, vector)
    for pieces in range(1, MOST_PIECES + 1):
        row_threads = max(2 * vector, ceil_div(vectors, pieces))
        row_threads = round_up(row_threads, 32) if row_threads > 32 else next_power_of_two(row_threads)
        if row_threads > FULL_BLOCK_THREADS or pieces > 1 and (pieces - 1) * row_threads >= vectors:
            continue
        for groups in GROUPS:
            threads = row_threads * groups
            workspace = tree_workspace_bytes(threads, vector + 1, facts.accumulator_bits)
            for resident in RESIDENT if LEAST_THREADS <= threads <= FULL_BLOCK_THREADS else ():
                blocks = min(arch.sm_count * resident // pieces, facts.reduction_elems // groups) // vector * vector
                fits = FULL_BLOCK_THREADS <= threads * resident <= MOST_THREADS_PER_SM and workspace * resident <= arch.shared_per_sm_bytes // 2
                limit = min(arch.max_registers_per_thread, arch.registers_per_thread(threads * resident))
                for unroll in UNROLLS[1:] if fits and blocks >= vector else ():
                    needed = needed_registers(facts, unroll * loaded, vector + 1, is_outer=True)
                    if unroll * loaded <= MOST_LOADED_REGISTERS and needed <= limit:
                        yield pieces, row_threads, groups, unroll, blocks, limit


def loaded_registers(facts: ReductionFacts, vector: int) -> int:
    """Return the registers that the vectors of one row take, before they are used."""
    return ceil_div(vector * facts.max_dtype_bits, 32) * max(1, facts.vectorizable_inputs)


def _params(shape: list[int], facts: ReductionFacts, arch: Arch, vector: int, column_vector: int) -> InnerOuterParams:
    pieces, row_threads, groups, unroll, blocks, limit = shape
    share = next_power_of_two(ceil_div(facts.iteration_elems, column_vector * blocks * pieces))
    lanes = min(row_threads, max(LEAST_COLUMN_LANES, min(WARP_THREADS, share)))
    rounds = ceil_div(blocks, row_threads // lanes * groups)
    return InnerOuterParams(
        project_to_inputs=False, vector_elems=vector, batches=1, lanes=lanes, threads_y=row_threads // lanes, groups=groups, row_unroll=unroll, blocks=blocks,
        loads="now", stages=1, is_reread=False, weights="registers", column_vector_elems=column_vector,
        slots_unroll=ceil_div(rounds, ceil_div(rounds, MOST_SLOTS_UNROLL)), max_registers=limit, cluster_blocks=pieces, fill="partial", is_phased=True,
    )  # fmt: skip


def work_of_columns(shapes: np.ndarray, f: ReductionFacts, arch: Arch, vector: int, column_vector: int) -> Work:
    """Return what the kernels of these shapes do."""
    pieces, row_threads, groups, unroll, along_rows, limit = shapes.T.astype(float)
    blocks = along_rows * pieces
    lanes = np.clip(2.0 ** np.ceil(np.log2(np.maximum(1.0, f.iteration_elems / (column_vector * blocks)))), LEAST_COLUMN_LANES, WARP_THREADS)
    sharing = row_threads / lanes * groups
    vectors = unroll * (1 + 1 / vector)  # and an element at the ends of the row
    inputs = max(1, f.vectorizable_inputs)
    turns = np.ceil(f.iteration_elems / (column_vector * lanes * blocks)) * f.reductions
    none: Any = 0.0
    return Work(
        dram_bytes=f.total_elems * f.input_bits / 8 * piece_cost(row_threads * vector * f.max_dtype_bits / 8),
        sms=np.minimum(arch.sm_count, blocks), resident=np.ceil(blocks / arch.sm_count), blocks=blocks,
        warps=row_threads * groups / arch.warp_threads, steps=np.ceil(f.reduction_elems / (along_rows * groups * unroll)),
        element_instructions=vectors * vector * (f.instructions + f.reductions), access_instructions=vectors * inputs, row_results=none,
        predicates=1.0, mufu=vectors * vector * f.mufu, shared_clocks=none, wait_clocks=none, cluster_clocks=none, is_behind=none,
        depth=0.0 * unroll, bulk_copies=none, partial_bytes=along_rows * f.iteration_elems * f.accumulator_bits / 8,
        column_waits=turns * np.ceil(along_rows / (sharing * MOST_SLOTS_UNROLL)), column_folds=turns * np.log2(np.maximum(1.0, sharing)),
        needed_registers=needed_registers(f, unroll * loaded_registers(f, vector), vector + 1, is_outer=True), max_registers=limit,
    )  # fmt: skip


# ---- the template
def apply_phased_columns(fusion: Fusion, analysis: ReductionAnalysis, params: InnerOuterParams) -> ScheduleResult:
    """Schedule `fusion` in place."""
    template = Template(fusion)
    template.stream(analysis.axes, analysis.shape.order)
    totals = [template.reduction_behind(e.outputs[0].name) for e in analysis.shape.reductions]
    separate_columns(template, totals)
    reference = template.reduction_behind(analysis.shape.reference.name)
    row_axes, phase = split_into_steps(reference, analysis, params)
    transform_like(reference)
    order = columns_in_memory(analysis.shape.reductions[0], analysis)
    columns = shared_column_results(fusion, totals, row_axes, params, [order] * len(totals))
    rows = [t for t in fusion.tensors() if columns.in_loops_of_rows(t) and not t.is_fusion_input]
    summed = summed_by_thread(columns.read[totals.index(reference)], params)
    blocks = summed.axis(1).definition()
    assert isinstance(blocks, Merge)
    phase = replace(phase, rows=blocks.inner())  # the reference has no rows any more
    schedule_pieces(summed, rows, params)
    columns.schedule()
    template.vectorize(names_in_vectors(analysis.limits, analysis.shape.inner_position, params), params.vector_elems)
    results = [
        t.name
        for t in analysis.outputs
        if not t.domain().rolled and analysis.axes.memory_order(t) == analysis.shape.runs[-1].classes and all(t.domain().contiguity)
    ]
    columns.vectorize(template, results)
    inline_rows(template, params, columns)
    return ScheduleResult(params.static_block, params.max_registers, 1, Peel(phase=phase), staying=StayingBlocks(sums_offsets=True))


def split_into_steps(reference: TensorView, analysis: ReductionAnalysis, params: InnerOuterParams) -> tuple[int, Phase]:
    """Bring the reference into the form [rows, columns] and split the rows; return how many loops the rows have, and the phase of a row."""
    arrange(reference, class_order(reference, analysis.shape, analysis.axes))
    loop = reference.get_loop_domain()
    count = sum(a.is_reduction() for a in loop)
    merge_axes_at(reference, count, len(loop) - count)
    merge_axes_at(reference, 0, count)
    row_axes, phase = split_steps(reference, params, frozenset(t.name for t in analysis.limits.phased))
    assert phase is not None
    return row_axes, phase


def summed_by_thread(read: TensorView, params: InnerOuterParams) -> TensorView:
    """Return the sums of each thread, of which `read` has those of all blocks."""
    tensor: TensorView = read
    for _ in range(2 + (params.groups > 1)):  # what is read is a copy of what is stored, and that of the sum of a block
        tensor = tensor.definition().tensor_inputs[0]  # type: ignore[union-attr]
    return tensor


def schedule_pieces(partial: TensorView, rows: list[TensorView], params: InnerOuterParams) -> None:
    """Share the row among threads and blocks, and bind all of `rows`, what is computed before the blocks meet."""
    split(partial, -1, params.vector_elems, is_phased=True)
    if params.cluster_blocks > 1:
        split(partial, -2, params.cluster_blocks, False, part=params.lanes * params.threads_y)
        partial.axis(-3).parallelize(ParallelType.grid_x)
    bind_rows(partial, params)
    partial.axis(2).parallelize(ParallelType.unswitch)
    transform_like(partial, rows)
    parallelize_like(partial, selected_tensors=[t for t in rows if t is not partial], selected_parallel_types={*BOUND, ParallelType.unswitch})


def inline_rows(template: Template, params: InnerOuterParams, columns: ColumnResults) -> None:
    """Load all rows of a step before the first is used, what lies along the columns once; inline all else."""
    limits = {t: len(t.get_loop_domain()) for t in template.fusion.tensors()}
    column_axes = 2 + (params.threads_y > 1) + (params.cluster_blocks > 1)
    for _, cache in template.inputs:
        if columns.in_loops_of_rows(cache) and cache in limits:
            has_rows = any(not a.is_broadcast() for a in cache.get_loop_domain()[:-column_axes])
            limits[cache] = min(limits[cache], 2) if has_rows else 0
            if has_rows:
                cache.axis(2).parallelize(ParallelType.serial)  # loads of a row stand before the test of its bounds
    limits.update(columns.limits())
    inline_to(template.fusion, limits)


__all__ = ["apply_phased_columns", "has_phases", "phased_candidates"]
