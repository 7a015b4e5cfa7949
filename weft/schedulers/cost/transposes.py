"""What a kernel of turned tiles does, from its params. Pure arithmetic on numpy arrays with one element per candidate.

Read first: `work_of_transposes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import SECTOR_BYTES, WARP_THREADS, Arch
from .parts import ACCESS_INSTRUCTIONS, DIVISION_INSTRUCTIONS, FITTED, OP_INSTRUCTIONS, STEP_INSTRUCTIONS, Fitted, barrier_clocks, registers
from .passing import Passing, piece_cost, resident_blocks

SHARED_INSTRUCTIONS = 2.5
"""Instructions per thread to read or write a single element of a tile: its swizzled address, and the access."""
ROW_VECTOR_INSTRUCTIONS = 45.0
"""Instructions per thread, besides the access, for a vector of a row that begins anywhere: exchange between lanes, selection of bytes of two vectors, the ends
of a row. Counted in machine code of device/row_vectors.cuh: docs/constants.md."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Params of kernels, named as in `TransposeParams`; arrays with one element each."""

    tile_elems: Any
    along_vector: Any
    across_vector: Any
    threads: Any
    unroll: Any
    turned_unroll: Any
    is_along_first: Any
    across_anywhere: Any


@dataclass(frozen=True, slots=True)
class TileFacts:
    """along, across, batches: elements. straight_inputs, turned_inputs, straight_outputs, turned_outputs: how many tensors; bits: of all of them, of an
    element. turned_bits: of those in tiles. instructions, mufu: of an element.
    is_along_cut, is_across_cut: outputs have rows along (across) that begin within cache lines, so that neighbouring tiles share some.
    divides_along, divides_across: the other side divides by a size for each vector, to find its row."""

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
    is_along_cut: bool
    is_across_cut: bool
    divides_along: bool = False
    divides_across: bool = False


def work_of_transposes(p: Tiles, f: TileFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernels do."""
    t, tile = arch.latencies, p.tile_elems
    elems, warps = tile * tile / p.threads, np.ceil(p.threads / WARP_THREADS)
    straight, turned = elems / p.along_vector, elems / p.across_vector
    blocks = np.ceil(f.along / tile) * np.ceil(f.across / tile) * f.batches
    used = f.along * f.across * f.batches / (blocks * tile * tile)  # tiles at the ends of rows are not full
    tiles = f.turned_inputs + f.turned_outputs
    straight_tensors = max(1, f.straight_inputs + f.straight_outputs)
    accesses = straight * (f.straight_inputs + f.straight_outputs + tiles * (p.along_vector == 1)) + turned * tiles * 2
    instructions = OP_INSTRUCTIONS * f.instructions * elems + ACCESS_INSTRUCTIONS * accesses * used + SHARED_INSTRUCTIONS * elems * tiles + STEP_INSTRUCTIONS
    instructions = instructions + ROW_VECTOR_INSTRUCTIONS * turned * tiles * p.across_anywhere
    instructions = instructions + DIVISION_INSTRUCTIONS * (straight * f.divides_across + turned * f.divides_along)
    rounds = (f.turned_inputs > 0) * np.ceil(turned / p.turned_unroll) + (f.straight_inputs > 0) * np.ceil(straight / p.unroll)
    at_once = np.maximum(p.unroll * p.along_vector * f.straight_inputs, p.along_vector * p.unroll)
    needed = registers(at_once * f.bits / max(1, f.straight_inputs + f.straight_outputs + tiles) / 32, f.instructions, has_loop=False)
    straight_piece = np.where(tile >= f.along, f.along * np.minimum(tile, f.across), tile) * (f.bits - f.turned_bits) / 8 / straight_tensors
    turned_piece = straight_piece  # if no tensor lies across, as with lookups only
    if tiles:
        turned_piece = np.where(tile >= f.across, f.across * np.minimum(tile, f.along), tile) * f.turned_bits / 8 / tiles
    cost = (f.bits - f.turned_bits) * piece_cost(straight_piece) + f.turned_bits * piece_cost(turned_piece)
    # a sector moves once more for each row of a tile whose neighbour shares a line and is accessed much later
    is_along_cut, is_across_cut = f.is_along_cut & (tile < f.along), f.is_across_cut & (tile < f.across)
    cut_bits = np.where(p.is_along_first, is_across_cut * f.turned_bits, is_along_cut * (f.bits - f.turned_bits))
    cost = cost + cut_bits * SECTOR_BYTES / np.minimum(straight_piece, turned_piece)
    resident = resident_blocks(p.threads, needed, tile * tile * f.turned_bits / 8, arch)
    return Passing(
        dram_bytes=f.along * f.across * f.batches * cost / 8, block_bytes=tile * tile * f.bits / 8,
        blocks=blocks, warps=warps, resident=resident, seats=resident * arch.sm_count, rounds=rounds,
        instructions=instructions, mufu=f.mufu * elems, lines=0.0, wait_clocks=2 * barrier_clocks(warps, t) * (tiles > 0), exchange_ns=0.0,
    )  # fmt: skip
