"""Launches of the kernels of `kernels.py`, kept with memory of their own, so that a check can change the text and run them again.

Read first: `captured`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..compiler import program_of_scheduled
from ..ir.fusion import Fusion
from ..lower.program import KernelProgram
from ..options import Options, options
from ..runtime import engines
from ..runtime.calls import Caller
from ..runtime.engines import EmulatedCall
from ..runtime.runtimes import Kernels, Request, SharedDefinition, Sizes, index_type_for
from ..runtime.steps import KernelUse
from ..schedulers.base import ScheduleResult
from .explore import own_copies
from .kernels import KERNELS


@dataclass
class Captured:
    """A launch of a generated kernel, with memory of its own."""

    call: EmulatedCall
    arguments: list[Any]

    @property
    def geometry(self) -> dict[str, Any]:
        plan = self.call.plan
        return {name: getattr(plan, name) for name in ("grid", "block", "shared_bytes", "cluster", "cooperative", "shared_tensors", "overlaps_previous")}


@functools.lru_cache(maxsize=None)
def captured(name: str) -> Captured:
    """Return a kernel's launch on its inputs; it has run once, and was right."""
    launches: list[Captured] = []

    def keep(call: EmulatedCall) -> None:
        launches.append(Captured(call, own_copies(call.arguments)))

    fusion, result = KERNELS[name].define()
    inputs = KERNELS[name].inputs()
    engines.watchers.append(keep)
    try:
        with options(check="races", seed=None):
            PlannedCaller(name, fusion, result).execute(inputs, device="cpu")
    finally:
        engines.watchers.remove(keep)
    (launch_found,) = launches
    return launch_found


class PlannedCaller(Caller):
    """Calls of a fusion whose schedule also fixes what `ScheduleResult` holds."""

    def __init__(self, name: str, fusion: Fusion, result: ScheduleResult) -> None:
        super().__init__(SharedDefinition(fusion, is_scheduled=True), fusion.inputs(), Kernels())
        self.name, self.result = name, result

    def request(self, use: KernelUse, sizes: Sizes, engine: engines.Engine, options: Options, disable: frozenset[str] = frozenset()) -> Request:
        index_type = index_type_for(use, sizes)

        def make() -> KernelProgram:
            return program_of_scheduled(self.shared.fusion, index_type, name=self.name, result=self.result, overlaps=True)

        return Request(use.part, None, index_type, engine, options, index_type, make)
