"""The function of one signature: which memory its launches get, which scalars change, what is written in place, what is returned.

Owns the layout of launches and the decision between writing in place and copying back. The text is put together by `weft.runtime.warm_path`.
Read first: `prepare_call`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..dump import Dump
from ..errors import InternalError
from ..expr import Sym, const, evaluate, evaluate_int, product, substitute, variables
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..lower.program import RandomParam, ScalarParam, TensorMapParam, TensorParam, WorkParam
from ..reference.torch_types import torch_dtype
from . import engines, host_scalars, philox_state, warm_path, work_memory
from .binding import cpu_scalar_var
from .engines import Engine, LaunchPlan, Memory
from .launch import ParamSlot
from .limits import launch_sizes
from .outputs import AliasShape
from .runtimes import Runtime, Sizes, Template


NO_ADDRESS = 1 << 20
"""What a tensor map is encoded with before the first launch."""


class CallerFacts(Protocol):
    """What the writer needs of a caller: the definition, its inputs as it names them, and dimensions that it fixes."""

    template: Template
    shown: list[Val]

    def change_launch(self, launch: dict[str, Any]) -> None: ...


@dataclass(eq=False)
class Prepared:
    """A signature's function and what it launches (nothing, when all outputs are empty or inputs)."""

    run: Callable[..., list[torch.Tensor]]
    runtimes: list[Runtime]
    plans: list[LaunchPlan]
    input_bytes: int
    output_bytes: int


def prepare_call(caller: CallerFacts, sizes: Sizes, kernels: list[Runtime], engine: Engine, kinds: Sequence[str]) -> Prepared:
    """Lay out the launches of a call and write its function."""
    call = _CallWriter(caller, sizes, kernels, engine, kinds)
    run = call.write()
    input_bytes = sum(call.input_bytes(index) for index in sizes.bound.tensors)
    output_bytes = sum(layout.storage_bytes for layout in sizes.layouts)
    return Prepared(run, kernels, call.plans, input_bytes, output_bytes)


class _CallWriter:
    """Writes the function of one signature. Pointers of a launch: inputs, outputs, scratch memory, in the order of the kernel's parameters."""

    def __init__(self, caller: CallerFacts, sizes: Sizes, kernels: list[Runtime], engine: Engine, kinds: Sequence[str]) -> None:
        self.caller, self.sizes, self.kernels, self.engine, self.kinds = caller, sizes, kernels, engine, kinds
        self.inputs = caller.template.fusion.inputs()
        self.outputs = caller.template.outputs
        self.plans: list[LaunchPlan] = []
        self._zeroed_bytes = 0
        values = [f"a{i}" for i in range(len(kinds))]
        self.arguments = values + [f"p{i}" for i, kind in enumerate(kinds) if kind in (warm_path.TENSOR, warm_path.COMPLEX_TENSOR)]
        self._check_alias_shapes()

    def write(self) -> Callable[..., Any]:
        in_place = self._in_place()
        careful = self._write([False] * len(in_place))
        return self._write(in_place, careful) if any(in_place) else careful

    # -- outputs that are written into inputs
    def _check_alias_shapes(self) -> None:
        for tensor, alias, layout in zip(self.outputs.computed, self.outputs.alias, self.sizes.layouts):
            if alias is not None and tuple(self.sizes.bound.tensors[alias].sizes) != layout.sizes:
                sizes = list(self.sizes.bound.tensors[alias].sizes)
                raise AliasShape(output=tensor, index=alias, alias=self.caller.shown[alias], alias_sizes=sizes, sizes=list(layout.sizes))

    def _in_place(self) -> list[bool]:
        """Per computed output: may the kernel write it into the input's buffer right away?"""
        out = [False] * len(self.outputs.computed)
        taken = {source for _, source in self.outputs.copies}  # copied as it was before
        for number, kernel in enumerate(self.kernels):
            read_later = {value.name for later in self.kernels[number + 1 :] for value in later.part.fusion.inputs()}
            for index, position in enumerate(kernel.part.outputs):
                alias = self.outputs.alias[position]
                if alias is None or alias in taken or self.inputs[alias].name in read_later:
                    continue
                if index in kernel.program.in_place and self._is_safe(kernel, position, alias):
                    taken.add(alias)
                    out[position] = True
        return out

    def _is_safe(self, kernel: Runtime, position: int, alias: int) -> bool:
        tensor = self.sizes.bound.tensors[alias]
        return position not in kernel.part.hazards and self.sizes.layouts[position].is_like(tensor.sizes, tensor.strides)

    def _overlap_test(self, in_place: Sequence[bool]) -> str:
        """Return the condition that an input that is written lies across another input."""
        parts = []
        written = [alias for alias, ok in zip(self.outputs.alias, in_place) if ok]
        for alias in written:
            size = self.input_bytes(alias)  # type: ignore[arg-type]
            for other in self.sizes.bound.tensors:
                if other != alias and self.kinds[other] is not warm_path.CPU_SCALAR and (other not in written or other > alias):  # type: ignore[operator]
                    parts.append(f"p{alias} < p{other} + {self.input_bytes(other)} and p{other} < p{alias} + {size}")
        return " or ".join(parts)

    def input_bytes(self, index: int) -> int:
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
        self.plans = []
        for number, kernel in enumerate(self.kernels):
            self._launch(parts, number, kernel, buffers, in_place)
        self._share_work(parts)
        parts.after += self._copies_back(in_place)
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

    def _copies_back(self, in_place: Sequence[bool]) -> list[str]:
        """Return what fills inputs after the launches: first those that another input is written into, which is what it was before the call."""
        copies = self.outputs.copies
        overwritten = {to for to, _ in copies}
        kept = [source for _, source in copies if source in overwritten]
        lines = [f"c{source} = a{source}.detach().clone()" for source in dict.fromkeys(kept)]
        lines += [f"a{to}.detach().copy_({'c' if source in kept else 'a'}{source})" for to, source in copies]
        pairs = enumerate(zip(self.outputs.alias, in_place))
        return lines + [f"a{alias}.detach().copy_(o{number})" for number, (alias, ok) in pairs if alias is not None and not ok]

    # -- the launches
    def _launch(self, parts: warm_path.RunParts, number: int, kernel: Runtime, buffers: Sequence[str], in_place: Sequence[bool]) -> None:
        env, program = self.sizes.env, kernel.program
        text = warm_path.LaunchText()
        slots: list[ParamSlot] = []
        memory: list[Memory] = []
        zeroed_bytes = 0
        for slot, param in enumerate(program.params):
            if isinstance(param, TensorParam):
                expression, place = self._tensor(parts, kernel, param, buffers, in_place)
            elif isinstance(param, WorkParam):
                size = max(1, evaluate_int(param.elems, env)) * param.elem_bytes
                place = Memory(param.name, size, True, param.zeroed, workspace=not param.zeroed, zeroed=param.zeroed)
                if param.zeroed:
                    expression = f"zeroed + {zeroed_bytes}"
                    zeroed_bytes += -(-size // work_memory.PIECE_BYTES) * work_memory.PIECE_BYTES
                else:
                    expression = self._scratch(parts, size)
            elif isinstance(param, TensorMapParam):
                slots.append(("tensor_map", next(n for n, m in enumerate(memory) if m.name == param.tensor), self._tensor_map(param)))
                continue
            else:
                slots.append(self._scalar(parts, text, slot, param))
                continue
            slots.append(("pointer", len(memory)))
            memory.append(place)
            text.pointers.append(expression)
        self._zeroed_bytes = max(self._zeroed_bytes, zeroed_bytes) if number else zeroed_bytes
        sizes = launch_sizes(program, env)
        self.caller.change_launch(sizes)
        plan = LaunchPlan(
            slots=tuple(slots), memory=tuple(memory), cluster=program.cluster, cooperative=program.cooperative,
            overlaps_previous="griddep_wait" in program.text, **sizes,
        )  # fmt: skip
        parts.constants[f"launch{number}"] = kernel.built.launcher(plan)
        parts.launches.append(text)
        self.plans.append(plan)
        Dump.launch(program.name, plan)

    def _share_work(self, parts: warm_path.RunParts) -> None:
        """Write what the launches have in common: zeroed memory, of which each leaves all zero, and the state of the random generator."""
        if self.kernels and self._zeroed_bytes:
            parts.constants.update(zeroed_memory=work_memory.zeroed, gpu=self.engine.device)
            parts.before += [f"memory, zeroed = zeroed_memory(gpu, queue, {self._zeroed_bytes})"]
        random_ops = sum(kernel.program.random_ops for kernel in self.kernels)
        if random_ops:
            parts.constants["take"] = philox_state.taker(self.engine.device, random_ops, self.kernels[0].program.name)
            parts.before.append("seed, offset, seed_at, drawn = take()")  # drawn: memory that has to stay until all kernels are launched

    def _tensor(
        self, parts: warm_path.RunParts, kernel: Runtime, param: TensorParam, buffers: Sequence[str], in_place: Sequence[bool]
    ) -> tuple[str, Memory]:
        for index, value in enumerate(self.inputs):
            if isinstance(value, TensorView) and f"T{value.name}" == param.name:
                return f"p{index}", Memory(param.name, self.input_bytes(index), param.written, True)
        position = kernel.output_of(param.name)
        if position is not None:
            return buffers[position], Memory(param.name, self.sizes.layouts[position].storage_bytes, True, in_place[position])
        for tensor in kernel.part.fusion.tensors():
            if f"T{tensor.name}" == param.name:
                elems = evaluate_int(product(a.sym for a in no_reductions(tensor.get_logical_domain())), self.sizes.env)
                size = elems * torch_dtype(tensor.dtype()).itemsize
                return self._scratch(parts, size), Memory(param.name, size, True, False, workspace=True)
        raise InternalError(f"kernel {kernel.program.name} has a parameter {param.name} that is no input, output or tensor of the fusion")

    def _scratch(self, parts: warm_path.RunParts, size_bytes: int) -> str:
        """Write the allocation of scratch memory; return the expression of its address."""
        number = f"_w{len(parts.before)}"
        text, constants = warm_path.allocator(self.engine.device)
        parts.constants.update(constants)
        parts.constants.update({f"size{number}": (size_bytes,), f"stride{number}": (1,), f"dtype{number}": torch.uint8})
        parts.before.append(f"w{number} = {text.format(n=number)}")
        return f"w{number}.data_ptr()"

    def _tensor_map(self, param: TensorMapParam) -> bytes:
        """Return the map for these sizes, once per signature; a launch puts in the tensor's address."""
        from ..emulator.tensor_map import encode_tensor_map as encode_emulated
        from .driver import encode_tensor_map

        extents, strides = ([evaluate_int(s, self.sizes.env) for s in syms] for syms in (param.extents_elems, param.strides_bytes))
        if self.engine.device is None:
            return encode_emulated(NO_ADDRESS, extents, strides, param.box_elems, param.element_bits // 8, swizzle_bytes=param.swizzle_bytes)
        return encode_tensor_map(NO_ADDRESS, param.element_bits, extents, strides, param.box_elems, param.swizzle_bytes)

    def _scalar(self, parts: warm_path.RunParts, text: warm_path.LaunchText, slot: int, param: ScalarParam | RandomParam) -> ParamSlot:
        """Return the slot of a scalar, and write its computation when it changes from call to call."""
        if isinstance(param, RandomParam):
            text.scalars.append((slot, param.what))  # seed, offset, seed_at: variables of the function
            return ("scalar", "unsigned long long", 0)
        kind = host_scalars.parameter_type(param.ctype)
        varying = self._varying(param.sym)
        if varying:
            fixed = {v: const(self.sizes.env[v], v.dtype) for v in variables(param.sym) if v not in varying}
            value = host_scalars.expression(substitute(param.sym, fixed), varying, parts.constants)
            text.scalars.append((slot, f"{kind.__name__}({value})"))
        return ("scalar", param.ctype, kind(evaluate(param.sym, self.sizes.env)))

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
