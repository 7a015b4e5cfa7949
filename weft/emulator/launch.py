"""Launching an emulated kernel: arguments in, findings out.

Owns the public class; buffers and options are in `arguments`, findings in `report`, the call of the runtime in `native`,
running in a child process in `isolate`. Read first: `EmulatedKernel.launch`.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from weft import forking
from weft.emulator.arguments import Arg, BadLaunch, Buffer, ChipLimits, Dim3, Geometry, LaunchOptions
from weft.emulator.build import build_kernel
from weft.emulator.isolate import Text, run_in_child
from weft.emulator.native import NativeKernel, check_count, run
from weft.emulator.report import Finding, KernelFault, LaunchReport, parse_findings
from weft.emulator.source_map import SourceMap, unit_for_emulator
from weft.emulator.timeline import write_timeline
from weft.lower.program import LineOrigin
from weft.options import current


_recent: OrderedDict[int, weakref.ref[EmulatedKernel]] = OrderedDict()
_recent_lock = forking.recursive_lock()  # recursive: collecting a kernel, which happens anywhere, takes it


def _note_use(kernel: EmulatedKernel) -> None:
    """Put a kernel first in the order of use, and unload those used longest ago when there are more than `kept_kernels`."""
    number, limit = id(kernel), current().kept_kernels
    with _recent_lock:
        if number not in _recent:
            _recent[number] = weakref.ref(kernel, lambda _: _recent.pop(number, None))
        _recent.move_to_end(number)
        while limit and len(_recent) > limit:
            _, last = _recent.popitem(last=False)
            old = last()
            if old is not None:
                old._loaded = None  # a launch that is going on keeps it until it ends


REGISTERS, REGISTER_STEP, MOST_REGISTERS = 65536, 8, 248
"""Of a multiprocessor; what the compiler gives a thread is a multiple of 8, at most 255. Source: CUDA C++ Programming Guide, technical specifications."""


class EmulatedKernel:
    """A kernel built for the host.

    `source`: the whole translation unit (`weft.device.library.translation_unit`); `entry`: the kernel's name.
    `check`: "bounds" checks bounds and alignment of every access; "races" also order, initialisation, the rules of
    barriers and proxy fences, at about half the speed. `raw_net`: also report accesses to buffers and shared memory that
    go around the primitives (slower; a net for code generation, once per kernel). `limits`: of the chip that is imitated.
    `is_foreign`: the text is not of weft's making; it is compiled and loaded in child processes only, at each launch.
    `source_map`: tells the kernel's own lines from the library's, and what they compute (`of_text` makes it).
    """

    def __init__(
        self, source: str, entry: str, *, check: str = "bounds", raw_net: bool = False, limits: ChipLimits = ChipLimits(), source_map: SourceMap | None = None,
        is_foreign: bool = False,
    ) -> None:  # fmt: skip
        if check not in ("bounds", "races"):
            raise BadLaunch(kernel=entry, problem=f'check is "{check}", not "bounds" or "races"')
        self.source, self.entry, self.check, self.limits = source, entry, check, limits
        self.source_map = source_map or SourceMap.of(source)
        self._max_threads = _launch_bounds(source, entry)
        self._text = Text(source, entry, check == "races", raw_net, is_foreign)
        self.is_foreign = is_foreign
        self._loaded: NativeKernel | None = None
        self.parameter_bytes = None if is_foreign else self._native().parameter_bytes
        """Size of each parameter; None for a foreign text."""

    @staticmethod
    def of_text(
        text: str, blocks: Iterable[str], entry: str, *, check: str = "bounds", limits: ChipLimits = ChipLimits(), origins: Sequence[LineOrigin] = (),
        is_foreign: bool = False, shared_tensors: Sequence[str] = (), raw_net: bool = False,
    ) -> EmulatedKernel:  # fmt: skip
        """Build a kernel from its own text and the blocks of the device library that it uses. Findings then count lines as the text does.

        shared_tensors: names of the pointers into shared memory whose bytes each launch says.
        """
        unit, source_map = unit_for_emulator(text, blocks, origins, check_scalars=check == "races", shared_tensors=shared_tensors)
        return EmulatedKernel(unit, entry, check=check, raw_net=raw_net, limits=limits, source_map=source_map, is_foreign=is_foreign)

    def _native(self) -> NativeKernel:
        """Return the kernel loaded into this process, as one of at most `kept_kernels`."""
        native = self._loaded
        if native is None:
            text = self._text
            built = build_kernel(text.source, check_races=text.check_races, raw_net=text.raw_net)
            native = self._loaded = NativeKernel(built, text.entry, text.check_races)
        _note_use(self)
        return native

    def launch(
        self,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Arg],
        *,
        cluster: Dim3 = (1, 1, 1),
        cooperative: bool = False,
        seed: int | None = None,
        sample_blocks: Sequence[int] | int | None = None,
        timeout_s: float = 60.0,
        raise_findings: bool = True,
        extra_buffers: Sequence[Buffer] = (),
        isolate: bool = False,
        trace: str | Path | None = None,
        schedule: str | None = None,
        copy_timing: str | None = None,
        copy_pieces: int = 2,
        registers_per_thread: int = 0,
        stack_kib: int = 64,
        max_findings: int = 20,
        shared_tensors: Sequence[int] = (),
        preempt: Sequence[int] | None = None,
        overlaps_previous: bool = False,
    ) -> LaunchReport:
        """Run the grid and return what was found; raise KernelFault when there are findings, unless told not to.

        `seed`: None runs warps in order with copies as late as possible; a number runs warps and copies at random, the
        same way each time. `schedule` ("in order", "random warps", "random lanes") and `copy_timing` ("late", "at once",
        "random") override what the seed implies; loads arrive in up to `copy_pieces` pieces.
        `cooperative`: all blocks run together; else one after another, and together only when one waits for another.
        `sample_blocks`: run only these (linear indices of clusters, or how many, spread evenly); then unwritten outputs
        are no findings.
        `extra_buffers`: memory reached through pointers that are no arguments.
        `preempt`: count the points at which warps synchronize; at those with these numbers (at most 4) the warp yields until no other of its block can run.
        `overlaps_previous`: the kernel before in the stream may still run until griddep_wait(), so no thread may touch memory before it that is not constant.
        `shared_tensors`: bytes of the tensors in shared memory that `of_text` was given the names of.
        `registers_per_thread`: at launch, for setmaxnreg; 0: what the text's __launch_bounds__ leave, where it has them.
        `isolate`: run in a child process, whose end by a signal is a finding and not this process's end; pointers in
        scalars are not translated then. `trace`: write a timeline of the roles there, as JSON for trace viewers, or as a picture (.svg).
        """
        geometry = Geometry(_dim3(grid), _dim3(block), shared_bytes, _dim3(cluster), tuple(shared_tensors))
        if problem := geometry.problem(self.limits):
            raise BadLaunch(kernel=self.entry, problem=problem)
        if self._max_threads and geometry.block_threads > self._max_threads:
            raise BadLaunch(kernel=self.entry, problem=f"{geometry.block_threads} threads per block; its __launch_bounds__ are {self._max_threads}")
        if self.parameter_bytes is not None:
            check_count(self.entry, args, self.parameter_bytes)
        registers_per_thread = registers_per_thread or self.registers_at_launch()
        options = LaunchOptions(
            cooperative, seed, sample_blocks, timeout_s, schedule, copy_timing, copy_pieces, registers_per_thread, stack_kib, max_findings, preempt,
            overlaps_previous,
        )
        if isolate or self.is_foreign:
            outcome = run_in_child(self._text, geometry, args, extra_buffers, options, self.limits, trace is not None)
        else:
            outcome = run(self._native(), geometry, args, extra_buffers, options, self.limits, trace is not None)
        if trace is not None:
            write_timeline(outcome.trace, Path(trace))
        findings = parse_findings(outcome.findings, self.source_map) if outcome.findings else ()
        if not findings:  # a kernel that was stopped leaves more than it should
            findings = tuple(self._not_zero(b) for b in args if isinstance(b, Buffer) and b.left_zero and sample_blocks is None and _has_bits(b))
        report = LaunchReport(self.entry, findings, outcome.switches, outcome.joins, seed, outcome.sync_points, outcome.order)
        if report.findings and raise_findings:
            raise KernelFault(report)
        return report

    def registers_at_launch(self) -> int:
        """Return what the text's __launch_bounds__ leave a thread, for a kernel that moves registers; else 0."""
        if not self._max_threads or "weft::setmaxnreg" not in self.source:
            return 0
        return min(REGISTERS // self._max_threads // REGISTER_STEP * REGISTER_STEP, MOST_REGISTERS)

    def _not_zero(self, buffer: Buffer) -> Finding:
        """The finding that memory which the next launch needs zeroed is not. It names the lines that mention it."""
        above = self.source_map.lines_above
        own = enumerate(self.source_map.unit_lines[above:], above + 1)
        lines = [n for n, text in own if re.search(rf"\b{re.escape(buffer.name)}\b(?=.*\);)", text)]
        see = tuple(place for place in map(self.source_map.place, lines) if place is not None)
        message = f"'{buffer.name}' is not zero after the launch; the next launch takes it to be"
        return Finding("work-memory-not-zero", message, lines[0] if lines else 0, hint="set it back: the last block that arrives does", see=see)


def _has_bits(buffer: Buffer) -> bool:
    return any(ctypes.string_at(buffer.address, buffer.bytes))


def _launch_bounds(source: str, entry: str) -> int | None:
    """Most threads per block that the text promises, where it does so with a number."""
    promises = (int(found[1]) for found in _PROMISE.finditer(source) if entry in _CALLED.findall(found[2]))
    return next(promises, None)


_PROMISE, _CALLED = re.compile(r"__launch_bounds__\(\s*(\d+)[^)]*\)([^;{}]*)"), re.compile(r"\b(\w+)\s*\(")


def _dim3(extents: Sequence[int]) -> Dim3:
    x, y, z = extents
    return x, y, z
