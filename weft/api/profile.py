"""The profiler's API: what a profile holds, and where it comes from.

Owns the records and the time of the host. What each kernel did is recorded by `weft.runtime.profile`.
Read first: `PythonProfiler`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ..errors import Unsupported, UserError, shown
from ..runtime.argument_kinds import WrongKind
from ..runtime.profile import LaunchProfile as KernelProfile, recording


class NoProfile(UserError):
    code = "W180"
    what = "there is no profile: no fusion was executed under the profiler"
    fix = "execute inside `with PythonProfiler() as prof:` and read prof.profile afterwards"


@dataclass
class FusionProfile:
    """One execution. The misspelled `percentage_peak_bandwith` is nvFuser's name; the right one reads the same."""

    verbose: bool = False
    fusion_id: int = -1
    segments: int = 0
    cuda_evt_time_ms: float = 0.0
    host_time_ms: float = 0.0
    compile_time_ms: float = 0.0
    kernel_time_ms: float = 0.0
    effective_bandwidth_gbs: float = 0.0
    percentage_peak_bandwith: float = 0.0
    input_bytes: int = 0
    output_bytes: int = 0
    kernel_profiles: list[KernelProfile] = field(default_factory=list)

    @property
    def percentage_peak_bandwidth(self) -> float:
        return self.percentage_peak_bandwith


_last: FusionProfile | None = None


def reset_profiler() -> None:
    """Forget the last profile."""
    global _last
    _last = None


def get_fusion_profile() -> FusionProfile:
    """Return the profile of the last execution under a profiler.

    Errors: NoProfile.
    """
    if _last is None or _last.fusion_id == -1 or _last.segments == 0:
        raise NoProfile()
    return _last


class PythonProfiler:
    """Profile the executions in its `with` block; `profile` is that of the last one.

    Outside of such a block executions cost nothing extra: the block replaces `FusionDefinition.execute` while it lasts.
    """

    def __init__(self, auto_scheduled: bool = True) -> None:
        if not isinstance(auto_scheduled, bool):
            raise WrongKind(function="PythonProfiler", argument="auto_scheduled", value=shown(auto_scheduled), wanted="bool")
        self.auto_scheduled = auto_scheduled
        self._method = "execute" if auto_scheduled else "manual_execute"
        self._plain: Callable[..., Any] | None = None

    @property
    def profile(self) -> FusionProfile:
        """The last execution's profile. Errors: NoProfile."""
        return get_fusion_profile()

    def __enter__(self) -> "PythonProfiler":
        from .definition import FusionDefinition

        reset_profiler()
        plain = self._plain = getattr(FusionDefinition, self._method)

        def profiled(fd: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            return _profiled(plain, fd, inputs, args, kwargs)

        setattr(FusionDefinition, self._method, profiled)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        from .definition import FusionDefinition

        setattr(FusionDefinition, self._method, self._plain)


def profile_all(*, prints: bool, each_kernel: bool = False) -> None:
    """Profile every execution from now on. prints: write a line for each, with `each_kernel` also one for each kernel."""
    global _report
    if prints:
        _report = _lines if each_kernel else lambda profile: _lines(profile)[:1]
    if not recording_all:
        recording_all.append(PythonProfiler())
        recording_all[0].__enter__()


recording_all: list[PythonProfiler] = []
"""The profiler of `profile_all`, once it was called."""
_report: Callable[[FusionProfile], list[str]] | None = None


def _lines(profile: FusionProfile) -> list[str]:
    """Return a profile as lines, the first for the fusion and one for each kernel."""
    first = f"fusion {profile.fusion_id}: {profile.segments} segments, host {profile.host_time_ms:.3f} ms, kernels {profile.kernel_time_ms:.3f} ms, "
    first += f"{profile.effective_bandwidth_gbs:.1f} GB/s, {profile.input_bytes} B in, {profile.output_bytes} B out"
    kernels = [f"  {k.segment_id}: {k.scheduler} {k.name} {k.time_ms:.3f} ms, {k.effective_bandwidth_gbs:.1f} GB/s" for k in profile.kernel_profiles]
    return [first, *kernels]


def _profiled(execute: Callable[..., Any], fd: Any, inputs: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Execute and keep a profile."""
    global _last
    _synchronize()
    start = time.perf_counter()
    with recording():
        outputs = execute(fd, inputs, *args, **kwargs)
    _synchronize()
    host_ms = (time.perf_counter() - start) * 1e3
    executor = fd.__dict__.get("fec") or fd.__dict__.get("ke")
    report = getattr(executor, "launch_report", None)
    if report is None:
        raise Unsupported("PythonProfiler", detail="the executor keeps no records of launches", remedy="measure with torch.profiler")
    _last = _with_totals(FusionProfile(host_time_ms=host_ms, **report()), inputs, outputs)
    if _report is not None:
        print("\n".join(_report(_last)))
    return outputs


def _with_totals(profile: FusionProfile, inputs: Sequence[Any], outputs: Sequence[Any]) -> FusionProfile:
    """Fill in the sums over kernels."""
    profile.input_bytes, profile.output_bytes = _bytes(inputs), _bytes(outputs)
    profile.kernel_time_ms = profile.kernel_time_ms or sum(k.time_ms for k in profile.kernel_profiles)
    profile.compile_time_ms = profile.compile_time_ms or sum(k.compile_time_ms for k in profile.kernel_profiles)
    if profile.kernel_time_ms and not profile.effective_bandwidth_gbs:
        profile.effective_bandwidth_gbs = (profile.input_bytes + profile.output_bytes) / profile.kernel_time_ms / 1e6
    return profile


def _bytes(values: Sequence[Any]) -> int:
    return sum(v.numel() * v.element_size() for v in values if hasattr(v, "element_size"))


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()

__all__ = ["FusionProfile", "KernelProfile", "PythonProfiler", "get_fusion_profile", "reset_profiler"]
