"""One named scheduler on a fusion: does it take it, what would it choose, apply it.

Owns the translation between the API (inputs, HeuristicParams) and `weft.compiler` (sizes, frozen params).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..arch import arch_by_name, arch_of_device
from ..compiler import NoScheduler, Proposal, prepare, propose
from ..errors import UserError
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ops.torch_ops import entry_of
from ..options import current
from ..schedule.welford import translate_welford
from ..schedulers import SCHEDULERS
from ..schedulers.base import ScheduleResult
from ..runtime.arguments import flattened
from .arguments import check_arguments
from .params import CompileParams, HeuristicParams, LaunchParams, PointwiseParams, ReductionParams


class Rejected(UserError):
    code = "W190"
    what = "{reason}"
    fix = "let find_compatible_schedulers choose, or execute the fusion without a schedule of its own"


OF_NVFUSER = (HeuristicParams, PointwiseParams, ReductionParams)
"""Records with nvFuser's fields: no scheduler of ours reads them."""


class ForeignParams(UserError):
    code = "W193"
    what = "{kind} given to the scheduler {scheduler}: it takes what compute_heuristics returns"
    fix = "call compute_heuristics for that scheduler, and change the fields of what it returns"


NVFUSERS_NAMES = {
    "vectorization_factor": "vector_elems", "unroll_factor_inner": "unroll_inner", "unroll_factor_outer": "unroll_outer", "split_grid_y_dim": "split_grid_y",
}  # fmt: skip
"""Fields of nvFuser's params that a scheduler's own params have under another name."""


class ChosenParams(HeuristicParams):
    """What one of our schedulers chose: `params` is its own frozen record, `trace` says why.

    The fields of `params` are attributes that can be set, under their own names and under nvFuser's.
    """

    params: Any = None
    _type = SchedulerType.none

    def __init__(self, proposal: Proposal) -> None:
        super().__init__()
        self._type, self.params, self.trace = proposal.scheduler, proposal.params, proposal.trace

    def __getattr__(self, name: str) -> Any:
        field = NVFUSERS_NAMES.get(name, name)
        if name.startswith("_") or not _has(self.params, field):
            raise AttributeError(f"{self._type.name} params have no {name}; they are {self.params}")
        return getattr(self.params, field)

    def __setattr__(self, name: str, value: Any) -> None:
        field = NVFUSERS_NAMES.get(name, name)
        if _has(self.params, field):
            object.__setattr__(self, "params", dataclasses.replace(self.params, **{field: value}))
        else:
            object.__setattr__(self, name, value)

    @property
    def scheduler_type(self) -> SchedulerType:
        """The scheduler that chose."""
        return self._type

    def hash(self) -> int:
        return hash((self._type, self.params))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChosenParams) and (self._type, self.params) == (other._type, other.params)

    def __repr__(self) -> str:
        return f"{self._type.name}: {self.params}"


def _has(params: Any, field: str) -> bool:
    return dataclasses.is_dataclass(params) and any(f.name == field for f in dataclasses.fields(params))


def can_schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> tuple[bool, str]:
    """Return (whether the scheduler takes the fusion, nvFuser's sentence with the reason if not)."""
    if scheduler_type is SchedulerType.expr_eval and _is_one_op_of_torch(fusion):
        return True, ""
    proposal = _propose(fusion, scheduler_type, inputs)
    return (False, _sentence(scheduler_type, proposal)) if isinstance(proposal, str) else (True, "")


def compute_heuristics(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> ChosenParams:
    """Return what the scheduler chooses.

    Errors: Rejected.
    """
    proposal = _propose(fusion, scheduler_type, inputs)
    if isinstance(proposal, str):
        raise Rejected(reason=_sentence(scheduler_type, proposal))
    return ChosenParams(proposal)


def schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs_or_params: Any) -> ChosenParams:
    """Schedule `fusion` in place, with given params or with those chosen for given inputs; return the params.

    Errors: Rejected, ForeignParams.
    """
    if isinstance(inputs_or_params, HeuristicParams) and inputs_or_params.scheduler_type is not scheduler_type or type(inputs_or_params) in OF_NVFUSER:
        raise ForeignParams(kind=type(inputs_or_params).__name__, scheduler=scheduler_type.name)
    chosen = inputs_or_params if isinstance(inputs_or_params, ChosenParams) else compute_heuristics(fusion, scheduler_type, inputs_or_params)
    scheduler = next(s for s in SCHEDULERS if s.name is scheduler_type)
    prepared = prepare(fusion)
    analysis = prepared.analysis(scheduler)
    if analysis is None:
        raise Rejected(reason=_sentence(scheduler_type, prepared.declines[scheduler_type]))
    translate_welford(fusion)  # as in the prepared clone, so the names of the analysis are those of this fusion
    result = scheduler.apply(fusion, analysis, chosen.params)
    chosen.lparams, chosen.cparams = _launch_params(result), CompileParams(maxrregcount=result.max_registers or 255)
    return chosen


def _sentence(scheduler_type: SchedulerType, reason: str) -> str:
    if scheduler_type is SchedulerType.pointwise and reason.endswith(" reduces"):
        reason = "cannot find reference tensor"  # nvFuser's words for a fusion with a reduction, which programs compare
    return f"Scheduler _{scheduler_type.name}_ ***rejected*** because : {reason}"


def _is_one_op_of_torch(fusion: Fusion) -> bool:
    """True for a definition of one op that torch runs: a matmul, attention, a sort."""
    exprs = fusion.tensor_exprs()
    return len(exprs) == 1 and entry_of(exprs[0]) is not None


def _launch_params(result: ScheduleResult) -> LaunchParams:
    names = {ParallelType.block_x: "bdimx", ParallelType.block_y: "bdimy", ParallelType.block_z: "bdimz"}
    return LaunchParams(**{names[kind]: threads for kind, threads in result.static_block})


def _propose(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> Proposal | str:
    """Return the scheduler's proposal, or why it declines."""
    if scheduler_type is SchedulerType.none:
        return "none is no scheduler"
    bound = check_arguments(fusion, flattened(inputs))
    alignment_bits = {f"T{fusion.inputs()[index].name}": 8 * tensor.alignment_bytes for index, tensor in bound.tensors.items()}
    arch = arch_by_name(current().chip) if bound.device is None else arch_of_device(bound.device)
    try:
        return propose(fusion, bound.env, alignment_bits, arch, only=scheduler_type)
    except NoScheduler as error:
        return error.reasons[scheduler_type.name]
