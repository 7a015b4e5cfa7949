"""Which axes of different tensors are the same: exact and permissive equivalence.

exact: same extent by construction (producer and consumer of an expression, and splits and merges of such axes by the same factors).
almost exact: exact, plus what a split by 1 or a merge with a broadcast axis of extent 1 leaves as it was (the index is the same).
permissive: exact, plus a broadcast axis with the axis that concretizes it, plus the loop axes of producer and consumer that `loop_match` pairs
(so that a tensor that lacks an axis still corresponds, loop by loop, to one that has merged it with others).
Read first: `pairwise`, `match_transforms`, `AxisMaps`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from ..expr import is_int
from ..ir.fusion import Fusion
from ..ir.graph_ops import At, CatOp, LookupOp, ReshapeOp, ScatterOp, TorchOp
from ..ir.values import (
    BroadcastOp, Expr, IterDomain, LoadStoreOp, Merge, PointwiseOp, Split, SqueezeOp, Swizzle, TensorView, Val, no_reductions,
)  # fmt: skip


def pairwise(producer: TensorView, consumer: TensorView, expr: Expr) -> list[tuple[IterDomain, IterDomain]]:
    """Return (producer logical axis, consumer root axis) pairs of `expr`; axes that one side lacks are omitted."""
    sources = no_reductions(producer.get_logical_domain())
    targets = consumer.get_maybe_root_domain()
    if isinstance(expr, BroadcastOp):
        kept = [axis for axis, new in zip(targets, expr.attributes["flags"]) if not new]
        return list(zip(sources, kept))
    if isinstance(expr, SqueezeOp):
        kept = [axis for axis, dropped in zip(sources, expr.attributes["flags"]) if not dropped]
        return list(zip(kept, targets))
    if producer not in expr.read_by_loops:
        return []  # read in memory: its axes have no loops
    if isinstance(expr, CatOp):
        return [pair for dim, pair in enumerate(zip(sources, targets)) if dim != expr.attributes["dim"]]
    if isinstance(expr, TorchOp) or isinstance(expr, ReshapeOp) and not consumer.has_root() or isinstance(expr, ScatterOp) and producer is not expr.inputs[0]:
        return []
    return list(zip(sources, targets))


def siblings(first: TensorView, second: TensorView) -> list[tuple[IterDomain, IterDomain]]:
    """Return the pairs of root axes of two outputs of one expression."""
    return list(zip(first.get_maybe_root_domain(), second.get_maybe_root_domain()))


def equal_lookups(exprs: Iterable[Expr]) -> list[list[TensorView]]:
    """Return the results of lookups of one source at the same positions: their axes are the same.

    Positions from index tensors are the same if both come from one tensor by the same copies and broadcasts, as for a row that is read again. Readings with
    different numbers have axes of their own.
    """
    found: dict[Hashable, list[TensorView]] = {}
    for expr in exprs:
        if isinstance(expr, LookupOp):
            found.setdefault(lookup_key(expr), []).append(expr.tensor_outputs[0])
    return [group for group in found.values() if len(group) > 1]


def lookup_key(expr: LookupOp) -> Hashable:
    """Return what lookups with the same axes have in common."""
    shape = tuple(axis.logical_extent for axis in expr.tensor_outputs[0].get_maybe_root_domain())
    indices = tuple(_copied_from(expr.inputs[n]) for p in expr.positions if isinstance(p, At) for n in p.operands)
    return expr.source, expr.positions, shape, indices, expr.attributes.get("reading")


TIE = "tie"
"""The attribute of expressions that one kernel computes in the same loops although nothing else relates their axes: equal values mean equal axes."""


def tied_results(exprs: Iterable[Expr]) -> list[list[TensorView]]:
    """Return tensors whose root axes are the same, position by position, without an expression between them: equal lookups, and tensors tied by the
    partition."""
    found: dict[Hashable, list[TensorView]] = {}
    exprs = list(exprs)
    for expr in exprs:
        if TIE in expr.attributes:
            found.setdefault(expr.attributes[TIE], []).append(expr.tensor_outputs[0])
    return [*equal_lookups(exprs), *found.values()]


def _copied_from(value: Val) -> Hashable:
    """Return an identification of a tensor's values: the tensor that it is copied from, and the broadcasts and casts between."""
    definition = value.definition()
    if isinstance(definition, LoadStoreOp) and not value.has_root():  # type: ignore[attr-defined]
        return _copied_from(definition.inputs[0])
    if isinstance(definition, BroadcastOp):
        return "broadcast", tuple(definition.attributes["flags"]), _copied_from(definition.inputs[0])
    if isinstance(definition, PointwiseOp) and definition.op_name == "cast":
        return "cast", value.dtype(), _copied_from(definition.inputs[0])  # type: ignore[attr-defined]
    return value


class UnionFind:
    """Disjoint sets of axes; the representative of a set is its oldest member."""

    def __init__(self) -> None:
        self._parent: dict[IterDomain, IterDomain] = {}

    def find(self, axis: IterDomain) -> IterDomain:
        """Return the representative of the set of `axis`."""
        parent = self._parent
        root = axis
        while (above := parent.get(root)) is not None:
            root = above
        while axis is not root:
            parent[axis], axis = root, parent[axis]
        return root

    def union(self, a: IterDomain, b: IterDomain) -> IterDomain | None:
        """Join the sets of `a` and `b`; return the former representative, or None if they were already joined."""
        a, b = self.find(a), self.find(b)
        if a is b:
            return None
        if (b.name, id(b)) < (a.name, id(a)):
            a, b = b, a
        self._parent[b] = a
        return b


def axis_maps(fusion: Fusion) -> "AxisMaps":
    """Return the equivalences of a fusion's axes; the same object until the fusion, or the loops of a tensor, change."""
    domains = [t.domain() for t in fusion.tensors()]
    state = fusion.state, [(*d.loop, None, *d.maybe_allocation) for d in domains]
    before, maps = fusion.findings.get(MAPS, (None, None))
    if before != state:
        maps = AxisMaps(fusion)
        fusion.findings[MAPS] = (state, maps)
    return maps  # type: ignore[return-value]


MAPS = "axis maps"


class AxisMaps:
    """The equivalences of all axes of a fusion as it is scheduled now. Build it again after the schedule changes."""

    def __init__(self, fusion: Fusion, tensors: Iterable[TensorView] | None = None) -> None:
        self.fusion = fusion
        self.tensors = list(fusion.tensors() if tensors is None else tensors)
        self.transforms = self._collect_transforms()
        self._ends = _TransformsOf()
        self._loop_matches: dict[tuple[TensorView, TensorView], dict[IterDomain, IterDomain]] = {}
        self._exact: dict[IterDomain, IterDomain] = {}
        self._almost_exact: dict[IterDomain, IterDomain] = {}
        self._coverage: dict[IterDomain, frozenset[IterDomain]] = {}

    @functools.cached_property
    def exact_sets(self) -> UnionFind:
        """The classes of equal axes, made on first use, which must be before the schedule changes."""
        sets = UnionFind()
        for a, b in self._joined:
            if a.is_broadcast() == b.is_broadcast():
                sets.union(a, b)
        self._close(sets)
        return sets

    @functools.cached_property
    def permissive_sets(self) -> UnionFind:
        """The permissive classes, also made on first use."""
        sets = UnionFind()
        for a, b in self._joined:
            sets.union(a, b)
        if self.transforms:  # otherwise loops are the axes themselves, which are joined already
            self._close(sets)
            self._join_loops(sets)
        return sets

    def exact(self, axis: IterDomain) -> IterDomain:
        """Return the representative of the exact class of `axis`."""
        found = self._exact.get(axis)
        if found is None:
            found = self._exact[axis] = self.exact_sets.find(axis)
        return found

    def permissive(self, axis: IterDomain) -> IterDomain:
        return self.permissive_sets.find(axis)

    def are_exact(self, a: IterDomain, b: IterDomain) -> bool:
        return self.exact(a) is self.exact(b)

    def are_permissive(self, a: IterDomain, b: IterDomain) -> bool:
        return self.permissive_sets.find(a) is self.permissive_sets.find(b)

    def almost_exact(self, axis: IterDomain) -> IterDomain:
        """Return the class of the axes that have the same index as `axis`. A transform's input and output may be of one class."""
        found = self._almost_exact.get(axis)
        if found is None:
            found = self._almost_exact[axis] = self._almost_exact_sets.find(self.exact(axis))
        return found

    @functools.cached_property
    def _almost_exact_sets(self) -> UnionFind:
        sets = UnionFind()
        for transform in self.transforms:
            pair = _unchanged(transform)
            if pair is not None:
                sets.union(*pair)
            for other in (*transform.inputs, *transform.outputs):
                sets.union(other, self.exact(other))  # type: ignore[arg-type]
        self._close(sets)
        return sets

    def loop_match(self, producer: TensorView, consumer: TensorView) -> dict[IterDomain, IterDomain]:
        """Return the loop axes of `producer` that correspond to loop axes of `consumer`, which reads it."""
        key = (producer, consumer)
        if key not in self._loop_matches:
            self._loop_matches[key] = loop_match(producer, consumer, self._ends)
        return self._loop_matches[key]

    def coverage(self, axis: IterDomain) -> frozenset[IterDomain]:
        """Return the exact classes of the concrete source axes that a loop over `axis` iterates."""
        found = self._coverage.get(axis)
        if found is None:
            transform = axis.definition()
            if transform is None:
                found = frozenset() if axis.is_broadcast() else frozenset([self.exact(axis)])
            else:
                found = frozenset().union(*(self.coverage(a) for a in transform.inputs))  # type: ignore[arg-type]
            self._coverage[axis] = found
        return found

    def _collect_transforms(self) -> list[Expr]:
        seen: dict[int, Expr] = {}
        for tensor in self.tensors:
            for transform in axis_transforms(tensor):
                seen.setdefault(id(transform), transform)
        return list(seen.values())

    @functools.cached_property
    def _tensor_exprs(self) -> list[Expr]:
        return self.fusion.tensor_exprs()

    @functools.cached_property
    def _joined(self) -> list[tuple[IterDomain, IterDomain]]:
        """The pairs of axes that expressions relate."""
        return list(self._pairs())

    def _pairs(self) -> Iterator[tuple[IterDomain, IterDomain]]:
        for expr in self._tensor_exprs:
            for consumer in expr.outputs:
                for producer in expr.tensor_inputs:
                    yield from pairwise(producer, consumer, expr)  # type: ignore[arg-type]
            first = expr.outputs[0]
            for sibling in expr.outputs[1:] if not isinstance(expr, TorchOp) else ():  # results of torch ops have independent shapes
                yield from siblings(first, sibling)  # type: ignore[arg-type]
        for leader, *others in tied_results(self._tensor_exprs):
            for other in others:
                yield from siblings(leader, other)

    @functools.cached_property
    def _kinds(self) -> list[tuple[int, Expr]]:
        """Each transform, with a number that makes it equal to others of equal inputs."""
        numbers: dict[Hashable, int] = {}
        return [(numbers.setdefault((type(transform), _parameters(transform)), len(numbers)), transform) for transform in self.transforms]

    def _close(self, sets: UnionFind) -> None:
        """Join the outputs of equal transforms of joined inputs, to a fixpoint.

        Sources come first, so one pass is enough, unless it joins inputs of transforms that were already visited.
        """
        find, changed = sets.find, True
        while changed:
            changed = False
            seen: dict[tuple[Hashable, ...], Expr] = {}
            used: set[IterDomain] = set()
            for kind, transform in self._kinds:
                inputs = [find(a) for a in transform.inputs]  # type: ignore[arg-type]
                used.update(inputs)
                other = seen.setdefault((kind, *inputs), transform)
                if other is not transform:
                    for a, b in zip(other.outputs, transform.outputs):
                        changed |= sets.union(a, b) in used  # type: ignore[arg-type, operator]

    def _join_loops(self, sets: UnionFind) -> None:
        for expr in self._tensor_exprs:
            for consumer in expr.outputs:
                for producer in expr.tensor_inputs:
                    for a, b in self.loop_match(producer, consumer).items():  # type: ignore[arg-type]
                        sets.union(a, b)


def _transform_key(transform: Expr, inputs: Sequence[Hashable]) -> Hashable:
    """The key that makes two transforms equal, with `inputs` in place of its inputs."""
    return (type(transform), tuple(inputs), _parameters(transform))


def _unchanged(transform: Expr) -> tuple[IterDomain, IterDomain] | None:
    """Return (input, output) that are the same up to their names: of a split by 1, of a merge with a broadcast axis of extent 1."""
    if isinstance(transform, Split) and is_int(transform.factor, 1) and not transform.is_phased and transform.multiple == 1 and not transform.part:
        return transform.source(), transform.outer() if transform.inner_split else transform.inner()
    if isinstance(transform, Merge):
        outer, inner = transform.outer(), transform.inner()
        if outer.is_broadcast() and is_int(outer.sym, 1) and not inner.is_broadcast():
            return inner, transform.out()
        if inner.is_broadcast() and is_int(inner.sym, 1) and not outer.is_broadcast():
            return outer, transform.out()
    return None


def _parameters(transform: Expr) -> tuple[Hashable, ...]:
    return transform.parameters if isinstance(transform, Split) else ()


def axis_transforms(tensor: TensorView, ends: Iterable[IterDomain] | None = None) -> list[Expr]:
    """Return the splits, merges and swizzles that produce `ends` (the logical, loop and allocation domains of `tensor`), sources first."""
    if ends is None:
        domain = tensor.domain()
        ends = (*domain.logical, *domain.loop, *domain.maybe_allocation)
    ends = [axis for axis in ends if axis.definition() is not None]
    if not ends:
        return []
    order: list[Expr] = []
    seen: set[int] = set()

    def visit(axis: IterDomain) -> None:
        transform = axis.definition()
        if transform is None or id(transform) in seen:
            return
        seen.add(id(transform))
        for source in transform.inputs:
            visit(source)  # type: ignore[arg-type]
        order.append(transform)

    for axis in ends:
        visit(axis)
    return order


def transforms_between(tensor: TensorView, starts: Iterable[IterDomain], ends: Iterable[IterDomain]) -> list[Expr]:
    """Return the transforms that produce `ends` from `starts` only, sources first."""
    known = set(starts)
    out: list[Expr] = []
    for transform in axis_transforms(tensor, ends):
        if all(a in known for a in transform.inputs):
            out.append(transform)
            known.update(transform.outputs)  # type: ignore[arg-type]
    return out


def is_row_major(tensor: TensorView, lane: IterDomain) -> bool:
    """True if neighbours along the loop axis `lane` are neighbours in the row-major order of the logical domain, everywhere: the lane axis is the innermost
    part of its split's source, and that is one axis, or several that were merged in order.
    """
    order = _in_order(lane)
    logical = [a for a in no_reductions(tensor.get_logical_domain()) if not a.is_broadcast()]
    return bool(order) and order == logical[-len(order) :]


def _in_order(lane: IterDomain) -> list[IterDomain]:
    """Return the source axes, without broadcast ones, that elements along `lane` traverse, outermost first; [] if they skip some."""
    transform = lane.definition()
    if transform is None:
        return [] if lane.is_broadcast() else [lane]
    if isinstance(transform, Split):
        return _in_order(transform.source()) if lane is transform.inner() else []
    if isinstance(transform, Merge):
        parts = [_in_order(a) for a in (transform.outer(), transform.inner()) if not a.is_broadcast()]
        return [] if [] in parts else [a for part in parts for a in part]
    return []


def forward_absent(transforms: Iterable[Expr], absent: set[IterDomain]) -> dict[IterDomain, IterDomain]:
    """Return axis -> output of its merge with an absent axis, which corresponds to it. Axes that are absent as a consequence are added to `absent`."""
    forward: dict[IterDomain, IterDomain] = {}
    for transform in transforms:
        missing = [a in absent for a in transform.inputs]
        if all(missing):
            absent.update(transform.outputs)  # type: ignore[arg-type]
        elif any(missing) and isinstance(transform, Merge):
            present = transform.inner() if missing[0] else transform.outer()
            forward[present] = transform.out()
    return forward


def match_transforms(
    sources: Iterable[Expr], images: Mapping[IterDomain, IterDomain], targets: Sequence[Expr], target_starts: Iterable[IterDomain],
    apply: Callable[[Expr, list[IterDomain]], Expr | None] | None = None,
) -> dict[IterDomain, IterDomain]:  # fmt: skip
    """Match the transforms `sources` of one tensor with those of another; return the corresponding axes. images: the axes at which both start. targets: the
    other tensor's transforms from `target_starts` on. Merges with an axis that one side lacks are ignored. `apply(transform, inputs)` adds a transform that the
    other tensor does not have yet, or returns None if it cannot; then later axes do not correspond.
    """
    absent = set(target_starts) - set(images.values())
    forward = forward_absent(targets, absent)
    index = {_transform_key(t, t.inputs): t for t in targets}

    def last(axis: IterDomain) -> IterDomain:
        while axis in forward:
            axis = forward[axis]
        return axis

    found = {a: last(b) for a, b in images.items()}
    lost: set[IterDomain] = set()
    for transform in sources:
        inputs = [found.get(a) for a in transform.inputs]  # type: ignore[call-overload]
        if any(a in lost for a in transform.inputs):
            lost.update(transform.outputs)  # type: ignore[arg-type]
            continue
        present = [a for a in inputs if a is not None]
        if not present:
            continue
        if len(present) < len(inputs):
            if isinstance(transform, Merge):
                found[transform.out()] = present[0]
            else:
                lost.update(transform.outputs)  # type: ignore[arg-type]
            continue
        other = index.get(_transform_key(transform, present))
        if other is None and apply is not None:
            other = apply(transform, present)
        if other is None:
            lost.update(transform.outputs)  # type: ignore[arg-type]
            continue
        for a, b in zip(transform.outputs, other.outputs):
            found[a] = last(b)  # type: ignore[index,arg-type]
    return found


class _TransformsOf:
    """Transforms of tensors up to their loops, each list made once, because a tensor is matched with all its neighbours."""

    def __init__(self) -> None:
        self._found: dict[tuple[TensorView, bool], list[Expr]] = {}

    def __call__(self, tensor: TensorView, from_root: bool) -> list[Expr]:
        """Return those from the root, or from the logical domain on."""
        found = self._found.get((tensor, from_root))
        if found is None:
            starts = tensor.get_maybe_root_domain() if from_root else tensor.get_logical_domain()
            found = self._found[tensor, from_root] = transforms_between(tensor, starts, tensor.get_loop_domain())
        return found


def loop_match(producer: TensorView, consumer: TensorView, ends: _TransformsOf | None = None) -> dict[IterDomain, IterDomain]:
    """Return the loop axes of `producer` that correspond to loop axes of `consumer`, whose definition reads it."""
    ends = ends or _TransformsOf()
    pairs = dict(pairwise(producer, consumer, consumer.definition()))  # type: ignore[arg-type]
    found = match_transforms(ends(producer, False), pairs, ends(consumer, True), consumer.get_maybe_root_domain())
    loops = set(consumer.get_loop_domain())
    return {a: found[a] for a in producer.get_loop_domain() if found.get(a) in loops}


__all__ = [
    "MAPS", "TIE", "AxisMaps", "Swizzle", "UnionFind", "axis_maps", "axis_transforms", "equal_lookups", "is_row_major", "lookup_key", "loop_match",
    "match_transforms", "pairwise", "siblings", "tied_results", "transforms_between",
]  # fmt: skip
