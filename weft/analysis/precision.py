"""Which values of a fusion are seen in more than 16 bits.

A value that reaches outputs only through casts to 16-bit floats is rounded there to 11 bits or fewer, so that formulas with a relative error of 1e-5 serve
(`OpDef.text["narrow"]`), unless a steep op is in between (`OpDef.is_steep`). Floats of 8 and 4 bits do not count: a code is a threshold, and quantizers promise
the code that exact divisions give. Read first: `wide_tensors`.
"""

from __future__ import annotations

from ..ir.fusion import Fusion
from ..ir.values import Expr, PointwiseOp, TensorView
from ..ops.registry import OPS

NARROW_BITS = 16


def is_narrow_float(tensor: TensorView) -> bool:
    dtype = tensor.dtype()
    return dtype.is_float and dtype.bits == NARROW_BITS


def is_steep(expr: Expr) -> bool:
    return isinstance(expr, PointwiseOp) and expr.op_name in OPS and OPS[expr.op_name].is_steep


def wide_tensors(fusion: Fusion) -> set[TensorView]:
    """Return the tensors that reach an output of more than 16 bits, something that is no float, or a steep op: these may turn on the last bit."""
    wide: set[TensorView] = {v for v in fusion.outputs() if isinstance(v, TensorView) and not is_narrow_float(v)}
    for expr in reversed(fusion.exprs()):
        outputs = [v for v in expr.outputs if isinstance(v, TensorView)]
        if is_steep(expr) or any(not is_narrow_float(v) and (v in wide or not v.dtype().is_float) for v in outputs):
            wide.update(expr.tensor_inputs)
    return wide


__all__ = ["wide_tensors"]
