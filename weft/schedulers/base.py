"""The interface of a scheduler: it accepts a fusion or declines it with a reason, chooses parameters by a pure function, and schedules a clone with them.

Read first: `Scheduler`, then one of its implementations (`pointwise.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """Why a scheduler does not accept a fusion."""

    reason: str


@dataclass(frozen=True)
class ScheduleResult:
    """What a schedule fixes besides the loop axes.

    static_block: block dimensions that do not follow from extents. max_registers: the register limit per thread. cluster_blocks: blocks of a cluster, along x.
    peel: how loops over rows are peeled. staying: how staying (persistent) blocks loop over rows. access_bits: the widest access of a thread to global memory.
    most_spill_bytes: how many bytes per thread the kernel may spill as long as other params are left (None: as many as are safe). keeps_places: loops over
    registers compute addresses before the loop (`Kernel.keeps_places`). sizes: values of sizes that the kernel assumes; the host checks them. most_threads: of
    a block, whatever the sizes (None: as many as the chip allows).
    """

    static_block: tuple[tuple[ParallelType, int], ...] = ()
    max_registers: int | None = None
    cluster_blocks: int = 1
    peel: Peel | None = None
    staying: StayingBlocks | None = None
    access_bits: int = MAX_VECTOR_BITS
    most_spill_bytes: int | None = None
    most_threads: int | None = None
    keeps_places: bool = False
    sizes: tuple[tuple[Sym, int], ...] = ()

    def for_any_size(self) -> "ScheduleResult":
        """Return what holds for other sizes than those of the params, too: what a fusion scheduled in place keeps.

        Without full parts and staying blocks, the kernel asks more and computes the same; vectors that are aligned in rows that are not need their phase. Sizes
        that the schedule has made constants are no variables any more: they are checked as constants of the definition are.
        """
        phase = None if self.peel is None else self.peel.phase
        return replace(self, peel=None if phase is None else Peel(phase=phase), staying=None, sizes=())

    def in_copy(self, copies: Mapping[Any, Any]) -> "ScheduleResult":
        """Return the result for a copy of the fusion. copies: its values and axes, by those of the original."""
        phase = None if self.peel is None else self.peel.phase
        if phase is None or phase.rows is None:
            return self
        return replace(self, peel=replace(self.peel, phase=replace(phase, rows=copies[phase.rows])))  # type: ignore[type-var]


class Scheduler(ABC):
    """One scheduling strategy. One object serves all fusions; it keeps no state."""

    name: SchedulerType
    takes_scans = takes_scatters = False

    @abstractmethod
    def analyze(self, fusion: Fusion) -> Any | Decline:
        """Return the facts of the fusion that do not depend on sizes, or a Decline. The caller keeps the result for the fusion's lifetime."""

    def accept(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> Decline | None:
        """Return a Decline for these sizes, or None."""
        return None

    @abstractmethod
    def choose(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[Any, str]:
        """Return frozen, hashable parameters and a trace of the candidates. A pure function: the result depends only on the arguments."""

    def choose_way(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch, way: str) -> tuple[Any, str]:
        """Return params of the way `way` if the scheduler has it and it is possible, else those of `choose`."""
        return self.choose(analysis, sizes, alignment_bits, arch)

    def choose_other(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch, rejected: Mapping[Any, int]) -> tuple[Any, str] | None:
        """Return params other than `rejected`, whose kernels turned out to be unusable; None if the scheduler has no others.

        rejected: params -> bytes per thread that the kernel spills, 0 where something else is wrong with it.
        """
        return None

    def candidates(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> list[tuple[str, Any]]:
        """Return the (way, params) pairs that are worth timing, for tuning: the choice first, then others, the best prediction first."""
        return [("", self.choose_way(analysis, sizes, alignment_bits, arch, "auto")[0])]

    @abstractmethod
    def apply(self, fusion: Fusion, analysis: Any, params: Any) -> ScheduleResult:
        """Schedule `fusion`, a clone of the analysed one, in place."""
