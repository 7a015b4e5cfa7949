"""Reductions over groups of neighbours within the rows of a normalization, as folds that keep the shape: a norm, and scales per group of 128 behind it.

Each element then has the result of its group, so that what follows (scales, quotients, casts) is pointwise, a kernel for rows takes it as one more op of a
pass, and the row is read once. What has one value per group is computed for each element in the text; the kernel computes it once per vector
(`lower/block_values.py`) and stores it once per group. Whether a thread, a few lanes or several warps hold a group is the scheduler's concern.
Read first: `fold_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..analysis.axes import AxisMaps
from ..dtypes import StateType
from ..expr import evaluate_int
from ..ir.block_ops import GroupFoldOp, GroupResultOp
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, IterDomain, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorDomain, TensorView, Val
from ..ops.blocks import MOST_BLOCK
from ..ops.build import broadcast, logical_axes, new_axes
from ..ops.monoids import MONOIDS
from ..ops.shapes import squeeze
from .made_reductions import keep_axes
from .nested_sums import Axes, Folding, computed_from, folds_alike, is_plain, is_spread

Places = tuple["int | None", ...]
"""Of each axis of a tensor with one element per group, the axis of the rows' tensors that it is or stands for; None for another axis of one element."""


def fold_groups(fusion: Fusion) -> int:
    """Replace reductions over groups by folds that keep the shape, in place; return how many. None, if something reads their results in a way that this does
    not follow.

    Before: amax [r, g] = max(x [r, g, 128]); y = x / amax [r, g, 1], beside a reduction over [g, 128] whose result the row also gets.
    After: f [r, g, 128] = group_fold(x); y = x / f; an output [r, g] is one element of each group of f.
    """
    found = _groups_of_rows(fusion)
    if not found:
        return 0
    images = _Images(fusion)
    if all(images.fold(expr) for expr in found) and images.follow():
        images.settle()
        return len(found)
    for expr in reversed(images.made):
        fusion.remove(expr)
    return 0


def has_groups(fusion: Fusion) -> bool:
    """Tell whether `fold_groups` finds reductions over groups."""
    return bool(_groups_of_rows(fusion))


def _groups_of_rows(fusion: Fusion) -> list[ReductionOp]:
    """Return the reductions over groups within larger folds of which the elements also get the results; none if one of them cannot be a fold that keeps the
    shape. Instead of the elements getting the results of these, they may be computed from the results of the larger folds; sums that are, `nested_sums`
    has."""
    exprs = [e for e in fusion.tensor_exprs() if isinstance(e, ReductionOp)]
    if len(exprs) < 2:
        return []
    maps = AxisMaps(fusion)
    alike = folds_alike(exprs, maps)
    found: list[ReductionOp] = []
    for classes, pairs in alike.items():
        near = [pair for others, pairs_near in alike.items() if set(others) == set(classes) for pair in pairs_near]
        spread = {e: folds for e, folds in near if is_spread(e, folds, maps)}
        may_be_behind = any(size_of_group(e) and e not in spread and not is_plain(e) for e, _ in pairs)
        behind = computed_from(spread) if may_be_behind else set()
        groups = {folds for e, folds in pairs if size_of_group(e) and (e in spread or e.tensor_inputs[0] in behind and not is_plain(e))}
        nested = {g for g in groups if any(g < folds for folds in spread.values()) or _are_folded_again(frozenset(classes) - g, alike, maps)}
        found += [e for e, folds in pairs if folds in nested and isinstance(e, ReductionOp)]
    return found if all(map(size_of_group, found)) else []


def _are_folded_again(rows: frozenset[IterDomain], alike: Mapping[Axes, Sequence[Folding]], maps: AxisMaps) -> bool:
    """Tell whether values per group, which have the axes `rows`, are reduced over rows, and the elements get the result."""
    return any(is_spread(e, folds, maps) for classes, pairs in alike.items() if set(classes) == rows for e, folds in pairs)


def size_of_group(expr: Expr) -> int:
    """Return how many elements a reduction folds, if these are all along its innermost axes, of constant extents; else 0."""
    out = expr.tensor_outputs[0]
    if not isinstance(expr, ReductionOp) or len(expr.inputs) != 1 or out.has_root() or isinstance(out.dtype(), StateType):
        return 0
    source, axes = expr.tensor_inputs[0], out.get_logical_domain()
    first = next((n for n, a in enumerate(axes) if a.is_reduction()), len(axes))
    inner = logical_axes(source)[first:]
    is_whole = all(a.is_reduction() or a.is_broadcast() for a in axes[first:]) and not any(a.expanded_extent is not None for a in inner)
    if source.dtype() is not out.dtype() or not is_whole or not all(a.sym.is_const for a in inner):
        return 0
    size = math.prod(evaluate_int(a.sym, {}) for a in inner)
    return size if 1 < size <= MOST_BLOCK else 0


@dataclass
class _Images:
    """Tensors with one element per group, and for each the tensor in which every element of a group has it.

    made: expressions that were added. replaced: (reader, tensor per group, image) to be read instead. reduced: reductions over rows of values per group.
    """

    fusion: Fusion
    images: dict[TensorView, TensorView] = field(default_factory=dict)
    places: dict[TensorView, Places] = field(default_factory=dict)
    within: dict[TensorView, frozenset[int]] = field(default_factory=dict)
    made: list[Expr] = field(default_factory=list)
    replaced: list[tuple[Expr, TensorView, TensorView]] = field(default_factory=list)
    reduced: list[ReductionOp] = field(default_factory=list)

    def fold(self, expr: ReductionOp) -> bool:
        """Add the fold that a reduction over groups becomes."""
        out, source = expr.tensor_outputs[0], expr.tensor_inputs[0]
        image = self.fusion.new_tensor([self.fusion.copy_axis(a) for a in logical_axes(source)], out.dtype())
        within = frozenset(n for n, a in enumerate(out.get_logical_domain()) if a.is_reduction())
        count = len(logical_axes(source)) - min(within)
        attributes = dict(op="group_fold", kind=expr.attributes["kind"], axes=count, block=size_of_group(expr), compute=out.dtype())
        self.made.append(GroupFoldOp([source], [image], **attributes))
        self.fusion.register(self.made[-1])
        self._know(out, image, tuple(n for n in range(image.ndim) if n not in within), within)
        return True

    def _know(self, tensor: TensorView, image: TensorView, places: Places, within: frozenset[int]) -> None:
        self.images[tensor], self.places[tensor], self.within[tensor] = image, places, within

    def follow(self) -> bool:
        """Find the image of everything that is computed from results of groups; return whether all of it has one."""
        for expr in self.fusion.tensor_exprs():
            given = [t for t in expr.tensor_inputs if t in self.images]
            if not given or expr in self.made:
                continue
            outs = expr.tensor_outputs
            is_known = len(outs) == 1 and not expr.read_whole and len({self.within[t] for t in given}) == 1
            if not is_known or not self._follow(expr, given, outs[0]):
                return False
        return not any(t in self.fusion.aliases for t in self.images)

    def _follow(self, expr: Expr, given: list[TensorView], out: TensorView) -> bool:
        first = given[0]
        if isinstance(expr, PointwiseOp) and not isinstance(expr, GroupFoldOp):
            return self._compute(expr, given, out)
        if isinstance(expr, ReductionOp):
            return self._reduce(expr, first, out)
        if isinstance(expr, BroadcastOp):
            places = self._with_new_axes(first, expr.attributes["flags"])
        elif isinstance(expr, SqueezeOp):
            places = tuple(p for p, dropped in zip(self.places[first], expr.attributes["flags"], strict=True) if not dropped)
        elif isinstance(expr, (LoadStoreOp, ExpandOp)) and set(out.get_maybe_root_domain()) == set(out.get_logical_domain()):
            place = dict(zip(out.get_maybe_root_domain(), self.places[first], strict=True))
            places = tuple(place[axis] for axis in out.get_logical_domain())
        else:
            return False
        if isinstance(expr, ExpandOp) and (out.is_fusion_output or not self._expands_to_rows(out, places, self.images[first])):
            return False
        self._know(out, self.images[first], places, self.within[first])
        return True

    @staticmethod
    def _expands_to_rows(out: TensorView, places: Places, image: TensorView) -> bool:
        """Tell whether a tensor is expanded along axes of the rows' tensors alone, to their extents."""
        rows = logical_axes(image)
        expanded = [(p, axis.expanded_extent) for p, axis in zip(places, logical_axes(out), strict=True) if axis.expanded_extent is not None]
        return all(p is not None and extent is rows[p].logical_extent for p, extent in expanded)

    def _with_new_axes(self, tensor: TensorView, flags: Sequence[bool]) -> Places:
        """Return the places of the axes of a tensor with new ones, which stand for those of the rows' tensors if all of these are there then."""
        old = iter(self.places[tensor])
        places = tuple(None if new else next(old) for new in flags)
        is_whole = len(places) == self.images[tensor].ndim and all(p == n if p is not None else n in self.within[tensor] for n, p in enumerate(places))
        return tuple(range(len(places))) if is_whole else places

    def _compute(self, expr: PointwiseOp, given: list[TensorView], out: TensorView) -> bool:
        """Follow an op: it reads images if its result has the axes of groups, else it has an image."""
        places, within = self.places[given[0]], self.within[given[0]]
        axes = list(zip(places, logical_axes(out), strict=True))
        if any(self.places[t] != places for t in given) or any(p is None and not a.is_broadcast() for p, a in axes):
            return False
        along = [(logical_axes(self.images[given[0]])[p], a) for p, a in axes if p in within and a.is_iteration()]
        if any(row.logical_extent is not a.logical_extent for row, a in along):
            return False  # a part of each group, such as a slice
        if along:
            self.replaced += [(expr, t, self.images[t]) for t in given]
            return None not in places and len(places) == self.images[given[0]].ndim
        kept = [p for p in places if p is not None]
        if kept != sorted(kept) and any(isinstance(v, TensorView) and v not in self.images for v in expr.inputs):
            return False  # the axes of another operand stand in another order than those of the rows
        operands: list[Val] = []
        for value in expr.inputs:
            if value in self.images:
                operands.append(self.images[value])
            elif isinstance(value, TensorView):
                operands.append(self._spread(value, places, self.images[given[0]].ndim))
            else:
                operands.append(value)
        tensors = [v for v in operands if isinstance(v, TensorView)]
        made = self.fusion.new_tensor(new_axes(self.fusion, tensors, expr.op_name), out.dtype())
        self.made.append(type(expr)(operands, [made], **expr.attributes))
        self.fusion.register(self.made[-1])
        self._know(out, made, places, within)
        return True

    def _spread(self, value: TensorView, places: Places, rank: int) -> TensorView:
        """Return another operand of an op whose tensors have these places, with the axes of the rows' tensors."""
        added, left = tuple(p is None for p in places), [p for p in places if p is not None]
        if any(added):
            value = squeeze(self.fusion, value, [n for n, is_added in enumerate(added) if is_added])
            self.made.append(value.definition())  # type: ignore[arg-type]
        if len(left) < rank:
            value = broadcast(self.fusion, value, [n not in left for n in range(rank)])
            self.made.append(value.definition())  # type: ignore[arg-type]
        return value

    def _reduce(self, expr: ReductionOp, given: TensorView, out: TensorView) -> bool:
        """Follow a reduction over values per group: it is one over all elements, if equal ones do not change it."""
        kept = [p for p, a in zip(self.places[given], out.get_logical_domain(), strict=True) if p is not None and not a.is_reduction()]
        is_known = MONOIDS[expr.attributes["kind"]].is_idempotent and not out.has_root() and kept == sorted(kept)
        if not is_known or len(expr.inputs) != 1 or isinstance(out.dtype(), StateType) or out in self.images:
            return False
        self.reduced.append(expr)
        return True

    def settle(self) -> None:
        """Let everything read images, and outputs be one element of each group."""
        fusion = self.fusion
        for expr, tensor, image in self.replaced:
            fusion.replace_input(expr, tensor, image)
        for expr in self.reduced:
            self._reduce_rows(expr)
        for tensor in self.images:
            definition = tensor.definition()
            if definition is not None:
                fusion.remove(definition)
        for tensor in self.images:
            if tensor.is_fusion_output:
                self._take_one(tensor)

    def _reduce_rows(self, expr: ReductionOp) -> None:
        """Let a reduction over values per group read all elements."""
        fusion, given, out = self.fusion, expr.tensor_inputs[0], expr.tensor_outputs[0]
        image, places = self.images[given], self.places[given]
        kept = [p for p, axis in zip(places, out.get_logical_domain(), strict=True) if not axis.is_reduction()]
        rows = [p for p in kept if p is not None and p not in self.within[given]]
        axes = [fusion.copy_axis(a, None if n in rows else IterType.reduction) for n, a in enumerate(logical_axes(image))]
        made = fusion.new_tensor(axes, out.dtype())
        fusion.remove(expr)
        fusion.register(ReductionOp([image], [made], **expr.attributes))
        keep_axes(out, logical_axes(out))
        flags = tuple(p not in rows for p in kept)
        fusion.register(BroadcastOp([made], [out], op="broadcast", flags=flags) if any(flags) else LoadStoreOp([made], [out]))

    def _take_one(self, tensor: TensorView) -> None:
        """Let an output be one element of each group of its image."""
        fusion, image, places = self.fusion, self.images[tensor], self.places[tensor]
        keep_axes(tensor, logical_axes(tensor))
        own = {p: axis for p, axis in zip(places, tensor.get_logical_domain(), strict=True) if p not in self.within[tensor]}
        root = [own.get(n) or fusion.copy_axis(a) for n, a in enumerate(logical_axes(image))]
        domain: TensorDomain = tensor.domain()
        domain.root, domain.loop = root, list(root)
        block = math.prod(evaluate_int(root[n].sym, {}) for n in self.within[tensor])
        fusion.register(GroupResultOp([image], [tensor]))
        tensor.definition().attributes.update(op="group_result", block=block, layout="rows")  # type: ignore[union-attr]


__all__ = ["fold_groups", "has_groups", "size_of_group"]
