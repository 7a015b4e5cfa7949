"""What a plain reduction does, from its params and the facts of the fusion. Pure arithmetic on numpy arrays with one element per candidate.

Read first: `work_of_reductions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import LINE_BYTES, SECTOR_BYTES, WARP_THREADS, Arch
from ..arithmetic import tree_workspace_bytes
from ..facts import ReductionFacts
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
    registers,
)
from .passing import LINE_CLOCKS, Passing, piece_cost, resident_blocks

SHIFTED_ACCESSES = 3
"""Accesses for a vector that begins at any element: words of 32 bits."""


@dataclass(frozen=True, slots=True)
class Reductions:
    """Params of kernels, named as in `ReductionParams`; arrays with one element per kernel, except common values."""

    is_outer: bool
    is_3d: Any
    vector_elems: Any
    unroll: Any
    bdimx: Any
    bdimy: Any
    bdimz: Any
    grid_split: Any
    is_cluster: Any
    is_phased: bool
    overlaps: bool
    are_all: bool
    max_registers: Any


ROW_TAIL = 0.3
"""`Passing.tail` of blocks that read rows: memory is not fully used while the last ones end; with more rounds the blocks are shorter."""


def needed_registers(f: ReductionFacts, loaded: Any, vector: Any, *, is_outer: bool) -> Any:
    """Return the registers of a thread that loads so many words before their first use; a thread of columns has a sum per element."""
    held = vector * (f.accumulator_bits / 32 + f.column_inputs) if is_outer else f.accumulator_bits / 32
    return registers(loaded, f.instructions, held=held)


def work_of_reductions(p: Reductions, f: ReductionFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernels do."""
    t = arch.latencies
    threads, v, inputs = p.bdimx * p.bdimy * p.bdimz, p.vector_elems, max(1, f.vectorizable_inputs)
    shared: Any = 0.0
    if p.is_outer:
        row = np.ceil(f.iteration_elems / v)
        vectors = np.ceil(np.ceil(f.reduction_elems / p.grid_split) / p.bdimy)
        blocks = np.ceil(row / p.bdimx) * p.grid_split
        folded, results, run = p.bdimy, v * f.reductions, f.inner_run_elems
        shared = tree_workspace_bytes(threads, v, f.accumulator_bits)
    else:
        row = np.maximum(1, f.reduction_elems // v) if p.is_phased else np.ceil(f.reduction_elems / v)
        vectors = np.ceil(np.ceil(row / p.grid_split) / p.bdimx)
        vectors = np.where(p.is_3d, np.ceil(np.ceil(f.inner_run_elems / v) / p.bdimx) * np.ceil(f.outer_run_elems / (p.bdimz * p.grid_split)), vectors)
        blocks = np.ceil(f.iteration_elems / p.bdimy) * p.grid_split
        folded, results, run = p.bdimx * p.bdimz, f.reductions + 0.0 * v, f.inner_run_elems
    rounds = np.ceil(vectors / p.unroll)
    bits = f.input_bits / inputs
    words = SHIFTED_ACCESSES if p.overlaps else np.maximum(1, v * bits / 32)
    needed = needed_registers(f, p.unroll * (inputs * words + f.still_loads), v, is_outer=p.is_outer)
    if f.window is not None:  # neighbours keep what they have loaded until the last of them has used it, and the compiler loads again what finds no register
        needed = np.minimum(needed + f.window.loads, p.max_registers)
    lacking = np.maximum(0.0, needed - p.max_registers)
    # the lines that a warp touches at once, and the parts of lines that it uses later
    piece = np.minimum(run, p.bdimx * v) * bits / 8
    lines = np.maximum(WARP_THREADS * v * bits / 8 / LINE_BYTES, WARP_THREADS / np.minimum(WARP_THREADS, p.bdimx))
    if p.is_outer:  # whole rows of one block are neighbours
        is_whole, across = p.bdimx * v >= run, np.minimum(WARP_THREADS, p.bdimx)
        runs = np.maximum(1.0, np.minimum(across * v, f.iteration_elems) / run)
        lines_of_run = WARP_THREADS / across * np.minimum(run, across * v) * bits / 8 / LINE_BYTES
        lines = np.where(is_whole, runs * np.maximum(1.0, lines_of_run), lines)
        piece = np.where(is_whole, piece * p.bdimy, piece)
    visit = piece if p.is_outer else np.minimum(run * bits / 8, piece * p.unroll)
    visit = np.maximum(1.0, visit)
    # blocks of neighbouring columns run at the same time; an access of a block to a row is also a piece, because accesses to other rows come between
    cost = np.maximum(1.0, SECTOR_BYTES / visit) if p.is_outer else piece_cost(visit) + piece_cost(piece) - 1.0
    accesses = vectors * inputs * (SHIFTED_ACCESSES if p.overlaps else 1)
    # folding
    is_folded, warps = folded > 1, np.ceil(threads / WARP_THREADS)
    in_block = (folded > WARP_THREADS) | (p.is_outer & (warps > 1))
    of_vector = f.instructions * v - p.are_all * f.common_instructions * (v - 1)
    single_lines = 0.0
    if f.window is not None:
        of_vector = f.window.operations
        accesses, single_lines = accesses + vectors * f.window.addresses, f.window.lines + f.window.bank_clocks / LINE_CLOCKS
    instructions = OP_INSTRUCTIONS * of_vector * vectors + ACCESS_INSTRUCTIONS * (accesses + vectors * f.still_loads)
    instructions = instructions + STEP_INSTRUCTIONS + RESULT_INSTRUCTIONS * f.exchange_factor * results * is_folded + c.spill * lacking * rounds
    wait = f.exchange_factor * is_folded * (fold_clocks(folded, t) + 2 * in_block * barrier_clocks(warps, t))
    wait = wait + c.cluster * p.is_cluster * (t.cluster_barrier_clocks + t.cluster_block_clocks * p.grid_split)
    shares = (p.grid_split > 1) & ~np.asarray(p.is_cluster, bool)
    turns = np.ceil(p.grid_split / np.maximum(1, folded))
    exchange = shares * (t.grid_meeting_ns + c.l2 * t.l2_latency_ns * turns)
    exchange = exchange + shares * 2 * f.iteration_elems * p.grid_split * f.accumulator_bits / 8 / (t.l2_bytes_per_s * 1e-9)
    resident = resident_blocks(threads, np.minimum(needed, p.max_registers), shared, arch)
    cluster = np.where(p.is_cluster, p.grid_split, 1)
    seats = np.where(p.is_cluster, clusters_at_once(cluster, arch) * cluster, arch.sm_count) * resident
    return Passing(
        dram_bytes=(f.total_elems * f.input_bits * cost + f.iteration_elems * 32.0 * f.reductions) / 8,
        block_bytes=threads * np.minimum(vectors, p.unroll) * v * f.input_bits / 8, blocks=blocks, warps=warps,
        resident=resident, seats=seats, rounds=rounds,
        instructions=instructions, mufu=f.mufu * vectors * v, lines=warps * (accesses * lines + vectors * single_lines), wait_clocks=wait, exchange_ns=exchange,
        tail=0.0 if p.is_outer else ROW_TAIL,
    )  # fmt: skip
