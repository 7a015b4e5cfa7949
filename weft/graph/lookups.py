"""Lookups moved up to tensors in memory: f(x)[i] = f(x[i]), for pointwise ops, casts, broadcasts, copies and lookups between.

A kernel reads the source of a lookup where it lies, so a source that is computed would have to be written to memory first. Computed at the looked-up positions
instead, it never exists as a whole. Owns when that pays; `moved_lookups.py` rewrites one lookup. Read first: `move_lookups_up`.
"""

from __future__ import annotations

from collections import Counter

from ..analysis.op_cost import OpCost, cost_of
from ..analysis.plain_copies import only_reader
from ..expr import ZERO, mul, product, sub
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, BagOp, Fixed, LookupOp, Position
from ..ir.values import Expr, PointwiseOp, ReductionOp, SqueezeOp, TensorView, WelfordOp
from ..ops.build import cast, is_plain_broadcast, logical_axes
from .known_places import Places, chosen, places_of_operand
from .lookups_of_sums import move_through_sums
from .moved_lookups import KEPT_WHOLE, LookupMover, Made, extent_count, is_joined, is_moved, picks_few
from .order_of_memory import axis_of_operand, innermost, lies_across, turns_memory
from .parts_of_cats import is_stored_sooner, parts_beside, times_of_part
from .repeated_values import store_what_repeats
from .window_places import WindowPlaces, base_of, places_of_lookups

MOST_INSTRUCTIONS = 100
"""Instructions per element of a chain that is recomputed at the looked-up position. An estimate: with 2 per byte loaded a kernel is still memory-bound.
Ops with fewer axes than the source, such as positions and weights of rows, are not counted: elements share them."""
MOST_OF_A_WINDOW = 200
"""Instructions of a chain at all places of a window along one axis, of 9 rows or more. Up to that a thread may have rows next to each other, which share most
of them; longer kernels were seen to have one row per thread, so that nothing is shared: 15 instead of 5 us (counted) for averages of 9x9."""
MOST_SOURCES = 12
MOST_SOURCES_OF_A_SHARED_TENSOR = 3
"""Tensors in memory that a chain may read; the second limit applies if the source of the lookup is also needed elsewhere, so that it could be read instead. It
does not count those with fewer axes than the source, such as weights and results of rows, whose bytes do not matter."""
MOST_PLACES_OF_PARTS = 12
"""Places at which a cat or a pad is looked up, up to which its parts are read instead. Each place selects among them, about two instructions per element;
the cat itself, of 16 bits, would be written and read, four bytes per element, in the time of six instructions each."""


def move_lookups_up(fusion: Fusion) -> None:
    """Rewrite every lookup of a computed tensor, in place, if that is profitable.

    Before: a lookup reads a tensor that the definition computes. After: it reads inputs, results of ops that are not moved (reductions, scans, ops that torch
    runs), or values that are too expensive to recompute; none reads the result of another one. Results keep their names; the values are the same, bit by bit.
    """
    _keep_parts(fusion)
    store_what_repeats(fusion, _move)
    _move(fusion)


def _move(fusion: Fusion) -> None:
    """Rewrite every lookup that pays by itself."""
    made: Made = {}
    windows = places_of_lookups(fusion)
    for expr in fusion.tensor_exprs():
        if isinstance(expr, LookupOp) and _pays(fusion, expr, windows.get(expr.source)):
            LookupMover(fusion, expr, made).run()
        elif isinstance(expr, LookupOp):
            if type(expr) is LookupOp and is_joined(expr.source.definition()):
                LookupMover(fusion, expr, made, only_joins=True).run()
            else:
                _narrow_before(fusion, expr)
    for expr in move_through_sums(fusion):
        if _pays(fusion, expr):
            LookupMover(fusion, expr, made).run()
    for expr in fusion.tensor_exprs():
        if "part" in expr.attributes:
            _read_or_keep(fusion, expr)
        elif isinstance(expr, SqueezeOp):
            _drop_single_places(fusion, expr)


def _keep_parts(fusion: Fusion) -> None:
    """Mark cats and pads that are looked up at many places, through casts and copies, to be stored."""
    places = Counter(e.source for e in fusion.tensor_exprs() if isinstance(e, LookupOp) and any(isinstance(place, At) for place in e.positions))
    for source in [source for source, count in places.items() if count > MOST_PLACES_OF_PARTS]:
        above = source.definition()
        while above is not None and is_moved(above) and not _selects_parts(above) and (isinstance(above, LookupOp) or len(above.tensor_inputs) == 1):
            above = above.tensor_inputs[0].definition()
        if above is not None and _selects_parts(above):
            above.attributes[KEPT_WHOLE] = True


def _selects_parts(expr: Expr) -> bool:
    """True for a cat's selection, and for a pad."""
    return "part" in expr.attributes or isinstance(expr, LookupOp) and expr.is_masked


def _drop_single_places(fusion: Fusion, squeeze: SqueezeOp) -> None:
    """Merge a squeeze into the lookup without an index before it; otherwise an axis of one element would be inside the lanes of a vector."""
    source, out = squeeze.tensor_inputs[0], squeeze.tensor_outputs[0]
    lookup, dropped = source.definition(), squeeze.attributes["flags"]
    if not isinstance(lookup, LookupOp) or len(lookup.inputs) > 1 or len(source.uses()) > 1 or source in fusion.outputs():
        return
    if not all(is_plain_broadcast(axis) for axis, is_dropped in zip(logical_axes(source), dropped, strict=True) if is_dropped):
        return
    at = {d: n for n, d in enumerate(d for d, is_dropped in enumerate(dropped) if not is_dropped)}
    positions: list[Position] = []
    for place in lookup.positions:
        if isinstance(place, Along):
            place = Along(at[place.axis], place.offset) if place.axis in at else Fixed(place.offset)
        positions.append(place)
    fusion.remove(squeeze)
    fusion.remove(lookup)
    fusion.register(LookupOp([lookup.source], [out], op=lookup.op_name, positions=tuple(positions), is_masked=False))


def _read_or_keep(fusion: Fusion, choice: Expr) -> None:
    """Turn a cat's selection between a part in memory and the rest into one lookup: the part inside its bounds, the rest as the value outside."""
    part, rest = choice.inputs[1], choice.inputs[2]
    lookup = part.definition()
    if not isinstance(lookup, LookupOp) or len(part.uses()) > 1 or is_moved(lookup.source.definition()) or not _is_inside_as_chosen(choice, lookup):
        return
    out = choice.outputs[0]
    if _is_across(lookup):
        return
    same = [a.is_broadcast() is b.is_broadcast() for a, b in zip(logical_axes(part), logical_axes(out))]  # type: ignore[arg-type]
    if not isinstance(rest, TensorView) or not all(same):
        return
    fusion.remove(choice)
    fusion.remove(lookup)
    if lookup.is_masked:
        fusion.register(LookupOp([*lookup.inputs[:-1], rest], [out], op="cat", positions=lookup.positions, is_masked=True))
    else:  # every position is in the part
        fusion.register(LookupOp([*lookup.inputs], [out], op=lookup.op_name, positions=lookup.positions, is_masked=False))


def _is_across(lookup: LookupOp) -> bool:
    """True if the neighbours of a result are not neighbours in the source, of which a kernel then loads tiles, apart from the rest."""
    stored = [axis for axis in lookup.source.domain().maybe_allocation if not axis.is_broadcast()]
    place = dict(zip(logical_axes(lookup.source), lookup.positions)).get(stored[-1]) if stored else None
    return isinstance(place, Along) and any(not a.is_broadcast() for a in logical_axes(lookup.tensor_outputs[0])[place.axis + 1 :])


def _is_inside_as_chosen(choice: Expr, lookup: LookupOp) -> bool:
    """True if a lookup's positions are inside its source exactly where the cat has this part; not true for a part that is itself a slice or a gather."""
    dim, begin, end = choice.attributes["part"]
    result = logical_axes(lookup.outputs[0])  # type: ignore[arg-type]
    found = False
    for axis, place in zip(logical_axes(lookup.source), lookup.positions):
        if not isinstance(place, Along):
            if not axis.is_broadcast():
                return False
        elif place.axis == dim:
            if found or place.offset is not mul(begin, -1) or axis.logical_extent is not sub(end, begin):
                return False
            found = True
        elif place.offset is not ZERO or result[place.axis].logical_extent is not axis.logical_extent:
            return False
    return found


def _pays(fusion: Fusion, expr: LookupOp, window: WindowPlaces | None = None, *, is_part: bool = True) -> bool:
    """Tell whether what a lookup reads is computed again where it is looked up. window: all places of its source, which is marked if it is to be stored.
    is_part: other elements of a cat count."""
    source = expr.source
    needs_order = any(isinstance(place, At) for place in expr.positions) and not picks_few(expr)

    def is_end(tensor: TensorView, inner: int | None) -> bool:
        above = tensor.definition()
        return not is_moved(above) or needs_order and turns_memory(above) and lies_across(tensor, inner, is_moved)

    last = innermost(logical_axes(expr.tensor_outputs[0]))
    inner = None if last is None else axis_of_operand(expr, source, last)
    if isinstance(expr, BagOp) or is_end(source, inner) or any(a.expanded_extent is not None for a in logical_axes(expr.outputs[0])):  # type: ignore[arg-type]
        return False
    chain: dict[int, Expr] = {}
    ends: set[TensorView] = set()
    axes, counted = extent_count(source), list[Expr]()
    stack: list[tuple[TensorView, Places, int | None]] = [(source, expr.positions, inner)]
    while stack:
        tensor, places, inner = stack.pop()
        above = tensor.definition()
        if above is None or is_end(tensor, inner):
            ends.add(tensor)
        elif id(above) not in chain:
            chain[id(above)] = above
            only = chosen(above, places)
            operands = above.tensor_inputs if only is None else [only] if isinstance(only, TensorView) else []
            counted += [above] * (only is None and extent_count(tensor) >= axes)
            stack += [(v, places_of_operand(above, v, places), None if inner is None else axis_of_operand(above, v, inner)) for v in operands]
        if len(ends) > MOST_SOURCES or len(counted) > MOST_INSTRUCTIONS:
            return False
    cost = cost_of(counted, ())
    slides = extent_count(expr.tensor_outputs[0]) >= axes  # not at one step for all results
    is_long = window is not None and slides and window.is_of_many_rows() and len(window) * cost.instructions > MOST_OF_A_WINDOW
    if window is not None and (is_long or window.are_costly(fusion, base_of(source), counted)):
        base = base_of(source)
        if (made_by := base.definition()) is not None:
            made_by.attributes[KEPT_WHOLE] = True
        return False
    if cost.instructions > MOST_INSTRUCTIONS or is_part and _is_stored_part(fusion, expr, cost):
        return False
    whole = [t for t in ends if extent_count(t) >= axes]
    if _is_of_other_rows(expr, ends):
        narrow = _only_narrowed(fusion, expr)
        stored = source.dtype() if narrow is None else narrow.tensor_outputs[0].dtype()
        return sum(t.dtype().bits for t in whole) <= 2 * stored.bits
    return len(whole) <= MOST_SOURCES_OF_A_SHARED_TENSOR or not _is_shared(fusion, source)


def _is_stored_part(fusion: Fusion, expr: LookupOp, cost: OpCost) -> bool:
    """Tell whether a part of a cat takes less time if it is stored. cost: of an element."""
    if times_of_part(expr) == 1.0:
        return False
    beside = any(is_moved(other.source.definition()) and not _pays(fusion, other, is_part=False) for other in parts_beside(expr))
    return is_stored_sooner(expr, cost.slots, is_beside_stored=beside)


def _is_shared(fusion: Fusion, source: TensorView) -> bool:
    """Tell whether anything but lookups needs a tensor. The order of all expressions, which each rewrite changes, is asked for only if that depends on it."""
    if fusion.is_output(source):
        return True
    others = {id(use) for use in source.uses() if not isinstance(use, LookupOp)}
    return bool(others) and not others.isdisjoint(map(id, fusion.tensor_exprs()))


def _is_of_other_rows(expr: LookupOp, ends: set[TensorView]) -> bool:
    """Tell whether a lookup is a slice of most rows of a normalization: the kernel that reduces all rows cannot store only these, but it can store all, which
    may be fewer bytes than reading again what they are computed from. ends: what the source is computed from."""
    axes, part = logical_axes(expr.source), logical_axes(expr.tensor_outputs[0])
    if expr.is_masked or len(axes) != len(part) or not all(isinstance(p, Along) and p.axis == d for d, p in enumerate(expr.positions)):
        return False
    sums = [t.get_logical_domain() for t in ends if isinstance(t.definition(), (ReductionOp, WelfordOp))]
    folded = {d for domain in sums if len(domain) == len(axes) for d, a in enumerate(domain) if a.is_reduction()}
    is_cut = [a.logical_extent is not b.logical_extent for a, b in zip(axes, part)]
    count, of = (product(a.logical_extent for a in each) for each in (part, axes))
    is_most = 2 * count.value > of.value if count.is_const and of.is_const else True  # type: ignore[operator]
    return bool(folded) and any(is_cut) and not any(is_cut[d] for d in folded) and is_most


def _only_narrowed(fusion: Fusion, lookup: LookupOp) -> PointwiseOp | None:
    """Return the cast to a narrower type that alone needs the result of a lookup, or None."""
    part = lookup.tensor_outputs[0]
    use = next(iter(part.uses()), None)
    if isinstance(lookup, BagOp) or lookup.is_masked or part in fusion.outputs():
        return None
    if not isinstance(use, PointwiseOp) or use.op_name != "cast" or not only_reader(part, use):
        return None
    return use if use.tensor_outputs[0].dtype().bits < part.dtype().bits else None


def _narrow_before(fusion: Fusion, lookup: LookupOp) -> None:
    """Let a lookup that stays read what its result is cast to, which is fewer bytes to store."""
    cast_after = _only_narrowed(fusion, lookup)
    if cast_after is None or lookup.source in fusion.outputs() or not is_moved(lookup.source.definition()):
        return
    out = cast_after.tensor_outputs[0]
    narrow = cast(fusion, lookup.source, out.dtype())
    fusion.remove(cast_after)
    fusion.remove(lookup)
    fusion.register(LookupOp([narrow, *lookup.inputs[1:]], [out], **lookup.attributes))
