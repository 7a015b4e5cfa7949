"""The work of a kernel, in numbers that depend on the chip only through its number of multiprocessors. Read first: `Work`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """Numbers, or numpy arrays with one element per kernel.

    dram_bytes: that must move through memory. sms: multiprocessors at work; resident: blocks on each of them; blocks: of the grid. warps: of a block.
    steps: rounds of a block, each with these instructions of a thread: element_instructions (operations), access_instructions (accesses of vectors),
    row_results (results of rows), predicates (vectors that ask whether they exist), mufu (special functions). shared_clocks: of a block's accesses.
    wait_clocks, cluster_clocks: of the chain of a step that no other warp shortens: folds, barriers, loads from shared memory; exchange in a cluster.
    is_behind: that a step works on the row before while its own sums are exchanged. depth: steps whose loads are under way while a step is worked on; 0: loads
    begin with the step. bulk_copies: that one thread issues in a step.
    partial_bytes: of partial results, written and read by L2. column_waits, column_folds: loads after each other, and levels of a fold, when they are added up.
    needed_registers, max_registers: of a thread.
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
