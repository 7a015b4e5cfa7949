"""What a pointwise kernel does, from its params and the facts of the fusion. Pure arithmetic on numpy arrays with one element per candidate.

Read first: `work_of_pointwise`.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from ...analysis.index_work import IndexWork
from ...analysis.lookup_work import LookupWork
from ...arch import LINE_BYTES, SECTOR_BYTES, WARP_THREADS, Arch
from ..facts import PointwiseFacts
from .parts import ACCESS_INSTRUCTIONS, DIVISION_INSTRUCTIONS, FITTED, OP_INSTRUCTIONS, STEP_INSTRUCTIONS, Fitted, fold_clocks, registers, rereads_from_memory
from .passing import LINE_CLOCKS, Passing, piece_cost, resident_blocks

Reads = dict[str, Any]
"""Counts of `IndexWork`, as arrays."""


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Params of kernels, named as in `PointwiseParams`; arrays with one element each."""

    break_point: Any
    vector_elems: Any
    unroll_outer: Any
    unroll_inner: Any
    bdimx: Any
    bdimy: Any
    is_left_fastest: Any
    is_phased: Any
    shares_rows: Any


def work_of_pointwise(p: Pointwise, f: PointwiseFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernels do."""
    t, v = arch.latencies, p.vector_elems
    left, right, reads = _sides(p, f)
    not_loaded, left_over = _shared(p, f)
    still = _still(p, f)
    # what rows share and what does not vary along them can be the same values: each leaves its part of what the other leaves
    left_over = left_over * (1 - still["instructions"] / max(1, f.instructions))
    loads = reads["vector_accesses"]
    reads = {**reads, "vector_accesses": (loads - not_loaded) * (1 - still["accesses"] / np.maximum(1, loads))}
    row = np.where(p.is_phased, np.maximum(1, right // v), np.ceil(right / v))
    blocks_along = np.ceil(row / (p.bdimx * p.unroll_inner))
    blocks = blocks_along * np.ceil(left * still["idle"] / (p.bdimy * p.unroll_outer))
    threads, vectors = p.bdimx * p.bdimy, p.unroll_outer * p.unroll_inner
    warps = np.ceil(threads / WARP_THREADS)
    lanes = np.minimum(WARP_THREADS, p.bdimx)
    used = np.minimum(1.0, np.ceil(row / lanes) * lanes / (blocks_along * p.bdimx * p.unroll_inner)) / still["idle"]
    # instructions of a thread
    element_accesses, seen = v * reads["element_accesses"], _lookups(p, f)
    divisions = np.where(v > 1, reads["vector_divisions"] + v * reads["element_divisions"], reads["scalar_divisions"])
    divisions = divisions + np.where(v > 1, v * reads["element_tests"], reads["scalar_tests"])  # a comparison and its part of a branch take about as long
    divisions = divisions + seen["divisions"] + (v > 1) * np.where(seen["crosses"], v, 1) * reads["lookup_divisions"]
    accesses = reads["vector_accesses"] + element_accesses + seen["addresses"]
    divisions = divisions + 2 * f.divides_rows * (p.break_point != len(f.extents_elems) - 1)  # the position of a scale in its tile
    operations = np.where(seen["loads"] > 0, seen["operations"], f.instructions * v * left_over)
    per_vector = OP_INSTRUCTIONS * operations + ACCESS_INSTRUCTIONS * accesses + (seen["loads"] - seen["addresses"]) + DIVISION_INSTRUCTIONS * divisions
    per_row = ACCESS_INSTRUCTIONS * (1 + reads["row_accesses"]) + DIVISION_INSTRUCTIONS * (reads["row_divisions"] + seen["row_divisions"])
    per_row = per_row + OP_INSTRUCTIONS * seen["row_operations"]
    instructions = STEP_INSTRUCTIONS + used * vectors * per_vector + (p.break_point > 0) * p.unroll_outer * per_row
    wait = fold_clocks(np.maximum(1.0, f.block_elems / v), t) + p.is_phased * t.l1_latency_clocks  # lanes that hold a block of elements together
    # memory
    width = max(1, f.max_dtype_bits) / 8
    along = np.minimum(lanes * v, right) * width
    piece = np.minimum(p.bdimx * p.unroll_inner * v, right) * width
    is_cut = (p.break_point > 0) & (right * width % SECTOR_BYTES != 0) | np.asarray(p.is_phased, bool)
    cost = np.where(is_cut, piece_cost(piece), np.where(piece < SECTOR_BYTES, SECTOR_BYTES / piece, 1.0))
    lines = np.where(along >= LINE_BYTES, np.ceil(WARP_THREADS * v * width / LINE_BYTES), WARP_THREADS * v * width / np.maximum(1, along))
    whole = f.read_bits + f.written_bits - f.repeated_bits / max(1, f.total_elems)
    # the elements that one vector looks up are added as they arrive; those of several are all loaded before the first is used
    needed = needed_registers(f, reads, p) + np.where(vectors > 1, vectors, 0) * seen["loads"]
    single_lines = element_accesses + seen["lines"] + seen["bank_clocks"] / LINE_CLOCKS
    resident = resident_blocks(threads, np.minimum(arch.max_registers_per_thread, needed), 0.0, arch)
    return Passing(
        dram_bytes=(f.total_elems * whole * cost + _spread_bits(p, f, arch)) / 8,
        block_bytes=threads * vectors * used * v * whole / 8, blocks=blocks, warps=warps,
        resident=resident, seats=resident * arch.sm_count, rounds=1.0,
        instructions=instructions, mufu=(f.mufu - still["mufu"]) * vectors * used * v,
        lines=warps * vectors * used * (np.maximum(0, reads["vector_accesses"] - f.outside_accesses) * lines + single_lines),
        wait_clocks=wait, exchange_ns=0.0, end_clocks=c.alone * instructions + wait,
    )  # fmt: skip


def needed_registers(f: PointwiseFacts, reads: Reads, p: Pointwise) -> Any:
    """Return the registers of a thread, whose vectors are all loaded before the first is used."""
    vectors = p.unroll_outer * p.unroll_inner
    words = np.ceil(p.vector_elems * f.read_bits / max(1, f.full_inputs) / 32)
    loaded = vectors * words * np.maximum(0, reads["vector_accesses"] - f.vectorizable_outputs)
    kept = np.array([0 if of is None else len(of.kept) for of in f.still_rows] or [0])[np.minimum(p.break_point, max(0, len(f.still_rows) - 1))]
    return registers(loaded + p.shares_rows * kept * p.unroll_inner * p.vector_elems, f.instructions, has_loop=False)


def _sides(p: Pointwise, f: PointwiseFacts) -> tuple[Any, Any, Reads]:
    """Return the number of indices left and right of the break, and their counts of `IndexWork`."""
    count = max(1, len(f.extents_elems))
    left = np.array([math.prod(f.extents_elems[:n]) for n in range(count)], float)[p.break_point]
    table = np.array([[astuple(w) for w in work] for work in (f.index_work, f.phased_index_work)], float)
    found = table[np.asarray(p.is_phased, int), p.break_point]
    return left, f.total_elems / left, dict(zip(IndexWork.__dataclass_fields__, found.T))


def _lookups(p: Pointwise, f: PointwiseFacts) -> Reads:
    """Return the counts of `LookupWork` of lookups that are read element by element; 0 if there are none."""
    fields, width = LookupWork.__dataclass_fields__, np.log2(p.vector_elems).astype(int)
    found = np.zeros((len(fields), *np.shape(width)))
    for tables, is_phased in ((f.lookups, False), (f.phased_lookups, True)):
        for position, work in enumerate(tables):
            if work:
                at = (p.break_point == position) & (np.asarray(p.is_phased, bool) == is_phased)
                found = np.where(at, np.array([astuple(w) for w in work], float)[np.minimum(width, len(work) - 1)].T, found)
    return dict(zip(fields, found))


def _shared(p: Pointwise, f: PointwiseFacts) -> tuple[Any, Any]:
    """Return the loads that each of a thread's vectors leaves to its neighbours in other rows, and the part of the operations that remains."""
    loads, operations = np.zeros(np.shape(p.vector_elems)), np.ones(np.shape(p.vector_elems))
    for position, rows in enumerate(f.shared_rows):
        if rows:
            is_here = (p.break_point == position) & ~np.asarray(p.is_phased, bool)
            found = np.array([astuple(of) for of in rows], float)[np.log2(p.unroll_outer).astype(int)]
            loads, operations = np.where(is_here, found.T[0], loads), np.where(is_here, found.T[1], operations)
    return loads, operations


def _still(p: Pointwise, f: PointwiseFacts) -> Reads:
    """Return what a vector of a thread whose rows share values leaves, on average, to another one: loads, instructions and special functions per element.
    idle: by how much rows are more for those beyond the end of their loop."""
    none = (0, 0, 0)
    table = np.array([none if of is None else (of.accesses, of.instructions, of.mufu) for of in f.still_rows] or [none], float)
    found = table[np.minimum(p.break_point, len(table) - 1)].T * (p.shares_rows * (1 - 1 / p.unroll_outer))
    rows = np.array([1, *f.extents_elems], float)[p.break_point]  # of the innermost loop on the left
    idle = np.where(p.shares_rows, np.ceil(rows / p.unroll_outer) * p.unroll_outer / rows, 1.0)
    return dict(zip(("accesses", "instructions", "mufu"), found), idle=idle)


def step_bytes(f: PointwiseFacts, place: int) -> float:
    """Return the bytes moved while the loops from `place` on run once."""
    return f.right_bits[place] * math.prod(f.extents_elems[place:]) / 8


def _spread_bits(p: Pointwise, f: PointwiseFacts, arch: Arch) -> Any:
    """Return the bits read of operands that depend on a part of the loops: once each, and again per index of the outer loops if L2 has evicted them since."""
    found: Any = 0.0
    for bits, places in f.spread:
        whole = bits * math.prod(f.extents_elems[n] for n in places)
        first = min(places)
        times = (math.prod(f.extents_elems[:first]) - 1) * rereads_from_memory(step_bytes(f, first), arch) if first else 0.0
        found = found + whole * (1 + np.where(p.is_left_fastest & (p.break_point == first), 0.0, times))
    return found
