"""Whether rows or columns are left to several kernels, one for each reduction and one for the rest: few long ones, which several kernels share among all
blocks, and those whose results lie in another order of memory, which a kernel for transposing stores.

One rule for all templates: the predicted time of both. Pure. Read first: `why_several`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..arch import SECTOR_BYTES, Arch
from .base import Decline, Sizes
from .cost.passing import Passing, passing_ns
from .facts import RowFacts
from .limits import NEAR
from .row_analysis import RowAnalysis


def shared_evenly(work: Passing, arch: Arch) -> Passing:
    """Return the same work, done by as many blocks as the chip holds at once."""
    blocks = arch.sm_count * work.resident
    part = work.blocks / blocks
    return replace(
        work, blocks=blocks, seats=blocks, rounds=part * work.rounds, instructions=part * work.instructions, mufu=part * work.mufu, lines=part * work.lines
    )


def several_ns(work: Passing, moved_bytes: float, kernels: int, arch: Arch) -> float:
    """Return the time of so many kernels that together do the work of one, evenly shared among all blocks, and move these bytes."""
    return float(passing_ns(replace(shared_evenly(work, arch), dram_bytes=moved_bytes), arch)) + (kernels - 1) * start_ns(arch)


def start_ns(arch: Arch) -> float:
    """Return the time of a launch until the first loads arrive, as `passing_ns` counts it."""
    return arch.latencies.launch_ns + arch.latencies.dram_latency_ns


def why_several(one_ns: float, others_ns: float, why: str) -> Decline | None:
    """Return why one kernel is not taken: it is predicted to be slower than several, which take `others_ns`, because they do what `why` says. If times are as
    good as equal, one kernel is taken."""
    if one_ns <= (1 + NEAR) * others_ns:
        return None
    return Decline(f"one kernel is predicted to take {one_ns / 1000:.1f} us, and several, which {why}, {others_ns / 1000:.1f} us")


def why_not_turned(analysis: RowAnalysis, facts: RowFacts, sizes: Sizes, arch: Arch) -> Decline | None:
    """Return why another kernel should store outputs whose memory order is not that of the loops: here each element would be a store of its own, into a sector
    that other threads fill. The other kernel reads the inputs again. Not where inputs lie in the other order, too: what is between the kernels would be more.
    """
    innermost, vectorizable = analysis.shape.order[-1], set(analysis.limits.vectorizable)
    if not vectorizable.issuperset(analysis.row_inputs):
        return None
    extents, stored_bytes = analysis.axes.extents_elems(sizes), 0
    for tensor in analysis.row_outputs:
        order = analysis.axes.memory_order(tensor)
        if innermost in order and tensor not in vectorizable:
            stride_bytes = math.prod(extents[n] for n in order[order.index(innermost) + 1 :]) * tensor.dtype().bits // 8
            stored_bytes += math.prod(extents[n] for n in order) * min(SECTOR_BYTES, stride_bytes)
    if not stored_bytes:
        return None
    bytes_ns, again_ns = (facts.total_elems * bits / 8 / (arch.roof_bytes_per_s * 1e-9) for bits in (facts.input_bits + facts.output_bits, facts.input_bits))
    one_ns = max(bytes_ns, stored_bytes / (arch.latencies.l2_bytes_per_s * 1e-9))
    others_ns = bytes_ns + again_ns + start_ns(arch)
    return why_several(one_ns, others_ns, "store no results one by one in another order of memory")
