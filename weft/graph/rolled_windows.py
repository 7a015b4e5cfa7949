"""Several rotations of an input along its innermost axis, as in differences of periodic fields: lookups at positions modulo the extent.

A thread that has neighbouring results reads elements that they share once, and computes what follows from them once, if all are lookups of one tensor, at
positions that are written alike: rotated inputs are several tensors to a kernel. A single rotation stays one, and so do all of them beside reductions, whose
kernels have vectors of inputs. Read first: `look_up_rolls`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, Position, RollOp, ScanOp
from ..ir.values import Expr, LoadStoreOp, PointwiseOp, ReductionOp, TensorView, WelfordOp
from ..ops.build import broadcast, constant, logical_axes, pointwise
from ..ops.factories import iota
from ..ops.lookups import add_lookup
from .order_of_memory import innermost
from .window_places import WindowPlaces

FEWEST_ROTATIONS = 2
"""Rotations of an input along one axis that are looked up, at least: with one, hardly any results of a thread read the same."""


Offsets = tuple[tuple[int, int], ...]
"""Of rotations: (axis, offset) each."""


def places_of_rolls(fusion: Fusion) -> dict[TensorView, WindowPlaces]:
    """Return the places at which tensors are read, of those that can be looked up at them."""
    found: dict[TensorView, WindowPlaces] = {}
    exprs = fusion.tensor_exprs()
    others = set[TensorView]()
    for expr in [] if _has_rows(exprs) else exprs:
        if not isinstance(expr, RollOp):
            others.update(expr.tensor_inputs)
            continue
        offsets, source = _offsets(expr), expr.tensor_inputs[0]
        if offsets is None:
            others.discard(source)
            found[source] = WindowPlaces()
        else:
            found.setdefault(source, WindowPlaces()).add(offsets[1], _near(offsets[0], source))
    for source in others.intersection(found):
        found[source].add((), 0)
    return found


def _has_rows(exprs: Iterable[Expr]) -> bool:
    return any(isinstance(e, (ReductionOp, WelfordOp, ScanOp)) for e in exprs)


def look_up_rolls(fusion: Fusion, stored: Collection[TensorView]) -> None:
    """Replace rotations by lookups, in place: of inputs along their innermost axis, of which there are several for the same rows, and all those of tensors that
    are `stored` to be read at several places.

    Before: rotations of inputs and stored tensors stay.   After: those of an input that find the same rows are all lookups, or none of them is.
    """
    exprs = fusion.tensor_exprs()
    if _has_rows(exprs):
        return
    found: dict[tuple[TensorView, Offsets], list[tuple[int, RollOp]]] = {}
    for expr in exprs:
        source = expr.tensor_inputs[0] if isinstance(expr, RollOp) else None
        if isinstance(expr, RollOp) and source is not None and (source.is_fusion_input or source in stored) and (offsets := _offsets(expr)) is not None:
            along, rows = offsets
            found.setdefault((source, rows), []).append((along, expr))
    for (source, rows), rolls in found.items():
        if source in stored or len({along for along, _ in rolls} - {0}) >= FEWEST_ROTATIONS and _is_innermost_in_memory(source):
            _look_up_all(fusion, source, rows, rolls)


def _is_innermost_in_memory(source: TensorView) -> bool:
    """Tell whether neighbours along the last axis of an input are neighbours in memory."""
    axes, stored = logical_axes(source), [a for a in source.domain().maybe_allocation if not a.is_broadcast()]
    last = innermost(axes)
    return last is not None and stored[-1] is axes[last]


def _offsets(roll: RollOp) -> tuple[int, Offsets] | None:
    """Return the offset of a rotation along the innermost axis, and those along others; None if one is of several axes, or sizes are open."""
    axes, dims = logical_axes(roll.tensor_inputs[0]), [one.axes[0] for one in roll.rolls]
    last = innermost(axes)
    is_known = all(len(one.axes) == 1 and one.offset.is_const for one in roll.rolls)
    if last is None or not is_known or not all(axes[d].logical_extent.is_const for d in (*dims, last)):
        return None
    offsets = {d: int(one.offset.value) for d, one in zip(dims, roll.rolls)}  # type: ignore[arg-type]
    return offsets.pop(last, 0), tuple(sorted(offsets.items()))


def _near(offset: int, tensor: TensorView) -> int:
    """Return an offset along the innermost axis as one to the nearer side."""
    axes = logical_axes(tensor)
    extent = int(axes[innermost(axes)].logical_extent.value)  # type: ignore[index, arg-type]
    return offset if 2 * offset <= extent else offset - extent


def _look_up_all(fusion: Fusion, source: TensorView, rows: Offsets, rolls: Sequence[tuple[int, RollOp]]) -> None:
    """Replace rotations of a tensor that find the same rows, and where these are its own rows what reads it as it is: its elements are neighbours of the
    others."""
    dim, made = innermost(logical_axes(source)), dict[int, TensorView]()
    assert dim is not None

    def at(offset: int) -> TensorView:
        if offset not in made:
            made[offset] = _looked_up(fusion, source, {**dict(rows), dim: offset})
        return made[offset]

    for offset, roll in rolls:
        found = at(offset)
        fusion.remove(roll)
        fusion.register(LoadStoreOp([found], list(roll.outputs)))
    for use in fusion.tensor_exprs() if source.is_fusion_input and not rows else ():
        if isinstance(use, PointwiseOp) and source in use.inputs:
            fusion.replace_input(use, source, at(0))


def _looked_up(fusion: Fusion, source: TensorView, offsets: Mapping[int, int]) -> TensorView:
    """Return a tensor rotated by `offsets`, of each axis."""
    axes = logical_axes(source)
    positions: list[Position] = [At(1 + list(offsets).index(d)) if d in offsets else Along(d) for d in range(len(axes))]
    indices = [_places(fusion, int(axes[d].logical_extent.value), offset, d, len(axes)) for d, offset in offsets.items()]  # type: ignore[arg-type]
    return add_lookup(fusion, "roll", source, [fusion.copy_axis(axis) for axis in axes], positions, indices=indices)


def _places(fusion: Fusion, extent: int, offset: int, dim: int, rank: int) -> TensorView:
    """Return (i + offset) modulo the extent of axis `dim`. Rotations by a few elements to either side count from near the same place, so that the CUDA compiler
    sees which of them are equal for neighbouring i."""
    dtype = DataType.Int32 if 3 * extent < 1 << 31 else DataType.Int
    start = extent + (offset if 2 * offset <= extent else offset - extent)
    counted = iota(fusion, constant(fusion, extent, DataType.Int), constant(fusion, start, dtype), None, dtype)
    row = pointwise(fusion, "remainder", counted, constant(fusion, extent, dtype))
    return broadcast(fusion, row, [d != dim for d in range(rank)]) if rank > 1 else row  # type: ignore[arg-type, return-value]


__all__ = ["look_up_rolls", "places_of_rolls"]
