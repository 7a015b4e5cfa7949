"""Sums whose terms differ in factors that do not vary along the sum: sum(x) and sum(x * c) become one sum, and c is multiplied with its result.

So a gradient of a norm is written: sum(dy), sum(dy * w), sum(dy * w * (x - m) * r), sum(dy * (x - m) * r) of each channel are two sums, not four.
Read first: `share_factored_sums`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..analysis.plain_copies import copied_value
from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, LoadStoreOp, PointwiseOp, ReductionOp, TensorView, Val
from ..ops.build import logical_axes
from ..ops.shapes import squeeze
from .made_reductions import multiplied, reduce_like, release_result

WIDE = (DataType.Float, DataType.Double)


@dataclass(frozen=True)
class Factored:
    """A sum of a product over the axes `folded`. varying: the factors that depend on these axes, by name; even: the others."""

    expr: ReductionOp
    folded: tuple[int, ...]
    varying: tuple[TensorView, ...]
    even: tuple[Val, ...]


def share_factored_sums(fusion: Fusion, among: Iterable[ReductionOp] | None = None) -> None:
    """Merge sums whose terms differ only in factors that do not depend on the summed axes, in place.

    among: the sums that may be merged; by default all but those of rows, whose factors are rare, and of which those that share a sum become one large kernel.
    Before: no axis is open. After: results keep their names; such a factor multiplies the sum instead of each term, which rounds less often.
    """
    groups: dict[tuple[object, ...], list[Factored]] = {}
    for expr in fusion.tensor_exprs() if among is None else among:
        found = _factored(expr) if isinstance(expr, ReductionOp) and (among is not None or not _is_of_rows(expr)) else None
        if found is not None:
            groups.setdefault((found.varying, found.folded, expr.tensor_outputs[0].dtype()), []).append(found)
    for group in groups.values():
        if len(group) > 1:
            _share(fusion, group)


def _factored(expr: ReductionOp) -> Factored | None:
    out = expr.tensor_outputs[0]
    if expr.attributes["kind"] != "sum" or len(expr.inputs) != 1 or out.dtype() not in WIDE or out.has_root():
        return None
    folded = [d for d, axis in enumerate(out.get_logical_domain()) if axis.is_reduction()]
    factors = _factors(expr.inputs[0], out.dtype())
    even = [f for f in factors if not isinstance(f, TensorView) or all(logical_axes(f)[d].is_broadcast() for d in folded)]
    varying: list[TensorView] = [f for f in factors if f not in even]  # type: ignore[misc]
    is_whole = {d for t in varying for d, axis in enumerate(logical_axes(t)) if not axis.is_broadcast()} >= set(range(len(out.get_logical_domain())))
    if not varying or not is_whole or any(t.dtype() is not out.dtype() for t in varying):
        return None
    return Factored(expr, tuple(folded), tuple(sorted(varying, key=lambda t: t.name)), tuple(even))


def _is_of_rows(expr: ReductionOp) -> bool:
    """True for a reduction of the innermost axes."""
    flags = [axis.is_reduction() for axis in expr.tensor_outputs[0].get_logical_domain()]
    return all(flags[flags.index(True) :])


def _factors(value: Val, dtype: DataType) -> list[Val]:
    """Return the factors of a value."""
    value = copied_value(value)
    above = value.definition() if isinstance(value, TensorView) else None
    if isinstance(above, PointwiseOp) and above.op_name == "mul" and above.attributes["compute"] is dtype:
        return [f for operand in above.inputs for f in _factors(operand, dtype)]
    return [value]


def _share(fusion: Fusion, group: Sequence[Factored]) -> None:
    """Compute all sums of a group from one: the first without even factors, or a new one."""
    plain = next((f for f in group if not f.even), None)
    total = _sum_of(fusion, group[0]) if plain is None else plain.expr.tensor_outputs[0]
    for one in group:
        out = one.expr.tensor_outputs[0]
        if out is total or one is plain:
            continue
        release_result(fusion, one.expr)
        even = [without_axes(fusion, f, one.folded) for f in one.even]
        if even:
            factor = multiplied(fusion, [total, *even[:-1]])
            fusion.register(PointwiseOp([factor, even[-1]], [out], op="mul", compute=out.dtype()))
        else:
            fusion.register(LoadStoreOp([total], [out]))


def without_axes(fusion: Fusion, factor: Val, folded: Sequence[int]) -> Val:
    """Return a factor without the axes of a sum: the operand of its broadcast, if it was broadcast only along these."""
    while isinstance(factor, TensorView) and isinstance(above := factor.definition(), ExpandOp):
        factor = copied_value(above.inputs[0])
    if not isinstance(factor, TensorView):
        return factor
    above = factor.definition()
    if isinstance(above, BroadcastOp) and [d for d, is_new in enumerate(above.attributes["flags"]) if is_new] == list(folded):
        return above.inputs[0]
    return squeeze(fusion, factor, list(folded), squeeze_expanded=True)


def _sum_of(fusion: Fusion, one: Factored) -> TensorView:
    """Return a new sum of the product of the varying factors."""
    product, out = multiplied(fusion, one.varying), one.expr.tensor_outputs[0]
    is_folded = [axis.is_reduction() for axis in out.get_logical_domain()]
    return reduce_like(fusion, one.expr, product, is_folded, out.dtype())  # type: ignore[arg-type]


__all__ = ["share_factored_sums", "without_axes"]
