"""The work of a kernel, in numbers that depend on the chip only through its number of multiprocessors. Read first: `Work`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """Numbers, or numpy arrays with one element per kernel.

    dram_bytes: bytes through memory. sms: busy multiprocessors; resident: blocks on each of them; blocks: of the grid. warps: of a block. steps: loop
    iterations of a block, each with these instructions of a thread: element_instructions (operations), access_instructions (accesses of vectors), row_results
    (results of rows), predicates (bounds checks of vectors), mufu (special functions). shared_clocks: of a block's accesses to shared memory. wait_clocks,
    cluster_clocks: latencies of a step that other warps do not hide: reductions, barriers, loads from shared memory; exchange in a cluster. is_behind: a step
    does the second pass of the previous row while its own sums are exchanged. depth: steps whose loads are in flight during a step; 0: loads begin with the
    step. bulk_copies: issued by one thread in a step. partial_bytes: of partial results, written to and read from L2. column_waits, column_folds: dependent
    loads, and levels of the reduction, when partial results are summed. needed_registers, max_registers: per thread. meets: all blocks wait for each other.
    """

    dram_bytes: Any
    sms: Any
    resident: Any
    blocks: Any
    warps: Any
    steps: Any
    element_instructions: Any
    access_instructions: Any
    row_results: Any
    predicates: Any
    mufu: Any
    shared_clocks: Any
    wait_clocks: Any
    cluster_clocks: Any
    is_behind: Any
    depth: Any
    bulk_copies: Any
    partial_bytes: Any
    column_waits: Any
    column_folds: Any
    needed_registers: Any
    max_registers: Any
    meets: Any = True
