"""In which order of memory a lookup of a computed tensor would read what the tensor is computed from.

A lookup that moves up reads inputs at the places of its result. Where a copy between them transposes, neighbours of the result would be rows of memory apart,
unless another copy turns them back. Owns which copies transpose, and the way of an axis up to memory. Read first: `lies_across`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.graph_ops import Along, At, LookupOp
from ..ir.values import BroadcastOp, Expr, IterDomain, LoadStoreOp, SqueezeOp, TensorView
from ..ops.build import logical_axes


def turns_memory(expr: Expr | None) -> bool:
    """True for a copy that transposes. Slices and pads move through it, since tiles are read at an offset as well; rows that an index names are no tiles."""
    if not isinstance(expr, LoadStoreOp):
        return False
    domain = expr.tensor_outputs[0].domain()
    root = domain.root
    if root is not None and ({id(a) for a in root} != {id(a) for a in domain.logical} or root[-1] is not domain.logical[-1]):
        return True
    return domain.allocation is not None and domain.allocation[-1] is not domain.logical[-1]


def lies_across(tensor: TensorView, inner: int | None, is_moved: Callable[[Expr | None], bool]) -> bool:
    """True if neighbours along the axis `inner` of a tensor are none in a tensor in memory that it is computed from, by expressions that a lookup moves
    through. None: no axis, so there are no neighbours."""
    known: set[tuple[TensorView, int]] = set()
    stack = [(tensor, inner)]
    while stack:
        at, axis = stack.pop()
        if axis is None or (at, axis) in known or logical_axes(at)[axis].is_broadcast():
            continue
        known.add((at, axis))
        definition = at.definition()
        if not is_moved(definition):
            stored = [a for a in at.domain().maybe_allocation if not a.is_broadcast() and not a.is_reduction()]
            if stored[-1] is not logical_axes(at)[axis]:
                return True
            continue
        assert definition is not None
        stack += [(operand, axis_of_operand(definition, operand, axis)) for operand in definition.tensor_inputs]
    return False


def innermost(axes: Sequence[IterDomain]) -> int | None:
    """Return the last of these axes that has several elements of its own, or None."""
    return max((d for d, axis in enumerate(axes) if not axis.is_broadcast()), default=None)


def axis_of_operand(expr: Expr, operand: TensorView, axis: int) -> int | None:
    """Return the axis of an operand along which it varies where the result varies along `axis`, or None."""
    if isinstance(expr, BroadcastOp):
        flags = expr.attributes["flags"]
        return None if flags[axis] else axis - sum(flags[:axis])
    if isinstance(expr, SqueezeOp):
        return [d for d, is_dropped in enumerate(expr.attributes["flags"]) if not is_dropped][axis]
    if isinstance(expr, LookupOp) and operand is expr.source:
        return next((d for d, place in enumerate(expr.positions) if _varies(expr, place, axis)), None)
    if isinstance(expr, LoadStoreOp):
        target = expr.tensor_outputs[0]
        root = [a for a in target.get_maybe_root_domain() if not a.is_reduction()]
        return next((d for d, a in enumerate(root) if a is logical_axes(target)[axis]), None)
    return axis


def _varies(lookup: LookupOp, place: object, axis: int) -> bool:
    if isinstance(place, At):
        index = lookup.inputs[place.operand]
        return isinstance(index, TensorView) and not logical_axes(index)[axis].is_broadcast()
    return isinstance(place, Along) and place.axis == axis


__all__ = ["axis_of_operand", "innermost", "lies_across", "turns_memory"]
