"""Whether few long rows or columns are left to several kernels, one for each reduction and one for the rest, which share them among all blocks.

One rule for all templates: the predicted time of both. Pure. Read first: `why_several`.
"""

from __future__ import annotations

from dataclasses import replace

from ..arch import Arch
from .base import Decline
from .cost.passing import Passing, passing_ns
from .limits import NEAR


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


def why_several(one_ns: float, others_ns: float, what: str) -> Decline | None:
    """Return why one kernel is not taken: it is predicted to be slower than several, which take `others_ns`. what: the rows or columns. If times are as good as
    equal, one kernel is taken."""
    if one_ns <= (1 + NEAR) * others_ns:
        return None
    return Decline(f"one kernel is predicted to take {one_ns / 1000:.1f} us, and several, which share {what} among all blocks, {others_ns / 1000:.1f} us")
