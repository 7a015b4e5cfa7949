"""The function of one signature: which memory its launches get, which scalars change, what is written in place, what is returned.

Owns the layout of launches and the decision between writing in place and copying back. The text is put together by `weft.runtime.warm_path`.
Read first: `prepare_call`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..dump import Dump
from ..errors import InternalError
from ..expr import Number, Sym, const, evaluate, evaluate_int, product, substitute, variables
from ..ir.graph_ops import ScatterStoreOp
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..ops.lookups import check_place
from ..options import current
from ..lower.program import Need, RandomParam, ScalarParam, TensorMapParam, TensorParam, WorkParam
from . import bounds, engines, gradient_check, host_scalars, philox_state, warm_path, work_memory
from .binding import cpu_scalar_var
from .edge_memory import EdgeMemory
from .engines import Engine, LaunchPlan, Memory
from .launch import ParamSlot
from .limits import launch_sizes
from .outputs import AliasOverlap, AliasShape, layout_of, place_of_part
from ..segment.plan import JoinStep, KernelStep, TorchStep, ViewStep
from .runtimes import Runtime, Sizes, SharedDefinition, input_name
from .steps import KernelUse
from .torch_steps import call_text
from .view_outputs import View


NO_ADDRESS = 1 << 20
"""The dummy address in a tensor map before the first launch."""


MOST_EARLY_BYTES = 4 << 20
"""Outputs of up to this size are allocated before the first kernel, so that launches are not delayed; larger ones may reuse memory that is freed later."""


PASSED_ON = frozenset(("reverse",))
"""Attributes that graph passes give to ops which torch may run. All others are those of the user's op, for the user's shapes."""


class CallerFacts(Protocol):
    """The facts of a caller: the definition, the names of its inputs, and fixed launch dimensions."""

    shared: SharedDefinition
    shown: list[Val]

    def change_launch(self, launch: dict[str, Any]) -> None: ...


@dataclass(eq=False)
class PreparedCall:
    """The function of a signature and its launches (none if all outputs are empty or inputs)."""

    run: Callable[..., list[torch.Tensor]]
    runtimes: list[Runtime]
    plans: list[LaunchPlan]
    input_bytes: int
    output_bytes: int


def prepare_call(caller: CallerFacts, sizes: Sizes, kernels: list[Runtime], engine: Engine, kinds: Sequence[str]) -> PreparedCall:
    """Plan the launches of a call and write its function."""
    call = _CallWriter(caller, sizes, kernels, engine, kinds)
    run = call.write()
    if current().bounds and engine.device is not None:
        run = _after_reports(run)
    input_bytes = sum(call.input_bytes(index) for index in sizes.bound.tensors)
    not_written = {n for n, view in sizes.views.items() if view.of_result} | sizes.left_out
    written = [n for n in range(len(caller.shared.outputs.computed)) if n not in not_written]
    output_bytes = sum(sizes.layouts[n].storage_bytes for n in written)
    return PreparedCall(run, kernels, call.plans, input_bytes, output_bytes)


def _after_reports(run: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    """Return a call that first raises errors for reports of earlier kernels. Errors: PositionOutOfRange."""

    def run_after_reports(*arguments: Any) -> list[torch.Tensor]:
        bounds.raise_reported()
        return run(*arguments)

    return run_after_reports


def copied_with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the strides of a tensor, whose elements may have gaps between them."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor.detach())


class _CallWriter:
    """Writes the function of one signature. Pointers of a launch: inputs, outputs, scratch memory, in the order of the kernel's parameters.

    A buffer is a tensor that a step writes: o3 is buffer 3. Buffers are numbered as in `Sizes.buffers`, the computed outputs first.
    """

    def __init__(self, caller: CallerFacts, sizes: Sizes, kernels: list[Runtime], engine: Engine, kinds: Sequence[str]) -> None:
        self.caller, self.sizes, self.kernels, self.engine, self.kinds = caller, sizes, kernels, engine, kinds
        self.inputs = caller.shared.fusion.inputs()
        self.outputs = caller.shared.outputs
        self.plans: list[LaunchPlan] = []
        self._zeroed_bytes = self._scratches = self._texts = 0
        self._borrowable = 0  # bytes before the zeroed memory that the current launch may still use
        self._computed: tuple[object, dict[Sym, str]] = (None, {})  # for the current launch: expression -> variable of the function
        self._values: dict[int, dict[Sym, Number]] = {}
        self._buffers = {input_name(t): n for n, t in enumerate(sizes.buffers)}
        self._parts = self._find_parts()
        self._scattered_inputs = self._find_scattered_inputs()
        values = [f"a{i}" for i in range(len(kinds))]
        self.arguments = values + [f"p{i}" for i, kind in enumerate(kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]
        self._check_alias_shapes()

    def write(self) -> Callable[..., Any]:
        in_place = self._in_place()
        careful = self._write([False] * len(in_place))
        if not any(in_place):
            return careful
        setattr(careful, "plans", self.plans)  # for the recording of calls
        return self._write(in_place, careful)

    def _find_parts(self) -> dict[int, tuple[int, int]]:
        """Return buffer -> the buffer in whose memory it lies, and the bytes before it there, for parts of `JoinedOp`s."""
        found: dict[int, tuple[int, int]] = {}
        for step in self.sizes.plan.steps:
            for tensor in step.reads if isinstance(step, JoinStep) else ():
                whole, first_byte = place_of_part(tensor, self.sizes.env)  # type: ignore[arg-type,misc]
                found[self._buffers[input_name(tensor)]] = self._buffers[input_name(whole)], first_byte
        return found

    def _find_scattered_inputs(self) -> dict[int, int]:
        """Return buffer -> position of the input whose memory it is, for results of scatters into inputs."""
        found: dict[int, int] = {}
        for step in self.sizes.plan.steps:
            if isinstance(step, ViewStep) and step.after:
                name = input_name(step.source)
                index = self.sizes.places.get(name, found.get(self._buffers.get(name, -1)))
                if index is not None:
                    found[self._buffers[input_name(step.output)]] = index
        return found

    # -- outputs that are written into inputs
    def _check_alias_shapes(self) -> None:
        for tensor, alias, layout in zip(self.outputs.computed, self.outputs.alias, self.sizes.layouts):
            if alias is not None and tuple(self.sizes.bound.tensors[alias].sizes) != layout.sizes:
                sizes = list(self.sizes.bound.tensors[alias].sizes)
                raise AliasShape(output=tensor, index=alias, alias=self.caller.shown[alias], alias_sizes=sizes, sizes=list(layout.sizes))
            if alias is None:
                continue
            given = self.sizes.bound.tensors[alias]
            if any(n > 1 and not stride for n, stride in zip(given.sizes, given.strides)):
                raise AliasOverlap(output=tensor, index=alias, alias=self.caller.shown[alias], sizes=list(given.sizes), strides=list(given.strides))

    def _in_place(self) -> list[bool]:
        """Return for each buffer whether its kernel may write directly into an input's memory. Not if a later step reads the input, because all steps see its
        old values; of an input that is scattered into, graph passes have made sure of that. Memory that nobody asked to be written (`OutputPlan.reuses`) is
        written by the last step only, so that a call that fails earlier can be made again."""
        out = [n in self._scattered_inputs for n in range(len(self.sizes.buffers))]
        taken = {source for _, source in self.outputs.copies}  # copied with its old values
        runtimes = iter(zip(self.sizes.kernels, self.kernels))
        for number, step in enumerate(self.sizes.plan.steps):
            if not isinstance(step, KernelStep):
                continue
            use, kernel = next(runtimes)
            read_later = {input_name(value) for later in self.sizes.plan.steps[number + 1 :] for value in later.reads}
            for place, buffer in enumerate(use.outputs):
                alias = self.outputs.alias[buffer] if buffer < len(self.outputs.alias) else None
                if alias is None or alias in taken or input_name(self.inputs[alias]) in read_later:
                    continue
                if buffer in self.outputs.reuses and number + 1 < len(self.sizes.plan.steps):
                    continue
                if place in kernel.program.in_place and place not in kernel.part.hazards and self._is_like(buffer, alias):
                    taken.add(alias)
                    out[buffer] = True
        return out

    def _is_like(self, buffer: int, alias: int) -> bool:
        tensor = self.sizes.bound.tensors[alias]
        return self.sizes.layouts[buffer].is_like(tensor.sizes, tensor.strides)

    def _overlap_test(self, in_place: Sequence[bool]) -> str:
        """Return the condition that a written input overlaps another input; one that is only reused is known to overlap none."""
        parts = []
        written = [alias for n, (alias, ok) in enumerate(zip(self.outputs.alias, in_place)) if ok and n not in self.outputs.reuses]
        for alias in written:
            size = self.input_bytes(alias)  # type: ignore[arg-type]
            for other in self.sizes.bound.tensors:
                if other != alias and self.kinds[other] is not warm_path.CPU_SCALAR and (other not in written or other > alias):  # type: ignore[operator]
                    parts.append(f"p{alias} < p{other} + {self.input_bytes(other)} and p{other} < p{alias} + {size}")
        return " or ".join(parts)

    def input_bytes(self, index: int) -> int:
        return -(-self.sizes.bound.tensors[index].span_elems * self.inputs[index].dtype().bits // 8)  # type: ignore[attr-defined]

    # -- the function
    def _write(self, in_place: Sequence[bool], careful: Callable[..., Any] | None = None) -> Callable[..., Any]:
        parts = warm_path.RunParts(list(self.arguments))
        if careful is not None:
            test = self._overlap_test(in_place)
            if test:
                parts.constants["careful"] = careful
                parts.allocations.append(f"if {test}: return careful({', '.join(self.arguments)})")
        text, constants = warm_path.allocator(self.engine.device)
        parts.constants.update(constants)
        inside = [self._scattered_inputs.get(n, self.outputs.alias[n] if n < len(self.outputs.alias) else None) for n in range(len(in_place))]
        self._allocation, self._addresses = text, [f"p{inside[n]}" if ok else f"o{n}.data_ptr()" for n, ok in enumerate(in_place)]
        self._input_copies = set() if any(in_place) else set(self._scattered_inputs.values())
        parts.constants.update({"copied": copied_with_strides} if self._input_copies else {})
        parts.allocations += [f"m{n} = copied(a{n})" for n in sorted(self._input_copies)]
        self.plans, self._scratches, self._edges = [], 0, EdgeMemory()
        self._begun = set[int]()  # the buffers of which a part was written
        self._check_places(parts)
        self._write_steps(parts, in_place)
        self._share_work(parts)
        parts.after += self._copies_back(parts, in_place)
        parts.returned = [f"a{index}" if kind == "input" else self._result(index, in_place) for kind, index in self.outputs.returned]
        if self.engine.device is not None:
            parts.constants.update(stream=engines.stream_reader(self.engine.device), device=self.engine.device)
        return warm_path.write_run(parts)

    def _check_places(self, parts: warm_path.RunParts) -> None:
        """Write the check of each element that a scalar chooses which is no part of the signature."""
        env, shared = self.sizes.bound.env, self.caller.shared
        for number, (lookup, dim, position, size) in enumerate(shared.chosen_places):
            varying = {v: text for v, text in self._varying_inputs(zip(self.inputs, self.inputs)).items() if v in variables(position)}
            if not varying:
                continue
            fixed = {v: const(env[v], v.dtype) for v in variables(position) if v not in varying}
            place = host_scalars.expression(substitute(position, fixed), varying, parts.constants, f"place{number}")
            parts.constants[f"outside{number}"] = functools.partial(check_place, lookup, dim)
            length = evaluate_int(size, env)
            parts.allocations.append(f"if not 0 <= (at := {place}) < {length}: outside{number}(at, {length})")

    def _result(self, buffer: int, in_place: Sequence[bool]) -> str:
        """The variable of a computed output."""
        return f"a{self.outputs.alias[buffer]}" if in_place[buffer] else f"o{buffer}"

    def _write_steps(self, parts: warm_path.RunParts, in_place: Sequence[bool]) -> None:
        """Write the steps. Intermediates that only kernels read share one piece of memory; others are tensors that are freed after their last reader."""
        steps = self.sizes.plan.steps
        written = {self._buffers[input_name(t)] for step in steps for t in step.outputs}
        for n in range(len(self.outputs.computed)):
            view = self.sizes.views.get(n)
            if view is not None:
                (parts.after if view.of_result else parts.allocations).append(self._view_of(n, view))
            elif n in self.sizes.left_out:
                continue
            elif n not in written and not in_place[n]:
                parts.allocations.append(self._allocate(parts, n))
        dead_after, own_tensors = self._dead_after(), self._tensors_of_torch()
        fresh: list[tuple[warm_path.LaunchText, int]] = []  # outputs, and the steps that write them
        uses = iter(zip(self.sizes.kernels, self.kernels))
        for number, step in enumerate(steps):
            text = warm_path.LaunchText()
            if isinstance(step, KernelStep):
                use, kernel = next(uses)
                fresh += self._place_outputs(parts, text, use, in_place, own_tensors)
                first_scratch = self._scratches
                self._launch(parts, text, use, kernel, in_place)
                self._edges.give_back(f"w{n}" for n in range(first_scratch, self._scratches))
            elif isinstance(step, TorchStep):
                text.call, text.torch_name = self._torch_call(parts, number, step), f"torch{number}"
            elif isinstance(step, ViewStep):
                text.call = self._view(step)
                if in_place[self._buffers[input_name(step.output)]]:
                    continue  # it is an argument, which nothing need show again
            else:
                continue  # its parts are where they are to be
            for buffer in dead_after[number]:
                if self._own_buffer(buffer) and not self._edges.give_back([buffer]):
                    text.after.append(f"del o{buffer}")
            parts.steps.append(text)
        self._allocate_outputs(parts, fresh)
        if self._edges.most_bytes:
            parts.constants.update(size_edges=(self._edges.most_bytes,), stride_edges=(1,), dtype_edges=torch.uint8)
            parts.allocations += [f"edge_memory = {self._allocation.format(n='_edges')}", "edges = edge_memory.data_ptr()"]

    def _place_outputs(
        self, parts: warm_path.RunParts, text: warm_path.LaunchText, use: KernelUse, in_place: Sequence[bool], own_tensors: Set[int]
    ) -> list[tuple[warm_path.LaunchText, int]]:  # fmt: skip
        """Decide where a kernel writes; write the allocations of edges. Return the outputs of the definition that it is the first to write into."""
        fresh: list[tuple[warm_path.LaunchText, int]] = []
        scattered = self._scattered_into(use)
        for buffer in use.outputs:
            if buffer in scattered:
                self._addresses[buffer] = self._address(scattered[buffer])
                continue
            whole, first_byte = self._parts.get(buffer, (buffer, 0))
            if whole != buffer:
                self._addresses[buffer] = f"o{whole}.data_ptr() + {first_byte}"
                if whole in self._begun:
                    continue
                self._begun.add(whole)
            if whole < len(self.outputs.computed):
                fresh += [] if in_place[whole] else [(text, whole)]
            elif whole != buffer or not self._put_into_edges(whole, own_tensors):
                text.before.append(self._allocate(parts, whole))
        return fresh

    def _allocate_outputs(self, parts: warm_path.RunParts, fresh: Sequence[tuple[warm_path.LaunchText, int]]) -> None:
        """Write the allocations of outputs: all at the start, unless the larger ones could reuse memory that is freed before they are written."""
        is_freed = any(text.before or text.after for text in parts.steps)
        for text, buffer in fresh:
            if len(parts.steps) == 1 or not is_freed or self.sizes.layouts[buffer].storage_bytes <= MOST_EARLY_BYTES:
                parts.allocations.append(self._allocate(parts, buffer))
            else:
                text.before.insert(0, self._allocate(parts, buffer))

    def _scattered_into(self, use: KernelUse) -> dict[int, Val]:
        """Return output buffer -> value in whose memory it is, for outputs of a kernel that are written into memory that was there before."""
        values = {own: value for own, value in zip(use.part.fusion.inputs(), use.inputs)}
        out: dict[int, Val] = {}
        for buffer, output in zip(use.outputs, use.part.fusion.outputs()):
            definition = output.definition()
            if isinstance(definition, ScatterStoreOp):
                out[buffer] = values[definition.memory]
        return out

    def _address(self, value: Val) -> str:
        """Return the expression of the address of an input, or of what a step has written."""
        index = self.sizes.places.get(input_name(value))
        if index is None:
            return self._addresses[self._buffers[input_name(value)]]
        return f"m{index}.data_ptr()" if index in self._input_copies else f"p{index}"

    def _storage_bytes(self, value: Val) -> int:
        index = self.sizes.places.get(input_name(value))
        return self.sizes.layouts[self._buffers[input_name(value)]].storage_bytes if index is None else self.input_bytes(index)

    def _own_buffer(self, buffer: int) -> bool:
        """Tell whether a buffer has memory of its own, all of which its kernel writes."""
        return buffer not in self._parts and not isinstance(self.sizes.buffers[buffer].definition(), ScatterStoreOp)

    def _put_into_edges(self, buffer: int, own_tensors: Set[int]) -> bool:
        """Place a buffer in the shared intermediate memory; False if it must be a tensor, or there is no room."""
        offset = None if buffer in own_tensors else self._edges.take(buffer, self.sizes.layouts[buffer].storage_bytes)
        if offset is not None:
            self._addresses[buffer] = f"edges + {offset}"
        return offset is not None

    def _tensors_of_torch(self) -> set[int]:
        """Return the buffers that steps without a kernel read or write."""
        steps = [step for step in self.sizes.plan.steps if not isinstance(step, KernelStep)]
        return {self._buffers[name] for step in steps for value in (*step.outputs, *step.reads) if (name := input_name(value)) in self._buffers}

    def _view_of(self, n: int, view: View) -> str:
        """Return the statement that creates an output as a view of an input or of another output."""
        a = f"{'o' if view.of_result else 'a'}{view.source}"
        whole = a if view.of_result else f"{a}.detach()"
        return f"o{n} = {whole}.as_strided({view.sizes}, {view.strides}, {a}.storage_offset(){f' + {view.offset}' if view.offset else ''})"

    def _allocate(self, parts: warm_path.RunParts, n: int) -> str:
        """Return the statement that allocates a buffer."""
        layout = self.sizes.layouts[n]
        parts.constants.update({f"size{n}": layout.torch_sizes, f"stride{n}": layout.torch_strides, f"dtype{n}": layout.dtype})
        return f"o{n} = {self._allocation.format(n=n)}"

    def _dead_after(self) -> list[list[int]]:
        """Return, for each step, the edges that no later step reads."""
        steps, first_edge = self.sizes.plan.steps, len(self.outputs.computed)
        last: dict[int, int] = {}
        for number, step in enumerate(steps):
            for value in (*step.outputs, *step.reads):
                buffer = self._buffers.get(input_name(value))
                if buffer is not None and buffer >= first_edge:
                    last[buffer] = number
        return [[buffer for buffer, at in last.items() if at == number] for number in range(len(steps))]

    def _copies_back(self, parts: warm_path.RunParts, in_place: Sequence[bool]) -> list[str]:
        """Return the copies into inputs after the launches: first those from other inputs, which must still have their old values."""
        copies = self.outputs.copies
        overwritten = {to for to, _ in copies}
        kept = [source for _, source in copies if source in overwritten]
        lines = [f"c{source} = a{source}.detach().clone()" for source in dict.fromkeys(kept)]
        lines += [f"a{to}.detach().copy_({'c' if source in kept else 'a'}{source})" for to, source in copies]
        pairs = [(n, pair) for n, pair in enumerate(zip(self.outputs.alias, in_place)) if n not in self.outputs.reuses]
        written = [alias for _, (alias, ok) in pairs if alias is not None and ok]
        if written:
            parts.constants["was_written"] = gradient_check.was_written
            lines += [f"was_written(a{alias})" for alias in written]
        return lines + [f"a{alias}.detach().copy_(o{number})" for number, (alias, ok) in pairs if alias is not None and not ok]

    # -- steps without a kernel
    def _memory(self, tensor: Val) -> str:
        """Return the torch tensor that holds a value of the definition, as text."""
        index = self.sizes.places.get(input_name(tensor))
        if index is not None:
            return f"m{index}" if index in self._input_copies else f"a{index}"
        buffer = self._buffers[input_name(tensor)]
        address = self._addresses[buffer]
        return f"a{address[1:]}" if address.startswith("p") else f"o{buffer}"

    def _torch_call(self, parts: warm_path.RunParts, number: int, step: TorchStep) -> str:
        """Return the call of an op that torch runs, on operands of the user's shapes, because graph passes may have split axes and removed reshapes."""
        expr = step.expr
        defined = self.caller.shared.tensors.get(expr.outputs[0].name)
        if defined is not None and type(defined.definition()) is type(expr):
            expr = copy.copy(defined.definition())  # type: ignore[assignment]
            expr.attributes = {**expr.attributes, **{name: value for name, value in step.expr.attributes.items() if name in PASSED_ON}}
        operands = []
        for tensor, wanted in zip(step.expr.tensor_inputs, expr.tensor_inputs):
            text, sizes = self._memory(tensor), layout_of(wanted, self.sizes.env).sizes
            index = self.sizes.places.get(input_name(tensor))
            has = self.sizes.layouts[self._buffers[input_name(tensor)]].sizes if index is None else self.sizes.bound.tensors[index].sizes
            operands.append(text if tuple(has) == sizes else f"{text}.reshape({sizes})")
        buffers = [self._buffers[input_name(t)] for t in step.outputs]
        layouts = [self.sizes.layouts[n] for n in buffers]
        call = call_text(number, expr, operands, layouts, self.sizes.env, self._varying_inputs(zip(self.inputs, self.inputs)), parts.constants)
        return f"{', '.join(f'o{n}' for n in buffers)}, = {call}"

    def _view(self, step: ViewStep) -> str:
        buffer = self._buffers[input_name(step.output)]
        source = self._memory(step.source)
        return f"o{buffer} = {source}{'.detach()' if source.startswith('a') else ''}.view({self.sizes.layouts[buffer].sizes})"

    # -- the launches
    def _launch(self, parts: warm_path.RunParts, text: warm_path.LaunchText, use: KernelUse, kernel: Runtime, in_place: Sequence[bool]) -> None:
        env, program, number = use.env, kernel.program, len(self.plans)
        slots: list[ParamSlot] = []
        memory: list[Memory] = []
        zeroed_bytes = 0
        self._borrowable = work_memory.SCRATCH_BYTES if any(isinstance(p, WorkParam) and p.zeroed for p in program.params) else 0
        for slot, param in enumerate(program.params):
            if isinstance(param, TensorParam):
                expression, place = self._tensor(parts, text, use, kernel, param, in_place)
            elif isinstance(param, WorkParam):
                size = max(1, evaluate_int(param.elems, env)) * param.elem_bytes
                place = Memory(param.name, size, True, param.zeroed, workspace=not param.zeroed, zeroed=param.zeroed)
                if param.zeroed:
                    expression = f"zeroed + {zeroed_bytes}"
                    zeroed_bytes += -(-size // work_memory.PIECE_BYTES) * work_memory.PIECE_BYTES
                else:
                    expression = self._scratch(parts, text, size)
            elif isinstance(param, TensorMapParam):
                slots.append(("tensor_map", next(n for n, m in enumerate(memory) if m.name == param.tensor), self._tensor_map(param, env)))
                continue
            else:
                slots.append(self._scalar(parts, text, slot, param, use))
                continue
            slots.append(("pointer", len(memory)))
            memory.append(place)
            text.pointers.append(expression)
        self._zeroed_bytes = max(self._zeroed_bytes, zeroed_bytes) if number else zeroed_bytes
        sizes = launch_sizes(program, env)
        self.caller.change_launch(sizes)
        plan = LaunchPlan(
            slots=tuple(slots), memory=tuple(memory), cluster=program.cluster, cooperative=program.cooperative,
            overlaps_previous=Need.dependent_launch in program.needs, **sizes,
        )  # fmt: skip
        parts.constants[f"launch{number}"] = kernel.built.launcher(plan)
        text.number = number
        self.plans.append(plan)
        Dump.launch(program.name, plan)

    def _share_work(self, parts: warm_path.RunParts) -> None:
        """Write the common parts of the launches: zeroed memory, which each launch leaves zero, and the state of the random generator."""
        if self.kernels and self._zeroed_bytes:
            parts.constants.update(work_memory.names(self.engine.device))
            parts.before += work_memory.statements(self._zeroed_bytes)
        if any(kernel.program.random_ops for kernel in self.kernels):
            random_ops = self.caller.shared.random_ops
            parts.constants["take"] = philox_state.taker(self.engine.device, random_ops, self.kernels[0].program.name)
            parts.before.append("seed, offset, seed_at, drawn = take()")  # drawn: memory that must be kept until all kernels are launched

    def _tensor(
        self, parts: warm_path.RunParts, text: warm_path.LaunchText, use: KernelUse, kernel: Runtime, param: TensorParam, in_place: Sequence[bool]
    ) -> tuple[str, Memory]:
        for own, value in zip(use.part.fusion.inputs(), use.inputs):
            if isinstance(own, TensorView) and f"T{own.name}" == param.name:
                return self._address(value), Memory(param.name, self._storage_bytes(value), param.written, True)
        place = kernel.output_of(param.name)
        if place is not None:
            buffer = use.outputs[place]
            memory = self._scattered_into(use).get(buffer)
            size = self.sizes.layouts[buffer].storage_bytes if memory is None else self._storage_bytes(memory)
            return self._addresses[buffer], Memory(param.name, size, True, in_place[buffer] or not self._own_buffer(buffer))
        for tensor in use.part.fusion.tensors():
            if f"T{tensor.name}" == param.name:
                elems = evaluate_int(product(a.sym for a in no_reductions(tensor.get_logical_domain())), use.env)
                size = -(-elems * tensor.dtype().bits // 8)
                return self._scratch(parts, text, size), Memory(param.name, size, True, False, workspace=True)
        raise InternalError(f"kernel {kernel.program.name} has a parameter {param.name} that is no input, output or tensor of the fusion")

    def _scratch(self, parts: warm_path.RunParts, launch: warm_path.LaunchText, size_bytes: int) -> str:
        """Find scratch memory for one launch; return the expression of its address."""
        number = f"_w{self._scratches}"
        self._scratches += 1
        offset = self._edges.take(number[1:], size_bytes) if len(self.sizes.plan.steps) > 1 else None
        if offset is not None:
            return f"edges + {offset}"
        piece = -(-size_bytes // work_memory.PIECE_BYTES) * work_memory.PIECE_BYTES
        if piece <= self._borrowable:
            self._borrowable -= piece
            return f"zeroed - {self._borrowable + piece}"
        parts.constants.update({f"size{number}": (size_bytes,), f"stride{number}": (1,), f"dtype{number}": torch.uint8})
        launch.before.append(f"w{number} = {self._allocation.format(n=number)}")
        if len(self.sizes.plan.steps) > 1:
            launch.after.append(f"del w{number}")
        return f"w{number}.data_ptr()"

    def _tensor_map(self, param: TensorMapParam, env: dict[Sym, Number]) -> bytes:
        """Return the map for these sizes, encoded once per signature; each launch sets the tensor's address."""
        from ..emulator.tensor_map import encode_tensor_map as encode_emulated
        from .driver import encode_tensor_map

        extents, strides = ([evaluate_int(s, env) for s in syms] for syms in (param.extents_elems, param.strides_bytes))
        if self.engine.device is None:
            return encode_emulated(NO_ADDRESS, extents, strides, param.box_elems, param.element_bits // 8, swizzle_bytes=param.swizzle_bytes)
        return encode_tensor_map(NO_ADDRESS, param.element_bits, extents, strides, param.box_elems, param.swizzle_bytes)

    def _scalar(
        self, parts: warm_path.RunParts, text: warm_path.LaunchText, slot: int, param: ScalarParam | RandomParam, use: KernelUse
    ) -> ParamSlot:
        """Return the slot of a scalar, and write its computation if it changes from call to call."""
        if isinstance(param, RandomParam):
            text.scalars.append((slot, param.what))  # seed, offset, seed_at: variables of the function
            return ("scalar", "unsigned long long", 0)
        kind = host_scalars.parameter_type(param.ctype)
        varying = self._varying(param.sym, use)
        if varying:
            fixed = {v: const(use.env[v], v.dtype) for v in variables(param.sym) if v not in varying}
            if self._computed[0] is not text:  # variables mean something else in another launch
                self._computed, self._texts = (text, {}), self._texts + 1
            computed = self._computed[1]
            names = {**varying, **computed}
            sym = substitute(param.sym, fixed) if fixed else param.sym
            value = host_scalars.expression(sym, names, parts.constants, f"value_{self._texts}_{slot}")
            computed.update((sym, name) for sym, name in names.items() if sym.args)
            text.scalars.append((slot, f"{kind.__name__}({value})"))
        return ("scalar", param.ctype, kind(evaluate(param.sym, use.env, self._values.setdefault(id(use), {}))))

    def _varying(self, sym: Sym, use: KernelUse) -> dict[Sym, str]:
        """Return the variables of `sym` that change without changing the signature, with their expressions."""
        wanted = variables(sym)
        return {v: text for v, text in self._varying_inputs(zip(use.part.fusion.inputs(), use.inputs)).items() if v in wanted} if wanted else {}

    def _varying_inputs(self, inputs: Iterable[tuple[Val, Val]]) -> dict[Sym, str]:
        """Return the variables whose values are no part of the signature, with their expressions. inputs: (value of a kernel, value of the definition)."""
        out = {}
        for own, value in inputs:
            index = self.sizes.places.get(input_name(value))
            if isinstance(own, Scalar) and index not in self.caller.shared.shape_scalars:
                out[own.sym] = f"a{index}"
            elif isinstance(own, TensorView) and own.is_cpu_scalar:
                out[cpu_scalar_var(own)] = f"a{index}.item()"
        return out
