"""Runs one named scheduler on a fusion: whether it accepts the fusion, which parameters it chooses, and the schedule itself.

Owns the translation between the API (inputs, HeuristicParams) and `weft.compiler` (sizes, frozen params).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..arch import arch_by_name, arch_of_device
from ..compiler import NoScheduler, Proposal, prepare, prepare_in_place, propose
from ..errors import UserError
from ..graph.normalize import normalize_in_place
from ..graph.questions import Questions
from ..ir.graph_ops import CatOp, ReshapeOp
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..options import current
from ..schedulers import SCHEDULERS
from ..schedulers.base import ScheduleResult
from ..runtime.arguments import flattened
from ..runtime.binding import Bound
from .arguments import check_arguments
from .changed_params import check_kernel, check_value, told_as_changed
from .params import CompileParams, HeuristicParams, LaunchParams, PointwiseParams, ReductionParams
from .scheduler_names import ELEMENTWISE, NAMES, NO_KERNEL


class Rejected(UserError):
    code = "W190"
    what = "{reason}"
    fix = "use a scheduler that find_compatible_schedulers returns, or execute the fusion without scheduling it yourself"


OF_NVFUSER = (HeuristicParams, PointwiseParams, ReductionParams)
"""Records with nvFuser's fields: no scheduler of ours reads them."""


class ForeignParams(UserError):
    code = "W193"
    what = "the scheduler {scheduler} was given {kind}; it takes the params that compute_heuristics returns"
    fix = "call compute_heuristics for that scheduler, and change fields of its result"


NVFUSERS_NAMES = {
    "vectorization_factor": "vector_elems", "unroll_factor_inner": "unroll_inner", "unroll_factor_outer": "unroll_outer", "split_grid_y_dim": "split_grid_y",
}  # fmt: skip
"""Fields of nvFuser's params that a scheduler's own params have under another name."""


class ChosenParams(HeuristicParams):
    """What one of our schedulers chose: `params` is its own frozen record, `trace` says why.

    The fields of `params` are attributes that can be set, under their own names and under nvFuser's. template: the scheduler that chose, which is not
    the one asked for where that was `resize`. Errors of setting: NoValueOfField.
    """

    params: Any = None
    _chosen: Any = None
    _type = template = SchedulerType.none

    def __init__(self, asked: SchedulerType, proposal: Proposal) -> None:
        super().__init__()
        self._type, self.template, self.params, self.trace = asked, proposal.scheduler, proposal.params, proposal.trace
        self._chosen = proposal.params

    def __getattr__(self, name: str) -> Any:
        field = NVFUSERS_NAMES.get(name, name)
        if name.startswith("_") or not _has(self.params, field):
            raise AttributeError(f"{self._type.name} params have no {name}; they are {self.params}")
        return getattr(self.params, field)

    def __setattr__(self, name: str, value: Any) -> None:
        field = NVFUSERS_NAMES.get(name, name)
        if _has(self.params, field):
            check_value(self._type.name, self.params, field, value)
            object.__setattr__(self, "params", dataclasses.replace(self.params, **{field: value}))
        else:
            object.__setattr__(self, name, value)

    @property
    def scheduler_type(self) -> SchedulerType:
        """The scheduler that was asked."""
        return self._type

    @property
    def is_changed(self) -> bool:
        """True if fields were set to other values than the scheduler chose."""
        return self.params != self._chosen

    def hash(self) -> int:
        return hash((self._type, self.params))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChosenParams) and (self._type, self.params) == (other._type, other.params)

    def __repr__(self) -> str:
        return f"{self._type.name}: {self.params}"


class NoKernelParams(HeuristicParams):
    """The params of a fusion that runs without a kernel: there is nothing to choose."""

    def __init__(self, scheduler_type: SchedulerType) -> None:
        super().__init__()
        self._type = scheduler_type

    @property
    def scheduler_type(self) -> SchedulerType:
        """The scheduler that was asked: expr_eval or no_op."""
        return self._type


def _has(params: Any, field: str) -> bool:
    return dataclasses.is_dataclass(params) and any(f.name == field for f in dataclasses.fields(params))


def can_schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> tuple[bool, str]:
    """Return (whether the scheduler takes the fusion, nvFuser's sentence with the reason if not)."""
    reason = _propose(fusion, scheduler_type, inputs, chooses=False)
    return (False, _sentence(scheduler_type, reason)) if isinstance(reason, str) else (True, "")


def compute_heuristics(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> HeuristicParams:
    """Return what the scheduler chooses; for `expr_eval` and `no_op`, where no kernel runs, params without a choice.

    Errors: Rejected.
    """
    proposal = _propose(fusion, scheduler_type, inputs)
    if isinstance(proposal, str):
        raise Rejected(reason=_sentence(scheduler_type, proposal))
    return NoKernelParams(scheduler_type) if proposal is None else ChosenParams(scheduler_type, proposal)


def schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs_or_params: Any) -> HeuristicParams:
    """Schedule `fusion` in place, with given params or with those chosen for given inputs; return the params.

    Errors: Rejected, ForeignParams, NoKernelOfParams.
    """
    if isinstance(inputs_or_params, HeuristicParams) and inputs_or_params.scheduler_type is not scheduler_type or type(inputs_or_params) in OF_NVFUSER:
        raise ForeignParams(kind=type(inputs_or_params).__name__, scheduler=scheduler_type.name)
    is_chosen = isinstance(inputs_or_params, (ChosenParams, NoKernelParams))
    chosen = inputs_or_params if is_chosen else compute_heuristics(fusion, scheduler_type, inputs_or_params)
    if not isinstance(chosen, ChosenParams):
        return chosen
    scheduler = next(s for s in SCHEDULERS if s.name is chosen.template)
    _settle_views(fusion, scheduler_type)
    if prepare(fusion).analysis(scheduler) is None:
        raise Rejected(reason=_sentence(scheduler_type, prepare(fusion).declines[chosen.template]))
    analysis = prepare_in_place(fusion).analysis(scheduler)
    with told_as_changed(chosen.params, is_changed=chosen.is_changed):
        result = scheduler.apply(fusion, analysis, chosen.params)
        fusion.scheduled = result.for_any_size()
        if chosen.is_changed:
            check_kernel(fusion)
    chosen.lparams, chosen.cparams = _launch_params(result), CompileParams(maxrregcount=result.max_registers or 255)
    return chosen


def _sentence(scheduler_type: SchedulerType, reason: str) -> str:
    if scheduler_type is SchedulerType.pointwise and reason.endswith(" reduces"):
        reason = "cannot find reference tensor"  # nvFuser's words for a fusion with a reduction, which programs compare
    return f"Scheduler _{scheduler_type.name}_ ***rejected*** because : {reason}"


def _launch_params(result: ScheduleResult) -> LaunchParams:
    names = {ParallelType.block_x: "bdimx", ParallelType.block_y: "bdimy", ParallelType.block_z: "bdimz"}
    return LaunchParams(**{names[kind]: threads for kind, threads in result.static_block})


def _propose(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any], *, chooses: bool = True) -> Proposal | str | None:
    """Return the scheduler's proposal, None where no kernel runs, or why it declines."""
    if scheduler_type is SchedulerType.none:
        return "none is not a scheduler"
    bound = check_arguments(fusion, flattened(inputs))
    if scheduler_type in NAMES:
        reason = NAMES[scheduler_type](fusion, bound)
        if reason or scheduler_type in NO_KERNEL:
            return reason or None
    found: Proposal | str = ""
    for name in ELEMENTWISE if scheduler_type is SchedulerType.resize else (scheduler_type,):
        found = _proposal(fusion, name, bound)
        if isinstance(found, Proposal):
            return found
    return found


def _proposal(fusion: Fusion, scheduler_type: SchedulerType, bound: Bound) -> Proposal | str:
    alignment_bits = {f"T{fusion.inputs()[index].name}": 8 * tensor.alignment_bytes for index, tensor in bound.tensors.items()}
    arch = arch_by_name(current().chip) if bound.device is None else arch_of_device(bound.device)
    try:
        return propose(_without_views(fusion, bound), bound.env, alignment_bits, arch, only=scheduler_type)
    except NoScheduler as error:
        return error.reasons[scheduler_type.name]


def _without_views(fusion: Fusion, bound: Bound) -> Fusion:
    """Return what a scheduler is asked about: the normal form of a fusion with reshapes and cats at these sizes, else the fusion itself."""
    if not _has_views(fusion):
        return fusion
    clone = fusion.clone()[0]
    normalize_in_place(clone, Questions(bound.env))
    return clone


def _has_views(fusion: Fusion) -> bool:
    return any(isinstance(e, (ReshapeOp, CatOp)) for e in fusion.tensor_exprs())


def _settle_views(fusion: Fusion, scheduler_type: SchedulerType) -> None:
    """Write the cats of a fusion as kernels have them. Errors: Rejected for reshapes, and where the sizes of a cat are known in a call only."""
    if not _has_views(fusion):
        return
    if any(isinstance(e, ReshapeOp) for e in fusion.tensor_exprs()):
        raise Rejected(reason=_sentence(scheduler_type, "execute rewrites a reshape before it schedules, and in place that would change the inputs"))
    if not all(axis.logical_extent.is_const for tensor in fusion.tensors() for axis in tensor.get_logical_domain()):
        raise Rejected(reason=_sentence(scheduler_type, "in place a cat is scheduled with static sizes only"))
    normalize_in_place(fusion)
