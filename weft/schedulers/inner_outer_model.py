"""How long a kernel of `inner_outer.py` takes: a model of what its blocks wait for.

Pure. A block goes from step to step, a step being the rows that it takes at once. Four things bound the whole: bytes through memory; instructions through the
schedulers of a multiprocessor; the chain of a step (its load from shared memory, sums, a barrier, the rest), one after the other; and bytes in flight over
the latency of memory. Read first: `predicted_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arch import SUB_PARTITIONS, WARP_THREADS, Arch
from .inner_outer_heuristic import InnerOuterParams
from .throughput_heuristic import ceil_div, clocks_per_ns
from .two_sides import TwoSidedFacts


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted to `bench/results/norm_backward.json` (one H200, November 2026). Times in ns, instructions per thread.

    instructions: per op and element. access: per vector. step_instructions: per step, and half of it for each row result. step, vector, warp, result:
    of the chain of a step, for each vector of a thread, each warp of the block, each row result. cluster, cluster_block: of the exchange in a cluster.
    latency: of memory. meeting: start, the meeting of all blocks, the sum of what they have. column_bytes_per_ns: of a multiprocessor, for that sum.
    sharpness: how far the largest of the four bounds hides the others. last: of the last step, which not all
    blocks have. bounds: more instructions, and a longer chain, where the threads of a block do not divide a row into whole vectors, so that each asks
    whether it is there.
    """

    instructions: float = 1.12
    access: float = 0.06
    step_instructions: float = 22.6
    step: float = 64.5
    vector: float = 42.2
    warp: float = 1.37
    result: float = 73.2
    cluster: float = 830.0
    cluster_block: float = 163.0
    latency: float = 1608.0
    meeting: float = 15350.0
    column_bytes_per_ns: float = 27.2
    sharpness: float = 4.8
    last: float = 2.15
    bounds: float = 1.38


CONSTANTS = Constants()
DEPTH = {"now": 0.5, "ahead": 1.0}
"""Steps whose loads are in flight, of loads into registers."""


def predicted_ns(p: InnerOuterParams, facts: TwoSidedFacts, arch: Arch, c: Constants = CONSTANTS) -> float:
    """Return the time of a kernel."""
    rows, clock = facts.rows, clocks_per_ns(arch)
    in_step = p.row_unroll * p.groups
    sms = min(arch.sm_count, p.blocks * p.cluster_blocks)
    resident = p.blocks * p.cluster_blocks / sms
    steps = rows.iteration_elems / (p.blocks * in_step)
    vectors = p.row_unroll * p.batches
    more = 1.0 if p.is_whole(rows.reduction_elems) else 1.0 + c.bounds
    ops = rows.instructions + facts.column_results + (rows.recompute_instructions if p.project_to_inputs else 0)
    results = p.row_unroll * rows.reductions
    instructions = vectors * (p.vector_elems * ops * c.instructions * more + c.access) + c.step_instructions * (1 + 0.5 * results)
    issue = instructions * p.threads / WARP_THREADS / SUB_PARTITIONS / clock
    chain = c.step + c.vector * vectors * more + c.warp * p.threads / WARP_THREADS + c.result * results + issue
    if p.cluster_blocks > 1:
        chain += c.cluster + c.cluster_block * p.cluster_blocks
    elems = rows.iteration_elems * rows.reduction_elems
    memory = elems * (rows.input_bits + rows.output_bits) / 8 / (arch.roof_bytes_per_s * 1e-9) * arch.sm_count / sms
    piece = ceil_div(rows.reduction_elems, p.cluster_blocks)
    in_flight = resident * _depth(p) * in_step * piece * rows.input_bits / 8
    waiting = elems * rows.input_bits / 8 / sms * c.latency / max(1.0, in_flight)
    bounds = (memory, steps * issue * resident, steps * chain, waiting)
    together: float = sum(b**c.sharpness for b in bounds) ** (1 / c.sharpness)
    partials = p.blocks * rows.reduction_elems * facts.column_accumulator_bits / 8 * 2
    uneven = ceil_div(rows.iteration_elems, p.blocks * in_step) - steps
    return together + c.meeting + partials / (arch.sm_count * c.column_bytes_per_ns) + uneven * c.last * chain


def _depth(p: InnerOuterParams) -> float:
    if p.loads in DEPTH:
        return DEPTH[p.loads]
    return p.stages - 0.7 if p.loads == "cp_async" else p.stages - p.is_reread
