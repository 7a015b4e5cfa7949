"""Which axes of a tensor lie behind one another in memory in the order of the loops.

Owns the contiguous run of a tensor along a loop order. What a vector access makes of it is in `vectorization.py`.
Read first: `inner_run`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.values import IterDomain, TensorView
from .loop_axes import LoopAxes


def inner_run(tensor: TensorView, order: Sequence[int], axes: LoopAxes) -> tuple[tuple[int, IterDomain], ...]:
    """Return (position in `order`, axis) of the axes of `tensor` that a loop over the innermost positions walks without gaps, innermost first.

    Empty when the innermost loop does not step through neighbouring elements of `tensor`. Stops at the first axis that is strided, in another
    order, or missing from `tensor`.
    """
    domain = tensor.domain()
    run: list[tuple[int, IterDomain]] = []
    position = len(order) - 1
    allocation = domain.maybe_allocation
    for index in reversed(range(len(allocation))):
        axis = allocation[index]
        if axis.is_broadcast() or axis.is_reduction():
            continue
        if position < 0 or not domain.contiguity[index] or axes.of(axis) != order[position]:
            break
        run.append((position, axis))
        position -= 1
    return tuple(run)


def strided_positions(tensor: TensorView) -> tuple[int, ...]:
    """Return the allocation positions whose stride is a run-time value, not the running product of inner extents."""
    domain = tensor.domain()
    return tuple(
        index
        for index, (axis, contiguous) in enumerate(zip(domain.maybe_allocation, domain.contiguity))
        if contiguous is False and not axis.is_broadcast() and not axis.is_reduction()
    )
