"""The work of kernels whose rows are too long for registers: kept in shared memory, or read again by every pass. Pure arithmetic.

Read first: `work_of_long_rows`, `work_of_copied_rows`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...arch import LINE_BYTES, SUB_PARTITIONS, WARP_THREADS, Arch
from ..facts import PersistentFacts
from .parts import (
    ACCESS_INSTRUCTIONS,
    DIVISION_INSTRUCTIONS,
    FITTED,
    OP_INSTRUCTIONS,
    RESULT_INSTRUCTIONS,
    STEP_INSTRUCTIONS,
    Fitted,
    barrier_clocks,
    clusters_at_once,
    fold_clocks,
    rereads_from_memory,
)
from .passing import Passing, resident_blocks


@dataclass(frozen=True, slots=True)
class LongRows:
    """Params of a kernel, named as in `PersistentParams`. is_reread: each pass reads the row again; otherwise it is in shared memory. shared_bytes: per
    block."""

    is_reread: bool
    vector_elems: int
    unroll: int
    bdimx: int
    max_registers: int
    shared_bytes: int
    is_projected: bool
    cluster_blocks: int = 1


def work_of_long_rows(p: LongRows, f: PersistentFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernel does. A block has a row, or its part of one, and walks over it once for each pass."""
    t, passes = arch.latencies, f.folded_passes if p.is_reread else f.passes
    levels = max(1, passes - 1)
    warps, inputs = p.bdimx / WARP_THREADS, max(1, f.vectorizable_inputs)
    vectors = math.ceil(f.reduction_elems / (p.vector_elems * p.bdimx * p.cluster_blocks))
    rounds = math.ceil(vectors / p.unroll)
    again = p.is_projected and f.projected_bits is not None and f.projected_bits < f.persistent_bits
    mufu = p.vector_elems * vectors * (f.mufu + (again and f.recompute_has_exact_exp))
    # each pass reads the row, from memory, or from shared memory, where it is written first
    accesses = inputs * (passes + (not p.is_reread)) + f.broadcast_operands + (f.output_bits > 0)
    operations = f.instructions + again * f.recompute_instructions
    instructions = vectors * (OP_INSTRUCTIONS * operations * p.vector_elems + ACCESS_INSTRUCTIONS * accesses) + levels * RESULT_INSTRUCTIONS + STEP_INSTRUCTIONS
    wait = levels * (fold_clocks(p.bdimx, t) + 2 * barrier_clocks(warps, t)) + (rounds * levels * t.shared_latency_clocks if not p.is_reread else 0.0)
    if p.cluster_blocks > 1:
        wait += levels * c.cluster * (t.cluster_barrier_clocks + t.cluster_block_clocks * p.cluster_blocks)
    resident = float(resident_blocks(p.bdimx, p.max_registers, p.shared_bytes, arch))
    seats = float(clusters_at_once(p.cluster_blocks, arch)) * p.cluster_blocks * resident if p.cluster_blocks > 1 else arch.sm_count * resident
    blocks = f.iteration_elems * p.cluster_blocks
    moved = f.total_elems * max(1, f.input_bits + f.output_bits) / 8
    reread = f.total_elems * f.input_bits / 8 * levels if p.is_reread else 0.0
    in_work = min(seats / p.cluster_blocks, f.iteration_elems) * f.reduction_elems * f.input_bits / 8
    from_memory = moved + reread * rereads_from_memory(in_work, arch)
    through_l2 = (moved + reread) / t.l2_bytes_per_s * arch.roof_bytes_per_s
    walks = 1 + (levels * c.l2 * t.l2_latency_ns / t.dram_latency_ns if p.is_reread else 0.0)
    return Passing(
        dram_bytes=max(from_memory, through_l2), block_bytes=p.bdimx * p.unroll * p.vector_elems * f.input_bits / 8, blocks=blocks, warps=warps,
        resident=resident, seats=seats, rounds=rounds * walks, instructions=instructions, mufu=mufu,
        lines=warps * vectors * accesses * WARP_THREADS * p.vector_elems * f.max_dtype_bits / 8 / LINE_BYTES, wait_clocks=wait, exchange_ns=0.0,
    )  # fmt: skip


def work_of_copied_rows(p: LongRows, iterations: int, f: PersistentFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what a kernel does whose rows cp.async copies into shared memory. iterations: of a block over its part of a row. A block waits for its row and
    then stores, and only other blocks of its multiprocessor use memory meanwhile: so its duration is that of its bytes at its share of the memory rate, of its
    instructions together with those of the others, and of their starts.
    """
    t, levels, warps = arch.latencies, max(1, f.passes - 1), p.bdimx / WARP_THREADS
    accesses = max(1, f.vectorizable_inputs) * (f.passes + 1) + f.broadcast_operands + (f.output_bits > 0)
    of_vector = OP_INSTRUCTIONS * f.instructions * p.vector_elems + ACCESS_INSTRUCTIONS * accesses + 2 * DIVISION_INSTRUCTIONS  # to load and to store
    vectors = f.reduction_elems / (p.vector_elems * p.bdimx * p.cluster_blocks)  # vectors beyond the row cost little
    instructions = vectors * of_vector + levels * RESULT_INSTRUCTIONS + STEP_INSTRUCTIONS
    blocks, moved = f.iteration_elems * p.cluster_blocks, f.total_elems * max(1, f.input_bits + f.output_bits) / 8
    resident = float(resident_blocks(p.bdimx, p.max_registers, p.shared_bytes, arch))
    seats = (float(clusters_at_once(p.cluster_blocks, arch)) * p.cluster_blocks if p.cluster_blocks > 1 else arch.sm_count) * resident
    wait = levels * (fold_clocks(p.bdimx, t) + 2 * barrier_clocks(warps, t)) + iterations * f.passes * (t.shared_latency_clocks + STEP_INSTRUCTIONS)
    if p.cluster_blocks > 1:
        wait += levels * c.cluster * (t.cluster_barrier_clocks + t.cluster_block_clocks * p.cluster_blocks)
    wait += max(0.0, min(resident, blocks / arch.sm_count) * warps / SUB_PARTITIONS - c.alone) * instructions
    own_ns = moved / blocks * arch.sm_count / (arch.roof_bytes_per_s * 1e-9) + min(resident, blocks / arch.sm_count) * t.block_launch_ns
    return Passing(
        dram_bytes=moved, block_bytes=p.bdimx * p.unroll * iterations * p.vector_elems * f.input_bits / 8, blocks=blocks, warps=warps, resident=resident,
        seats=seats, rounds=c.latency, instructions=instructions, mufu=0.0, lines=0.0, wait_clocks=wait + own_ns * arch.clocks_per_ns, exchange_ns=0.0,
    )  # fmt: skip
