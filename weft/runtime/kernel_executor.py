"""KernelExecutor: runs a fusion that the user scheduled.

Owns what the user fixes beside the schedule: the launch's dimensions, the index type, the register limit. How a call is prepared is in
`weft.runtime.calls`. Read first: `KernelExecutor`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import compiler
from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..errors import UserError, shown
from ..expr import ONE
from ..graph.selections import select_as_scheduled
from ..ir.enums import BLOCK_TYPES, MemoryType, ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.graph_ops import CatOp, ReshapeOp, ScatterOp, TorchOp
from ..ir.values import TensorView
from ..lower.program import KernelProgram, Need
from ..options import Options, current, is_disabled
from ..schedulers.base import ScheduleResult
from .argument_kinds import WrongKind
from .arguments import flattened
from .calls import Caller
from .engines import Engine
from .outputs import NotAKernel
from .profile import report
from .runtimes import Kernels, Request, Sizes, SharedDefinition, index_type_for, named, overlaps_previous
from .steps import KernelUse
from .timing import Timings

UNSET = -1
UNLIMITED_REGISTERS = 255


class NotCompiledYet(UserError):
    code = "W798"
    what = "KernelExecutor.run: no fusion was compiled"
    fix = "call compile(fusion, args) first"


class _Fixed:
    """What the user fixed. block, grid: dimensions by position, -1 for free ones. compute: the block without async warps. index_type: None to choose by the
    sizes.
    """

    def __init__(self, constraints: Any, params: Any) -> None:
        self.grid = tuple(getattr(constraints, name, UNSET) for name in ("gdimx", "gdimy", "gdimz"))
        names = ("bdimx", "bdimy", "bdimz")
        self.block = tuple(n if (n := getattr(constraints, name, UNSET)) != UNSET else getattr(params, name, UNSET) for name in names)
        self.compute = tuple(getattr(params, f"compute_{name}", UNSET) for name in names)
        self.index_type: DataType | None = getattr(params, "index_type", None)
        limit = getattr(params, "maxrregcount", UNLIMITED_REGISTERS)
        self.max_registers: int | None = limit if limit < UNLIMITED_REGISTERS else None

    @property
    def key(self) -> Hashable:
        return self.grid, self.block, self.compute, self.index_type, self.max_registers

    def schedule_result(self, scheduled: ScheduleResult | None) -> ScheduleResult:
        """Return what is fixed besides the axes; `scheduled`: by the scheduler that made the schedule, if any."""
        wanted = [n if compute == UNSET else compute for n, compute in zip(self.block, self.compute)]
        block: tuple[tuple[ParallelType, int], ...] = tuple((kind, n) for kind, n in zip(BLOCK_TYPES, wanted) if n != UNSET)
        if scheduled is None:
            return ScheduleResult(block, self.max_registers)
        return replace(scheduled, static_block=block or scheduled.static_block, max_registers=self.max_registers or scheduled.max_registers)


class _ScheduledCaller(Caller):
    """Calls of one scheduled fusion with one set of fixed dimensions."""

    def __init__(self, shared: SharedDefinition, fusion: Fusion, fixed: _Fixed) -> None:
        super().__init__(shared, fusion.inputs(), Kernels())
        self.fixed, self.has_async_warps = fixed, False
        self.is_used: dict[str, tuple[bool, ...]] = {}

    def request(self, use: KernelUse, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str] = frozenset()) -> Request:
        index_type = self.fixed.index_type or index_type_for(use, sizes)
        overlaps = overlaps_previous(use, sizes, engine.arch, options)
        key = (index_type, overlaps)
        fmad = not is_disabled("fma", disable)
        return Request(use.part, None, index_type, engine, options, key, lambda: self.program(index_type, overlaps=overlaps), fmad=fmad)

    def program(self, index_type: DataType, *, overlaps: bool = False) -> KernelProgram:
        """Lower the fusion. Errors: those of a schedule that cannot be lowered."""
        fusion, outputs = self.shared.clone()
        fusion.set_outputs(outputs)
        select_as_scheduled(fusion)
        result = self.fixed.schedule_result(fusion.scheduled)
        program = compiler.program_of_scheduled(fusion, index_type, name="weft_user", result=result, overlaps=overlaps)
        self.has_async_warps = Need.async_warps in program.needs
        self.is_used = {name: tuple(extent is not ONE for extent in extents) for name, extents in (("grid", program.grid), ("block", program.block))}
        return replace(named(program), max_registers=self.fixed.max_registers)

    def change_launch(self, launch: dict[str, Any]) -> None:
        """Launch with the dimensions that are fixed. One that no axis is bound to stays 1: the kernel expects no threads or blocks along it."""
        block = (UNSET,) * 3 if self.has_async_warps else self.fixed.block  # the whole block is known at compile time
        for name, fixed in (("grid", self.fixed.grid), ("block", block)):
            launch[name] = tuple(wanted if is_used and wanted != UNSET else n for n, wanted, is_used in zip(launch[name], fixed, self.is_used[name]))


def caller_as_scheduled(fusion: Fusion) -> Caller:
    """Return the calls of a fusion with its schedule, and nothing else fixed. Errors: NotAKernel for ops that no kernel computes."""
    _check(fusion)
    return _ScheduledCaller(SharedDefinition(fusion, is_scheduled=True), fusion, _Fixed(None, None))


def _check(fusion: Fusion) -> None:
    """Errors: NotAKernel for ops that no kernel computes, and for lookups and cats of what the kernel itself computes, and reshapes of open sizes."""
    remedy = "run the definition with execute, which cuts it into kernels and ops of torch"
    for expr in fusion.tensor_exprs():
        if isinstance(expr, (ScatterOp, TorchOp)):
            raise NotAKernel(name=expr.op_name, detail="no kernel computes it", remedy=remedy)
        if isinstance(expr, ReshapeOp) and not expr.tensor_outputs[0].has_root():
            raise NotAKernel(name=expr.op_name, detail="which axes it splits and merges is known in a call only", remedy=remedy + ", or declare its sizes")
        sources = [copied_value(t) for t in expr.tensor_inputs] if isinstance(expr, CatOp) else expr.read_whole
        computed = next((t for t in sources if isinstance(t, TensorView) and t.memory_type is not MemoryType.global_), None)
        if computed is not None:
            raise NotAKernel(name=expr.op_name, detail=f"it reads other elements than those of its loops, and {computed} is not in memory", remedy=remedy)


class KernelExecutor:
    """One kernel of a fusion that was scheduled by hand (or by `weft.schedule`): `compile` it, then `run` it any number of times.

    Sizes may differ from run to run; block dimensions that the kernel knows at compile time are those of the launch constraints.
    timings: the stages of the last run that was not warm.
    """

    def __init__(self, fusion_id: int = 0, concrete_id: int = 0, runtime_id: int = 0, group_id: int = 0) -> None:
        self.fusion_id = fusion_id
        self._fusion: Fusion | None = None
        self._shared: SharedDefinition | None = None
        self._callers: dict[Hashable, _ScheduledCaller] = {}
        self._current: _ScheduledCaller | None = None

    def compile(
        self, fusion: Fusion, args: Sequence[Any] = (), launch_constraints: Any = None, compile_params: Any = None,
        scheduler_type: SchedulerType = SchedulerType.none,
    ) -> None:  # fmt: skip
        """Lower the fusion, and compile it for the device of `args` (without args, at the first run).

        Errors: those of the schedule; with args, those of inputs that do not fit, limits of the chip (TooManyThreads, TooMuchShared), and the compiler's.
        """
        if not isinstance(fusion, Fusion):
            raise WrongKind(function="KernelExecutor.compile", argument="fusion", value=shown(fusion), wanted="Fusion, such as fd.fusion")
        _check(fusion)
        shared = SharedDefinition(fusion, is_scheduled=True)
        fixed = _Fixed(launch_constraints, compile_params)
        caller = _ScheduledCaller(shared, fusion, fixed)
        values = flattened(args)
        if values or not fusion.inputs():
            sizes, engine = caller.sizes(values, getattr(compile_params, "device", None), current())
            for use in sizes.kernels:
                caller.runtime(use, sizes, engine, current(), frozenset(), Timings())
        else:
            caller.program(fixed.index_type or DataType.Int)
        self._fusion, self._shared = fusion, shared
        self._callers, self._current = {fixed.key: caller}, caller

    def run(self, args: Sequence[Any], launch_constraints: Any = None, compile_params: Any = None) -> list[torch.Tensor]:
        """Run the kernel on `args` and return the outputs. Constraints and params that are not given are those of `compile`.

        Errors: NotCompiledYet, and those of `compile` with args.
        """
        caller = self._current
        if caller is None:
            raise NotCompiledYet()
        if launch_constraints is not None or compile_params is not None:
            caller = self._caller_for(launch_constraints, compile_params)
        return caller.execute(args)

    def _caller_for(self, constraints: Any, params: Any) -> _ScheduledCaller:
        fixed = _Fixed(constraints, params)
        if fixed.key not in self._callers:
            self._callers[fixed.key] = _ScheduledCaller(self._shared, self._fusion, fixed)  # type: ignore[arg-type]
        self._current = self._callers[fixed.key]
        return self._current

    def is_compiled(self) -> bool:
        return self._current is not None

    def is_programmatic_dependent_launch_enabled(self) -> bool:
        """Tell whether the latest kernel may start before the previous one of its stream has ended; False if there is none."""
        runtimes = () if self._current is None else tuple(self._current.runtimes)
        return bool(runtimes) and Need.dependent_launch in runtimes[-1].program.needs

    @property
    def kernel_runtimes(self) -> tuple[Any, ...]:
        """The kernels that runs have used, in order of first use."""
        return tuple(runtime for caller in self._callers.values() for runtime in caller.runtimes)

    @property
    def timings(self) -> Timings:
        """The stages of the last run that was not warm. Errors: NotCompiledYet."""
        if self._current is None:
            raise NotCompiledYet()
        return self._current.timings

    def launch_report(self) -> dict[str, Any]:
        """Return the fields of a FusionProfile from the last run under `weft.runtime.profile.recording`."""
        return report(self.fusion_id, self._current.launches if self._current else [])
