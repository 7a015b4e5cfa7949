"""Sums of the rows that an index sends to the same row: an op of weft's own, behind a sort of the index (`weft.frontend.row_sums`).

The rows of each sum are neighbours in the order of the sort, and a kernel adds them one after the other: the same bits in every run, each row read once.
An index may name one row thousands of times, so whole chunks of the order that belong to one row are added first, each on its own. Read first:
`sorted_row_sums`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .rules import Operand, Translation, meta_of, rule
from .shapes import cut

_LIBRARY = torch.library.Library("weft", "FRAGMENT")  # noqa: TOR901  (for as long as the process runs)
_LIBRARY.define("sorted_row_sums(Tensor values, Tensor order, Tensor keys, Tensor starts, int chunk, Tensor? weights=None) -> Tensor")


def _in_torch(values: Tensor, order: Tensor, keys: Tensor, starts: Tensor, chunk: int, weights: Tensor | None = None) -> Tensor:
    """Return row v as the sum of values[order[k]] * weights[k] for k from starts[v] to starts[v + 1]. keys: the sorted index. chunk: a power of two."""
    rows = starts.numel() - 1
    wide = torch.promote_types(values.dtype, torch.float32) if values.is_floating_point() else values.dtype
    out = torch.zeros(rows + 1, *values.shape[1:], dtype=wide, device=values.device)
    terms = values[order].to(wide)
    terms = terms if weights is None else terms * weights.to(wide).reshape(-1, *(1 for _ in values.shape[1:]))
    return out.index_add_(0, keys.clamp(0, rows), terms)[:rows].to(values.dtype)


def _fake(values: Tensor, order: Tensor, keys: Tensor, starts: Tensor, chunk: int, weights: Tensor | None = None) -> Tensor:
    return values.new_empty((starts.shape[0] - 1, *values.shape[1:]))


_LIBRARY.impl("sorted_row_sums", _in_torch, "CompositeExplicitAutograd")
torch.library.register_fake("weft::sorted_row_sums", _fake, lib=_LIBRARY)


@rule(torch.ops.weft.sorted_row_sums.default)
def sorted_row_sums(
    t: Translation, values: Operand, order: Operand, keys: Operand, starts: Operand, chunk: int, weights: Operand | None = None
) -> Operand:  # fmt: skip
    """The rows of a sum before its first whole chunk, its chunks, and the rows behind them."""
    values = t.to(values, meta_of(t.node.args[0]).dtype)  # it is stored: 16 bits where torch has them
    if weights is not None:
        weights = t.to(weights, meta_of(t.node.args[5]).dtype)
    o, rows, count = t.ops, int(meta_of(t.node.args[3]).shape[0]) - 1, meta_of(t.node.args[1]).shape[0]
    first, end = cut(t, starts, 0, 0, rows), cut(t, starts, 0, 1, rows + 1)
    if isinstance(count, int) and count < 2 * chunk:
        return t.to(o.bag_sum(values, first, end, order, weights), t.result_dtype)
    chunks, shift = _chunks(t, (values, order, weights), keys, chunk), chunk.bit_length() - 1
    low, high = o.bitwise_right_shift(o.add(first, chunk - 1), shift), o.bitwise_right_shift(end, shift)
    is_long = o.lt(low, high)
    before = o.bag_sum(values, first, o.where(is_long, o.mul(low, chunk), end), order, weights)
    whole = o.bag_sum(chunks, o.where(is_long, low, 0), o.where(is_long, high, 0))
    behind = o.bag_sum(values, o.where(is_long, o.mul(high, chunk), end), end, order, weights)
    return t.to(o.add(o.add(before, whole), behind), t.result_dtype)


def _chunks(t: Translation, terms: tuple[Operand, Operand, Operand | None], keys: Operand, chunk: int) -> Operand:
    """Return the sum of each chunk of the order whose rows all belong to one sum; 0 for others."""
    (values, order, weights), o, count = terms, t.ops, meta_of(t.node.args[1]).shape[0]
    length: Any = count // chunk if isinstance(count, int) else o.div(order.size(0), chunk)
    begin = o.iota(length, 0, chunk, t.dtype(torch.int32))
    ends = o.index_select(keys, begin, 0), o.index_select(keys, o.add(begin, chunk - 1), 0)
    return o.bag_sum(values, begin, o.where(o.eq(*ends), o.add(begin, chunk), begin), order, weights)


__all__ = ["sorted_row_sums"]
