"""Scans that carry more than one value along, as scans of a state and ops that read its fields.

A definition says what is wanted (running maxima and their positions, logarithms of running sums, linear recurrences), a kernel how it is carried.
Read first: `translate_scans`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..dtypes import DataType, StateType
from ..expr import ONE, ZERO
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp
from ..ir.values import IotaOp, PointwiseOp, TensorView, Val
from ..ops.build import broadcast, cast, logical_axes
from ..ops.monoids import StateMonoid
from ..ops.running import LINEAR_RECURRENCE, RUNNING_LOGSUMEXP, RUNNING_POSITIONS
from ..ops.states import same
from .caching import require_not_inlined


def translate_scans(fusion: Fusion) -> None:
    """Replace every scan that needs one by a scan of a state; its results stay the same tensors. Call it before transforming axes.

    Before: values, positions = cummax(x).   After: state = scan(x, iota); values, positions = its fields. If nobody reads the positions: values = scan(x).
    Before: y = logcumsumexp(x).   After: state = scan(x); y = the logarithm of its scaled sum.
    Before: y = linear_recurrence(gate, x).   After: state = scan(gate, x); y = its value.
    """
    for expr in fusion.tensor_exprs():
        if isinstance(expr, ScanOp) and expr.attributes.get("positions"):
            _translate_extrema(fusion, expr)
        elif isinstance(expr, ScanOp) and expr.attributes["kind"] == "logsumexp":
            _translate_logs(fusion, expr)
        elif isinstance(expr, ScanOp) and expr.attributes["kind"] == LINEAR_RECURRENCE.kind and not isinstance(expr.tensor_outputs[0].dtype(), StateType):
            _translate_recurrence(fusion, expr)


def _translate_extrema(fusion: Fusion, expr: ScanOp) -> None:
    (x,), (values, positions) = expr.elements, expr.tensor_outputs
    for tensor in (values, positions):
        require_not_inlined(tensor, "translate the scan of")
    kind, dim = expr.attributes["kind"], expr.attributes["dim"]
    fusion.remove(expr)
    if not positions.uses() and not positions.is_fusion_output:
        fusion.register(ScanOp([x], [values], op=expr.op_name, dim=dim, kind=kind))
        return
    fields = {name: t for name, t in (("value", values), ("index", positions)) if t.uses() or t.is_fusion_output}
    _scan_state(fusion, RUNNING_POSITIONS[kind], [cast(fusion, x, _wide_type(x.dtype())), _places(fusion, x, dim)], dim, fields)


def _translate_logs(fusion: Fusion, expr: ScanOp) -> None:
    (x,), (result,) = expr.elements, expr.tensor_outputs
    wide = _wide_type(x.dtype())
    require_not_inlined(result, "translate the scan of")
    fusion.remove(expr)
    start = [] if expr.start is None else [cast(fusion, expr.start, wide)]
    is_reversed = bool(expr.attributes.get("reverse"))
    _scan_state(fusion, RUNNING_LOGSUMEXP, [cast(fusion, x, wide)], expr.attributes["dim"], {"log": result}, start, is_reversed)


def _translate_recurrence(fusion: Fusion, expr: ScanOp) -> None:
    (result,) = expr.tensor_outputs
    require_not_inlined(result, "translate the scan of")
    fusion.remove(expr)
    operands = [cast(fusion, x, _wide_type(result.dtype())) for x in expr.elements]
    _scan_state(fusion, LINEAR_RECURRENCE, operands, expr.attributes["dim"], {"value": result}, (), bool(expr.attributes.get("reverse")))


def _wide_type(dtype: DataType) -> DataType:
    """Return the type of a value in a state: registers have at least 32 bits."""
    if dtype.is_reduced_float:
        return DataType.Float
    return DataType.Int32 if dtype.bits < DataType.Int32.bits else dtype


def _scan_state(
    fusion: Fusion, monoid: StateMonoid, operands: Sequence[Val], dim: int, fields: Mapping[str, TensorView], start: Sequence[Val] = (),
    is_reversed: bool = False,
) -> None:  # fmt: skip
    """Define the tensors of `fields` (name of a field -> its tensor) by a scan of the operands with a monoid of several fields; a cast follows where a field is
    of another type than its tensor.

    operands: tensors of one shape, what a state is lifted from. start: what the state before the first element is lifted from, none for the identity.
    Before: the tensors have no definition.   After: state = scan(operands), and each is `KIND.FIELD` of it, cast to its type.
    """
    first = operands[0]
    assert isinstance(first, TensorView)
    kind = monoid.state(first.dtype())
    state = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(first)], kind)
    fusion.register(ScanOp([*operands, *start], [state], op=monoid.kind, dim=dim, kind=monoid.kind, reverse=is_reversed))
    for name, out in fields.items():
        own = monoid.fields.get(name, same)(first.dtype())
        value = out if own is out.dtype() else fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(out)], own)
        fusion.register(PointwiseOp([state], [value], op=f"{monoid.kind}.{name}", compute=kind))
        if value is not out:
            fusion.register(PointwiseOp([value], [out], op="cast", compute=own, dtype=out.dtype()))


def _places(fusion: Fusion, x: TensorView, dim: int) -> TensorView:
    """Return the positions along an axis of x, with broadcast axes for the others."""
    extent = logical_axes(x)[dim].sym
    row = fusion.new_tensor([fusion.new_axis(extent)], DataType.Int32)
    numbers = [fusion.new_scalar(sym, DataType.Int) for sym in (extent, ZERO, ONE)]
    fusion.register(IotaOp(numbers, [row], op="iota"))
    return broadcast(fusion, row, [d != dim for d in range(x.ndim)])


__all__ = ["translate_scans"]
