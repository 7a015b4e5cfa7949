"""What neighbouring rows of a pointwise kernel have in common: values that do not vary along the innermost loop left of the break position.

A table of angles has no axis of heads. A thread with several heads computes, or loads, its part of the table once and keeps it. Values that
cost less than an access are computed again for each row. Read first: `still_rows`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


def work_of_values(axes: LoopAxes, loads: Collection[TensorView]) -> dict[Expr, float]:
    """Return the instructions per element that compute the result of each expression from `loads`, which are kept in any case."""
    wide = wide_tensors(axes.fusion)
    work: dict[TensorView, float] = dict.fromkeys(loads, 0.0)
    found: dict[Expr, float] = {}
    for e in axes.fusion.tensor_exprs():
        if not set(e.tensor_outputs) <= work.keys():
            found[e] = cost_of([e], wide).instructions + sum(work.get(t, 0.0) for t in e.tensor_inputs)
            work.update(dict.fromkeys(e.tensor_outputs, found[e]))
    return found


def still_rows(
    axes: LoopAxes, order: Sequence[int], position: int, loads: Collection[TensorView], in_vectors: Collection[TensorView], work: Mapping[Expr, float]
) -> StillRows | None:  # fmt: skip
    """Return what rows that differ in loop `position` - 1 have in common; None if it is nothing, or as much as with rows of all loops on the left merged.

    loads: what is read from memory; in_vectors: those of them that are read in vectors along the loops from `position` on. work: `work_of_values`.
    """
    row, inside, read = order[position - 1], set(order[position:]), set(loads)
    still = {t for t in axes.tensors if row not in (stored := axes.stored(t)) and not stored.isdisjoint(inside)}
    exprs = [e for e in axes.fusion.tensor_exprs() if isinstance(e, PointwiseOp) and (t := e.tensor_outputs[0]) in still and t not in read]
    kept = [t for e in exprs if work.get(e, 0.0) > ACCESS_INSTRUCTIONS and _meets_others(t := e.tensor_outputs[0], still)]
    accesses = len([t for t in in_vectors if t in still and t in read])
    if not kept and (position == 1 or not accesses):  # the only loop on the left: loads are shared in any case
        return None
    cost = cost_of(exprs, wide_tensors(axes.fusion))
    return StillRows(accesses, cost.instructions, cost.mufu, tuple(t.name for t in kept))


def _meets_others(tensor: TensorView, still: Collection[TensorView]) -> bool:
    """Tell whether a value that varies further is computed from a tensor, or from a view of it: results that others use are kept, unless it costs less than an
    access to compute them again."""
    for use in tensor.uses():
        out = use.tensor_outputs[0]
        if out not in still or isinstance(use, (BroadcastOp, ExpandOp, SqueezeOp)) and _meets_others(out, still):
            return True
    return False
