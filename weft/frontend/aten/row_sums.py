"""Sums of the rows that an index sends to the same row: two ops of weft's own, between which `weft.frontend.row_sums` chooses, and one for their extrema.

`added_rows` adds them atomically, in the order in which they come. `sorted_row_sums` is behind a sort of the index: the rows of each sum are neighbours in the
order of the sort, and a kernel adds them one after the other: the same bits in every run, each row read once. An index may name one row thousands of times, so
whole chunks of the order that belong to one row are added first, each on its own, and so are chunks of chunks. Read first: `sorted_row_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...ops.torch_ops import SCATTERED
from .rules import Operand, Translation, meta_of, rule
from .shapes import cut

Terms = tuple[Operand, Operand | None, Operand | None]
"""Values, their order (None: as they are), and weights (None: none)."""
_LIBRARY = torch.library.Library("weft", "FRAGMENT")  # noqa: TOR901  (for as long as the process runs)
_LIBRARY.define("sorted_row_sums(Tensor values, Tensor order, Tensor keys, Tensor starts, Tensor? weights=None) -> Tensor")

CHUNK = 64
"""Places of the order, or chunks, that are added one after the other: a power of two."""
LONGEST = 4 * CHUNK
"""So many are not split: a thread loads eight at a time."""


def _in_torch(values: Tensor, order: Tensor, keys: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return row v as the sum of values[order[k]] * weights[k] for k from starts[v] to starts[v + 1]. keys: the sorted index, of any number for each row."""
    rows = starts.numel() - 1
    wide = torch.promote_types(values.dtype, torch.float32) if values.is_floating_point() else values.dtype
    out = torch.zeros(rows + 1, *values.shape[1:], dtype=wide, device=values.device)
    terms = values[order].to(wide)
    terms = terms if weights is None else terms * weights.to(wide).reshape(-1, *(1 for _ in values.shape[1:]))
    row = torch.bucketize(torch.arange(order.numel(), device=order.device), starts, right=True).sub(1)
    return out.index_add_(0, row, terms)[:rows].to(values.dtype)


def _fake(values: Tensor, order: Tensor, keys: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    return values.new_empty((starts.shape[0] - 1, *values.shape[1:]))


_LIBRARY.impl("sorted_row_sums", _in_torch, "CompositeExplicitAutograd")
torch.library.register_fake("weft::sorted_row_sums", _fake, lib=_LIBRARY)


def _added_in_torch(base: Tensor | None, values: Tensor, index: Tensor, dim: int, rows: int, skips: bool = False) -> Tensor:
    """Return base, or zeros, with values[a, p, r] added to [a, index[p], r] for all a, p, r. dim: the axis of the result that the index names, of `rows`
    elements, and the first of its own among those of the values. skips: positions outside are left out."""
    last = dim + index.dim() - 1
    wide = torch.promote_types(values.dtype, torch.float32) if values.is_floating_point() else values.dtype
    flat, place = values.to(wide).flatten(dim, last), index.flatten()
    if skips:
        is_inside = (place >= 0) & (place < rows)
        flat, place = flat.index_select(dim, is_inside.nonzero()[:, 0]), place[is_inside]
    begun = values.new_zeros(_shape_of_sums(values, index, dim, rows), dtype=wide) if base is None else base.to(wide)
    return begun.index_add(dim, place, flat).to(values.dtype)


def _added_fake(base: Tensor | None, values: Tensor, index: Tensor, dim: int, rows: int, skips: bool = False) -> Tensor:
    return values.new_empty(_shape_of_sums(values, index, dim, rows))


def _shape_of_sums(values: Any, index: Any, dim: int, rows: Any) -> list[Any]:
    return [*values.shape[:dim], rows, *values.shape[dim + index.dim() :]]


_LIBRARY.define("added_rows(Tensor? base, Tensor values, Tensor index, int dim, SymInt rows, bool skips=False) -> Tensor")
_LIBRARY.impl("added_rows", _added_in_torch, "CompositeExplicitAutograd")
torch.library.register_fake("weft::added_rows", _added_fake, lib=_LIBRARY)


@rule(torch.ops.weft.added_rows.default)
def added_rows(t: Translation, base: Operand | None, values: Operand, index: Operand, dim: int, rows: Any, skips: bool = False) -> Operand:
    """Sums in an order of their own in each run; 16-bit floats are added in float32."""
    before, behind = dim, t.rank(values) - dim - t.rank(index)
    if before or behind:
        index = t.ops.broadcast(index, is_broadcast_dim=[True] * before + [False] * t.rank(index) + [True] * behind)
    values = t.wide(values)
    if base is None:
        base = t.ops.full(t.extents(meta_of(t.node).shape), t.zero(values), values.dtype())
    return t.to(t.ops.scatter_rows(t.wide(base), index, values, dim, "sum", skips), t.result_dtype)


def _combined_in_torch(base: Tensor, values: Tensor, index: Tensor, dim: int, kind: str) -> Tensor:
    """Return base with the values combined into it at the positions of the index along dim, as `scatter_reduce`. index: of one element along axes that it does
    not vary along."""
    return base.scatter_reduce(dim, index.expand(values.shape).long(), values, SCATTERED[kind])


_LIBRARY.define("combined_rows(Tensor base, Tensor values, Tensor index, int dim, str kind) -> Tensor")
_LIBRARY.impl("combined_rows", _combined_in_torch, "CompositeExplicitAutograd")
torch.library.register_fake("weft::combined_rows", lambda base, values, index, dim, kind: base.new_empty(base.shape), lib=_LIBRARY)


@rule(torch.ops.weft.combined_rows.default)
def combined_rows(t: Translation, base: Operand, values: Operand, index: Operand, dim: int, kind: str) -> Operand:
    """Extrema are those of torch: a NaN stays. Those of 16 bits are not rounded either where the values are not, as the gradient compares the two."""
    return t.ops.scatter_rows(t.wide(base), index, t.wide(values), dim, kind)


@rule(torch.ops.weft.sorted_row_sums.default)
def sorted_row_sums(t: Translation, values: Operand, order: Operand, keys: Operand, starts: Operand, weights: Operand | None = None) -> Operand:
    """Sums of the rows from one start to the next."""
    values = t.to(values, meta_of(t.node.args[0]).dtype)  # it is stored: 16 bits where torch has them
    if weights is not None:
        weights = t.to(weights, meta_of(t.node.args[4]).dtype)
    rows, count = int(meta_of(t.node.args[3]).shape[0]) - 1, meta_of(t.node.args[1]).shape[0]
    limits = cut(t, starts, 0, 0, rows), cut(t, starts, 0, 1, rows + 1)
    known = count if isinstance(count, int) else None
    return t.to(_sums(t, (values, order, weights), limits, keys, _Level(1, known)), t.result_dtype)


@dataclass(frozen=True)
class _Level:
    """Of chunks: each has `places` of the order. count: of chunks, None if it is not known."""

    places: int
    count: int | None


def _sums(t: Translation, terms: Terms, limits: tuple[Operand, Operand], keys: Operand, level: _Level) -> Operand:
    """Return the sums of terms between limits, of which the first is never behind the second: those before the first whole chunk, the chunks, and those
    behind them."""
    o, (first, end) = t.ops, limits
    if level.places > 1 and level.count is None or level.count is not None and level.count < LONGEST:
        return o.bag_sum(terms[0], first, end, *terms[1:])
    chunks, shift = _chunks(t, terms, keys, level), CHUNK.bit_length() - 1
    low, high = o.bitwise_right_shift(o.add(first, CHUNK - 1), shift), o.bitwise_right_shift(end, shift)
    is_long = o.lt(low, high)
    before = o.bag_sum(terms[0], first, o.where(is_long, o.mul(low, CHUNK), end), *terms[1:])
    within = o.where(is_long, low, 0), o.where(is_long, high, 0)
    whole = _sums(t, (chunks, None, None), within, keys, _Level(level.places * CHUNK, level.count and level.count // CHUNK))
    behind = o.bag_sum(terms[0], o.where(is_long, o.mul(high, CHUNK), end), end, *terms[1:])
    return o.add(o.add(before, whole), behind)


def _chunks(t: Translation, terms: Terms, keys: Operand, level: _Level) -> Operand:
    """Return the sum of each chunk of terms whose places all belong to one sum; 0 for others."""
    o, places = t.ops, level.places * CHUNK
    length: Any = o.div(keys.size(0), places) if level.count is None else level.count // CHUNK
    begin = o.iota(length, 0, CHUNK, t.dtype(torch.int32))
    at = begin if level.places == 1 else o.mul(begin, level.places)
    ends = o.index_select(keys, at, 0), o.index_select(keys, o.add(at, places - 1), 0)
    return o.bag_sum(terms[0], begin, o.where(o.eq(*ends), o.add(begin, CHUNK), begin), *terms[1:])


__all__ = ["LONGEST", "CHUNK", "added_rows", "combined_rows", "sorted_row_sums"]
