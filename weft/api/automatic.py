"""One named scheduler on a fusion: does it take it, what would it choose, apply it.

Owns the translation between the API (inputs, HeuristicParams) and `weft.schedulers` (sizes, frozen params).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..arch import Arch, arch_by_name, arch_of_device
from ..errors import UserError
from ..expr import Sym, var
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView
from ..options import current
from ..schedulers.base import Decline
from .arguments import check_arguments
from .executors import flattened
from .params import CompileParams, HeuristicParams, LaunchParams

FULL_ALIGNMENT_BITS = 128


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
    values = flattened(inputs)
    check_arguments(fusion, values)
    scheduler = _scheduler(scheduler_type)
    if scheduler is None:
        return Decline("this version does not have it")
    analysis = scheduler.analyze(fusion)
    if isinstance(analysis, Decline):
        return analysis
    case = _Case(scheduler, analysis, input_sizes(fusion, values), _alignments(fusion, values), _arch(values))
    return scheduler.accept(case.analysis, case.sizes, case.alignment_bits, case.arch) or case


def input_sizes(fusion: Fusion, values: Sequence[Any]) -> dict[Sym, int]:
    """Return the value of every size, stride and scalar variable of the inputs.

    The stride of a dimension of size 1 is what it would be if it were contiguous, whatever torch says.
    """
    sizes: dict[Sym, int] = {}
    for value, given in zip(fusion.inputs(), values):
        if isinstance(value, Scalar):
            sizes[value.sym] = given
        elif isinstance(value, TensorView):
            _add_tensor(sizes, value, given)
    return sizes


def _add_tensor(sizes: dict[Sym, int], tensor: TensorView, given: torch.Tensor) -> None:
    domain = tensor.domain()
    dims = {axis: dim for dim, axis in enumerate(domain.logical)}
    for dim in range(given.dim()):
        sizes[var(f"T{tensor.name}.size[{dim}]", lower=1)] = given.size(dim)
    running = 1
    for position in reversed(range(len(domain.maybe_allocation))):
        dim = dims[domain.maybe_allocation[position]]
        if domain.contiguity[position] is None:
            continue
        stride = given.stride(dim) if given.size(dim) > 1 else running
        sizes[tensor.stride_var(position)] = stride
        running = stride * given.size(dim)


def _alignments(fusion: Fusion, values: Sequence[Any]) -> dict[int, int]:
    """Return the alignment in bits of the first element of each tensor, 128 at most."""
    out = {}
    for value, given in zip(fusion.inputs(), values):
        if isinstance(value, TensorView) and isinstance(given, torch.Tensor):
            address = given.data_ptr() * 8
            out[value.name] = min(address & -address or FULL_ALIGNMENT_BITS, FULL_ALIGNMENT_BITS)
    return out


def _arch(values: Sequence[Any]) -> Arch:
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return arch_of_device(value.device.index)
    return arch_by_name(current().chip)
