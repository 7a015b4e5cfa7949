"""Scans between two reversals of their axis: flip(cumsum(flip(x))), as in gradients of running sums, as one scan that begins at the last element.

A reversal is a lookup, and that of a scan's result would have to read it from memory. Owns finding them. Read first: `find_reversed_scans`.
"""

from __future__ import annotations

from ..analysis.plain_copies import is_copy
from ..expr import ONE, add
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, BagOp, LookupOp, ScanOp
from ..ir.values import BroadcastOp, Expr, IotaOp, LoadStoreOp, PointwiseOp, Scalar, TensorView
from ..ops.build import logical_axes


def find_reversed_scans(fusion: Fusion) -> None:
    """Let a scan begin at the last element instead of reversing what it reads and what it gives, in place. Casts and other ops of one tensor may be between.

    Before: y = flip(scan(flip(x))).   After: y = scan(x), with the attribute `reverse`. A scan between four reversals, such as the gradient of a reversed one,
    is one from the first element on again.
    Positions count from the reversed end, so a scan that gives them stays.
    """
    for expr in fusion.tensor_exprs():
        while isinstance(expr, ScanOp) and not expr.attributes.get("positions"):
            above, below = _flips_above(expr), _flip_below(expr)
            if above is None or below is None:
                break
            last, flip = below
            for reader, flipped in above:
                fusion.replace_input(reader, flipped, flipped.definition().source)  # type: ignore[union-attr]
            fusion.remove(flip)
            fusion.register(LoadStoreOp([last], [flip.tensor_outputs[0]]))
            expr.attributes["reverse"] = not expr.attributes.get("reverse", False)


def _flips_above(scan: ScanOp) -> list[tuple[Expr, TensorView]] | None:
    """Return the reversed tensors that a scan is computed from, and the expressions that read them."""
    found = [_flip_above(scan, element) for element in dict.fromkeys(scan.elements)]
    return None if None in found else found  # type: ignore[return-value]


def _flip_above(scan: ScanOp, value: TensorView) -> tuple[Expr, TensorView] | None:
    """Return the reversed tensor that an operand of a scan is computed from, and the expression that reads it."""
    reader: Expr = scan
    while True:
        made = value.definition()
        if _is_flip(made, scan.attributes["dim"]):
            return reader, value
        if made is None or not _is_between(made) or value.is_fusion_output or len(value.uses()) > 1:
            return None
        reader, value = made, made.tensor_inputs[0]


def _flip_below(scan: ScanOp) -> tuple[TensorView, LookupOp] | None:
    """Return the only reversal of a scan's result, and the tensor that it reverses."""
    value: TensorView = scan.tensor_outputs[0]
    while not value.is_fusion_output and len(uses := value.uses()) == 1:
        if isinstance(uses[0], LookupOp) and uses[0].source is value and _is_flip(uses[0], scan.attributes["dim"]):
            return value, uses[0]
        if not _is_between(uses[0]):
            return None
        value = uses[0].tensor_outputs[0]
    return None


def _is_between(expr: Expr) -> bool:
    """True for an op on each element of one tensor."""
    return isinstance(expr, (PointwiseOp, LoadStoreOp)) and len(expr.tensor_inputs) == 1 and not expr.tensor_outputs[0].has_root()


def _is_flip(expr: Expr | None, dim: int) -> bool:
    """True for a lookup of all elements along `dim`, from the last one to the first, and of others at their own positions."""
    if not isinstance(expr, LookupOp) or isinstance(expr, BagOp) or expr.is_masked:
        return False
    source, out = logical_axes(expr.source), logical_axes(expr.tensor_outputs[0])
    if len(source) != len(out) or any(p != Along(d) for d, p in enumerate(expr.positions) if d != dim):
        return False
    place = expr.positions[dim]
    made = _counted(expr.inputs[place.operand]) if isinstance(place, At) else None
    if not isinstance(made, IotaOp) or source[dim].logical_extent is not out[dim].logical_extent:
        return False
    first, step = made.inputs[1:]
    assert isinstance(first, Scalar) and isinstance(step, Scalar)
    return add(first.sym, ONE) is source[dim].logical_extent and step.sym.is_const and step.sym.value == -1


def _counted(value: object) -> Expr | None:
    """Return what computes positions, before broadcasts, copies and casts of integers."""
    while isinstance(value, TensorView):
        expr = value.definition()
        is_cast = isinstance(expr, PointwiseOp) and expr.op_name == "cast" and expr.tensor_inputs[0].dtype().is_integer
        if not isinstance(expr, BroadcastOp) and not (expr is not None and is_copy(expr)) and not is_cast:
            return expr
        value = expr.inputs[0]  # type: ignore[union-attr]
    return None


__all__ = ["find_reversed_scans"]
