"""rfactor: splits a reduction in two, so that each thread first reduces its own elements and the threads then reduce together.

Owns the axes of the two parts. Read first: `rfactor`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.axes import axis_transforms, transforms_between
from ..errors import Unsupported, UserError
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.values import Expr, IterDomain, ReductionOp, TensorDomain, TensorView, WelfordOp
from .caching import require_not_inlined
from .transforms import copy_binding, copy_transforms


class BadRfactor(UserError):
    code = "W640"
    what = "cannot rfactor axes {axes} of {tensor}: {reason}"
    fix = "{remedy}"


def rfactor(tv: TensorView, axes: Sequence[int]) -> TensorView:
    """Reduce over the loop axes `axes` in a new tensor, which is returned; `tv` reduces the result over its other reduction axes.

    Before: tv[i, r0, r1] = sum(x).   After, for axes [1]: new[i, r0, i1] = sum(x), tv[i, r1] = sum(new).
    The reduction axes of the new tensor's logical domain are the leaves of the loop transforms; loops keep their order and bindings.
    Source: Suriana, Adams, Kamil: Parallel Associative Reductions in Halide, CGO 2017.
    """
    named = _checked(tv, axes)
    fusion: Fusion = tv.fusion  # type: ignore[assignment]
    definition: Expr = tv.definition()  # type: ignore[assignment]
    partial, images = _partial(fusion, tv, named)
    first = ReductionOp(definition.inputs, [partial], **definition.attributes)
    fusion.remove(definition)
    fusion.register(first)
    fusion.register(ReductionOp([partial], [tv], **definition.attributes))
    _reduce_rest(fusion, tv, partial, {new: old for old, new in images.items()}, named)
    return partial


def _checked(tensor: TensorView, axes: Sequence[int]) -> set[IterDomain]:
    """Return the named loop axes, or raise an error if they are invalid."""
    loop = tensor.get_loop_domain()
    named = {tensor.axis(a) for a in axes}
    definition = tensor.definition()
    if isinstance(definition, WelfordOp):
        raise Unsupported("rfactor of a Welford reduction", f"{tensor}", "call schedule.welford.translate_welford first")
    if not isinstance(definition, ReductionOp):
        raise BadRfactor(axes=list(axes), tensor=tensor, reason="it is not made by a reduction", remedy="rfactor the output of a reduction")
    require_not_inlined(tensor, "rfactor")
    if not named:
        raise BadRfactor(axes=list(axes), tensor=tensor, reason="no axis is named", remedy="name at least one reduction axis")
    for axis in loop:
        if axis in named and not axis.is_reduction():
            raise BadRfactor(axes=list(axes), tensor=tensor, reason=f"{axis} is not a reduction axis", remedy="name reduction axes only")
    if not any(a.is_reduction() and a not in named for a in loop):
        raise BadRfactor(axes=list(axes), tensor=tensor, reason="no reduction axis is left for the second part", remedy="omit one of the axes")
    return named


def _partial(fusion: Fusion, tensor: TensorView, named: set[IterDomain]) -> tuple[TensorView, dict[IterDomain, IterDomain]]:
    """Return the first part, and its axis for each axis of `tensor`."""
    domain = tensor.domain()
    images = {axis: fusion.copy_axis(axis) for axis in domain.maybe_root}
    for old, new in images.items():
        copy_binding(old, new)
    transforms = axis_transforms(tensor, (*domain.logical, *domain.loop))
    copy_transforms(fusion, transforms, images)
    for old, new in images.items():  # the parts of a reduction axis that an earlier rfactor left to others are iteration axes
        new.iter_type, new.is_rfactor = old.iter_type, old.is_rfactor
    for axis in domain.loop:
        if axis.is_reduction() and axis not in named:
            images[axis].iter_type, images[axis].is_rfactor = IterType.iteration, True
    for transform in reversed(transforms):  # a source is reduced if a part of it is
        for source in transform.inputs:
            if source.is_reduction():  # type: ignore[attr-defined]
                reduced = any(images[a].is_reduction() for a in transform.outputs)  # type: ignore[index]
                images[source].iter_type = IterType.reduction if reduced else IterType.iteration  # type: ignore[index]
    logical = [images[a] for a in _leaves_in_place(domain, transforms_between(tensor, domain.logical, domain.loop))]
    partial = fusion.new_tensor(logical, tensor.dtype(), root=[images[a] for a in domain.maybe_root])
    for axis in logical:
        axis.is_rfactor |= axis.is_reduction() and axis.definition() is not None
    partial.domain().loop = [images[a] for a in domain.loop]
    return partial, images


def _leaves_in_place(domain: TensorDomain, transforms: list[Expr]) -> list[IterDomain]:
    """Return the logical axes, the reduced ones replaced by the loop axes made from them, at the position of the first axis they are made from."""
    first_of: dict[IterDomain, int] = {a: p for p, a in enumerate(domain.logical)}
    for transform in transforms:
        place = min(first_of[a] for a in transform.inputs)  # type: ignore[index]
        for out in transform.outputs:
            first_of[out] = place  # type: ignore[index]
    leaves = [a for a in domain.loop if a.is_reduction()]
    return [a for p, axis in enumerate(domain.logical) for a in ([axis] if not axis.is_reduction() else [x for x in leaves if first_of[x] == p])]


def _reduce_rest(fusion: Fusion, tensor: TensorView, partial: TensorView, original: dict[IterDomain, IterDomain], named: set[IterDomain]) -> None:
    """Give `tensor` the axes of the second part: its own iteration axes, and new reduction axes for those that the first part did not reduce.

    Iteration axes are new, too, if the tensor was itself a first part: what they are parts of belongs to the new one.
    """
    domain = tensor.domain()
    new: dict[IterDomain, IterDomain] = {}
    logical = []
    for axis in partial.get_logical_domain():
        old = original[axis]
        if axis.is_reduction():
            continue
        if old.is_reduction() or tensor.has_root():
            new[old] = fusion.copy_axis(old)
            copy_binding(old, new[old])
        logical.append(new.get(old, old))
    kept_axes = [a for a in new if not a.is_reduction()]
    copy_transforms(fusion, transforms_between(tensor, kept_axes, [a for a in domain.loop if not a.is_reduction()]), new)
    kept = [(new.get(a, a), c) for a, c in zip(domain.maybe_allocation, domain.contiguity) if not a.is_reduction()]
    if domain.allocation is None:
        contiguity: list[bool | None] = [None if a.is_broadcast() or a.is_reduction() else True for a in logical]
        made = TensorDomain(None, logical, contiguity)
    else:
        made = TensorDomain(None, logical, [c for _, c in kept], [a for a, _ in kept])
    made.loop = [new.get(a, a) for a in domain.loop if a not in named]
    tensor._domain = made


__all__ = ["rfactor"]
