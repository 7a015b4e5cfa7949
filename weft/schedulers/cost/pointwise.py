"""What a pointwise kernel does, from its params and the facts of the fusion. Pure arithmetic on numpy arrays with one element per candidate.

Read first: `work_of_pointwise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import SECTOR_BYTES, WARP_THREADS, Arch
from ..facts import PointwiseFacts
from .parts import ACCESS_INSTRUCTIONS, FITTED, OP_INSTRUCTIONS, STEP_INSTRUCTIONS, Fitted
from .passing import LINE_BYTES, Passing, resident_blocks

OTHER_REGISTERS = 14.0
ROW_INSTRUCTIONS = 20.0


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Params of kernels, named as in `PointwiseParams`; arrays with one element each."""

    break_point: Any
    vector_elems: Any
    unroll_outer: Any
    unroll_inner: Any
    bdimx: Any
    bdimy: Any
    is_phased: Any


def work_of_pointwise(p: Pointwise, f: PointwiseFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernels do."""
    t = arch.latencies
    count = max(1, len(f.extents_elems))
    lefts = np.array([math.prod(f.extents_elems[:n]) for n in range(count)], float)
    bits = np.array([[b.both_bits, b.left_only_bits, b.right_only_bits] for b in f.broadcast], float)
    left = lefts[p.break_point]
    right = f.total_elems / left
    v = p.vector_elems
    row = np.where(p.is_phased, np.maximum(1, right // v), np.ceil(right / v))
    vectors_along = np.minimum(p.unroll_inner, np.ceil(row / p.bdimx))
    threads, vectors = p.bdimx * p.bdimy, p.unroll_outer * vectors_along
    blocks = np.ceil(row / (p.bdimx * p.unroll_inner)) * np.ceil(left / (p.bdimy * p.unroll_outer))
    tensors = max(1, f.full_inputs) + max(1, f.vectorizable_outputs)
    width = max(1, f.max_dtype_bits)
    whole = f.read_bits + f.written_bits
    both, left_only, right_only = (bits[p.break_point, n] for n in range(3))
    flat = np.where(p.break_point == 0, right_only, both)  # with one dimension all is right
    spread = np.maximum(0.0, flat - whole) / width
    # a broadcast operand that lies across the vectors of a flat loop is read element by element
    by_element = max(0, f.full_inputs + f.vectorizable_outputs - f.vectorizable_inputs - f.vectorizable_outputs)
    accesses = vectors * (tensors + spread * v) + (p.break_point > 0) * (right_only / width * vectors_along + left_only / width * p.unroll_outer)
    instructions = OP_INSTRUCTIONS * f.instructions * vectors * v + ACCESS_INSTRUCTIONS * accesses + STEP_INSTRUCTIONS
    instructions = instructions + ROW_INSTRUCTIONS * (p.break_point > 0) * p.unroll_outer + 2 * c.predicate * p.is_phased + by_element * 0
    needed = OTHER_REGISTERS + vectors * np.maximum(1.0, v * f.read_bits / max(1, f.full_inputs) / 32) * max(1, f.full_inputs) + v
    along = np.minimum(np.minimum(WARP_THREADS, p.bdimx) * v, right) * width / 8
    lines = np.where(along >= LINE_BYTES, np.ceil(WARP_THREADS * v * width / 8 / LINE_BYTES), WARP_THREADS * v * width / 8 / np.maximum(1, along))
    cost = np.where(along * vectors_along < SECTOR_BYTES, 1.25, 1.0)
    resident = resident_blocks(threads, np.minimum(255, needed), 0.0, arch)
    return Passing(
        dram_bytes=(f.total_elems * whole * cost + (p.break_point > 0) * (right * right_only + left * left_only)) / 8,
        block_bytes=threads * vectors * v * whole / 8, blocks=blocks, warps=np.ceil(threads / WARP_THREADS),
        resident=resident, seats=resident * arch.sm_count, rounds=1.0,
        instructions=instructions, mufu=f.mufu * vectors * v, lines=np.ceil(threads / WARP_THREADS) * vectors * tensors * lines,
        wait_clocks=(p.is_phased + 0.0) * t.l1_latency_clocks, exchange_ns=0.0,
    )  # fmt: skip
