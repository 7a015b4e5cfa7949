"""Launching an emulated kernel: arguments in, findings out.

Read first: `EmulatedKernel.launch`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.emulator.build import build_kernel, build_runtime
from weft.errors import UserError

SHARED_ALLOCATION_BYTES = 1024          # the arena of a block is rounded up to this


class KernelFault(UserError):
    """A kernel did something wrong; `.report` has the findings."""

    code = "W420"
    what = "kernel {kernel}: {count} finding(s) in the emulator\n{findings}"
    fix = "see the hint of each finding; line numbers refer to the translation unit"

    def __init__(self, report: LaunchReport) -> None:
        self.report = report
        super().__init__(kernel=report.kernel, count=len(report.findings), findings="\n".join(f.text() for f in report.findings))


class BadLaunch(UserError):
    code = "W421"
    what = "cannot launch {kernel}: {problem}"
    fix = "correct the launch parameters"


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
    registers_per_thread: int = 255


@dataclass(frozen=True)
class Buffer:
    """Memory a kernel may touch; its argument value is the address.

    `written`: the kernel may write it. `initialised`: it holds data before the launch; else reads before writes are
    findings, and so are bytes left unwritten at the end, unless it is a `workspace`. `keep` holds a reference to
    whatever owns the memory.
    """

    address: int
    bytes: int
    name: str
    written: bool = False
    initialised: bool = True
    workspace: bool = False
    keep: Any = None

    @staticmethod
    def of(array: Any, name: str, *, written: bool = False, initialised: bool = True, workspace: bool = False) -> Buffer:
        """A numpy array or a contiguous CPU torch tensor."""
        if hasattr(array, "data_ptr"):
            return Buffer(array.data_ptr(), array.numel() * array.element_size(), name, written, initialised, workspace, array)
        return Buffer(array.ctypes.data, array.nbytes, name, written, initialised, workspace, array)


@dataclass(frozen=True)
class Scalar:
    """A scalar argument. `ctype`: a C type name such as "int" or "long long", or "tensor_map" with 128 bytes of value."""

    ctype: str
    value: Any


Arg = Buffer | Scalar

CTYPES: dict[str, Any] = {
    "bool": ctypes.c_bool, "char": ctypes.c_int8, "signed char": ctypes.c_int8, "unsigned char": ctypes.c_uint8,
    "short": ctypes.c_int16, "unsigned short": ctypes.c_uint16, "int": ctypes.c_int32, "unsigned": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32, "long long": ctypes.c_int64, "unsigned long long": ctypes.c_uint64,
    "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing wrong. `kind` is a fixed slug; `line` is in the translation unit, 0 when there is none."""

    kind: str
    message: str
    line: int
    line_text: str
    other_line: int
    other_line_text: str
    block: tuple[int, ...]
    count: int
    hint: str

    def text(self) -> str:
        lines = [f"  {self.kind}: {self.message}" + (f" (block {self.block})" if self.block else "") + (f" x {self.count}" if self.count > 1 else "")]
        if self.line:
            lines.append(f"    line {self.line}: {self.line_text}")
        if self.other_line and self.other_line != self.line:
            lines.append(f"    line {self.other_line}: {self.other_line_text}")
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LaunchReport:
    """What a launch found, and how much it did."""

    kernel: str
    findings: tuple[Finding, ...]
    switches: int = 0
    joins: int = 0

    def kinds(self) -> set[str]:
        return {f.kind for f in self.findings}


class _Config(ctypes.Structure):
    """Twin of Config in runtime/machine.h."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("cluster", ctypes.c_uint32 * 3),
        *[(name, ctypes.c_uint32) for name in (
            "shared_bytes", "shared_capacity_bytes", "check_races", "schedule", "copy_timing", "copy_pieces",
            "registers_per_thread", "cooperative", "resident_blocks", "max_findings", "uses_cp_async", "stack_kib",
            "timeout_ms", "named_barriers", "trace", "check_dependency")],
        ("seed", ctypes.c_uint64),
    ]  # fmt: skip


class _BufferArgument(ctypes.Structure):
    """Twin of BufferArgument in runtime/launch.cpp."""

    _fields_ = [
        ("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("name", ctypes.c_char_p),
        *[(name, ctypes.c_uint32) for name in ("written", "initialised", "workspace", "unused")],
    ]  # fmt: skip


class _Statistics(ctypes.Structure):
    _fields_ = [("switches", ctypes.c_uint64), ("joins", ctypes.c_uint64), ("findings", ctypes.c_uint64)]


IN_ORDER, RANDOM_WARPS, RANDOM_LANES = range(3)
COPY_LATE, COPY_AT_ONCE, COPY_RANDOM = range(3)
SCHEDULES = {"in order": IN_ORDER, "random warps": RANDOM_WARPS, "random lanes": RANDOM_LANES}
COPY_TIMINGS = {"late": COPY_LATE, "at once": COPY_AT_ONCE, "random": COPY_RANDOM}

_launch_lock = threading.Lock()          # the runtime has one machine


@functools.lru_cache(maxsize=None)
def _load_runtime(path: Path) -> ctypes.CDLL:
    ctypes.CDLL("libm.so.6" if Path("/lib").exists() else None, mode=ctypes.RTLD_GLOBAL)     # kernels call expf and its like
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.weft_rt_findings.restype = ctypes.c_char_p
    return library


class EmulatedKernel:
    """A kernel built for the host.

    `source`: the whole translation unit (`weft.device.library.translation_unit`); `entry`: the kernel's name.
    `check`: "bounds" checks bounds and alignment of every access; "races" also order, initialisation, barriers' rules
    and proxy fences, at about a third of the speed.
    """

    def __init__(self, source: str, entry: str, *, check: str = "bounds", limits: ChipLimits = ChipLimits()) -> None:
        if check not in ("bounds", "races"):
            raise BadLaunch(kernel=entry, problem=f'check is "{check}", not "bounds" or "races"')
        self.source, self.entry, self.check, self.limits = source, entry, check, limits
        self._lines = source.split("\n")
        self._runtime = _load_runtime(build_runtime())
        self.path = build_kernel(source, check_races=check == "races")
        self._library = ctypes.CDLL(str(self.path))
        self._calls = self.path.read_bytes()             # the names of the primitives that it calls are in its symbol table
        try:
            self._entry = ctypes.cast(getattr(self._library, f"{entry}_weft_entry"), ctypes.c_void_p)
            sizes = (ctypes.c_uint32 * 256)()
            count = getattr(self._library, f"{entry}_weft_parameters")(sizes)
        except AttributeError:
            raise BadLaunch(kernel=entry, problem=f"the text has no WEFT_ENTRY({entry})") from None
        self.parameter_bytes = tuple(sizes[:count])

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        args: Sequence[Arg],
        *,
        cluster: tuple[int, int, int] = (1, 1, 1),
        cooperative: bool = False,
        seed: int | None = None,
        sample_blocks: Sequence[int] | int | None = None,
        timeout_s: float = 60.0,
        raise_findings: bool = True,
        extra_buffers: Sequence[Buffer] = (),
        schedule: str | None = None,
        copy_timing: str | None = None,
        copy_pieces: int | None = None,
        registers_per_thread: int = 0,
        stack_kib: int = 64,
        max_findings: int = 20,
    ) -> LaunchReport:
        """Run the grid and return what was found; raise KernelFault when there are findings, unless told not to.

        `seed`: None runs warps in order with copies as late as possible; a number runs warps and copies at random, the
        same way each time. `sample_blocks`: run only these blocks (linear indices, or how many, spread evenly); then
        unwritten outputs are no findings. `cooperative`: all blocks run together. `schedule` ("in order", "random
        warps", "random lanes") and `copy_timing` ("late", "at once", "random") override what the seed implies.
        `registers_per_thread`: at launch, for setmaxnreg; 0 leaves registers out. `extra_buffers`: memory reached
        through pointers that are no arguments.
        """
        self._check_launch(grid, block, shared_bytes, cluster, args)
        config = self._config(grid, block, shared_bytes, cluster, seed, schedule, copy_timing, copy_pieces)
        config.cooperative = cooperative
        config.registers_per_thread = registers_per_thread
        config.stack_kib = stack_kib
        config.timeout_ms = int(timeout_s * 1000)
        config.max_findings = max_findings
        order = self._unit_order(grid, cluster, sample_blocks)
        return self._run(config, order, args, extra_buffers, sample_blocks is None, raise_findings)

    def _config(self, grid, block, shared_bytes, cluster, seed, schedule, copy_timing, copy_pieces) -> _Config:
        config = _Config()
        config.grid[:], config.block[:], config.cluster[:] = grid, block, cluster
        config.shared_bytes = shared_bytes
        config.shared_capacity_bytes = -(-max(shared_bytes, 1) // SHARED_ALLOCATION_BYTES) * SHARED_ALLOCATION_BYTES
        config.check_races = self.check == "races"
        config.schedule = SCHEDULES[schedule] if schedule else (IN_ORDER if seed is None else RANDOM_WARPS)
        config.copy_timing = COPY_TIMINGS[copy_timing] if copy_timing else (COPY_LATE if seed is None else COPY_RANDOM)
        config.copy_pieces = copy_pieces or 2            # a phase that ends early shows only between two pieces
        config.resident_blocks = self.limits.resident_blocks
        config.named_barriers = self.limits.named_barriers
        config.uses_cp_async = b"weft_emu_cp_async\0" in self._calls
        config.check_dependency = self.check == "races" and b"weft_emu_griddep_wait\0" in self._calls
        config.seed = seed or 0
        return config

    def _check_launch(self, grid, block, shared_bytes, cluster, args) -> None:
        limits = self.limits
        threads = block[0] * block[1] * block[2]
        problems = [
            (min((*grid, *block, *cluster)) < 1, f"grid {grid}, block {block} and cluster {cluster} must be positive"),
            (threads > limits.threads_per_block, f"{threads} threads per block; {limits.name} allows {limits.threads_per_block}"),
            (shared_bytes > limits.shared_per_block_bytes, f"{shared_bytes} bytes of shared memory; {limits.name} allows {limits.shared_per_block_bytes}"),
            (any(g % c for g, c in zip(grid, cluster)), f"grid {grid} is not a multiple of cluster {cluster}"),
            (cluster[0] * cluster[1] * cluster[2] > limits.blocks_per_cluster, f"cluster {cluster}: {limits.name} allows {limits.blocks_per_cluster} blocks"),
            (grid[0] > 2**31 - 1 or max(grid[1:]) > 65535, f"grid {grid} exceeds (2^31 - 1, 65535, 65535)"),
            (len(args) != len(self.parameter_bytes), f"{len(args)} arguments for {len(self.parameter_bytes)} parameters"),
        ]
        for wrong, problem in problems:
            if wrong:
                raise BadLaunch(kernel=self.entry, problem=problem)

    def _unit_order(self, grid, cluster, sample_blocks) -> list[int]:
        units = grid[0] * grid[1] * grid[2] // (cluster[0] * cluster[1] * cluster[2])
        if sample_blocks is None:
            return list(range(units))
        if isinstance(sample_blocks, int):
            count = min(sample_blocks, units)
            return sorted({i * (units - 1) // max(count - 1, 1) for i in range(count)})
        return [b for b in sample_blocks if b < units]

    def _run(self, config, order, args, extra_buffers, complete, raise_findings) -> LaunchReport:
        values = [self._value(i, arg) for i, arg in enumerate(args)]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*[ctypes.addressof(v) for v in values])
        buffers = _merge_buffers([a for a in args if isinstance(a, Buffer)] + list(extra_buffers))
        table = (_BufferArgument * max(len(buffers), 1))(
            *[_BufferArgument(b.address, b.bytes, b.name.encode(), b.written, b.initialised, b.workspace, 0) for b in buffers]
        )
        statistics = _Statistics()
        order_array = (ctypes.c_uint32 * max(len(order), 1))(*order)
        with _launch_lock:
            self._runtime.weft_rt_launch(
                self._entry, pointers, ctypes.byref(config), table, len(buffers), order_array, len(order), int(complete), ctypes.byref(statistics)
            )
            findings = self._findings(self._runtime.weft_rt_findings().decode(errors="replace")) if statistics.findings else ()
        report = LaunchReport(self.entry, findings, statistics.switches, statistics.joins)
        if findings and raise_findings:
            raise KernelFault(report)
        return report

    def _value(self, index: int, arg: Arg) -> Any:
        if isinstance(arg, Buffer):
            value: Any = ctypes.c_uint64(arg.address)
        elif arg.ctype == "tensor_map":
            value = (ctypes.c_char * 128).from_buffer_copy(bytes(arg.value))
        elif arg.ctype in CTYPES:
            value = CTYPES[arg.ctype](arg.value)
        else:
            raise BadLaunch(kernel=self.entry, problem=f'argument {index} has type "{arg.ctype}", which is no scalar type')
        if ctypes.sizeof(value) != self.parameter_bytes[index]:
            given = arg.ctype if isinstance(arg, Scalar) else "a pointer"
            raise BadLaunch(kernel=self.entry, problem=f"argument {index} is {given}; the parameter has {self.parameter_bytes[index]} bytes")
        return value

    def _line_text(self, line: int) -> str:
        return self._lines[line - 1].strip() if 0 < line <= len(self._lines) else ""

    def _findings(self, text: str) -> tuple[Finding, ...]:
        findings = []
        for record in text.split("\x1e"):
            if not record:
                continue
            kind, line, other, count, block, message, hint = record.split("\x1f")
            where = tuple(int(n) for n in block.split(",")) if block else ()
            findings.append(Finding(kind, message, int(line), self._line_text(int(line)), int(other), self._line_text(int(other)), where, int(count), hint))
        return tuple(findings)


def _merge_buffers(buffers: list[Buffer]) -> list[Buffer]:
    """One registration per memory range: a tensor passed twice is written if either is."""
    merged: dict[tuple[int, int], Buffer] = {}
    for b in buffers:
        old = merged.get((b.address, b.bytes))
        if old:
            b = replace(b, name=old.name, written=old.written or b.written, initialised=old.initialised or b.initialised)
        if b.bytes:
            merged[(b.address, b.bytes)] = b
    return list(merged.values())
