"""A random fusion as data: inputs, ops, outputs. It defines itself, makes its inputs, and prints itself as a script that can be pasted.

Read first: `Case`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from weft import DataType, FusionDefinition
from weft.reference.torch_types import torch_dtype

ONE = "1"
"""The label of an axis of extent 1 that is written so in the definition (a broadcast axis)."""


@dataclass(frozen=True)
class Ref:
    """The value called `name`."""

    name: str


@dataclass(frozen=True)
class Extent:
    """The size of the loop `label`: of axis `dim` of tensor `tensor` where these are given, else as a number."""

    label: str
    tensor: str = ""
    dim: int = 0


@dataclass(frozen=True)
class TensorInput:
    """A tensor input.

    labels: per axis, the loop it varies over. order: axes from the outermost in memory. expanded: axes of stride 0. gapped: axes with unused memory
    between their elements. offset: of the first element. static: the sizes are written into the definition. dtype: the DataType's name.
    below: the elements are indices, from 0 to this (0: any numbers). is_cpu: a number in a tensor of the CPU. specials: how many elements of a float are
    no number or infinite.
    """

    name: str
    labels: tuple[str, ...]
    dtype: str = "Float"
    order: tuple[int, ...] = ()
    expanded: frozenset[int] = frozenset()
    gapped: frozenset[int] = frozenset()
    offset: int = 0
    static: bool = False
    below: int = 0
    is_cpu: bool = False
    specials: int = 0

    @property
    def memory_order(self) -> tuple[int, ...]:
        return self.order or tuple(range(len(self.labels)))

    def extents(self, sizes: Mapping[str, int]) -> list[int]:
        return [1 if label == ONE else sizes[label] for label in self.labels]

    def strides(self, sizes: Mapping[str, int]) -> list[int]:
        """Units: elements."""
        extents, strides, running = self.extents(sizes), [0] * len(self.labels), 1
        for axis in reversed(self.memory_order):
            if axis not in self.expanded:
                has_gaps = axis in self.gapped and not (self.static and extents[axis] == 1)
                strides[axis] = running * (2 if has_gaps else 1)
                running = strides[axis] * max(1, extents[axis])
        return strides

    def definition(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Return the arguments of define_tensor."""
        extents = self.extents(sizes)
        shape = [1 if label == ONE else n if self.static else -1 for label, n in zip(self.labels, extents)]
        contiguity = [None if shape[a] == 1 or a in self.expanded else a not in self.gapped for a in self.memory_order]
        out: dict[str, Any] = dict(shape=shape, contiguity=contiguity, dtype=getattr(DataType, self.dtype))
        if self.order:
            ranks = [0] * len(shape)
            for rank, axis in enumerate(reversed(self.order)):
                ranks[axis] = rank
            out["stride_order"] = ranks
        if self.is_cpu:
            out["is_cpu"] = True
        return out

    def values(self, sizes: Mapping[str, int], device: str) -> torch.Tensor:
        device = "cpu" if self.is_cpu else device
        return make_tensor(self.extents(sizes), self.strides(sizes), self.offset, torch_dtype(getattr(DataType, self.dtype)), len(self.name) * 7 + ord(self.name[-1]), device, self.below, self.specials)

    def values_text(self, sizes: Mapping[str, int], device: str) -> str:
        dtype = torch_dtype(getattr(DataType, self.dtype))
        seed = len(self.name) * 7 + ord(self.name[-1])
        device = "cpu" if self.is_cpu else device
        return f"make_tensor({self.extents(sizes)}, {self.strides(sizes)}, {self.offset}, {dtype}, {seed}, '{device}', {self.below}, {self.specials})"


MAKE_TENSOR = '''def make_tensor(sizes, strides, offset, dtype, seed, device, below=0, specials=0):
    """Return reproducible elements: floats in [-2, 2), integers in [-5, 5], or in [0, below). Sizes, strides and offset count elements, also where two share a byte.

    specials: how many floats are NaN or infinite.
    """
    count = offset + 1 + sum(max(0, n - 1) * s for n, s in zip(sizes, strides))
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.float4_e2m1fn_x2:
        codes = torch.randint(0, 5, (2, count // 2 + 1), generator=generator) | torch.randint(0, 2, (2, count // 2 + 1), generator=generator) << 3
        inner = max(a for a, (n, s) in enumerate(zip(sizes, strides)) if s == 1 and n != 1)
        data = (codes[0] | codes[1] << 4).to(torch.uint8).to(device)
        halves = [[n // 2 if a == inner else n for a, n in enumerate(sizes)], [s if a == inner else s // 2 for a, s in enumerate(strides)]]
        return data.as_strided(*halves, offset // 2).view(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        data = torch.rand(count, generator=generator, dtype=torch.float64) * 4 - 2
        data[torch.randint(0, count, (specials,), generator=generator)] = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=torch.float64).repeat(specials)[:specials]
        data = torch.complex(data, data.flip(0)) if dtype.is_complex else data
    elif below:
        data = torch.randint(0, below, (count,), generator=generator)
    else:
        data = torch.randint(0, 2, (count,), generator=generator) if dtype == torch.bool else torch.randint(-5, 6, (count,), generator=generator)
    return data.to(dtype).to(device).as_strided(sizes, strides, offset)
'''
_scope: dict[str, Any] = {"torch": torch}
exec(MAKE_TENSOR, _scope)  # one text, for here and for the scripts that are printed
make_tensor = _scope["make_tensor"]


@dataclass(frozen=True)
class ScalarInput:
    """A scalar input of a Python number."""

    name: str
    dtype: str
    value: float | int | complex


@dataclass(frozen=True)
class Node:
    """A call of fd.ops.`op`. targets: names of its results. labels: the loops of the (first) result, or what `extent_of` reads."""

    targets: tuple[str, ...]
    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    labels: tuple[Any, ...] = ()


def references(argument: Any) -> list[str]:
    """Return the names of the values that an argument needs."""
    if isinstance(argument, Ref):
        return [argument.name]
    if isinstance(argument, Extent):
        return [argument.tensor] if argument.tensor else []
    if isinstance(argument, (list, tuple)):
        return [name for item in argument for name in references(item)]
    return []


OTHER_SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 127, 128, 129, 255, 256, 500, 512, 768, 1000, 1024)
"""Sizes of the loops of one definition, from call to call."""


@dataclass(frozen=True)
class Case:
    """A fusion with sizes. `sizes`: extent of each loop. outputs: names. seed, family: where it comes from. aliases: (value, input that it is written into)."""

    inputs: tuple[TensorInput | ScalarInput, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    family: str = ""
    aliases: tuple[tuple[str, str], ...] = ()

    def replaced(self, **changes: Any) -> "Case":
        return dataclasses.replace(self, **changes)

    # -- as a definition
    def define(self, fd: FusionDefinition) -> None:
        values: dict[str, Any] = {}
        for given in self.inputs:
            if isinstance(given, ScalarInput):
                values[given.name] = fd.define_scalar(getattr(DataType, given.dtype))
            else:
                values[given.name] = fd.define_tensor(**given.definition(self.sizes))
        for node in self.nodes:
            call(fd, node, values, self.sizes)
        for name in self.outputs:
            fd.add_output(values[name])
        for name, target in self.aliases:
            fd.add_output(values[name], alias_input=values[target])

    def arguments(self, device: str) -> list[Any]:
        return [g.value if isinstance(g, ScalarInput) else g.values(self.sizes, device) for g in self.inputs]

    # -- as text
    def text(self, device: str = "cpu") -> str:
        """Return a script that defines and validates the fusion."""
        lines = [f"# seed {self.seed}, {self.family}; sizes {dict(self.sizes)}", "import torch", "from weft import DataType, FusionDefinition", "", MAKE_TENSOR, ""]
        lines.append("with FusionDefinition() as fd:")
        for given in self.inputs:
            if isinstance(given, ScalarInput):
                lines.append(f"    {given.name} = fd.define_scalar(DataType.{given.dtype})")
            else:
                arguments = ", ".join(f"{k}={v!r}" for k, v in given.definition(self.sizes).items())
                lines.append(f"    {given.name} = fd.define_tensor({arguments})")
        for node in self.nodes:
            arguments = [argument_text(a, self.sizes) for a in node.args] + [f"{k}={argument_text(v, self.sizes)}" for k, v in node.kwargs]
            lines.append(f"    {', '.join(node.targets)} = fd.ops.{node.op}({', '.join(arguments)})  # {list(node.labels)}")
        lines += [f"    fd.add_output({name})" for name in self.outputs]
        lines += [f"    fd.add_output({name}, alias_input={target})" for name, target in self.aliases]
        lines.append("inputs = [")
        for given in self.inputs:
            lines.append(f"    {given.value!r}," if isinstance(given, ScalarInput) else f"    {given.values_text(self.sizes, device)},")
        return "\n".join([*lines, "]", "fd.validate(inputs)", ""])

    # -- structure
    def without_unused(self) -> "Case":
        """Return the case without ops and inputs that no output needs."""
        needed = {*self.outputs, *(name for pair in self.aliases for name in pair)}
        kept = []
        for node in reversed(self.nodes):
            if needed & set(node.targets):
                kept.append(node)
                needed |= {name for a in (*node.args, *(v for _, v in node.kwargs)) for name in references(a)}
        return self.replaced(nodes=tuple(reversed(kept)), inputs=tuple(i for i in self.inputs if i.name in needed))

    # -- one definition at many sizes
    def with_symbolic_sizes(self) -> "Case":
        """Return the case with no size but 1 in its definition: sizes that were numbers are those of an input."""
        owners = {label: (i.name, d) for i in self.inputs if isinstance(i, TensorInput) for d, label in enumerate(i.labels)}

        def symbolic(argument: Any) -> Any:
            if isinstance(argument, Extent) and not argument.tensor:
                return Extent(argument.label, *owners[argument.label]) if argument.label in owners else argument
            return type(argument)(map(symbolic, argument)) if isinstance(argument, (list, tuple)) else argument

        nodes = tuple(
            dataclasses.replace(n, args=tuple(map(symbolic, n.args)), kwargs=tuple((k, symbolic(v)) for k, v in n.kwargs)) for n in self.nodes
        )
        inputs = tuple(dataclasses.replace(i, static=False) if isinstance(i, TensorInput) else i for i in self.inputs)
        return self.replaced(nodes=nodes, inputs=inputs)

    def at_other_sizes(self, largest_elems: int) -> Iterator["Case"]:
        """Yield the case at random sizes of its loops, without end; those that no input has, and that are numbers in the definition, stay."""
        rng = random.Random(self.seed)
        owned = {label for i in self.inputs if isinstance(i, TensorInput) for label in i.labels} & set(self.sizes)
        while True:
            sizes = dict(self.sizes)
            for label in rng.sample(sorted(owned), len(owned)):
                rest = math.prod(n for other, n in sizes.items() if other != label)
                fitting = [n for n in OTHER_SIZES if n * rest <= largest_elems]
                sizes[label] = rng.choice(fitting) if fitting else 1
            if all(math.prod(extent_of(label, sizes) for label in node.labels) <= 4 * largest_elems for node in self.nodes):
                yield self.replaced(sizes=sizes)

    @property
    def elements(self) -> int:
        return math.prod(self.sizes.values())


def extent_of(axis: Any, sizes: Mapping[str, int]) -> int:
    """Return the extent of an axis: of a loop, or of a tuple of factors, each a loop or what a slice ("low", "high", "low half", "first"), pad or cat made of other axes."""
    if isinstance(axis, str):
        return sizes.get(axis, 1)
    if axis[:1] == ("cat",):
        return extent_of(axis[1], sizes) + extent_of(axis[2], sizes)
    if axis[:1] == ("pad",):
        return extent_of(axis[1], sizes) + axis[2]
    if axis[:1] == ("first",):
        return min(extent_of(axis[1], sizes), axis[2])
    if axis[:1] == ("low half",):
        return extent_of(axis[1], sizes) // 2
    if axis[:1] in (("low",), ("high",)):
        return (extent_of(axis[1], sizes) + 1) // 2
    return math.prod(extent_of(factor, sizes) for factor in axis)


def call(fd: FusionDefinition, node: Node, values: dict[str, Any], sizes: Mapping[str, int]) -> Any:
    """Add the op of `node` to the definition, and its results to `values`."""

    def given(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.name]
        if isinstance(argument, Extent):
            return fd.ops.size(values[argument.tensor], argument.dim) if argument.tensor else sizes[argument.label]
        return [given(a) for a in argument] if isinstance(argument, (list, tuple)) else argument

    result = getattr(fd.ops, node.op)(*map(given, node.args), **{k: given(v) for k, v in node.kwargs})
    values.update(zip(node.targets, result if isinstance(result, tuple) else (result,)))
    return result


def argument_text(argument: Any, sizes: Mapping[str, int]) -> str:
    if isinstance(argument, Ref):
        return argument.name
    if isinstance(argument, Extent):
        return f"fd.ops.size({argument.tensor}, {argument.dim})" if argument.tensor else str(sizes[argument.label])
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(argument_text(a, sizes) for a in argument)}]"
    return repr(argument)
