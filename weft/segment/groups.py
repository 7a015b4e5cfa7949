"""What the search for a partition knows of all groups of a definition: who reads and writes each tensor, and whether one kernel can compute two of them.

A group is made of anchors. Expressions that cost nothing to repeat (casts to wider types, broadcasts, squeezes, plain copies, constants) belong to no
group: each group that needs one computes it again from its root, the tensor before such a chain, so that what is stored between groups is the root.
Whether a kernel can compute a group is answered from sets of axes; the schedulers themselves are asked once, about what the search ends with.
Read first: `Graph`, `Graph.obstacle`; a group itself is in `group.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set

from ..analysis.axes import AxisMaps
from ..analysis.compared import compared_with_own
from ..analysis.op_cost import LAUNCH_BYTES, cost_of
from ..analysis.plain_copies import ends_segment, is_copy
from ..analysis.vectorization import MAX_VECTOR_BITS
from ..compiler import WITHOUT_KERNEL
from ..expr import Number, Sym, evaluate_int
from ..graph.group_folds import size_of_group
from ..ir.block_ops import BlockSampleOp, loop_sources
from ..ir.fusion import Fusion
from ..ir.graph_ops import BagOp, LookupOp, RollOp, ScanOp, ScatterStoreOp
from ..ir.values import (
    BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, IterDomain, PointwiseOp, RandomOp, ReductionOp, SqueezeOp, TensorView, WelfordOp, no_reductions,
)  # fmt: skip
from .group import Group, joined_links, with_one_folded_loop

MOST_TENSORS = 100
"""The maximum number of tensors that a kernel reads or writes: pointers and strides of more do not fit the 4 KB of kernel parameters."""


def _bits_of(axes: int) -> list[int]:
    return [1 << n for n in range(axes.bit_length()) if axes >> n & 1]


def bytes_in_memory(tensor: TensorView, env: Mapping[Sym, Number], memo: dict[Sym, Number] | None = None) -> float:
    """Return the size of a tensor in memory."""
    extents = [a.sym for a in no_reductions(tensor.get_logical_domain()) if not a.is_broadcast()]
    return math.prod([evaluate_int(e, env, memo) for e in extents]) * tensor.dtype().bits / 8


def slots_of(expr: Expr, env: Mapping[Sym, Number], memo: dict[Sym, Number] | None = None) -> float:
    """Return the issue slots that a pointwise expression or a reduction takes for all of its elements."""
    cost, tensors = cost_of([expr], ()), [*expr.tensor_inputs, *expr.tensor_outputs]
    sizes = [(bytes_in_memory(t, env, memo), t.dtype().bits) for t in tensors]
    largest, bits = max(sizes, key=lambda size: size[0], default=(0.0, 8))
    return cost.slots * largest * 8 / bits


def is_alone(expr: Expr) -> bool:
    """True for expressions that are a step by themselves: no kernel computes them."""
    return isinstance(expr, WITHOUT_KERNEL) and not isinstance(expr, (ScanOp, RollOp))


def is_barrier(expr: Expr) -> bool:
    """True for an expression whose readers run in another kernel."""
    return isinstance(expr, RollOp) and not is_free(expr) or ends_segment(expr)


def is_free(expr: Expr) -> bool:
    """True for an expression that every reader may recompute: it has at most one tensor operand, with no more bits than its result. An input is read rotated as
    it is read otherwise."""
    if isinstance(expr, RollOp):
        return expr.tensor_inputs[0].is_fusion_input
    if isinstance(expr, (BroadcastOp, SqueezeOp, ExpandOp, FullOp, IotaOp)):
        return True
    if isinstance(expr, RandomOp):
        return len(expr.inputs) == 4
    if isinstance(expr, PointwiseOp) and expr.op_name == "cast":
        return expr.tensor_inputs[0].dtype().bits <= expr.outputs[0].dtype().bits  # type: ignore[attr-defined]
    return is_copy(expr)


class Graph:
    """The expressions of a definition, for one search: roots, axes as bits, bytes, and which groups read and write each tensor.

    repeats: whether free expressions are recomputed by their readers; otherwise each is an anchor.
    """

    def __init__(self, fusion: Fusion, exprs: Sequence[Expr], outputs: Collection[TensorView], env: Mapping[Sym, Number], *, repeats: bool = True) -> None:
        self.exprs, self.outputs, self.env = list(exprs), set(outputs), env
        self.place = {id(e): n for n, e in enumerate(self.exprs)}
        self.fusion, self._maps = fusion, AxisMaps(fusion)
        self._bits: dict[IterDomain, int] = {}
        self._axes: dict[TensorView, int] = {}
        self._bytes: dict[TensorView, float] = {}
        self._slots: dict[int, float] = {}  # by the id of an expression
        self._memo: dict[Sym, Number] = {}
        stored = {t for e in self.exprs if is_alone(e) for t in e.tensor_inputs}
        stored |= {t for e in self.exprs for t in e.read_whole}
        self.is_anchor = {id(e): not (repeats and is_free(e)) or any(t in self.outputs or t in stored for t in e.tensor_outputs) for e in self.exprs}
        self.writer: dict[TensorView, Group] = {}
        self.readers: dict[TensorView, set[Group]] = {}
        self.groups: list[Group] = []
        self.must_not_differ = compared_with_own(fusion)
        self._producers: dict[Group, set[Group]] = {}
        self._consumers: dict[Group, set[Group]] = {}
        self._ways: tuple[Group | None, Group | None, set[Group]] = None, None, set()  # what was searched from the second back to the first, without a way
        self._last_pair: tuple[Group, int, Group, int] | None = None
        self._has_one_loop = False
        self._reduced: list[int] = []  # reduced axes of each reduction, by the number of its bit
        self._of_groups: set[int] = set()  # reduced axes over which elements of rows can be folded in groups
        self._folded_into: dict[TensorView, int] = {}  # the reductions that a tensor depends on and that were not broadcast again
        for expr in self.exprs:
            if self.is_anchor[id(expr)]:
                self.groups.append(self._new_group(expr))

    # -- expressions
    def root(self, tensor: TensorView) -> TensorView | None:
        """Return the tensor that a chain of repeated expressions starts from; None for a constant."""
        found: TensorView | None = tensor
        while found is not None:
            definition = found.definition()
            if definition is None or self.is_anchor.get(id(definition), True):
                return found
            found = next(iter(definition.tensor_inputs), None)
        return None

    def _new_group(self, expr: Expr) -> Group:
        reads = {r for t in expr.tensor_inputs if (r := self.root(t)) is not None}
        place = self.place[id(expr)]
        barred = {t for t in reads if (d := t.definition()) is not None and (is_barrier(d) or isinstance(d, BlockSampleOp))}
        barred.update(expr.read_whole)
        group = Group([expr], place, place, reads, barred, set(expr.tensor_outputs), set(expr.read_whole), is_single=is_alone(expr))
        group.scatters, group.scans = isinstance(expr, ScatterStoreOp), isinstance(expr, ScanOp)
        if isinstance(expr, LookupOp) and not isinstance(expr, BagOp) and expr.source not in map(self.root, expr.read_by_loops):
            group.looked_up[expr.source] = self.elems(expr.tensor_outputs[0]) * expr.source.dtype().bits / 8
        group.spread = self._spread(expr, reads)
        is_fold = isinstance(expr, (ReductionOp, WelfordOp))
        every, reduced = self._fold(expr) if is_fold else (0, 0)
        around = [(t, self.axes(t)) for t in (*reads, *expr.tensor_outputs)]
        for bit in _bits_of(every if is_fold else self.axes(expr.tensor_outputs[0])):
            group.links.append((bit, {t for t, axes in around if axes & bit}, is_fold))
        if is_fold:
            group.fold = expr
            group.folds.add((every, reduced))
            if size_of_group(expr):
                self._of_groups.add(reduced)
            group.folded = 1 << len(self._reduced)
            self._reduced.append(reduced)
            for tensor in expr.tensor_outputs:
                self._folded_into[tensor] = self._folded_into.get(tensor, 0) | group.folded
        for tensor in expr.tensor_outputs:
            self.writer[tensor] = group
        for tensor in reads:
            self.readers.setdefault(tensor, set()).add(group)
        return group

    def _spread(self, expr: Expr, reads: Collection[TensorView]) -> int:
        """Return the reductions whose results an expression broadcasts over the reduced axes; record those that it only passes on."""
        made_of, spread = 0, 0
        for tensor in reads:
            made_of |= self._folded_into.get(tensor, 0)
        if made_of:
            axes = 0
            for tensor in expr.tensor_outputs:
                axes |= self.axes(tensor)
            number, left = 0, made_of
            while left:
                if left & 1 and axes & self._reduced[number]:
                    spread |= 1 << number
                number, left = number + 1, left >> 1
            for tensor in expr.tensor_outputs:
                self._folded_into[tensor] = made_of & ~spread
        return spread

    def members(self, *groups: Group) -> list[Expr]:
        """Return the expressions of the kernel of groups in order: anchors, recomputed expressions, and the free chains before them. What only other groups
        need, which recompute it, is left out."""
        found = {id(e): e for group in groups for e in (*group.anchors, *group.repeated)}
        stack = list(found.values())
        while stack:
            for tensor in stack.pop().tensor_inputs:
                definition = tensor.definition()
                if definition is not None and id(definition) not in found and not self.is_anchor.get(id(definition), True):
                    found[id(definition)] = definition
                    stack.append(definition)
        members, needed = list[Expr](), self.writes(*groups)
        needed.update(t for g in groups if g.is_single or g.scatters for e in g.anchors for t in e.tensor_outputs)
        for expr in sorted(found.values(), key=lambda e: self.place[id(e)], reverse=True):
            if not needed.isdisjoint(expr.tensor_outputs):
                members.append(expr)
                needed.update(expr.tensor_inputs)
        return members[::-1]

    # -- axes and bytes
    def bit(self, axis: IterDomain) -> int:
        """Return the bit of an axis."""
        return self._bits.setdefault(self._maps.exact(axis), 1 << len(self._bits))

    def axes(self, tensor: TensorView) -> int:
        """Return the non-broadcast axes of a tensor, as a bit set."""
        found = self._axes.get(tensor)
        if found is None:
            found = 0
            for axis in no_reductions(loop_sources(tensor)):
                if not axis.is_broadcast():
                    found |= self.bit(axis)
            self._axes[tensor] = found
        return found

    def _fold(self, expr: Expr) -> tuple[int, int]:
        every = reduced = 0
        for axis in expr.outputs[0].get_logical_domain():  # type: ignore[attr-defined]
            if not axis.is_broadcast():
                every |= self.bit(axis)
                reduced |= self.bit(axis) if axis.is_reduction() else 0
        return every, reduced

    def bytes(self, tensor: TensorView) -> float:
        """Return the size of a tensor in memory."""
        found = self._bytes.get(tensor)
        if found is None:
            found = self._bytes[tensor] = bytes_in_memory(tensor, self.env, self._memo)
        return found

    def elems(self, tensor: TensorView) -> float:
        """Return how many elements a tensor has in memory."""
        return self.bytes(tensor) * 8 / tensor.dtype().bits

    def slots(self, exprs: Sequence[Expr]) -> float:
        """Return the issue slots that pointwise expressions and reductions take for all of their elements."""
        total = 0.0
        for expr in exprs:
            if id(expr) not in self._slots:
                self._slots[id(expr)] = slots_of(expr, self.env, self._memo)
            total += self._slots[id(expr)]
        return total

    def accesses(self, tensor: TensorView) -> float:
        """Return how many accesses read or write a tensor in memory, about: with vectors as wide as divide its innermost axis."""
        axes = [a for a in no_reductions(tensor.get_allocation_domain()) if not a.is_broadcast()]
        innermost = evaluate_int(axes[-1].sym, self.env, self._memo) if axes else 1
        return self.elems(tensor) / math.gcd(int(innermost), max(1, MAX_VECTOR_BITS // tensor.dtype().bits))

    # -- groups
    def writes(self, *groups: Group) -> set[TensorView]:
        """Return the tensors that one kernel for these groups has to store."""
        own = set(groups)
        return {t for group in groups for t in group.produced if t in self.outputs or self.readers.get(t, set()) - own}

    def read_bytes(self, group: Group, tensor: TensorView) -> float:
        """Return how many bytes of a tensor a group reads, about: lookups may read less than all, and each byte is read once."""
        return min(self.bytes(tensor), group.looked_up.get(tensor, self.bytes(tensor)))

    def saved(self, group: Group, others: Iterable[Group]) -> dict[Group, float]:
        """Return the bytes that one kernel for a group and another saves, a launch included, for each of `others`."""
        saved = dict.fromkeys(others, float(LAUNCH_BYTES))
        for tensor in group.reads:
            readers, writer = self.readers[tensor], self.writer.get(tensor)
            own = self.read_bytes(group, tensor)
            for reader in readers:
                if reader in saved:
                    saved[reader] += min(own, self.read_bytes(reader, tensor))
            if writer in saved and tensor in writer.produced:
                saved[writer] += self.bytes(tensor) * (2 if len(readers) == 1 and tensor not in self.outputs else 1)
        for tensor in group.produced:
            readers = self.readers.get(tensor, set())
            once = self.bytes(tensor) * (2 if len(readers) == 1 and tensor not in self.outputs else 1)
            for reader in readers:
                if reader in saved:
                    saved[reader] += once
        return saved

    def obstacle(self, a: Group, b: Group) -> str | None:
        """Return why no kernel can compute both groups, or None if one may."""
        if a.is_single or b.is_single:
            return "one of them is not a kernel"
        if any(t in a.produced for t in b.barred) or any(t in b.produced for t in a.barred):
            return "it has to be in memory before it is read"
        folds = a.folds | b.folds
        reads = {t for t in a.reads | b.reads if t not in a.produced and t not in b.produced}
        writes = self.writes(a, b)
        if len(reads) + len(writes) > MOST_TENSORS:
            return f"{len(reads) + len(writes)} tensors are too many for one kernel"
        looked_up = a.whole | b.whole
        needed = 0
        for tensor in reads:
            if tensor not in looked_up:
                needed |= self.axes(tensor)
        for tensor in writes:
            needed |= self.axes(tensor)
        if not folds:
            return None if any(self.axes(t) == needed for t in writes) else "no output has every axis of all inputs and outputs"
        if a.scatters or b.scatters:
            return "a kernel that scatters cannot also reduce"
        if len({every for every, _ in folds}) > 1:
            return "their reductions do not run over the same axes"
        if needed & ~next(iter(folds))[0]:
            return "it has an axis that the reduction does not have"
        if len(self._without_groups({reduced for _, reduced in folds})) > 2:
            return "they reduce over three or more different sets of axes"
        if a.folds and b.folds and not self._have_one_loop(a, b) and not self._can_be_tied(a, b):
            return "none of their tensors has the axes of both reductions"
        spread = self._without_groups(self._spread_again(a, b))
        if len(spread) > 1:
            return "two of their reductions run over different axes, and the results of both are broadcast back"
        is_across = spread and self.is_doubtful(a, b) and not any(axes & self._innermost(reads - looked_up or reads) for axes in spread)
        return "a reduction over an outer axis is broadcast back, beside a reduction over the innermost axis" if is_across else None

    def _have_one_loop(self, a: Group, b: Group) -> bool:
        """Tell whether the reductions of both groups run in the same loops: sizes that are equal because of ops elsewhere in the definition do not tie two
        loops."""
        pair = (a, a.version, b, b.version)
        if self._last_pair != pair:  # a pair is asked about before it is joined, and again when it is
            folded = [bit for bit, _, is_folded in joined_links(a.links + b.links) if is_folded]
            self._last_pair, self._has_one_loop = pair, len(folded) == len(set(folded))
        return self._has_one_loop

    def _can_be_tied(self, a: Group, b: Group) -> bool:
        """Tell whether the loops of two groups can be made one: all of their reductions fold the same axes, which lie in the same order."""
        assert a.fold is not None and b.fold is not None
        first, second = ([0 if axis.is_broadcast() else self.bit(axis) for axis in e.tensor_outputs[0].get_maybe_root_domain()] for e in (a.fold, b.fold))
        return not self.is_doubtful(a, b) and first == second

    def ties(self, a: Group, b: Group) -> list[TensorView]:
        """Return the tensors whose loops a kernel for both groups has to tie."""
        tied = dict.fromkeys(a.tied + b.tied)
        if a.fold is not None and b.fold is not None and not self._have_one_loop(a, b):
            tied.update(dict.fromkeys([a.fold.tensor_outputs[0], b.fold.tensor_outputs[0]]))
        return list(tied)

    def _spread_again(self, a: Group, b: Group) -> set[int]:
        """Return the sets of axes over which reductions are broadcast again within both groups. With two such sets, the second reduction would wait for all of
        the first, unless it is over groups of elements within rows of the first."""
        both = (a.folded | b.folded) & (a.spread | b.spread)
        found: set[int] = set()
        while both and len(found - self._of_groups) < 2:
            bit = both & -both
            found.add(self._reduced[bit.bit_length() - 1])
            both ^= bit
        return found

    def _without_groups(self, reduced: Set[int]) -> Set[int]:
        """Return sets of axes without those over groups within rows of another set."""
        if len(reduced) < 2 or not reduced & self._of_groups:
            return reduced
        return {axes for axes in reduced if axes not in self._of_groups or not any(axes != rows and axes & ~rows == 0 for rows in reduced)}

    def folds_groups(self, a: Group, b: Group) -> bool:
        """Tell whether reductions of two groups may be over elements within rows of others."""
        folds = {reduced for _, reduced in a.folds | b.folds}
        return self._without_groups(folds) != folds

    def _innermost(self, reads: Collection[TensorView]) -> int:
        """Return the innermost axis in memory of the largest of `reads`, as a bit; all bits if there is none."""
        largest = max(reads, key=lambda t: (self.bytes(t), t.name), default=None)
        axes = [] if largest is None else [a for a in no_reductions(largest.domain().maybe_allocation) if not a.is_broadcast()]
        return self.bit(axes[-1]) if axes else -1

    def is_doubtful(self, a: Group, b: Group) -> bool:
        """True for a pair that not every scheduler takes (reductions of rows and of columns, running folds), so the schedulers must be asked."""
        return a.scans or b.scans or len({reduced for _, reduced in a.folds | b.folds}) > 1

    def kind(self, a: Group, b: Group) -> Hashable:
        """Return the class of a pair of which schedulers take all if they take one: its reductions, how many they are, broadcasts and ops, and its size rounded
        to a power of two."""
        sizes = (len(a.anchors) + len(b.anchors), len(a.reads | b.reads), len(self.writes(a, b)))
        folds = sum(isinstance(e, (ReductionOp, WelfordOp)) for e in (*a.anchors, *b.anchors))
        return self.work(a, b), folds, tuple(n.bit_length() for n in sizes)

    def work(self, a: Group, b: Group) -> Hashable:
        """Return what a pair does, however often: its reductions, broadcasts and ops."""
        names = frozenset(e.op_name for e in (*a.anchors, *b.anchors) if not isinstance(e, PointwiseOp))
        return frozenset(a.folds | b.folds), frozenset(self._spread_again(a, b)), names

    def exact_kind(self, a: Group, b: Group) -> object:
        """Return the class of a pair of which schedulers decline all if they decline one: the same with the number of each op and the exact size."""
        names = frozenset(Counter(e.op_name for g in (a, b) for e in g.anchors).items())
        return frozenset(a.folds | b.folds), frozenset(self._spread_again(a, b)), names, len(a.reads | b.reads), len(self.writes(a, b))

    def join(self, a: Group, b: Group) -> Group:
        """Merge the smaller group into the other, and return that. There must be no path between them through other groups."""
        tied, fold = self.ties(a, b), a.fold or b.fold
        if len(a.anchors) < len(b.anchors):
            a, b = b, a
        a.tied, a.fold = tied, fold
        a.at = self._place_between(*sorted((a, b), key=lambda g: g.at))
        self._let_replace(a, b)
        self._ways = None, None, set()
        for tensor in b.reads:
            readers = self.readers[tensor]
            readers.discard(b)
            readers.add(a)
        for tensor in b.produced:
            self.writer[tensor] = a
        a.absorb(b)
        for tensor in a.reads & a.produced:
            a.reads.discard(tensor)
            self.readers[tensor].discard(a)
            if not self.readers[tensor] and tensor not in self.outputs:
                a.produced.discard(tensor)
        links = [(bit, {t for t in tensors if t in a.reads or t in a.produced}, is_folded) for bit, tensors, is_folded in joined_links(a.links + b.links)]
        a.links = [link for link in links if link[1] or link[2]]
        if a.tied:
            a.links = with_one_folded_loop(a.links)
        return a

    def producers(self, group: Group) -> set[Group]:
        """Return the groups that a group reads from: the set that is kept."""
        found = self._producers.get(group)
        if found is None:
            found = self._producers[group] = {self.writer[t] for t in group.reads if t in self.writer}
        return found

    def makes_cycle(self, a: Group, b: Group) -> bool:
        """Tell whether there is a path through other groups from one group to the other, so that they cannot be one step."""
        return self._leads(a, b) if a.at < b.at else self._leads(b, a)

    def consumers(self, group: Group) -> set[Group]:
        """Return the groups that read from a group: the set that is kept."""
        found = self._consumers.get(group)
        if found is None:
            found = self._consumers[group] = {reader for t in group.produced for reader in self.readers.get(t, ())} - {group}
        return found

    def forget_neighbours(self) -> None:
        """Note that groups read or write other tensors than before."""
        self._ways = None, None, set()
        self._producers.clear()
        self._consumers.clear()

    def _let_replace(self, group: Group, other: Group) -> None:
        """Let `group` take the place of `other` among the neighbours of groups."""
        for near, back in ((self.producers, self.consumers), (self.consumers, self.producers)):
            own, others = near(group), near(other)
            for neighbour in others - {group}:
                known = back(neighbour)
                known.discard(other)
                known.add(group)
            own |= others
            own -= {group, other}
        del self._producers[other], self._consumers[other]

    def _leads(self, source: Group, target: Group) -> bool:
        """Tell whether there is a path through other groups from `source` to `target`. The way is searched back from `target`, between their positions."""
        first, last = source.at, target.at
        stack = [g for g in self.producers(target) if g is not source and g.at > first]
        if not stack or not any(g.at < last for g in self.consumers(source)):
            return False
        seen = {target, *stack}
        while stack:
            new = self.producers(stack.pop()) - seen
            if source in new:
                return True
            seen |= new
            stack += [g for g in new if g.at > first]
        self._ways = source, target, seen
        return False

    def _place_between(self, early: Group, late: Group) -> int:
        """Reorder for two groups that become one: producers of the late one before them, consumers of the early one after them. Return their position. Only
        groups between the early one and the last of these producers move, within their positions; none if there are none of one kind.
        Source: Pearce and Kelly, A dynamic topological sort algorithm, 2006.
        """
        if not any(g.at < late.at for g in self.consumers(early)):
            return late.at
        source, target, found = self._ways
        reached = found if source is early and target is late else self._reached(late, self.producers, early.at, math.inf)
        before = [g for g in reached if g.at > early.at and g is not late]
        if not before:
            return early.at
        behind = self._reached(early, self.consumers, -math.inf, max(g.at for g in before)) - {late}
        ordered = [*sorted(before, key=lambda g: g.at), early, *sorted(behind, key=lambda g: g.at)]
        for group, place in zip(ordered, sorted([g.at for g in ordered])):
            group.at = place
        return early.at

    @staticmethod
    def _reached(start: Group, near: Callable[[Group], set[Group]], low: float, high: float) -> set[Group]:
        """Return the groups that are reached through `near` by way of groups between two positions."""
        found, seen = set[Group](), set[Group]()
        stack = [start]
        while stack:
            new = near(stack.pop()) - seen
            seen |= new
            between = [g for g in new if low < g.at < high]
            found.update(between)
            stack += between
        return found

    def alive(self) -> list[Group]:
        return [g for g in self.groups if g.is_alive]


__all__ = ["Graph", "is_barrier", "is_free"]
