"""How long the stages of a cold call took."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Timings:
    """Seconds of one cold call, split by stage. A stage whose result existed already took 0.

    binding: checks of the inputs, sizes, output shapes. schedule: choice of scheduler and parameters, and the schedule itself. lowering: kernel IR and text.
    nvrtc: the compiler (in the emulator: the host's). load: loading the code. launch: arguments and the first run. from_disk: the machine code
    came from the disk cache.
    """

    binding_s: float = 0.0
    schedule_s: float = 0.0
    lowering_s: float = 0.0
    nvrtc_s: float = 0.0
    load_s: float = 0.0
    launch_s: float = 0.0
    total_s: float = 0.0
    from_disk: bool = False

    def add(self, other: "Timings") -> None:
        """Add the time of another kernel of the same call."""
        for name in ("binding_s", "schedule_s", "lowering_s", "nvrtc_s", "load_s", "launch_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.from_disk = self.from_disk or other.from_disk

    clock = staticmethod(time.perf_counter)

    def __str__(self) -> str:
        names = ("binding", "schedule", "lowering", "nvrtc", "load", "launch", "total")
        return ", ".join(f"{name} {getattr(self, name + '_s') * 1e3:.2f} ms" for name in names) + (", from disk" if self.from_disk else "")
