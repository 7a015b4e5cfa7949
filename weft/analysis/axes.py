"""Which axes of different tensors are the same: exact and permissive equivalence.

exact: same extent by construction (producer and consumer of an expression, and splits and merges of such axes by the same factors).
permissive: exact, plus a broadcast axis with the axis that concretizes it, plus merge(broadcast, x) with x (so that a tensor that lacks
an axis still corresponds, loop by loop, to one that has it).
Read first: `pairwise`, `AxisMaps`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, Expr, IterDomain, Merge, Split, SqueezeOp, Swizzle, TensorView, no_reductions


def pairwise(producer: TensorView, consumer: TensorView, expr: Expr) -> list[tuple[IterDomain, IterDomain]]:
    """Return (producer logical axis, consumer root axis) pairs of `expr`; axes that one side lacks are left out."""
    sources = no_reductions(producer.get_logical_domain())
    targets = consumer.get_maybe_root_domain()
    if isinstance(expr, BroadcastOp):
        kept = [axis for axis, new in zip(targets, expr.attributes["flags"]) if not new]
        return list(zip(sources, kept))
    if isinstance(expr, SqueezeOp):
        kept = [axis for axis, dropped in zip(sources, expr.attributes["flags"]) if not dropped]
        return list(zip(kept, targets))
    return list(zip(sources, targets))


class UnionFind:
    """Disjoint sets of axes; the representative of a set is its oldest member."""

    def __init__(self) -> None:
        self._parent: dict[IterDomain, IterDomain] = {}

    def find(self, axis: IterDomain) -> IterDomain:
        parent = self._parent
        root = axis
        while root in parent:
            root = parent[root]
        while axis is not root:
            parent[axis], axis = root, parent[axis]
        return root

    def union(self, a: IterDomain, b: IterDomain) -> bool:
        """Join the sets of `a` and `b`; return whether they were different."""
        a, b = self.find(a), self.find(b)
        if a is b:
            return False
        if (b.name, id(b)) < (a.name, id(a)):
            a, b = b, a
        self._parent[b] = a
        return True


class AxisMaps:
    """The equivalences of all axes of a fusion as it is scheduled now. Build it again after the schedule changes."""

    def __init__(self, fusion: Fusion, tensors: Iterable[TensorView] | None = None) -> None:
        self.fusion = fusion
        self.tensors = list(fusion.tensors() if tensors is None else tensors)
        self.exact_sets, self.permissive_sets = UnionFind(), UnionFind()
        self.transforms = self._collect_transforms()
        self._map_tensors()
        self._close(self.exact_sets, forward_broadcast=False)
        self._close(self.permissive_sets, forward_broadcast=True)

    def exact(self, axis: IterDomain) -> IterDomain:
        return self.exact_sets.find(axis)

    def permissive(self, axis: IterDomain) -> IterDomain:
        return self.permissive_sets.find(axis)

    def are_exact(self, a: IterDomain, b: IterDomain) -> bool:
        return self.exact_sets.find(a) is self.exact_sets.find(b)

    def are_permissive(self, a: IterDomain, b: IterDomain) -> bool:
        return self.permissive_sets.find(a) is self.permissive_sets.find(b)

    def _collect_transforms(self) -> list[Expr]:
        seen: dict[int, Expr] = {}
        for tensor in self.tensors:
            for transform in axis_transforms(tensor):
                seen.setdefault(id(transform), transform)
        return list(seen.values())

    def _map_tensors(self) -> None:
        for expr in self.fusion.tensor_exprs():
            for consumer in expr.outputs:
                for producer in expr.tensor_inputs:
                    for a, b in pairwise(producer, consumer, expr):
                        self.permissive_sets.union(a, b)
                        if a.is_broadcast() == b.is_broadcast():
                            self.exact_sets.union(a, b)
            first = expr.outputs[0]
            for sibling in expr.outputs[1:]:
                for a, b in zip(first.get_maybe_root_domain(), sibling.get_maybe_root_domain()):
                    self.exact_sets.union(a, b)
                    self.permissive_sets.union(a, b)

    def _close(self, sets: UnionFind, *, forward_broadcast: bool) -> None:
        """Join the outputs of equal transforms of joined inputs (and inputs of equal merges' outputs are left alone), to a fixpoint."""
        changed = True
        while changed:
            changed = False
            seen: dict[tuple, Expr] = {}
            for transform in self.transforms:
                if forward_broadcast and isinstance(transform, Merge):
                    outer, inner, out = transform.outer(), transform.inner(), transform.out()
                    if outer.is_broadcast():
                        changed |= sets.union(inner, out)
                    elif inner.is_broadcast():
                        changed |= sets.union(outer, out)
                key = (type(transform), tuple(id(sets.find(a)) for a in transform.inputs), _parameters(transform))
                other = seen.setdefault(key, transform)
                if other is not transform:
                    for a, b in zip(other.outputs, transform.outputs):
                        changed |= sets.union(a, b)


def _parameters(transform: Expr) -> tuple:
    return (transform.factor, transform.inner_split) if isinstance(transform, Split) else ()


def axis_transforms(tensor: TensorView) -> list[Expr]:
    """Return the splits, merges and swizzles between the root and the loop and allocation domains of `tensor`, sources first."""
    order: list[Expr] = []
    seen: set[int] = set()
    domain = tensor.domain()

    def visit(axis: IterDomain) -> None:
        transform = axis.definition()
        if transform is None or id(transform) in seen:
            return
        seen.add(id(transform))
        for source in transform.inputs:
            visit(source)
        order.append(transform)

    for axis in (*domain.logical, *domain.loop, *domain.maybe_allocation):
        visit(axis)
    return order


__all__ = ["AxisMaps", "UnionFind", "axis_transforms", "pairwise", "Swizzle"]
