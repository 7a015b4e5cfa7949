"""A day by numbers: warm calls and definitions, with memory, handles and maps looked at as they go.

Read first: `warm_calls`, `definitions`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from weft import FusionDefinition


@dataclass(frozen=True)
class Held:
    """What a process holds. Units: resident MiB; gpu_mib: taken on the GPU, by all."""

    resident_mib: float
    files: int
    maps: int
    gpu_mib: float = 0.0

    @staticmethod
    def now() -> Held:
        """Read it from /proc."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        maps = Path("/proc/self/maps").read_text().count("\n")
        free, total = torch.cuda.mem_get_info() if torch.cuda.is_initialized() else (0, 0)
        return Held(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1), len(os.listdir("/proc/self/fd")), maps, (total - free) / 2**20)

    def __str__(self) -> str:
        return f"{self.resident_mib:.1f} MiB, {self.files} files, {self.maps} maps" + (f", {self.gpu_mib:.0f} MiB of the GPU" if self.gpu_mib else "")


def made(number: int) -> FusionDefinition:
    """A definition; those of different numbers have different kernels."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.mul(x, 1.0 + number), 1.0))
    return fd


def _nothing(line: str) -> None:
    """Where nobody watches."""


def warm_calls(count: int, looks: int = 8, device: str = "cpu", tell: Callable[[str], None] = _nothing) -> list[Held]:
    """Call one definition `count` times; what is held after each part of it, which `tell` gets as it goes."""
    fd, x = made(0), torch.ones(2, 4, device=device)
    for _ in range(200):
        fd.execute([x])
    held = [Held.now()]
    tell(f"warm calls 0: {held[-1]}")
    for look in range(looks):
        for _ in range(count // looks):
            fd.execute([x])
        held.append(Held.now())
        tell(f"warm calls {(look + 1) * (count // looks)}: {held[-1]}")
    return held


def definitions(count: int, kernels: int, looks: int = 8, device: str = "cpu", tell: Callable[[str], None] = _nothing) -> list[Held]:
    """Make, execute and drop `count` definitions of `kernels` structures; what is held after each part of it, which `tell` gets as it goes."""
    x = torch.ones(2, 4, device=device)
    for number in range(min(kernels, 20)):
        made(number).execute([x])
    held = [Held.now()]
    tell(f"definitions {min(kernels, 20)}: {held[-1]}")
    for part in range(looks):
        for number in range(count // looks):
            index = (part * (count // looks) + number) % kernels
            (y,) = made(index).execute([x])
            assert y[0, 0] == 2.0 + index
        held.append(Held.now())
        tell(f"definitions {(part + 1) * (count // looks)}: {held[-1]}")
    return held
