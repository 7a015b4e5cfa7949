"""Records of launches, for the profiler of the API.

While `recording` is on, every call of an executor leaves a `LaunchProfile` of its kernel, timed with CUDA events on a GPU and with the
clock in the emulator; calls then wait for their kernels. Off, it costs one test per call. Read first: `recording`, `recorded`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..analysis.lookups import is_resized
from ..arch import Arch
from ..ir.enums import SchedulerType
from .timing import Timings
from .warm_path import write_run

active: list[bool] = []
"""Not empty while recording is on; a list, so that the warm path can test it without a call."""

_QUEUE_CYCLES = 200_000
"""The GPU is kept busy for about 0.1 ms first, so that the kernel and the events around it are queued before it reaches them."""


@dataclass
class LaunchProfile:
    """One launch. Units in the names; times in milliseconds, bandwidths in GB/s and percent of the chip's."""

    name: str = ""
    segment_id: int = 0
    device: int = -1
    stream: int = 0
    correlation_id: int = 0
    compile_time_ms: float = 0.0
    time_ms: float = 0.0
    effective_bandwidth_gbs: float = 0.0
    percentage_peak_bandwidth: float = 0.0
    grid_str: str = ""
    block_str: str = ""
    cluster_str: str = ""
    shared_mem_str: str = ""
    registers: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    scheduler: str = ""


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Record launches within a `with` block, in all threads."""
    active.append(True)
    try:
        yield
    finally:
        active.pop()


def recorded(caller: Any, prepared: Any, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Run a prepared call and keep the records of its launches and torch ops in `caller.launches`: a segment each."""
    parts = prepared.run.parts
    device = prepared.runtimes[0].engine.device if prepared.runtimes else parts.constants.get("device")
    timed: dict[str, _Timed] = {}
    for step in parts.steps:
        name = step.torch_name if step.call else f"launch{step.number}"
        if name:
            timed[name] = _Timed(parts.constants[name], device)
    outputs = write_run(replace(parts, constants={**parts.constants, **timed}))(*arguments)
    caller.launches = []
    for number, (name, one) in enumerate(timed.items()):
        if name.startswith("torch"):
            where, op = -1 if device is None else device, str(getattr(one.launch, "name", name))
            caller.launches.append(LaunchProfile(name=op, segment_id=number, device=where, time_ms=one.ms, scheduler="expr_eval"))
        else:
            caller.launches.append(_profile(prepared, int(name.removeprefix("launch")), number, one, caller.timings))
    if not timed:
        caller.launches.append(LaunchProfile(device=-1 if device is None else device, scheduler=_without_kernel(outputs, arguments)))
    return outputs


def _without_kernel(outputs: Sequence[torch.Tensor], arguments: Sequence[Any]) -> str:
    """Return nvFuser's scheduler of a call that runs nothing: "no_op" if each output is an input or empty, "expr_eval" if one is a view."""
    given = {id(value) for value in arguments}
    return "no_op" if all(not output.numel() or id(output) in given for output in outputs) else "expr_eval"


def _scheduler_name(runtime: Any) -> str:
    """Return nvFuser's scheduler name for a kernel: slices, pads and cats, which other schedulers compute in weft, are "resize" there."""
    is_elementwise = runtime.scheduler in (SchedulerType.pointwise.name, SchedulerType.transpose.name)
    return SchedulerType.resize.name if is_elementwise and is_resized(runtime.part.fusion) else str(runtime.scheduler)


class _Timed:
    """A launch, or a torch op, between two events."""

    def __init__(self, launch: Callable[..., Any], device: int | None) -> None:
        self.launch, self._device = launch, device
        self.ms, self.stream = 0.0, 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if len(arguments) > 1 and isinstance(arguments[1], int):
            self.stream = arguments[1]  # of a launch: (pointers, stream, scalars)
        if self._device is None:
            start = time.perf_counter()
            result = self.launch(*arguments, **keywords)
            self.ms = (time.perf_counter() - start) * 1e3
            return result
        with torch.cuda.device(self._device):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_QUEUE_CYCLES)
            before.record()
            result = self.launch(*arguments, **keywords)
            after.record()
            after.synchronize()
        self.ms = before.elapsed_time(after)
        return result


def _profile(prepared: Any, number: int, segment: int, timed: _Timed, timings: Timings) -> LaunchProfile:
    runtime, plan = prepared.runtimes[number], prepared.plans[number]
    compile_s = timings.nvrtc_s + timings.load_s
    arch: Arch = runtime.engine.arch
    input_bytes, output_bytes = prepared.input_bytes, prepared.output_bytes
    if len(prepared.plans) > 1:
        moved = [m for m in plan.memory if not m.workspace and not m.zeroed]
        input_bytes, output_bytes = sum(m.bytes for m in moved if not m.written), sum(m.bytes for m in moved if m.written)
    gbs = (input_bytes + output_bytes) / max(timed.ms, 1e-6) / 1e6
    resources = runtime.built.report.resources
    return LaunchProfile(
        name=runtime.program.name, segment_id=segment, device=-1 if runtime.engine.device is None else runtime.engine.device, stream=timed.stream,
        compile_time_ms=compile_s * 1e3, time_ms=timed.ms, effective_bandwidth_gbs=gbs, percentage_peak_bandwidth=gbs * 1e11 / arch.dram_bytes_per_s,
        grid_str=_text(plan.grid), block_str=_text(plan.block), cluster_str=_text(plan.cluster), shared_mem_str=f"[dynamic={plan.shared_bytes}, static=0]",
        registers=resources.registers if resources else 0, input_bytes=input_bytes, output_bytes=output_bytes, scheduler=_scheduler_name(runtime),
    )  # fmt: skip


def _text(sizes: Sequence[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def report(fusion_id: int, launches: Sequence[LaunchProfile]) -> dict[str, Any]:
    """Return the fields of the API's FusionProfile from the records of a call."""
    first = launches[0].percentage_peak_bandwidth if launches else 0.0
    total_ms = sum(launch.time_ms for launch in launches)
    return {
        "fusion_id": fusion_id, "segments": len(launches), "cuda_evt_time_ms": total_ms, "percentage_peak_bandwith": first, "kernel_profiles": list(launches),
    }  # fmt: skip
