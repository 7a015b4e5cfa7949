"""One named scheduler on a fusion: does it take it, what would it choose, apply it.

Owns the translation between the API (inputs, HeuristicParams) and `weft.schedulers` (sizes, frozen params).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..arch import Arch, arch_by_name, arch_of_device
from ..errors import UserError
from ..expr import Sym
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..options import current
from ..runtime.binding import Bound
from ..schedulers.base import Decline
from .arguments import check_arguments
from .executors import flattened
from .params import CompileParams, HeuristicParams, LaunchParams


class Rejected(UserError):
    code = "W190"
    what = "{reason}"
    fix = "let find_compatible_schedulers choose, or execute the fusion without a schedule of its own"


class ChosenParams(HeuristicParams):
    """What one of our schedulers chose: `params` is its own frozen record, `trace` says why."""

    def __init__(self, scheduler_type: SchedulerType, params: Any, trace: str) -> None:
        super().__init__()
        self._type, self.params, self.trace = scheduler_type, params, trace

    @property
    def scheduler_type(self) -> SchedulerType:
        return self._type

    def hash(self) -> int:
        return hash((self._type, self.params))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChosenParams) and (self._type, self.params) == (other._type, other.params)

    def __repr__(self) -> str:
        return f"{self._type.name}: {self.params}"


@dataclass(frozen=True)
class _Case:
    """One scheduler, one fusion, one set of inputs."""

    scheduler: Any
    analysis: Any
    sizes: dict[Sym, int]
    alignment_bits: dict[int, int]
    arch: Arch


def can_schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> tuple[bool, str]:
    """Return (whether the scheduler takes the fusion, nvFuser's sentence with the reason if not)."""
    case = _case(fusion, scheduler_type, inputs)
    if isinstance(case, Decline):
        return False, f"Scheduler _{scheduler_type.name}_ ***rejected*** because : {case.reason}"
    return True, ""


def compute_heuristics(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> ChosenParams:
    """Return what the scheduler chooses.

    Errors: Rejected.
    """
    case = _accepted(fusion, scheduler_type, inputs)
    params, trace = case.scheduler.choose(case.analysis, case.sizes, case.alignment_bits, case.arch)
    return ChosenParams(scheduler_type, params, trace)


def schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs_or_params: Any) -> ChosenParams:
    """Schedule `fusion` in place, with given params or with those chosen for given inputs; return the params.

    Errors: Rejected.
    """
    chosen = inputs_or_params if isinstance(inputs_or_params, ChosenParams) else compute_heuristics(fusion, scheduler_type, inputs_or_params)
    scheduler = _scheduler(scheduler_type)
    analysis = Decline("this version does not have it") if scheduler is None else scheduler.analyze(fusion)
    if isinstance(analysis, Decline):
        raise Rejected(reason=f"Scheduler _{scheduler_type.name}_ ***rejected*** because : {analysis.reason}")
    launch = scheduler.apply(fusion, analysis, chosen.params)
    chosen.lparams, chosen.cparams = _launch_params(launch), CompileParams(maxrregcount=launch.max_registers or 255)
    return chosen


def _launch_params(launch: Any) -> LaunchParams:
    names = {ParallelType.block_x: "bdimx", ParallelType.block_y: "bdimy", ParallelType.block_z: "bdimz"}
    return LaunchParams(**{names[kind]: threads for kind, threads in launch.static_block})


def _scheduler(scheduler_type: SchedulerType) -> Any:
    from ..schedulers import SCHEDULERS

    return next((s for s in SCHEDULERS if s.name is scheduler_type), None)


def _accepted(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> _Case:
    case = _case(fusion, scheduler_type, inputs)
    if isinstance(case, Decline):
        raise Rejected(reason=f"Scheduler _{scheduler_type.name}_ ***rejected*** because : {case.reason}")
    return case


def _case(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> _Case | Decline:
    bound = check_arguments(fusion, flattened(inputs))
    scheduler = _scheduler(scheduler_type)
    if scheduler is None:
        return Decline("this version does not have it")
    analysis = scheduler.analyze(fusion)
    if isinstance(analysis, Decline):
        return analysis
    alignment_bits = {fusion.inputs()[index].name: 8 * tensor.alignment_bytes for index, tensor in bound.tensors.items()}
    case = _Case(scheduler, analysis, bound.env, alignment_bits, _arch(bound))  # type: ignore[arg-type]
    return scheduler.accept(case.analysis, case.sizes, case.alignment_bits, case.arch) or case


def _arch(bound: Bound) -> Arch:
    return arch_by_name(current().chip) if bound.device is None else arch_of_device(bound.device)
