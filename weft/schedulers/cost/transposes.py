"""What a kernel of turned tiles does, from its params. Pure arithmetic on numpy arrays with one element per candidate.

Read first: `work_of_transposes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import SECTOR_BYTES, WARP_THREADS, Arch
from .parts import ACCESS_INSTRUCTIONS, FITTED, OP_INSTRUCTIONS, STEP_INSTRUCTIONS, Fitted, barrier_clocks
from .passing import Passing, resident_blocks

SHARED_INSTRUCTIONS = 2.5
"""Of a thread, for an element that is read from or written to a tile by itself: its address, changed by the swizzle, and the access."""
OTHER_REGISTERS = 16.0


@dataclass(frozen=True, slots=True)
class Tiles:
    """Params of kernels, named as in `TransposeParams`; arrays with one element each."""

    tile_elems: Any
    along_vector: Any
    across_vector: Any
    threads: Any
    unroll: Any
    turned_unroll: Any


@dataclass(frozen=True, slots=True)
class TileFacts:
    """along, across, batches: elements. straight_inputs, turned_inputs, straight_outputs, turned_outputs: how many tensors; bits: of all of them, of an
    element. turned_bits: of those in tiles. instructions, mufu: of an element."""

    along: int
    across: int
    batches: int
    straight_inputs: int
    turned_inputs: int
    straight_outputs: int
    turned_outputs: int
    bits: int
    turned_bits: int
    instructions: int
    mufu: int


def work_of_transposes(p: Tiles, f: TileFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernels do."""
    t, tile = arch.latencies, p.tile_elems
    elems, warps = tile * tile / p.threads, np.ceil(p.threads / WARP_THREADS)
    straight, turned = elems / p.along_vector, elems / p.across_vector
    blocks = np.ceil(f.along / tile) * np.ceil(f.across / tile) * f.batches
    used = f.along * f.across * f.batches / (blocks * tile * tile)  # at the ends of rows tiles are not full
    tiles = f.turned_inputs + f.turned_outputs
    accesses = straight * (f.straight_inputs + f.straight_outputs + tiles * (p.along_vector == 1)) + turned * tiles * 2
    instructions = OP_INSTRUCTIONS * f.instructions * elems + ACCESS_INSTRUCTIONS * accesses * used + SHARED_INSTRUCTIONS * elems * tiles + STEP_INSTRUCTIONS
    rounds = (f.turned_inputs > 0) * np.ceil(turned / p.turned_unroll) + (f.straight_inputs > 0) * np.ceil(straight / p.unroll)
    at_once = np.maximum(p.unroll * p.along_vector * f.straight_inputs, p.along_vector * p.unroll)
    needed = OTHER_REGISTERS + at_once * f.bits / max(1, f.straight_inputs + f.straight_outputs + tiles) / 32
    piece = np.minimum(np.minimum(f.along, f.across), tile) * f.bits / max(1, f.straight_inputs + f.straight_outputs + tiles) / 8
    cost = np.where(piece < SECTOR_BYTES, 2.0, np.where(piece < 64, 1.25, 1.0))
    return Passing(
        dram_bytes=f.along * f.across * f.batches * f.bits / 8 * cost, block_bytes=tile * tile * f.bits / 8,
        blocks=blocks, warps=warps,
        resident=resident_blocks(p.threads, needed, tile * tile * f.turned_bits / 8, arch), rounds=rounds,
        instructions=instructions, mufu=f.mufu * elems, lines=0.0, wait_clocks=2 * barrier_clocks(warps, t) * (tiles > 0), exchange_ns=0.0,
    )  # fmt: skip
