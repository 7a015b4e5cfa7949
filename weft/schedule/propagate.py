"""Propagation: repeats the transforms, or the bindings, of one tensor on its neighbours.

Owns the order of the walk and the replay: between neighbours, and from the reference itself where no single neighbour tells all. After
`transform_like` the loop axes of each tensor correspond, in order, to those of the reference that it has; axes that it has besides stand last.
What cannot be replayed (an axis already transformed otherwise) is left as it is.
Read first: `transform_like`, `replay`, `_steps`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..analysis.axes import axis_maps, axis_transforms, match_transforms, pairwise, siblings, tied_results, transforms_between
from ..errors import UserError
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.values import Expr, IterDomain, Merge, TensorView
from .inline import loop_position
from .primitives import shared_positions
from .transforms import can_merge, copy_transform


class NotBetween(UserError):
    code = "W660"
    what = "cannot transform {to} like {tensor}: {tensor} is not computed from {to}"
    fix = "name tensors that {tensor} is computed from"


Pairs = list[tuple[IterDomain, IterDomain]]
Step = tuple[TensorView, TensorView, Pairs]
"""From, to, and the corresponding axes."""
Info = dict[IterDomain, frozenset[IterDomain]]
Images = dict[TensorView, dict[IterDomain, IterDomain]]
Boundaries = dict[TensorView, dict[TensorView, Pairs]]


def transform_like(reference: TensorView, selected_tensors: Iterable[TensorView] = ()) -> None:
    """Replay the transforms of `reference` on all connected tensors, or on the selected ones (propagation stays inside them)."""
    fusion: Fusion = reference.fusion  # type: ignore[assignment]
    allowed = set(selected_tensors) or set(fusion.tensors())
    _walk(fusion, reference, len(reference.get_loop_domain()), allowed, backward_only=False)


def bounded_transform_backward(
    from_: TensorView, pos: int, to: Iterable[TensorView], propagate_parallel_type: bool = False
) -> None:  # fmt: skip
    """Replay the first `pos` loop axes of `from_` on the tensors between it and its producers `to`, these included."""
    fusion: Fusion = from_.fusion  # type: ignore[assignment]
    pos = loop_position(from_, pos)
    between: set[TensorView] = set()
    for tensor in to:
        path = _tensors_between(fusion, tensor, from_)
        if not path:
            raise NotBetween(to=tensor, tensor=from_)
        between |= path
    _walk(fusion, from_, pos, between, backward_only=True)
    if propagate_parallel_type:
        parallelize_like(from_, pos, sorted(between - {from_}, key=lambda t: t.name))


def parallelize_like(
    reference: TensorView, pos: int = -1, selected_tensors: Iterable[TensorView] = (),
    selected_parallel_types: Iterable[ParallelType] = (), propagate_padding: bool = True,
) -> None:  # fmt: skip
    """Bind the loop axes of the selected tensors (all if none is named) like the corresponding ones of `reference[:pos]`. selected_parallel_types: only these
    are propagated; without it all except serial. Inputs of the fusion have no loops and are not changed.
    """
    pos = loop_position(reference, pos)
    fusion: Fusion = reference.fusion  # type: ignore[assignment]
    maps = axis_maps(fusion)
    types = set(selected_parallel_types)
    like = {maps.permissive(axis): axis for axis in reversed(reference.get_loop_domain()[:pos])}
    for tensor in list(selected_tensors) or maps.tensors:
        if tensor.is_fusion_input or tensor is reference:
            continue
        for axis in tensor.get_loop_domain():
            model = like.get(maps.permissive(axis))
            if model is None or (model.parallel not in types if types else model.parallel is ParallelType.serial):
                continue
            axis.parallelize(model.parallel)
            if propagate_padding and model.padded_to_warp:
                axis.pad_to_multiple_of_warp()


# ---------------------------------------------------------------- the walk
def _walk(fusion: Fusion, reference: TensorView, pos: int, allowed: set[TensorView], backward_only: bool) -> None:
    positions = {reference: pos}
    for source, target, pairs in _steps(reference, _boundaries(fusion, reference, allowed, backward_only)):
        positions[target] = _replay(source, target, positions[source], pairs)


def _tensors_between(fusion: Fusion, start: TensorView, end: TensorView) -> set[TensorView]:
    """Return the tensors on the paths from `start` to `end`, both included; empty if there is none."""
    above = {end}
    for expr in reversed(fusion.tensor_exprs()):
        if any(out in above for out in expr.outputs):
            above.update(expr.tensor_inputs)
    if start not in above:
        return set()
    below = {start}
    for expr in fusion.tensor_exprs():
        if any(t in below for t in expr.tensor_inputs):
            below.update(expr.outputs)  # type: ignore[arg-type]
    return above & below


def _boundaries(fusion: Fusion, reference: TensorView, allowed: set[TensorView], backward_only: bool) -> Boundaries:
    """Return the edges between the reference, the allowed tensors and their allowed neighbours."""
    near: dict[TensorView, dict[TensorView, None]] = {t: {} for t in fusion.tensors()}
    for expr in fusion.tensor_exprs():
        for consumer in expr.tensor_outputs:
            for producer in expr.tensor_inputs:
                near[consumer].setdefault(producer)
                if not backward_only:
                    near[producer].setdefault(consumer)
            for sibling in expr.tensor_outputs:
                if sibling is not consumer:
                    near[consumer].setdefault(sibling)
    for leader, *others in [] if backward_only else tied_results(fusion.tensor_exprs()):
        for other in others:
            near[leader].setdefault(other)
            near[other].setdefault(leader)
    return {
        source: {target: boundary(source, target) for target in targets if target in allowed}
        for source, targets in near.items() if source in allowed or source is reference
    }  # fmt: skip


def _steps(reference: TensorView, near: Boundaries) -> list[Step]:
    """Return the steps that reach every tensor over the path that keeps most axes of `reference` (Prim's algorithm).

    A path through a reduced tensor loses the reduced axes, one around it does not, so tensors are reached around it if possible. A tensor in which paths join
    may have axes that no single path keeps: [n, 1] from a reduction and [1, m] from an unreduced tensor make [n, m]. Neither neighbour has the merge of n and
    m, so such a tensor is transformed directly from the reference.
    """
    images = _images(reference, near)
    own = reference.get_maybe_root_domain()  # rfactor makes logical axes that each lie over all of a merged row: these would not tell a part of it from all
    start = _spread(reference, {a: frozenset([a]) for a in own})
    info: dict[TensorView, Info] = {reference: start}
    hops = {reference: 0}
    frontier: dict[TensorView, tuple[tuple[Any, ...], TensorView, Info]] = {}
    offers: list[tuple[tuple[Any, ...], TensorView]] = []  # a heap; names break ties between tensors, and outdated offers are skipped
    steps: list[Step] = []

    def offer(source: TensorView) -> None:
        for target, pairs in near[source].items():
            if target in info:
                continue
            there = _spread(target, {b: info[source][a] for a, b in pairs if a in info[source]})
            rank = (-len(frozenset().union(*there.values())), hops[source] + 1, target.name)
            if target not in frontier or rank < frontier[target][0]:
                frontier[target] = (rank, source, there)
                heapq.heappush(offers, (rank, target))

    offer(reference)
    while frontier:
        rank, target = heapq.heappop(offers)
        if target not in frontier or frontier[target][0] is not rank:
            continue
        _, source, there = frontier.pop(target)
        pairs = near[source][target]
        joined = [(images[target][b], b) for b in _side(target, [b for _, b in pairs]) if b in images[target]]
        if {b for a, b in pairs if a in info[source]} < {b for _, b in joined}:
            steps.append((reference, target, joined))
            there = _spread(target, {b: start[a] for a, b in joined})
        else:
            steps.append((source, target, pairs))
        info[target], hops[target] = there, hops[source] + 1
        offer(target)
    return steps


def _images(reference: TensorView, near: Boundaries) -> Images:
    """Return for each tensor which of its axes correspond to which axis of `reference`, over any path. The nearest path decides; no two axes of a tensor
    correspond to the same one.
    """
    images: Images = {t: {} for t in near}
    images[reference] = {a: a for a in (*reference.get_maybe_root_domain(), *reference.get_logical_domain())}
    waiting, is_waiting = deque([reference]), {reference}
    while waiting:
        source = waiting.popleft()
        is_waiting.discard(source)
        for target, pairs in near[source].items():
            known, count = images[target], len(images[target])
            for a, b in pairs:
                image = images[source].get(a)
                if image is not None and b not in known and image not in known.values():
                    known[b] = image
            if len(known) > count and target not in is_waiting:
                waiting.append(target)
                is_waiting.add(target)
    return images


def _spread(tensor: TensorView, known: Info) -> Info:
    """Add to `known` the correspondences that follow between the root and the logical domain."""
    out = dict(known)
    if tensor.has_root():
        transforms = axis_transforms(tensor, tensor.get_logical_domain())
        for transform in transforms:
            inputs = [out[a] for a in transform.inputs if a in out]
            for axis in transform.outputs:
                if inputs:
                    out.setdefault(axis, frozenset().union(*inputs))  # type: ignore[arg-type]
        for transform in reversed(transforms):
            outputs = [out[a] for a in transform.outputs if a in out]
            for axis in transform.inputs:
                if outputs:
                    out.setdefault(axis, frozenset().union(*outputs))  # type: ignore[arg-type]
    return out


# ---------------------------------------------------------------- neighbours
def boundary(source: TensorView, target: TensorView) -> Pairs:
    """Return the pairs of corresponding axes of two neighbours: producer and consumer in either order, or two outputs of an expression."""
    definition = target.definition()
    if definition is not None and any(v is source for v in definition.inputs):
        return pairwise(source, target, definition)
    definition = source.definition()
    if definition is not None and any(v is target for v in definition.inputs):
        return [(b, a) for a, b in pairwise(target, source, definition)]
    return siblings(source, target)


def replay(source: TensorView, target: TensorView, pos: int) -> int:
    """Replay the transforms of the first `pos` loop axes of `source` on its neighbour `target`; return how many of these axes `target` has. Existing transforms
    of `target` are reused. An axis that `target` lacks is omitted from its merges.
    """
    return _replay(source, target, pos, boundary(source, target))


def _replay(source: TensorView, target: TensorView, pos: int, pairs: Pairs) -> int:
    """Like `replay`, for two tensors with corresponding axes `pairs`, neighbours or not."""
    wanted = source.get_loop_domain()[:pos]
    sources = transforms_between(source, _side(source, [a for a, _ in pairs]), wanted)
    starts = _side(target, [b for _, b in pairs])
    loop = target.domain().loop
    existing = transforms_between(target, starts, loop)
    frozen = {loop[p] for p in shared_positions(target)}
    found = match_transforms(sources, dict(pairs), existing, starts, _applier(target, frozen))
    order = [found[a] for a in wanted if a in found]
    first = [a for a in dict.fromkeys(order) if a in loop]
    new = first + [a for a in loop if a not in first]
    if all(a is b for a, b in zip(new, loop) if a in frozen or b in frozen):
        loop[:] = new
    return len(first)


def _side(tensor: TensorView, axes: list[IterDomain]) -> list[IterDomain]:
    """Return the domain (root or logical) of `tensor` that `axes` are of."""
    root = tensor.get_maybe_root_domain()
    return root if all(a in root for a in axes) else tensor.get_logical_domain()


def _applier(tensor: TensorView, frozen: set[IterDomain]) -> Callable[[Expr, list[IterDomain]], Expr | None]:
    loop = tensor.domain().loop

    def apply(transform: Expr, inputs: list[IterDomain]) -> Expr | None:
        free = all(a in loop and a not in frozen and a.parallel is ParallelType.serial for a in inputs)
        if not free or len(set(inputs)) < len(inputs) or isinstance(transform, Merge) and not can_merge(*inputs):
            return None
        made = copy_transform(tensor.fusion, transform, inputs)  # type: ignore[arg-type]
        place = min(loop.index(a) for a in inputs)
        loop[:] = [a for a in loop if a not in inputs]
        loop[place:place] = made.outputs  # type: ignore[assignment]
        return made

    return apply


__all__ = ["boundary", "bounded_transform_backward", "parallelize_like", "replay", "transform_like"]
