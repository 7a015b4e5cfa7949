"""What a launch may be: threads, blocks and shared memory of the chip, sizes and addresses that vectors fit.

Owns these checks and their messages; they come before anything is compiled. Read first: `check_limits`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .. import arch as chips
from ..errors import InternalError, UserError
from ..expr import Number, Sym, evaluate, evaluate_int
from ..ir.values import TensorView, Val, no_reductions
from ..lower.program import KernelProgram, Need
from .binding import BoundTensor
from .resources import CooperativeGridTooLarge


class TooManyThreads(UserError):
    code = "W792"
    what = "kernel {kernel} wants {threads} threads per block ({axes}); {chip} allows {limit}"
    fix = "split the axis that is bound to a thread index, or bind it to a block index"


class TooMuchShared(UserError):
    code = "W793"
    what = "kernel {kernel} wants {bytes} bytes of shared memory per block ({text}); {chip} allows {limit}"
    fix = "use smaller tiles, or keep fewer tensors in shared memory"


class GridTooLarge(UserError):
    code = "W794"
    what = "kernel {kernel} wants {blocks} blocks along {axis} ({text}); the limit is {limit}"
    fix = "let each block do more, or bind the axis to blockIdx.x"


class NotDivisible(UserError):
    code = "W795"
    what = "kernel {kernel}: {what_} {sym} is {value}, which {divisor} does not divide"
    fix = "choose a vector width that divides the size, or another kind of copy, or pad the tensor"


class Misaligned(UserError):
    code = "W796"
    what = "kernel {kernel} reads {tensor} in vectors of {needed} bytes, and {problem}"
    fix = "choose a narrower vector, or pass a tensor whose first element and strides are aligned"


class WrongAssumption(InternalError):
    code = "W922"
    what = "kernel {kernel} was made for {least} <= {most}, which does not hold"
    fix = "report it with the definition and the sizes of the inputs"


class ChipTooOld(UserError):
    code = "W799"
    what = "kernel {kernel} uses bulk copies (TMA), which need compute capability 9.0; {chip} has {major}.{minor}"
    fix = "use LoadStoreOpType.cp_async or plain loads on this chip"


class BlockTooSmall(UserError):
    code = "W788"
    what = "kernel {kernel} was compiled for {limit} threads along {axis}; these sizes need {wanted} = {value}"
    fix = "compile it for more threads (bdim{letter}, compute_bdim{letter}), or split the axis by a constant"


def check_residency(program: KernelProgram, plan: dict[str, Any], arch: chips.Arch) -> None:
    """Raise an error for a kernel whose blocks wait for each other and are not all resident at once, as far as known before compilation. For clusters the real
    limit may be lower; the driver finds that. Errors: CooperativeGridTooLarge.
    """
    if program.cooperative:
        threads, shared, blocks = math.prod(plan["block"]), plan["shared_bytes"], math.prod(plan["grid"])
        registers = program.max_registers or FEWEST_REGISTERS
        per_sm = arch.blocks_per_sm(threads, registers, shared)
        if blocks > per_sm * arch.sm_count:
            why = f"{per_sm} of {threads} threads, {registers} registers and {shared} bytes of shared memory on each of {arch.sm_count} multiprocessors"
            raise CooperativeGridTooLarge(kernel=program.name, blocks=blocks, chip=arch.name, resident=per_sm * arch.sm_count, why=why)


FEWEST_REGISTERS = 16
"""The least registers that a kernel without a limit uses."""


def check_limits(program: KernelProgram, env: dict[Sym, Number], plan: dict[str, Any], arch: chips.Arch) -> None:
    """Raise an error if a launch exceeds the limits of the chip, or vectors do not fit the sizes; before compilation."""
    grid, block, shared = plan["grid"], plan["block"], plan["shared_bytes"]
    threads = block[0] * block[1] * block[2]
    if Need.bulk_copies in program.needs and not arch.has_tma:
        major, minor = arch.compute_capability
        raise ChipTooOld(kernel=program.name, chip=arch.name, major=major, minor=minor)
    if threads > arch.max_threads_per_block or block[2] > chips.MAX_BLOCK_Z:
        axes = ", ".join(f"threadIdx.{letter}: {sym}{'' if sym.is_const else f' = {n}'}" for letter, sym, n in zip("xyz", program.block, block) if n != 1)
        text = f"{arch.max_threads_per_block}, and {chips.MAX_BLOCK_Z} along threadIdx.z"
        raise TooManyThreads(kernel=program.name, threads=threads, axes=axes, chip=arch.name, limit=text)
    if shared > arch.shared_per_block_optin_bytes:
        text = str(program.shared_bytes) if not program.shared_bytes.is_const else "constant"
        raise TooMuchShared(kernel=program.name, bytes=shared, text=text, chip=arch.name, limit=arch.shared_per_block_optin_bytes)
    for letter, sym, blocks, limit in zip("xyz", program.grid, grid, chips.MAX_GRID):
        if blocks > limit:
            raise GridTooLarge(kernel=program.name, axis=f"blockIdx.{letter}", blocks=blocks, text=sym, limit=limit)
    for check in program.checks:
        value = evaluate(check.extent, env)
        if value % check.divisor:  # type: ignore[operator]
            raise NotDivisible(kernel=program.name, what_=check.what, sym=check.extent, value=value, divisor=check.divisor)
    for index, wanted, limit in program.block_limits:
        value = evaluate(wanted, env)
        if value > limit:  # type: ignore[operator]
            raise BlockTooSmall(kernel=program.name, limit=limit, axis=index, wanted=wanted, value=value, letter=index[-1])
    for least, most in program.assumptions:
        if evaluate(least, env) > evaluate(most, env):  # type: ignore[operator]
            raise WrongAssumption(kernel=program.name, least=least, most=most)


def launch_sizes(program: KernelProgram, env: dict[Sym, Number]) -> dict[str, Any]:
    """Return grid, block, shared_bytes and the bytes of each tensor in shared memory as numbers."""
    memo: dict[Sym, Number] = {}
    grid, block = (tuple(evaluate_int(s, env, memo) for s in sizes) for sizes in (program.grid, program.block))
    shared_tensors = tuple(evaluate_int(bytes_, env, memo) for _, bytes_ in program.shared_tensors)
    return {"grid": grid, "block": block, "shared_bytes": evaluate_int(program.shared_bytes, env, memo), "shared_tensors": shared_tensors}


def check_alignment(
    program: KernelProgram, inputs: Sequence[Val], places: Sequence[int | None], shown: Sequence[Val], tensors: Mapping[int, BoundTensor]
) -> None:
    """Raise an error for inputs whose address or strides do not fit the vectors of a kernel.

    inputs: the kernel's; places: which of the definition's inputs each is, None for a buffer allocated by weft. shown: the inputs with the names of the
    caller's definition.
    """
    for value, index in zip(inputs, places):
        tensor = None if index is None else tensors.get(index)
        if tensor is None or not isinstance(value, TensorView):
            continue
        needed = program.alignment_bytes.get(f"T{value.name}", 1)
        of_start = max(needed, program.start_bytes.get(f"T{value.name}", 1))
        if tensor.alignment_bytes < of_start:
            problem = f"its address is a multiple of {tensor.alignment_bytes} only"
            raise Misaligned(kernel=program.name, tensor=shown[index], needed=of_start, problem=problem)  # type: ignore[index]
        domain = value.domain()
        counts = domain.user.counts if domain.user is not None else (1,) * len(domain.logical)
        dims = dict(zip(no_reductions(domain.logical), (dim for dim, count in enumerate(counts) for _ in range(count))))
        bits, is_packed = value.dtype().bits, value.dtype().is_packed
        for axis, contiguous in zip(domain.maybe_allocation, domain.contiguity):
            dim = dims.get(axis)
            if contiguous is not False or dim is None or tensor.sizes[dim] <= 1 or 0 in tensor.sizes:
                continue
            if is_packed and tensor.strides[dim] == 1:  # the elements of a byte follow one another, whatever was declared
                continue
            if tensor.strides[dim] * bits % (8 * needed):
                problem = f"the stride of dimension {dim} is {tensor.strides[dim]} elements"
                raise Misaligned(kernel=program.name, tensor=shown[index], needed=needed, problem=problem)  # type: ignore[index]
