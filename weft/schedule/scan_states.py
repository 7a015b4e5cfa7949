"""Scans that need more than one value per element, as scans of a state and ops that read its fields.

A definition says what is wanted (running maxima and their positions), a kernel how it is carried along. Read first: `translate_scans`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import ONE, ZERO
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp
from ..ir.values import IotaOp, PointwiseOp, TensorView, Val
from ..ops.build import broadcast, cast, logical_axes
from ..ops.monoids import StateMonoid
from ..ops.running import RUNNING_LOGSUMEXP, RUNNING_POSITIONS
from ..ops.states import same
from .caching import require_not_inlined


def translate_scans(fusion: Fusion) -> None:
    """Replace every scan that gives positions by one of a state; its results stay the same tensors. Call it before transforming axes.

    Before: values, positions = cummax(x).   After: state = scan(x, iota); values, positions = its fields. Without positions: values = scan(x).
    """
    for expr in fusion.tensor_exprs():
        if isinstance(expr, ScanOp) and expr.attributes.get("positions"):
            _translate(fusion, expr)
        elif isinstance(expr, ScanOp) and expr.attributes["kind"] == "logsumexp":
            _translate_logs(fusion, expr)


def _translate(fusion: Fusion, expr: ScanOp) -> None:
    x, (values, positions) = expr.elements[0], expr.tensor_outputs
    for tensor in (values, positions):
        require_not_inlined(tensor, "translate the scan of")
    kind, dim = expr.attributes["kind"], expr.attributes["dim"]
    fusion.remove(expr)
    if not positions.uses() and not positions.is_fusion_output:
        fusion.register(ScanOp([x], [values], op=expr.op_name, dim=dim, kind=kind))
        return
    wide = wide_type(x.dtype())
    places = _places(fusion, x, dim)
    operands = [cast(fusion, x, wide), places]
    fields = dict(zip(("value", "index"), (values, positions)))
    scan_state(fusion, RUNNING_POSITIONS[kind], operands, dim, {n: t for n, t in fields.items() if t.uses() or t.is_fusion_output})  # type: ignore[arg-type]


def _translate_logs(fusion: Fusion, expr: ScanOp) -> None:
    x, (result,), wide = expr.elements[0], expr.tensor_outputs, wide_type(expr.elements[0].dtype())
    require_not_inlined(result, "translate the scan of")
    fusion.remove(expr)
    start = [] if expr.start is None else [cast(fusion, expr.start, wide)]
    scan_state(fusion, RUNNING_LOGSUMEXP, [cast(fusion, x, wide)], expr.attributes["dim"], {"log": result}, start)  # type: ignore[list-item]


def wide_type(dtype: DataType) -> DataType:
    """Return the type of a value in a state: registers have at least 32 bits."""
    if dtype.is_reduced_float:
        return DataType.Float
    return DataType.Int32 if dtype.bits < DataType.Int32.bits else dtype


def scan_state(fusion: Fusion, monoid: StateMonoid, operands: list[TensorView], dim: int, fields: dict[str, TensorView], start: list[Val] = []) -> None:
    """Make `fields` (name -> tensor without a definition) those of a scan of the operands with a monoid of several fields; a field may be of a narrower type than
    its tensor."""
    kind = monoid.state(operands[0].dtype())
    state = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(operands[0])], kind)
    fusion.register(ScanOp([*operands, *start], [state], op=monoid.kind, dim=dim, kind=monoid.kind))
    for name, out in fields.items():
        own = monoid.fields.get(name, same)(operands[0].dtype())
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
    return broadcast(fusion, row, tuple(d != dim for d in range(len(logical_axes(x)))))  # type: ignore[return-value]


__all__ = ["scan_state", "translate_scans", "wide_type"]
