"""The search for groups: the pair of neighbours that saves most bytes is joined first, until no pair can be joined.

Owns the order of the search, and the repeating of short chains where reading their inputs again is cheaper than storing their result.
Pairs are producers with consumers, and groups that read the same tensor. Joining changes only the neighbours of the joined group, so the work grows with
the number of edges. Read first: `search`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence, Set

from ..analysis.compared import has_own_bits
from ..analysis.op_cost import INSTRUCTIONS_PER_BYTE
from ..dtypes import StateType
from ..ir.graph_ops import BagOp, LookupOp
from ..ir.values import Expr, PointwiseOp, TensorView
from .group import Group
from .groups import Graph

MOST_SIBLINGS = 8
"""How many other readers of the same tensor a group is paired with, the nearest in the definition: with all of them the number of pairs would be quadratic."""

SHORT_CHAIN, LONG_CHAIN, LONGEST_CHAIN = 6, 20, 32
"""Expressions that another group may recompute instead of reading their result: the first in any case where that moves fewer bytes; up to the second where
the instructions take no longer than the bytes; up to the third if what they read is far smaller than their result, as points are than all pairs of them."""
FAR_SMALLER = 8
"""How many times."""
ACCESS_SLOTS = 8
"""Instructions of an access with its address and bounds. Counted: docs/constants.md."""

Joinable = Callable[[Group, Group, bool], bool | None]
"""Tells whether two groups become one, or None for not now: then it is asked once more, with True, when nothing else can be joined. A group that grows meets
the same neighbours after each join, so what is likely to be declined is asked once instead of each time."""


def search(graph: Graph, joinable: Joinable | None = None, order: random.Random | None = None) -> list[Group]:
    """Join groups of `graph` until nothing is gained; return them. joinable: the last check for each pair. order: take pairs in random order instead of the
    best first (for tests).
    """
    join_states(graph)
    pairs, later = _Pairs(graph, order), list[_Pair]()
    is_last = False
    for group in graph.alive():
        pairs.add(group, [other for other in _neighbours(graph, group) if other.first < group.first])
    while pairs or later:
        if not pairs:
            later, is_last = pairs.take(later), True
        pair = pairs.next()
        _, _, _, a, b, version_a, version_b = pair
        if not (a.is_alive and b.is_alive) or a.version != version_a or b.version != version_b:
            continue
        if graph.obstacle(a, b) is not None or graph.makes_cycle(a, b):
            continue
        is_one = joinable is None or joinable(a, b, is_last)
        if is_one is None:
            later.append(pair)
        if not is_one:
            continue
        is_last = False
        joined = graph.join(a, b)
        pairs.add(joined, _neighbours(graph, joined))
    return graph.alive()


_Pair = tuple[float, int, int, Group, Group, int, int]
"""Bytes saved, negative; the first place of both groups; a number; both groups, and their versions when the pair was found."""


class _Pairs:
    """Pairs of groups, the best first. Of the pairs that a group was found in only the best one is in the heap, because all become void when it is joined."""

    def __init__(self, graph: Graph, order: random.Random | None) -> None:
        self._graph, self._order, self._count = graph, order, 0
        self._heap: list[_Pair] = []
        self._others: dict[Group, list[_Pair]] = {}  # by the first group of the pair, the best last

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, group: Group, others: Sequence[Group]) -> None:
        """Add the pairs of a group that was joined."""
        saved = self._graph.saved(group, others)
        found: list[_Pair] = []
        for other in others:
            self._count += 1
            key = -saved[other] if self._order is None else self._order.random()
            found.append((key, min(group.first, other.first), self._count, group, other, group.version, other.version))
        found.sort(reverse=True)
        self._others[group] = found
        if found:
            heapq.heappush(self._heap, found.pop())

    def take(self, pairs: list[_Pair]) -> list[_Pair]:
        """Take pairs that were there before, when there are no others; return an empty list."""
        self._heap = pairs
        heapq.heapify(pairs)
        return []

    def next(self) -> _Pair:
        """Remove the best pair, and return it."""
        pair = heapq.heappop(self._heap)
        group, version = pair[3], pair[5]
        if group.is_alive and group.version == version and (rest := self._others[group]):
            heapq.heappush(self._heap, rest.pop())
        return pair


def join_states(graph: Graph) -> None:
    """Join each reduction to a state of several fields with the expressions that take the fields out of it: no tensor in memory holds a state."""
    for group in graph.alive():
        states = [t for t in group.produced if isinstance(t.dtype(), StateType)]
        for reader in sorted({r for t in states for r in graph.readers.get(t, ())}, key=lambda g: g.first):
            group = graph.join(group, reader)


def _neighbours(graph: Graph, group: Group) -> list[Group]:
    """Return the groups that share a tensor with a group: readers and writers, and those that read the same."""
    found: set[Group] = set()
    if group.is_single:
        return []
    for tensor in group.reads:
        writer = graph.writer.get(tensor)
        if writer is not None:
            found.add(writer)
        readers = graph.readers[tensor]
        if len(readers) > MOST_SIBLINGS:
            found.update(heapq.nsmallest(MOST_SIBLINGS, readers, key=lambda g: (abs(g.first - group.first), g.first)))
        else:
            found |= readers
    for tensor in group.produced:
        found.update(graph.readers.get(tensor, ()))
    found.discard(group)
    return sorted((g for g in found if not g.is_single), key=lambda g: g.first)


# ---------------------------------------------------------------- computing again
def repeat_short_chains(graph: Graph) -> bool:
    """Let readers recompute a tensor from the inputs of its chain of pointwise expressions and lookups, if that moves fewer bytes than storing it. True if any
    does.

    A chain begins at the inputs of the group, or nearer, at what all readers read anyway. What a reader reads for one chain counts for the next: tensors that
    it still reads from memory are asked about again.
    """
    is_changed = False
    pending = dict.fromkeys(t for group in graph.alive() for t in sorted(group.produced, key=lambda t: t.name))
    while pending:
        tensor = next(iter(pending))
        del pending[tensor]
        group, readers = graph.writer[tensor], set(graph.readers.get(tensor, ()))
        if tensor in graph.outputs or not readers or any(tensor in g.barred or g.is_single or g is group for g in readers):
            continue
        if not group.is_alive or tensor not in group.produced:
            continue
        read = set.intersection(*(reader.reads for reader in readers)) - {tensor}
        for ends in ([read & group.produced] if read & group.produced else []) + [set[TensorView]()]:
            if _repeat_from(graph, group, tensor, readers, ends):
                pending.update((t, None) for t in sorted(group.produced, key=lambda t: t.name) if not readers.isdisjoint(graph.readers.get(t, ())))
                is_changed = True
                break
    return is_changed


def repeat_for(graph: Graph, tensor: TensorView, reader: Group, also_saved: float) -> bool:
    """Let the only reader of a tensor compute it from the inputs of its group, if that saves bytes, `also_saved` among them; tell whether it does."""
    if tensor in graph.outputs or tensor in reader.barred or graph.readers[tensor] != {reader}:
        return False
    return _repeat_from(graph, graph.writer[tensor], tensor, {reader}, set(), also_saved)


def _repeat_from(graph: Graph, group: Group, tensor: TensorView, readers: Set[Group], ends: Set[TensorView], also_saved: float = 0.0) -> bool:
    """Repeat the chain that computes `tensor` from `ends` and the inputs of its group, if that pays; tell whether it does. also_saved: bytes."""
    chain = _chain(graph, group, tensor, ends)
    if chain is None:
        return False
    exprs, leaves = chain
    results = [t for e in exprs for t in e.tensor_outputs if t is tensor or not readers.isdisjoint(graph.readers.get(t, ()))]
    if not graph.must_not_differ.isdisjoint(results) and has_own_bits(exprs):
        return False
    more = sum(graph.bytes(leaf) for reader in readers for leaf in leaves if leaf not in reader.reads)
    saved = graph.bytes(tensor) * (1 + len(readers)) - more + also_saved
    if saved <= 0 or not all(_is_worth(graph, g, tensor, chain, saved / len(readers)) and _fits(graph, g, tensor, exprs, leaves) for g in readers):
        return False
    _repeat(graph, tensor, exprs, leaves, group)
    return True


def _chain(graph: Graph, group: Group, tensor: TensorView, ends: Set[TensorView]) -> tuple[list[Expr], set[TensorView]] | None:
    """Return the pointwise expressions and lookups that compute `tensor` within a group, and what they read: inputs of the group, of which lookups read those
    that are in memory, and `ends`; None if the chain is too long or has other expressions."""
    own = set(map(id, (*group.anchors, *group.repeated)))
    found: dict[int, Expr] = {}
    leaves: set[TensorView] = set()
    stack = [tensor]
    while stack:
        current = stack.pop()
        definition = current.definition()
        if definition is None or current in ends or id(definition) not in own:
            leaves.add(current)
            continue
        if id(definition) in found:
            continue
        if not isinstance(definition, (PointwiseOp, LookupOp)) or isinstance(definition, BagOp) or len(found) == LONGEST_CHAIN:
            return None
        found[id(definition)] = definition
        leaves |= set(definition.read_whole)
        stack += [r for t in definition.tensor_inputs if t not in definition.read_whole and (r := graph.root(t)) is not None]
    if len(found) > LONG_CHAIN and FAR_SMALLER * sum(map(graph.bytes, leaves)) > graph.bytes(tensor):
        return None
    return list(found.values()), leaves


def _is_worth(graph: Graph, reader: Group, tensor: TensorView, chain: tuple[list[Expr], set[TensorView]], saved_bytes: float) -> bool:
    """Tell whether computing a tensor again takes a reader no longer than the bytes that this saves, beside what the reader has to wait for in any case: inputs
    and outputs of the definition, as other tensors may not be stored in the end."""
    exprs, leaves = chain
    if len(exprs) <= SHORT_CHAIN:
        return True
    missing = graph.slots(exprs) - INSTRUCTIONS_PER_BYTE * saved_bytes
    if missing <= 0:
        return True
    moved = [t for t in (*(reader.reads | leaves), *reader.produced) if t in graph.outputs or graph.writer.get(t) is None]
    waits = INSTRUCTIONS_PER_BYTE * sum(map(graph.bytes, moved)) - ACCESS_SLOTS * sum(map(graph.accesses, moved))
    return waits > 0 and missing <= waits - graph.slots([*reader.anchors, *reader.repeated])


def _fits(graph: Graph, reader: Group, tensor: TensorView, exprs: list[Expr], leaves: set[TensorView]) -> bool:
    """Tell whether a group can read `leaves` instead of `tensor`: without new axes."""
    has, by_loops = graph.axes(tensor), {r for e in exprs for t in e.read_by_loops if (r := graph.root(t)) is not None}
    return all((leaf not in by_loops or graph.axes(leaf) & ~has == 0) and leaf not in reader.produced for leaf in leaves) and not any(
        graph.writer.get(leaf) is not None and graph.makes_cycle(graph.writer[leaf], reader) and _before(graph, reader, graph.writer[leaf]) for leaf in leaves
    )


def _before(graph: Graph, a: Group, b: Group) -> bool:
    """Tell whether group b depends on group a."""
    return a in graph.producers(b) or graph._leads(a, b)


def _repeat(graph: Graph, tensor: TensorView, exprs: list[Expr], leaves: set[TensorView], group: Group) -> None:
    """Let the readers of `tensor` compute it by `exprs` from `leaves`, and with it what else of these expressions they read: nobody writes what is not read."""
    made: list[TensorView] = [t for e in exprs for t in e.tensor_outputs]
    for reader in list(graph.readers[tensor]):
        reader.repeated += [e for e in exprs if e not in reader.repeated]
        reader.barred.update(t for e in exprs for t in e.read_whole)
        for own in made:
            reader.reads.discard(own)
            graph.readers.get(own, set()).discard(reader)
        for leaf in leaves:
            reader.reads.add(leaf)
            graph.readers.setdefault(leaf, set()).add(reader)
    group.produced -= {t for t in made if t not in graph.outputs and not graph.readers.get(t)}
    if not any(t in graph.outputs or graph.readers.get(t) for t in group.produced):
        group.is_alive = False
        for leaf in group.reads:
            graph.readers[leaf].discard(group)
    graph.forget_neighbours()


__all__ = ["repeat_for", "repeat_short_chains", "search"]
