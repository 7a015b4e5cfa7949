"""Index ops as Python calls. Read first: `LOOKUPS`."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph_ops import At, Fixed, LookupOp
from ..ir.values import BroadcastOp
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


LOOKUPS: dict[str, Callable[[LookupOp, Names], str]] = {
    "gather": _along_index, "take_along_axis": _along_index, "index_select": _along_index, "select": _select, "embedding_fwd": _embedding,
}  # fmt: skip
