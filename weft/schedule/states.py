"""Combines two reductions of the same elements into one whose state has both results. The module of each pattern says which reductions combine.

Read first: `fold_into_state`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.fusion import Fusion
from ..ir.values import PointwiseOp, ReductionOp, TensorView
from ..ops.monoids import StateMonoid
from .caching import require_not_inlined, without_reductions


def fold_into_state(fusion: Fusion, monoid: StateMonoid, x: TensorView, axes_of: TensorView, results: Sequence[tuple[str, TensorView]], verb: str) -> None:
    """Make `results` fields of one reduction of x, in place; they stay the same tensors. axes_of: the result of a reduction over the axes to reduce. results:
    (name of the field, tensor). verb: what the caller does, for errors.
    Before: each of `results` has a separate definition.   After: state = monoid(x), and each is `KIND.FIELD` of it.
    """
    for _, tensor in results:
        require_not_inlined(tensor, verb)
    kind = monoid.state(x.dtype())
    state = fusion.new_tensor([fusion.copy_axis(axis) for axis in axes_of.get_logical_domain()], kind)
    for field, tensor in results:
        fusion.remove(tensor.definition())  # type: ignore[arg-type]
        tensor._domain = without_reductions(tensor.domain())
        fusion.register(PointwiseOp([state], [tensor], op=f"{monoid.kind}.{field}", compute=kind))
    fusion.register(ReductionOp([x], [state], op=monoid.kind, kind=monoid.kind))


__all__ = ["fold_into_state"]
