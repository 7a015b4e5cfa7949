"""Results of regions that take over the memory of a tensor that nothing reads afterwards.

A gradient often has the size of a tensor that only its own kernel still reads: the logits of a loss, the halves of a gated activation. Written into that
memory, it needs none of its own, and the peak of a training step is lower by its size. Such memory is the graph's own: results of regions and of products,
and what the forward saved for this backward alone (donated buffers, as AOTAutograd calls them). Whether the kernel may write there while it runs, the
definition decides (`Fusion.reuse_input`). Read first: `find_reuses`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Sequence, Set
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import Graph, Node

from .own_results import has_own_results
from .regions import PRODUCTS, Region, shown_by
from .updates import Order, in_place_ops, readers


def find_reuses(graph: Graph, regions: list[Region], structures: Sequence[Hashable], donated: Set[Node]) -> None:
    """Record in each region which of its results may have the memory of which of its inputs (`Region.reuses`), and which readers of these must run before.

    Regions of one structure all reuse the same, so that equal layers share a kernel. donated: arguments that only this graph reads.
    """
    spare = _Spare(graph, regions, donated)
    for at in range(len(regions)):
        spare.offer(at)
    common: dict[Hashable, set[tuple[int, int]]] = {}
    for region, structure in zip(regions, structures):
        places = set(region.reused_places)
        common[structure] = common.get(structure, places) & places
    regions[:] = [region.reusing(sorted(common[structure])) for region, structure in zip(regions, structures)]


class _Spare:
    """The tensors of a graph whose memory may be reused, and which are taken."""

    def __init__(self, graph: Graph, regions: list[Region], donated: Set[Node]) -> None:
        self.regions, self.donated = regions, donated
        self.order = Order(regions)
        self.results = set(graph.output_node().all_input_nodes)
        self.written = {value for region in regions for value in region.updates}
        self.taken: set[Node] = set()

    def offer(self, at: int) -> None:
        """Find memory for the results of a region."""
        region = self.regions[at]
        shown = {base for node in region.inputs if (base := shown_by(node)) is not node}
        own = [node for node in region.inputs if node not in shown and self._is_own(node)]
        for value in region.returned if own else ():
            for node in own:
                if node in self.taken or region.shown_like(node, value) is None:
                    continue
                waits = self._waits(node, at)
                if waits is not None:
                    region.reuses[value] = node
                    region.waits += waits
                    self.taken.add(node)
                    break

    def _is_own(self, node: Node) -> bool:
        """True for tensors in memory that belongs to the graph, and to no other tensor."""
        return node not in self.written and (node in self.donated or _makes_new_results(node) and (node in self.order.owner or _is_product(node)))

    def _waits(self, node: Node, at: int) -> list[Node] | None:
        """Return the calls outside of a region that read a tensor; None if one of them needs the region, or a result of the graph or of an unknown op may be a
        view of the tensor."""
        found = readers(node, None, self.results)
        if found is None or not all(reader in self.order.owner or _makes_new_results(reader) for reader in found):
            return None
        waits = [reader for reader in found if self.order.unit(reader) != at]
        return None if self.order.is_needed(at, waits) else waits


def donated_arguments(graph: Graph, kind: str) -> set[Node]:
    """Return the arguments of a backward graph that nobody reads after it: saved tensors that share memory with nothing that a user has, or with each other."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None and kind == "backward" else None
    places = set(getattr(metadata, "bw_donated_idxs", None) or ())
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    storages = {node: _storage(node) for node in arguments}
    counts = Counter(storages.values())
    own = {node for node in arguments if storages[node] is not None and counts[storages[node]] == 1 and SHOWN not in node.meta}
    return {node for place, node in enumerate(arguments) if place in places and node in own}


SHOWN = "weft_shown"
"""A mark on arguments of a backward (`meta`): views of what a user has, or of another result of the forward."""


def mark_shown(forward: Graph, backward: Graph) -> None:
    """Mark saved tensors that are views. AOTAutograd compares the memory of fake tensors, and views that rewrites insert have fake ones with their own."""
    results = forward.output_node().all_input_nodes
    bases = {node: shown_by(node, _may_be_view) for node in results}
    counts = Counter(bases.values())
    arguments = {node.name: node for node in backward.nodes if node.op == "placeholder"}
    for node, base in bases.items():
        if node.name in arguments and node is not base and (base.op == "placeholder" or counts[base] > 1):
            arguments[node.name].meta[SHOWN] = True


def _may_be_view(node: Node) -> bool:
    """True for ops of torch whose results may share memory with their first operand."""
    return _is_of_torch(node) and not _makes_new_results(node)


def _is_of_torch(node: Node) -> bool:
    target = _source(node).target
    return isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims")


def _storage(node: Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _is_product(node: Node) -> bool:
    """True for results of matrix products, convolutions and attention."""
    return any(word in str(_source(node).target) for word in PRODUCTS)


def _source(node: Node) -> Node:
    """The call that makes a value, which may be one of several that it makes."""
    return node.args[0] if node.target is operator.getitem else node  # type: ignore[return-value]


def _makes_new_results(node: Node) -> bool:
    """True for ops of torch whose results share no memory with their operands, and which change none."""
    target: Any = _source(node).target
    return _is_of_torch(node) and target not in in_place_ops() and has_own_results(target)


__all__ = ["donated_arguments", "find_reuses", "mark_shown"]
