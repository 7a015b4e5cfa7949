"""The steps of a definition for the sizes of a call, and what each kernel needs of the call.

Owns the way from a plan (`weft.segment`) to launches: the part that a kernel computes, which values of the definition its inputs and outputs are, the
values of its variables. Which plan serves some sizes is decided here too. Read first: `KernelUse`, `PlanTable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import compiler, forking
from ..arch import Arch
from ..expr import Number, Sym, product
from ..ir.fusion import Fusion
from ..ir.values import TensorView, Val
from ..options import current
from ..segment.partition import make_plan
from ..segment.plan import KernelStep, Plan
from .outputs import hazard


class Part:
    """The fusion of one kernel: its outputs are computed, distinct, not empty and connected. index_extents: element counts that bound its indices. hazards:
    positions of outputs that must not be written into an input's buffer while the kernel runs, with the reason. exprs: how many expressions the fusion has.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion, self.exprs = fusion, len(fusion.tensor_exprs())
        self.index_extents = index_extents(fusion)
        self.hazards: dict[int, str] = {}
        for place, output in enumerate(fusion.outputs()):
            source = fusion.aliases.get(output)
            reason = None if source is None else hazard(fusion, source, output)  # type: ignore[arg-type]
            if reason is not None:
                self.hazards[place] = reason


def index_extents(fusion: Fusion) -> list[Sym]:
    """Return the element counts that bound the indices of a kernel."""
    counts = {product(axis.logical_extent for axis in domain) for t in fusion.tensors() for domain in (t.get_maybe_root_domain(), t.get_logical_domain())}
    return list(counts)


@dataclass(frozen=True, eq=False)
class KernelUse:
    """One kernel of a call.

    inputs: the values of the definition that correspond to the part's inputs. outputs: for each output of the part, its position among the buffers of the call.
    env: the values of the part's variables.
    """

    part: Part
    inputs: tuple[Val, ...]
    outputs: tuple[int, ...]
    env: dict[Sym, Number]


class PlanTable:
    """The plans of one fusion; the parts of their kernels. exprs: how many expressions the fusion and its plans keep."""

    def __init__(self, fusion: Fusion, fixed: Plan | None = None) -> None:
        self.fusion, self.fixed, self.exprs = fusion, fixed, len(fusion.tensor_exprs())
        self._plans: dict[tuple[str, str], list[Plan]] = {}
        self._parts: dict[int, Part] = {}  # by the identity of their fusions, which they keep
        self._lock = forking.lock()

    def plan_for(self, env: Mapping[Sym, Number], arch: Arch) -> Plan:
        """Return the plan for these sizes: an earlier one if schedulers also accept all of its kernels at these sizes, and still decline what they declined.

        Errors: NoScheduler.
        """
        if self.fixed is not None:
            return self.fixed
        order = current().partition
        found = self._known(env, arch, order)
        if found is None:
            with self._lock:
                found = self._known(env, arch, order)
                if found is None:
                    found = make_plan(self.fusion, lambda fusion: compiler.declines(fusion, env, arch), env, order)
                    self._plans.setdefault((arch.name, order), []).append(found)
                    kept = {id(own): own for own in (*(step.fusion for step in found.kernels), *found.declined)}
                    self.exprs += sum(len(own.tensor_exprs()) for own in kept.values())
        return found

    def _known(self, env: Mapping[Sym, Number], arch: Arch, order: str) -> Plan | None:
        plans = sorted(self._plans.get((arch.name, order), ()), key=lambda plan: len(plan.steps))
        for plan in plans:
            is_taken = all(compiler.declines(step.fusion, env_of(step, env), arch) is None for step in plan.kernels)
            if is_taken and all(compiler.declines(part, env, arch) is not None for part in plan.declined):
                return plan
        return None

    def part_of(self, step: KernelStep) -> Part:
        """Return the part of a kernel: one object for all steps with the same fusion, so that they share a kernel."""
        with self._lock:
            found = self._parts.get(id(step.fusion))
            if found is None:
                found = self._parts[id(step.fusion)] = Part(step.fusion)
            return found


def env_of(step: KernelStep, env: Mapping[Sym, Number]) -> Mapping[Sym, Number]:
    """Return the values of the variables of a step's fusion."""
    if not step.variables:
        return env
    return {own: env[value] for own, value in step.variables.items() if value in env}


def uses_of(table: PlanTable, plan: Plan, env: dict[Sym, Number], buffers: Sequence[TensorView]) -> tuple[KernelUse, ...]:
    """Return the kernels of a plan in order. buffers: the tensors that steps write."""
    place = {t.name: n for n, t in enumerate(buffers)}
    return tuple(
        KernelUse(table.part_of(step), step.inputs, tuple(place[t.name] for t in step.outputs), dict(env_of(step, env)) if step.variables else env)
        for step in plan.kernels
    )
