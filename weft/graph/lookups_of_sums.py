"""Lookups of sums of a few terms, moved to the terms: the sum's elements at other positions are sums of the terms there.

The gradient of keys that heads share is a sum over these heads, and the backward of rotary positions reads it at two positions. Looked up, the sum would have
to be in memory first, in float32. Owns which sums are few enough, and the rewriting. Read first: `move_through_sums`.
"""

from __future__ import annotations

import math

from ..analysis.axes import TIE, AxisMaps
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, Fixed, LookupOp, Position
from ..ir.values import IterDomain, LoadStoreOp, ReductionOp, Scalar, TensorView, no_reductions
from ..ops.build import constant, copy, logical_axes

MOST_TERMS = 8
"""Terms that are read again at another position, from L2 or nearer. A sum in float32 that is stored and read moves 8 bytes; 8 terms of 16 bits are 16 bytes
from L2, which has more than twice the bandwidth of memory."""


def move_through_sums(fusion: Fusion) -> list[LookupOp]:
    """Rewrite lookups of sums of few terms, in place, as sums of lookups; return these lookups, whose sources may be computed. All sums of the same terms have
    the same loops; nothing is done where two axes of a tensor would have one."""
    if not any(map(_is_of_few_terms, fusion.tensor_exprs())):
        return []
    trial, _ = fusion.clone()
    _rewrite(trial)
    return [] if _has_equal_axes(trial) else _rewrite(fusion)


def _has_equal_axes(fusion: Fusion) -> bool:
    """True if two axes of a tensor would have one loop."""
    maps = AxisMaps(fusion)
    classes = ([maps.exact(a) for a in t.get_logical_domain() if not a.is_broadcast()] for t in fusion.tensors())
    return any(len(set(found)) < len(found) for found in classes)


def _rewrite(fusion: Fusion) -> list[LookupOp]:
    return [_moved(fusion, expr) for expr in fusion.tensor_exprs() if isinstance(expr, LookupOp) and _is_of_few_terms(expr)]


def _is_of_few_terms(expr: object) -> bool:
    """True for a lookup that keeps the axes of a sum of few terms, and their order, and is 0 outside."""
    fold = expr.source.definition() if isinstance(expr, LookupOp) else None
    if not isinstance(expr, LookupOp) or not isinstance(fold, ReductionOp) or expr.source.has_root():
        return False
    terms, kept = [a.sym for a in expr.source.get_logical_domain() if a.is_reduction()], no_reductions(expr.source.get_logical_domain())
    is_few = all(n.is_const for n in terms) and math.prod(int(n.value) for n in terms) <= MOST_TERMS  # type: ignore[arg-type, misc]
    places = list(zip(kept, logical_axes(expr.tensor_outputs[0]), expr.positions))
    is_kept = len(kept) == len(logical_axes(expr.tensor_outputs[0])) and all(a.sym is b.sym and a.iter_type is b.iter_type for a, b, _ in places)
    is_in_order = all(isinstance(p, Fixed) if a.is_broadcast() else isinstance(p, Along) and p.axis == d for d, (a, _, p) in enumerate(places))
    fill = expr.inputs[-1]
    is_zero = not expr.is_masked or bool(expr.attributes.get("is_discarded")) or isinstance(fill, Scalar) and fill.sym.is_const and str(fill.sym.value) == "0.0"
    return fold.attributes["kind"] == "sum" and len(fold.inputs) == 1 and is_few and is_kept and is_in_order and is_zero


def _moved(fusion: Fusion, expr: LookupOp) -> LookupOp:
    """Replace a lookup of a sum by the sum of a lookup; return that."""
    fold, out, name = expr.source.definition(), expr.tensor_outputs[0], expr.source.name
    assert isinstance(fold, ReductionOp)
    source, summed = fold.tensor_inputs[0], expr.source.get_logical_domain()
    own, places = iter(logical_axes(out)), iter(expr.positions)
    axes: list[IterDomain] = []
    positions: list[Position] = []
    for d, axis in enumerate(summed):
        place = Along(d) if axis.is_reduction() else next(places)
        axes.append(fusion.copy_axis(axis, IterType.iteration) if axis.is_reduction() else fusion.copy_axis(next(own)))
        positions.append(Along(d, place.offset) if isinstance(place, Along) else place)
    terms = fusion.new_tensor(axes, source.dtype())
    fill = [constant(fusion, 0.0, source.dtype())] if expr.is_masked else []
    lookup = LookupOp([source, *fill], [terms])
    lookup.attributes.update(expr.attributes, positions=tuple(positions))
    fusion.remove(expr)
    fusion.register(lookup)
    if source.definition() is None or source.definition().attributes.get(TIE) != _tie(name):  # type: ignore[union-attr]
        fusion.replace_input(fold, source, _tied(fusion, source, name))
    total = fusion.new_tensor([fusion.copy_axis(a, IterType.reduction if old.is_reduction() else None) for a, old in zip(axes, summed)], out.dtype())
    fusion.register(ReductionOp([_tied(fusion, terms, name)], [total], **fold.attributes))
    fusion.register(LoadStoreOp([total], [out]))
    return lookup


def _tie(name: int) -> str:
    return f"terms of T{name}"


def _tied(fusion: Fusion, tensor: TensorView, name: int) -> TensorView:
    """Return a copy of the terms of a sum, whose loops are those of all such copies."""
    copied: TensorView = copy(fusion, tensor)  # type: ignore[assignment]
    copied.definition().attributes[TIE] = _tie(name)  # type: ignore[union-attr]
    return copied


__all__ = ["move_through_sums"]
