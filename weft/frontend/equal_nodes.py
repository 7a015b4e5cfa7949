"""Common subexpression elimination: calls of an aten graph that compute the same become one call.

torch has such a pass (`fx_graph_cse`), but it copies the graph, and imports Inductor's lowerings and templates for two small functions, which took a second of
a first start. Read first: `merge_equal`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._functorch.compile_utils import rand_ops
from torch.fx import Graph, Node
from torch.multiprocessing.reductions import StorageWeakRef

PURE_MODULES = ("_operator", "math", "torch")
"""Modules of pure functions that are no torch ops: they compute numbers, or unpack a result."""


def merge_equal(graph: Graph) -> None:
    """Replace a call by the first one with the same op and arguments (common subexpressions). Not merged: random ops, ops that write, ops that share memory
    with a result of the graph (two results are two tensors), and ops with data-dependent sizes. Calls before and after one that writes are not equal.
    """
    results: set[StorageWeakRef] | None = None
    first: dict[Any, Node] = {}
    for node in list(graph.nodes):
        kind = _kind(node.target) if node.op == "call_function" else ""
        if kind == "writes":
            first.clear()
        if kind != "pure" or "unbacked_bindings" in node.meta:
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        known = first.setdefault(key, node)
        if known is node:
            continue
        results = _storages(graph) if results is None else results
        if _storage(known) in results:
            first[key] = node
        elif _storage(node) not in results:
            node.replace_all_uses_with(known)
            graph.erase_node(node)


@functools.cache
def _kind(target: Any) -> str:
    """Return what a function is: one that writes, a pure one, or another."""
    if not isinstance(target, torch._ops.OpOverload):
        return "pure" if getattr(target, "__module__", None) in PURE_MODULES else "other"
    if target._schema.is_mutable:
        return "writes"
    packet = target.overloadpacket
    is_other = torch.Tag.nondeterministic_seeded in target.tags or packet in rand_ops or packet is torch.ops.aten.empty
    return "other" if is_other else "pure"


def _storages(graph: Graph) -> set[StorageWeakRef]:
    """The storages of a graph's results."""
    return {found for node in graph.output_node().all_input_nodes if (found := _storage(node)) is not None}


def _storage(node: Node) -> StorageWeakRef | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return StorageWeakRef(value.untyped_storage())
    except NotImplementedError:  # sparse tensors have none
        return None


_ALONE = (Node, type(None), str, torch.dtype, torch.device)
"""Types of which no value equals one of another type."""


def _key(value: Any) -> Any:
    """The key of an argument, with its type: 1, 1.0 and True are different, and so are 0.0 and -0.0."""
    kind = type(value)
    if kind in _ALONE:
        return value
    if kind in (int, bool):
        return kind, value
    if isinstance(value, (list, tuple)):
        return (kind, *[_key(part) for part in value])
    if isinstance(value, dict):
        return (kind, *((name, _key(part)) for name, part in value.items()))
    if isinstance(value, slice):
        return (kind, _key(value.start), _key(value.stop), _key(value.step))
    if kind in (float, complex):
        return kind, repr(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return kind, id(value.node)
    try:
        hash(value)
    except TypeError:
        return kind, id(value)
    return kind, value


__all__ = ["merge_equal"]
