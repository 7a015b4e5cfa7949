"""The one indexer: from the loop indices around an expression to the index of any axis of any tensor.

Works on almost exact classes of axes: a split by 1 and a merge with a broadcast axis leave the index as it is. An axis is known when a loop iterates
its class; otherwise it is found through the transforms that touch it, backward (split outputs -> input, merge output -> inputs) or forward. Backward
steps through splits that do not divide leave a bound that the caller must guard.
Read first: `Indexer.axis_index`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.axes import AxisMaps
from ..errors import InternalError
from ..expr import ONE, TRUE, ZERO, Sym, add, conjunction, const, floordiv, is_divisible, less, minimum, mod, mul, op, product, recombine, sub, var, variables
from ..ir.enums import ParallelType
from ..ir.values import Expr, IterDomain, Merge, Split, Swizzle, TensorView, no_reductions
from ..schedule.peel import END, skipped_variable
from .loops import LoopGroup, Twofold


class NoIndex(InternalError):
    code = "W910"
    what = "no path from the loops {loops} to axis {axis} of {tensor}"
    fix = "transform the tensor like its consumers (transform_like) before inlining; if the automatic scheduler made this, please report it"


class Indexer:
    """Indices of axes for one set of open loops.

    groups: the loops around the expression. divisors: extents known to be multiples of a number (checked by the host).
    """

    def __init__(
        self, maps: AxisMaps, table: "TransformTable", groups: Iterable[LoopGroup], divisors: dict[Sym, int],
        launch: dict[ParallelType, Sym], fixed: Iterable[IterDomain] = (), *, at_row_end: bool = False, twofold: Twofold | None = None,
    ) -> None:  # fmt: skip
        """fixed: axes whose index is 0 (the lanes of a vector); launch: iterations per bound parallel type.

        at_row_end: indices of this thread's element at the ends of a phased row, instead of the loops over that row.
        twofold: loops among `groups` that iterate more than the tensor's own axes; `wide` is the indexer for all that they iterate.
        """
        self.maps, self.table, self.divisors, self.at_row_end = maps, table, divisors, at_row_end
        self.is_phased = False  # an index depends on a phased split
        self.last_of_vector: dict[IterDomain, Sym] = {}  # in pieces of phased rows: the index of the last lane
        self.repeats: dict[IterDomain, Sym] = {}  # of an overlapping split's source: the condition that this is the first copy of the element
        self.groups, self.launch = list(groups), launch
        self.known: dict[IterDomain, Sym] = {}
        self.bounds: dict[IterDomain, list[Sym]] = {}
        self.lanes = lanes = set(fixed)
        self.twofold = twofold
        self.wide = self if twofold is None else Indexer(maps, table, twofold.loops, divisors, launch, lanes, at_row_end=at_row_end)
        for group in self.groups:
            if twofold is not None and group in twofold.loops:
                continue
            key = maps.almost_exact(group.axis)
            self.known.setdefault(key, ZERO if group.axis.is_broadcast() or group.axis in lanes else group.index)
            if group.parallel.is_bound and launch[group.parallel] is not group.extent:
                raw = var(group.parallel.value, extent=launch[group.parallel])
                self.bounds.setdefault(key, []).append(less(raw, group.extent))
        self._active: set[IterDomain] = set()
        for axis in () if twofold is None else twofold.axes:
            self._take(axis)

    def _take(self, axis: IterDomain) -> None:
        """Take the index of `axis` from the wide loops."""
        value, key = self.wide.find(axis), self.maps.almost_exact(axis)
        self.is_phased |= self.wide.is_phased
        self.repeats |= self.wide.repeats
        if value is not None and not axis.is_broadcast() and key not in self.known:
            self.known[key] = value
            self.bounds[key] = list(self.wide.bounds.get(key, ()))

    def axis_index(self, axis: IterDomain, tensor: TensorView) -> Sym:
        """Return the index of `axis`; raise NoIndex if the loops do not determine it."""
        found = self.find(axis)
        if found is None:
            raise NoIndex(loops=[str(g.axis) for g in self.groups], axis=axis, tensor=tensor)
        return found

    def find(self, axis: IterDomain) -> Sym | None:
        """Return the index of `axis`, or None if the loops do not determine it."""
        return ZERO if axis.is_broadcast() else self._solve(self.maps.almost_exact(axis))

    def at_first(self, absent: Iterable[IterDomain]) -> "Indexer":
        """Return an indexer of the same loops with index 0 for the classes of `absent`, which the loops do not iterate."""
        made = Indexer(self.maps, self.table, self.groups, self.divisors, self.launch, self.lanes, at_row_end=self.at_row_end, twofold=self.twofold)
        for axis in absent:
            made.known[self.maps.almost_exact(axis)] = ZERO
        return made

    def guard(self, axes: Iterable[IterDomain]) -> Sym:
        """Return the bounds checks for the classes of `axes`, whose indices are known, if the loops go beyond their extents."""
        parts: list[Sym] = []
        for axis in axes:
            parts.extend(self.bounds.get(self.maps.almost_exact(axis), ()))
        return conjunction(parts)

    def _solve(self, key: IterDomain) -> Sym | None:
        if key in self.known:
            return self.known[key]
        if key in self._active:
            return None
        self._active.add(key)
        try:
            for transform, role in self.table.touching(key):
                before = list(self.bounds.get(key, ()))
                found = self._through(transform, role, key)
                if found is not None:
                    self.known[key] = found
                    return found
                self.bounds[key] = before
        finally:
            self._active.discard(key)
        return None

    def _value(self, axis: IterDomain, key: IterDomain) -> Sym | None:
        """Index of a neighbour axis; its bounds become bounds of `key`."""
        if axis.is_broadcast():
            return ZERO
        other = self.maps.almost_exact(axis)
        if other in self._active:
            return None
        found = self._solve(other)
        if found is not None:
            self._inherit(key, other)
        return ZERO if found is None and axis.sym is ONE else found

    def _inherit(self, key: IterDomain, other: IterDomain) -> None:
        mine = self.bounds.setdefault(key, [])
        for bound in self.bounds.get(other, ()):
            if bound not in mine:
                mine.append(bound)

    def _through(self, transform: Expr, role: str, key: IterDomain) -> Sym | None:
        if isinstance(transform, Split):
            return self._through_split(transform, role, key)
        if isinstance(transform, Merge):
            return self._through_merge(transform, role, key)
        return self._through_swizzle(transform, role, key)

    def _through_split(self, split: Split, role: str, key: IterDomain) -> Sym | None:
        outer, inner, source = split.outer(), split.inner(), split.source()
        if split.is_phased:
            return self._through_phased_split(split, key) if role == "source" else None
        if split.overlaps:
            return self._through_overlapping_split(split, key) if role == "source" else None
        if role == "source":
            a = self._value(outer, key)
            b = self._value(inner, key) if a is not None else None
            if a is None or b is None:
                return None
            joined = mul(a, inner.sym) + b
            last = self.last_of_vector.get(self.maps.almost_exact(inner))
            if last is not None or not self._divides(split):
                self._bound_source(key, joined if last is None else mul(a, inner.sym) + last, source.sym, less(a, outer.sym))
            return joined
        value = self._value(source, key)
        if value is None:
            return None
        return floordiv(value, inner.sym) if role == "outer" else mod(value, inner.sym)

    def _through_phased_split(self, split: Split, key: IterDomain) -> Sym | None:
        """The index of the source; the last lane of the vector is bounded, so that vectors are whole. If the source is a block's piece of a row, its vectors
        are shifted: the last one ends after the piece, and the bound is that of the row.
        """
        outer = self._value(split.outer(), key)
        lane = self._value(split.inner(), key) if outer is not None else None
        if outer is None or lane is None:  # a split of another tensor, with other loops
            return None
        self.is_phased = True
        piece = split.source().definition()
        if isinstance(piece, Split) and not piece.inner_split:
            return self._through_phased_piece(split, piece, outer, lane, key)
        if self.at_row_end:
            self.bounds[key] = [less(END, split.source().sym)]
            return END
        first = add(mul(outer, split.factor), skipped_variable(split.factor))
        last = add(first, sub(split.factor, 1))
        self._bound_source(key, last, split.source().sym, less(outer, split.outer().sym))
        return add(first, lane)

    def _through_phased_piece(self, split: Split, piece: Split, outer: Sym, lane: Sym, key: IterDomain) -> Sym | None:
        if self.at_row_end:
            self.bounds[key] = []
        block = self._value(piece.outer(), key)
        if block is None:
            return None
        first = add(mul(outer, split.factor), skipped_variable(split.factor))
        if self.at_row_end:
            first = self.last_of_vector[key] = sub(END, mul(block, piece.inner().sym))
            return first
        self.last_of_vector[key] = add(first, sub(split.factor, 1))
        return add(first, lane)

    def _through_overlapping_split(self, split: Split, key: IterDomain) -> Sym | None:
        """The index of the source: the last part is moved back so that it is whole and overlaps the one before."""
        outer = self._value(split.outer(), key)
        lane = self._value(split.inner(), key) if outer is not None else None
        if outer is None or lane is None:
            return None
        at = mul(outer, split.factor)
        found = add(minimum(at, sub(split.source().sym, split.factor)), lane)
        self.repeats[key] = less(sub(at, 1), found)
        return found

    def _bound_source(self, key: IterDomain, value: Sym, extent: Sym, implied: Sym) -> None:
        """Add a bounds check for a split's source. It also covers the outer part, whose own check is dropped."""
        bounds = [b for b in self.bounds.get(key, ()) if b is not implied]
        bound = less(self._without_lane(value, extent), extent)
        if bound is not TRUE and bound not in bounds:
            bounds.append(bound)
        self.bounds[key] = bounds

    def _without_lane(self, value: Sym, extent: Sym) -> Sym:
        """Return the start of the vector that contains `value`, if vectors divide `extent`: it is inside if and only if `value` is."""
        divisor = self.divisors.get(extent, 1)
        for lane in variables(value) if divisor > 1 else ():
            lanes = int(lane.extent.value) if lane.extent is not None and lane.extent.is_const else 1  # type: ignore[arg-type]
            first = sub(value, lane)
            if lanes > 1 and divisor % lanes == 0 and lane not in variables(first) and is_divisible(first, const(lanes)):
                return first
        return value

    def _divides(self, split: Split) -> bool:
        if split.part:
            return mul(split.factor, split.part) is split.source().sym
        source, factor = split.source().sym, mul(split.factor, split.multiple)
        if is_divisible(source, factor):
            return True
        known = self.divisors.get(source)
        return known is not None and factor.is_const and known % factor.value == 0  # type: ignore[operator]

    def _through_merge(self, merge: Merge, role: str, key: IterDomain) -> Sym | None:
        outer, inner, out = merge.outer(), merge.inner(), merge.out()
        if role == "out":
            a = self._value(outer, key)
            b = self._value(inner, key) if a is not None else None
            return None if a is None or b is None else mul(a, inner.sym) + b
        value = self._value(out, key)
        if value is None:
            return None
        if role == "outer":
            return ZERO if outer.is_broadcast() else floordiv(value, inner.sym)
        return value if outer.is_broadcast() and outer.sym is ONE else mod(value, inner.sym)

    def _through_swizzle(self, swizzle: Expr, role: str, key: IterDomain) -> Sym | None:
        x, y = swizzle.inputs
        out_x, out_y = swizzle.outputs
        if role in ("x", "out_x"):
            return self._value(out_x if role == "x" else x, key)  # type: ignore[arg-type]
        a = self._value(out_x if role == "y" else x, key)  # type: ignore[arg-type]
        b = self._value(out_y if role == "y" else y, key)  # type: ignore[arg-type]
        if a is None or b is None:
            return None
        return op("bitwise_xor", (b, mod(a, y.sym)), b.dtype)  # type: ignore[attr-defined]


class TransformTable:
    """The transforms of a fusion by the exact class of the axes that they touch."""

    def __init__(self, maps: AxisMaps) -> None:
        self._table: dict[IterDomain, list[tuple[Expr, str]]] = {}
        seen: set[tuple[object, ...]] = set()
        for transform in maps.transforms:
            classes = tuple(maps.almost_exact(a) for a in (*transform.axis_inputs, *transform.axis_outputs))
            for axis, role in _roles(transform):
                key = maps.almost_exact(axis)
                mark = (key, role, type(transform), classes)
                if mark not in seen:
                    seen.add(mark)
                    self._table.setdefault(key, []).append((transform, role))
        for entries in self._table.values():  # backward first: loops are made from the axes
            entries.sort(key=lambda entry: entry[1] in ("outer", "inner", "out", "out_x", "out_y") and not isinstance(entry[0], Merge))

    def touching(self, key: IterDomain) -> list[tuple[Expr, str]]:
        return self._table.get(key, [])


def _roles(transform: Expr) -> list[tuple[IterDomain, str]]:
    if isinstance(transform, Split):
        return [(transform.source(), "source"), (transform.outer(), "outer"), (transform.inner(), "inner")]
    if isinstance(transform, Merge):
        return [(transform.outer(), "outer"), (transform.inner(), "inner"), (transform.out(), "out")]
    if isinstance(transform, Swizzle):
        x, y = transform.inputs
        out_x, out_y = transform.outputs
        return [(x, "x"), (y, "y"), (out_x, "out_x"), (out_y, "out_y")]  # type: ignore[list-item]
    raise InternalError(f"unknown axis transform {type(transform).__name__}")


def place_along(indexer: Indexer, axis: IterDomain, tensor: TensorView) -> Sym:
    """Return where the element of the enclosing loops lies along an axis of a tensor in global memory: at its index, unless the tensor is rolled."""
    axes = no_reductions(tensor.get_logical_domain()) if tensor.domain().rolled else []
    for roll in tensor.domain().rolled:
        together = [axes[a] for a in roll.axes]
        if axis in together:
            index, inner, whole = ZERO, ONE, product(a.sym for a in together)
            for other in together:
                index = add(mul(index, other.sym), indexer.axis_index(other, tensor))
            for other in together[together.index(axis) + 1 :]:
                inner = mul(inner, other.sym)
            place = floordiv(mod(add(index, roll.offset), whole), inner)
            return place if axis is together[0] else mod(place, axis.sym)
    return indexer.axis_index(axis, tensor)


def linear_element(indexer: Indexer, output: TensorView) -> Sym:
    """The row-major position of the element in the logical domain."""
    index: Sym = ZERO
    for axis in no_reductions(output.get_logical_domain()):
        index = mul(index, axis.logical_extent) + indexer.axis_index(axis, output)
    return recombine(index)
