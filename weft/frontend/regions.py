"""Which nodes of an aten graph become regions: connected sets of ops that one definition computes.

A region's nodes have one level: the level of a node is the largest of its inputs', and an op that torch runs is one above what it reads of regions. So
no path leaves a region and comes back, a chain of torch's ops counts once, and the rule is linear in the graph. Views and factories (`Rule.is_cheap`) have no
level: they are copied into the regions that read them. Read first: `find_regions`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .aten import lookup
from .aten.rules import tensor_dtypes
from .rewrites import CONVOLUTIONS


@dataclass
class Region:
    """nodes: in graph order, with the cheap ones they read. inputs: nodes from outside, tensors and symbolic sizes. outputs: nodes that others read. updates:
    outputs that are written into inputs of the graph, which are inputs of the region, too. waits: readers of these inputs that must run before. reuses: outputs
    that may have the memory of an input of the region that nothing reads afterwards (`weft.frontend.reuse`)."""

    nodes: list[Node]
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    updates: dict[Node, Node] = field(default_factory=dict)
    waits: list[Node] = field(default_factory=list)
    reuses: dict[Node, Node] = field(default_factory=dict)

    @property
    def returned(self) -> list[Node]:
        """The outputs that a call returns: those in memory of their own."""
        return [node for node in self.outputs if node not in self.updates]

    @property
    def reused_places(self) -> tuple[tuple[int, int], ...]:
        """`reuses`, by the places of an output and an input."""
        return tuple((self.outputs.index(value), self.inputs.index(spare)) for value, spare in self.reuses.items())

    def reusing(self, places: Iterable[tuple[int, int]]) -> Region:
        """Return this region with `reuses` by the places of an output and an input. An input that it reads in another shape is replaced by that view of it."""
        made = replace(self, nodes=list(self.nodes), inputs=list(self.inputs), reuses={})
        for output, place in places:
            shown = self.shown_like(self.inputs[place], self.outputs[output])
            assert shown is not None
            if shown is not self.inputs[place]:
                made.nodes.remove(shown)
                made.inputs[place] = shown
            made.reuses[self.outputs[output]] = shown
        return made

    def shown_like(self, given: Node, value: Node) -> Node | None:
        """Return an input, or the only view of it that this region reads, if it lies in memory like `value`."""
        if is_alike(given, value):
            return given
        views = torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default
        alike = {user for user in given.users if user.target in views and is_alike(user, value)}
        readers = [node for node in self.nodes if given in node.all_input_nodes] if alike else []
        return readers[0] if len(readers) == 1 and readers[0] in alike and given.meta["val"].is_contiguous() else None


def is_alike(a: Node, b: Node) -> bool:
    """True for tensors of one type, device, known size and layout, without overlapping elements."""
    one, other = a.meta.get("val"), b.meta.get("val")
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)) or one.is_complex():
        return False
    fixed = all(isinstance(n, int) for n in (*one.shape, *one.stride(), *other.shape, *other.stride()))
    return fixed and (one.dtype, one.device, one.shape, one.stride()) == (other.dtype, other.device, other.shape, other.stride())


PRODUCTS = ("mm.default", "mm_dtype", "convolution", "attention", "grouped_mm")
"""Substrings of the names of matrix products, convolutions and attention."""
LEFT_TO_TORCH = "weft leaves matrix products, convolutions and attention to torch"


def reason_against(node: Node) -> str:
    """Return why a node cannot be in a region; "" if it can."""
    rule = lookup(node.target)
    if node.target is torch.ops.aten.copy_.default:
        return "the new value of an argument, which has another layout, or which readers of the old value wait for, is copied into it"
    if rule is None:
        return LEFT_TO_TORCH if any(word in str(node.target) for word in PRODUCTS) else f"{node.target} has no rule"
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(value, torch.Tensor) and (value.layout is not torch.strided or value.is_complex() and not rule.makes_complex):
            return "a result that is sparse or complex"
    foreign = tensor_dtypes(node) - rule.dtypes
    if foreign:
        return f"the dtype {sorted(map(str, foreign))[0]}"
    return rule.claims(node)


MOVES = "weft_moves"
"""A mark on nodes (`meta`): a copy that rearranges its elements for an op that torch runs. The kernel writes that layout directly."""

ALONE = "weft_alone"
"""A mark on copies that transpose an image between channels first and channels last next to a convolution. They are separate kernels, because a transpose goes
through tiles, and a norm that wrote a transposed result would write single elements."""


def is_cheap(node: Node) -> bool:
    """True for views and factories, and for the parts of a multi-output view."""
    target = node.target
    if target is operator.getitem:
        return isinstance(node.args[0], Node) and is_cheap(node.args[0])
    rule = lookup(target)
    return rule is not None and rule.is_cheap and MOVES not in node.meta


def shown_by(node: Node, passes: Callable[[Node], bool] = is_cheap) -> Node:
    """Return the value at the start of a chain of views: the first operand of a call, that one's, and so on. passes: which calls the chain consists of."""
    while node.op == "call_function" and node.all_input_nodes and passes(node):
        node = node.all_input_nodes[0]
    return node


def is_factory(node: Node) -> bool:
    """True for calls that create dense tensors from numbers only."""
    aten = torch.ops.aten
    return node.target in (aten.full.default, aten.zeros_like.default, aten.full_like.default, aten.ones_like.default)


def is_host_number(node: Node) -> bool:
    """True for arithmetic on sizes, which Python does at each call."""
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


Reason = Callable[[Node], str]
"""`reason_against`, memoized."""


def _is_taken_view(node: Node, reasons: dict[Node, str], why: Reason) -> bool:
    """True for a cheap node that is copied into regions."""
    source = node.args[0] if is_getitem(node) else node
    return node.op == "call_function" and is_cheap(node) and source not in reasons and not why(source)  # type: ignore[arg-type]


def find_regions(graph: torch.fx.Graph, reasons: dict[Node, str]) -> list[Region]:
    """Return the regions of a graph. `reasons` gets every call that stays with torch, with the reason; calls that are already in it stay out of regions."""
    nodes = list(graph.nodes)
    why = functools.cache(reason_against)
    _mark_moves(nodes, reasons, why)
    views = {node for node in nodes if _is_taken_view(node, reasons, why)}
    members = _members(nodes, reasons, why)
    sources = {node: [] if node in views else _sources(node, views) for node in nodes}
    level = _levels(nodes, members, sources)
    _sink(nodes, members, sources, level)
    groups = _connected(nodes, members, sources, level, views)
    return [_region(group, views) for group in groups]


def _mark_moves(nodes: list[Node], reasons: dict[Node, str], why: Reason) -> None:
    """Mark copies that rearrange a large tensor and that torch's ops read, directly or through views, or that are next to a convolution."""
    foreign: set[Node] = set()  # ops outside of regions, and views that they read
    for node in reversed(nodes):
        if node.op == "call_function" and is_cheap(node):
            is_foreign = any(user in foreign for user in node.users)
        else:
            is_foreign = node.op == "output" or node in reasons or not is_getitem(node) and bool(why(node))
        if is_foreign:
            foreign.add(node)
    for node in nodes:
        if node.target is torch.ops.aten.clone.default and _is_large(node) and not why(node) and _is_rearranged(node):
            if _is_beside_convolution(node):
                node.meta[MOVES] = node.meta[ALONE] = True
            elif node in foreign:
                node.meta[MOVES] = True


def _is_beside_convolution(copy: Node) -> bool:
    """True for a copy with four axes of a convolution's result or operand."""
    source: Node = copy.args[0]  # type: ignore[assignment]
    if is_getitem(source):
        source = source.args[0]  # type: ignore[assignment]
    return copy.meta["val"].dim() == 4 and any(node.target in CONVOLUTIONS for node in (source, *copy.users))


def _joins(node: Node, source: Node) -> bool:
    return ALONE not in node.meta and ALONE not in source.meta


def _is_rearranged(node: Node) -> bool:
    """True for a copy with other strides than its source."""
    given, value = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    strides = zip(given.stride(), value.stride(), value.shape)
    return any(not statically_known_true(a == b) and not statically_known_true(size == 1) for a, b, size in strides)


def _members(nodes: list[Node], reasons: dict[Node, str], why: Reason) -> set[Node]:
    """The compute nodes with a rule, including the parts of their results."""
    members: set[Node] = set()
    for node in nodes:
        if is_getitem(node):
            members.update([node] if node.args[0] in members else [])
        elif node.op == "call_function" and node not in reasons and not is_cheap(node) and not is_host_number(node):
            if why(node):
                reasons[node] = why(node)
            else:
                members.add(node)
    return members


def _levels(nodes: list[Node], members: set[Node], sources: dict[Node, list[Node]]) -> dict[Node, int]:
    """The earliest level of each node (nodes of one level can be in one region)."""
    level: dict[Node, int] = {}
    for node in nodes:
        level[node] = max((level[s] + _step(node, s, members) for s in sources[node]), default=0)
    return level


def _step(node: Node, source: Node, members: set[Node]) -> int:
    """How many levels `node` is at least above its source: one if a region ends between them."""
    return 1 if source in members and not (node in members and _joins(node, source)) else 0


def _sink(nodes: list[Node], members: set[Node], sources: dict[Node, list[Node]], level: dict[Node, int]) -> None:
    """Move nodes that only later regions read into the earliest of these, so that their results stay within a kernel. Results of the graph stay early."""
    latest: dict[Node, int] = {}
    for node in reversed(nodes):
        if node in members and not is_getitem(node) and node in latest:
            level[node] = max(level[node], latest[node])
        for source in sources[node]:
            limit = level[source] if node.op == "output" else level[node] - _step(node, source, members)
            latest[source] = min(latest.get(source, limit), limit)
    for node in nodes:
        if is_getitem(node) and node in members:
            level[node] = level[node.args[0]]  # type: ignore[index]


def _connected(
    nodes: list[Node], members: set[Node], sources: dict[Node, list[Node]], level: dict[Node, int], views: set[Node]
) -> list[list[Node]]:  # fmt: skip
    """Members of one level that an edge connects, that read the same large tensor, or that put values into places that the same index names."""
    leader = {node: node for node in nodes if node in members}
    reader: dict[tuple[object, int], Node] = {}

    def find(node: Node) -> Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in nodes:
        if node not in members or ALONE in node.meta:
            continue
        for source in sources[node]:
            if source in members and level[source] == level[node]:
                leader[find(source)] = find(node)
            elif _is_large(source):
                other = reader.setdefault((source, level[node]), node)
                leader[find(other)] = find(node)
        if node.target in PUTS:
            other = reader.setdefault((tuple(_sources_of(node.args[1], views)), level[node]), node)
            leader[find(other)] = find(node)
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        if node in members:
            groups.setdefault(find(node), []).append(node)
    return list(groups.values())


LARGE_ELEMS = 1 << 16
"""Elements of a tensor from which reading it once instead of twice justifies a common kernel. An estimate: reading it takes a tenth of a launch."""


def _is_large(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    elems = value.numel()
    return not isinstance(elems, int) or elems >= LARGE_ELEMS


def is_getitem(node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], Node)


PUTS = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)
"""Calls whose second argument names the places that get values."""


def _sources(node: Node, views: set[Node]) -> list[Node]:
    """The nodes that `node` reads, through the cheap ones."""
    return _sources_of(node.all_input_nodes, views)


def _sources_of(read: Any, views: set[Node]) -> list[Node]:
    out: dict[Node, None] = {}
    stack = [node for node in read if node is not None]
    while stack:
        source = stack.pop()
        if source in views:
            stack.extend(source.all_input_nodes)
        else:
            out[source] = None
    return list(out)


def _region(nodes: list[Node], views: set[Node]) -> Region:
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
            elif at in views:
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
    """True if a cheap node of a region is read outside of it: torch then computes it there, from the region's output."""
    return any(user not in known or is_cheap(user) and _leaves(user, known) for user in node.users)


def _is_tuple(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _in_order(nodes: list[Node]) -> list[Node]:
    """Return the nodes in topological order; nodes are few and come from one graph."""
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


__all__ = ["Region", "find_regions", "is_cheap", "is_host_number", "reason_against", "shown_by"]
