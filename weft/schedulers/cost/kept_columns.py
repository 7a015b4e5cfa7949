"""What a kernel does that keeps columns in the registers of a block, or of the blocks of a cluster. Pure arithmetic on numpy arrays with one element each.

Read first: `work_of_kept_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import LINE_BYTES, WARP_THREADS, Arch
from ..arithmetic import tree_workspace_bytes
from ..facts import PersistentFacts
from .parts import (
    ACCESS_INSTRUCTIONS,
    FITTED,
    OP_INSTRUCTIONS,
    RESULT_INSTRUCTIONS,
    STEP_INSTRUCTIONS,
    Fitted,
    barrier_clocks,
    clusters_at_once,
    fold_clocks,
)
from .passing import Passing, piece_cost, resident_blocks


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """Params of kernels, named as in `OuterParams`; arrays with one element per kernel, except the vector, which is common."""

    vector_elems: int
    bdimx: Any
    bdimy: Any
    batches: Any
    cluster_blocks: Any
    max_registers: Any


def work_of_kept_columns(p: KeptColumns, f: PersistentFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernels do. A block loads its part of its columns, reduces it in each pass, and stores its results."""
    t, levels, v = arch.latencies, max(1, f.passes - 1), p.vector_elems
    threads, inputs = p.bdimx * p.bdimy, max(1, f.vectorizable_inputs)
    warps = np.ceil(threads / WARP_THREADS)
    again = f.projected_bits is not None and f.projected_bits < f.persistent_bits
    operations = f.instructions + again * f.recompute_instructions
    mufu = f.mufu + (again and f.recompute_has_exact_exp)
    has_bounds = p.bdimy * p.batches * p.cluster_blocks != f.reduction_elems
    accesses = p.batches * (inputs + (f.output_bits > 0))
    in_cluster = p.cluster_blocks > 1
    instructions = p.batches * v * OP_INSTRUCTIONS * operations + ACCESS_INSTRUCTIONS * accesses + c.predicate * has_bounds * p.batches
    instructions = instructions + levels * v * RESULT_INSTRUCTIONS + STEP_INSTRUCTIONS
    wait = levels * (fold_clocks(p.bdimy, t) + 2 * barrier_clocks(warps, t))
    wait = wait + in_cluster * levels * c.cluster * (t.cluster_barrier_clocks + t.cluster_block_clocks * p.cluster_blocks)
    resident = resident_blocks(threads, p.max_registers, levels * tree_workspace_bytes(threads, v, f.accumulator_bits), arch)
    seats = np.where(in_cluster, clusters_at_once(p.cluster_blocks, arch) * p.cluster_blocks, arch.sm_count) * resident
    bits = f.max_dtype_bits
    return Passing(
        dram_bytes=f.total_elems * max(1, f.input_bits + f.output_bits) / 8 * piece_cost(p.bdimx * v * bits / 8),
        block_bytes=threads * p.batches * v * f.input_bits / 8, blocks=np.ceil(np.ceil(f.iteration_elems / v) / p.bdimx) * p.cluster_blocks, warps=warps,
        resident=resident, seats=seats, rounds=1.0, instructions=instructions, mufu=mufu * p.batches * v,
        lines=warps * accesses * np.maximum(WARP_THREADS * v * bits / 8 / LINE_BYTES, WARP_THREADS / p.bdimx), wait_clocks=wait, exchange_ns=0.0,
    )  # fmt: skip
