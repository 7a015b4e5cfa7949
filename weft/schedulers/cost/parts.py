"""Costs of parts of a kernel, for every template: instructions, reductions, barriers, warps that work alone. Pure arithmetic on numbers or arrays.

Counts of instructions belong to the text of our kernels; what belongs to a chip is in `arch.Latencies`. `Fitted` has all that is fitted to measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch import MUFU_LANES, REGISTER_BYTES, SUB_PARTITIONS, WARP_THREADS, Arch, Latencies

OP_INSTRUCTIONS, ACCESS_INSTRUCTIONS, RESULT_INSTRUCTIONS, STEP_INSTRUCTIONS = 0.76, 6.5, 50.0, 60.0
"""Instructions per thread for an operation counted by the op registry, an access to memory, a result of a row, a step. Counted in machine
code: docs/constants.md."""
DIVISION_INSTRUCTIONS = 5.0
"""Instructions per thread to divide an index by a size of the call, with a factor that the host computes (`device/divide.cuh`): a shift, a product, a shift; a
second product and a difference for the remainder."""
RANDOM_INSTRUCTIONS = 87.0
"""Instructions per thread for the random numbers of a vector that shares Philox rounds with no other: one call of Philox in machine code. Counted:
docs/constants.md."""
MUFU_CLOCKS = WARP_THREADS * SUB_PARTITIONS / MUFU_LANES
"""Clocks of a warp scheduler for one special function of a warp."""
FETCH_NS = 2.0
"""Time to fetch an instruction that runs for the first time: 16 bytes at 8 bytes per ns. An estimate, near which timed kernels are: docs/constants.md."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The fitted numbers, the same for all chips and schedulers. bench/fit_cost.py makes the first eight, bench/fit_ways.py the last one.

    latency, l2: latency of memory and of L2 under load, divided by that of a single load. sharpness: how far the slowest of several bounds hides the others.
    cluster: time of an exchange in a cluster, divided by that of its barrier alone. bulk: clocks of the thread that issues a bulk copy. spill: instructions per
    missing register. alone: clocks of a warp between two of its instructions. predicate: instructions for the bounds check of a vector. preference: how much
    faster a pipeline must be predicted to be taken instead of rows in registers.
    """

    latency: float = 2.76
    sharpness: float = 3.08
    l2: float = 1.57
    cluster: float = 3.9
    bulk: float = 27.0
    spill: float = 20.1
    alone: float = 3.29
    predicate: float = 38.8
    preference: float = 0.1


FITTED = Fitted()


def fold_clocks(threads: Any, t: Latencies) -> Any:
    """Clocks of a reduction over the threads of a row: a shuffle and an operation per level, in a warp and then over warps."""
    in_warp, warps = np.minimum(WARP_THREADS, threads), np.maximum(1.0, threads / WARP_THREADS)
    return (np.log2(in_warp) + np.log2(warps)) * (t.shuffle_latency_clocks + t.arithmetic_latency_clocks)


def barrier_clocks(warps: Any, t: Latencies) -> Any:
    """Clocks of a block barrier, and of reading the other warps' results from shared memory."""
    return t.barrier_clocks + t.barrier_warp_clocks * warps + t.shared_latency_clocks


def alone_factor(warps: Any, alone: float) -> Any:
    """Clocks per instruction of a block that is alone on a multiprocessor: its schedulers alternate between warps, and a warp waits between two
    instructions."""
    return np.sqrt((warps / SUB_PARTITIONS) ** 2 + alone**2)


def clusters_at_once(blocks: Any, arch: Arch) -> Any:
    """Clusters of so many blocks that certainly run at once, with one block per multiprocessor.

    A cluster lies within a group of multiprocessors (GPC), whose sizes the driver does not report: pairs always fit, and larger clusters leave up to an eighth
    idle.
    """
    usable = np.where(blocks <= 2, arch.sm_count, arch.sm_count - arch.sm_count // 8)
    return np.maximum(1, usable // blocks)


L2_KEEPS, L2_LOSES = 0.25, 1.0
"""Fractions of L2: if the data in flight take less than the first, re-reads hit L2; if more than the second, they go to memory; in between in part."""


def rereads_from_memory(bytes_in_work: Any, arch: Arch) -> Any:
    """Fraction of re-reads that come from memory and not from L2, if so many bytes are read in between."""
    low, high = arch.l2_bytes * L2_KEEPS, arch.l2_bytes * L2_LOSES
    return np.minimum(1.0, np.maximum(0.0, (bytes_in_work - low) / (high - low)))


FULL_ROUNDS = 12
"""Rounds of blocks per multiprocessor from which on the last, partial one costs nothing."""


def balance(blocks: float, arch: Arch) -> float:
    """Fraction of the multiprocessors' time that whole blocks can fill."""
    per_sm = blocks / arch.sm_count
    return 1.0 if per_sm >= FULL_ROUNDS else per_sm / -(-blocks // arch.sm_count)


THREAD_REGISTERS, LOOP_REGISTERS, OPERATION_REGISTERS = 16, 8, 0.1
"""Registers per thread: for its indices and constants; for a loop; per operation between loads and stores. Chosen near a fit: docs/constants.md."""
ADDRESS_REGISTERS = 2
"""Registers of a 64-bit address."""


def missing_registers(spilled_bytes: float) -> float:
    """Return how many registers a thread lacks that spills so many bytes: those of half of them, because values are alive at different times (read
    off ptxas: docs/constants.md).
    """
    return spilled_bytes / 2 / REGISTER_BYTES


def fitting_elems(elems: int, registers: int, spilled_bytes: float) -> int:
    """Return how many elements per thread have registers, a power of two, where a thread with `elems` of them spills so many bytes; 0 if one has not.

    Example: fitting_elems(4, 255, 1464) == 2
    """
    fitting = min(elems - 1, int(elems * registers / (registers + missing_registers(spilled_bytes))))
    return 1 << fitting.bit_length() >> 1


def registers(loaded: Any, operations: Any, *, held: Any = 0.0, has_loop: bool = True) -> Any:
    """Return the registers per thread of kernels without staying blocks. loaded: words of 32 bits that are loaded before their first use; held: words that are
    kept through a loop, such as sums.
    """
    return THREAD_REGISTERS + LOOP_REGISTERS * has_loop + loaded + held + OPERATION_REGISTERS * operations
