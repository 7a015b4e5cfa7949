"""The time of a kernel from what it does.

A kernel is as slow as the slowest of five things, a little slower where two are alike: bytes through memory; instructions through the schedulers of a
multiprocessor; the chain of a block's steps, one after the other; loads that must arrive before their step can begin; bytes through shared memory. Before and
after come the launch, the first loads, the first fetch of the code, and what is added up at the end. Pure. Read first: `time_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import SUB_PARTITIONS, Arch
from .work import Work

OP_INSTRUCTIONS, ACCESS_INSTRUCTIONS, RESULT_INSTRUCTIONS, STEP_INSTRUCTIONS = 0.76, 6.5, 50.0, 60.0
"""Of a thread: for an operation that the op registry counts, an access to memory, a result of a row, a step. Source: machine code of 73 kernels (sm_90a)."""
MUFU_CLOCKS = 8.0
"""Of a scheduler for one special function of a warp: 16 lanes of a multiprocessor (CUDA C++ Programming Guide, throughput)."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The numbers that are fitted, the same for all chips; bench/fit_cost.py makes them from bench/results/two_sided.json.

    latency: of memory while it is busy, over that of a lone load. now: the same for loads that begin with their step. sharpness: how far the slowest of the
    five hides the others. columns: of the waiting when partial results are added up. cluster: of an exchange in a cluster over a bare barrier of it. bulk:
    clocks of the thread that issues a bulk copy. spill: instructions for each register that a thread lacks. fetch: ns of the first fetch of an instruction.
    alone: clocks of a warp between two of its instructions. predicate: instructions for a vector that asks whether it exists.
    """

    latency: float = 2.23
    now: float = 1.55
    sharpness: float = 3.38
    columns: float = 1.64
    cluster: float = 3.64
    bulk: float = 107.0
    spill: float = 20.0
    fetch: float = 2.39
    alone: float = 2.45
    predicate: float = 43.0


FITTED = Fitted()


def time_ns(w: Work, arch: Arch, c: Fitted = FITTED) -> Any:
    """Return the time of each kernel, from event to event."""
    clock, t = arch.sm_clock_khz * 1e-6, arch.latencies
    instructions = OP_INSTRUCTIONS * w.element_instructions + ACCESS_INSTRUCTIONS * w.access_instructions + RESULT_INSTRUCTIONS * w.row_results
    instructions = instructions + STEP_INSTRUCTIONS + c.predicate * w.predicates + c.spill * np.maximum(0.0, w.needed_registers - w.max_registers)
    issue = w.warps * np.maximum(instructions, MUFU_CLOCKS * w.mufu) / SUB_PARTITIONS / clock
    own = instructions * np.sqrt((w.warps / SUB_PARTITIONS) ** 2 + c.alone**2) / clock
    chain = own + (w.wait_clocks + c.cluster * w.cluster_clocks + c.bulk * w.bulk_copies) / clock
    chain = chain + np.where(w.depth == 0, c.now * t.dram_latency_ns, 0.0)
    memory = w.dram_bytes / (arch.roof_bytes_per_s * 1e-9) * arch.sm_count / w.sms
    late = np.where(w.depth > 0, np.maximum(0.0, w.steps - w.depth - 1.0) / np.maximum(w.depth, 1.0), 0.0)
    bounds = (memory, w.steps * w.resident * issue, w.steps * chain, late * c.latency * t.dram_latency_ns, w.steps * w.resident * w.shared_clocks / clock)
    together = sum(bound**c.sharpness for bound in bounds) ** (1 / c.sharpness)
    first = t.cooperative_launch_ns + 2 * t.dram_latency_ns + c.fetch * instructions
    meeting = t.grid_meeting_ns + t.grid_block_ns * w.blocks
    columns = c.columns * (w.column_waits * t.l2_latency_ns + w.column_folds * t.barrier_clocks / clock) + 2 * w.partial_bytes / (t.l2_bytes_per_s * 1e-9)
    return first + together + meeting + columns
