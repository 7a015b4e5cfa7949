"""Which values of a fusion are seen in more than 16 bits.

A value that reaches outputs only through casts to 16-bit floats is rounded there to 11 bits or fewer, so that formulas with a relative error of 1e-5 serve
(`OpDef.text["narrow"]`), unless a steep op is in between (`OpDef.is_steep`). Floats of 8 and 4 bits do not count: a code is a threshold, and quantizers promise
the code that exact divisions give. Read first: `wide_tensors`.
"""

from __future__ import annotations

from collections.abc import Set

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, Expr, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorView
from ..ops.registry import OPS

NARROW_BITS = 16


def is_narrow_float(tensor: TensorView) -> bool:
    dtype = tensor.dtype()
    return dtype.is_float and dtype.bits == NARROW_BITS


def is_steep(expr: Expr) -> bool:
    return isinstance(expr, PointwiseOp) and expr.op_name in OPS and OPS[expr.op_name].is_steep


def wide_tensors(fusion: Fusion) -> Set[TensorView]:
    """Return the tensors that influence an output of more than 16 bits, a non-float value, or a discontinuous or steep op: their last bits may matter. The same
    set until the fusion changes."""
    return fusion.known("wide tensors", _wide_tensors)


def _wide_tensors(fusion: Fusion) -> set[TensorView]:
    wide: set[TensorView] = {v for v in fusion.tensor_outputs() if not is_narrow_float(v)}
    shares = shares_of_sums(fusion)
    for expr in reversed(fusion.exprs()):
        if expr.outputs[0] in wide and isinstance(expr, ReductionOp) and expr.tensor_inputs[0] in shares:
            continue
        outputs = [v for v in expr.outputs if isinstance(v, TensorView)]
        if is_steep(expr) or any(not is_narrow_float(v) and (v in wide or not v.dtype().is_float) for v in outputs):
            wide.update(expr.tensor_inputs)
    return wide


def compared_tensors(fusion: Fusion) -> Set[TensorView]:
    """Return the tensors that influence a comparison of two tensors, or positions of elements: where one of the two is rounded, the other must be, too. The
    same set until the fusion changes."""
    return fusion.known("compared tensors", _compared_tensors)


def _compared_tensors(fusion: Fusion) -> set[TensorView]:
    compared: set[TensorView] = set()
    for expr in reversed(fusion.tensor_exprs()):
        floats = [t for t in expr.tensor_inputs if t.dtype().is_float]
        is_choice = not isinstance(expr, PointwiseOp) or len(floats) > 1
        if any(t in compared or is_choice and not t.dtype().is_float for t in expr.tensor_outputs):
            compared.update(floats)
    return compared


def is_stored_narrow(fusion: Fusion, tensor: TensorView) -> bool:
    """True for a computed tensor that the user holds in a narrower type, and that may be rounded to it for some of its readers."""
    is_held = tensor.name in fusion.held and tensor.dtype() is DataType.Float and tensor.definition() is not None
    return is_held and tensor not in compared_tensors(fusion)


def shares_of_sums(fusion: Fusion) -> set[TensorView]:
    """Return the exponentials exp(x - max) that only sums read.

    The approximate exponential of t <= 0 has a relative error of |t| * 2^-24, from rounding its argument, so an error of at most 2^-24 of the largest term,
    which is 1: less than the rounding of the sum.
    """
    readers: dict[TensorView, list[Expr]] = {}
    exprs = fusion.tensor_exprs()
    for expr in exprs:
        for tensor in expr.tensor_inputs:
            readers.setdefault(tensor, []).append(expr)
    out: set[TensorView] = set()
    for expr in exprs:
        if isinstance(expr, PointwiseOp) and expr.op_name == "exp" and _is_below_a_maximum(expr.inputs[0].definition()):
            uses = readers.get(expr.outputs[0], [])  # type: ignore[call-overload]
            if uses and expr.outputs[0] not in fusion.outputs() and all(isinstance(u, ReductionOp) and u.attributes["kind"] == "sum" for u in uses):
                out.add(expr.outputs[0])  # type: ignore[arg-type]
    return out


def _is_below_a_maximum(expr: Expr | None) -> bool:
    """True for a difference whose subtrahend is a maximum."""
    if not isinstance(expr, PointwiseOp) or expr.op_name != "sub":
        return False
    tensor = expr.inputs[1]
    while isinstance(above := tensor.definition(), (BroadcastOp, ExpandOp, SqueezeOp, LoadStoreOp)):
        tensor = above.inputs[0]
    return isinstance(above, ReductionOp) and above.attributes["kind"] == "max"


__all__ = ["compared_tensors", "is_stored_narrow", "shares_of_sums", "wide_tensors"]
