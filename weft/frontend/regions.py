"""Which nodes of an aten graph become regions: connected sets of ops that one definition computes.

A region's nodes have one level: the level of a node is the largest of its inputs', one more where the input is not computed in a region (or the node itself
is not). So no path leaves a region and comes back, and the rule is linear in the graph. Views and factories (`Rule.is_cheap`) have no level: they are copied
into the regions that read them. Read first: `find_regions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.fx import Node

from .aten import lookup
from .aten.rules import SUPPORTED_DTYPES, tensor_dtypes


@dataclass
class Region:
    """nodes: in graph order, with the cheap ones they read. inputs: nodes from outside, tensors and symbolic sizes. outputs: nodes that others read."""

    nodes: list[Node]
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)


def reason_against(node: Node) -> str:
    """Return why a node is no op of a region; "" when it is one."""
    rule = lookup(node.target)
    if rule is None:
        return f"{node.target} has no rule"
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(value, torch.Tensor) and (value.layout is not torch.strided or value.is_complex()):
            return "a result that is sparse or complex"
    foreign = tensor_dtypes(node) - SUPPORTED_DTYPES
    if foreign:
        return f"the type {sorted(map(str, foreign))[0]}"
    return rule.claims(node)


def is_cheap(node: Node) -> bool:
    rule = lookup(node.target)
    return rule is not None and rule.is_cheap


def find_regions(graph: torch.fx.Graph, reasons: dict[Node, str]) -> list[Region]:
    """Return the regions of a graph. `reasons` gets every call that stays with torch, with the reason; what stands in it already stays out."""
    level: dict[Node, int] = {}
    member: set[Node] = set()
    groups: dict[Node, list[Node]] = {}
    leader: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in graph.nodes:
        sources = _sources(node)
        is_getitem = _is_getitem(node)
        if is_getitem and node.args[0] in member:
            level[node] = level[node.args[0]]
            leader[node] = node.args[0]
            member.add(node)
            continue
        takes = node.op == "call_function" and node not in reasons and not is_getitem and not is_cheap(node)
        if takes:
            why = reason_against(node)
            if why:
                reasons[node], takes = why, False
        level[node] = max((level[s] + (0 if takes and s in member else 1) for s in sources), default=0)
        if takes:
            member.add(node)
            leader[node] = node
            for source in sources:
                if source in member and level[source] == level[node]:
                    leader[find(source)] = find(node)
    for node in graph.nodes:
        if node in member:
            groups.setdefault(find(node), []).append(node)
    return [_region(nodes, reasons) for nodes in groups.values()]


def _is_getitem(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[0], Node)


def _sources(node: Node) -> list[Node]:
    """The nodes that `node` reads, through the cheap ones."""
    out: dict[Node, None] = {}
    stack = list(node.all_input_nodes)
    while stack:
        source = stack.pop()
        if source.op == "call_function" and is_cheap(source) and not reason_against(source):
            stack.extend(source.all_input_nodes)
            out.update(dict.fromkeys(s for s in source.all_input_nodes if not is_cheap(s)))
        else:
            out[source] = None
    return list(out)


def _region(nodes: list[Node], reasons: dict[Node, str]) -> Region:
    """Complete a region: the cheap nodes that it reads, its inputs and outputs."""
    inside = dict.fromkeys(nodes)
    inputs: dict[Node, None] = {}
    cheap: dict[Node, None] = {}

    def visit(node: Node) -> None:
        stack = [(node, False)]
        while stack:
            at, done = stack.pop()
            if done:
                cheap[at] = None
            elif at in inside or at in cheap or at in inputs:
                continue
            elif at.op == "call_function" and is_cheap(at) and at not in reasons and not reason_against(at):
                stack.append((at, True))
                stack.extend((s, False) for s in at.all_input_nodes)
            else:
                inputs[at] = None

    for node in nodes:
        for source in node.all_input_nodes:
            visit(source)
    ordered = _in_order([*cheap, *nodes])
    known = set(ordered)
    outputs = [n for n in nodes if any(user not in known or user in cheap and _leaves(user, known) for user in n.users) and not _is_tuple(n)]
    return Region(ordered, list(inputs), outputs)


def _leaves(node: Node, known: set[Node]) -> bool:
    """True when a cheap node of a region is read outside of it: torch makes it there, from the region's output."""
    return any(user not in known or is_cheap(user) and _leaves(user, known) for user in node.users)


def _is_tuple(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _in_order(nodes: list[Node]) -> list[Node]:
    """Sources first; nodes are few and come from one graph."""
    wanted, done, out = set(nodes), set(), []
    for node in nodes:
        stack = [(node, False)]
        while stack:
            at, ready = stack.pop()
            if at in done or at not in wanted:
                continue
            if ready:
                done.add(at)
                out.append(at)
                continue
            stack.append((at, True))
            stack.extend((s, False) for s in at.all_input_nodes)
    return out


__all__ = ["Region", "find_regions", "is_cheap", "reason_against"]
