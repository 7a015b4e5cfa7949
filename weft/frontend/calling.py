"""Generates the code that runs a graph: one call per region; torch's ops unchanged, or in place where they would copy a fresh tensor.

The host does little: a chain of views of a tensor that lies as it was traced is one call, and products and other views are called without torch's table of
overloads. What that saves: docs/executors.md. Read first: `code_of_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch.fx import Node

from .graph_text import Code, Text, Variable
from .region_call import RegionCall
from .regions import Region, is_cheap, is_factory
from .updates import in_place_ops, is_done, writes_back


def code_of_graph(gm: torch.fx.GraphModule, calls: list[tuple[Region, RegionCall]], written: dict[Node, list[Node]]) -> Code:
    """Return the code of a graph with one call in place of each region's nodes, in topological order. written: see `updates.find_written`."""
    nodes = list(gm.graph.nodes)
    cheap = {node for node in nodes if node.op == "call_function" and is_cheap(node)}
    owner: dict[Node, int] = {node: at for at, (region, _) in enumerate(calls) for node in region.nodes if node not in cheap}
    regions = [region for region, _ in calls]
    text = Text(node.name for node in nodes)
    placed: dict[Node, Variable] = text.variables
    done: set[Node | int] = set()
    # a copy of an old value is made where it is read, and here before any argument gets its new value
    copies_back = [node for node in nodes if writes_back(node) and not is_done(node, regions, written)]
    kept = [source for node in (*copies_back, nodes[-1]) for source in node.all_input_nodes if source in cheap]
    before = {**written, **dict.fromkeys(copies_back, kept)}

    def place_region(at: int) -> None:
        region, call = calls[at]
        makes = tuple([Variable(node.name, is_dense=True) for node in region.returned])
        text.call_of_several(makes, call, [placed[n] for n in region.inputs])
        placed.update(zip(region.returned, makes))
        placed.update((value, placed[argument]) for value, argument in region.updates.items())

    for node in nodes:
        if node in cheap or is_done(node, regions, written):
            continue  # created where it is read; written by its region
        stack: list[Node | int] = [owner.get(node, node)]
        while stack:
            at = stack[-1]
            is_region = isinstance(at, int)
            if at in done if is_region else at in placed:
                stack.pop()
                continue
            sources = [*regions[at].inputs, *regions[at].waits] if is_region else [*at.all_input_nodes, *before.get(at, ())]  # type: ignore
            missing = [by for n in sources if n not in placed and (by := owner.get(n, n)) not in done]
            if missing:
                stack += missing
                continue
            stack.pop()
            if is_region:
                done.add(at)
                place_region(at)  # type: ignore[arg-type]
            else:
                _place(text, at, cheap, written)  # type: ignore[arg-type]
    return text.end(nodes[-1].args[0])


def _place(text: Text, node: Node, cheap: set[Node], written: Container[Node]) -> None:
    """Write the line of a node outside of regions. written: calls that write into their first argument."""
    if node.op == "placeholder":
        text.argument(node)
    elif node.op == "get_attr":
        text.attribute(node)
    elif node.op == "output":
        text.variables[node] = Variable("")
    elif node.op != "call_function":
        text.variables[node] = made = Variable(node.name)
        text.method(made, node)
    elif not (node.target in _OFFSETS and _as_one_view(text, node) or node.target in in_place_ops() and _in_place(text, node, cheap, written)):
        product = None if node.kwargs else PRODUCTS.get(node.target)
        quick = product or (None if node.kwargs else VIEWS.get(node.target))
        text.variables[node] = made = Variable(node.name, is_dense=product is not None)
        text.call(made, quick or node.target, node.args, node.kwargs, is_optional=node in cheap and is_factory(node))  # type: ignore[arg-type]


def _in_place(text: Text, node: Node, cheap: set[Node], written: Container[Node]) -> bool:
    """Write an op in place, into a new tensor of zeros or into an argument that the graph changes, if the graph's op would copy that tensor first. Return
    whether this was done."""
    base: Any = node.args[0] if node.args else None
    made = Variable(node.name)
    if node in written:
        target = text.variables[base]
        text.variables[node] = target
    elif isinstance(base, Node) and base in cheap and is_factory(base):
        target = Variable(text.new_name(f"{base.name}_fresh"))
        text.call(target, base.target, base.args, base.kwargs)  # type: ignore[arg-type]
        text.variables[node] = made
    else:
        return False
    text.call(made, in_place_ops()[node.target], (target, *node.args[1:]), node.kwargs)
    return True


# ---------------------------------------------------------------- views
REINTERPRET: Any = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]


def _as_one_view(text: Text, node: Node) -> bool:
    """Write a chain of views of a tensor with its traced layout as one call; omit it if only other such views read it."""
    place = _place_in_base(text.variables, node)
    if place is None:
        return False
    base, offset = place
    value = node.meta["val"]
    made = Variable(node.name, base=place)
    if not any(user.op == "output" for user in node.users):  # results of the graph must be separate objects
        made = text.views.setdefault((base, offset, tuple(value.shape), tuple(value.stride())), made)
    text.variables[node] = made
    if made.name == node.name:
        text.call(made, REINTERPRET, (base, tuple(value.shape), tuple(value.stride()), offset), {}, is_optional=True)
    return True


def _place_in_base(variables: dict[Node, Variable], node: Node) -> tuple[Variable, int] | None:
    """Return the base tensor of a view, and the element at which the view begins; None if sizes are symbolic, or if the base may have another layout than
    traced. Inputs (Dynamo guards them), results of regions and products have the traced layout."""
    source: Node = node.args[0]  # type: ignore[assignment]
    shown = variables[source]
    if not shown.is_dense and shown.base is None:
        return None
    values: list[Any] = [source.meta.get("val"), node.meta.get("val")]
    if not all(isinstance(v, torch.Tensor) and all(isinstance(n, int) for n in (*v.shape, *v.stride())) for v in values):
        return None
    offset = _OFFSETS[node.target](node, values[0])
    if offset is None:
        return None
    return (shown, offset) if shown.base is None else (shown.base[0], shown.base[1] + offset)


def _offset_of_select(node: Node, given: torch.Tensor) -> int | None:
    dim, index = node.args[1:]
    if not isinstance(dim, int) or not isinstance(index, int):
        return None
    return int(given.stride(dim)) * (index % given.shape[dim])


def _offset_of_slice(node: Node, given: torch.Tensor) -> int | None:
    given_args: list[Any] = [*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :]]
    dim, start, end, step = given_args
    if not isinstance(dim, int) or not all(n is None or isinstance(n, int) for n in (start, end, step)):
        return None
    return int(given.stride(dim)) * slice(start, end, step).indices(given.shape[dim])[0]


def _same(node: Node, given: torch.Tensor) -> int | None:
    return 0


aten = torch.ops.aten
PRODUCTS: dict[Any, Callable[..., Any]] = {aten.mm.default: torch.mm, aten.addmm.default: torch.addmm, aten.bmm.default: torch.bmm}
VIEWS: dict[Any, Callable[..., Any]] = {
    aten.view.default: torch.Tensor.view, aten.t.default: torch.t, aten.transpose.int: torch.transpose, aten.permute.default: torch.permute,
    aten.unsqueeze.default: torch.unsqueeze, aten.squeeze.dim: torch.squeeze, aten.squeeze.dims: torch.squeeze, aten.select.int: torch.select,
    aten.expand.default: torch.Tensor.expand,
}  # fmt: skip
"""Views of tensors that may have another layout than traced -> torch's function, without overload resolution."""
_OFFSETS: dict[Any, Callable[[Node, torch.Tensor], int | None]] = {
    aten.view.default: _same, aten._unsafe_view.default: _same, aten.t.default: _same, aten.transpose.int: _same, aten.permute.default: _same,
    aten.unsqueeze.default: _same, aten.squeeze.dim: _same, aten.squeeze.dims: _same, aten.expand.default: _same,
    aten.select.int: _offset_of_select, aten.slice.Tensor: _offset_of_slice,
}  # fmt: skip
"""View -> function(node, its base) that returns the offset in elements, or None."""


__all__ = ["PRODUCTS", "REINTERPRET", "VIEWS", "code_of_graph"]
