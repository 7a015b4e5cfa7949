"""Machine code of kernels that spill: it is made again with iterations kept apart, and with more registers per thread.

Owns the limits of registers that a kernel is compiled with. Needs no GPU. Read first: `compile_without_spills`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..arch import MOST_SPILL_BYTES, Arch, ceil_div, round_up
from ..lower.program import KernelProgram, Need
from ..schedulers.cost.parts import missing_registers
from ..schedulers.limits import REGISTER_STEP, STEP_BYTES
from .resources import TooManySpills

if TYPE_CHECKING:
    from .nvrtc import Compiled


APART = "weft::is_running()"
"""What the text of a kernel has around the iterations of long loops."""


def compile_without_spills(program: KernelProgram, arch: Arch, compile_with: Callable[[int | None], Compiled]) -> Compiled:
    """Return the machine code of a kernel that `compile_with` makes, given a limit of registers per thread.

    Errors: TooManySpills; those of `compile_with`.
    """
    compiled = fewest_spills(program, arch, compile_with)
    spilled, most_spilled = compiled.resources.spill_store_bytes or 0, most_spill_bytes(program)
    if spilled <= most_spilled:
        return compiled
    error = TooManySpills(kernel=program.name, bytes=spilled, registers=compiled.resources.registers, limit=most_spilled)
    error.is_usable, error.spilled_bytes = spilled <= safe_spill_bytes(program), spilled
    raise error


def fewest_spills(program: KernelProgram, arch: Arch, compile_with: Callable[[int | None], Compiled]) -> Compiled:
    """The same, however much it spills. The first limit is the program's own."""
    limit: int | None = program.max_registers
    compiled = compile_with(limit)
    while limit := more_registers(program, arch, limit, compiled.resources.spill_store_bytes or 0):
        compiled = compile_with(limit)
    return compiled


def mixed_or_apart(unit: str, compile_unit: Callable[[str], Compiled]) -> Compiled:
    """Return the machine code of a translation unit; if it spills, with iterations of long loops kept apart (`weft.lower.apart`), where that spills less."""
    compiled = compile_unit(unit)
    spilled = compiled.resources.spill_store_bytes or 0
    if spilled <= STEP_BYTES or APART not in unit:
        return compiled
    other = compile_unit(f"#define WEFT_APART\n{unit}")
    return other if (other.resources.spill_store_bytes or 0) < spilled else compiled


def safe_spill_bytes(program: KernelProgram) -> int:
    """Return how much a kernel may spill and still be right, in bytes per thread."""
    return 0 if program.cooperative and Need.bulk_copies in program.needs else MOST_SPILL_BYTES


def most_spill_bytes(program: KernelProgram) -> int:
    """Return how much a kernel may spill before others are tried, in bytes per thread."""
    safe = safe_spill_bytes(program)
    return safe if program.most_spill_bytes is None else min(safe, program.most_spill_bytes)


def more_registers(program: KernelProgram, arch: Arch, limit: int | None, spilled: int) -> int | None:
    """Return the limit to try next for a kernel that spills so many bytes per thread with `limit` registers; None where it stays as it is.

    The next limit has the registers that were missing. `program.fewest_warps` warps stay resident; only a kernel that may not spill so much gets as many
    registers as its block can have. A kernel whose blocks wait for each other gets none: fewer blocks would run at once.
    """
    if limit is None or program.cooperative:
        return None
    extents: list[int] = [int(n.value) if n.is_const else arch.max_threads_per_block for n in program.block]  # type: ignore[arg-type]
    threads = min(math.prod(extents), program.most_threads or arch.max_threads_per_block)
    most, roomy = arch.registers_per_thread(threads), 0
    if program.fewest_warps is not None:
        blocks = ceil_div(program.fewest_warps * arch.warp_threads, threads)
        roomy = arch.registers_per_thread(blocks * threads)
    if spilled > STEP_BYTES and limit < roomy:
        return min(roomy, limit + round_up(math.ceil(missing_registers(spilled)), REGISTER_STEP))
    return most if spilled > most_spill_bytes(program) and limit < most else None
