"""Which floats have to have the same bits wherever they are computed: those that are compared with something that is made of them, such as their maximum.

A compiler may contract a product and a sum to one instruction in one kernel and not in another. An element that was the maximum in one kernel would then differ
from it in another. Owns which tensors these are, and which expressions have the same bits in every kernel.
Read first: `compared_with_own`, `has_own_bits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp, ReshapeOp
from ..ir.values import BroadcastOp, ExpandOp, Expr, LoadStoreOp, PointwiseOp, SqueezeOp, TensorView

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
CHOOSING = frozenset({"cast", "neg", "abs", "where", "maximum", "minimum", "relu", "clamp", "iota"}) | COMPARISONS
"""Ops that compute no new number: they choose, round to a type or change a sign."""
SUMS, PRODUCTS = frozenset({"add", "sub", "rounded_mul"}), frozenset({"mul", "div", "truediv", "reciprocal"})
"""Ops that are rounded correctly: each alone, and with others of its kind, has the same bits everywhere. `mul` and a sum become one instruction."""


def compared_with_own(fusion: Fusion) -> Set[TensorView]:
    """Return the float tensors of which elements, but for their signs and types, are compared with something that depends on them. The same set until the
    fusion changes."""
    return fusion.known("compared with own", _compared_with_own)


def _compared_with_own(fusion: Fusion) -> set[TensorView]:
    exprs = fusion.tensor_exprs()
    pairs = [(e.tensor_inputs[0], e.tensor_inputs[1]) for e in exprs if _is_comparison(e)]
    if not pairs:
        return set()
    bit = {tensor: 1 << n for n, tensor in enumerate(fusion.tensors())}
    elements, sources = dict(bit), dict(bit)  # by tensor: what it has the elements of, and what it is computed from
    for expr in exprs:
        for out in expr.tensor_outputs:
            for tensor in expr.tensor_inputs:
                sources[out] |= sources[tensor]
                elements[out] |= elements[tensor] if _keeps_elements(expr) else 0
    found = 0
    for one, other in pairs:
        found |= elements[one] & sources[other] | elements[other] & sources[one]
    return {tensor for tensor, place in bit.items() if found & place and tensor.dtype().is_float}


def _is_comparison(expr: Expr) -> bool:
    is_one = isinstance(expr, PointwiseOp) and expr.op_name in COMPARISONS and expr.attributes["compute"].is_float
    return is_one and len(expr.tensor_inputs) == 2


def has_own_bits(exprs: Iterable[Expr]) -> bool:
    """Tell whether expressions may have other bits in another kernel."""
    names = {e.op_name for e in exprs if isinstance(e, PointwiseOp) and e.attributes["compute"].is_float} - CHOOSING
    return not (names <= SUMS or names <= PRODUCTS)


def _keeps_elements(expr: Expr) -> bool:
    if isinstance(expr, PointwiseOp):
        return expr.op_name in ("cast", "neg", "abs")
    return isinstance(expr, (BroadcastOp, ExpandOp, SqueezeOp, LoadStoreOp, LookupOp, ReshapeOp))


__all__ = ["compared_with_own", "has_own_bits"]
