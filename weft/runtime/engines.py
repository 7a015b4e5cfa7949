"""What runs a kernel: a GPU, or the emulator on the CPU. Both take the same program and the same launch.

Owns the choice of the engine and the building of a kernel on it, from the program to something that launches. Read first: `Engine`, `choose`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..arch import Arch, arch_by_name, arch_of_device, device_count
from ..device.library import translation_unit
from ..dump import Dump
from ..errors import UserError
from ..lower.program import KernelProgram
from ..options import Options, current
from . import bounds, work_memory
from .launch import ParamSlot, current_stream_reader
from .resources import Resources, disassemble
from .spills import compile_without_spills, mixed_or_apart

if TYPE_CHECKING:
    from .nvrtc import Compiled

Launch = Callable[..., None]
"""launch(pointers, stream) or launch(pointers, stream, ((slot, value), ...)): starts the kernel, on a GPU without waiting for it."""

EMULATOR_TIMEOUT_S = 600.0
"""A kernel that takes longer than this in the emulator is assumed to hang."""


class NoEngine(UserError):
    code = "W791"
    what = "{reason}"
    fix = "{remedy}"


@dataclass(frozen=True)
class Memory:
    """The memory of a pointer of a launch. Units: `bytes` from the first to the last element. Scratch memory is `workspace`, or `zeroed`: zero before and after
    the launch."""

    name: str
    bytes: int
    written: bool
    initialised: bool
    workspace: bool = False
    zeroed: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """One launch, complete except for addresses.

    slots: the kernel's parameters in order (see `weft.runtime.launch`); memory: what each pointer points to.
    shared_tensors: bytes of each tensor in shared memory, in the program's order.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    slots: tuple[ParamSlot, ...]
    memory: tuple[Memory, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    overlaps_previous: bool = False
    shared_tensors: tuple[int, ...] = ()


@dataclass
class BuildReport:
    """How a kernel was built. Units: seconds in the compiler and in loading."""

    compile_s: float = 0.0
    load_s: float = 0.0
    from_disk: bool = False
    resources: Resources | None = None
    extras: dict[str, Any] = field(default_factory=dict)


class BuiltKernel(Protocol):
    """A kernel on its engine. kept: the key of its machine code in the disk cache, for `Engine.build` in another process; "" if it is not there."""

    report: BuildReport
    kept: str

    def launcher(self, plan: LaunchPlan) -> Launch:
        """Return the function that launches with this plan. Errors: limits of the device."""

    def check_residency(self, launch: dict[str, Any], program: KernelProgram) -> None:
        """Check that all blocks of a cooperative kernel run at once. Errors: CooperativeGridTooLarge."""


class Engine(Protocol):
    """A place where kernels run. `key` distinguishes engines with different kernels; `device` is the GPU's index, None on the CPU."""

    key: Hashable
    arch: Arch
    device: int | None

    def build(self, program: KernelProgram, options: Options, *, fmad: bool = True, kept: str = "") -> BuiltKernel:
        """Compile and load a program. kept: `BuiltKernel.kept` of the same program in another process.

        Errors: those of the compiler, with the text and a repro left on disk.
        """


# ---------------------------------------------------------------- GPU
class GpuEngine:
    """A CUDA device."""

    def __init__(self, device: int) -> None:
        self.device: int | None = device
        self.arch = arch_of_device(device)
        self.key: Hashable = ("gpu", device)

    def build(self, program: KernelProgram, options: Options, *, fmad: bool = True, kept: str = "") -> BuiltKernel:
        return _GpuKernel(self, program, options, fmad, kept)


def _reports(program: KernelProgram, options: Options) -> bool:
    return bounds.BLOCK in program.blocks and options.bounds


def machine_code(arch: Arch, program: KernelProgram, options: Options, fmad: bool = True) -> Compiled:
    """Return a program's machine code; needs no GPU. Errors: TooManySpills; those of the compiler."""
    from .nvrtc import compile_or_load

    unit = ("#define WEFT_BOUNDS\n" if _reports(program, options) else "") + translation_unit(program.text, program.blocks, shortened=True)

    def compile_with(limit: int | None) -> Compiled:
        return mixed_or_apart(unit, lambda text: compile_or_load(text, program.name, arch.nvrtc_target, max_registers=limit, fmad=fmad, options=options))

    return compile_without_spills(program, arch, compile_with)


class _GpuKernel:
    def __init__(self, engine: GpuEngine, program: KernelProgram, options: Options, fmad: bool, kept: str = "") -> None:
        from .driver import load_kernel
        from .nvrtc import kept_code

        start = time.perf_counter()
        compiled = kept_code(kept, options) if kept else None
        if compiled is None:
            compiled = machine_code(engine.arch, program, options, fmad)
        self.kept = compiled.kept
        middle = time.perf_counter()
        self._loaded = load_kernel(compiled.cubin, program.name, engine.device, compiled.resources)  # type: ignore[arg-type]
        if _reports(program, options):
            bounds.attach(self._loaded, program)
        end = time.perf_counter()
        self.report = BuildReport(middle - start, end - middle, compiled.from_cache, compiled.resources, {"log": compiled.log})
        Dump.machine_code(program.name, str(compiled.resources), compiled.cubin, compiled.ptx, disassemble)

    def check_residency(self, launch: dict[str, Any], program: KernelProgram) -> None:
        self._loaded.check_residency(launch["grid"], launch["block"], launch["shared_bytes"], None if program.cluster == (1, 1, 1) else program.cluster)

    def launcher(self, plan: LaunchPlan) -> Launch:
        cluster = plan.cluster if plan.cluster != (1, 1, 1) else None
        record = self._loaded.record(
            plan.grid, plan.block, plan.shared_bytes, plan.slots, cluster=cluster, cooperative=plan.cooperative, overlap_previous=plan.overlaps_previous
        )
        return record.launch


# ---------------------------------------------------------------- emulator
class EmulatorEngine:
    """The emulator, imitating a chip. check: "bounds", or "races" for bounds, order and initialisation."""

    device: int | None = None

    def __init__(self, arch: Arch, check: str) -> None:
        self.arch, self.check = arch, check
        self.key: Hashable = ("emulator", arch.name, check)

    def build(self, program: KernelProgram, options: Options, *, fmad: bool = True, kept: str = "") -> BuiltKernel:
        return _EmulatedKernel(self, program)


class _EmulatedKernel:
    kept = ""

    def __init__(self, engine: EmulatorEngine, program: KernelProgram) -> None:
        from ..emulator import ChipLimits, EmulatedKernel

        arch = engine.arch
        limits = ChipLimits(
            name=arch.name, shared_per_block_bytes=arch.shared_per_block_optin_bytes, threads_per_block=arch.max_threads_per_block,
            blocks_per_cluster=arch.max_cluster_blocks, resident_blocks=arch.sm_count * arch.max_blocks_per_sm,
            multiprocessors=arch.sm_count, threads_per_multiprocessor=arch.max_threads_per_sm, shared_per_multiprocessor_bytes=arch.shared_per_sm_bytes,
            registers_per_multiprocessor=arch.registers_per_sm,
        )  # fmt: skip
        start = time.perf_counter()
        self.program = program
        names = [name for name, _ in program.shared_tensors]
        self.kernel = EmulatedKernel.of_text(
            program.text, program.blocks, program.name, check=engine.check, limits=limits, origins=program.origins, shared_tensors=names
        )
        self.report = BuildReport(compile_s=time.perf_counter() - start)

    def check_residency(self, launch: dict[str, Any], program: KernelProgram) -> None:
        """Do nothing: the emulator knows nothing more than was checked before compilation."""

    def launcher(self, plan: LaunchPlan) -> Launch:
        return _EmulatedLaunch(self, plan)


@dataclass(frozen=True)
class EmulatedCall:
    """A launch that is about to happen in the emulator. kernel: an EmulatedKernel; arguments: its Buffers and Scalars."""

    program: KernelProgram
    kernel: Any
    plan: LaunchPlan
    arguments: list[Any]


class IsolatedTensorMap(UserError):
    code = "W748"
    what = "kernel {kernel} reads a tensor map, whose address a child process cannot follow"
    fix = "leave WEFT_ISOLATE off for it"


watchers: list[Callable[[EmulatedCall], None]] = []
"""Called before each launch in the emulator: `weft check` runs the kernel in other orders there. They must not change memory."""


class _EmulatedLaunch:
    """Launches an emulated kernel, with the interface of LaunchRecord. The kernel has ended on return."""

    def __init__(self, built: _EmulatedKernel, plan: LaunchPlan) -> None:
        self._built, self._plan = built, plan

    def __call__(self, pointers: Sequence[int], stream: int, scalars: Sequence[tuple[int, Any]] = ()) -> None:
        from ..emulator import Buffer, Scalar
        from ..emulator.tensor_map import at_address

        plan = self._plan
        if not all((*plan.grid, *plan.block)):
            return
        replaced = dict(scalars)
        args: list[Any] = []
        for number, slot in enumerate(plan.slots):
            if slot[0] == "pointer":
                memory = plan.memory[slot[1]]
                kind = {"workspace": memory.workspace, "left_zero": memory.zeroed}
                args.append(Buffer(pointers[slot[1]], memory.bytes, memory.name, memory.written, memory.initialised, **kind))
            elif slot[0] == "tensor_map":
                args.append(Scalar("tensor_map", at_address(slot[2], pointers[slot[1]])))
            else:
                args.append(Scalar(slot[1], replaced.get(number, slot[2])))  # type: ignore[arg-type]
        is_isolated = current().isolate
        if is_isolated and any(slot[0] == "tensor_map" for slot in plan.slots):
            raise IsolatedTensorMap(kernel=self._built.program.name)
        for watch in watchers:
            watch(EmulatedCall(self._built.program, self._built.kernel, plan, args))
        try:
            self._built.kernel.launch(
                plan.grid, plan.block, plan.shared_bytes, args, cluster=plan.cluster, cooperative=plan.cooperative, timeout_s=EMULATOR_TIMEOUT_S,
                seed=current().seed, isolate=is_isolated, shared_tensors=plan.shared_tensors, overlaps_previous=plan.overlaps_previous,
            )  # fmt: skip
        except BaseException:  # also for Ctrl-C: an interrupted launch leaves scratch memory nonzero, which the next one requires to be zero
            work_memory.forget()
            raise


# ---------------------------------------------------------------- choice
_engines: dict[Hashable, Engine] = {}


def emulator(options: Options) -> EmulatorEngine:
    """Return the emulator of the chip in the settings."""
    check = "races" if "races" in options.check else "bounds"
    key = ("emulator", options.chip.upper(), check)
    if key not in _engines:
        _engines[key] = EmulatorEngine(arch_by_name(options.chip), check)
    return _engines[key]  # type: ignore[return-value]


def gpu(device: int) -> GpuEngine:
    """Return the engine of a CUDA device. Errors: DriverMissing, NoSuchDevice."""
    key = ("gpu", device)
    if key not in _engines:
        _engines[key] = GpuEngine(device)
    return _engines[key]  # type: ignore[return-value]


def _device(asked: Any) -> torch.device:
    try:
        return torch.device("cuda", asked) if isinstance(asked, int) else torch.device(asked)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = f"{asked!r} is not a device: {str(error).splitlines()[0]}" if isinstance(asked, (int, str)) else f"a {type(asked).__name__} is not a device"
        raise NoEngine(reason=reason, remedy='pass a number, a string such as "cuda:0", or a torch.device') from None


def choose(options: Options, *, device: int | None, has_cpu_tensors: bool, asked: Any = None) -> Engine:
    """Return the engine for tensors on GPU `device`, or on the CPU; `asked` is the caller's device, which decides if there are no tensors.

    Errors: NoEngine.
    """
    wanted = None if asked is None else _device(asked)
    if device is not None:
        if wanted is not None and wanted.type == "cuda" and wanted.index not in (None, device):
            raise NoEngine(reason=f"device {asked} was asked for, and the inputs are on cuda:{device}", remedy="move the inputs, or omit device")
        return gpu(device)
    on_cpu = has_cpu_tensors or options.emulate == "on" or (wanted is not None and wanted.type == "cpu")
    if not on_cpu and (wanted is not None or torch.cuda.is_available()) and device_count():
        torch.cuda.init()
        index = wanted.index if wanted is not None and wanted.index is not None else torch.cuda.current_device()
        return gpu(index)
    if options.emulate == "off":
        where = "the inputs are on the CPU" if has_cpu_tensors else "no GPU was found"
        raise NoEngine(reason=f"{where}, and option emulate is off", remedy="move the inputs to a GPU, or set WEFT_EMULATE=auto for the emulator")
    return emulator(options)


def stream_reader(device: int | None) -> Callable[[int], int] | None:
    """Return the function that reads torch's current stream of a device; None on the CPU."""
    return None if device is None else current_stream_reader()


__all__ = [
    "BuildReport", "BuiltKernel", "EmulatedCall", "Engine", "Launch", "LaunchPlan", "Memory", "NoEngine", "choose", "emulator", "gpu", "machine_code",
    "stream_reader",
]  # fmt: skip
