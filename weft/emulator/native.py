"""The compiled runtime, called through ctypes.

Owns the twins of its structures. Read first: `run`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft import forking
from weft.emulator.arguments import CTYPES, OVERLAPS, Arg, BadLaunch, Buffer, ChipLimits, Geometry, LaunchOptions, Scalar, merged
from weft.emulator.build import Built, build_runtime
from weft.emulator.loading import Library
from weft.errors import UserError

SHARED_GRANULE_BYTES = 1024  # a block's arena is rounded up to this
MAX_PARAMETERS = 32768  # more than the 32,764 bytes of kernel parameters can hold


class Config(ctypes.Structure):
    """Twin of Config in runtime/machine.h."""

    _fields_ = [
        *[(name, ctypes.c_uint32) for name in (
            "check_races", "schedule", "copy_timing", "copy_pieces", "max_findings", "stack_kib", "timeout_ms", "named_barriers", "trace", "overlap",
            "counts_sync_points", "preempt_count")],
        ("preempt", ctypes.c_uint32 * 4),
        ("seed", ctypes.c_uint64),
    ]  # fmt: skip


class Shape(ctypes.Structure):
    """Twin of Shape in runtime/machine.h."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("cluster", ctypes.c_uint32 * 3),
        *[(name, ctypes.c_uint32) for name in (
            "shared_bytes", "shared_capacity_bytes", "registers_per_thread", "cooperative", "resident_blocks", "uses_cp_async", "check_dependency")],
    ]  # fmt: skip


class BufferArgument(ctypes.Structure):
    """Twin of BufferArgument in runtime/launch.cpp."""

    _fields_ = [
        ("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("name", ctypes.c_char_p),
        *[(name, ctypes.c_uint32) for name in ("written", "initialised", "workspace", "constant")],
    ]  # fmt: skip


class GridArgument(ctypes.Structure):
    """Twin of GridArgument in runtime/launch.cpp."""

    _fields_ = [
        ("entry", ctypes.c_void_p), ("arguments", ctypes.c_void_p), ("name", ctypes.c_char_p),
        ("buffers", ctypes.POINTER(BufferArgument)), ("order", ctypes.POINTER(ctypes.c_uint32)), ("shared_tensors", ctypes.POINTER(ctypes.c_uint64)),
        *[(name, ctypes.c_uint32) for name in ("buffer_count", "order_count", "shared_tensor_count", "complete")],
        ("shape", Shape),
    ]  # fmt: skip


class Statistics(ctypes.Structure):
    """Twin of Statistics in runtime/launch.cpp."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("switches", "joins", "findings", "sync_points", "order")]


@dataclass(frozen=True)
class Outcome:
    """The runtime's report after a launch, as text."""

    findings: str
    trace: str
    switches: int
    joins: int
    sync_points: int = 0
    order: int = 0


class NativeKernel:
    """A compiled kernel, loaded into this process for as long as this object lives."""

    def __init__(self, built: Built, entry: str, check_races: bool) -> None:
        self.entry, self.check_races = entry, check_races
        load_runtime()
        self._library = Library(built.code, built.name)
        self.function, self.parameter_bytes = _entry_of(self._library.handle, entry)
        symbols = built.code  # the primitives that the kernel calls are in its symbol table
        self.uses_cp_async = b"weft_emu_cp_async\0" in symbols
        self.waits_for_dependency = b"weft_emu_griddep_wait\0" in symbols


def check_count(entry: str, args: Sequence[Arg], parameter_bytes: Sequence[int]) -> None:
    """Errors: BadLaunch unless there is an argument for each parameter."""
    if len(args) != len(parameter_bytes):
        raise BadLaunch(kernel=entry, problem=f"{len(args)} arguments for {len(parameter_bytes)} parameters")


def _entry_of(library: ctypes.CDLL, entry: str) -> tuple[ctypes.c_void_p, tuple[int, ...]]:
    """Return the address of a kernel's function and the sizes of its parameters. Errors: BadLaunch."""
    try:
        function = ctypes.cast(getattr(library, f"{entry}_weft_entry"), ctypes.c_void_p)
        sizes = (ctypes.c_uint32 * MAX_PARAMETERS)()
        count = getattr(library, f"{entry}_weft_parameters")(sizes)
    except AttributeError:
        raise BadLaunch(kernel=entry, problem=f"the text has no WEFT_ENTRY({entry})") from None
    return function, tuple(sizes[:count])


_runtime: ctypes.CDLL | None = None
_runtime_lock = forking.lock()


def load_runtime(built: Built | None = None) -> ctypes.CDLL:
    """Load the runtime, once per process, so that kernels find its functions, and those of the C math library."""
    global _runtime
    with _runtime_lock:
        if _runtime is None:
            try:
                ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
            except OSError:
                pass  # part of the C library here
            built = built or build_runtime()
            library = Library(built.code, built.name, is_global=True).kept()
            library.weft_rt_findings.restype = ctypes.c_char_p
            library.weft_rt_trace.restype = ctypes.c_char_p
            _runtime = library
    return _runtime


_one_machine = forking.lock()
"""The runtime imitates one machine, with signal handlers and a timer, so one kernel runs at a time."""

LONGEST_WAIT_S = 30.0
"""How long a fork waits for a kernel that another thread runs, because the child must not inherit a running machine."""

_is_sound = True  # in this process
_fork = threading.local()


class ForkedMidKernel(UserError):
    code = "W426"
    what = "the emulator cannot run kernel {kernel} here: this process was forked while another thread ran a kernel for more than {seconds} s"
    fix = 'fork before kernels run, or use multiprocessing with "spawn" or "forkserver"'


def _before_fork() -> None:
    _fork.at_rest = _one_machine.acquire(timeout=LONGEST_WAIT_S)


def _after_in_parent() -> None:
    if _fork.at_rest:
        _one_machine.release()


def _after_in_child() -> None:
    global _is_sound
    _is_sound = _is_sound and _fork.at_rest


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


@dataclass(frozen=True)
class GridLaunch:
    """One kernel of a launch, with its arguments and options."""

    kernel: NativeKernel
    geometry: Geometry
    args: Sequence[Arg]
    extra: Sequence[Buffer]
    options: LaunchOptions
    limits: ChipLimits


def run(
    kernel: NativeKernel, geometry: Geometry, args: Sequence[Arg], extra: Sequence[Buffer], options: LaunchOptions, limits: ChipLimits, trace: bool
) -> Outcome:
    """Run a kernel in this process. Errors: BadLaunch."""
    return run_grids([GridLaunch(kernel, geometry, args, extra, options, limits)], trace)


def run_grids(launches: Sequence[GridLaunch], trace: bool = False, overlap: str = "early") -> Outcome:
    """Run a kernel, or two of which the second may start before the first has ended: `overlap` says how early, the first one's options how they run.

    Errors: BadLaunch.
    """
    prepared = [_Prepared(launch) for launch in launches]
    for second in prepared[1:]:
        second.argument.shape.check_dependency = False  # the accesses of the first are known
    table = (GridArgument * len(prepared))(*[p.argument for p in prepared])
    config = _config(launches[0], trace)
    config.overlap = OVERLAPS[overlap]
    statistics = Statistics()
    runtime = load_runtime()
    if not _is_sound:
        raise ForkedMidKernel(kernel=launches[0].kernel.entry, seconds=LONGEST_WAIT_S)
    with _one_machine:
        runtime.weft_rt_launch(table, len(prepared), ctypes.byref(config), ctypes.byref(statistics))
        findings = runtime.weft_rt_findings().decode(errors="replace") if statistics.findings else ""
        timeline = runtime.weft_rt_trace().decode(errors="replace") if trace else ""
    return Outcome(findings, timeline, statistics.switches, statistics.joins, statistics.sync_points, statistics.order)


class _Prepared:
    """A kernel's arguments as the runtime takes them; it owns the memory that `argument` points to."""

    def __init__(self, launch: GridLaunch) -> None:
        kernel, geometry, args, options = launch.kernel, launch.geometry, launch.args, launch.options
        check_count(kernel.entry, args, kernel.parameter_bytes)
        shape = _shape(launch)
        blocks = geometry.clusters * geometry.cluster_blocks
        if options.cooperative and blocks > shape.resident_blocks:
            problem = f"a cooperative launch of {blocks} blocks; {launch.limits.name} runs {shape.resident_blocks} of them at once"
            raise BadLaunch(kernel=kernel.entry, problem=problem)
        values = [_value(kernel, i, arg) for i, arg in enumerate(args)]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*[ctypes.addressof(v) for v in values])
        buffers = merged([*(a for a in args if isinstance(a, Buffer)), *launch.extra])
        table = (BufferArgument * max(len(buffers), 1))(
            *[BufferArgument(b.address, b.bytes, b.name.encode(), b.written, b.initialised, b.workspace, b.constant) for b in buffers]
        )
        units = options.units(geometry.clusters)
        order = (ctypes.c_uint32 * max(len(units), 1))(*units)
        tensors = (ctypes.c_uint64 * max(len(geometry.shared_tensors), 1))(*geometry.shared_tensors)
        self._keep = values, pointers
        self.argument = GridArgument(
            kernel.function, ctypes.addressof(pointers), kernel.entry.encode(), table, order, tensors,
            len(buffers), len(units), len(geometry.shared_tensors), options.sample_blocks is None, shape,
        )  # fmt: skip


def _shape(launch: GridLaunch) -> Shape:
    kernel, geometry, options = launch.kernel, launch.geometry, launch.options
    shape = Shape()
    shape.grid[:], shape.block[:], shape.cluster[:] = geometry.grid, geometry.block, geometry.cluster
    shape.shared_bytes = geometry.shared_bytes
    shape.shared_capacity_bytes = -(-max(geometry.shared_bytes, 1) // SHARED_GRANULE_BYTES) * SHARED_GRANULE_BYTES
    shape.registers_per_thread, shape.cooperative = options.registers_per_thread, options.cooperative
    shape.resident_blocks = launch.limits.resident(geometry, options.registers_per_thread)
    shape.uses_cp_async = kernel.uses_cp_async
    shape.check_dependency = kernel.check_races and (kernel.waits_for_dependency or options.overlaps_previous)
    return shape


def _config(launch: GridLaunch, trace: bool) -> Config:
    kernel, options = launch.kernel, launch.options
    config = Config()
    config.check_races = kernel.check_races
    config.schedule, config.copy_timing, config.copy_pieces = options.schedule_code, options.copy_timing_code, options.copy_pieces
    config.stack_kib, config.max_findings, config.named_barriers = options.stack_kib, options.max_findings, launch.limits.named_barriers
    preempt = options.preempt or ()
    config.counts_sync_points, config.preempt_count = options.preempt is not None, len(preempt)
    config.preempt[: len(preempt)] = list(preempt)
    config.timeout_ms, config.trace, config.seed = int(options.timeout_s * 1000), trace, options.seed or 0
    return config


def _value(kernel: NativeKernel, index: int, arg: Buffer | Scalar) -> Any:
    if isinstance(arg, Buffer):
        given, value = "a pointer", ctypes.c_uint64(arg.address)
    elif arg.ctype == "tensor_map":
        given, value = "a tensor map", CTYPES["tensor_map"].from_buffer_copy(bytes(arg.value))
    elif arg.ctype in CTYPES:
        given, value = f'"{arg.ctype}"', CTYPES[arg.ctype](arg.value)
    else:
        raise BadLaunch(kernel=kernel.entry, problem=f'argument {index} has type "{arg.ctype}", which is not a scalar type')
    if ctypes.sizeof(value) != kernel.parameter_bytes[index]:
        raise BadLaunch(kernel=kernel.entry, problem=f"argument {index} is {given}; the parameter has {kernel.parameter_bytes[index]} bytes")
    return value
