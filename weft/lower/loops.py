"""Loop groups: which axes of which tensors share a loop, what the loop iterates over, and the order of the loop nests.

A tensor inlined at position p shares its first p loops with its consumers. The axes that share a loop form a group; the group iterates its
member that covers every concrete axis of all members (its promotion). A tensor that lacks an axis of its consumers' merged loops is indexed through
the promotion, also right of the inlining position.
Read first: `LoopPlan`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.axes import AxisMaps, UnionFind, axis_transforms
from ..errors import UserError
from ..expr import ONE, ZERO, Sym, const, var
from ..ir.enums import GRID_TYPES, LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import BroadcastOp, Expr, IterDomain, LoadStoreOp, PointwiseOp, SqueezeOp, TensorView
from ..schedule.inline import consumer_axis


class UnresolvedLoop(UserError):
    code = "W510"
    what = "loop axis {axis} of {tensor} is shared with {others}, and none of them covers every axis that the others need"
    fix = "inline the tensor at a smaller position (inline_at), or transform all of them from one reference (transform_like)"


class ConflictingParallel(UserError):
    code = "W511"
    what = "axis {axis} of {tensor} is bound to {a}, and {other} of {other_tensor}, which shares its loop, to {b}"
    fix = "bind both to the same parallel type (parallelize_like), or inline at a smaller position"


class CyclicNest(UserError):
    code = "W312"
    what = "the loops of {tensors} cannot be put in an order: each must run inside or before the other"
    fix = "inline fewer tensors, or give the shared axes the same order in all of them"


@dataclass(eq=False)
class LoopGroup:
    """One loop: its index, the axis that it iterates (a promotion), and its parallel type. is_unswitched: the bounds of the nest inside it are tested once."""

    index: Sym
    axis: IterDomain
    parallel: ParallelType
    extent: Sym
    is_unswitched: bool = False


@dataclass(frozen=True)
class Twofold:
    """Outer loops that iterate an axis which the tensor also iterates in a loop of its own, so that the index of this axis is ambiguous. Example: a maximum
    over columns, computed in the threads over rows and columns that read it: each thread has a column, and loops over all columns. loops: those that iterate
    more than the tensor's own axes, and the loops of its readers that it is computed in and lacks. axes: the tensor's axes that these loops determine. twice:
    the axes with two loops.
    """

    loops: tuple[LoopGroup, ...]
    axes: tuple[IterDomain, ...]
    twice: frozenset[IterDomain]


class LoopPlan:
    """The loops of every computed tensor.

    groups[tensor]: one LoopGroup per loop axis, in order. nest(expr): the groups around an expression, outermost first.
    """

    def __init__(self, fusion: Fusion, maps: AxisMaps) -> None:
        self.fusion, self.maps = fusion, maps
        self.exprs = fusion.tensor_exprs()
        self._sets = UnionFind()
        self._covers: dict[IterDomain, frozenset[IterDomain]] = {}
        self._covering: dict[tuple[IterDomain, IterDomain], set[TensorView]] = {}  # what `_promoters` finds of a loop, for all of its tensors
        self._made_by = {maps.exact(out): t for t in maps.transforms for out in t.outputs if not out.is_broadcast()}  # type: ignore[attr-defined, arg-type]
        self._axis_tensor: dict[IterDomain, TensorView] = {}
        self._share_loops()
        self.groups: dict[TensorView, list[LoopGroup]] = {}
        self._by_root: dict[IterDomain, LoopGroup] = {}
        self._count = 0
        for expr in reversed(self.exprs):
            for tensor in expr.tensor_outputs:
                self.groups[tensor] = self._groups_of(tensor)
        self._order = self._partial_order()
        self._nests = self._close_nests()

    # -- sharing
    def _share_loops(self) -> None:
        for expr in self.exprs:
            for tensor in expr.outputs:
                for axis in tensor.get_loop_domain():  # type: ignore[attr-defined]
                    self._axis_tensor[axis] = tensor  # type: ignore[assignment]
            first = expr.outputs[0].get_loop_domain()  # type: ignore[attr-defined]
            for sibling in expr.outputs[1:]:
                for a, b in zip(first, sibling.get_loop_domain()):  # type: ignore[attr-defined]
                    self._sets.union(a, b)
        for expr in self.exprs:
            for producer in expr.tensor_inputs:
                for k in range(producer.compute_at):
                    for consumer in expr.outputs:
                        other = consumer_axis(self.maps, producer, k, consumer)  # type: ignore[arg-type]
                        if other is not None:
                            self._sets.union(producer.get_loop_domain()[k], other)
                if producer.memory_type is not MemoryType.global_:
                    self._share_threads(producer, expr)
        self._share_loops_around()
        self._members: dict[IterDomain, list[IterDomain]] = {}
        for axis in self._axis_tensor:
            self._members.setdefault(self._sets.find(axis), []).append(axis)

    def _share_loops_around(self) -> None:
        """Join the loops that a tensor lacks and its readers, or theirs, have around a loop that they share with it: inlining has checked that they are one
        nest. Example: a position that two lookups share, which have a loop over channels around the loop over pixels."""
        nests: dict[TensorView, list[IterDomain]] = {}  # the loops around a tensor, outermost first, each as an axis
        for expr in reversed(self.exprs):
            outputs: list[TensorView] = list(expr.outputs)  # type: ignore[arg-type]
            pairs = dict.fromkeys((t, reader) for t in outputs for use in t.uses() for reader in use.tensor_outputs if reader in nests)
            nest = self._nest_around(outputs[0], [(tensor, reader, nests[reader]) for tensor, reader in pairs])
            own = outputs[0].get_loop_domain()
            for tensor in outputs:
                axes = dict(zip(own, tensor.get_loop_domain()))
                nests[tensor] = [axes.get(axis, axis) for axis in nest]

    def _nest_around(self, first: TensorView, readers: Sequence[tuple[TensorView, TensorView, list[IterDomain]]]) -> list[IterDomain]:
        """Return the loops around `first`, and join those of its readers that become one. readers: each output of its expression, a reader, and its nest."""
        loop, nest, reached = first.get_loop_domain(), list[IterDomain](), [0] * len(readers)
        deepest = max((k for k in range(first.compute_at) if not loop[k].parallel.is_bound), default=-1)
        for k, axis in enumerate(loop):
            columns: list[list[IterDomain]] = []
            for n, (tensor, reader, around) in enumerate(readers if k <= deepest else ()):
                other = consumer_axis(self.maps, tensor, k, reader)
                end = next((at for at in range(reached[n], len(around)) if around[at] is other), reached[n] - 1)
                columns.append([a for a in around[reached[n] : max(end, reached[n])] if not a.parallel.is_bound])
                reached[n] = end + 1
            if columns and all(len(column) == len(columns[0]) for column in columns):
                for one, *others in zip(*columns):
                    for other in others:
                        self._sets.union(one, other)
                nest.extend(columns[0])
            nest.append(axis)
        return nest

    def _share_threads(self, producer: TensorView, expr: Expr) -> None:
        """Give a tensor the thread and block indices of its readers, inlined or not, because each thread can read only its own registers; one in shared
        memory their block indices, because each block can read only its own."""
        is_shared = producer.memory_type is MemoryType.shared
        for k in range(producer.compute_at, len(producer.get_loop_domain())):
            axis = producer.get_loop_domain()[k]
            is_one = (axis.parallel in GRID_TYPES if is_shared else axis.parallel.is_bound) and not axis.is_broadcast()
            for consumer in expr.outputs:
                other = consumer_axis(self.maps, producer, k, consumer) if is_one else None  # type: ignore[arg-type]
                if other is not None and other.parallel is axis.parallel:
                    self._sets.union(axis, other)

    def coverage(self, axis: IterDomain) -> frozenset[IterDomain]:
        """Exact classes of the concrete root axes that `axis` is derived from, in any tensor."""
        if axis.is_broadcast() and axis.definition() is None:
            return frozenset()
        key = self.maps.exact(axis)
        if key not in self._covers:
            transform = axis.definition() or self._made_by.get(key)
            if transform is None:
                self._covers[key] = frozenset([key])
            else:
                self._covers[key] = frozenset().union(*(self.coverage(source) for source in transform.inputs))  # type: ignore[arg-type]
        return self._covers[key]

    def _promotion(self, root: IterDomain) -> IterDomain:
        members = self._members[root]
        if len(members) == 1:
            return members[0]
        covers = [self.coverage(m) for m in members]
        union = frozenset().union(*covers)
        best = max(range(len(members)), key=lambda i: len(covers[i]))
        if covers[best] != union:
            names = ", ".join(f"{m} of T{self._axis_tensor[m].name}" for m in members[1:4])
            raise UnresolvedLoop(axis=members[0], tensor=self._axis_tensor[members[0]], others=names)
        return members[best]

    def _parallel(self, root: IterDomain) -> ParallelType:
        chosen, owner = ParallelType.serial, None
        for member in self._members[root]:
            kind = member.parallel
            if not kind.is_bound:
                continue
            if owner is not None and kind is not chosen:
                raise ConflictingParallel(
                    axis=owner, tensor=self._axis_tensor[owner], a=chosen, other=member, other_tensor=self._axis_tensor[member], b=kind
                )
            chosen, owner = kind, member
        return chosen

    def _new_group(self, root: IterDomain, axis: IterDomain) -> LoopGroup:
        parallel = self._parallel(root)
        self._count += 1
        extent = ONE if axis.is_broadcast() else axis.sym
        if extent.is_const and extent.value == 1:
            index = ZERO
        elif parallel.is_bound:
            index = var(parallel.value, extent=extent)
        else:
            index = var(f"i{self._count}", extent=extent)
        is_unswitched = not parallel.is_bound and any(m.parallel is ParallelType.unswitch for m in self._members[root])
        return LoopGroup(index, axis, parallel, extent, is_unswitched)

    def _groups_of(self, tensor: TensorView) -> list[LoopGroup]:
        """Return the loops of a tensor. If one is promoted, all are taken from the tensors that it was promoted to."""
        loop = tensor.get_loop_domain()
        roots = [self._sets.find(axis) for axis in loop]
        sources = [self._by_root[root].axis if root in self._by_root else self._promotion(root) for root in roots]
        promoters: dict[TensorView, None] = {}
        for axis, root, source in zip(loop, roots, sources):
            if not source.is_broadcast() and (axis.is_broadcast() or not self.maps.are_exact(source, axis)):
                promoters.update(dict.fromkeys(self._promoters(tensor, root, source)))
        for root, source in zip(roots, sources):
            if root not in self._by_root:
                if promoters and not source.is_broadcast():
                    source = self._counterpart(source, promoters)
                self._by_root[root] = self._new_group(root, source)
        return [self._by_root[root] for root in roots]

    def _promoters(self, tensor: TensorView, root: IterDomain, source: IterDomain) -> list[TensorView]:
        """Return the tensors whose loops `tensor` is computed in where its loop `root` iterates `source`.

        Several members of a loop may cover all of it and have different loops inside (before and after a reduction over rows): direct readers of the tensor are
        preferred, then indirect ones; others only if its readers lack the axis, too.
        """
        covering = self._covering.get((root, source))
        if covering is None:
            covers = self.coverage(source)
            covering = self._covering[root, source] = {self._axis_tensor[m] for m in self._members[root] if self.coverage(m) == covers}
        readers, seen = [tensor], {tensor}
        while readers:
            readers = [t for t in dict.fromkeys(t for r in readers for use in r.uses() for t in use.outputs) if t not in seen]  # type: ignore[misc]
            found = [t for t in readers if t in covering]
            if found:
                return found
            seen.update(readers)
        return [self._axis_tensor[source]]

    def _counterpart(self, axis: IterDomain, promoters: dict[TensorView, None]) -> IterDomain:
        """Return the corresponding loop axis in one of `promoters` that iterates the most; `axis` itself if none iterates more."""
        best = axis
        for promoter in promoters:
            for other in promoter.get_loop_domain():
                if not other.is_broadcast() and self.maps.are_permissive(axis, other) and self.coverage(best) < self.coverage(other):
                    best = other
        return best

    # -- order
    def _partial_order(self) -> dict[int, set[int]]:
        """before[id(b)] = ids of the groups that are outside of b in some tensor."""
        before: dict[int, set[int]] = {}
        for groups in self.groups.values():
            for position, group in enumerate(groups):
                before.setdefault(id(group), set()).update(id(g) for g in groups[:position] if g is not group)
        return before

    def _close_nests(self) -> dict[int, list[LoopGroup]]:
        by_id = {id(g): g for groups in self.groups.values() for g in groups}
        rank = {key: n for n, key in enumerate(self._topological(by_id))}
        nests = {id(e): {id(g) for g in self.groups[e.outputs[0]]} for e in self.exprs}  # type: ignore[index]
        changed = True
        while changed:  # the loops around a shared loop in one tensor are around it in all
            changed = False
            outer_of: dict[int, set[int]] = {}
            for members in nests.values():
                for g in members:
                    outer_of.setdefault(g, set()).update(m for m in members if rank[m] < rank[g])
            for key, members in nests.items():
                wanted = set().union(members, *(outer_of[g] for g in members if not by_id[g].parallel.is_bound))
                if wanted != members:
                    nests[key] = wanted
                    changed = True
        return {key: [by_id[g] for g in sorted(members, key=rank.__getitem__)] for key, members in nests.items()}

    def _topological(self, by_id: dict[int, LoopGroup]) -> list[int]:
        order: list[int] = []
        state: dict[int, int] = {}

        def visit(key: int) -> None:
            if state.get(key) == 2:
                return
            if state.get(key) == 1:
                tensors = [str(t) for t, groups in self.groups.items() if any(id(g) == key for g in groups)]
                raise CyclicNest(tensors=", ".join(tensors[:3]))
            state[key] = 1
            for outer in sorted(self._order.get(key, ()), key=lambda i: str(by_id[i].index)):
                visit(outer)
            state[key] = 2
            order.append(key)

        for key in by_id:
            visit(key)
        return order

    def nest(self, expr: Expr) -> list[LoopGroup]:
        return self._nests[id(expr)]

    def twofold(self, expr: Expr) -> Twofold | None:
        """Return the loops around `expr` that iterate an axis for which its output has another loop, or None."""
        tensor: TensorView = expr.outputs[0]  # type: ignore[assignment]
        pairs = list(zip(tensor.get_loop_domain(), self.groups[tensor]))
        wider = {axis: group for axis, group in pairs if not group.axis.is_broadcast() and self.coverage(axis) < self.coverage(group.axis)}
        own = {self.maps.almost_exact(group.axis) for _, group in pairs}
        loops = [*wider.values(), *(g for g in self.nest(expr) if not g.axis.is_broadcast() and self.maps.almost_exact(g.axis) not in own)]
        if not loops:
            return None
        over = frozenset().union(*(self.coverage(group.axis) for group in loops))
        mine = frozenset().union(*(self.coverage(axis) for axis in wider))
        others = frozenset().union(*(self.coverage(axis) for axis, _ in pairs if axis not in wider))
        twice = (over - mine) & others
        if not twice:
            return None
        axes = dict.fromkeys(wider)
        for transform in reversed(axis_transforms(tensor, tensor.get_loop_domain())):
            if all(axis in axes for axis in transform.outputs):
                axes.update(dict.fromkeys(transform.inputs))  # type: ignore[arg-type]
        lacked = sorted(over - mine - others, key=lambda axis: axis.name)
        return Twofold(tuple(dict.fromkeys(loops)), (*axes, *lacked), twice)

    def index_of(self, tensor: TensorView, position: int) -> Sym:
        """The index of loop axis `position` of a computed tensor."""
        group = self.groups[tensor][position]
        return const(0) if group.axis.is_broadcast() else group.index


def is_global_load(expr: Expr) -> bool:
    """True for a copy from global memory to registers, or by cp.async outside of loops: it is issued as early as the loops allow, and is in flight
    meanwhile."""
    if not isinstance(expr, (LoadStoreOp, LookupOp)) or expr.tensor_inputs[0].memory_type is not MemoryType.global_:
        return False
    if isinstance(expr, LookupOp):
        return expr.outputs[0].memory_type is MemoryType.local  # type: ignore[attr-defined]
    tensor: TensorView = expr.outputs[0]  # type: ignore[assignment]
    return tensor.memory_type is MemoryType.local or expr.kind is LoadStoreOpType.cp_async and tensor.compute_at == 0


def positions_of_lookups(exprs: Sequence[Expr]) -> set[int]:
    """Return the ids of the expressions that only compute positions of lookups from loaded values: lookups are loads, too, and wait for them."""
    out: set[int] = set()
    readers: dict[TensorView, list[Expr]] = {}
    for expr in exprs:
        for tensor in expr.tensor_inputs:
            readers.setdefault(tensor, []).append(expr)
    for expr in reversed(exprs):
        if not isinstance(expr, (PointwiseOp, BroadcastOp, SqueezeOp, LoadStoreOp)):
            continue
        uses = [use for tensor in expr.tensor_outputs for use in readers.get(tensor, ())]
        if uses and all(id(use) in out or isinstance(use, LookupOp) for use in uses):
            out.add(id(expr))
    return out


def order_exprs(plan: LoopPlan) -> list[Expr]:
    """Return the expressions so that those sharing a loop are contiguous at every depth, definitions before uses."""
    position = {id(e): n for n, e in enumerate(plan.exprs)}
    early = {id(e) for e in plan.exprs if is_global_load(e)} | positions_of_lookups(plan.exprs)
    producers = {id(e): {id(t.definition()) for t in e.tensor_inputs if t.definition() is not None} for e in plan.exprs}

    def arrange(exprs: list[Expr], depth: int) -> list[Expr]:
        if len(exprs) <= 1:
            return exprs
        units: dict[object, list[Expr]] = {}
        for e in exprs:
            nest = [g for g in plan.nest(e) if not g.parallel.is_bound]  # bound axes have no loop
            units.setdefault(id(nest[depth]) if depth < len(nest) else ("alone", id(e)), []).append(e)
        keys = list(units)
        unit_of = {id(e): key for key, members in units.items() for e in members}
        needs = {key: {unit_of[p] for e in units[key] for p in producers[id(e)] if p in unit_of} - {key} for key in keys}
        readers: dict[object, list[object]] = {key: [] for key in keys}
        for key in keys:
            for source in needs[key]:
                readers[source].append(key)
        rank = {k: (-1 if all(id(e) in early for e in units[k]) else position[id(units[k][0])], n) for n, k in enumerate(keys)}
        ready = [(*rank[k], k) for k in keys if not needs[k]]
        heapq.heapify(ready)
        out: list[Expr] = []
        done: set[object] = set()
        while ready:
            *_, key = heapq.heappop(ready)
            done.add(key)
            inside = units[key]
            out.extend(inside if isinstance(key, tuple) else arrange(inside, depth + 1))
            for reader in readers[key]:
                needs[reader].discard(key)
                if not needs[reader]:
                    heapq.heappush(ready, (*rank[reader], reader))
        if len(done) < len(keys):
            left = [str(e.outputs[0]) for k in keys if k not in done for e in units[k]]
            raise CyclicNest(tensors=", ".join(left[:4]))
        return out

    return arrange(plan.exprs, 0)
