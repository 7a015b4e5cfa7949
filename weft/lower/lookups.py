"""Where a lookup reads: positions of its result's elements in the source, and what a vector of them needs.

Owns the address of a lookup. Positions that index tensors give are variables of the op's own (`position_variable`), which code generation sets before it.
Read first: `lookup_index`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..analysis.lookups import is_part, lookup_run, varying_over
from ..analysis.ranges import is_inside, range_of
from ..expr import (
    ONE, ZERO, Sym, conjunction, const, floordiv, from_terms, is_divisible, less, lower_bound, mod, mul, proves_lt, rebuild, recombine, sub, terms, var,
    variables,
)  # fmt: skip
from ..ir.graph_ops import Along, At, BagOp, Fixed, LookupOp, ScatterStoreOp, named_axes
from ..ir.values import IterDomain, Merge, Split, TensorView, no_reductions
from .indexing import Indexer


def position_variable(lookup: LookupOp, operand: int) -> Sym:
    """The position read from index tensor `operand`, as a variable of the kernel."""
    return var(f"at{operand}_T{lookup.outputs[0].name}", lower=-(1 << 62))


def _positions(lookup: LookupOp) -> Iterator[tuple[IterDomain, object]]:
    """The axes of the source that have, or may have, more than one element in memory, with their positions."""
    return ((axis, place) for axis, place in zip(no_reductions(lookup.source.get_logical_domain()), lookup.positions))


def _position(indexer: Indexer, lookup: LookupOp, place: object) -> Sym:
    output: TensorView = lookup.outputs[0]  # type: ignore[assignment]
    if isinstance(place, Along):
        return indexer.axis_index(no_reductions(output.get_logical_domain())[place.axis], output) + place.offset
    if isinstance(place, At):
        return position_variable(lookup, place.operand)
    assert isinstance(place, Fixed)
    return place.position


def lookup_index(indexer: Indexer, lookup: LookupOp) -> Sym:
    """Return the element of the source that is read in the enclosing loops."""
    strides = lookup.source.strides()
    index: Sym = ZERO
    for axis, place in _positions(lookup):
        if not axis.is_broadcast() and axis in strides:
            index = index + mul(_position(indexer, lookup, place), strides[axis])
    return recombine(index)


def bag_variable(bag: BagOp) -> Sym:
    """The place in the order of the term that is added, as a variable of the kernel."""
    return var(f"k_T{bag.outputs[0].name}", lower=0)


def listed_index(bag: BagOp, listed: TensorView) -> Sym:
    """Return the element that is read of the order, or of the weights."""
    (axis,), strides = no_reductions(listed.get_logical_domain()), listed.strides()
    return mul(bag_variable(bag), strides[axis]) if axis in strides else ZERO


def scatter_variable(expr: ScatterStoreOp) -> Sym:
    """The position read from the index tensor, as a variable of the kernel."""
    return var(f"at_T{expr.outputs[0].name}", lower=0)


def scattered_index(indexer: Indexer, expr: ScatterStoreOp) -> Sym:
    """Return the element of the memory that is written in the enclosing loops."""
    output, strides, targets = expr.tensor_outputs[0], expr.memory.strides(), no_reductions(expr.memory.get_logical_domain())
    index = _place_over(scatter_variable(expr), [a for a in named_axes(expr, targets) if not a.is_broadcast()], strides)
    for dim, axis in enumerate(output.get_logical_domain()):
        place = expr.target_axis(dim)
        if place is not None and targets[place] in strides:
            index = index + mul(indexer.axis_index(axis, output), strides[targets[place]])
    return recombine(index)


def _place_over(position: Sym, axes: list[IterDomain], strides: Mapping[IterDomain, Sym]) -> Sym:
    """Return the element at a position that is counted over axes."""
    if not axes:
        return ZERO
    *outer, last = axes
    if all(strides[a] is mul(strides[b], b.sym) for a, b in zip(axes, axes[1:])):
        return mul(position, strides[last])
    return _place_over(floordiv(position, last.sym), outer, strides) + mul(mod(position, last.sym), strides[last])


def with_known_divisors(index: Sym, divisors: dict[Sym, int]) -> Sym:
    """Return an index with (8 a + i) % n as (8 a) % n + i, for i < 8 and n that 8 divides: the lanes of a vector share the remainder. With a constant n = 8 m
    it is 8 (a % m) + i, and the quotient is a / m."""
    if index.op in ("add", "mul"):
        return rebuild(index, [with_known_divisors(a, divisors) for a in index.args])
    if index.op not in ("mod", "floordiv"):
        return index
    value, divisor = with_known_divisors(index.args[0], divisors), index.args[1]
    for step in _steps(value, divisor, divisors):
        whole = from_terms({key: c for key, c in terms(value).items() if c % step == 0})
        rest = sub(value, whole)
        if rest is ZERO or whole is ZERO or lower_bound(rest) < 0 or not proves_lt(rest, const(step)):
            continue
        if not divisor.is_const:
            return mod(whole, divisor) + rest if index.op == "mod" else floordiv(whole, divisor)
        number, count = floordiv(whole, step), floordiv(divisor, step)
        return mul(mod(number, count), step) + rest if index.op == "mod" else floordiv(number, count)
    return rebuild(index, [value, divisor])


def _steps(value: Sym, divisor: Sym, divisors: dict[Sym, int]) -> list[int]:
    """Return the numbers above 1 that are known to divide a divisor, and that some part of the value is a multiple of; largest first."""
    known = int(divisor.value) if divisor.is_const else divisors.get(divisor, 1)  # type: ignore[arg-type]
    found = {math.gcd(known, c) for key, c in terms(value).items() if key} if divisor.is_const else {known}
    return sorted(found - {1}, reverse=True)


def source_strides(lookup: LookupOp) -> dict[IterDomain, Sym]:
    """Return the stride in the source of each axis of the result; 0 if an index tensor gives the position."""
    axes = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
    strides = lookup.source.strides()
    out: dict[IterDomain, Sym] = dict.fromkeys(axes, ZERO)
    for axis, place in _positions(lookup):
        if isinstance(place, Along):
            out[axes[place.axis]] += strides.get(axis, ZERO)
    for axis in axes:
        if varying_over(lookup, [axis]):
            out[axis] = ZERO
    return out


def inside_source(indexer: Indexer, lookup: LookupOp) -> Sym:
    """Return the condition that the positions of a masked lookup are inside the source."""
    parts = []
    result = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
    if lookup.is_masked:
        for axis, place in _positions(lookup):
            if isinstance(place, Along) and is_part(place.offset, result[place.axis].logical_extent, axis.logical_extent):
                continue
            position, (is_in_front, is_behind) = _position(indexer, lookup, place), _may_be_outside(lookup, axis, place)
            parts += [less(const(-1), position)] if is_in_front else []
            parts += [less(position, axis.logical_extent)] if is_behind else []
    return conjunction(parts)


def _may_be_outside(lookup: LookupOp, axis: IterDomain, place: object) -> tuple[bool, bool]:
    """Tell whether a position may be in front of an axis of the source, and behind it, as far as ranges of counted positions are known."""
    found = range_of(lookup.inputs[place.operand]) if isinstance(place, At) else None
    if found is None:
        return True, True
    return found[0] < 0, not axis.logical_extent.is_const or found[1] >= int(axis.logical_extent.value)  # type: ignore[arg-type]


def checked_positions(lookup: LookupOp) -> dict[int, Sym]:
    """Return the extent that each index tensor's values must be below, and are not known to be; index tensors of masked lookups have none."""
    inside = inside_positions(lookup)
    return {} if lookup.is_masked else {p.operand: axis.logical_extent for axis, p in _positions(lookup) if isinstance(p, At) and p.operand not in inside}


def inside_positions(lookup: LookupOp) -> set[int]:
    """Return the index tensors whose values are known to be inside of the axes that they are positions of."""
    places = [(p.operand, axis.logical_extent) for axis, p in _positions(lookup) if isinstance(p, At)]
    outside = {operand for operand, extent in places if not extent.is_const or not is_inside(lookup.inputs[operand], int(extent.value))}  # type: ignore[arg-type]
    return {operand for operand, _ in places} - outside


def vector_conditions(lookup: LookupOp, lane: IterDomain, elems: int, known: dict[Sym, int]) -> dict[Sym, int]:
    """Return the offsets and sizes that must be divisible by `elems`, so that vectors of the source are aligned, and entirely inside or outside. lane: the
    vectorized loop axis. Vectors may cross the ends of axes that are merged in it, if these are contiguous in memory.
    """
    output: TensorView = lookup.outputs[0]  # type: ignore[assignment]
    axes = no_reductions(output.get_logical_domain())
    strides = lookup.source.strides()
    crossed = _merged_in(lane) & {piece.axis for piece in lookup_run(lookup)}
    wanted: list[Sym] = []
    for axis, place in _positions(lookup):
        stride = strides.get(axis, ZERO)
        if axis.is_broadcast() or stride is ZERO:
            continue
        if stride is not ONE and isinstance(place, Along) and axes[place.axis] in crossed:
            wanted.append(mul(place.offset, stride))
        elif stride is not ONE:
            wanted += () if any(".stride[" in str(v.payload) for v in variables(stride)) else (stride,)  # the host checks strides of inputs anyway
        elif isinstance(place, Along):
            wanted.append(place.offset)
            wanted += (axis.sym,) if lookup.is_masked and axes[place.axis].sym is not axis.sym else ()
    out: dict[Sym, int] = {}
    for size in wanted:
        if not is_divisible(size, elems) and known.get(size, 1) % elems:
            out[size] = elems
    return out


def _merged_in(axis: IterDomain) -> set[IterDomain]:
    """Return the axes that were merged into a loop axis, or into the axis that it is the inner part of."""
    transform = axis.definition()
    if isinstance(transform, Split):
        return _merged_in(transform.source()) if axis is transform.inner() else set()
    if isinstance(transform, Merge):
        return _merged_in(transform.outer()) | _merged_in(transform.inner())
    return {axis}


__all__ = [
    "bag_variable", "checked_positions", "inside_positions", "inside_source", "listed_index", "lookup_index", "position_variable", "scatter_variable",
    "scattered_index", "source_strides", "vector_conditions", "with_known_divisors",
]  # fmt: skip
