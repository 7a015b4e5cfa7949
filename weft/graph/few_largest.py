"""topk of a few values as a fold: each row keeps its k best with their positions, and two small kernels put values and positions side by side.

Owns that rewriting; other topks stay with torch. Read first: `fold_few_largest`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.graph_ops import TorchOp
from ..ir.values import Expr, FullOp, LoadStoreOp, PointwiseOp, TensorView
from ..ops.build import broadcast, cast, constant, logical_axes, pointwise
from ..ops.factories import iota
from ..ops.largest import MOST, TYPES, few
from ..ops.reductions import fold_state
from .questions import Questions

def has_few_largest(fusion: Fusion) -> bool:
    """True if a definition has a topk that a reduction can compute."""
    return any(map(_is_few, fusion.tensor_exprs()))


def _is_few(expr: Expr) -> bool:
    if not isinstance(expr, TorchOp) or expr.op_name != "topk":
        return False
    source, k = expr.tensor_inputs[0], expr.attributes["k"]
    is_repeated = source.ndim and logical_axes(source)[expr.attributes["dim"]].expanded_extent is not None
    return bool(source.ndim and not is_repeated and source.dtype() in TYPES and k.is_const and 1 <= k.value <= MOST)


def fold_few_largest(fusion: Fusion, questions: Questions) -> None:
    """Replace every topk of 1 to MOST values by a reduction, in place, unless its axis has fewer elements: then torch raises the error."""
    for expr in fusion.tensor_exprs():
        if _is_few(expr):
            extent = logical_axes(expr.tensor_inputs[0])[expr.attributes["dim"]].logical_extent
            if not questions.is_less(extent, expr.attributes["k"]):
                _fold(fusion, expr)


def _fold(fusion: Fusion, expr: Expr) -> None:
    source, (values, indices) = expr.tensor_inputs[0], expr.tensor_outputs
    dim, count = int(expr.attributes["dim"]), int(expr.attributes["k"].value)
    fusion.remove(expr)
    axis = logical_axes(source)[dim]
    if axis.is_broadcast():  # one element
        fusion.register(LoadStoreOp([source], [values]))
        fusion.register(FullOp([constant(fusion, 0, DataType.Int)], [indices], op="full"))
        return
    wide: TensorView = cast(fusion, source, DataType.Float) if source.dtype().is_reduced_float else source  # type: ignore[assignment]
    length = fusion.new_scalar(axis.logical_extent, DataType.Int)
    places = broadcast(fusion, iota(fusion, length, None, None, DataType.Int32), [d != dim for d in range(source.ndim)])
    monoid = few(count, bool(expr.attributes["largest"]))
    names = [f"{field}{n}" for field in ("value", "index") for n in range(count)]
    found = fold_state(fusion, monoid, [wide, places], [dim], names)
    where = [d == dim for d in range(source.ndim)]
    parts = [broadcast(fusion, cast(fusion, t, out.dtype()), where) for t, out in zip(found, [values] * count + [indices] * count)]  # type: ignore[arg-type]
    _side_by_side(fusion, parts[:count], values, dim)
    _side_by_side(fusion, parts[count:], indices, dim)


def _side_by_side(fusion: Fusion, parts: list[TensorView], out: TensorView, dim: int) -> None:
    """Make `out` the concatenation of the parts along `dim`."""
    if len(parts) == 1:
        fusion.register(LoadStoreOp(parts, [out]))
        return
    count = constant(fusion, len(parts), DataType.Int)
    place = broadcast(fusion, iota(fusion, count, None, None, DataType.Int32), [d != dim for d in range(out.ndim)])
    value = parts[-1]
    for n in reversed(range(len(parts) - 1)):
        result = out if n == 0 else fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(out)], out.dtype())
        fusion.register(PointwiseOp([pointwise(fusion, "lt", place, n + 1), parts[n], value], [result], op="where", compute=out.dtype()))
        value = result
