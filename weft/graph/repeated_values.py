"""Values that lookups of lookups would compute at many places, as stencils of stencils and gradients of padded images do: the costliest are stored instead.

Each lookup by itself may pay: a difference of four neighbours takes few instructions. Moved up to inputs together they multiply: a difference of differences
computes what it is of at sixteen places. So all lookups are moved in a copy of the definition first, and the instructions of what they compute again are
counted there. Read first: `store_what_repeats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from ..analysis.op_cost import cost_of
from ..analysis.thread_values import counted_only
from ..ir.fusion import Fusion
from ..ir.graph_ops import At, LookupOp
from ..ir.values import Expr, PointwiseOp, TensorView
from ..ops.build import logical_axes
from .moved_lookups import KEPT_WHOLE, is_moved
from .window_places import FEWEST_PLACES, WindowPlaces, base_of, moved_instructions, place_of, stored_instructions, wide_values

ORIGIN = "origin"
"""Attribute of an expression of the copy, which its copies at other places have, too: the name of the result in the definition."""
MOST_STORED = 4
"""Values that are stored for their repetitions, at most: after each of them lookups are moved again, and the rest is counted."""
MOST_ABOVE = 400
"""Expressions of a value that is stored, at most, so that the time of the search grows with the length of a definition."""
SHORT_ROW = 16
"""Elements of rows that a thread may have whole (`weft.schedulers.whole_rows`): it computes once what several of them share."""
ACCESS_INSTRUCTIONS = 8
"""Of an access with its address and bounds: what takes fewer is computed again. Counted: `ACCESS_SLOTS` in docs/constants.md."""


def store_what_repeats(fusion: Fusion, move: Callable[[Fusion], None]) -> None:
    """Mark as `KEPT_WHOLE` what takes longer to compute at all places than to write and to read. move: moves the lookups of a fusion up, in place."""
    for _ in range(MOST_STORED):
        if sum(map(_moves, fusion.tensor_exprs())) < FEWEST_PLACES:
            return
        copy, _ = fusion.clone()
        for expr in copy.tensor_exprs():
            if isinstance(expr, PointwiseOp):
                expr.attributes[ORIGIN] = expr.tensor_outputs[0].name
        move(copy)
        costliest = _costliest(copy, {t.name: t for t in fusion.tensors()})
        if costliest is None:
            return
        costliest.attributes[KEPT_WHOLE] = True


def _moves(expr: Expr) -> bool:
    return isinstance(expr, LookupOp) and is_moved(expr.source.definition())


def _costliest(copy: Fusion, own: Mapping[int, TensorView]) -> Expr | None:
    """Return the expression whose result saves the most if it is stored, or None. copy: with all lookups moved; own: tensors of the definition by name."""
    repeated: dict[TensorView, list[TensorView]] = {}
    for expr in copy.tensor_exprs():
        origin = own.get(expr.attributes.get(ORIGIN, -1))
        if origin is not None and _is_as_large(expr.tensor_outputs[0], origin):
            repeated.setdefault(origin, []).append(expr.tensor_outputs[0])
    counter = _Counter(copy)
    in_all = counter.all_instructions()
    best, found = 0.0, None
    for origin, results in repeated.items():
        made_by = base_of(origin).definition()
        if len(results) < FEWEST_PLACES or made_by is None or not is_moved(made_by) or counted_only(origin) or _is_row_of_a_thread(origin):
            continue
        shifted = list(filter(counter.is_shifted, results))
        if len(shifted) < FEWEST_PLACES:
            continue
        needed, saved = counter.saved(shifted)
        in_memory = moved_instructions(copy, base_of(origin))
        gain = min(saved, in_all - needed + saved - in_memory) - stored_instructions(base_of(origin))
        if gain > best:
            best, found = gain, made_by
    return found


def _is_as_large(result: TensorView, origin: TensorView) -> bool:
    """Tell whether a value at some place has as many elements as the whole, about: a column of a matrix is no place of all of it."""
    sizes = [[axis.logical_extent for axis in logical_axes(t) if not axis.is_broadcast()] for t in (result, origin)]
    if not all(size.is_const for of in sizes for size in of):
        return len(sizes[0]) >= len(sizes[1])
    part, whole = (math.prod(int(size.value) for size in of) for of in sizes)  # type: ignore[arg-type, misc]
    return 2 * part >= whole


def _is_row_of_a_thread(value: TensorView) -> bool:
    extents = [axis.logical_extent for axis in logical_axes(value) if not axis.is_broadcast()]
    return bool(extents) and extents[-1].is_const and int(extents[-1].value) <= SHORT_ROW  # type: ignore[arg-type]


class _Counter:
    """Counts what is computed for values of a fusion."""

    def __init__(self, fusion: Fusion) -> None:
        self._fusion, self.wide = fusion, wide_values(fusion)
        self._above: dict[TensorView, frozenset[Expr]] = {}
        self._costs: dict[Expr, float] = {}

    def saved(self, results: Collection[TensorView]) -> tuple[float, float]:
        """Return (the instructions per element of all but one of some values, the one that takes the fewest; those of them that neighbours do not share); 0 for
        what takes no more than an access."""
        one = min(map(self._cost, map(self.above, results)))
        if one < ACCESS_INSTRUCTIONS:
            return 0.0, 0.0
        others = self._cost(frozenset().union(*map(self.above, results))) - one
        places = _places(results, self)
        return others, others * max(0.0, places.times(is_strict=True) - 1) / max(1, len(places) - 1)

    def all_instructions(self) -> float:
        """Return the instructions per element of everything, if neighbours share nothing."""
        return self._cost(self._fusion.tensor_exprs())

    def is_shifted(self, result: TensorView) -> bool:
        """Tell whether a value is computed at counted places, not at those that an index tensor in memory gives, and from few expressions."""
        lookups = [e for e in self.above(result) if isinstance(e, LookupOp)]
        return len(self.above(result)) <= MOST_ABOVE and all(counted_only(e.inputs[p.operand]) for e in lookups for p in e.positions if isinstance(p, At))

    def above(self, tensor: TensorView) -> frozenset[Expr]:
        """Return what a value is computed by, down from lookups and other values in memory; of more than MOST_ABOVE expressions a part."""
        if tensor not in self._above:
            found, stack = dict[Expr, None](), [tensor]
            while stack and len(found) <= MOST_ABOVE:
                made_by = stack.pop().definition()
                if made_by is not None and is_moved(made_by) and made_by not in found:
                    found[made_by] = None
                    stack += [] if isinstance(made_by, LookupOp) else made_by.tensor_inputs
            self._above[tensor] = frozenset(found)
        return self._above[tensor]

    def _cost(self, exprs: Collection[Expr]) -> float:
        return sum(map(self._of, exprs))

    def _of(self, expr: Expr) -> float:
        if expr not in self._costs:
            cost = cost_of([expr], self.wide)
            is_position = counted_only(expr.tensor_outputs[0])
            self._costs[expr] = 0.0 if is_position else cost.slots
        return self._costs[expr]


def _places(results: Collection[TensorView], counter: _Counter) -> WindowPlaces:
    """Return the places at which values are computed: those of what the first operand that is looked up is looked up at."""
    places = WindowPlaces()
    for result in results:
        lookups = [e for e in counter.above(result) if isinstance(e, LookupOp)]
        if lookups:
            places.add(*place_of(min(lookups, key=lambda e: (e.source.name, e.tensor_outputs[0].name))))
        else:
            places.add((), 0)
    return places


__all__ = ["store_what_repeats"]
