"""reshape: the same elements in row-major order under another shape.

Owns the recipe for constant sizes (axes of extent 1 squeezed, the rest merged and split, new axes of extent 1 broadcast) and the checks of shapes.
With symbolic sizes the axes of the result stay open (`IterType.symbolic`) until a call says what they are (`weft.graph.concretize`).
Read first: `reshape`, then `recipe`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .. import expr
from ..dtypes import DataType
from ..errors import UserError
from ..expr import Sym
from ..ir.fusion import Fusion
from ..ir.graph_ops import ReshapeOp
from ..ir.values import IterDomain, Merge, Split, TensorView
from .build import broadcast, constant, logical_axes
from .calls import Calls
from .factories import full
from .gradients import Gradient, filled, gradient_of
from .shapes import Extent, extent_sym, open_axis, squeeze


class WrongNewSize(UserError):
    code = "W360"
    what = "reshape: size {size} of axis {axis} was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1)"
    fix = "use -1 for the one axis whose size follows from the others"


class TwoInferredSizes(UserError):
    code = "W361"
    what = "reshape: A maximum of one value of -1 can be provided to reshape. {shape} has {count}"
    fix = "write all sizes but one"


class ElementCountsDiffer(UserError):
    code = "W362"
    what = "reshape: Total element counts across view operation must match: {tensor} has {old} elements, the new shape {shape} has {new}"
    fix = "use sizes whose product is {old}, or -1 for one of them"


class CannotInferSize(UserError):
    code = "W363"
    what = "reshape: Cannot infer the actual size of -1 output domain: the other sizes of {shape} have the product {known}, which does not divide {old}"
    fix = "use sizes whose product divides the number of elements"


class NotOneElement(UserError):
    code = "W364"
    what = "reshape: Zero-dim tensors may only be reshaped to tensors with a single element; the new shape is {shape}"
    fix = "use expand to repeat a single element"


class NoZeroInShape(UserError):
    code = "W365"
    what = "reshape: {tensor} has no elements. Output shape must have at least one 0, and it is {shape}"
    fix = "use a shape with a 0"


class WrongRuntimeSize(UserError):
    code = "W366"
    what = "reshape: Values of -1 passed to reshape must be constant at definition. Axis {axis} of {tensor} has size {size} in this call"
    fix = "pass sizes that are not negative, and write -1 in the definition"


def reshape(fusion: Fusion, tensor: TensorView, shape: Sequence[Extent]) -> TensorView:
    """Return `tensor` under `shape`; one -1 stands for what is left. The tensor itself when nothing changes.

    After: for constant sizes, squeeze -> ReshapeOp -> broadcast, as far as each is needed; the ReshapeOp's output has a root domain. An expanded axis
    that is merged or split becomes an ordinary axis. Otherwise one ReshapeOp, whose output has no root domain.
    Errors: WrongNewSize, TwoInferredSizes, ElementCountsDiffer, CannotInferSize, NotOneElement, NoZeroInShape.
    """
    axes = logical_axes(tensor)
    wanted = [extent_sym(extent) for extent in shape]
    _check_sizes(wanted)
    old = [axis.logical_extent for axis in axes]
    if not axes and not all(expr.is_int(sym, 1) or expr.is_int(sym, -1) for sym in wanted):
        raise NotOneElement(shape=wanted)
    if not all(sym.is_const for sym in (*old, *wanted)):
        return _open_reshape(fusion, tensor, inferred(old, wanted))
    return static_reshape(fusion, tensor, _static_shape(tensor, [int(s.value) for s in old], [int(s.value) for s in wanted]))  # type: ignore[arg-type]


def _check_sizes(wanted: Sequence[Sym]) -> None:
    for axis, sym in enumerate(wanted):
        if sym.is_const and sym.value < -1:  # type: ignore[operator]
            raise WrongNewSize(size=sym.value, axis=axis)
    count = sum(expr.is_int(sym, -1) for sym in wanted)
    if count > 1:
        raise TwoInferredSizes(shape=list(wanted), count=count)


def inferred(old: Sequence[Sym], wanted: Sequence[Sym]) -> list[Sym]:
    """Return the sizes with what -1 stands for: the number of elements over the product of the others."""
    rest = expr.floordiv(expr.product(old), expr.product(s for s in wanted if not expr.is_int(s, -1)))
    return [rest if expr.is_int(s, -1) else s for s in wanted]


def _static_shape(tensor: TensorView, old: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the new sizes, checked. Errors: CannotInferSize, ElementCountsDiffer, NoZeroInShape."""
    total, known = math.prod(old), math.prod(n for n in wanted if n != -1)
    if -1 in wanted:
        if not known or total % known:
            raise CannotInferSize(shape=list(wanted), known=known, old=total)
        return [total // known if n == -1 else n for n in wanted]
    if total == 0 and known:
        raise NoZeroInShape(tensor=tensor, shape=list(wanted))
    if total != known:
        raise ElementCountsDiffer(tensor=tensor, old=total, new=known, shape=list(wanted))
    return list(wanted)


def _open_reshape(fusion: Fusion, tensor: TensorView, sizes: Sequence[Sym]) -> TensorView:
    out = fusion.new_tensor([open_axis(fusion, sym, is_view=True) for sym in sizes], tensor.dtype())
    fusion.register(ReshapeOp([tensor], [out], op="reshape"))
    return out


# ---------------------------------------------------------------- constant sizes
@dataclass(frozen=True)
class Recipe:
    """How axes of one shape become those of another.

    squeezed: axes of extent 1 dropped first. groups: (number of the remaining axes, sizes that they become), in order; a group of one axis that keeps its
    size is left alone. broadcast: per axis of the result, whether it is a new one of extent 1.
    """

    squeezed: tuple[int, ...]
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    broadcast: tuple[bool, ...]

    @property
    def is_regrouped(self) -> bool:
        """True when axes are merged or split."""
        return any(count != 1 or len(sizes) != 1 for count, sizes in self.groups)


def recipe(old: Sequence[int], new: Sequence[int]) -> Recipe:
    """Return the recipe from sizes `old` to sizes `new`, whose products agree and are not 0: the smallest groups of equal product, from the outermost on."""
    squeezed: list[int] = []
    groups: list[tuple[int, tuple[int, ...]]] = []
    new_ones: list[bool] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            groups.append((1, (new[j],)))
            new_ones.append(False)
            i, j = i + 1, j + 1
        elif j < len(new) and new[j] == 1:
            new_ones.append(True)
            j += 1
        elif i < len(old) and old[i] == 1:
            squeezed.append(i)
            i += 1
        else:
            i, j = _group(old, new, i, j, squeezed, groups, new_ones)
    return Recipe(tuple(squeezed), tuple(groups), tuple(new_ones))


def _group(
    old: Sequence[int], new: Sequence[int], i: int, j: int, squeezed: list[int], groups: list[tuple[int, tuple[int, ...]]], new_ones: list[bool]
) -> tuple[int, int]:
    """Add the smallest group of axes that begins at (i, j); return where the next one begins."""
    before, after, count, sizes = old[i], new[j], 1, [new[j]]
    new_ones.append(False)
    i, j = i + 1, j + 1
    while before != after:
        if before < after:
            if old[i] == 1:
                squeezed.append(i)
            else:
                before, count = before * old[i], count + 1
            i += 1
        else:
            new_ones.append(new[j] == 1)
            if new[j] != 1:
                sizes.append(new[j])
            after, j = after * new[j], j + 1
    groups.append((count, tuple(sizes)))
    return i, j


def static_reshape(fusion: Fusion, tensor: TensorView, new: Sequence[int]) -> TensorView:
    """Return `tensor` under constant sizes that fit."""
    old = [int(axis.logical_extent.value) for axis in logical_axes(tensor)]  # type: ignore[arg-type]
    if 0 in old:
        return full(fusion, new, constant(fusion, _zero(tensor.dtype()), tensor.dtype()), tensor.dtype())
    if list(new) == old:
        return tensor
    steps = recipe(old, new)
    if steps.squeezed:
        tensor = squeeze(fusion, tensor, steps.squeezed, squeeze_expanded=True)
    if steps.is_regrouped:
        tensor = _regroup(fusion, tensor, steps)
    return broadcast(fusion, tensor, steps.broadcast) if any(steps.broadcast) else tensor


def _zero(dtype: DataType) -> bool | int | float | complex:
    return False if dtype.is_bool else 0 if dtype.is_integer else 0j if dtype.is_complex else 0.0


def _regroup(fusion: Fusion, tensor: TensorView, steps: Recipe) -> TensorView:
    """Return the ReshapeOp's output: its root axes are those of `tensor`, its logical axes splits and merges of them."""
    old = logical_axes(tensor)
    root: list[IterDomain] = []
    logical: list[IterDomain] = []
    for count, sizes in steps.groups:
        members = old[len(root) : len(root) + count]
        if count == len(sizes) == 1:
            root.append(fusion.copy_axis(members[0]))
            logical.append(root[-1])
            continue
        axes = [fusion.new_axis(axis.logical_extent) for axis in members]
        root += axes
        logical += _transformed(fusion, axes, sizes)
    out = fusion.new_tensor(logical, tensor.dtype(), root=root)
    fusion.register(ReshapeOp([tensor], [out], op="reshape"))
    return out


def _transformed(fusion: Fusion, axes: Sequence[IterDomain], sizes: Sequence[int]) -> list[IterDomain]:
    """Return axes of `sizes`: axes are merged until they are long enough, then split with the size outside and what is left inside."""
    waiting = list(axes)
    current = waiting.pop(0)
    out: list[IterDomain] = []
    for position, size in enumerate(sizes):
        while (extent := int(current.sym.value)) != size and (extent < size or extent % size):  # type: ignore[arg-type]
            current = _merged(fusion, current, waiting.pop(0))
        if extent == size:
            out.append(current)
            if waiting:
                current = waiting.pop(0)
        else:
            outer, current = _split(fusion, current, size)
            out.append(outer)
            assert position < len(sizes) - 1, "the last size of a group is what is left"
    return out


def _merged(fusion: Fusion, outer: IterDomain, inner: IterDomain) -> IterDomain:
    out = fusion.new_axis(outer.sym * inner.sym, is_view=True)
    transform = Merge(outer, inner, out)
    out._definition = transform
    for axis in (outer, inner):
        axis._uses.append(transform)
    return out


def _split(fusion: Fusion, axis: IterDomain, size: int) -> tuple[IterDomain, IterDomain]:
    outer, inner = (fusion.new_axis(part, is_view=True) for part in (size, expr.floordiv(axis.sym, size)))
    transform = Split(axis, outer, inner, expr.const(size), False)
    outer._definition = inner._definition = transform
    axis._uses.append(transform)
    return outer, inner


@gradient_of(ReshapeOp)
def _reshape_gradient(o: Calls, expr: ReshapeOp, grads: list[Gradient]) -> list[Gradient]:
    source: TensorView = expr.inputs[0]  # type: ignore[assignment]
    return [o.reshape(filled(o, grads[0], expr.outputs[0]), source.shape())]  # type: ignore[arg-type]
