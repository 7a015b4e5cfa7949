"""Timers that a benchmark harness calls before and after each round; their difference is the time that counts.

Owns what counts: kernels only (`CuptiTimer`), or the host's time of an execution (`FusionProfileTimer`).
"""

from __future__ import annotations

import time
from typing import Any

from .profile import get_fusion_profile


class Timer:
    """A clock in seconds that a subclass advances by what each round took."""

    def __init__(self) -> None:
        self.current_time = 0.0
        self.is_running = False

    def __call__(self) -> float:
        if self.is_running:
            self.current_time += self.stop_seconds()
        else:
            self.start()
        self.is_running = not self.is_running
        return self.current_time

    def start(self) -> None:
        """Begin a round."""
        self._start = time.perf_counter()

    def stop_seconds(self) -> float:
        """End the round and return its seconds."""
        return time.perf_counter() - self._start

    def cleanup(self) -> None:
        """Leave nothing running."""
        self.is_running = False


class CuptiProfiler:
    """Sums the durations of the kernels that run between start and stop, through torch's profiler (which uses CUPTI)."""

    def __init__(self) -> None:
        self._profiler: Any = None

    def start(self) -> None:
        """Begin to record kernels."""
        import torch

        torch.cuda.synchronize()
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profiler.__enter__()

    def stop(self) -> float:
        """Return the sum in seconds, without copies and fills."""
        import torch

        torch.cuda.synchronize()
        self._profiler.__exit__(None, None, None)
        events = [e for e in self._profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        self._profiler = None
        return sum(e.time_range.elapsed_us() for e in events if not e.name.startswith(("Memcpy", "Memset"))) / 1e6


class CuptiTimer(Timer):
    """Time of the kernels of a round."""

    def __init__(self) -> None:
        super().__init__()
        self._profiler = CuptiProfiler()

    def start(self) -> None:
        self._profiler.start()

    def stop_seconds(self) -> float:
        return self._profiler.stop()

    def cleanup(self) -> None:
        if self.is_running:
            self._profiler.stop()
        super().cleanup()


class FusionProfileTimer(Timer):
    """Host time of the execution of a round, from its profile."""

    def start(self) -> None:
        pass

    def stop_seconds(self) -> float:
        return get_fusion_profile().host_time_ms / 1e3


def demangle_kernel_name(name: str) -> str:
    """Return the readable form of a C++ name; the name itself when no demangler is installed."""
    try:
        import cxxfilt
    except ImportError:
        return name
    return cxxfilt.demangle(name)
