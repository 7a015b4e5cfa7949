"""Places at which a tensor is looked up, as in windows of an image: whether it is computed again at each of them, or stored once and read there.

A thread has neighbouring results along the innermost axis, which share what is computed at places next to each other; places in other rows share nothing, but
where a window is along another axis alone: then a thread has rows next to each other, which share as much.
Read first: `WindowPlaces`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field

from ..analysis.op_cost import INSTRUCTIONS_PER_BYTE, LAUNCH_BYTES, cost_of
from ..analysis.plain_copies import is_copy
from ..analysis.thread_values import counted_only
from ..expr import ZERO, evaluate_int, product
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, LookupOp
from ..ir.values import BroadcastOp, Expr, PointwiseOp, Scalar, TensorView, Val
from ..ops.build import logical_axes
from .order_of_memory import innermost

FEWEST_PLACES = 3
"""Places from which on they are a window, and it is asked what it costs to compute a tensor at each. Two, as of halves that are exchanged, always pay."""
NEIGHBOURS = 4
"""Results of a thread that share what is computed at places next to each other: a vector of 16 bytes in float32."""


MOST_ROWS = 8
"""Rows that are read one below the other, up to which nothing but the time is asked: 64 elements of a window are taken one by one."""
BENDS = ("maximum", "minimum", "clamp", "where", "abs", "remainder", "fmod", "div")
"""Ops of positions that do not move all of them alike."""


@dataclass
class WindowPlaces:
    """rows: for each row that is read, the offsets along the innermost axis; None for one that is not known, next to the others."""

    rows: dict[Hashable, set[int | None]] = field(default_factory=dict)

    def add(self, row: Hashable, offset: int | None) -> None:
        self.rows.setdefault(row, set()).add(offset)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def times(self, *, is_strict: bool = False) -> float:
        """Return how often an element is computed, if it is at each place. is_strict: neighbours share no rows at
        positions that are bent twice."""
        if len(self.rows) > 1 and all(len(offsets) == 1 for offsets in self.rows.values()) and self._are_along_one_axis(is_strict):
            return (len(self.rows) + NEIGHBOURS - 1) / NEIGHBOURS
        return sum(map(_elements, self.rows.values())) / NEIGHBOURS

    def is_of_many_rows(self) -> bool:
        """Tell whether a window has more rows than pools add at once, one below the other, and one place in each."""
        return len(self.rows) > MOST_ROWS and all(len(offsets) == 1 for offsets in self.rows.values()) and self._are_along_one_axis(False)

    def _are_along_one_axis(self, is_strict: bool) -> bool:
        """True if rows differ in one position, by numbers that are added to one index, or at positions that are counted."""
        places = [row[0] for row in self.rows if isinstance(row, tuple) and row and isinstance(row[0], tuple)]
        if len(places) < len(self.rows) or any(len(of) != len(places[0]) for of in places):  # such as rotations, whose rows are other axes' shifts
            return False
        moved = [n for n in range(len(places[0])) if len({of[n] for of in places}) > 1]
        counted = [of[n] for of in places for n in moved]
        if len(moved) != 1 or all(isinstance(at, TensorView) and counted_only(at) for at in counted):
            return len(moved) == 1 and not (is_strict and any(_is_bent_twice(at) for at in counted if isinstance(at, TensorView)))
        return all(isinstance(at, Along) and at.offset.is_const for at in counted) and len({at.axis for at in counted}) == 1

    def are_costly(self, fusion: Fusion, tensor: TensorView, chain: Iterable[Expr]) -> bool:
        """Tell whether computing a tensor again takes longer than writing and reading it, launch included. tensor: what would be stored; chain: what computes
        an element of it."""
        if len(self) < FEWEST_PLACES:
            return False
        cost = cost_of(chain, wide_values(fusion))
        return cost.slots * (self.times() - 1) > stored_instructions(tensor)


def stored_instructions(tensor: TensorView, *, is_launched: bool = True) -> float:
    """Return the instructions per element that take as long as writing and reading a tensor. is_launched: with the launch of the kernel that reads it."""
    sizes = [axis.logical_extent for axis in logical_axes(tensor) if not axis.is_broadcast()]
    elems = evaluate_int(product(sizes), {}) if all(n.is_const for n in sizes) else math.inf
    return INSTRUCTIONS_PER_BYTE * (2 * tensor.dtype().bits / 8 + is_launched * LAUNCH_BYTES / max(1, elems))


def moved_instructions(fusion: Fusion, tensor: TensorView) -> float:
    """Return the instructions per element of a tensor that take as long as reading and writing the definition's inputs and outputs, each once."""
    moved = {*fusion.tensor_inputs(), *fusion.tensor_outputs()}
    sizes = {t: [axis.logical_extent for axis in logical_axes(t) if not axis.is_broadcast()] for t in (*moved, tensor)}
    if all(size.is_const for of in sizes.values() for size in of):
        elems = {t: evaluate_int(product(of), {}) for t, of in sizes.items()}
    else:
        elems = {t: int(len(of) >= len(sizes[tensor])) for t, of in sizes.items()}
    return INSTRUCTIONS_PER_BYTE * sum(elems[t] * t.dtype().bits / 8 for t in moved) / max(1, elems[tensor])


def wide_values(fusion: Fusion) -> Container[TensorView]:
    """Return what is taken for values of more than 16 bits before kernels are known: nothing in a definition that has results of 16 bits, else everything."""
    return () if any(t.dtype().is_reduced_float for t in fusion.tensor_outputs()) else _Everything()


class _Everything:
    def __contains__(self, _: object) -> bool:
        return True


def _elements(offsets: Iterable[int | None]) -> int:
    """Return how many elements of a row neighbours need, those at several offsets from each of them."""
    given = list(offsets)
    known = {offset + n for offset in given if offset is not None for n in range(NEIGHBOURS)}
    others = len(given) - len({offset for offset in given if offset is not None})
    return len(known) + (others + NEIGHBOURS - 1 if others and not known else others)


def places_of_lookups(fusion: Fusion) -> dict[TensorView, WindowPlaces]:
    """Return the places at which each source of a lookup is looked up."""
    found: dict[TensorView, WindowPlaces] = {}
    for expr in fusion.tensor_exprs():
        if type(expr) is LookupOp:
            row, offset = place_of(expr)
            found.setdefault(expr.source, WindowPlaces()).add(row, offset)
    return found


def place_of(lookup: LookupOp) -> tuple[Hashable, int | None]:
    """Return where a lookup reads: the place of the row, and that along the innermost axis of the source."""
    last, places = innermost(logical_axes(lookup.source)), list[Hashable](lookup.positions)
    at = None if last is None else places.pop(last)
    rows = tuple(lookup.inputs[place.operand] if isinstance(place, At) else place for place in places)
    if isinstance(at, Along):
        return (rows, at.axis), int(at.offset.value) if at.offset.is_const else None  # type: ignore[arg-type]
    return (rows, lookup.inputs[at.operand] if isinstance(at, At) and not counted_only(lookup.inputs[at.operand]) else None), None


def _is_bent_twice(position: TensorView) -> bool:
    """Tell whether a counted position is bent, as at the ends of a padded axis, moved, and bent again. Such positions of neighbours that are equal are not
    written alike, so that neither the CUDA compiler nor neighbours share what is there."""
    return _bent(position, {})[0] > 1


def _bent(value: Val, known: dict[Val, tuple[int, bool]]) -> tuple[int, bool]:
    """Return how often a position is bent with a move between, and whether it is moved since."""
    made_by = value.definition() if isinstance(value, TensorView) else None
    if made_by is None:
        return 0, False
    if value not in known:
        found = [_bent(v, known) for v in made_by.inputs]
        times, is_moved = max((times for times, _ in found), default=0), any(moved for _, moved in found)
        name = made_by.op_name if isinstance(made_by, PointwiseOp) else ""
        if name in BENDS:
            times, is_moved = max(1, times + is_moved), False
        elif name in ("add", "sub") and times:
            is_moved = is_moved or not any(isinstance(v, Scalar) and v.sym is ZERO for v in made_by.inputs)
        known[value] = times, is_moved
    return known[value]


def base_of(tensor: TensorView) -> TensorView:
    """Return what is stored in place of a tensor: what it is a copy of, or the same in a narrower type."""
    above = tensor.definition()
    while above is not None and (is_copy(above) or isinstance(above, BroadcastOp) or _widens(above)):
        tensor = above.tensor_inputs[0]
        above = tensor.definition()
    return tensor


def _widens(expr: Expr) -> bool:
    return isinstance(expr, PointwiseOp) and expr.op_name == "cast" and expr.tensor_inputs[0].dtype().bits <= expr.tensor_outputs[0].dtype().bits


__all__ = ["FEWEST_PLACES", "WindowPlaces", "base_of", "moved_instructions", "place_of", "places_of_lookups", "stored_instructions", "wide_values"]
