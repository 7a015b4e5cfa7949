"""What a value is a plain copy of: the same elements, axis by axis. Frontends write such copies where torch has a view that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.values import Expr, LoadStoreOp, TensorView, Val


def copied_value(value: Val) -> Val:
    """Return the first value of the chain of copies that ends in `value`; itself if it is not a copy. A copy that ends a segment is none of these."""
    while is_plain_copy(above := value.definition()):
        value = above.inputs[0]  # type: ignore[union-attr]
    return value


def ends_segment(expr: Expr | None) -> bool:
    """Tell whether an expression is a copy that the user asked to be in memory: `segment_set`."""
    return isinstance(expr, LoadStoreOp) and expr.op_name == "segment_set"


def is_copy(expr: Expr | None) -> bool:
    """Tell whether an expression copies a tensor, axes in any order, and ends no segment."""
    return type(expr) is LoadStoreOp and not ends_segment(expr)  # its subclasses take one element per block


def is_plain_copy(expr: Expr | None) -> bool:
    """Tell whether an expression copies a tensor axis by axis, and ends no segment."""
    return is_copy(expr) and not expr.tensor_outputs[0].has_root()  # type: ignore[union-attr]


def only_reader(tensor: TensorView, reader: Expr) -> bool:
    """Tell whether nothing but `reader` needs a tensor: it is no output, and other expressions that read it, such as the copy that a reshape leaves behind, are
    read by nothing."""
    if tensor.is_fusion_output:
        return False
    needed = (use for use in tensor.uses() if any(isinstance(out, TensorView) and (out.is_fusion_output or out.uses()) for out in use.outputs))
    return next(needed, None) is reader and next(needed, None) is None


def sole_producers(value: Val, reader: Expr) -> Iterator[Expr]:
    """Yield the expression that computes a value, then the one that computes its first tensor operand, and so on, while nothing but the next one needs what
    lies between; the first value is for `reader`."""
    while isinstance(value, TensorView) and only_reader(value, reader) and (above := value.definition()) is not None:
        yield above
        if not above.tensor_inputs:
            return
        reader, value = above, above.tensor_inputs[0]


__all__ = ["copied_value", "ends_segment", "is_copy", "is_plain_copy", "only_reader", "sole_producers"]
