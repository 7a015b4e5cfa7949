"""Splits, merges and swizzles of axes independent of a tensor: the kinds and extents of the resulting axes.

Owns how transforms are made and copied; which of them a tensor's schedule allows is in `schedule.primitives`.
Read first: `split_axis`, `copy_transforms`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..expr import Sym, ceildiv, const, floordiv, mul
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.values import Expr, IterDomain, Merge, Split, Swizzle


def _link(transform: Expr) -> Expr:
    for out in transform.outputs:
        out._definition = transform
    for source in transform.inputs:
        source._uses.append(transform)
    return transform


def split_axis(
    fusion: Fusion, axis: IterDomain, factor: Sym, inner_split: bool, is_phased: bool = False, multiple: int = 1, part: int = 0, overlaps: bool = False
) -> Split:  # fmt: skip
    """Return the split of `axis` into (outer, inner); both have its type. A broadcast axis is split, too, into (ceildiv(1, factor), factor), so that its loops
    correspond to those of the axes of other operands.
    A phased split counts whole parts only. multiple: of the inner extent, part: the inner extent, overlaps; see `Split`.
    """
    assert multiple == 1 and not part or not inner_split, "the extent of a part is the factor where the parts stand inside"

    def rest_of(extent: Sym) -> Sym:
        if part:
            return const(part)
        return floordiv(extent, factor) if is_phased else mul(ceildiv(ceildiv(extent, factor), multiple), multiple)

    other = ceildiv(axis.sym, factor) if axis.is_broadcast() else rest_of(axis.sym)
    outer_extent, inner_extent = (other, factor) if inner_split else (factor, other)
    expanded = axis.expanded_extent
    outer_expanded = inner_expanded = None
    if expanded is not None:
        rest = rest_of(expanded)
        outer_expanded, inner_expanded = (rest, factor) if inner_split else (factor, rest)
    outer = fusion.new_axis(outer_extent, axis.iter_type, expanded_extent=outer_expanded)
    inner = fusion.new_axis(inner_extent, axis.iter_type, expanded_extent=inner_expanded)
    return _link(Split(axis, outer, inner, factor, inner_split, is_phased, multiple, part, overlaps))  # type: ignore[return-value]


def can_merge(outer: IterDomain, inner: IterDomain) -> bool:
    """True if two axes can be merged: a reduction axis only with a reduction axis."""
    return outer.is_reduction() == inner.is_reduction()


def merge_axes(fusion: Fusion, outer: IterDomain, inner: IterDomain) -> Merge:
    """Return the merge of two axes: a broadcast axis with a broadcast axis stays one, with an iteration axis it is iteration."""
    iter_type = outer.iter_type if outer.iter_type is inner.iter_type else IterType.iteration
    expanded = None
    if iter_type is IterType.broadcast and (outer.expanded_extent is not None or inner.expanded_extent is not None):
        expanded = mul(outer.expanded_extent or outer.sym, inner.expanded_extent or inner.sym)
    out = fusion.new_axis(mul(outer.sym, inner.sym), iter_type, expanded_extent=expanded)
    return _link(Merge(outer, inner, out))  # type: ignore[return-value]


def swizzle_axes(fusion: Fusion, x: IterDomain, y: IterDomain) -> Swizzle:
    """Return the XOR swizzle of `y` by `x`."""
    return _link(Swizzle(x, y, fusion.copy_axis(x), fusion.copy_axis(y)))  # type: ignore[return-value]


def copy_transform(fusion: Fusion, transform: Expr, inputs: list[IterDomain]) -> Expr:
    """Return the same transform of other axes."""
    if isinstance(transform, Split):
        return split_axis(fusion, inputs[0], *transform.parameters)
    if isinstance(transform, Merge):
        return merge_axes(fusion, inputs[0], inputs[1])
    return swizzle_axes(fusion, inputs[0], inputs[1])


def copy_transforms(fusion: Fusion, transforms: Iterable[Expr], images: dict[IterDomain, IterDomain]) -> dict[IterDomain, IterDomain]:
    """Repeat `transforms` on the images of their inputs, if all have one, with their bindings; return `images`, extended in place."""
    for transform in transforms:
        if all(a in images for a in transform.inputs):
            copy = copy_transform(fusion, transform, [images[a] for a in transform.inputs])  # type: ignore[index]
            for old, new in zip(transform.outputs, copy.outputs):
                copy_binding(old, new)  # type: ignore[arg-type]
                images[old] = new  # type: ignore[index,assignment]
    return images


def copy_binding(old: IterDomain, new: IterDomain) -> None:
    """Give `new` the parallel type and the padding of `old`."""
    new.parallel, new.padded_to_warp = old.parallel, old.padded_to_warp


__all__ = ["can_merge", "copy_binding", "copy_transform", "copy_transforms", "merge_axes", "split_axis", "swizzle_axes"]
