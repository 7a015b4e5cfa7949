"""What a kernel does whose tiles have all of a short run, from its params. Pure arithmetic on numpy arrays with one element per candidate.

Read first: `work_of_short_tiles`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import WARP_THREADS, Arch
from .parts import ACCESS_INSTRUCTIONS, OP_INSTRUCTIONS, STEP_INSTRUCTIONS, barrier_clocks, registers
from .passing import Passing, piece_cost, resident_blocks


@dataclass(frozen=True, slots=True)
class ShortTileParts:
    """Params of kernels, named as in `ShortTileParams`; arrays with one element each."""

    vector_elems: Any
    threads: Any
    tiles: Any = 1


@dataclass(frozen=True, slots=True)
class ShortTileFacts:
    """long, short, batches: elements. straight, moved: number of inputs and outputs with the long run innermost, and with the short one; bits: of all of them,
    per element, moved_bits: of the latter. instructions, mufu: of an element."""

    long: int
    short: int
    batches: int
    straight: int
    moved: int
    bits: int
    moved_bits: int
    instructions: float
    mufu: float


def work_of_short_tiles(p: ShortTileParts, f: ShortTileFacts, arch: Arch) -> Passing:
    """Return what the kernels do."""
    tile, elems = p.vector_elems * p.threads, p.vector_elems * f.short
    warps = np.ceil(p.threads * p.tiles / WARP_THREADS)
    blocks = np.ceil(np.ceil(f.long / tile) * f.batches / p.tiles)
    used = f.long * f.batches / (blocks * p.tiles * tile)
    accesses = f.short * (f.straight + 3 * f.moved) * used  # moved elements are also written to shared memory and read from it
    instructions = OP_INSTRUCTIONS * f.instructions * elems + ACCESS_INSTRUCTIONS * accesses + STEP_INSTRUCTIONS
    needed = registers(elems * f.bits / max(1, f.straight + f.moved) / 32, f.instructions, has_loop=False)
    resident = resident_blocks(p.threads * p.tiles, needed, p.tiles * tile * f.short * f.moved_bits / 8, arch)
    straight_piece = np.minimum(tile, f.long) * (f.bits - f.moved_bits) / 8 / f.straight
    moved_piece = np.minimum(tile, f.long) * f.short * f.moved_bits / 8 / f.moved
    cost = (f.bits - f.moved_bits) * piece_cost(straight_piece) + f.moved_bits * piece_cost(moved_piece)
    return Passing(
        dram_bytes=f.long * f.short * f.batches * cost / 8, block_bytes=p.tiles * tile * f.short * f.bits / 8, blocks=blocks, warps=warps, resident=resident,
        seats=resident * arch.sm_count, rounds=1.0, instructions=instructions, mufu=f.mufu * elems, lines=0.0,
        wait_clocks=2 * barrier_clocks(warps, arch.latencies), exchange_ns=0.0,
    )  # fmt: skip
