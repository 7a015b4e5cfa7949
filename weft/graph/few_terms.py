"""Folds and scans of a few terms, term by term: the sum of three coordinates is x[0] + x[1] + x[2], the largest of three colors a maximum of maxima.

A fold has loops of its own, which only ops with the same axes share: behind it, another kernel begins where the result gets axes that its terms lack (distances
from several centers), where single terms are used, too (hue from colors and their maximum), or where the terms are parts of a cat. Term by term it is pointwise
and has the loops of what reads it. A kernel that folds short rows is as fast alone, so `weft.segment.partition` compares the bytes of both.
Read first: `term_by_term`.
"""

from __future__ import annotations

import itertools
import math

from ..analysis.axes import TIE
from ..dtypes import DataType
from ..expr import ZERO, const
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, Fixed, LookupOp, Position, ScanOp
from ..ir.values import Expr, IterDomain, LoadStoreOp, ReductionOp, TensorView
from ..ops.build import broadcast, is_plain_broadcast, logical_axes, pointwise
from ..ops.factories import iota
from .lookups import move_lookups_up

MOST_TERMS = 4
"""Terms of a fold: coordinates, colors, sides of a box, numbers of a quaternion. Each is read where it lies, so more are more accesses than a fold has."""
MOST_SCANNED = 4 * MOST_TERMS
"""Terms of a scan. A thread that has a whole row reads each once and has each partial sum once (`weft.schedulers.whole_rows`)."""
OPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
"""Monoid -> the pointwise op that combines two values."""
RECURRENCE = "linear_recurrence"
"""The monoid of two operands that is taken apart."""


def term_by_term(fusion: Fusion) -> Fusion | None:
    """Return a copy of a fusion whose folds and scans of few terms are pointwise; None if there is none.

    Results keep their names; sums are rounded in the order of their terms.
    """
    names = [e.tensor_outputs[0].name for e in fusion.tensor_exprs() if _is_of_few_terms(e)]
    if not names:
        return None
    copy, _ = fusion.clone()
    folds = {e.tensor_outputs[0].name: e for e in copy.tensor_exprs() if isinstance(e, (ReductionOp, ScanOp))}
    for name in names:
        fold, out = folds[name], folds[name].tensor_outputs[0]
        total = _scanned(copy, fold) if isinstance(fold, ScanOp) else _folded(copy, fold)
        for use in list(out.uses()):
            copy.replace_input(use, out, total)
        copy.remove(fold)
        if out.is_fusion_output:
            copy.register(LoadStoreOp([total], [out]))
    move_lookups_up(copy)
    return copy


def _is_of_few_terms(expr: Expr) -> bool:
    """True for a fold, or a scan, of terms whose number is known, and whose result is no output, except that of a scan which others read, too."""
    if not isinstance(expr, (ReductionOp, ScanOp)) or len(expr.outputs) != 1:
        return False
    if expr.attributes["kind"] != RECURRENCE and (expr.attributes["kind"] not in OPS or len(expr.inputs) != 1):
        return False
    source, out = expr.tensor_inputs[0], expr.tensor_outputs[0]
    made = source.definition()
    is_tied = TIE in expr.attributes or made is not None and TIE in made.attributes
    is_kept = out.is_fusion_output and not (isinstance(expr, ScanOp) and out.uses())
    if is_tied or is_kept or any(t.dtype() is not out.dtype() or t.has_root() for t in expr.tensor_inputs):
        return False
    folded = [logical_axes(source)[d] for d in _folded_axes(expr)]
    if any(axis.is_broadcast() or not axis.sym.is_const for axis in folded):
        return False
    return 1 < math.prod([_extent(axis) for axis in folded]) <= (MOST_SCANNED if isinstance(expr, ScanOp) else MOST_TERMS)


def _extent(axis: IterDomain) -> int:
    return int(axis.sym.value)  # type: ignore[arg-type]


def _folded_axes(expr: Expr) -> list[int]:
    if isinstance(expr, ScanOp):
        return [expr.attributes["dim"]]
    return [d for d, axis in enumerate(expr.tensor_outputs[0].get_logical_domain()) if axis.is_reduction()]


def _folded(fusion: Fusion, fold: Expr) -> TensorView:
    source, folded = fold.tensor_inputs[0], _folded_axes(fold)
    extents = [_extent(logical_axes(source)[d]) for d in folded]
    terms = [_term(fusion, source, dict(zip(folded, places))) for places in itertools.product(*map(range, extents))]
    total = terms[0]
    for term in terms[1:]:
        total = pointwise(fusion, OPS[fold.attributes["kind"]], total, term)  # type: ignore[assignment]
    return total


def _scanned(fusion: Fusion, scan: Expr) -> TensorView:
    """Return the results of a scan: each takes the next term where its place is not before it; not behind it, if the scan begins at the end."""
    source, dim = scan.tensor_inputs[-1], scan.attributes["dim"]
    axis, along = logical_axes(source)[dim], [d == dim for d in range(source.ndim)]
    place = iota(fusion, fusion.new_scalar(axis.logical_extent, DataType.Int), None, None, DataType.Int32)
    if source.ndim > 1:
        place = broadcast(fusion, place, [not here for here in along])
    first, *others = reversed(range(_extent(axis))) if scan.attributes.get("reverse") else range(_extent(axis))
    total = broadcast(fusion, _term(fusion, source, {dim: first}), along)
    for k in others:
        terms = [broadcast(fusion, _term(fusion, t, {dim: k}), along) for t in scan.tensor_inputs]
        longer = _step(fusion, total, *terms) if len(terms) > 1 else pointwise(fusion, OPS[scan.attributes["kind"]], total, *terms)
        takes = pointwise(fusion, "ge" if k > first else "le", place, k)
        total = pointwise(fusion, "where", takes, longer, total)  # type: ignore[assignment]
    return total


def _step(fusion: Fusion, total: TensorView, gate: TensorView, term: TensorView) -> TensorView:
    """Return the value of a linear recurrence behind `total`: what is 0 stays 0 whatever its gate."""
    moved = pointwise(fusion, "add", pointwise(fusion, "mul", gate, total), term)
    return pointwise(fusion, "where", pointwise(fusion, "eq", total, 0.0), term, moved)  # type: ignore[return-value]


def _term(fusion: Fusion, source: TensorView, places: dict[int, int]) -> TensorView:
    """Return the elements of a tensor at places along some axes, without these axes."""
    positions: list[Position] = []
    kept = [axis for d, axis in enumerate(logical_axes(source)) if d not in places]
    for d, axis in enumerate(logical_axes(source)):
        if d in places:
            positions.append(Fixed(const(places[d])))
        else:
            at = kept.index(axis)
            positions.append(Fixed(ZERO) if is_plain_broadcast(axis) else Along(at))
    axes = [fusion.copy_axis(axis, IterType.broadcast if axis.is_broadcast() else IterType.iteration) for axis in kept]
    term = fusion.new_tensor(axes, source.dtype())
    fusion.register(LookupOp([source], [term], op="select", positions=tuple(positions), is_masked=False))
    return term


__all__ = ["term_by_term"]
