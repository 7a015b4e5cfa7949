"""Predicts the time of a kernel from the work it does.

A kernel is as slow as the slowest of five things, a little slower where two are alike: bytes through memory; instructions through the schedulers of a
multiprocessor; the chain of a block's steps, one after the other; loads that must arrive before their step can begin; bytes through shared memory. Before and
after come the launch, the first loads, the first fetch of the code, and what is added up at the end. Pure. Read first: `time_ns`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch import SUB_PARTITIONS, Arch
from .parts import (
    ACCESS_INSTRUCTIONS,
    FETCH_NS,
    FITTED,
    MUFU_CLOCKS,
    OP_INSTRUCTIONS,
    RESULT_INSTRUCTIONS,
    STEP_INSTRUCTIONS,
    Fitted,
    alone_factor,
)
from .work import Work

SECOND_PASS = 0.5
"""Fraction of a step's instructions that can run while sums are exchanged, in a block or in a cluster: those of the second of two passes."""


def time_ns(w: Work, arch: Arch, c: Fitted = FITTED) -> Any:
    """Return the time of each kernel, from event to event."""
    clock, t = arch.clocks_per_ns, arch.latencies
    instructions = OP_INSTRUCTIONS * w.element_instructions + ACCESS_INSTRUCTIONS * w.access_instructions + RESULT_INSTRUCTIONS * w.row_results
    instructions = instructions + STEP_INSTRUCTIONS + c.predicate * w.predicates + c.spill * np.maximum(0.0, w.needed_registers - w.max_registers)
    issue = w.warps * np.maximum(instructions, MUFU_CLOCKS * w.mufu) / SUB_PARTITIONS / clock
    own = instructions * alone_factor(w.warps, c.alone / (1.0 + w.is_behind)) / clock  # two independent passes hide each other's latency
    wait = (w.wait_clocks + c.cluster * w.cluster_clocks) / clock
    hidden = w.is_behind * np.minimum(wait, SECOND_PASS * own)
    chain = own + wait - hidden + c.bulk * w.bulk_copies / clock
    chain = chain + np.where(w.depth == 0, c.latency * t.dram_latency_ns, 0.0)
    memory = w.dram_bytes / (arch.roof_bytes_per_s * 1e-9) * arch.sm_count / w.sms
    late = np.where(w.depth > 0, np.maximum(0.0, w.steps - w.depth - 1.0) / np.maximum(w.depth, 1.0), 0.0)
    bounds = (memory, w.steps * w.resident * issue, w.steps * chain, late * c.latency * t.dram_latency_ns, w.steps * w.resident * w.shared_clocks / clock)
    together = sum(bound**c.sharpness for bound in bounds) ** (1 / c.sharpness)
    first = t.cooperative_launch_ns + t.block_launch_ns * w.resident + 2 * t.dram_latency_ns + FETCH_NS * instructions
    meeting = w.meets * (t.grid_meeting_ns + t.grid_block_ns * w.blocks)
    columns = c.l2 * (w.column_waits * t.l2_latency_ns + w.column_folds * t.barrier_clocks / clock) + 2 * w.partial_bytes / (t.l2_bytes_per_s * 1e-9)
    return first + together + meeting + columns
