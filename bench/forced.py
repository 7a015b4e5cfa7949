"""Definitions whose kernels have the params that a script gives them, and the facts that a choice of params sees.

Owns how a script goes round the schedulers' choice, and facts as JSON, from which a choice can be made again on any machine.
Read first: `Forced`, `ways_of`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft import FusionDefinition, compiler
from weft.arch import Arch
from weft.compiler import Proposal
from weft.ir.enums import SchedulerType
from weft.lower.program import KernelProgram
from weft.options import current
from weft.runtime import runtimes
from weft.runtime.limits import launch_sizes
from weft.runtime.runtimes import Request, Sizes
from weft.schedulers.async_rows import can_load
from weft.schedulers.async_rows_heuristic import choose_async_rows
from weft.schedulers.base import Decline
from weft.schedulers.facts import PersistentFacts
from weft.schedulers.inner_persistent import InnerPersistent
from weft.schedulers.persistent_heuristic import choose

WAYS = {
    "registers": ("register", False), "tma": ("tma", False), "tma, bulk stores": ("tma", True), "specialized": ("specialized", False),
    "specialized, bulk stores": ("specialized", True),
}  # fmt: skip
"""Name -> (what `choose_async_rows` calls it, do results leave by bulk copies). "registers" is all that is no pipeline: clusters, shared memory, rereading."""
SCHEDULER = InnerPersistent()


@dataclass(frozen=True)
class Seen:
    """What the choice of a normalization's params depends on. is_loadable: rows of all inputs lie contiguously."""

    facts: PersistentFacts
    is_loadable: bool

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self.facts), "is_loadable": self.is_loadable}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Seen:
        known = {name: value for name, value in values.items() if name != "is_loadable"}
        return cls(PersistentFacts(**{**known, "runs": tuple((bool(is_reduced), extent) for is_reduced, extent in known["runs"])}), values["is_loadable"])


def ways_of(seen: Seen, arch: Arch) -> dict[str, Any]:
    """Return the params of every way, or the Decline that says why there are none."""
    out: dict[str, Any] = {}
    for name, (kind, is_stored_in_bulk) in WAYS.items():
        if kind == "register":
            out[name] = choose(seen.facts, arch)
        elif not seen.is_loadable:
            out[name] = Decline("the rows of an input do not lie contiguously")
        else:
            out[name] = choose_async_rows(seen.facts, arch, kind, is_stored_in_bulk=is_stored_in_bulk)
    return out


class Forced:
    """A definition whose kernels have the params that `choose` was given for the sizes of a call, or those that the schedulers choose."""

    def __init__(self, fd: FusionDefinition) -> None:
        self.fd = fd
        self.caller = fd._executor_cache()._caller
        self.caller.request = self.request  # type: ignore[method-assign]
        self.chosen: dict[tuple[tuple[int, ...], ...], Any] = {}

    def sizes(self, inputs: Sequence[torch.Tensor]) -> tuple[Sizes, Any]:
        return self.caller.sizes(inputs, None, current())

    def seen(self, inputs: Sequence[torch.Tensor]) -> Seen:
        """Return what the choice sees of these inputs."""
        sizes, _ = self.sizes(inputs)
        (use,) = sizes.kernels
        analysis = compiler.prepare(use.part.fusion).analysis(SCHEDULER)
        if analysis is None:
            raise ValueError(f"not a normalization along rows: {compiler.prepare(use.part.fusion).declines[SCHEDULER.name]}")
        alignments = runtimes.alignments_bits(self.caller.shared, use, sizes)
        facts = analysis.facts(sizes.env, {int(name[1:]): bits for name, bits in alignments.items()})
        return Seen(facts, all(can_load(t, analysis) for t in analysis.row_inputs))

    def choose(self, inputs: Sequence[torch.Tensor], params: Any) -> None:
        """Let calls with inputs of these sizes run the kernel with these params."""
        self.chosen[tuple(tuple(t.shape) for t in inputs)] = params

    def request(self, use: Any, sizes: Sizes, engine: Any, options: Any, disable: frozenset[str] = frozenset()) -> Request:
        shapes = tuple(tuple(tensor.sizes) for tensor in sizes.bound.tensors.values())
        params = self.chosen.get(shapes)
        if params is None:
            return runtimes.propose(self.caller.shared, use, sizes, engine, options)
        proposal = Proposal(SchedulerType.inner_persistent, params)
        return runtimes.request_for(proposal, use.part, runtimes.index_type_for(use, sizes), engine, options)

    def wanted(self, inputs: Sequence[torch.Tensor]) -> tuple[Request, KernelProgram, dict[str, Any]]:
        """Return what a call would ask the compiler for, the lowered program, and its grid, block and shared_bytes."""
        sizes, engine = self.sizes(inputs)
        (use,) = sizes.kernels
        request = self.request(use, sizes, engine, current())
        program = self.caller.kernels.program(request)
        return request, program, launch_sizes(program, sizes.env)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.fd.execute(inputs)
