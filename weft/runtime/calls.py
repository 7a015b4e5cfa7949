"""Calls of a definition: what is prepared once per signature, and the tables of what was prepared.

Owns the way from a call's values to a function that allocates, launches and returns: bind the values, find the kernels, write the function
(`weft.runtime.call_writer`). Which kernel it is, the executor says: `FusionExecutorCache` asks the schedulers, `KernelExecutor` has one.
Read first: `Caller`.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from ..dump import Dump
from ..errors import InternalError, find_stacklevel
from ..ir.values import TensorView, Val
from ..lower.program import KernelProgram
from ..options import Options, current, in_block, must_be_in_order, options as settings, settings_of_enabled
from .. import compiler
from . import collector, compile_log, engines, gradient_check, profile, tuning, unusual, warm_path
from .arguments import flattened
from .binding import Bound, InputPlan, integer_range, span_elems
from .call_state import one_object, settings_and_gradients
from .call_writer import PreparedCall, prepare_call
from .cut import Cut
from .engines import Engine
from .internal_errors import keep_script
from .limits import check_alignment, check_limits, check_residency, launch_sizes
from .limits import TooMuchShared
from .resources import CooperativeGridTooLarge, TooManySpills
from .runtimes import Kernels, Request, Runtime, Sizes, SharedDefinition, input_name, sizes_of
from .steps import KernelUse
from .storage_check import checker
from .timing import Timings
from .tuning import Asked

CHECKED_ON_CPU = "checks ({check}) are on: the tensors of {where} are copied to the CPU, and the emulator runs the kernel there"


class CheckedOnCpu(UserWarning):
    """Warning: a call with tensors on a GPU ran in the emulator, because checks were requested."""


MOST_COMPILERS = 16
"""Kernels of one definition that are compiled at the same time."""

MOST_FAILURES, MOST_REJECTIONS = 16, 32
"""Schedulers, and rejected proposals, that a call skips before it gives up."""
LARGEST_TABLE = 4096
"""Signatures that an executor keeps; if there are more, the table is cleared."""


def settings_and_order() -> Hashable:
    """As `settings_and_gradients`, and whether equal calls must return equal bits."""
    return one_object((in_block(), torch.is_grad_enabled(), must_be_in_order()))


class Caller(ABC):
    """Calls of one definition: `execute` is written for its inputs, and the table has the prepared call of each signature. shared: the part common to equal
    definitions. shown: the inputs with this definition's names. kernels: the table of kernels.
    runtimes: the kernels that calls used, in order of first use. timings, last: stages and steps of the last cold call. launches: of the last call under a
    profiler. is_tuned: a call asked for tuning. watcher: called for each prepared call, for `weft.runtime.call_records`.
    """

    def __init__(self, shared: SharedDefinition, shown: Sequence[Val], kernels: Kernels) -> None:
        self.shared = shared
        self.kernels = kernels
        self.timings = Timings()
        self.runtimes: dict[Runtime, None] = {}
        self.launches: list[profile.LaunchProfile] = []
        self.last: Cut | None = None
        self._input_plan: InputPlan | None = None
        self.has_warned_of_gradients = self.is_tuned = False
        self._seen: compile_log.Seen | None = None
        self._new: list[Runtime] = []  # made by the present preparation
        self.shown = list(shown)
        self._table: dict[Hashable, tuple[Any, ...]] = {}
        self._prepared: dict[Hashable, PreparedCall] = {}
        self._last: list[tuple[Any, ...]] = [()]
        self.watcher: Callable[..., None] | None = None
        self._kinds = [self._kind(index, value) for index, value in enumerate(shared.fusion.inputs())]
        self._settings: Callable[[], Any] = settings_and_order if shared.has_scatters else settings_and_gradients if shared.outputs.written else in_block
        constants = {
            "last": self._last, "find": self._table.get, "cold": self._cold, "checked": self._checked, "settings": self._settings, "profiling": profile.active,
            "records_gradients": torch.is_grad_enabled,
        }  # fmt: skip
        self.execute, self._signature = warm_path.write_execute(self._kinds, constants)

    def _kind(self, index: int, value: Val) -> str:
        if isinstance(value, TensorView):
            if value.is_cpu_scalar:
                return warm_path.CPU_SCALAR
            return warm_path.COMPLEX_TENSOR if value.dtype().is_complex else warm_path.TENSOR
        if index in self.shared.shape_scalars:
            return warm_path.SHAPE_SCALAR
        dtype = value.dtype()  # type: ignore[attr-defined]
        return warm_path.integer_scalar(*integer_range(dtype)) if dtype.is_integer else warm_path.SCALAR

    # -- what an executor decides
    @abstractmethod
    def request(self, use: KernelUse, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str] = frozenset()) -> Request:
        """Return the request for the kernel that computes the part of `use` at these sizes."""

    def change_launch(self, launch: dict[str, Any]) -> None:
        """Change grid, block or shared_bytes if the caller fixed them."""

    # -- kernels
    def runtime(self, use: KernelUse, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str], timings: Timings) -> Runtime:
        """Return the kernel of a step for these sizes, compiled if necessary.

        Errors: NoScheduler, limits of the chip, alignment, those of the compiler.
        """
        return self._building(use, sizes, engine, options, disable, timings)()

    def _building(
        self, use: KernelUse, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str], timings: Timings
    ) -> Callable[[], Runtime]:
        """Schedule and lower the kernel of a step; return a function that builds or finds it.

        Errors: NoScheduler, limits of the chip, alignment.
        """
        start = timings.clock()
        request = self.request(use, sizes, engine, options, disable)
        timings.schedule_s += timings.clock() - start
        found = self.kernels.known(request)
        program = found.program if found else self._program(request, timings)
        launch = launch_sizes(program, use.env)
        self.change_launch(launch)
        check_limits(program, use.env, launch, engine.arch)
        with _rejecting(request):
            check_residency(program, launch, engine.arch)
        check_alignment(program, use.part.fusion.inputs(), [sizes.places.get(input_name(v)) for v in use.inputs], self.shown, sizes.bound.tensors)

        def build() -> Runtime:
            with _rejecting(request):
                runtime = found or self.kernels.runtime(request, program, timings)
                if program.cooperative:
                    runtime.built.check_residency(launch, program)
            if not found:
                self._new.append(runtime)
            self.runtimes[runtime] = None
            return runtime

        return build

    def _all_runtimes(self, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str], timings: Timings) -> list[Runtime]:
        """Return the kernels of all steps. Several are compiled at once, while the next are lowered: NVRTC releases the interpreter's lock."""
        uses = sizes.kernels
        if len(uses) < 2:
            return [self.runtime(use, sizes, engine, options, disable, timings) for use in uses]
        with ThreadPoolExecutor(max_workers=min(len(uses), MOST_COMPILERS, os.cpu_count() or 1)) as pool:
            waiting: dict[int, Future[Runtime]] = {}
            spent = [Timings() for _ in uses]
            for number, use in enumerate(uses):
                build = self._building(use, sizes, engine, options, disable, spent[number])
                waiting[number] = pool.submit(contextvars.copy_context().run, build)
            runtimes = [future.result() for future in waiting.values()]
        self.runtimes.update(dict.fromkeys(runtimes))
        for one in spent:
            timings.add(one)
        return runtimes

    def _usable_runtimes(self, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str], timings: Timings) -> list[Runtime]:
        """Return the kernels of all steps; if one turns out to be unusable, its scheduler chooses again."""
        for _ in range(MOST_REJECTIONS):
            try:
                return self._all_runtimes(sizes, engine, options, disable, timings)
            except compiler.Rejected as found:
                last = found
                compiler.reject(found)
        raise compiler.ScheduleFailed(last.fusion, last.proposal.scheduler, last.error)

    def _program(self, request: Request, timings: Timings) -> KernelProgram:
        start = timings.clock()
        program = self.kernels.program(request)
        spent = timings.clock() - start
        scheduling = min(spent, program.seconds.get("schedule", 0.0))
        timings.schedule_s += scheduling
        timings.lowering_s += spent - scheduling
        return program

    def sizes(self, inputs: Sequence[Any], device: Any, options: Options) -> tuple[Sizes, Engine]:
        """Bind flat values and choose the engine. Errors: those of binding, NoEngine."""
        bound = self.bind(inputs)
        engine = engines.choose(options, device=bound.device, has_cpu_tensors=bound.has_cpu_tensors, asked=device)
        return sizes_of(self.shared, bound, engine.arch), engine

    # -- calls
    @property
    def input_plan(self) -> InputPlan:
        """The checks of the inputs, made at the first cold call."""
        if self._input_plan is None:
            self._input_plan = InputPlan(self.shared.fusion, self.shared.equalities, self.shown)
        return self._input_plan

    def bind(self, inputs: Sequence[Any]) -> Bound:
        """Check flat values. Errors: those of `weft.runtime.binding`."""
        return self.input_plan.bind(inputs)

    def _cold(self, inputs: Sequence[Any], device: Any, enable: Sequence[str], disable: Sequence[str]) -> list[torch.Tensor]:
        """A call whose signature is not in the table, or that is profiled or has options."""
        if isinstance(inputs, torch.Tensor):
            raise unusual.NoListOfInputs(sizes=list(inputs.shape))
        values = unusual.waited(flattened(inputs))
        options = current(**settings_of_enabled(enable))
        keep = not enable and not disable
        prepared = self._known(values, device) if keep else None
        if prepared is None:
            try:
                prepared = self._prepare(values, device, options, frozenset(disable), keep)
            except InternalError as error:
                keep_script(self.shared.fusion, values, error)
                raise
        if prepared is None:
            return self._emulated_copies(values, device, enable, disable)
        arguments = [*values, *self._pointers(values)]
        if profile.active:
            return profile.recorded(self, prepared, arguments)
        try:
            return prepared.run(*arguments)
        except OverflowError:
            self.bind(values)  # names the integer that is too large for a double
            raise

    def _checked(
        self, inputs: Sequence[Any], device: Any, enable: Sequence[str], disable: Sequence[str], check: Any, seed: Any, tune: Any
    ) -> list[torch.Tensor]:  # fmt: skip
        """A call with its own checks or thread order, or one that tunes, whose result later calls use."""
        chosen = {name: value for name, value in (("check", check), ("seed", seed), ("tune", tune)) if value is not None}
        if tune and not self.is_tuned:
            self.is_tuned = True
            self.forget()
        with settings(**chosen):
            return self._cold(inputs, device, enable, disable)

    def _known(self, values: Sequence[Any], device: Any) -> PreparedCall | None:
        """Return the prepared call for values like these. Errors: StorageTooSmall."""
        try:
            found = self._prepared.get(self._signature(values, device)[0])
        except (AttributeError, TypeError, ValueError, RuntimeError):  # binding reports what is wrong with the values
            return None
        if found is not None:
            tensors = [(n, v) for n, v in enumerate(values) if isinstance(v, torch.Tensor)]
            self._fits(tensors)(*(v for _, v in tensors), *(v.data_ptr() for _, v in tensors), *(None for _ in tensors))
        return found

    def _pointers(self, values: Sequence[Any]) -> list[int]:
        return [v.data_ptr() for v, kind in zip(values, self._kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]

    def prepare(self, values: Sequence[Any], device: Any) -> None:
        """Prepare calls with values like these, without reading them. Errors: those of a call."""
        self._prepare(values, device, current(), frozenset(), True)

    @collector.paused
    def _prepare(self, values: Sequence[Any], device: Any, options: Options, disable: frozenset[str], keep: bool) -> PreparedCall | None:
        """Prepare a call, and put it into the table; None for tensors on a GPU that are to be emulated."""
        start = time.perf_counter()
        timings = Timings()
        unusual.check(values)
        gradient_check.check(self, values)
        if _is_emulated(options) and any(isinstance(v, torch.Tensor) and v.is_cuda for v in values):
            self.bind(values)
            return None
        with compile_log.WordIfLong():
            sizes, engine, kernels = self._planned(values, device, options, disable, timings)
        if options.tune:
            kernels = tuning.tune(self, Asked(sizes, engine, options, disable, kernels, values), timings)
        self.last = Cut(sizes, tuple(kernels))
        Dump.segments(lambda: str(self.last))
        launch_start = time.perf_counter()
        prepared = prepare_call(self, sizes, kernels, engine, self._kinds)
        timings.launch_s, timings.total_s = time.perf_counter() - launch_start, time.perf_counter() - start
        self.timings = timings
        self._seen, self._new = compile_log.tell(values, self._seen, self._new, timings.total_s), []
        if keep:
            self._remember(values, device, prepared)
            if self.watcher is not None:
                self.watcher(self, values, device, prepared, engine, options)
        return prepared

    def _planned(
        self, values: Sequence[Any], device: Any, options: Options, disable: frozenset[str], timings: Timings
    ) -> tuple[Sizes, Engine, list[Runtime]]:
        """Return the plan for these values, and its kernels. A scheduler that accepts a fusion and fails is excluded, and the plan is made again.

        Errors: those of binding, NoEngine, NoScheduler, of limits and compilers; the scheduler's error if no other accepts the fusion, or under the setting
        `strict_schedules`.
        """
        failed: compiler.ScheduleFailed | None = None
        for _ in range(MOST_FAILURES):
            start = timings.clock()
            try:
                sizes, engine = self.sizes(values, device, options)
                timings.binding_s += timings.clock() - start
                return sizes, engine, self._usable_runtimes(sizes, engine, options, disable, timings)
            except compiler.ScheduleFailed as failure:
                failed = failure
                if options.strict_schedules:
                    break
                if isinstance(failure.error, InternalError):
                    keep_script(self.shared.fusion, values, failure.error)
                compiler.give_up(failure)
            except compiler.NoScheduler:
                if failed is None:
                    raise
                break
        assert failed is not None
        raise failed.error

    def _remember(self, values: Sequence[Any], device: Any, prepared: PreparedCall) -> None:
        key, low, _ = self._signature(values, device)
        guarded = [v for v, kind in zip(values, self._kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR, warm_path.CPU_SCALAR)]
        scalars: list[Any] = []
        for value, kind in zip(values, self._kinds):
            if warm_path.is_scalar(kind):
                scalars.append(type(value))
            if kind is warm_path.SHAPE_SCALAR:
                scalars.append(value)
        tensors = self._tensors(values)
        entry = (warm_path.guard_with_mode(guarded), prepared.run, self._settings(), device, *scalars, self._fits(tensors), *(v.data_ptr() for _, v in tensors))
        if len(self._table) >= LARGEST_TABLE:
            self.forget()
        self._prepared[key] = prepared
        self._table[key] = entry
        if not low:
            self._last[0] = entry

    def warm(self, values: Sequence[Any]) -> warm_path.Warm | None:
        """Return the prepared call for values like these; None if there is none, for misaligned values, and if it depends on more than tensors."""
        key, low, _ = self._signature(values, None)
        entry = None if low else self._table.get(key)
        if entry is None or any(kind is not warm_path.TENSOR and not warm_path.is_scalar(kind) for kind in self._kinds):
            return None
        tensors = self._tensors(values)
        guard, seen = warm_path.guard_of([v for _, v in tensors]), tuple(v.data_ptr() for _, v in tensors)
        return warm_path.Warm(guard, entry[1], self._settings, self._fits(tensors), seen)

    def forget(self) -> None:
        """Drop all prepared calls; kernels are kept."""
        self._table.clear()
        self._prepared.clear()
        self._last[0] = ()

    def _tensors(self, values: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
        return [(n, v) for n, (v, kind) in enumerate(zip(values, self._kinds)) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]

    def _fits(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> Callable[..., None]:
        """Return the check of the storages behind tensors like these."""
        return checker([(n, self.shown[n], span_elems(v.shape, v.stride()) * v.element_size(), v.element_size()) for n, v in tensors])

    def _emulated_copies(self, values: Sequence[Any], device: Any, enable: Sequence[str], disable: Sequence[str]) -> list[torch.Tensor]:
        """Run a call with GPU tensors in the emulator: on copies, whose results are copied back to the GPU."""
        where = next(v.device for v in values if isinstance(v, torch.Tensor) and v.is_cuda)
        if current().emulate != "on":
            warnings.warn(CHECKED_ON_CPU.format(check=",".join(current().check), where=where), CheckedOnCpu, stacklevel=find_stacklevel())
        copies = [_on_cpu(v) if isinstance(v, torch.Tensor) and v.is_cuda else v for v in values]
        results = self._cold(copies, torch.device("cpu"), enable, disable)
        for index in {*(i for i in self.shared.outputs.alias if i is not None), *(to for to, _ in self.shared.outputs.copies)}:
            values[index].detach().copy_(copies[index])
        back = {id(copy): value for copy, value in zip(copies, values)}
        return [back[id(r)] if id(r) in back else r.to(where) for r in results]


@contextlib.contextmanager
def _rejecting(request: Request) -> Iterator[None]:
    """Reject the proposal of a request whose kernel is found to be unusable; a kernel scheduled by hand has no other. Errors: Rejected."""
    try:
        yield
    except (CooperativeGridTooLarge, TooManySpills, TooMuchShared) as error:
        if request.proposal is None:
            raise
        raise compiler.Rejected(request.part.fusion, request.proposal, error) from error


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU with the sizes, strides and offset of `tensor`; a plain copy would lose overlapping strides (expanded tensors)."""
    storage = tensor.detach().untyped_storage().cpu()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _is_emulated(options: Options) -> bool:
    """Tell whether tensors on a GPU are copied to the CPU for the emulator."""
    return options.emulate == "on" or bool(options.check) and options.emulate != "off"
