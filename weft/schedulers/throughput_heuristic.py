"""How near to the memory roof a kernel can get: the model behind every choice of this folder.

Owns the constants of the model, with their sources, and the record of a choice. Pure arithmetic: no fusion, no device.

A multiprocessor has an equal share of the memory's rate. A resident block alternates between using that share (its transfer) and doing without it
(latency of the first load, barriers, arithmetic, its own start). With k resident blocks this is a closed queue with k customers and one server, and
the share is used for a fraction of the time

    1 - 1 / sum_{j=0..k} k! / (k - j)! * (transfer / rest)^j

(machine interference model; exponential times, so a little pessimistic). One long row per multiprocessor loses what one block cannot overlap with
itself; many small blocks lose nothing once their number times transfer exceeds the rest.
Read first: `busy_fraction`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..arch import Arch

MEMORY_LATENCY_NS = 700.0
"""From a load to its use under load. Source: pointer chasing gives 470 (A100) to 600 ns (H100, B200); queues add to that."""
BLOCK_START_NS = 300.0
"""From the end of a block to the first load of the next one in its place: launch, parameters, addresses."""
WARP_REDUCTION_NS = 60.0
"""Five shuffles with their operations, about 20 clocks each."""
BLOCK_REDUCTION_NS = 120.0
"""One barrier, one store and one load of shared memory, and a second warp reduction, on top of the first."""
BYTES_IN_FLIGHT_S = 1.3e-6
"""Bytes in flight that saturate the memory, over its rate. Source: NVIDIA's GTC talks: 32 KiB per multiprocessor for H100, 64 KiB for B200."""
L2_BYTES_PER_CLOCK = 26.0
"""What L2 gives one multiprocessor per clock while all ask."""
SHARED_BYTES_PER_CLOCK = 128.0
"""Shared memory of one multiprocessor (CUDA C++ Programming Guide: 32 banks of 4 bytes)."""
MUFU_CLOCKS = 8.0
"""Clocks of a scheduler for one special-function instruction of a warp: 16 lanes per multiprocessor (CUDA C++ Programming Guide, throughput)."""
ACCESS_INSTRUCTIONS = 4.0
"""Issue slots of one vector access: address, predicate, the access, conversions that do not scale with its width."""
L2_SHARE_FOR_REUSE = 0.5
"""Part of L2 that can be counted on to hold what was just read, while outputs stream through."""


def bytes_in_flight_per_sm(arch: Arch) -> float:
    """Bytes that a multiprocessor must have asked for at any time to use its share of the memory."""
    return arch.dram_bytes_per_s * BYTES_IN_FLIGHT_S / arch.sm_count


def share_bytes_per_ns(arch: Arch) -> float:
    """A multiprocessor's share of the memory's rate."""
    return arch.roof_bytes_per_s / arch.sm_count * 1e-9


def l2_bytes_per_ns(arch: Arch) -> float:
    """A multiprocessor's share of the L2's rate."""
    return L2_BYTES_PER_CLOCK * arch.sm_clock_khz * 1e-6


def issue_ns(arch: Arch, warps: int, elems_per_thread: float, instructions: float, mufu: float) -> float:
    """Time in which a block's warps issue `instructions` (and `mufu` special functions) for each of their elements, alone on a multiprocessor."""
    clocks_per_elem = max(instructions, mufu * MUFU_CLOCKS)
    return elems_per_thread * clocks_per_elem * max(1.0, warps / 4) / (arch.sm_clock_khz * 1e-6)


def busy_fraction(blocks: int, transfer_ns: float, rest_ns: float) -> float:
    """Part of the time for which `blocks` resident blocks keep their multiprocessor's share of the memory busy."""
    if blocks <= 0:
        return 0.0
    ratio = transfer_ns / max(rest_ns, 1e-9)
    total = term = 1.0
    for waiting in range(blocks, 0, -1):
        term *= waiting * ratio
        total += term
    return 1.0 - 1.0 / total


def balance(blocks: int, arch: Arch) -> float:
    """Part of the multiprocessors' time that whole blocks can fill: 1 from eight blocks per multiprocessor on."""
    per_sm = blocks / arch.sm_count
    return 1.0 if per_sm >= 8 else per_sm / -(-blocks // arch.sm_count)


@dataclass(frozen=True, slots=True)
class Trace:
    """Why a choice was made: every candidate considered, best first, and the criteria in order. For WEFT_DUMP=scheduler."""

    heuristic: str
    facts: Any
    criteria: tuple[str, ...]
    candidates: tuple[Any, ...]
    chosen: Any
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the trace as text, one candidate per line."""
        lines = [f"{self.heuristic}: {self.facts}"]
        lines += [f"  {note}" for note in self.notes]
        if self.candidates:
            lines.append(f"  in the order of: {', '.join(self.criteria)}")
        lines += [f"  {'->' if i == 0 else '  '} {candidate}" for i, candidate in enumerate(self.candidates)]
        lines.append(f"  chosen: {self.chosen}")
        return "\n".join(lines)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def previous_power_of_two(value: int) -> int:
    """Largest power of two up to `value`, at least 1."""
    return 1 << (max(1, value).bit_length() - 1)


def next_power_of_two(value: int) -> int:
    """Smallest power of two from `value` on."""
    return 1 << (max(1, value) - 1).bit_length()


def vector_elems(limit_elems: int, max_dtype_bits: int, min_vector_elems: int, max_vector_bits: int) -> int:
    """Return the vector width: as wide as one access, within the limit; never below whole bytes."""
    return max(min_vector_elems, min(limit_elems, previous_power_of_two(max_vector_bits // max_dtype_bits)))


def best_first(candidates: Iterable[Any], key: Any) -> tuple[Any, ...]:
    """Sort by `key`, largest first; equals keep their order."""
    return tuple(sorted(candidates, key=key, reverse=True))
