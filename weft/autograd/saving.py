"""What a forward saves for its backward: the values with the fewest bytes from which the backward can be computed.

Owns the costs and the cut. Source: Jiang et al. and torch's min_cut_rematerialization_partition, which saves by a minimum cut, too. Read first: `chosen`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

from ..ir.fusion import Fusion
from ..ir.graph_ops import CatOp, LookupOp, ReshapeOp
from ..ir.values import ELEMENTWISE, Expr, TensorView, no_reductions

RECOMPUTED = (*ELEMENTWISE, ReshapeOp, LookupOp, CatOp)
"""Expressions that a backward recomputes: they need no additional memory access. Reductions, random numbers and torch ops are not recomputed."""
SYMBOLIC_EXTENT = 1024
"""The assumed value of a symbolic extent."""


def chosen(fusion: Fusion, exprs: Sequence[Expr], needed: Collection[TensorView], overwritten: Collection[TensorView]) -> list[TensorView]:
    """Return the tensors to save so that all of `needed` can be computed from them, in the order of `exprs`; inputs first.

    exprs: the forward. overwritten: inputs that the forward overwrites, which cannot be saved. Costs: an input or output is read once more; another tensor is
    written and read. With equal costs an output is preferred, because later ops mostly keep it anyway.
    """
    tensors = [*fusion.tensor_inputs(), *(t for e in exprs for t in e.tensor_outputs)]
    place = {t: i for i, t in enumerate(dict.fromkeys(tensors))}
    order = list(place)
    outputs, inputs = set(fusion.outputs()), set(fusion.inputs())
    source, sink = 2 * len(order), 2 * len(order) + 1
    network = _Network(2 * len(order) + 2)
    for tensor, i in place.items():
        network.add(2 * i, 2 * i + 1, _cost(tensor, outputs, inputs, overwritten))
        if tensor in inputs or not isinstance(tensor.definition(), RECOMPUTED):
            network.add(source, 2 * i, math.inf)
    for expr in exprs:
        if isinstance(expr, RECOMPUTED):
            for read in expr.tensor_inputs:
                for made in expr.tensor_outputs:
                    network.add(2 * place[read] + 1, 2 * place[made], math.inf)
    for tensor in needed:
        network.add(2 * place[tensor] + 1, sink, math.inf)
    reached = network.cut(source, sink)
    return [t for t, i in place.items() if reached[2 * i] and not reached[2 * i + 1]]


def _cost(tensor: TensorView, outputs: Collection[object], inputs: Collection[object], overwritten: Collection[TensorView]) -> float:
    if tensor in overwritten:
        return math.inf
    bits = float(tensor.dtype().bits)
    for axis in no_reductions(tensor.get_logical_domain()):
        if not axis.is_broadcast():
            bits *= int(axis.sym.value.real) if axis.sym.is_const else SYMBOLIC_EXTENT
    return bits * (0.99 if tensor in outputs else 1.0 if tensor in inputs else 2.0)


class _Network:
    """Edges with capacities, and the minimum cut by Edmonds and Karp: graphs here have some hundred nodes."""

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.ends: list[int] = []
        self.left: list[float] = []

    def add(self, start: int, end: int, capacity: float) -> None:
        """Add an edge, and its reverse of capacity 0."""
        for a, b, size in ((start, end, capacity), (end, start, 0.0)):
            self.edges[a].append(len(self.ends))
            self.ends.append(b)
            self.left.append(size)

    def cut(self, source: int, sink: int) -> list[bool]:
        """Return which nodes are on the source's side of the minimum cut that is nearest to it."""
        while True:
            came_by = self._search(source)
            if came_by[sink] is None:
                return [by is not None for by in came_by]
            path, node = [], sink
            while node != source:
                edge = came_by[node]
                assert edge is not None
                path.append(edge)
                node = self.ends[edge ^ 1]
            flow = min(self.left[edge] for edge in path)
            if flow == math.inf:
                raise ValueError("a value that the backward needs can be neither saved nor computed again")
            for edge in path:
                self.left[edge] -= flow
                self.left[edge ^ 1] += flow

    def _search(self, source: int) -> list[int | None]:
        """Return the edge by which each node is reached from the source (-1 for the source), None if it is not reached."""
        came_by: list[int | None] = [None] * len(self.edges)
        came_by[source] = -1
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                end = self.ends[edge]
                if came_by[end] is None and self.left[edge] > 0:
                    came_by[end] = edge
                    queue.append(end)
        return came_by
