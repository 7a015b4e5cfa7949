"""Sums that are added to each other: sum(a) - sum(b) over the same axes becomes sum(a - b).

So the gradient of a parameter that is used twice is written. One sum needs one accumulator and one exchange, and blocks can share it, while each of two sums
that meet would be complete in another block. Read first: `join_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.axes import AxisMaps, axis_maps
from ..analysis.plain_copies import is_plain_copy, sole_producers
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import ELEMENTWISE, BroadcastOp, Expr, LoadStoreOp, PointwiseOp, ReductionOp, SqueezeOp, TensorView, Val
from ..ops.build import logical_axes, pointwise
from .factored_sums import WIDE

MOST_EXPRS = 64
"""Expressions above a sum that are looked at, so that the work is linear in the size of a definition."""


@dataclass(frozen=True)
class Term:
    """A sum that is added (sign 1) or subtracted (-1). made: the expressions from the sum to where it is added, which have no other readers."""

    sign: int
    sum: ReductionOp
    made: tuple[Expr, ...]

    @property
    def summed(self) -> TensorView:
        return self.sum.tensor_inputs[0]


def join_sums(fusion: Fusion) -> None:
    """Merge sums whose results are added or subtracted, in place, if they read a tensor in common and neither waits for a reduction: others, such as the
    gradients of a parameter that two layers share, may be parts of two kernels.

    Before: no axis is open. After: results keep their names; terms are added before they are summed.
    """
    maps: AxisMaps | None = None  # of the fusion as it was; sums that are made later have the axes of earlier ones
    for expr in fusion.tensor_exprs():
        if not isinstance(expr, PointwiseOp) or expr.op_name not in ("add", "sub") or expr.attributes["compute"] not in WIDE:
            continue
        found = [_term(v, expr, -1 if n and expr.op_name == "sub" else 1) for n, v in enumerate(expr.inputs)]
        if len(found) == 2 and found[0] is not None and found[1] is not None:
            maps = maps or axis_maps(fusion)
            if _are_alike(found[0], found[1], maps):
                _join(fusion, expr, found[0], found[1])


def _term(value: Val, reader: Expr, sign: int) -> Term | None:
    """Return the sum that a value is, or is the negative of, if nobody else reads it."""
    made: list[Expr] = []
    for above in sole_producers(value, reader):
        if isinstance(above, ReductionOp):
            result = above.tensor_outputs[0]
            is_plain = above.attributes["kind"] == "sum" and len(above.inputs) == 1 and not result.has_root() and result.dtype() in WIDE
            return Term(sign, above, tuple(reversed(made))) if is_plain else None
        is_negated = isinstance(above, PointwiseOp) and above.op_name == "neg"
        if not (is_negated or is_plain_copy(above) or isinstance(above, (BroadcastOp, SqueezeOp))):
            return None
        made.append(above)
        sign = -sign if is_negated else sign
    return None


def _are_alike(a: Term, b: Term, maps: AxisMaps) -> bool:
    """Tell whether two terms are sums over the same axes of tensors of one shape, whose axes are added and dropped alike afterwards."""
    if a.sum is b.sum or a.summed.dtype() is not b.summed.dtype() or _shapes(a) != _shapes(b):
        return False
    pairs = zip(a.sum.tensor_outputs[0].get_logical_domain(), b.sum.tensor_outputs[0].get_logical_domain())
    is_same = all(one.is_reduction() is other.is_reduction() and maps.exact(one) is maps.exact(other) for one, other in pairs)
    own = [*logical_axes(a.summed), *logical_axes(b.summed)]
    return is_same and not any(axis.is_broadcast() for axis in own) and not _read(a.summed).isdisjoint(_read(b.summed))


def _read(tensor: TensorView) -> set[TensorView]:
    """Return the tensors in memory, without broadcast axes, that a tensor is computed from by pointwise ops and views; nothing if other ops are above it."""
    found: set[TensorView] = set()
    seen, pending = {tensor}, [tensor]
    while pending:
        value = pending.pop()
        above = value.definition()
        if above is None or isinstance(above, LookupOp):
            found.update([value] if len(logical_axes(value)) and not any(axis.is_broadcast() for axis in logical_axes(value)) else [])
            continue
        if not isinstance(above, ELEMENTWISE) or len(seen) > MOST_EXPRS:
            return set()
        new = [t for t in above.tensor_inputs if t not in seen]
        seen.update(new)
        pending += new
    return found


def _shapes(term: Term) -> tuple[object, ...]:
    flags = tuple((type(e), e.attributes["flags"]) for e in term.made if isinstance(e, (BroadcastOp, SqueezeOp)))
    return len(logical_axes(term.summed)), flags


def _join(fusion: Fusion, expr: PointwiseOp, a: Term, b: Term) -> None:
    """Define the result of `expr` by one sum, with what follows the sum of `a`: axes that are added and dropped, and a sign that both have."""
    out = expr.tensor_outputs[0]
    joined = pointwise(fusion, "add" if a.sign == b.sign else "sub", *((a.summed, b.summed) if a.sign == 1 or a.sign == b.sign else (b.summed, a.summed)))
    fusion.remove(expr)
    total = a.sum.tensor_outputs[0]
    fusion.remove(a.sum)
    fusion.register(ReductionOp([joined], [total], **a.sum.attributes))
    value: Val = total
    for step in a.made:
        result = step.tensor_outputs[0]
        if isinstance(step, PointwiseOp):  # a sign, which is in `joined` or comes last
            fusion.remove(step)
            fusion.register(LoadStoreOp([value], [result]))
        value = result
    is_negative = a.sign == b.sign == -1
    fusion.register(PointwiseOp([value], [out], op="neg", compute=out.dtype()) if is_negative else LoadStoreOp([value], [out]))
