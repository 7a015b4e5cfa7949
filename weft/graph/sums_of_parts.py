"""Sums over a group from the sums over its parts: those of a group's elements are the sums of its channels, multiplied with what a channel has once, added up;
the sum of everything, beside one of each sample or of each column, is one over samples or columns first.

The backward of a group norm folds all elements of a group for the gradient of its input, and the pixels of each channel for those of weights, scales and
shifts. Where no kernel keeps a group on chip and computes both, the group's elements are read three times: for the sums of channels, for those of the group,
and for the result. Through the sums of channels they are read twice. A loss that weighs the error of each sample and has a term of all elements, too, or one of
the variances of columns, reads its inputs once instead of twice. Whether that is fewer bytes is not known here: `weft.segment.partition` compares.
Read first: `through_parts`.
"""

from __future__ import annotations

from ..analysis.axes import AxisMaps
from ..ir.fusion import Fusion
from ..ir.values import Expr, ReductionOp, WelfordOp
from .factored_sums import share_factored_sums
from .nested_sums import Flags, computed_from, cut, folds_alike, is_plain, is_spread


def through_parts(fusion: Fusion) -> Fusion | None:
    """Return a copy of a fusion in which sums over the same loops, the first ones of these, are first over the axes that all of them fold; None if there are
    none that fold different axes.

    Results keep their names; the bits of sums may differ, because their terms are added in another order, and factors of a part multiply its sum.
    """
    found = _found(fusion)
    if not found:
        return None
    copy, _ = fusion.clone()
    exprs = {e.tensor_outputs[0].name: e for e in copy.tensor_exprs() if isinstance(e, ReductionOp)}
    parts = [exprs[name] if flags is None else cut(copy, exprs[name], flags) for name, flags in found.items() if name in exprs]
    share_factored_sums(copy, parts)
    return copy


def _found(fusion: Fusion) -> dict[int, Flags | None]:
    """Return the sums that have parts in common: name of the result -> which axes the parts fold; None for a reduction that is a part. Where no result is
    broadcast back, such a part need not be a sum."""
    reductions = [e for e in fusion.tensor_exprs() if isinstance(e, (ReductionOp, WelfordOp))]
    if len(reductions) < 2:
        return {}
    maps, out = AxisMaps(fusion), dict[int, "Flags | None"]()
    for group in folds_alike(reductions, maps).values():
        spread = [pair for pair in group if is_spread(*pair, maps)]
        behind = computed_from(e for e, _ in spread)
        first = [(e, folds) for e, folds in group if not behind.intersection(e.tensor_inputs)]
        common = frozenset.intersection(*(folds for _, folds in first)) if first else frozenset()
        plain = all(is_plain(e) for e, folds in first if spread or folds != common)
        gains = not spread or any(pair in spread and pair[1] != common for pair in first)
        if common and plain and gains and len({folds for _, folds in first}) > 1:
            out |= {e.tensor_outputs[0].name: _flags(e, common, maps) if folds != common else None for e, folds in first}
    return out


def _flags(expr: Expr, common: frozenset[object], maps: AxisMaps) -> Flags:
    return [not axis.is_broadcast() and maps.exact(axis) in common for axis in expr.tensor_outputs[0].get_logical_domain()]


__all__ = ["through_parts"]
