"""What a scheduler is: it accepts a fusion or declines with a reason, chooses parameters purely, and applies them.

Read first: `Scheduler`, then one of its implementations (`pointwise.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..analysis.vectorization import MAX_VECTOR_BITS
from ..arch import Arch
from ..expr import Sym
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..schedule.peel import Peel
from ..schedule.staying_blocks import StayingBlocks

Sizes = Mapping[Sym, int]
Alignments = Mapping[int, int]


@dataclass(frozen=True)
class Decline:
    """Why a scheduler does not take a fusion."""

    reason: str


@dataclass(frozen=True)
class ScheduleResult:
    """What a schedule fixes beyond the axes: block dimensions that do not follow from extents, the register limit, the blocks of a cluster (along x), and
    how loops over rows are peeled, how blocks go from row to row, the widest access of a thread to global memory, how many bytes of each thread may stay in
    memory for want of registers while there are other params (None: as many as are safe), and whether loops over registers add up addresses in front
    (`Kernel.keeps_places`), and sizes whose values the kernel takes for granted, which the host checks."""

    static_block: tuple[tuple[ParallelType, int], ...] = ()
    max_registers: int | None = None
    cluster_blocks: int = 1
    peel: Peel | None = None
    staying: StayingBlocks | None = None
    access_bits: int = MAX_VECTOR_BITS
    most_spill_bytes: int | None = None
    keeps_places: bool = False
    sizes: tuple[tuple[Sym, int], ...] = ()


class Scheduler(ABC):
    """One strategy. The same object serves every fusion; it keeps no state."""

    name: SchedulerType
    takes_scans = takes_scatters = False

    @abstractmethod
    def analyze(self, fusion: Fusion) -> Any | Decline:
        """Return what is known without sizes (kept by the caller for the fusion's lifetime), or a Decline."""

    def accept(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        """Return a Decline for these sizes, or None."""
        return None

    @abstractmethod
    def choose(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[Any, str]:
        """Return frozen, hashable parameters and a trace of the candidates. Pure: nothing but the arguments matters."""

    def choose_way(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch, way: str) -> tuple[Any, str]:
        """Return params of the way named `way` where the scheduler has it and it is possible, else those of `choose`."""
        return self.choose(analysis, sizes, alignment_bits, arch)

    def choose_other(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch, rejected: frozenset[Any]) -> tuple[Any, str] | None:
        """Return params that are not among `rejected`, whose kernels turned out to be unusable; None where the scheduler has no others."""
        return None

    def candidates(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, Any]]:
        """Return (way, params) that are worth timing: the choice first, then others in the order of what is predicted for them. For tuning."""
        return [("", self.choose_way(analysis, sizes, alignment_bits, arch, "auto")[0])]

    @abstractmethod
    def apply(self, fusion: Fusion, analysis: Any, params: Any) -> ScheduleResult:
        """Schedule `fusion`, a clone of the analysed one, in place."""
