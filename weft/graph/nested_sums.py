"""Sums in two steps: the sum over the samples and pixels of a channel is one over the pixels of each sample, and then one over samples; the sum of all elements
of normalized rows is one over each row, and then one over rows; the sum over rows and over parts of each row, as of the patches that are merged before a norm
of them, is one over rows, and then one over the parts; sums over all rows, beside one over the samples of each position only, are over samples first.

The backward of a group norm folds a group's channels and pixels for the input's gradient, and samples and pixels for that of the weight. No kernel has both;
the sum over pixels, which both begin with, lies in the rows of the first, whose kernel can compute it beside its own. Sums over rows are those of columns,
which a kernel computes beside rows, too. Gradients of positions behind a norm (GPT-2, ViT) are columns of each position, those of its weight are columns of all
rows: sums over samples are columns of each position in both. Then inputs are read once instead of twice. Whether a kernel does, and whether the results of
first steps are fewer bytes, is not known here: `weft.segment.partition` asks.
Read first: `in_two_steps`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..analysis.axes import AxisMaps
from ..ir.fusion import Fusion
from ..ir.values import Expr, IterDomain, ReductionOp, TensorView, WelfordOp
from ..ops.build import logical_axes
from .made_reductions import keep_axes, reduce_like

Axes = tuple[IterDomain, ...]
Folding = tuple[Expr, frozenset[IterDomain]]
"""A reduction, and the classes of the axes that it folds."""


def in_two_steps(fusion: Fusion, only: Collection[int] | None = None) -> tuple[Fusion, dict[int, int]]:
    """Return a copy of the fusion in which sums over more axes than those of a normalization, or of its columns, are computed in two steps, and which sums
    these are.

    only: names of the sums to cut; None for all that can be. The second result is name of a sum -> name of the first of its two steps. If nothing is cut, the
    fusion is the given one. Results keep their names; the bits of sums may differ, because their terms are added in another order.
    """
    found = {name: folded for name, folded in _found(fusion).items() if only is None or name in only}
    if not found:
        return fusion, {}
    copy, _ = fusion.clone()
    exprs = {e.tensor_outputs[0].name: e for e in copy.tensor_exprs() if isinstance(e, ReductionOp)}
    return copy, {name: cut(copy, exprs[name], folded).tensor_outputs[0].name for name, folded in found.items()}


Flags = list[bool]


def _found(fusion: Fusion) -> dict[int, Flags]:
    """Return which sums can be cut: name of the result -> which axes the first step sums. Axes of one element (groups of one channel) do not count, unless they
    are among these."""
    reductions = [e for e in fusion.tensor_exprs() if isinstance(e, (ReductionOp, WelfordOp))]
    if len(reductions) < 2 or not any(map(is_plain, reductions)):
        return {}
    maps = AxisMaps(fusion)
    alike = folds_alike(reductions, maps)
    return _over_samples(alike, maps) | _over_rows(alike, maps) | _within_rows(alike, maps)


def folds_alike(reductions: Sequence[Expr], maps: AxisMaps) -> dict[Axes, list[Folding]]:
    """Return the reductions over the same loops: the classes of these -> each reduction, and what it folds. Axes of one element do not count."""
    alike: dict[Axes, list[Folding]] = {}
    for expr in reductions:
        axes = [a for a in expr.tensor_outputs[0].get_logical_domain() if not a.is_broadcast()]
        folds = frozenset(maps.exact(a) for a in axes if a.is_reduction())
        alike.setdefault(tuple(maps.exact(a) for a in axes), []).append((expr, folds))
    return alike


def _within_rows(alike: Mapping[Axes, Sequence[Folding]], maps: AxisMaps) -> dict[int, Flags]:
    """Return sums whose first step is over the innermost axes of rows."""
    out: dict[int, Flags] = {}
    for classes, group in alike.items():
        spread = [other for e, other in group if is_spread(e, other, maps)]
        for plain, folds in (pair for pair in group if is_plain(pair[0])):
            rows = {other for other in spread if _shared_innermost(classes, folds, other)}
            count = _shared_innermost(classes, folds, rows.pop()) if len(rows) == 1 and not is_spread(plain, folds, maps) else 0
            axes = plain.tensor_outputs[0].get_logical_domain()
            if count and not any(a.is_broadcast() for a in axes[-count:]):
                out[plain.tensor_outputs[0].name] = [n >= len(axes) - count for n in range(len(axes))]
    return out


def _over_rows(alike: Mapping[Axes, Sequence[Folding]], maps: AxisMaps) -> dict[int, Flags]:
    """Return sums whose first step is over all rows, and gives one value per column."""
    out: dict[int, Flags] = {}
    for classes, group in alike.items():
        near = [pair for others, pairs in alike.items() if set(others) == set(classes) for pair in pairs]
        rows = {other for e, other in near if is_spread(e, other, maps)}
        columns = frozenset(classes) - next(iter(rows)) if len(rows) == 1 else frozenset()
        for plain, folds in (pair for pair in group if columns and is_plain(pair[0]) and columns < pair[1] < set(classes)):
            axes = plain.tensor_outputs[0].get_logical_domain()
            if not any(a.is_broadcast() for a in axes) and not is_spread(plain, folds, maps):
                out[plain.tensor_outputs[0].name] = [maps.exact(a) in columns for a in axes]
    return out


def _over_samples(alike: Mapping[Axes, Sequence[Folding]], maps: AxisMaps) -> dict[int, Flags]:
    """Return sums over rows whose first step is over the axes that all sums over rows have in common, because one of them has no others."""
    out: dict[int, Flags] = {}
    for every in {frozenset(classes) for classes in alike}:
        near = [pair for classes, pairs in alike.items() if every == set(classes) for pair in pairs]
        rows = {folds for e, folds in near if is_spread(e, folds, maps)}
        inside = next(iter(rows)) if len(rows) == 1 else every
        columns = [(e, folds) for e, folds in near if not folds & inside]
        common = frozenset[IterDomain]().union(every).intersection(*(folds for _, folds in columns))
        if not common or not any(folds == common for _, folds in columns) or not all(is_plain(e) for e, folds in columns if folds != common):
            continue
        for expr, folds in columns:
            axes = expr.tensor_outputs[0].get_logical_domain()
            if folds != common and not any(a.is_broadcast() for a in axes):
                out[expr.tensor_outputs[0].name] = [maps.exact(a) in common for a in axes]
    return out


def is_plain(expr: Expr) -> bool:
    """True for a sum of floats of 32 bits or more, which can be computed in two steps."""
    if not isinstance(expr, ReductionOp):
        return False
    out = expr.tensor_outputs[0]
    is_wide = out.dtype().is_float and not out.dtype().is_reduced_float
    same = expr.tensor_inputs[0].dtype() is out.dtype()
    return expr.attributes["kind"] == "sum" and len(expr.inputs) == 1 and is_wide and same and not out.has_root()


def is_spread(expr: Expr, folded: frozenset[IterDomain], maps: AxisMaps) -> bool:
    """Tell whether a value computed from a sum is broadcast over an axis that the sum reduced."""
    stack: list[TensorView] = list(expr.tensor_outputs)
    seen = set(stack)
    while stack:
        tensor = stack.pop()
        for use in tensor.uses():
            for out in use.tensor_outputs:
                if any(not a.is_broadcast() and maps.exact(a) in folded for a in logical_axes(out)):
                    return True
                if out not in seen:
                    seen.add(out)
                    stack.append(out)
    return False


def computed_from(exprs: Iterable[Expr]) -> set[TensorView]:
    """Return the results of expressions, and what is computed from them."""
    stack = [t for e in exprs for t in e.tensor_outputs]
    found = set(stack)
    while stack:
        new = {t for use in stack.pop().uses() for t in use.tensor_outputs} - found
        found |= new
        stack += new
    return found


def _shared_innermost(classes: tuple[IterDomain, ...], mine: frozenset[IterDomain], other: frozenset[IterDomain]) -> int:
    """Return how many innermost axes both reduce; 0 unless these are all common ones, and the first reduces one more."""
    shared = mine & other
    count = len(shared)
    is_inner = count > 0 and set(classes[-count:]) == shared
    return count if is_inner and mine - shared else 0


def cut(fusion: Fusion, expr: ReductionOp, folded: Flags) -> ReductionOp:
    """Split an expression: a new one, which is returned, reduces the axes `folded`, and this one its results."""
    out, source = expr.tensor_outputs[0], expr.tensor_inputs[0]
    within = reduce_like(fusion, expr, source, folded, out.dtype())
    fusion.remove(expr)
    keep_axes(out, [axis for axis, is_first in zip(out.get_logical_domain(), folded) if not is_first])
    fusion.register(ReductionOp([within], [out], **expr.attributes))
    first = within.definition()
    assert isinstance(first, ReductionOp)
    return first


__all__ = ["Flags", "computed_from", "cut", "folds_alike", "in_two_steps", "is_plain", "is_spread"]
