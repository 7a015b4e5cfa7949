"""How near to the memory roof a kernel can get: the model behind the choices that are not measured one by one.

Owns the constants of the model. Pure arithmetic: no fusion, no device.

A multiprocessor has an equal share of the memory's rate. A resident block moves its bytes (its transfer) and does other things in between (latency of
the first load, barriers, arithmetic: its rest). Three limits, each as a ratio to the roof:

    memory   blocks * transfer / (rest + OWN_TRANSFER * transfer)    k resident blocks overlap; one alone moves its bytes faster than its share
    issue    transfer / time in which the schedulers issue the block's instructions
    launch   transfer / least time between two blocks of a multiprocessor

and the fraction of the roof is ROOF * (1 + memory^-p + issue^-p + launch^-p)^(-1/p), p = SHARPNESS, which is near the smallest ratio, and below it where
two are alike. Source of the constants below: fitted to 96 hand-written RMS norm and softmax kernels, rows of 1K to 112K bf16 elements in registers and
in shared memory, on one H200 (driver 580, November 2026, L2 flushed): 4 % root mean square error. Other chips take clocks, rates and limits from their `Arch`.
Read first: `roof_fraction`.
"""

from __future__ import annotations

from ..arch import Arch

ROOF = 0.95
"""Part of `Arch.roof_bytes_per_s` that the best kernels reach; a plain copy kernel reaches a little more."""
SHARPNESS = 3.25
OWN_TRANSFER = 0.54
"""Time of a lone block's transfer over its transfer at the share of its multiprocessor."""
LATENCY_NS = 400.0
"""Of a block: start, first load to first use, as far as nothing overlaps it."""
LAUNCH_NS = 30.0
"""Least time between two blocks of a multiprocessor."""
VECTOR_LATENCY_CLOCKS = 60.0
ELEMENT_LATENCY_CLOCKS = 20.0
"""Chain of dependent operations of a warp for one vector and one pass: 60 + 20 per element (220 for eight)."""
WARP_INSTRUCTIONS = 113.0
"""Issue slots of a warp beside its vectors: parameters, addresses, predicates."""
WARP_REDUCTION_CLOCKS = 80.0
BLOCK_REDUCTION_CLOCKS = 80.0
BLOCK_REDUCTION_CLOCKS_PER_WARP = 15.5
"""A reduction within a warp; a barrier with its second stage on top; and what each warp more costs, waiting for the last."""
BLOCK_REDUCTION_INSTRUCTIONS = 30.0
INSTRUCTIONS_PER_OP = 0.5
"""Machine instructions over the operations that the op registry counts: fused multiply-adds, conversions of two elements at once."""
ACCESS_INSTRUCTIONS = 4.0
"""Issue slots of one vector access: address, predicate, the access itself."""
MUFU_CLOCKS = 8.0
"""Clocks of a scheduler for one special-function instruction of a warp: 16 lanes per multiprocessor (CUDA C++ Programming Guide, throughput)."""
BYTES_IN_FLIGHT_S = 1.3e-6
"""Bytes in flight that saturate the memory, over its rate. Source: NVIDIA's GTC talks: 32 KiB per multiprocessor for H100, 64 KiB for B200."""
L2_BYTES_PER_CLOCK = 26.0
"""What L2 gives one multiprocessor per clock while all ask. An estimate."""
L2_KEEPS = 0.25
L2_LOSES = 1.0
"""Parts of L2: rows in work that take less than the first are read again from L2, and from memory when they take more than the second; in between in part."""


def bytes_in_flight_per_sm(arch: Arch) -> float:
    """Bytes that a multiprocessor must have asked for at any time to use its share of the memory by reading alone."""
    return arch.dram_bytes_per_s * BYTES_IN_FLIGHT_S / arch.sm_count


def share_bytes_per_ns(arch: Arch) -> float:
    """A multiprocessor's share of the memory's rate."""
    return arch.roof_bytes_per_s / arch.sm_count * 1e-9


def l2_bytes_per_ns(arch: Arch) -> float:
    """A multiprocessor's share of the L2's rate."""
    return L2_BYTES_PER_CLOCK * arch.sm_clock_khz * 1e-6


def clocks_per_ns(arch: Arch) -> float:
    return arch.sm_clock_khz * 1e-6


def vector_latency_clocks(vector: int, passes: int) -> float:
    """Clocks that a warp alone needs for one vector in all passes."""
    return (VECTOR_LATENCY_CLOCKS + ELEMENT_LATENCY_CLOCKS * vector) * passes


def reduction_clocks(warps: int) -> float:
    """Clocks of one reduction over the `warps` of a row; 1: no barrier."""
    return WARP_REDUCTION_CLOCKS + (BLOCK_REDUCTION_CLOCKS + BLOCK_REDUCTION_CLOCKS_PER_WARP * warps if warps > 1 else 0.0)


def roof_fraction(blocks: int, transfer_ns: float, rest_ns: float, issue_ns: float) -> float:
    """Return the predicted fraction of the roof; see the module."""
    memory = blocks * transfer_ns / (rest_ns + OWN_TRANSFER * transfer_ns)
    ratios = (memory, transfer_ns / issue_ns, transfer_ns / LAUNCH_NS)
    return ROOF * float((1.0 + sum(r**-SHARPNESS for r in ratios)) ** (-1.0 / SHARPNESS))


def balance(blocks: int, arch: Arch) -> float:
    """Part of the multiprocessors' time that whole blocks can fill: 1 from twelve blocks per multiprocessor on."""
    per_sm = blocks / arch.sm_count
    return 1.0 if per_sm >= 12 else per_sm / -(-blocks // arch.sm_count)


def rereads_from_memory(bytes_in_work: float, arch: Arch) -> float:
    """Part of what is read again that comes from memory and not from L2."""
    low, high = arch.l2_bytes * L2_KEEPS, arch.l2_bytes * L2_LOSES
    return min(1.0, max(0.0, (bytes_in_work - low) / (high - low)))
