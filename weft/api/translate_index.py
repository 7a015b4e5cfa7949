"""Index ops as Python calls. Read first: `LOOKUPS`."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph_ops import At, BagOp, Fixed, LookupOp
from ..ir.values import BroadcastOp, Expr, IotaOp, PointwiseOp, ReductionOp, TensorView
from ..ops.build import logical_axes
from ..ops.lookups import unwrapped
from .translate_values import Names


def _along_index(expr: LookupOp, names: Names) -> str:
    dim = next(d for d, p in enumerate(expr.positions) if isinstance(p, At))
    return f"{expr.op_name}({names.of(expr.inputs[0])}, {names.of(expr.inputs[1])}, {dim})"


def _select(expr: LookupOp, names: Names) -> str:
    dim, position = next((d, p.position) for d, p in enumerate(expr.positions) if isinstance(p, Fixed))
    index = unwrapped(position, logical_axes(expr.source)[dim].logical_extent)
    return f"select({names.of(expr.inputs[0])}, {names.sym(index)}, {dim})"


def _embedding(expr: LookupOp, names: Names) -> str:
    """The op itself gives the index an axis for the features."""
    wide = expr.inputs[1].definition()
    assert isinstance(wide, BroadcastOp)
    return f"embedding_fwd({names.of(wide.inputs[0])}, {names.of(expr.inputs[0])})"


def _bag(expr: LookupOp, names: Names) -> str:
    """The op itself gives first and end the axes of the rows."""
    ranges = [t.definition().inputs[0] if logical_axes(expr.source)[1:] else t for t in expr.tensor_inputs[1:3]]  # type: ignore[union-attr]
    assert isinstance(expr, BagOp)
    bag = expr.bag
    listed = {"order": bag.order, "weights": bag.weights}
    more = [f"{name}={names.of(expr.inputs[n])}" for name, n in listed.items() if n is not None]
    return f"bag_sum({', '.join([*(names.of(t) for t in (expr.source, *ranges)), *more])})"


def belongs_to_embedding(expr: Expr) -> bool:
    """Tell whether an op only gives indices the axes of the features, which `embedding_fwd` and `bag_sum` do themselves."""
    out = expr.outputs[0]
    if not isinstance(expr, BroadcastOp) or not isinstance(out, TensorView) or out.is_fusion_output:
        return False
    readers = out.uses()
    return bool(readers) and all(isinstance(r, LookupOp) and (r.op_name == "embedding_fwd" and r.inputs[1] is out or r.op_name == "bag_sum") for r in readers)


_EXTREMA = {"max_index": "argmax", "min_index": "argmin"}
"""By the monoids that fold a value with its position: the op that makes such a reduction."""


def place_of_extremum(expr: Expr, names: Names) -> str | None:
    """Return the call of argmax or argmin whose last step is `expr`, which takes the position out of the reduction; None for other ops."""
    field = expr.inputs[0].definition() if isinstance(expr, PointwiseOp) and expr.op_name == "cast" else None
    fold = field.inputs[0].definition() if isinstance(field, PointwiseOp) and field.op_name.endswith("_index.index") else None
    if not isinstance(fold, ReductionOp):
        return None
    (dim,) = (dim for dim, axis in enumerate(fold.tensor_outputs[0].get_maybe_root_domain()) if axis.is_reduction())
    return f"{_EXTREMA[fold.attributes['kind']]}({names.of(fold.inputs[0])}, {dim})"


def belongs_to_extremum(expr: Expr) -> bool:
    """Tell whether an op is a step of argmax or argmin before the last one: positions along the axis, their reduction with the values, a field of that."""
    if isinstance(expr, ReductionOp):
        return expr.attributes["kind"] in _EXTREMA
    if isinstance(expr, PointwiseOp):
        return expr.op_name.partition(".")[0] in _EXTREMA
    if not isinstance(expr, (IotaOp, BroadcastOp)) or any(t.is_fusion_output for t in expr.tensor_outputs):
        return False
    readers = [(reader, out) for out in expr.tensor_outputs for reader in out.uses()]
    return bool(readers) and all(belongs_to_extremum(reader) and reader.inputs[-1] is out for reader, out in readers)


LOOKUPS: dict[str, Callable[[LookupOp, Names], str]] = {
    "gather": _along_index, "take_along_axis": _along_index, "index_select": _along_index, "select": _select, "embedding_fwd": _embedding,
    "bag_sum": _bag,
}  # fmt: skip
