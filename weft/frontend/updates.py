"""Results that are written straight into an argument of the graph.

A graph that changes its arguments (an optimizer's step, running statistics, a cache of keys) computes the new values and ends with `copy_(argument, value)`.
Where a region computes the value, its kernel can store it in the argument's memory at once. That saves a copy of the tensor: one load and one store per
element. Where the value is the argument with a part replaced (`index_put`, `slice_scatter`), a region's kernel, or the in-place form of torch's op, writes that
part alone, and saves two copies.
Both are right only if nothing reads the old value afterwards, so every other reader of the argument has to run before.
Read first: `find_updates`, `find_written`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from .regions import Region, is_alike, is_cheap

Unit = Node | int
"""A unit of execution: the number of a region, or a node outside of regions."""


def find_updates(graph: Graph, regions: list[Region]) -> None:
    """Record in each region which of its outputs it writes into arguments of the graph, and which readers of these must run before."""
    order = Order(regions)
    for argument, value, others in _candidates(graph):
        at = order.owner.get(value)
        if at is None or value in regions[at].updates or argument in regions[at].updates.values() or not is_alike(argument, value):
            continue
        waits = [node for node in others if order.unit(node) != at]
        if value in regions[at].outputs and not order.is_needed(at, waits):
            regions[at].updates[value] = argument
            regions[at].waits += waits
            if argument not in regions[at].inputs:
                regions[at].inputs.append(argument)


def find_written(graph: Graph, regions: list[Region]) -> dict[Node, list[Node]]:
    """Return the calls run by torch that can write directly into an argument of the graph, each with the nodes that must run before."""
    order = Order(regions)
    for argument, value, others in _candidates(graph):
        if value in order.owner or value.target not in in_place_ops() or value.args[0] is not argument or _shows(argument, value.args[1:]):
            continue
        waits = [node for node in others if node is not value]
        if not order.is_needed(value, waits):
            order.waits[value] = waits
    return order.waits


def write_without_copies(graph: Graph) -> None:
    """Let an argument of which a part is replaced get the result itself instead of a copy in another order of memory, which torch makes of an `index_copy`."""
    for copy in list(graph.nodes):
        cloned: Any = copy.args[1] if writes_back(copy) else None
        if isinstance(cloned, Node) and cloned.target is torch.ops.aten.clone.default and len(cloned.users) == 1:
            value: Any = cloned.args[0]
            if value.target in in_place_ops() and value.args[0] is copy.args[0]:
                copy.replace_input_with(cloned, value)
                graph.erase_node(cloned)


def parts_of_arguments(graph: Graph) -> dict[Node, str]:
    """Return the calls that write a slice of an argument, with the reason why they are in no region: a kernel would load and store the whole argument."""
    found: dict[Node, str] = {}
    for argument, value, _ in _candidates(graph):
        if value.target is torch.ops.aten.slice_scatter.default and value.args[0] is argument and _takes_values_as_they_are(value):
            found[value] = "it writes a part of an argument in place"
    return found


def parts_that_are_copied(graph: Graph, regions: list[Region]) -> dict[Node, str]:
    """Return the calls of regions that would write a part of an argument into a copy of it, because other results of the region are needed first, and that
    torch can write in place, with the reason why they are in no region."""
    updated = {value for region in regions for value in region.updates}
    members = {node for region in regions for node in region.nodes}
    return {
        value: "its region cannot write a part of an argument in place"
        for argument, value, _ in _candidates(graph)
        if value in members and value not in updated and value.target in in_place_ops() and value.args[0] is argument
    }


def _takes_values_as_they_are(scatter: Node) -> bool:
    """Remove the `copy` that gives the values of a `slice_scatter` the layout of the slice; False if the copy does more."""
    copy: Any = scatter.args[1]
    if not (isinstance(copy, Node) and copy.target is torch.ops.aten.copy.default):
        return True
    values: Any = copy.args[1]
    a, b = copy.meta.get("val"), values.meta.get("val") if isinstance(values, Node) else None
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or (a.dtype, a.device, tuple(a.shape)) != (b.dtype, b.device, tuple(b.shape)):
        return False
    scatter.replace_input_with(copy, values)
    if not copy.users:
        copy.graph.erase_node(copy)
    return True


def writes_back(node: Node) -> bool:
    """True for a call that ends a graph: it copies a value into an argument."""
    return node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"  # type: ignore[union-attr]


def is_done(copy: Node, regions: list[Region], written: dict[Node, list[Node]]) -> bool:
    """True for a call of `copy_` whose value has already been written into its argument."""
    if not writes_back(copy):
        return False
    argument, value = copy.args[:2]
    return value in written and value.args[0] is argument or any(region.updates.get(value) is argument for region in regions)  # type: ignore[union-attr, arg-type]


@functools.cache
def in_place_ops() -> dict[Any, Any]:
    """Ops that copy a tensor and write a part of the copy -> the op that writes into the tensor."""
    aten = torch.ops.aten
    return {
        aten.index_put.default: aten.index_put_.default, aten._index_put_impl.default: aten._index_put_impl_.default, aten.scatter.src: aten.scatter_.src,
        aten.scatter.value: aten.scatter_.value, aten.scatter_add.default: aten.scatter_add_.default, aten.index_add.default: aten.index_add_.default,
        aten.slice_scatter.default: write_slice,
    }  # fmt: skip


def write_slice(base: torch.Tensor, values: torch.Tensor, *place: Any) -> torch.Tensor:
    """Write values into `base.slice(*place)`, and return `base`."""
    torch.ops.aten.slice.Tensor(base, *place).copy_(values)
    return base


class Order:
    """The order of execution. owner: the region of a node. waits: dependencies of calls outside of regions, besides their operands."""

    def __init__(self, regions: list[Region]) -> None:
        self.regions = regions
        self.owner = {node: at for at, region in enumerate(regions) for node in region.nodes if not is_cheap(node)}
        self.waits: dict[Node, list[Node]] = {}

    def unit(self, node: Node) -> Unit:
        return self.owner.get(node, node)

    def is_needed(self, wanted: Unit, nodes: list[Node]) -> bool:
        """True if one of these nodes depends on the result of `wanted`, directly or through others."""
        seen: set[Unit] = set()
        stack = list(nodes)
        while stack:
            unit = self.unit(stack.pop())
            if unit == wanted:
                return True
            if unit not in seen:
                seen.add(unit)
                stack += self._before(unit)
        return False

    def _before(self, unit: Unit) -> list[Node]:
        if isinstance(unit, int):
            return self.regions[unit].inputs + self.regions[unit].waits
        return unit.all_input_nodes + self.waits.get(unit, [])


def _candidates(graph: Graph) -> Iterator[tuple[Node, Node, list[Node]]]:
    """Yield (argument of the graph, value that is copied into it, calls that read the argument) if no result of the graph is a view of one of the two."""
    results = set(graph.output_node().all_input_nodes)
    for copy in list(graph.nodes):
        if not writes_back(copy):
            continue
        argument, value = copy.args[:2]
        if isinstance(value, Node) and readers(value, copy, results) is not None:
            others = readers(argument, copy, results)
            if others is not None:
                yield argument, value, others


def readers(read: Node, copy: Node | None, results: set[Node]) -> list[Node] | None:
    """Return the calls other than `copy` that read a node, also through views; None if a result of the graph is a view of it, or it is copied elsewhere."""
    if read in results:
        return None
    out: dict[Node, None] = {}
    stack = [user for user in read.users if user is not copy]
    while stack:
        user = stack.pop()
        if user in results and is_cheap(user) or user.target is torch.ops.aten.copy_.default:
            return None
        if is_cheap(user):
            stack.extend(user.users)
        else:
            out[user] = None
    return list(out)


def _shows(argument: Node, others: Any) -> bool:
    """True if one of these arguments of a call is the argument of the graph, or a view of it."""
    stack: list[Node] = []
    torch.fx.node.map_arg(others, stack.append)
    while stack:
        node = stack.pop()
        if node is argument:
            return True
        if node.op == "call_function" and is_cheap(node):
            stack += node.all_input_nodes
    return False


__all__ = [
    "Order", "find_updates", "find_written", "in_place_ops", "is_done", "parts_of_arguments", "parts_that_are_copied", "readers", "write_slice",
    "write_without_copies", "writes_back",
]  # fmt: skip
