"""Which quotients are a softmax: exp(x - m) over its sum, m the maximum of x along the same axes. Read first: `is_softmax`."""

from __future__ import annotations

from ..ir.values import BroadcastOp, ExpandOp, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorView


def is_softmax(divided: TensorView, divisor: TensorView) -> bool:
    """True if divided / divisor is a softmax: the divisor is then at least 1, and the dividend at most 1, or both are no numbers."""
    exponential = divided.definition()
    difference = exponential.inputs[0].definition() if isinstance(exponential, PointwiseOp) and exponential.op_name == "exp" else None
    if not isinstance(difference, PointwiseOp) or difference.op_name != "sub" or len(difference.tensor_inputs) != 2:
        return False
    total, largest = _reduction_behind(divisor, "sum"), _reduction_behind(difference.tensor_inputs[1], "max")
    if total is None or largest is None or total.tensor_inputs[0] is not divided or largest.tensor_inputs[0] is not difference.inputs[0]:
        return False
    folded = [[axis.is_reduction() for axis in e.tensor_outputs[0].get_logical_domain()] for e in (total, largest)]
    return folded[0] == folded[1]


def _reduction_behind(tensor: TensorView, kind: str) -> ReductionOp | None:
    """Return the reduction of that kind whose result was broadcast to `tensor`."""
    while isinstance(above := tensor.definition(), (BroadcastOp, ExpandOp, SqueezeOp, LoadStoreOp)):
        tensor = above.tensor_inputs[0]
    return above if isinstance(above, ReductionOp) and above.attributes["kind"] == kind else None


__all__ = ["is_softmax"]
