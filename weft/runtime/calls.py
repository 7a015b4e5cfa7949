"""Calls of a definition: what is prepared once per signature, and the tables of what was prepared.

Owns the way from a call's values to a function that allocates, launches and returns: bind the values, find the kernel, lay out the launch, write the
function (`weft.runtime.warm_path`). How the kernel is found is the executor's: `FusionExecutorCache` asks the schedulers, `KernelExecutor` has one.
Read first: `Caller`, then `prepare_call`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import arch as chips
from ..dump import Dump
from ..errors import InternalError, UserError
from ..expr import Number, Sym, const, evaluate, product, substitute, variables
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..lower.program import KernelProgram, RandomParam, ScalarParam, TensorParam, WorkParam
from ..options import Options, current, in_block
from ..reference.torch_types import torch_dtype
from . import engines, host_scalars, philox_state, profile, warm_path, work_memory
from .binding import Bound, InputPlan, cpu_scalar_var
from .engines import Engine, LaunchPlan, Memory
from .launch import ParamSlot
from .outputs import AliasShape, Layout, loads
from .runtimes import Kernels, Request, Runtime, Sizes, Template, sizes_of
from .timing import Timings

LARGEST_TABLE = 4096
"""Signatures that an executor keeps; when there are more, it starts over."""


class TooManyThreads(UserError):
    code = "W792"
    what = "kernel {kernel} wants {threads} threads per block ({axes}); {chip} allows {limit}"
    fix = "split the axis that is bound to a thread index, or bind it to a block index"


class TooMuchShared(UserError):
    code = "W793"
    what = "kernel {kernel} wants {bytes} bytes of shared memory per block ({text}); {chip} allows {limit}"
    fix = "use smaller tiles, or keep fewer tensors in shared memory"


class GridTooLarge(UserError):
    code = "W794"
    what = "kernel {kernel} wants {blocks} blocks along {axis} ({text}); the limit is {limit}"
    fix = "let each block do more, or bind the axis to blockIdx.x"


class NotDivisible(UserError):
    code = "W795"
    what = "kernel {kernel}: {what_} {sym} is {value}, which {divisor} does not divide"
    fix = "choose a vector width that divides the size, or pad the tensor"


class Misaligned(UserError):
    code = "W796"
    what = "kernel {kernel} reads {tensor} in vectors of {needed} bytes, and {problem}"
    fix = "choose a narrower vector, or pass a tensor whose first element and strides are aligned"


@dataclass(eq=False)
class Prepared:
    """A signature's function and what it was made from. runtime and plan are None when there is nothing to launch."""

    run: Callable[..., list[torch.Tensor]]
    runtime: Runtime | None
    plan: LaunchPlan | None
    input_bytes: int
    output_bytes: int


class Caller(ABC):
    """Calls of one definition: `execute` is written for its inputs, the table keeps what was prepared for each signature.

    template: what is shared with equal definitions. kernels: where kernels are found. runtimes: the kernels that calls used, in order of first use.
    timings: of the last cold call. launches: of the last call under a profiler.
    """

    def __init__(self, template: Template, shown: Sequence[Val], kernels: Kernels) -> None:
        self.template = template
        self.kernels = kernels
        self.timings = Timings()
        self.runtimes: dict[Runtime, None] = {}
        self.launches: list[profile.LaunchProfile] = []
        self._input_plan: InputPlan | None = None
        self._shown = list(shown)
        self._table: dict[Hashable, tuple[Any, ...]] = {}
        self._prepared: dict[Hashable, Prepared] = {}
        self._last: list[tuple[Any, ...]] = [()]
        self._kinds = [self._kind(index, value) for index, value in enumerate(template.fusion.inputs())]
        constants = {"last": self._last, "find": self._table.get, "cold": self._cold, "settings": in_block, "profiling": profile.active}
        self.execute, self._signature = warm_path.write_execute(self._kinds, constants)

    def _kind(self, index: int, value: Val) -> str:
        if isinstance(value, TensorView):
            if value.is_cpu_scalar:
                return warm_path.CPU_SCALAR
            return warm_path.COMPLEX_TENSOR if value.dtype().is_complex else warm_path.TENSOR
        return warm_path.SHAPE_SCALAR if index in self.template.shape_scalars else warm_path.SCALAR

    # -- what an executor decides
    @abstractmethod
    def request(self, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str] = frozenset()) -> Request:
        """Say which kernel serves these sizes."""

    def change_launch(self, launch: dict[str, Any]) -> None:
        """Change grid, block or shared_bytes where the caller fixed them."""

    # -- kernels
    def runtime(self, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str], timings: Timings) -> Runtime:
        """Return the kernel for these sizes, compiled if need be.

        Errors: NoScheduler, limits of the chip, alignment, those of the compiler.
        """
        start = timings.clock()
        request = self.request(sizes, engine, options, disable)
        timings.schedule_s = timings.clock() - start
        found = self.kernels.known(request)
        program = found.program if found else self._program(request, timings)
        launch = launch_sizes(program, sizes.env)
        self.change_launch(launch)
        check_limits(program, sizes.env, launch, engine.arch)
        check_alignment(self, program, sizes)
        found = found or self.kernels.runtime(request, program, timings)
        self.runtimes[found] = None
        return found

    def _program(self, request: Request, timings: Timings) -> KernelProgram:
        start = timings.clock()
        program = self.kernels.program(request)
        spent = timings.clock() - start
        scheduling = min(spent, program.seconds.get("schedule", 0.0))
        timings.schedule_s += scheduling
        timings.lowering_s = spent - scheduling
        return program

    def sizes(self, inputs: Sequence[Any], device: Any, options: Options) -> tuple[Sizes, Engine]:
        """Bind flat values and choose the engine. Errors: those of binding, NoEngine."""
        bound = self.bind(inputs)
        engine = engines.choose(options, device=bound.device, has_cpu_tensors=bound.has_cpu_tensors, asked=device)
        return sizes_of(self.template, bound), engine

    # -- calls
    @property
    def input_plan(self) -> InputPlan:
        if self._input_plan is None:
            self._input_plan = InputPlan(self.template.fusion, self.template.base.equalities, self._shown)
        return self._input_plan

    def bind(self, inputs: Sequence[Any]) -> Bound:
        """Check flat values. Errors: those of `weft.runtime.binding`."""
        return self.input_plan.bind(inputs)

    def _cold(self, inputs: Sequence[Any], device: Any, enable: Sequence[str], disable: Sequence[str]) -> list[torch.Tensor]:
        """A call whose signature is not in the table, or that is profiled, or has options of its own."""
        values = flattened(inputs)
        options = _with_names(current(), enable, disable)
        keep = not enable and not disable
        prepared = self._known(values, device) if keep else None
        if prepared is None:
            prepared = self._prepare(values, device, options, frozenset(disable), keep)
        if prepared is None:
            return self._emulated_copies(values, device, enable, disable)
        arguments = [*values, *self._pointers(values)]
        if profile.active:
            return profile.recorded(self, prepared, arguments)
        return prepared.run(*arguments)

    def _known(self, values: Sequence[Any], device: Any) -> Prepared | None:
        try:
            return self._prepared.get(self._signature(values, device)[0])
        except (AttributeError, TypeError, ValueError, RuntimeError):  # binding says what is wrong with the values
            return None

    def _pointers(self, values: Sequence[Any]) -> list[int]:
        return [v.data_ptr() for v, kind in zip(values, self._kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]

    def _prepare(self, values: Sequence[Any], device: Any, options: Options, disable: frozenset[str], keep: bool) -> Prepared | None:
        """Prepare a call, and put it into the table; None for tensors on a GPU that are to be emulated."""
        start = time.perf_counter()
        timings = Timings()
        if options.emulate == "on" and any(isinstance(v, torch.Tensor) and v.is_cuda for v in values):
            self.bind(values)
            return None
        sizes, engine = self.sizes(values, device, options)
        timings.binding_s = time.perf_counter() - start
        runtime = self.runtime(sizes, engine, options, disable, timings) if sizes.variant.has_kernel else None
        launch_start = time.perf_counter()
        prepared = prepare_call(self, sizes, runtime, engine, self._kinds)
        timings.launch_s, timings.total_s = time.perf_counter() - launch_start, time.perf_counter() - start
        self.timings = timings
        if keep:
            self._remember(values, device, prepared)
        return prepared

    def _remember(self, values: Sequence[Any], device: Any, prepared: Prepared) -> None:
        key, low, _ = self._signature(values, device)
        guarded = [v for v, kind in zip(values, self._kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR, warm_path.CPU_SCALAR)]
        scalars: list[Any] = []
        for value, kind in zip(values, self._kinds):
            if kind in (warm_path.SCALAR, warm_path.SHAPE_SCALAR):
                scalars.append(type(value))
            if kind is warm_path.SHAPE_SCALAR:
                scalars.append(value)
        entry = (warm_path.guard_of(guarded), prepared.run, in_block(), device, *scalars)
        if len(self._table) >= LARGEST_TABLE:
            self._table.clear()
            self._prepared.clear()
        self._prepared[key] = prepared
        self._table[key] = entry
        if not low:
            self._last[0] = entry

    def _emulated_copies(self, values: Sequence[Any], device: Any, enable: Sequence[str], disable: Sequence[str]) -> list[torch.Tensor]:
        """Run a call with GPU tensors in the emulator: on copies, whose results go back to the GPU."""
        where = next(v.device for v in values if isinstance(v, torch.Tensor) and v.is_cuda)
        copies = [v.cpu() if isinstance(v, torch.Tensor) and v.is_cuda else v for v in values]
        results = self._cold(copies, torch.device("cpu"), enable, disable)
        for index in {*(i for i in self.template.outputs.alias if i is not None), *(to for to, _ in self.template.outputs.copies)}:
            values[index].detach().copy_(copies[index])
        back = {id(copy): value for copy, value in zip(copies, values)}
        return [back[id(r)] if id(r) in back else r.to(where) for r in results]


def flattened(inputs: Sequence[Any]) -> list[Any]:
    """Return the values with lists and tuples among them replaced by their items (one level)."""
    out: list[Any] = []
    for value in inputs:
        if isinstance(value, (list, tuple)):
            out.extend(value)
        else:
            out.append(value)
    return out


def _with_names(options: Options, enable: Sequence[str], disable: Sequence[str]) -> Options:
    """Return the settings with nvFuser's option names of one call; most have no meaning here."""
    changed: dict[str, object] = {}
    if "fast_math" in enable:
        changed["fast_math"] = True
    if "kernel_lineinfo" in enable:
        changed["device_line_info"] = True
    return options.with_values(changed) if changed else options


# ---------------------------------------------------------------- one call
def check_limits(program: KernelProgram, env: dict[Sym, Number], plan: dict[str, Any], arch: chips.Arch) -> None:
    """Raise when a launch is beyond what the chip allows, or vectors do not fit the sizes; before anything is compiled."""
    grid, block, shared = plan["grid"], plan["block"], plan["shared_bytes"]
    threads = block[0] * block[1] * block[2]
    if threads > arch.max_threads_per_block or block[2] > chips.MAX_BLOCK_Z:
        axes = ", ".join(f"threadIdx.{letter}: {sym}{'' if sym.is_const else f' = {n}'}" for letter, sym, n in zip("xyz", program.block, block) if n != 1)
        raise TooManyThreads(kernel=program.name, threads=threads, axes=axes, chip=arch.name, limit=arch.max_threads_per_block)
    if shared > arch.shared_per_block_optin_bytes:
        text = str(program.shared_bytes) if not program.shared_bytes.is_const else "constant"
        raise TooMuchShared(kernel=program.name, bytes=shared, text=text, chip=arch.name, limit=arch.shared_per_block_optin_bytes)
    for letter, sym, blocks, limit in zip("xyz", program.grid, grid, chips.MAX_GRID):
        if blocks > limit:
            raise GridTooLarge(kernel=program.name, axis=f"blockIdx.{letter}", blocks=blocks, text=sym, limit=limit)
    for check in program.checks:
        value = evaluate(check.extent, env)
        if value % check.divisor:  # type: ignore[operator]
            raise NotDivisible(kernel=program.name, what_=check.what, sym=check.extent, value=value, divisor=check.divisor)


def launch_sizes(program: KernelProgram, env: dict[Sym, Number]) -> dict[str, Any]:
    """Return grid, block and shared_bytes as numbers."""
    memo: dict[Sym, Number] = {}
    grid, block = (tuple(int(evaluate(s, env, memo)) for s in sizes) for sizes in (program.grid, program.block))  # type: ignore[arg-type]
    return {"grid": grid, "block": block, "shared_bytes": int(evaluate(program.shared_bytes, env, memo))}  # type: ignore[arg-type]


def check_alignment(caller: Caller, program: KernelProgram, sizes: Sizes) -> None:
    """Raise for inputs whose address or strides do not fit the vectors of a kernel."""
    inputs = caller.template.fusion.inputs()
    for index, tensor in sizes.bound.tensors.items():
        value: TensorView = inputs[index]  # type: ignore[assignment]
        needed = program.alignment_bytes.get(f"T{value.name}", 1)
        if tensor.alignment_bytes < needed:
            problem = f"its address is a multiple of {tensor.alignment_bytes} only"
            raise Misaligned(kernel=program.name, tensor=caller._shown[index], needed=needed, problem=problem)
        domain = value.domain()
        dims = {axis: dim for dim, axis in enumerate(no_reductions(domain.logical))}
        elem_bytes = value.dtype().bits // 8
        for axis, contiguous in zip(domain.maybe_allocation, domain.contiguity):
            dim = dims.get(axis)
            if contiguous is False and dim is not None and tensor.sizes[dim] > 1 and 0 not in tensor.sizes and tensor.strides[dim] * elem_bytes % needed:
                problem = f"the stride of dimension {dim} is {tensor.strides[dim]} elements"
                raise Misaligned(kernel=program.name, tensor=caller._shown[index], needed=needed, problem=problem)


def prepare_call(caller: Caller, sizes: Sizes, runtime: Runtime | None, engine: Engine, kinds: Sequence[str]) -> Prepared:
    """Lay out the launch of a call and write its function."""
    call = _CallWriter(caller, sizes, runtime, engine, kinds)
    run = call.write()
    tensors = sizes.bound.tensors.values()
    inputs = caller.template.fusion.inputs()
    input_bytes = sum(t.span_elems * inputs[i].dtype().bits // 8 for i, t in sizes.bound.tensors.items()) if tensors else 0  # type: ignore[attr-defined]
    output_bytes = sum(layout.storage_bytes for layout in sizes.layouts)
    return Prepared(run, runtime, call.plan, input_bytes, output_bytes)


class _CallWriter:
    """Writes the function of one signature. Pointers of a launch: inputs, outputs, scratch memory, in the order of the kernel's parameters."""

    def __init__(self, caller: Caller, sizes: Sizes, runtime: Runtime | None, engine: Engine, kinds: Sequence[str]) -> None:
        self.caller, self.sizes, self.runtime, self.engine, self.kinds = caller, sizes, runtime, engine, kinds
        self.inputs = caller.template.fusion.inputs()
        self.outputs = caller.template.outputs
        self.plan: LaunchPlan | None = None
        values = [f"a{i}" for i in range(len(kinds))]
        self.arguments = values + [f"p{i}" for i, kind in enumerate(kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]
        self._check_alias_shapes()

    def write(self) -> Callable[..., Any]:
        in_place = self._in_place()
        if not any(in_place):
            return self._write(in_place)
        careful = self._write([False] * len(in_place))
        return self._write(in_place, careful)

    # -- outputs that are written into inputs
    def _check_alias_shapes(self) -> None:
        for tensor, alias, layout in zip(self.outputs.computed, self.outputs.alias, self.sizes.layouts):
            if alias is not None and tuple(self.sizes.bound.tensors[alias].sizes) != layout.sizes:
                sizes = list(self.sizes.bound.tensors[alias].sizes)
                raise AliasShape(output=tensor, index=alias, alias=self.caller._shown[alias], alias_sizes=sizes, sizes=list(layout.sizes))

    def _in_place(self) -> list[bool]:
        """Per computed output: may the kernel write it into the input's buffer right away?"""
        if self.runtime is None:
            return [False] * len(self.outputs.computed)
        taken: set[int] = set()
        out = []
        for alias, layout, image in zip(self.outputs.alias, self.sizes.layouts, self.sizes.variant.images):
            ok = alias is not None and image is not None and alias not in taken and self._is_safe(alias, layout)
            if ok:
                taken.add(alias)  # type: ignore[arg-type]
            out.append(ok)
        return out

    def _is_safe(self, alias: int, layout: Layout) -> bool:
        tensor = self.sizes.bound.tensors[alias]
        name = f"T{self.inputs[alias].name}"
        is_read_once = loads(self.runtime.program.text, name) <= 1  # type: ignore[union-attr]
        return layout.is_like(tensor.sizes, tensor.strides) and name not in self.sizes.variant.hazards and is_read_once

    def _overlap_test(self, in_place: Sequence[bool]) -> str:
        """Return the condition that an input that is written lies across another input."""
        parts = []
        written = [alias for alias, ok in zip(self.outputs.alias, in_place) if ok]
        for alias in written:
            size = self._input_bytes(alias)  # type: ignore[arg-type]
            for other in self.sizes.bound.tensors:
                if other != alias and self.kinds[other] is not warm_path.CPU_SCALAR and (other not in written or other > alias):  # type: ignore[operator]
                    parts.append(f"p{alias} < p{other} + {self._input_bytes(other)} and p{other} < p{alias} + {size}")
        return " or ".join(parts)

    def _input_bytes(self, index: int) -> int:
        return self.sizes.bound.tensors[index].span_elems * self.inputs[index].dtype().bits // 8  # type: ignore[attr-defined]

    # -- the function
    def _write(self, in_place: Sequence[bool], careful: Callable[..., Any] | None = None) -> Callable[..., Any]:
        parts = warm_path.RunParts(list(self.arguments))
        if careful is not None:
            test = self._overlap_test(in_place)
            if test:
                parts.constants["careful"] = careful
                parts.allocations.append(f"if {test}: return careful({', '.join(self.arguments)})")
        buffers = self._allocate(parts, in_place)
        if self.runtime is not None:
            self._launch(parts, buffers, in_place)
        for number, (alias, ok) in enumerate(zip(self.outputs.alias, in_place)):
            if alias is not None and not ok:
                parts.after.append(f"a{alias}.detach().copy_(o{number})")
        parts.after += [f"a{to}.detach().copy_(a{source})" for to, source in self.outputs.copies]
        parts.returned = [f"a{index}" if kind == "input" else f"o{index}" for kind, index in self.outputs.returned]
        if self.engine.device is not None:
            parts.constants.update(stream=engines.stream_reader(self.engine.device), device=self.engine.device)
        return warm_path.write_run(parts)

    def _allocate(self, parts: warm_path.RunParts, in_place: Sequence[bool]) -> list[str]:
        """Write the allocations; return the expression of each computed output's address."""
        text, constants = warm_path.allocator(self.engine.device)
        parts.constants.update(constants)
        addresses = []
        for n, (layout, ok) in enumerate(zip(self.sizes.layouts, in_place)):
            if ok:
                addresses.append(f"p{self.outputs.alias[n]}")
                continue
            parts.allocations.append(f"o{n} = {text.format(n=n)}")
            parts.constants.update({f"size{n}": layout.sizes, f"stride{n}": layout.strides, f"dtype{n}": layout.dtype})
            addresses.append(f"o{n}.data_ptr()")
        return addresses

    # -- the launch
    def _launch(self, parts: warm_path.RunParts, buffers: Sequence[str], in_place: Sequence[bool]) -> None:
        runtime, env = self.runtime, self.sizes.env
        assert runtime is not None
        program = runtime.program
        slots: list[ParamSlot] = []
        memory: list[Memory] = []
        zeroed_bytes = 0
        for number, param in enumerate(program.params):
            if isinstance(param, TensorParam):
                expression, place = self._tensor(parts, param, buffers, in_place)
            elif isinstance(param, WorkParam):
                size = max(1, int(evaluate(param.elems, env))) * param.elem_bytes  # type: ignore[arg-type]
                place = Memory(param.name, size, True, True)
                if param.zeroed:
                    expression = f"zeroed + {zeroed_bytes}"
                    zeroed_bytes += -(-size // work_memory.PIECE_BYTES) * work_memory.PIECE_BYTES
                else:
                    expression = self._scratch(parts, number, size)
            else:
                slots.append(self._scalar(parts, number, param))
                continue
            slots.append(("pointer", len(memory)))
            memory.append(place)
            parts.pointers.append(expression)
        if zeroed_bytes:
            parts.constants.update(zeroed_memory=work_memory.zeroed, gpu=self.engine.device)
            parts.before += [f"memory = zeroed_memory(gpu, queue, {zeroed_bytes})", "zeroed = memory.data_ptr()"]
        sizes = launch_sizes(program, env)
        self.caller.change_launch(sizes)
        plan = LaunchPlan(
            slots=tuple(slots), memory=tuple(memory), cluster=program.cluster, cooperative=program.cooperative,
            overlaps_previous="griddep_wait" in program.text, **sizes,
        )  # fmt: skip
        parts.constants["launch"] = runtime.built.launcher(plan)
        parts.launches, self.plan = True, plan
        Dump.launch(program.name, plan)

    def _tensor(self, parts: warm_path.RunParts, param: TensorParam, buffers: Sequence[str], in_place: Sequence[bool]) -> tuple[str, Memory]:
        runtime = self.runtime
        assert runtime is not None
        for index, value in enumerate(self.inputs):
            if isinstance(value, TensorView) and f"T{value.name}" == param.name:
                return f"p{index}", Memory(param.name, self._input_bytes(index), param.written, True)
        for number, name in enumerate(runtime.output_names()):
            if name == param.name:
                return buffers[number], Memory(name, self.sizes.layouts[number].storage_bytes, True, in_place[number])
        for tensor in runtime.variant.fusion.tensors():
            if f"T{tensor.name}" == param.name:
                elems = evaluate(product(a.sym for a in no_reductions(tensor.get_logical_domain())), self.sizes.env)
                size = int(elems) * torch_dtype(tensor.dtype()).itemsize  # type: ignore[arg-type]
                return self._scratch(parts, len(parts.pointers), size), Memory(param.name, size, True, False)
        raise InternalError(f"kernel {runtime.program.name} has a parameter {param.name} that is no input, output or tensor of the fusion")

    def _scratch(self, parts: warm_path.RunParts, number: int, size_bytes: int) -> str:
        parts.constants.update(scratch=torch.empty, byte=torch.uint8, place=self._place())
        parts.before.append(f"w{number} = scratch({size_bytes}, dtype=byte, device=place)")
        return f"w{number}.data_ptr()"

    def _place(self) -> torch.device:
        return torch.device("cpu") if self.engine.device is None else torch.device("cuda", self.engine.device)

    def _scalar(self, parts: warm_path.RunParts, number: int, param: ScalarParam | RandomParam) -> ParamSlot:
        """Return the slot of a scalar, and write its computation when it changes from call to call."""
        runtime = self.runtime
        assert runtime is not None
        if isinstance(param, RandomParam):
            if "take" not in parts.constants:
                parts.constants["take"] = philox_state.taker(self.engine.device, runtime.program.random_ops, runtime.program.name)
                parts.before.append("seed, offset = take()")
            parts.scalars.append((number, param.what))
            return ("scalar", "unsigned long long", 0)
        kind = host_scalars.parameter_type(param.ctype)
        value = evaluate(param.sym, self.sizes.env)
        varying = self._varying(param.sym)
        if varying:
            fixed = {v: const(self.sizes.env[v], v.dtype) for v in variables(param.sym) if v not in varying}
            text = host_scalars.expression(substitute(param.sym, fixed), varying, parts.constants)
            parts.scalars.append((number, f"{kind.__name__}({text})"))
        return ("scalar", param.ctype, kind(value))  # type: ignore[arg-type]

    def _varying(self, sym: Sym) -> dict[Sym, str]:
        """Return the variables of `sym` that change without changing the signature, with their expressions."""
        wanted = variables(sym)
        out = {}
        for index, value in enumerate(self.inputs):
            if isinstance(value, Scalar) and value.sym in wanted and index not in self.caller.template.shape_scalars:
                out[value.sym] = f"a{index}"
            elif isinstance(value, TensorView) and value.is_cpu_scalar and cpu_scalar_var(value) in wanted:
                out[cpu_scalar_var(value)] = f"a{index}.item()"
        return out


__all__ = ["Caller", "Prepared", "check_alignment", "check_limits", "flattened", "launch_sizes", "prepare_call"]
