"""The graph that runs: one call in place of each region's nodes, torch's ops as they are, or in place where what they would copy is fresh.

Read first: `with_calls`, `shorten`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .region_call import RegionCall
from .regions import Region, is_cheap, is_factory


def with_calls(gm: torch.fx.GraphModule, calls: list[tuple[Region, RegionCall]]) -> torch.fx.Graph:
    """Return the graph with one call in place of each region's nodes, in an order in which everything is there when it is read."""
    graph, new = gm.graph, torch.fx.Graph()
    owner = {node: at for at, (region, _) in enumerate(calls) for node in region.nodes if not is_cheap(node)}
    placed: dict[Node, Node] = {}
    done: set[int] = set()

    def place_region(at: int) -> None:
        region, call = calls[at]
        whole = new.call_function(call, tuple(placed[n] for n in region.inputs))
        for index, node in enumerate(region.outputs):
            placed[node] = new.call_function(operator.getitem, (whole, index))
            placed[node].meta.update(node.meta)

    def needs(at: Node | int) -> list[Node | int]:
        sources = calls[at][0].inputs if isinstance(at, int) else at.all_input_nodes
        return [owner.get(n, n) for n in sources]

    for node in graph.nodes:
        if is_cheap(node) and node not in owner:
            continue  # made where it is read
        stack: list[tuple[Node | int, bool]] = [(owner.get(node, node), False)]
        while stack:
            at, ready = stack.pop()
            if at in done if isinstance(at, int) else at in placed:
                continue
            if not ready:
                stack.append((at, True))
                stack.extend((source, False) for source in needs(at))
            elif isinstance(at, int):
                done.add(at)
                place_region(at)
            else:
                placed[at] = _in_place(new, at, placed) or new.node_copy(at, lambda n: placed[n])
    for node in reversed(new.nodes):
        if is_factory(node) and not node.users:
            new.erase_node(node)
    return new


@functools.cache
def _in_place_ops() -> dict[Any, Any]:
    aten = torch.ops.aten
    return {
        aten.index_put.default: aten.index_put_.default, aten._index_put_impl.default: aten._index_put_impl_.default, aten.scatter.src: aten.scatter_.src,
        aten.scatter.value: aten.scatter_.value, aten.scatter_add.default: aten.scatter_add_.default, aten.index_add.default: aten.index_add_.default,
    }  # fmt: skip


def _in_place(new: torch.fx.Graph, node: Node, placed: dict[Node, Node]) -> Node | None:
    """Write into a tensor of zeros that is made for it, where the graph's op would copy the zeros first."""
    target = _in_place_ops().get(node.target) if node.op == "call_function" else None
    base: Any = node.args[0] if node.args else None
    if target is None or not (isinstance(base, Node) and is_cheap(base) and is_factory(base)):
        return None
    fresh = new.node_copy(base, lambda n: placed[n])
    args, keywords = torch.fx.node.map_arg((node.args[1:], node.kwargs), lambda n: placed[n])
    made = new.call_function(target, (fresh, *args), dict(keywords))
    made.meta.update(node.meta)
    return made


# ---------------------------------------------------------------- host time
_reinterpret: Any = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]


def shorten(graph: torch.fx.Graph) -> None:
    """Let the host do less in a graph that is about to become code: a chain of views of a tensor that lies as it was traced is one call (0.5 us for 1.8 each),
    and products are called without torch's table of overloads (0.7 us each)."""
    direct = {aten.mm.default: torch.mm, aten.addmm.default: torch.addmm, aten.bmm.default: torch.bmm}
    for node in list(graph.nodes):
        if node.target in direct and not node.kwargs:
            node.target = direct[node.target]
        elif node.target in _OFFSETS:
            found = _place_in_base(node)
            if found is not None:
                base, offset = found
                value = node.meta["val"]
                with graph.inserting_before(node):
                    short = graph.call_function(_reinterpret, (base, tuple(value.shape), tuple(value.stride()), offset))
                short.meta = dict(node.meta)
                short.meta[BASE] = base, offset
                node.replace_all_uses_with(short)
                graph.erase_node(node)
    for node in reversed(graph.nodes):
        if BASE in node.meta and not node.users:
            graph.erase_node(node)


BASE = "weft_base"
"""A mark on views that are one call (`meta`): the tensor that they show, and where in it they begin."""


def _place_in_base(node: Node) -> tuple[Node, int] | None:
    """Return the tensor that a view shows, and the element of it at which the view begins; None where sizes are open, or the tensor may lie otherwise than
    traced: inputs (Dynamo guards them), results of regions and products lie as they were traced."""
    source: Node = node.args[0]  # type: ignore[assignment]
    values: list[Any] = [source.meta.get("val"), node.meta.get("val")]
    if not all(isinstance(v, torch.Tensor) and all(isinstance(n, int) for n in (*v.shape, *v.stride())) for v in values):
        return None
    offset = _OFFSETS[node.target](node, values[0])
    if offset is None:
        return None
    if BASE in source.meta:
        base, before = source.meta[BASE]
        return base, before + offset
    is_region = source.target is operator.getitem and isinstance(source.args[0].target, RegionCall)  # type: ignore[union-attr]
    is_known = source.op == "placeholder" or is_region or source.target in (torch.mm, torch.addmm, torch.bmm)
    return (source, offset) if is_known else None


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
_OFFSETS: dict[Any, Callable[[Node, torch.Tensor], int | None]] = {
    aten.view.default: _same, aten._unsafe_view.default: _same, aten.t.default: _same, aten.transpose.int: _same, aten.permute.default: _same,
    aten.unsqueeze.default: _same, aten.squeeze.dim: _same, aten.squeeze.dims: _same, aten.expand.default: _same,
    aten.select.int: _offset_of_select, aten.slice.Tensor: _offset_of_slice,
}  # fmt: skip
"""View -> function(node, what it is a view of) that returns how many elements further it begins, or None."""


__all__ = ["shorten", "with_calls"]
