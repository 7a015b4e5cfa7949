"""An aten graph as JSON: its calls, and of their values the sizes, strides, types and devices. Nothing is pickled.

torch's pickler of graphs takes 0.3 ms per node, a tenth of a cold first step; this takes a twentieth of that. It holds only what regions, definitions and
`weft.explain` ask for, and no graph with open sizes: those torch writes. Read first: `written`, `graph_of`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from ..runtime.record_text import NoRecord
from .graph_plan import named_part, part
from .origins import MODULE, module_of

_TORCHS = (torch.dtype, torch.layout, torch.memory_format)
_DENSE = (torch.Tensor, FakeTensor, torch.nn.Parameter)


def written(graph: Graph, constants: Collection[str]) -> bytes | None:
    """Return a graph as bytes; None if it has something that cannot be written. constants: the attributes that it may read."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    texts: dict[str, int] = {}
    targets: dict[Any, Any] = {}
    try:
        nodes = [_node(node, place, texts, targets, constants) for node in graph.nodes]
    except NoRecord:
        return None
    return json.dumps({"nodes": nodes, "texts": list(texts)}, separators=(",", ":")).encode()


def _node(node: Node, place: Mapping[Node, int], texts: dict[str, int], targets: dict[Any, Any], constants: Collection[str]) -> list[Any]:
    target: Any = node.target
    if node.op == "call_function":
        if target not in targets:
            targets[target] = named_part(target)
        target = targets[target]
        if target is None:
            raise NoRecord(str(node.target))
    elif node.op == "get_attr" and target not in constants or node.op in ("call_module", "call_method"):
        raise NoRecord(str(target))
    marks = [texts.setdefault(text, len(texts)) for text in (node.meta.get("stack_trace") or "", module_of(node))]
    value = [_encoded(node.meta["val"], place)] if "val" in node.meta else []
    return [node.name, node.op, target, _encoded(tuple(node.args), place), _encoded(dict(node.kwargs), place), *marks, *value]


def _encoded(value: Any, place: Mapping[Node, int]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str) or kind is float and math.isfinite(value):
        return value
    if kind is Node:
        return {"node": place[value]}
    if kind is tuple:
        return [_encoded(v, place) for v in value]
    if isinstance(value, list):
        return {"list": [_encoded(v, place) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_encoded(k, place), _encoded(v, place)] for k, v in value.items()]}
    if kind in _DENSE:
        sizes = [*value.shape, *value.stride()]
        if value.layout is torch.strided and not value.is_conj() and not value.is_neg() and all(type(n) is int for n in sizes):
            return {"tensor": [sizes, str(value.dtype)[6:], str(value.device)]}
    if kind in _TORCHS:
        return {"torch": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(value)}
    if kind is slice:
        return {"slice": [_encoded(v, place) for v in (value.start, value.stop, value.step)]}
    if kind in (float, complex):
        return {kind.__name__: repr(value)}
    raise NoRecord(f"a {kind.__name__}")


def graph_of(payload: bytes, constants: Mapping[str, torch.Tensor]) -> GraphModule:
    """Return the graph that was given to `written`, with fake values of a new mode, and these constants."""
    text = json.loads(payload)
    graph, mode, nodes = Graph(), FakeTensorMode(), list[Node]()
    for name, op, target, args, keywords, trace, module, *value in text["nodes"]:
        called = part(*target) if op == "call_function" else target
        node = graph.create_node(op, called, _decoded(args, nodes, mode), _decoded(keywords, nodes, mode), name)
        node.meta.update({key: found for key, at in (("stack_trace", trace), (MODULE, module)) if (found := text["texts"][at])})
        node.meta.update({"val": _decoded(v, nodes, mode) for v in value})
        nodes.append(node)
    return GraphModule(dict(constants), graph)


def _decoded(value: Any, nodes: list[Node], mode: FakeTensorMode) -> Any:
    if type(value) is list:
        return tuple([_decoded(v, nodes, mode) for v in value])
    if type(value) is not dict:
        return value
    ((kind, inner),) = value.items()
    if kind == "node":
        return nodes[inner]
    if kind == "tensor":
        sizes, dtype, device = inner
        rank = len(sizes) // 2
        with mode:
            return torch.empty_strided(sizes[:rank], sizes[rank:], dtype=getattr(torch, dtype), device=device)
    if kind == "list":
        return [_decoded(v, nodes, mode) for v in inner]
    if kind == "dict":
        return {_decoded(k, nodes, mode): _decoded(v, nodes, mode) for k, v in inner}
    if kind == "slice":
        return slice(*[_decoded(v, nodes, mode) for v in inner])
    if kind == "torch":
        return getattr(torch, inner)
    return {"device": torch.device, "float": float, "complex": complex}[kind](inner)


__all__ = ["graph_of", "written"]
