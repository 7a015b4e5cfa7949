"""What a kernel for rows and columns does: instructions, bytes and waiting, from its params and the facts of the fusion.

Pure arithmetic on numbers or on numpy arrays with one element per candidate. A block goes from step to step, a step being the rows that it takes at once;
then all blocks meet and add up what they have of the columns. Read first: `work_of`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...arch import BANK_BYTES, SHARED_BANKS, WARP_THREADS, Arch
from .parts import barrier_clocks, clusters_at_once, fold_clocks
from .work import Work

NOW, AHEAD, CP_ASYNC, TMA = range(4)
"""How rows are loaded, in the order of `inner_outer_params.LOADS`."""
WHOLE, LEADING, PARTIAL = range(3)
"""The values of `fill`: which batches of a row are full."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Params of kernels, as arrays with one element each, named as in `InnerOuterParams`; common values may be numbers. loads, fill: the constants above.
    """

    project_to_inputs: Any
    vector_elems: Any
    batches: Any
    lanes: Any
    threads_y: Any
    groups: Any
    row_unroll: Any
    blocks: Any
    loads: Any
    stages: Any
    is_reread: Any
    column_vector_elems: Any
    slots_unroll: Any
    max_registers: Any
    cluster_blocks: Any
    fill: Any
    is_behind: Any = False
    is_phased: Any = False
    is_online: Any = False
    is_alone: Any = False

    def where(self, chosen: Any) -> Kernels:
        """Return the kernels for which `chosen` is true."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return Kernels(**{name: value[chosen] if isinstance(value, np.ndarray) else value for name, value in values})


@dataclass(frozen=True, slots=True)
class Rows:
    """The facts of a fusion and its sizes for the model, as numbers or arrays. Units: bits and instructions per element; reductions: results per row; folds:
    dependent reductions across lanes that combine the partial results of each; samples: with as many rows and columns each."""

    rows: Any
    columns: Any
    input_bits: Any
    output_bits: Any
    inputs: Any
    outputs: Any
    instructions: Any
    recompute_instructions: Any
    mufu: Any
    reductions: Any
    phases: Any
    column_results: Any
    column_accumulator_bits: Any
    weights: Any
    kept_bits: Any
    folds: Any = 1
    samples: Any = 1


def work_of(p: Kernels, r: Rows, arch: Arch) -> Work:
    """Return what the kernels do."""
    t = arch.latencies
    row_threads = p.lanes * p.threads_y
    warps, row_warps = row_threads * p.groups / WARP_THREADS, np.maximum(1.0, row_threads / WARP_THREADS)
    blocks, in_step = p.blocks * p.cluster_blocks * r.samples, p.row_unroll * p.groups
    seats = clusters_at_once(p.cluster_blocks, arch) * p.cluster_blocks
    steps = np.ceil(r.rows / (p.blocks * in_step))
    # blocks that have a sample alone come one after the other, and the last ones leave multiprocessors idle
    at_once = seats * np.maximum(1, arch.registers_per_sm // (p.max_registers * row_threads * p.groups))
    rounds = np.where(p.is_alone, np.ceil(blocks / at_once), 1)
    busy = np.where(p.is_alone, blocks / np.ceil(blocks / seats), np.minimum(seats, blocks))
    piece = np.ceil(r.columns / p.cluster_blocks)
    # a thread's share of a step; warps without elements do nothing
    in_warp = np.minimum(WARP_THREADS, row_threads)
    active = np.minimum(1.0, np.ceil(np.ceil(piece / p.vector_elems) / in_warp) * in_warp / (row_threads * p.batches))
    vectors = p.row_unroll * (p.batches * active + p.is_phased / p.vector_elems)
    operations = r.instructions + r.column_results + r.recompute_instructions * p.project_to_inputs
    walks = 1.0 + p.is_reread * r.phases
    accesses = vectors * (r.inputs * (walks + (p.loads == CP_ASYNC)) + r.outputs)
    access_bytes = WARP_THREADS * p.vector_elems * r.input_bits / np.maximum(1, r.inputs) / 8
    # latencies of a block in a step
    phases = np.maximum(1.0, r.phases)
    fold = fold_clocks(row_threads, t)
    barrier = np.where(row_warps > 1, barrier_clocks(warps, t), 0.0)
    exchange = np.where(p.cluster_blocks > 1, t.cluster_barrier_clocks + t.cluster_block_clocks * p.cluster_blocks, 0.0)
    is_ring = p.loads >= CP_ASYNC
    # the final sums: tiles of columns are divided among blocks, partial results of a tile among threads
    turns = np.ceil(np.ceil(piece / (p.column_vector_elems * p.lanes)) / p.blocks) * r.column_results
    sharing, meets = p.threads_y * p.groups, ~np.asarray(p.is_alone, bool)
    return Work(
        dram_bytes=r.samples * r.rows * r.columns * (r.input_bits + r.output_bits) / 8,
        sms=busy, resident=np.ceil(blocks / (seats * rounds)), blocks=blocks, warps=warps, steps=steps * rounds,
        element_instructions=vectors * p.vector_elems * operations,
        access_instructions=accesses,
        row_results=p.row_unroll * r.reductions * r.folds,
        predicates=vectors * (p.fill == PARTIAL) + p.row_unroll * (p.fill == LEADING),
        mufu=vectors * p.vector_elems * r.mufu,
        shared_clocks=warps * accesses * np.maximum(1.0, access_bytes / (SHARED_BANKS * BANK_BYTES)),
        wait_clocks=phases * (r.folds * fold + barrier) + np.where(is_ring, t.shared_latency_clocks * walks, 0.0),
        cluster_clocks=phases * exchange,
        is_behind=p.is_behind,
        depth=np.where(is_ring, p.stages - 1.0 - p.is_behind, 1.0 * (p.loads == AHEAD)),
        bulk_copies=np.where(p.loads == TMA, in_step * r.inputs, 0.0),
        partial_bytes=meets * r.samples * p.blocks * r.columns * r.column_accumulator_bits / 8,
        column_waits=meets * turns * np.ceil(p.blocks / (sharing * p.slots_unroll)),
        column_folds=np.where(meets, turns * np.log2(np.maximum(1.0, sharing)), rounds * r.column_results * np.log2(p.groups)),
        needed_registers=needed_registers(p, r),
        max_registers=p.max_registers,
        meets=meets,
    )  # fmt: skip


WEIGHT, KEPT, LOADED_NOW = 1.3, 0.76, 0.37
"""Registers per thread for each 32 bits: of weights (converted before the loop), of rows kept between passes, of rows loaded now; one for sums of columns and
rows that are loaded ahead."""
RESULT, ELEMENT, TENSOR, COPY, INSTRUCTION = 2.66, 1.84, 8.15, 0.82, 0.61
"""Registers per result of a row, element of the current vector, tensor (addresses), asynchronous copy of a step, operation. Both are
fitted to spills of kernels: docs/constants.md."""


PHASE = 12.0
"""Registers for the ends of rows that begin anywhere: an element of each tensor and sum, and its position. Not fitted; read off kernels: docs/constants.md."""
ROW_BEHIND = 5.5
"""Registers per vector element of each row of a thread after the first, if the second pass is delayed (`is_behind`). Not fitted; read off
kernels: docs/constants.md."""


def needed_registers(p: Kernels, r: Rows) -> Any:
    """Return the registers of the values that a thread holds at once. An element of less than 32 bits takes a whole register if it is loaded by itself. Rows of
    one warp stay in registers in any case, because no barrier prevents the compiler from reading them only once.
    """
    elems = p.batches * p.vector_elems
    bits = r.input_bits / np.maximum(1, r.inputs)
    packed = np.maximum(1.0, 32 / np.maximum(1, p.vector_elems * bits))
    stays = ~(np.asarray(p.is_reread, bool) & (p.lanes * p.threads_y > WARP_THREADS))
    of_rows = p.row_unroll * elems / 32
    found = elems * r.column_accumulator_bits / 32 + WEIGHT * elems * r.weights
    found = found + KEPT * stays * of_rows * r.kept_bits * np.where(p.project_to_inputs, packed, 1.0)
    found = found + of_rows * r.input_bits * packed * ((p.loads == AHEAD) + LOADED_NOW * (p.loads == NOW))
    found = found + COPY * (p.loads == CP_ASYNC) * p.row_unroll * p.batches * r.inputs + p.row_unroll * (RESULT * r.reductions + ELEMENT * p.vector_elems)
    found = found + ROW_BEHIND * p.is_behind * (p.row_unroll - 1) * p.vector_elems
    return found + TENSOR * (r.inputs + r.outputs) + INSTRUCTION * r.instructions + PHASE * p.is_phased
