"""The time of a kernel that is not persistent, whose blocks do their part once: pointwise kernels, plain reductions, transposes.

A kernel is as slow as the slowest of five things, a little slower where two are alike: bytes through memory; instructions through the schedulers of a
multiprocessor; lines that warps touch; the lives of its blocks, one after the other on each seat; the starts of blocks. Before that comes the launch, behind
it what blocks hand to each other. Nothing is fitted to these kernels: they share the fitted numbers of others, and the few below were read off records. Pure.
Read first: `Passing`, `passing_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import REGISTERS_PER_WARP_GRANULARITY, SECTOR_BYTES, SHARED_GRANULARITY_BYTES, SHARED_RESERVED_PER_BLOCK_BYTES, SUB_PARTITIONS, Arch
from .parts import FITTED, MUFU_CLOCKS, Fitted

PIECE_BYTES = SECTOR_BYTES / 2
"""Bytes moved in addition to each piece of neighbouring bytes, because it begins or ends within a sector."""
LEAST_BUSY = 0.625
"""Fraction of the multiprocessors that can use the whole memory bandwidth. One uses more than its share while others idle. Measured: docs/constants.md."""
DRAIN = 0.1
"""Fraction of the bytes in flight at once during which memory is not fully used: the first blocks load and do not store yet, the last ones end one by one."""
LINE_CLOCKS = 2.0
"""Clocks of a multiprocessor per cache line that an access of a warp touches. Measured: docs/constants.md."""
FEW_WAVES = 4
"""Rounds of blocks up to which the last one counts as a whole; with more rounds, blocks end at different times, and the last ones overlap with others."""


@dataclass(frozen=True, slots=True)
class Passing:
    """Numbers, or numpy arrays with one element per kernel.

    dram_bytes: bytes through memory, including unused parts of sectors; block_bytes: bytes that a block has in flight at once. blocks: of the grid; warps: of a
    block; resident: resident blocks of a multiprocessor, seats: of the chip. rounds: batches of a thread's loads, each issued when the one before has arrived.
    instructions, mufu: of a thread, in total. lines: cache lines that all accesses of a block touch. wait_clocks: latencies of a block besides its loads and
    instructions. exchange_ns: of the exchange between blocks. end_clocks: of a block after its loads, which no other block hides for the last one, because it
    stores everything at its end. tail: fraction of the time of memory, divided by the rounds of blocks (`FEW_WAVES` at least), that is lost because blocks end
    at different times.
    """

    dram_bytes: Any
    block_bytes: Any
    blocks: Any
    warps: Any
    resident: Any
    seats: Any
    rounds: Any
    instructions: Any
    mufu: Any
    lines: Any
    wait_clocks: Any
    exchange_ns: Any
    end_clocks: Any = 0.0
    tail: Any = 0.0


def resident_blocks(threads: Any, registers: Any, shared_bytes: Any, arch: Arch) -> Any:
    """Return the resident blocks per multiprocessor, like `Arch.blocks_per_sm`, for arrays."""
    warps = np.ceil(threads / arch.warp_threads)
    per_warp = np.ceil(registers * arch.warp_threads / REGISTERS_PER_WARP_GRANULARITY) * REGISTERS_PER_WARP_GRANULARITY
    by_registers = arch.registers_per_sm // SUB_PARTITIONS // per_warp * SUB_PARTITIONS // warps
    shared = np.ceil((shared_bytes + SHARED_RESERVED_PER_BLOCK_BYTES) / SHARED_GRANULARITY_BYTES) * SHARED_GRANULARITY_BYTES
    found = np.minimum(np.minimum(arch.max_blocks_per_sm, arch.max_threads_per_sm // (warps * arch.warp_threads)), by_registers)
    return np.maximum(1.0, np.minimum(found, arch.shared_per_sm_bytes // shared))


def piece_cost(bytes_at_once: Any) -> Any:
    """Return the bytes moved through memory per used byte, if a block accesses so many neighbouring bytes of a row at a time."""
    return 1.0 + PIECE_BYTES / np.maximum(1.0, bytes_at_once)


def unevenness(blocks: Any, at_once: Any, arch: Arch) -> Any:
    """Return by how much the bytes of equal blocks take longer than at full bandwidth. at_once: multiprocessors that have a block, since clusters leave some
    idle. The last blocks, which are fewer, use their multiprocessors' part of the bandwidth (`LEAST_BUSY`).
    """
    last = blocks % at_once
    return (blocks - last + (last > 0) * np.maximum(last, LEAST_BUSY * arch.sm_count)) / blocks


def passing_ns(w: Passing, arch: Arch, c: Fitted = FITTED) -> Any:
    """Return the time of each kernel, from event to event."""
    clock, t = arch.clocks_per_ns, arch.latencies
    per_sm = w.blocks / arch.sm_count
    busiest = np.ceil(per_sm)
    waves = w.blocks / w.seats
    issue = w.warps * np.maximum(w.instructions, MUFU_CLOCKS * w.mufu) / SUB_PARTITIONS / clock
    life = w.rounds * t.dram_latency_ns + (c.alone * w.instructions + w.wait_clocks) / clock
    rounds_of_blocks = np.where(waves < FEW_WAVES, np.ceil(waves), waves + 0.5)
    uneven = np.where(waves < FEW_WAVES, unevenness(w.blocks, w.seats / w.resident, arch), 1.0)
    memory = w.dram_bytes / (arch.roof_bytes_per_s * 1e-9) * uneven
    bounds = (memory, busiest * issue, busiest * LINE_CLOCKS * w.lines / clock, rounds_of_blocks * life)
    together = np.maximum(sum(bound**c.sharpness for bound in bounds) ** (1 / c.sharpness), busiest * t.block_launch_ns)
    tail = w.tail * memory / np.maximum(FEW_WAVES, waves)
    under_way = np.minimum(w.resident, per_sm) * w.block_bytes * arch.sm_count / (arch.roof_bytes_per_s * 1e-9)
    return t.launch_ns + t.dram_latency_ns + together + tail + DRAIN * under_way + w.exchange_ns + w.end_clocks / clock
