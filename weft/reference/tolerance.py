"""How far an output may lie from the float64 reference.

Owns `get_val_tolerances`. The bound is derived from the graph: the rounding of the result's type, of each narrower type on the way, the ulps of the ops on
the longest path, and the growth of rounding errors in reductions. Read first: `get_val_tolerances`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import expr
from ..dtypes import RECORDS, DataType
from ..expr import Number, Sym
from ..ir.block_ops import BlockFoldOp, BlockHadamardOp, GroupFoldOp
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp, ScatterOp, TorchOp
from ..ir.values import Expr, IotaOp, PointwiseOp, RandomOp, ReductionOp, TensorView, Val, WelfordOp, no_reductions
from ..ops.monoids import MONOIDS
from ..ops.registry import lookup
from .interpreter import input_environment

UNIT_ROUNDOFF: dict[DataType, float] = {dtype: record.unit_roundoff for dtype, record in RECORDS.items() if record.unit_roundoff}
SAFETY = 8  # values may grow on the way (exp, products), which the path's ulps do not show


@dataclass(frozen=True)
class _Error:
    """Bound of the error of a value.

    relative: of arithmetic, relative to the value. summed: relative to the size of what was summed (cancellation). casts: of casts to narrower types.
    """

    relative: float = 0.0
    summed: float = 0.0
    casts: float = 0.0


def get_val_tolerances(fusion: Fusion, args: Sequence[Any]) -> list[tuple[float, float]]:
    """Return (atol, rtol) per output of `fusion`, hidden ones included, for a comparison with the reference in float64.

    Integer and Bool outputs that depend on no float are exact: (0, 0).
    """
    env = input_environment(fusion, args)
    errors: dict[Val, _Error] = {}
    for node in fusion.tensor_exprs():
        error = _error(node, errors, env)
        for out in node.outputs:
            errors[out] = error
    return [_tolerance(v, errors.get(v, _Error())) for v in fusion.outputs()]


def _tolerance(value: Val, error: _Error) -> tuple[float, float]:
    roundoff = UNIT_ROUNDOFF.get(value.dtype(), 0.0)  # type: ignore[attr-defined]
    rtol = SAFETY * error.relative + 2 * error.casts
    atol = rtol + SAFETY * error.summed
    return (atol, rtol) if roundoff else (0.0, 0.0)


def _error(node: Expr, errors: dict[Val, _Error], env: dict[Sym, Number]) -> _Error:
    inputs = [errors.get(v, _Error()) for v in node.inputs if isinstance(v, TensorView)]
    relative = max((e.relative for e in inputs), default=0.0)
    summed = max((e.summed for e in inputs), default=0.0)
    casts = max((e.casts for e in inputs), default=0.0)
    out = node.outputs[0]
    roundoff = UNIT_ROUNDOFF.get(out.dtype(), 0.0)  # type: ignore[attr-defined]
    if node.op_name == "cast":
        if roundoff > UNIT_ROUNDOFF.get(node.attributes["compute"], 0.0):
            casts += roundoff
    elif isinstance(node, BlockHadamardOp):
        summed = (summed + casts + roundoff) * math.sqrt(node.block)
    elif isinstance(node, GroupFoldOp) and MONOIDS[node.kind].has_rounding:
        relative, summed, casts = _summed(node.block, roundoff, relative, summed, casts)
    elif isinstance(node, BlockFoldOp):
        pass  # a maximum is one of its operands
    elif isinstance(node, PointwiseOp):
        # An op of u ulps adds u * 2 roundoffs, one that is exact adds one for its own rounding.
        ulp = lookup(node.attributes["op"]).ulp
        relative += roundoff * max(1, 2 * ulp)
    elif isinstance(node, WelfordOp) or isinstance(node, ReductionOp) and MONOIDS[node.attributes["kind"]].has_rounding:
        count = _reduced_count(out, env)
        # A tree of depth log2(n), and serial partial sums of a thread, whose errors add up as a random walk: sqrt(n) roundoffs of the partial sum's size.
        relative += roundoff * (2 + math.log2(max(count, 2)))
        summed = (summed + casts + roundoff) * math.sqrt(count)
    elif isinstance(node, ScanOp) and MONOIDS[node.attributes["kind"]].has_rounding:
        relative, summed, casts = _summed(_extent(out, node.attributes["dim"], env), roundoff, relative, summed, casts)  # type: ignore[arg-type]
    elif isinstance(node, ScatterOp):
        relative += roundoff * (node.attributes["kind"] != "set")
    elif isinstance(node, TorchOp) and roundoff:
        # Products are summed over the last axis of the first operand (matmul, linear, attention); what is sorted or selected has its operand's error.
        # A product over one element is rounded, too.
        if len(node.tensor_inputs) > 1:
            count = max(1.0, _extent(node.tensor_inputs[0], -1, env))
            relative, summed, casts = _summed(count, roundoff, relative, summed, casts)
    elif isinstance(node, (IotaOp, RandomOp)):
        relative = 16 * roundoff  # Box and Muller: the radius below 7 times the sine's absolute error of one roundoff of 2 pi
    return _Error(relative, summed, casts)


def _reduced_count(value: Val, env: dict[Sym, Number]) -> float:
    assert isinstance(value, TensorView)
    count = 1.0
    for axis in value.get_logical_domain():
        if axis.is_reduction():
            count *= float(expr.evaluate(axis.sym, env))  # type: ignore[arg-type]
    return count


def _summed(count: float, roundoff: float, relative: float, summed: float, casts: float) -> tuple[float, float, float]:
    """Return the errors of a sum of `count` terms that is carried on in Float where its type is narrower, and rounded once at the end."""
    carried = min(roundoff, UNIT_ROUNDOFF[DataType.Float])
    narrowed = roundoff if roundoff > carried else 0.0
    return relative + carried * (2 + math.log2(max(count, 2))), (summed + casts + carried) * math.sqrt(count), casts + narrowed


def _extent(value: TensorView, dim: int, env: dict[Sym, Number]) -> float:
    axes = no_reductions(value.get_logical_domain())
    return float(expr.evaluate(axes[dim].logical_extent, env)) if axes else 1.0  # type: ignore[arg-type]


__all__ = ["UNIT_ROUNDOFF", "get_val_tolerances"]
