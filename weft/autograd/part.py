"""A part of a fusion as a fusion of its own: some of its tensors become inputs, others outputs.

Owns what happens to sizes: an axis of a new input has a size of its own, and what was said in sizes of the old inputs is said in those of the new ones;
a size that no new input has becomes a scalar input. Read first: `cut_out`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..dtypes import DataType
from ..expr import Sym, const, substitute, var, variables
from ..ir.enums import IterType, MemoryType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, Fixed, LookupOp
from ..ir.values import IterDomain, Scalar, Split, TensorDomain, TensorView, Val, no_reductions

_SIZE = re.compile(r"T(\d+)\.size\[(\d+)\]")


@dataclass(frozen=True)
class SizeOf:
    """The size of axis `dim` of tensor `name` of the original fusion, as a scalar input of a part."""

    name: int
    dim: int


@dataclass(eq=False)
class CutOut:
    """A part. `scalars`: its scalar inputs after the tensors: scalar inputs of the original, or sizes that it needs."""

    fusion: Fusion
    scalars: list[Scalar | SizeOf]


def cut_out(
    fusion: Fusion, inputs: Sequence[TensorView], outputs: Sequence[TensorView], contiguity: Mapping[TensorView, Sequence[bool | None]],
    orders: Mapping[TensorView, Sequence[int]],
) -> CutOut:  # fmt: skip
    """Return the part of `fusion` that computes `outputs` from `inputs` and scalars.

    Inputs of the original keep their layout, or get that of `contiguity`; other tensors are dense, with their axes in the order of `orders`, outermost first.
    """
    part, image = fusion.clone()
    part.aliases, part.hidden_outputs, part._inputs, part.shares_results = {}, set(), [], False
    part.set_outputs(image[t] for t in outputs)
    sizes: dict[Sym, Sym] = {}
    for tensor in inputs:
        _make_input(part, image[tensor], sizes, contiguity.get(tensor), orders.get(tensor))  # type: ignore[arg-type]
    needed = _needed_values(part)
    part._vals = [v for v in part._vals if v in needed]
    part._size_scalars = {key: scalar for key, scalar in part._size_scalars.items() if scalar in needed}
    for value in needed:
        value._uses = [use for use in value._uses if all(out in needed for out in use.outputs) and any(out in needed for out in use.outputs)]
    free = _rename_sizes(part, sizes)
    scalars = _scalar_inputs(fusion, part, image, free)
    return CutOut(part, scalars)


def _make_input(
    part: Fusion, tensor: TensorView, sizes: dict[Sym, Sym], contiguity: Sequence[bool | None] | None, order: Sequence[int] | None
) -> None:  # fmt: skip
    """Make `tensor` an input: without a definition, with axes whose sizes are its own."""
    was_input = tensor.definition() is None and not tensor.has_root() and tensor.memory_type is MemoryType.global_
    if tensor.definition() is not None:
        part.remove(tensor.definition())  # type: ignore[arg-type]
    old = no_reductions(tensor.get_logical_domain())
    new = [_input_axis(part, tensor.name, dim, axis, sizes) for dim, axis in enumerate(old)]
    allocation = None
    if was_input and tensor.domain().allocation is not None:
        allocation = [new[old.index(axis)] for axis in tensor.get_allocation_domain()]
    elif order is not None and list(order) != sorted(order):
        allocation = [new[dim] for dim in order]
    if contiguity is None:
        contiguity = tensor.domain().contiguity if was_input else [None if axis.is_broadcast() else True for axis in allocation or new]
    tensor._domain = TensorDomain(None, new, contiguity, allocation)  # type: ignore[arg-type]
    part.add_input(tensor)


def _input_axis(part: Fusion, name: int, dim: int, axis: IterDomain, sizes: dict[Sym, Sym]) -> IterDomain:
    extent = axis.logical_extent
    own = extent if extent.is_const else var(f"T{name}.size[{dim}]", lower=1)
    sizes.setdefault(extent, own)
    if axis.is_broadcast():
        return part.new_axis(1, IterType.broadcast, expanded_extent=own if axis.expanded_extent is not None else None)
    return part.new_axis(own)


def _needed_values(part: Fusion) -> set[Val]:
    needed: set[Val] = {*part._inputs, *part._outputs}
    for expr in part.exprs():
        needed.update(expr.inputs)
        needed.update(expr.outputs)
    return needed


def _rename_sizes(part: Fusion, sizes: Mapping[Sym, Sym]) -> set[Sym]:
    """Express every size by the new inputs; return the variables for which this is not possible."""
    own = {v for t in part.tensor_inputs() for a in t.get_logical_domain() for v in variables(a.logical_extent)}
    strides = {t.stride_var(i) for t in part.tensor_inputs() for i in range(len(t.get_allocation_domain()))}
    free: set[Sym] = set()

    def renamed(sym: Sym) -> Sym:
        out = substitute(sym, sizes)
        free.update(variables(out) - own - strides)
        return out

    inputs = set(part.inputs())
    for value in part._vals:
        if isinstance(value, Scalar):
            if value.definition() is not None or not _is_input_scalar(value):
                value.sym = renamed(value.sym)
        elif isinstance(value, TensorView) and value not in inputs:
            _rename_axes(value, renamed)
    for expr in part.exprs():
        if isinstance(expr, LookupOp):
            expr.attributes["positions"] = tuple(_position(p, renamed) for p in expr.positions)
        for key, attribute in list(expr.attributes.items()):
            if isinstance(attribute, Sym):
                expr.attributes[key] = renamed(attribute)
    for value in part._vals:  # scalar inputs of the original that a scalar of the part depends on
        if isinstance(value, Scalar) and value.definition() is None and _is_input_scalar(value):
            free.add(value.sym)
    return free


def _is_input_scalar(value: Scalar) -> bool:
    return value.sym.is_var and value.sym.payload == f"S{value.name}"


def _position(position: object, renamed) -> object:
    if isinstance(position, Along):
        return replace(position, offset=renamed(position.offset))
    return replace(position, position=renamed(position.position)) if isinstance(position, Fixed) else position


def _rename_axes(tensor: TensorView, renamed) -> None:
    done: set[IterDomain] = set()
    waiting = [*tensor.get_logical_domain(), *tensor.get_root_domain(), *tensor.get_loop_domain(), *tensor.get_allocation_domain()]
    while waiting:
        axis = waiting.pop()
        if axis in done:
            continue
        done.add(axis)
        axis._extent = renamed(axis._extent)
        if axis.expanded_extent is not None:
            axis.expanded_extent = renamed(axis.expanded_extent)
        transform = axis.definition()
        if transform is not None:
            if isinstance(transform, Split):
                transform.factor = renamed(transform.factor)
            waiting += [*transform.axis_inputs, *transform.axis_outputs]


def _scalar_inputs(original: Fusion, part: Fusion, image: Mapping[Val, Val], free: set[Sym]) -> list[Scalar | SizeOf]:
    """Add a scalar input for each free variable; return what each is in the original."""
    out: list[Scalar | SizeOf] = []
    renamed: dict[Sym, Sym] = {}
    for value in original.inputs():
        if isinstance(value, Scalar) and value.sym in free:
            copy = image[value]
            if copy not in part._vals:
                part._vals.append(copy)
            part._inputs.append(copy)
            out.append(value)
            free = free - {value.sym}
    for sym in sorted(free, key=str):
        size = _SIZE.fullmatch(str(sym.payload))
        if size is None:
            raise ValueError(f"a backward needs {sym}, which is no size of an input")
        scalar = part.new_scalar(const(0), DataType.Int)
        scalar.sym = renamed[sym] = var(f"S{scalar.name}", DataType.Int, lower=1)
        part._inputs.append(scalar)
        out.append(SizeOf(int(size[1]), int(size[2])))
    if renamed:
        _rename_sizes(part, renamed)
    return out
