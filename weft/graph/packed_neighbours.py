"""Values packed from neighbours of a normalized row, as folds: two codes of 4 bits in a byte are the bitwise or of the codes, each shifted to its place.

    before: y[r, b] = x[r, b, 0] | x[r, b, 1] << 4
    after:  y[r, b] = the bitwise or, over k, of where(k == 0, x[r, b, k], x[r, b, k] << 4)

A lookup of a computed tensor is computed again where it is read, for which the results of the row must be in memory: another kernel reads the row once more.
A fold over neighbours is in the kernel of the row (`group_folds`). So this is done only where what is packed is computed from a reduction over the same axis.
Read first: `fold_packed_neighbours`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..analysis.axes import AxisMaps
from ..dtypes import DataType
from ..expr import evaluate_int
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, LookupOp
from ..ir.values import Expr, FullOp, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorView, Val
from ..ops.build import broadcast, logical_axes, pointwise
from ..ops.factories import iota
from .nested_sums import computed_from

MOST_PACKED = 8
"""Neighbours that are packed into one value: bits of a byte. An element selects among as many formulas; one is left where its place in a vector is known."""
FOLDS = {"bitwise_or": "or", "add": "sum"}
"""Op of integers that joins parts -> the monoid that folds them."""


@dataclass
class Part:
    """One operand of what is packed: a formula of x at one place. steps: from x to the operand."""

    source: TensorView
    place: int
    steps: list[Expr] = field(default_factory=list)


def fold_packed_neighbours(fusion: Fusion) -> int:
    """Replace values that are packed from all neighbours along an innermost axis of constant extent by folds over it, in place; return how many.

    Before: no axis is open, reshapes are factored. After: results keep their names and bits.
    """
    exprs = fusion.tensor_exprs()
    found = [(expr, parts) for expr in exprs if (parts := _packed(expr))]
    if not found:
        return 0
    maps, reductions = AxisMaps(fusion), [e for e in exprs if isinstance(e, ReductionOp)]
    found = [(expr, parts) for expr, parts in found if _is_behind(parts[0].source, reductions, maps)]
    for expr, parts in found:
        _fold(fusion, expr, parts)
    return len(found)


def _packed(expr: Expr) -> list[Part]:
    """Return the parts that an expression joins, one for each neighbour; none if it is not such an expression, or an operand of a larger one."""
    op = expr.op_name
    if op not in FOLDS or not _joins(expr, op) or _is_read_once(expr.outputs[0]) and _joins(expr.outputs[0].uses()[0], op):
        return []
    parts = [_part(operand) for operand in _operands(expr, op) if not _is_zero(operand)]  # a loop over the parts begins with 0
    if not parts or None in parts:
        return []
    source = parts[0].source  # type: ignore[union-attr]
    *kept, last = logical_axes(source)
    size = evaluate_int(last.sym, {})
    is_all = sorted(p.place for p in parts) == list(range(size)) and 1 < size <= MOST_PACKED  # type: ignore[union-attr]
    shapes = [[(axis.sym, axis.is_broadcast()) for axis in axes] for axes in (kept, logical_axes(expr.tensor_outputs[0]))]
    is_one = all(p.source is source for p in parts)  # type: ignore[union-attr]
    return parts if is_all and is_one and shapes[0] == shapes[1] else []  # type: ignore[return-value]


def _is_zero(value: Val) -> bool:
    above = value.definition()
    return isinstance(above, FullOp) and above.inputs[0].sym.is_const and above.inputs[0].sym.value == 0  # type: ignore[attr-defined]


def _joins(expr: Expr | None, op: str) -> bool:
    """True for a certain op of integers of one type."""
    if type(expr) is not PointwiseOp or expr.op_name != op:
        return False
    dtype = expr.tensor_outputs[0].dtype()
    return dtype.is_integer and all(isinstance(v, TensorView) and v.dtype() is dtype for v in expr.inputs)


def _operands(expr: Expr, op: str) -> list[Val]:
    """Return what a tree of equal ops joins, whose results nothing else reads; none if it is too much."""
    found: list[Val] = []
    stack = list(expr.inputs)
    while stack and len(found) + len(stack) <= 2 * MOST_PACKED:
        value = stack.pop()
        above = value.definition()
        if above is not None and _joins(above, op) and _is_read_once(value):
            stack += above.inputs
        else:
            found.append(value)
    return [] if stack else found


def _is_read_once(value: Val) -> bool:
    return isinstance(value, TensorView) and len(value.uses()) == 1 and not value.is_fusion_output


def _part(operand: Val) -> Part | None:
    """Return the formula of an operand, if it is one of constants and of one element along the innermost axis of a tensor."""
    steps: list[Expr] = []
    while isinstance(operand, TensorView) and _is_read_once(operand):
        above = operand.definition()
        if isinstance(above, PointwiseOp) and len(above.tensor_inputs) == 1 and type(above) is PointwiseOp and all(_is_constant(v) for v in above.inputs):
            steps.append(above)
            operand = above.tensor_inputs[0]
            continue
        place = _place(above) if isinstance(above, SqueezeOp) else None
        return None if place is None else Part(above.tensor_inputs[0].definition().source, place, steps[::-1])  # type: ignore[union-attr]
    return None


def _is_constant(value: Val) -> bool:
    return isinstance(value, TensorView) or value.sym.is_const  # type: ignore[attr-defined]


def _place(squeeze: SqueezeOp) -> int | None:
    """Return which element along the innermost axis of the source a squeezed slice is; None if it is something else."""
    sliced = squeeze.tensor_inputs[0]
    lookup, flags = sliced.definition(), squeeze.attributes["flags"]
    is_slice = type(lookup) is LookupOp and lookup.op_name == "slice" and not lookup.is_masked
    if not is_slice or not _is_read_once(sliced) or flags != (False,) * (sliced.ndim - 1) + (True,):
        return None
    assert isinstance(lookup, LookupOp)
    *others, last = lookup.positions
    axes, made = logical_axes(lookup.source), logical_axes(sliced)
    is_rest_whole = others == [Along(d) for d in range(len(others))] and all(a.sym is b.sym for a, b in zip(axes[:-1], made[:-1]))
    is_one = isinstance(last, Along) and last.axis == sliced.ndim - 1 and last.offset.is_const and made[-1].is_broadcast()
    if not is_rest_whole or not is_one or not axes[-1].sym.is_const or axes[-1].is_broadcast():
        return None
    return evaluate_int(last.offset, {})  # type: ignore[union-attr]


def _is_behind(source: TensorView, reductions: list[ReductionOp], maps: AxisMaps) -> bool:
    """Tell whether a tensor is computed from a reduction over its innermost axis."""
    last = maps.exact(logical_axes(source)[-1])
    folding = (e for e in reductions if any(a.is_reduction() and maps.exact(a) is last for a in e.tensor_outputs[0].get_logical_domain()))
    return source in computed_from(folding)


def _fold(fusion: Fusion, expr: Expr, parts: list[Part]) -> None:
    """Replace an expression by a fold over the innermost axis of what its parts are made of."""
    source, out = parts[0].source, expr.tensor_outputs[0]
    axes = logical_axes(source)
    length = fusion.new_scalar(axes[-1].logical_extent, DataType.Int)
    place = broadcast(fusion, iota(fusion, length, None, None, DataType.Int32), [d < source.ndim - 1 for d in range(source.ndim)])
    *others, last = sorted(parts, key=lambda part: part.place)
    value = _formula(fusion, last)
    for part in reversed(others):
        is_here = pointwise(fusion, "eq", place, part.place)
        value = pointwise(fusion, "where", is_here, _formula(fusion, part), value)  # type: ignore[assignment]
    folded = fusion.new_tensor([fusion.copy_axis(a, IterType.reduction if a is axes[-1] else None) for a in axes], out.dtype())
    fusion.register(ReductionOp([value], [folded], op=FOLDS[expr.op_name], kind=FOLDS[expr.op_name]))
    _drop(fusion, expr, source)
    fusion.register(LoadStoreOp([folded], [out]))


def _drop(fusion: Fusion, expr: Expr, source: TensorView) -> None:
    """Remove an expression and those before it, down to `source`."""
    fusion.remove(expr)
    for above in {id(t): t.definition() for t in expr.tensor_inputs if t is not source}.values():
        if above is not None and not any(t.uses() for t in above.tensor_outputs):
            _drop(fusion, above, source)


def _formula(fusion: Fusion, part: Part) -> TensorView:
    """Return what a part computes, of all elements of its source."""
    value = part.source
    for step in part.steps:
        made = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(value)], step.tensor_outputs[0].dtype())
        fusion.register(PointwiseOp([value if isinstance(v, TensorView) else v for v in step.inputs], [made], **step.attributes))
        value = made
    return value
