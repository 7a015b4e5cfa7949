"""Schedulers that exist in nvFuser but are not needed here, and those that need no kernel. Each declines with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arch import Arch
from ..ir.enums import SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from .base import Alignments, Decline, ScheduleResult, Scheduler, Sizes


class Declining(Scheduler):
    """A scheduler that declines everything."""

    def __init__(self, name: SchedulerType, reason: str) -> None:
        self.name, self.reason = name, reason

    def analyze(self, fusion: Fusion) -> Decline:
        return Decline(self.reason)

    def choose(self, analysis: Any, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[Any, str]:
        raise TypeError(f"{self.name.name} declines every fusion")

    def apply(self, fusion: Fusion, analysis: Any, params: Any) -> ScheduleResult:
        raise TypeError(f"{self.name.name} declines every fusion")


@dataclass(frozen=True)
class NoParams:
    """A schedule without choices."""


class NoOp(Scheduler):
    """Nothing to compute: every output is an input. The executor returns the inputs."""

    name = SchedulerType.no_op

    def analyze(self, fusion: Fusion) -> NoParams | Decline:
        for value in fusion.outputs():
            if isinstance(value, TensorView) and not value.is_fusion_input:
                return Decline(f"output T{value.name} has to be computed")
        return NoParams()

    def choose(self, analysis: NoParams, sizes: Sizes, alignment_bits: Alignments, arch: Arch) -> tuple[NoParams, str]:
        return analysis, "no_op: every output is an input"

    def apply(self, fusion: Fusion, analysis: NoParams, params: NoParams) -> ScheduleResult:
        return ScheduleResult()


EXPR_EVAL = Declining(SchedulerType.expr_eval, "takes only matrix products, attention and sorting, which torch runs as steps of their own")
MATMUL = Declining(SchedulerType.matmul, "takes only matrix products, which torch runs")
RESIZE = Declining(SchedulerType.resize, "never needed: the other schedulers take slices, pads and cats as lookups")
