"""What neighbouring rows of a pointwise kernel have in common: values that do not vary along the innermost loop left of the break position.

A table of angles has no axis of heads. A thread with several heads computes, or loads, its part of the table once and keeps it. Values that
cost less than an access are computed again for each row. Read first: `still_rows`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..analysis.loop_axes import LoopAxes
from ..analysis.op_cost import cost_of
from ..analysis.precision import wide_tensors
from ..ir.values import BroadcastOp, ExpandOp, Expr, PointwiseOp, SqueezeOp, TensorView
from .cost.parts import ACCESS_INSTRUCTIONS


@dataclass(frozen=True, slots=True)
class StillRows:
    """Of the values that rows have in common. accesses: loads in vectors. instructions, mufu: as in `OpCost`. kept: names of the computed values that a thread
    keeps for its rows, each with an element per element of a row."""

    accesses: int
    instructions: int
    mufu: int
    kept: tuple[int, ...]


def still_rows(axes: LoopAxes, order: Sequence[int], position: int, loads: Collection[TensorView], in_vectors: Collection[TensorView]) -> StillRows | None:
    """Return what rows that differ in loop `position` - 1 have in common; None if it is nothing, or as much as with rows of all loops on the left merged.

    loads: what is read from memory; in_vectors: those of them that are read in vectors along the loops from `position` on.
    """
    row, inside = order[position - 1], set(order[position:])
    still = {t for t in axes.tensors if row not in axes.stored(t) and axes.stored(t) & inside}
    exprs = [e for e in axes.fusion.tensor_exprs() if isinstance(e, PointwiseOp) and e.tensor_outputs[0] in still and e.tensor_outputs[0] not in loads]
    kept = _kept(axes, exprs, still, loads)
    accesses = len([t for t in in_vectors if t in still and t in loads])
    if not kept and (position == 1 or not accesses):  # the only loop on the left: loads are shared in any case
        return None
    cost = cost_of(exprs, wide_tensors(axes.fusion))
    return StillRows(accesses, cost.instructions, cost.mufu, tuple(t.name for t in kept))


def _kept(axes: LoopAxes, exprs: Sequence[Expr], still: Collection[TensorView], loads: Collection[TensorView]) -> list[TensorView]:
    """Return the results of `exprs` that vary no further and that others use, unless it costs less than an access to compute them again."""
    wide = wide_tensors(axes.fusion)
    work: dict[TensorView, float] = dict.fromkeys(loads, 0.0)  # these are kept in any case
    kept = []
    for e in axes.fusion.tensor_exprs():
        if set(e.tensor_outputs) <= work.keys():
            continue
        here = cost_of([e], wide).instructions + sum(work.get(t, 0.0) for t in e.tensor_inputs)
        work.update(dict.fromkeys(e.tensor_outputs, here))
        if e in exprs and here > ACCESS_INSTRUCTIONS and _meets_others(e.tensor_outputs[0], still):
            kept.append(e.tensor_outputs[0])
    return kept


def _meets_others(tensor: TensorView, still: Collection[TensorView]) -> bool:
    """Tell whether a value that varies further is computed from a tensor, or from a view of it."""
    for use in tensor.uses():
        out = use.tensor_outputs[0]
        if out not in still or isinstance(use, (BroadcastOp, ExpandOp, SqueezeOp)) and _meets_others(out, still):
            return True
    return False
