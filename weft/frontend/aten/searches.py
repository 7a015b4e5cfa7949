"""The few largest of a row, and places in sorted lists of numbers: topk, bucketize, searchsorted, and which row a repetition is of. Read first: `place_in`."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...ops.build import logical_axes
from ...ops.largest import MOST, TYPES
from ...reference.torch_types import torch_dtype_to_nvfuser_dtype
from .rules import Declined, Operand, Translation, meta_of, rule

aten = torch.ops.aten
MOST_SEARCHED = 1 << 16
"""Numbers in a list, up to which a kernel searches it: each of its 16 steps waits for the one before, and from here on a list is no longer in L1."""


def _short_list(node: torch.fx.Node) -> str:
    """Why torch searches, or ""."""
    places, values = (1, 0) if node.target is aten.bucketize.Tensor else (0, 1)
    bounds, given = meta_of(node.args[places]), meta_of(node.args[values])
    if node.kwargs.get("sorter") is not None:
        return "a search in a list that is given with its order"
    if not bounds.dim() or not isinstance(bounds.shape[-1], int) or bounds.shape[-1] > MOST_SEARCHED:
        return f"a search in lists of more than {MOST_SEARCHED} numbers, or of an open number"
    if given.dtype.is_complex or not given.dim():
        return "a search for a single number"
    return "" if bounds.numel() < given.numel() or given.numel() == 0 else "a search for fewer numbers than the list has"


@rule(aten.bucketize.Tensor, claims=_short_list)
def bucketize(t: Translation, x: Operand, bounds: Operand, *, out_int32: bool = False, right: bool = False) -> Operand:
    return place_in(t, bounds, x, right)


@rule(aten.searchsorted.Tensor, claims=_short_list)
def searchsorted(t: Translation, bounds: Operand, x: Operand, *, right: bool = False, side: str | None = None, **_: Any) -> Operand:
    if side == "left" and right:
        raise Declined("a search from both sides")
    return place_in(t, bounds, x, right or side == "right")


def _known_count(node: torch.fx.Node) -> str:
    """Why torch repeats positions, or ""."""
    counts, size = meta_of(node.args[0]), node.kwargs.get("output_size")
    if not isinstance(size, int):
        return "as many repetitions as data says; output_size= gives their number"
    if not isinstance(counts.shape[0], int) or counts.shape[0] > MOST_SEARCHED:
        return f"repetitions of an open number of positions, or of more than {MOST_SEARCHED}"
    return "" if counts.shape[0] < size else "fewer repetitions than positions"


@rule(aten.repeat_interleave.Tensor, claims=_known_count)
def repeat_interleave(t: Translation, counts: Operand, *, output_size: int) -> Operand:
    """0 counts[0] times, then 1 counts[1] times, and so on: each belongs to the first one whose last repetition is not before it."""
    ends = t.ops.cumsum(t.to(counts, torch.int64), 0)
    return place_in(t, ends, t.ops.iota(t.constant(output_size, torch.int64), dtype=t.dtype(torch.int64)), True, torch.int64)


def place_in(t: Translation, bounds: Operand, x: Operand, right: bool, dtype: torch.dtype | None = None) -> Operand:
    """Return how many numbers of the sorted list `bounds` are less than each of x (right: not larger); for a NaN all of them. Each step halves what is left.
    bounds: one list for all of x, or one for each row. dtype: in which numbers are compared; by default that of the node's operands."""
    is_one, shape = t.rank(bounds) == 1, [x.size(d) for d in range(t.rank(x))]
    count = int(logical_axes(bounds)[-1].logical_extent.value)  # type: ignore[arg-type]
    dtype = dtype or t.compute_dtype(Kind.DEFAULT, *t.node.args[:2])
    flat, bounds = t.to(t.ops.reshape(x, new_shape=[-1]) if is_one and len(shape) > 1 else x, dtype), t.to(bounds, dtype)
    is_beyond = t.ops.gt if right else t.ops.ge

    def number(value: int) -> Operand:
        return t.fd.define_scalar(value, dtype=t.dtype(torch.int32))

    place = t.ops.where(t.ops.ne(flat, flat), number(0), number(0))
    for bit in reversed(range(count.bit_length())):
        last = t.ops.add(place, number((1 << bit) - 1))  # of the numbers that are all before x if it is
        inside = t.ops.le(last, number(count - 1))
        at = t.ops.where(inside, last, number(0))
        found = t.ops.index_select(bounds, at, 0) if is_one else t.ops.gather(bounds, at, len(shape) - 1)
        is_before = t.ops.logical_and(inside, t.ops.logical_not(is_beyond(found, flat)))
        place = t.ops.where(is_before, t.ops.add(last, number(1)), place)
    place = t.to(place, t.result_dtype)
    return t.ops.reshape(place, new_shape=shape) if is_one and len(shape) > 1 else place


# ---------------------------------------------------------------- the few largest
def _few(node: torch.fx.Node) -> str:
    """Why torch finds them, or ""."""
    value, k = meta_of(node.args[0]), node.args[1]
    if not isinstance(k, int) or not 1 <= k <= MOST or not value.dim():
        return f"topk of none, of more than {MOST}, or of a number"
    if torch_dtype_to_nvfuser_dtype(value.dtype) not in TYPES:
        return f"topk of {value.dtype}"
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", -1)
    return "" if statically_known_true(value.shape[dim] >= k) else "topk of a row whose length is not known to be enough"


@rule(aten.topk.default, claims=_few)
def topk(t: Translation, x: Operand, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return t.ops.topk(x, k, dim % t.rank(x), largest, sorted)


__all__: list[str] = []
