"""What a launch is given: buffers and scalars, the chip's limits, and options.

Read first: `Buffer`.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.errors import UserError


class BadLaunch(UserError):
    code = "W421"
    what = "cannot launch {kernel}: {problem}"
    fix = "correct the launch parameters"


RESERVED_SHARED_BYTES = 1024
"""Shared memory that the system reserves in each block. Source: CUDA C++ Programming Guide, compute capability 8.x and later."""


@dataclass(frozen=True)
class ChipLimits:
    """What a chip allows per block. The defaults are an H100's.

    Source: CUDA C++ Programming Guide, technical specifications per compute capability (9.0).
    """

    name: str = "H100"
    shared_per_block_bytes: int = 227 * 1024
    threads_per_block: int = 1024
    warp_threads: int = 32
    named_barriers: int = 16
    blocks_per_cluster: int = 16
    resident_blocks: int = 132 * 32
    multiprocessors: int = 132
    threads_per_multiprocessor: int = 2048
    shared_per_multiprocessor_bytes: int = 228 * 1024
    registers_per_multiprocessor: int = 65536

    def resident(self, geometry: "Geometry", registers_per_thread: int = 0) -> int:
        """Return how many blocks of a launch are on the chip at once; registers_per_thread: 0 where it is not known."""
        warps = -(-geometry.block_threads // self.warp_threads)
        per_multiprocessor = [
            self.resident_blocks // self.multiprocessors,
            self.threads_per_multiprocessor // (warps * self.warp_threads),
            self.shared_per_multiprocessor_bytes // (geometry.shared_bytes + RESERVED_SHARED_BYTES),
        ]
        if registers_per_thread:
            per_multiprocessor.append(self.registers_per_multiprocessor // (warps * self.warp_threads * registers_per_thread))
        return max(1, min(self.resident_blocks, self.multiprocessors * max(1, min(per_multiprocessor))))


@dataclass(frozen=True)
class Buffer:
    """Memory that a kernel may access; the argument's value is the address.

    `written`: the kernel may write it. `initialised`: it contains data before the launch; otherwise reads before writes are findings, and so are bytes that are
    unwritten at the end, unless it is a `workspace`. `constant`: no earlier kernel of the
    stream writes it (weights), so it may be read before griddep_wait(). `left_zero`: all bits
    must be 0 after the launch (semaphores). `keep` is a reference to the owner of the memory.
    """

    address: int
    bytes: int
    name: str
    written: bool = False
    initialised: bool = True
    workspace: bool = False
    constant: bool = False
    keep: Any = None
    left_zero: bool = False

    @staticmethod
    def of(array: Any, name: str, *, written: bool = False, initialised: bool = True, workspace: bool = False, constant: bool = False) -> Buffer:
        """A numpy array or a CPU torch tensor, from its first element; the memory must be contiguous."""
        if hasattr(array, "data_ptr"):
            return Buffer(array.data_ptr(), array.numel() * array.element_size(), name, written, initialised, workspace, constant, array)
        return Buffer(array.ctypes.data, array.nbytes, name, written, initialised, workspace, constant, array)


@dataclass(frozen=True)
class Scalar:
    """A scalar argument. `ctype`: a C type name such as "int" or "long long", or "tensor_map" with 128 bytes of value."""

    ctype: str
    value: Any


Arg = Buffer | Scalar

TENSOR_MAP_BYTES = 128
CTYPES: dict[str, Any] = {
    "bool": ctypes.c_bool, "char": ctypes.c_int8, "signed char": ctypes.c_int8, "unsigned char": ctypes.c_uint8,
    "short": ctypes.c_int16, "unsigned short": ctypes.c_uint16, "int": ctypes.c_int32, "unsigned": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32, "long long": ctypes.c_int64, "unsigned long long": ctypes.c_uint64,
    "float": ctypes.c_float, "double": ctypes.c_double, "tensor_map": ctypes.c_char * TENSOR_MAP_BYTES,
}  # fmt: skip

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """Grid, block, cluster and dynamic shared memory of a launch. shared_tensors: bytes of each named tensor in shared memory."""

    grid: Dim3
    block: Dim3
    shared_bytes: int
    cluster: Dim3 = (1, 1, 1)
    shared_tensors: tuple[int, ...] = ()

    @property
    def block_threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_blocks(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def clusters(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2] // self.cluster_blocks

    def problem(self, limits: ChipLimits) -> str | None:
        """Why the chip would refuse this launch, or None."""
        problems = [
            (min((*self.grid, *self.block, *self.cluster)) < 1, f"grid {self.grid}, block {self.block} and cluster {self.cluster} must be positive"),
            (self.block_threads > limits.threads_per_block, f"{self.block_threads} threads per block; {limits.name} allows {limits.threads_per_block}"),
            (
                self.shared_bytes > limits.shared_per_block_bytes,
                f"{self.shared_bytes} bytes of shared memory; {limits.name} allows {limits.shared_per_block_bytes}",
            ),
            (any(g % max(c, 1) for g, c in zip(self.grid, self.cluster)), f"grid {self.grid} is not a multiple of cluster {self.cluster}"),
            (self.cluster_blocks > limits.blocks_per_cluster, f"cluster {self.cluster}; {limits.name} allows {limits.blocks_per_cluster} blocks in one"),
            (self.grid[0] > 2**31 - 1 or max(self.grid[1:]) > 65535, f"grid {self.grid} exceeds (2^31 - 1, 65535, 65535)"),
        ]
        return next((text for wrong, text in problems if wrong), None)


IN_ORDER, RANDOM_WARPS, RANDOM_LANES = range(3)
COPY_LATE, COPY_AT_ONCE, COPY_RANDOM = range(3)
SCHEDULES = {"in order": IN_ORDER, "random warps": RANDOM_WARPS, "random lanes": RANDOM_LANES}
SECOND_EARLY, SECOND_LATE = range(2)
OVERLAPS = {"early": SECOND_EARLY, "late": SECOND_LATE}
COPY_TIMINGS = {"late": COPY_LATE, "at once": COPY_AT_ONCE, "random": COPY_RANDOM}


@dataclass(frozen=True)
class LaunchOptions:
    """How a launch runs.

    `cooperative`: all blocks run together; otherwise one after another, and together only if one waits for another.
    `seed`: None runs warps in order with copies as late as possible; a number runs warps and copies at random, the same way each time. `schedule` ("in order",
    "random warps", "random lanes") and `copy_timing` ("late", "at once", "random") override what the seed implies; loads arrive in up to `copy_pieces` pieces.
    `sample_blocks`: run only these (linear indices of clusters, or how many, spread evenly); then unwritten outputs are no findings.
    `registers_per_thread`: at launch, for setmaxnreg; 0: what the text's __launch_bounds__ leave, where it has them.
    `preempt`: count the points at which warps synchronize; at those with these numbers (at most 4) the warp yields until no other of its block can run.
    `overlaps_previous`: the kernel before in the stream may still run until griddep_wait(), so no thread may touch memory before it that is not constant.
    """

    cooperative: bool = False
    seed: int | None = None
    sample_blocks: Sequence[int] | int | None = None
    timeout_s: float = 60.0
    schedule: str | None = None
    copy_timing: str | None = None
    copy_pieces: int = 2  # a phase that completes too early shows only between two pieces, which arrive in either order
    registers_per_thread: int = 0
    stack_kib: int = 64
    max_findings: int = 20
    preempt: Sequence[int] | None = None
    overlaps_previous: bool = False

    @property
    def schedule_code(self) -> int:
        return SCHEDULES[self.schedule or ("in order" if self.seed is None else "random warps")]

    @property
    def copy_timing_code(self) -> int:
        return COPY_TIMINGS[self.copy_timing or ("late" if self.seed is None else "random")]

    def units(self, count: int) -> list[int]:
        """Which of `count` clusters run, by linear index."""
        chosen = self.sample_blocks
        if chosen is None:
            order = list(range(count))
            if self.seed is not None:  # the hardware promises no order
                random.Random(self.seed).shuffle(order)
            return order
        if isinstance(chosen, int):
            return sorted({i * (count - 1) // max(chosen - 1, 1) for i in range(min(chosen, count))})
        return sorted(i for i in set(chosen) if 0 <= i < count)


def merged(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Merge buffers of one memory range: a tensor that is passed twice counts as written if either is."""
    by_range: dict[tuple[int, int], Buffer] = {}
    for b in buffers:
        old = by_range.get((b.address, b.bytes))
        if old:
            b = replace(b, name=old.name, written=old.written or b.written, initialised=old.initialised or b.initialised)
        if b.bytes:
            by_range[(b.address, b.bytes)] = b
    return list(by_range.values())
