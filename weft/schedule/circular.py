"""Circular buffers: a copy into shared memory that runs ahead of its readers, in a ring of stages.

Owns what a user asks for and what can be refused before loops exist. How the ring runs is in `weft.lower.circular` (threads that also compute) and
`weft.lower.roles` (warps that do nothing else). Read first: `circular_buffer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from ..ir.enums import BLOCK_TYPES, LoadStoreOpType, MemoryType, ParallelType
from ..ir.values import LoadStoreOp, TensorView

MOST_STAGES = 64
"""More than any tile of 1 KiB could use: shared memory holds 227 KiB."""
MOST_ASYNC_WARPS = 4
"""Warps in the 128 threads that are added to a specialized kernel."""
FEWEST_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 24, 256, 8
"""Valid values of setmaxnreg. Source: PTX ISA, setmaxnreg."""


SWIZZLES_BYTES = (0, 32, 64, 128)


class BadSwizzleBytes(UserError):
    code = "W684"
    what = "cannot swizzle {tensor} by {bytes} bytes"
    fix = "swizzle a tensor in shared memory that TMA loads or stores, by {allowed} bytes"


class NotACopy(UserError):
    code = "W680"
    what = "cannot circular buffer {tensor}: {reason}"
    fix = "make it with cache_after, and circular buffer the copy"


class BadStages(UserError):
    code = "W681"
    what = "cannot circular buffer {tensor} with {stages} stages and a prefetch distance of {prefetch}: {reason}"
    fix = "use 2 to {most} stages and a prefetch distance from 1 to stages - 1"


class BadSpecialization(UserError):
    code = "W682"
    what = "cannot load {tensor} in an async warp: {reason}"
    fix = "{remedy}"


class BadRegisters(UserError):
    code = "W683"
    what = "registers {registers} (of the async warps, of the compute warps): {reason}"
    fix = "setmaxnreg takes multiples of 8 from 24 to 256, the first no more than the second"


@dataclass(frozen=True)
class Pipelined:
    """The compute threads also load, some iterations ahead."""


@dataclass(frozen=True)
class WarpSpecialized:
    """Warps added along thread axis `axis` load; the others compute.

    registers: per thread of the async warps and of the compute warps, None to leave them equal.
    group_position: loop axes of the tensor before it that its readers have bound to `axis` are compute groups with separate stages.
    """

    axis: ParallelType
    registers: tuple[int, int] | None = None
    group_position: int | None = None


@dataclass(frozen=True)
class CircularBuffer:
    """A circular buffer of `stages` tiles; loads run `prefetch` iterations ahead. async_warp: the loading warp, with warp specialization; it runs ahead as long
    as there are free stages, that is stages - 1 iterations, whatever `prefetch` is.
    """

    stages: int
    prefetch: int
    kind: Pipelined | WarpSpecialized = Pipelined()
    async_warp: int = 0


def circular_buffer(
    tv: TensorView, stages: int, prefetch: int | None = None, kind: Pipelined | WarpSpecialized | None = None, async_warp: int = 0
) -> TensorView:  # fmt: skip
    """Make the loads of `tv`, a copy into shared memory inlined into a loop, run `prefetch` iterations ahead (default: stages - 1).

    Errors: NotACopy, BadStages, BadSpecialization, BadRegisters.
    """
    kind = kind or Pipelined()
    if type(stages) is not int or prefetch is not None and type(prefetch) is not int:
        raise BadStages(tensor=tv, stages=stages, prefetch=prefetch, reason="both must be whole numbers", most=MOST_STAGES)
    prefetch = stages - 1 if prefetch is None else prefetch
    prefetch = stages + prefetch if prefetch < 0 else prefetch
    _check_copy(tv)
    _check_stages(tv, stages, prefetch)
    if isinstance(kind, WarpSpecialized):
        _check_specialized(tv, kind, async_warp)
    tv.circular = CircularBuffer(stages, prefetch, kind, async_warp)
    return tv


def warp_specialize(
    tv: TensorView, number_of_stages: int, prefetch_distance: int, parallel_type: ParallelType, num_registers: tuple[int, int] | None = None,
    async_warp: int = 0, group_position: int | None = None,
) -> TensorView:  # fmt: skip
    """Load `tv` with warp `async_warp` of those added along `parallel_type`: `circular_buffer` with WarpSpecialized."""
    registers = None if num_registers is None else (int(num_registers[0]), int(num_registers[1]))
    return circular_buffer(tv, number_of_stages, prefetch_distance, WarpSpecialized(parallel_type, registers, group_position), async_warp)


def swizzle_tile(tv: TensorView, swizzle_bytes: int) -> TensorView:
    """Spread the rows of a tile of `tv`, in shared memory, over the banks, as TMA does: 32, 64 or 128 bytes, the size of a row of the tile; 0: no swizzle. Call
    it after the caches are made. Errors: BadSwizzleBytes.
    """
    copies = [e for e in (tv.definition(), *tv.uses()) if isinstance(e, LoadStoreOp) and e.kind is LoadStoreOpType.tma]
    if swizzle_bytes not in SWIZZLES_BYTES or not copies or tv.memory_type is not MemoryType.shared:
        raise BadSwizzleBytes(tensor=tv, bytes=swizzle_bytes, allowed=", ".join(map(str, SWIZZLES_BYTES)))
    for copy in copies:
        copy.attributes["swizzle_bytes"] = swizzle_bytes
    return tv


def load_whole_units(tv: TensorView, phased_elems: int = 0) -> TensorView:
    """Make the bulk copies of `tv` load rows whose size is not a multiple of 16 bytes, as the 16-byte units that contain a row; readers start at the row's
    offset in them. For schedulers: the innermost axis is contiguous in memory, the tensor begins at a unit, and parts of a row are multiples of a unit.
    phased_elems: elements of the vectors of a phased row that is divided into parts: the vectors of a part are shifted, and end less than a unit after it.
    """
    tv.definition().attributes.update(whole_units=True, phased_elems=phased_elems)  # type: ignore[union-attr]
    return tv


def _check_copy(tv: TensorView) -> None:
    definition = tv.definition()
    if not isinstance(definition, LoadStoreOp):
        made = "an input of the fusion" if definition is None else f"computed by {definition.op_name}"
        raise NotACopy(tensor=tv, reason=f"it is {made}, not a copy of another tensor")
    if tv.memory_type is not MemoryType.shared:
        raise NotACopy(tensor=tv, reason=f"it is in {tv.memory_type.value} memory; a ring of stages is in shared memory (set_memory_type)")


def _check_stages(tv: TensorView, stages: int, prefetch: int) -> None:
    reason = ""
    if not 2 <= stages <= MOST_STAGES:
        reason = f"there are {stages} stages"
    elif not 1 <= prefetch <= stages - 1:
        reason = f"with {stages} stages, loads can be 1 to {stages - 1} iterations ahead"
    if reason:
        raise BadStages(tensor=tv, stages=stages, prefetch=prefetch, reason=reason, most=MOST_STAGES)


def _check_specialized(tv: TensorView, kind: WarpSpecialized, async_warp: int) -> None:
    definition: LoadStoreOp = tv.definition()  # type: ignore[assignment]
    source = definition.tensor_inputs[0]
    if kind.axis not in BLOCK_TYPES:
        raise BadSpecialization(tensor=tv, reason=f"{kind.axis.name} is not a thread axis", remedy="specialize along block_x, block_y or block_z")
    if not 0 <= async_warp < MOST_ASYNC_WARPS:
        raise BadSpecialization(tensor=tv, reason=f"there is no async warp {async_warp}", remedy=f"use a warp from 0 to {MOST_ASYNC_WARPS - 1}")
    if definition.kind is not LoadStoreOpType.tma and source.memory_type is not MemoryType.shared:
        raise BadSpecialization(
            tensor=tv, reason=f"it is copied with {definition.kind.name}, which would make the warp wait for each element",
            remedy="make it with cache_after(op_type=LoadStoreOpType.tma)",
        )  # fmt: skip
    position = kind.group_position
    if position is not None and not 0 <= position <= len(tv.get_loop_domain()):
        raise BadSpecialization(tensor=tv, reason=f"it has no loop position {position}", remedy=f"use one from 0 to {len(tv.get_loop_domain())}")
    if kind.registers is not None:
        check_registers(kind.registers)


def check_registers(registers: tuple[int, int]) -> None:
    """Check the registers of async and compute warps. Errors: BadRegisters."""
    for count in registers:
        if not FEWEST_REGISTERS <= count <= MOST_REGISTERS:
            raise BadRegisters(registers=registers, reason=f"{count} is outside of {FEWEST_REGISTERS} to {MOST_REGISTERS}")
        if count % REGISTER_STEP:
            raise BadRegisters(registers=registers, reason=f"{count} is not a multiple of {REGISTER_STEP}")
    if registers[0] > registers[1]:
        raise BadRegisters(registers=registers, reason=f"{registers[0]} is more than {registers[1]}")


def split_registers(per_thread: int, compute_threads: int, async_threads: int, async_wanted: int = 32) -> tuple[int, int]:
    """Return the registers of async and compute threads if all start with `per_thread`, so that the total stays the same.

    Example: split_registers(168, 256, 128) == (40, 232)
    """
    spare = (per_thread - async_wanted) * async_threads
    compute = min(per_thread + spare // compute_threads, MOST_REGISTERS - REGISTER_STEP) // REGISTER_STEP * REGISTER_STEP
    left = per_thread - -(-(compute - per_thread) * compute_threads // async_threads)
    return left // REGISTER_STEP * REGISTER_STEP, compute


__all__ = [
    "BadRegisters", "BadSpecialization", "BadStages", "CircularBuffer", "NotACopy", "Pipelined", "WarpSpecialized", "check_registers", "circular_buffer",
    "split_registers", "swizzle_tile", "warp_specialize",
]  # fmt: skip
