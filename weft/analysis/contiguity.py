"""Which axes of a tensor lie behind one another in memory in the order of the loops.

Owns the contiguous run of a tensor along a loop order. What a vector access makes of it is in `vectorization.py`.
Read first: `inner_run`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph_ops import ScatterStoreOp
from ..ir.values import IterDomain, TensorView, no_reductions
from .lookups import Piece, in_memory, lookup_of, lookup_run
from .loop_axes import LoopAxes


def inner_run(tensor: TensorView, order: Sequence[int], axes: LoopAxes) -> tuple[tuple[int, Piece], ...]:
    """Return (position in `order`, piece) of the axes of `tensor` that a loop over the innermost positions traverses without gaps, innermost first.

    For the result of a lookup: in its source.

    Empty if the innermost loop does not step through neighbouring elements of `tensor`. Stops at the first axis that is strided, in another
    order, or missing from `tensor`.
    """
    lookup = lookup_of(tensor)
    return own_run(tensor, order, axes) if lookup is None else _run(lookup_run(lookup), order, axes)


def own_run(tensor: TensorView, order: Sequence[int], axes: LoopAxes) -> tuple[tuple[int, Piece], ...]:
    """As `inner_run`, for a lookup's result in its own memory, where it is written."""
    return _run(_own_pieces(tensor), order, axes)


def scattered_run(tensor: TensorView, order: Sequence[int], axes: LoopAxes) -> tuple[tuple[int, Piece], ...]:
    """As `inner_run`, for what a scatter writes, in the memory that it writes to: along axes that are inside of the one that the index names, and along which
    the index does not vary."""
    store = tensor.definition()
    assert isinstance(store, ScatterStoreOp)
    domain, targets = store.memory.domain(), no_reductions(store.memory.get_logical_domain())
    index, own = no_reductions(store.tensor_inputs[1].get_logical_domain()), tensor.get_logical_domain()
    along = {targets[t]: d for d in range(len(own)) if (t := store.target_axis(d)) is not None}
    pieces: list[Piece] = []
    for axis, contiguous in zip(reversed(domain.maybe_allocation), reversed(domain.contiguity)):
        if axis.is_broadcast():
            continue
        dim = along.get(axis)
        if not contiguous or dim is None or own[dim].is_broadcast() or not index[dim].is_broadcast():
            break
        is_whole = own[dim].sym is axis.sym
        pieces.append(Piece(own[dim], (own[dim].sym,) if is_whole else (own[dim].sym, axis.sym), is_whole))
        if not is_whole:
            break
    return _run(pieces, order, axes)


def _run(pieces: Sequence[Piece], order: Sequence[int], axes: LoopAxes) -> tuple[tuple[int, Piece], ...]:
    run: list[tuple[int, Piece]] = []
    position = len(order) - 1
    for piece in pieces:
        if position < 0 or axes.of(piece.axis) != order[position]:
            break
        run.append((position, piece))
        position -= 1
    return tuple(run)


def _own_pieces(tensor: TensorView) -> list[Piece]:
    domain = tensor.domain()
    rolled = rolled_axes(tensor)
    out: list[Piece] = []
    for axis, contiguous in zip(reversed(domain.maybe_allocation), reversed(domain.contiguity)):
        if axis.is_broadcast() or axis.is_reduction():
            continue
        if not contiguous or axis in rolled:
            break
        out.append(Piece(axis, (axis.sym,), True))
    return out


def rolled_axes(tensor: TensorView) -> list[IterDomain]:
    """Return the axes along which neighbouring elements of a tensor in memory need not be neighbours of the loops."""
    axes = no_reductions(tensor.get_logical_domain()) if tensor.domain().rolled else []
    return [axes[a] for roll in tensor.domain().rolled for a in roll.axes]


def strided_positions(tensor: TensorView) -> tuple[int, ...]:
    """Return the allocation positions whose stride is a run-time value, not the running product of inner extents."""
    domain = in_memory(tensor).domain()
    return tuple(
        index
        for index, (axis, contiguous) in enumerate(zip(domain.maybe_allocation, domain.contiguity))
        if contiguous is False and not axis.is_broadcast() and not axis.is_reduction()
    )
