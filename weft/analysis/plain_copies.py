"""What a value is a plain copy of: the same elements, axis by axis. Frontends write such copies where torch has a view that changes nothing."""

from __future__ import annotations

from ..ir.values import LoadStoreOp, Val


def copied_value(value: Val) -> Val:
    """Return the first value of the chain of copies that ends in `value`; itself if it is not a copy. A copy that ends a segment is none of these."""
    above = value.definition()
    while isinstance(above, LoadStoreOp) and above.op_name == "set" and not above.tensor_outputs[0].has_root():
        value = above.inputs[0]
        above = value.definition()
    return value


__all__ = ["copied_value"]
