"""What a kernel does whose threads have whole rows of a short innermost loop, from its params and facts. Pure arithmetic.

Read first: `work_of_whole_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...analysis.whole_rows import RowWork
from ...arch import WARP_THREADS, Arch
from .parts import ACCESS_INSTRUCTIONS, DIVISION_INSTRUCTIONS, FITTED, OP_INSTRUCTIONS, STEP_INSTRUCTIONS, Fitted, registers
from .passing import Passing, resident_blocks


@dataclass(frozen=True, slots=True)
class WholeRowFacts:
    """rows: their number. elems: of a row. work: of a row. shares: its elements, one by one, take twice as many operations."""

    rows: int
    elems: int
    work: RowWork
    shares: bool = False


def work_of_whole_rows(unroll: int, bdimx: int, f: WholeRowFacts, arch: Arch, c: Fitted = FITTED) -> Passing:
    """Return what the kernel does. unroll: rows of a thread; bdimx: threads of a block."""
    of_row, warps = f.work, bdimx / WARP_THREADS
    arithmetic = OP_INSTRUCTIONS * of_row.operations + DIVISION_INSTRUCTIONS * of_row.divisions
    accesses = ACCESS_INSTRUCTIONS * of_row.addresses + of_row.accesses - of_row.addresses  # others are a constant further
    instructions = STEP_INSTRUCTIONS + unroll * (arithmetic + accesses)
    needed = registers(unroll * of_row.words, of_row.operations, has_loop=False)
    resident = resident_blocks(bdimx, np.minimum(arch.max_registers_per_thread, needed), 0.0, arch)
    return Passing(
        dram_bytes=of_row.moved_bytes, block_bytes=bdimx * unroll * of_row.moved_bytes / f.rows, blocks=np.ceil(f.rows / (bdimx * unroll)), warps=warps,
        resident=resident, seats=resident * arch.sm_count, rounds=1.0, instructions=instructions, mufu=of_row.mufu * unroll,
        lines=warps * unroll * of_row.lines, wait_clocks=0.0, exchange_ns=0.0, end_clocks=c.alone * instructions,
    )  # fmt: skip
