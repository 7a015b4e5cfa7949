"""Translates a region to a definition: declares inputs with their layout, translates nodes by their rules, and gives outputs the traced types and strides.

Read first: `translate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..dtypes import DataType
from ..ir.graph_ops import ScatterOp
from ..ir.values import TensorView
from ..ops.build import logical_axes
from ..ops.shapes import set_stride_order
from ..runtime.outputs import hazard
from .aten import Declined, lookup
from .aten.rules import Translation, hint
from .regions import Region, is_getitem

if TYPE_CHECKING:
    from ..api.definition import FusionDefinition


@dataclass(frozen=True)
class Translated:
    """definition: computes the region's outputs from its inputs, in order."""

    definition: FusionDefinition


def translate(region: Region) -> Translated:
    """Return the definition of a region. Errors: Declined, and weft's errors for what a definition cannot express."""
    from ..api.definition import FusionDefinition

    with FusionDefinition() as fd:
        # each output has its own memory with the traced layout, because views are not outputs of a region
        fd.fusion.shares_results = fd.fusion.shows_inputs = False  # type: ignore[union-attr]
        t = Translation(fd)
        values: dict[Node, Any] = {}
        is_on_device = any(node.meta["val"].device.type != "cpu" for node in region.outputs)
        for node in region.inputs:
            values[node] = _input(t, node, is_on_device)
        _note_sizes(t, region, values)
        for node in region.nodes:
            values[node] = _value(t, node, values)
        made: dict[Node, TensorView] = {}
        for node in region.outputs:
            updated = region.updates.get(node)
            made[node] = _output(t, node, values[node], is_on_device)
            fd.add_output(made[node], None if updated is None else values[updated])
        for node, spare in region.reuses.items():
            if hazard(fd.fusion, values[spare], made[node], has_reshapes=True) is None:  # type: ignore[arg-type]
                fd.fusion.reuse_input(made[node], values[spare])  # type: ignore[union-attr]
    return Translated(fd)


def _input(t: Translation, node: Node, is_on_device: bool) -> Any:
    """Declare an input. A CPU scalar tensor is passed by value to GPU kernels, and by address to emulated ones, like any other tensor."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return t.fd.define_scalar(dtype=DataType.Int)
    if isinstance(value, torch.SymFloat):
        return t.fd.define_scalar(dtype=DataType.Double)
    if not isinstance(value, torch.Tensor):
        raise Declined(f"the input {node}, which is not a tensor")
    shape = [int(s) if isinstance(s, int) else -1 for s in value.shape]
    order, contiguity = _layout(value)
    t.is_reordered |= order != list(range(value.dim()))[::-1]
    is_number = is_on_device and value.device.type == "cpu" and value.dim() == 0
    return t.fd.define_tensor(shape=shape, contiguity=contiguity, dtype=t.dtype(value.dtype), is_cpu=is_number, stride_order=order)


def _note_sizes(t: Translation, region: Region, values: dict[Node, Any]) -> None:
    """Register the symbolic sizes of the inputs in the translation: axes of tensors first, so that equal sizes become one scalar."""
    for node in region.inputs:
        value = node.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                t.sizes.setdefault(size.node.expr, values[node].size(dim))
    for node in region.inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            t.sizes.setdefault(value.node.expr, values[node])


def _layout(value: torch.Tensor) -> tuple[list[int], list[bool | None]]:
    """Return stride_order (0: the innermost axis) and contiguity (in memory order, outermost first) of a fake tensor."""
    rank = value.dim()
    if any(isinstance(s, int) and s == 0 for s in value.shape):
        return list(range(rank))[::-1], [None if isinstance(s, int) and s == 1 else True for s in value.shape]  # no element, no place
    hints = [hint(s) for s in value.stride()]
    sizes = [hint(s) for s in value.shape]
    is_broadcast = [sizes[i] == 1 and isinstance(value.shape[i], int) or isinstance(hints[i], int) and hints[i] == 0 for i in range(rank)]
    by_stride = sorted(range(rank), key=lambda i: (-hints[i] if not is_broadcast[i] else -_neighbour(hints, is_broadcast, i), i))
    order = [0] * rank
    for place, axis in enumerate(by_stride):
        order[axis] = rank - 1 - place
    contiguity: list[bool | None] = []
    inner: tuple[Any, Any] = (1, 1)
    for axis in reversed(by_stride):
        if is_broadcast[axis]:
            contiguity.append(None)
            continue
        contiguity.append(any(statically_known_true(value.stride(axis) == extent) for extent in inner))
        inner = value.stride(axis) * value.shape[axis], value.stride(axis) * torch.sym_max(value.shape[axis], 1)  # torch's strides, where a size may be 0
    return order, contiguity[::-1]


def _neighbour(hints: list[int], is_broadcast: list[bool], axis: int) -> int:
    """A stride for an axis without a meaningful one: that of the next inner axis."""
    for i in range(axis + 1, len(hints)):
        if not is_broadcast[i]:
            return hints[i] + 1
    return 0


def _value(t: Translation, node: Node, values: dict[Node, Any]) -> Any:
    if is_getitem(node):
        return values[node.args[0]][node.args[1]]  # type: ignore[index]
    found = lookup(node.target)
    assert found is not None
    t.node = node

    def argument(a: Any) -> Any:
        return torch.fx.node.map_arg(a, lambda n: values[n])

    made = found.make(t, *argument(node.args), **argument(dict(node.kwargs)))
    fakes = node.meta["val"]
    for value, fake in zip(made, fakes) if isinstance(made, (tuple, list)) and isinstance(fakes, (tuple, list)) else ((made, fakes),):
        _hold(t, value, fake)
    return made


def _hold(t: Translation, value: Any, fake: Any) -> None:
    """Note that torch rounds a value to a type of 16 bits, which the definition computes in float32."""
    if isinstance(value, TensorView) and isinstance(fake, torch.Tensor) and value.dtype() is DataType.Float and value.definition() is not None:
        dtype = t.dtype(fake.dtype)
        if dtype in (DataType.BFloat16, DataType.Half):
            t.fd.fusion.hold(value, dtype)  # type: ignore[union-attr]


def _output(t: Translation, node: Node, value: Any, is_on_device: bool) -> TensorView:
    """Give an output the traced type and layout. Errors: Declined for strides that no dense tensor has, and for numbers of the CPU beside tensors of a GPU."""
    fake: torch.Tensor = node.meta["val"]
    dtype = t.dtype(fake.dtype)
    if not isinstance(value, TensorView):  # a number that is computed from sizes and numbers
        if is_on_device and fake.device.type == "cpu":
            raise Declined("a number on the CPU that is not computed from a tensor")
        value = t.ops.full([], value, dtype=dtype)
    is_copy = False
    if value.dtype() is not dtype:
        value = t.ops.cast(value, dtype=dtype)
    elif value.is_fusion_input or value.is_fusion_output:
        value, is_copy = t.ops.set(value), True
    order, contiguity = _layout(fake)
    if not all(c in (True, None) for c in contiguity):
        raise Declined("an output that is not dense")
    value = _with_elements(t, value, fake)
    if fake.dim() > 1 and (order != list(range(fake.dim()))[::-1] or t.is_reordered or is_copy):  # by default weft uses an input's strides
        if isinstance(value.definition(), ScatterOp):
            set_stride_order(value, order)  # its memory is its own, or that of an argument
        else:
            value = t.ops.stride_order(value, stride_order=order)
    return value


def _with_elements(t: Translation, value: TensorView, fake: torch.Tensor) -> TensorView:
    """Make expanded axes real ones if they are real in torch's result."""
    for dim, axis in enumerate(logical_axes(value)):
        if axis.expanded_extent is not None and fake.stride(dim) != 0:
            value = t.with_elements(value, dim)
    return value


__all__ = ["Translated", "translate"]
