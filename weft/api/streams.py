"""Matrix products computed in pieces, as schedules by hand request with `ParallelType.stream`.

nvFuser runs each index of an axis that is bound to `stream` as an op of its own, on streams in turn. Here torch computes a product one piece of the result
after the other, on the stream of the call; all else is scheduled as if the axis were not bound. Read first: `take_streams`.
"""

from __future__ import annotations

from ..errors import Unsupported
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import TorchOp
from ..ir.values import IterDomain, Split, TensorView, no_reductions
from ..schedule.primitives import reset_loops

IN_PIECES = ("matmul", "linear")
"""Ops of torch that compute their result in pieces."""


def take_streams(fusion: Fusion) -> None:
    """Turn axes bound to streams into pieces of products, in place; a fusion without any stays as it is.

    Before: loop axes of some tensors are bound to `stream`, and come from outer splits of logical axes. After: these tensors have their logical axes as loops.
    Errors: Unsupported for a bound axis that is no outer part of a logical axis.
    """
    for tensor in fusion.vals():
        if isinstance(tensor, TensorView) and any(a.parallel is ParallelType.stream for a in tensor.get_loop_domain()):
            _take(tensor)


def _take(tensor: TensorView) -> None:
    (bound,) = [a for a in tensor.get_loop_domain() if a.parallel is ParallelType.stream][:1]
    logical = no_reductions(tensor.get_logical_domain())
    definition = tensor.definition()
    dim, count = _piece_of(tensor, bound, logical)
    if isinstance(definition, TorchOp) and definition.op_name in IN_PIECES:
        definition.attributes["pieces"] = (dim, count)
    reset_loops(tensor)


def _piece_of(tensor: TensorView, bound: IterDomain, logical: list[IterDomain]) -> tuple[int, int | None]:
    """Return the dimension that a bound axis is a part of, and in how many pieces it is computed; None: one for each element."""
    if bound in logical:
        return logical.index(bound), None
    split = bound.definition()
    if not isinstance(split, Split) or split.source() not in logical or bound is not split.outer() or split.inner_split or not split.factor.is_const:
        raise Unsupported(f"{tensor} with {bound} bound to streams", remedy="bind the outer part of an axis: outer_split(axis, count), then parallelize it")
    return logical.index(split.source()), int(split.factor.value)  # type: ignore[arg-type]
