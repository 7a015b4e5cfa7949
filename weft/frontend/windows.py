"""Sums over windows of images: the pixels of small windows are added one by one, in one kernel, those of large windows axis by axis, in a kernel for each.
Where an axis has too many, or windows overlap too little, they are a reduction.

A thread has neighbouring results. Where positions are index expressions, the CUDA compiler loads each pixel that their windows share once, and each sum along
the other axis is counted once, too. Read first: `Window`, `sum_of_windows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

MOST_APART = 64
"""Elements of a window that are looked up one by one, at most: each is some nodes of a graph, and a register where a thread has one result."""


@dataclass(frozen=True)
class Window:
    """Which elements of an axis each of its results takes.

    size: how many. at(k) returns the places of their elements k in the axis, and their weights (None: all are 1), with an element for each result if k is a
    number, and of shape [results, size] for the tensor of all k.
    """

    size: int
    at: Callable[[Any], tuple[Tensor, Tensor | None]]


def rows_for(results: Tensor, k: int | Tensor) -> Tensor:
    """Return results [n] so that they can be combined with `k`: [n, 1] with all k."""
    return results[:, None] if isinstance(k, Tensor) else results


def is_channels_last(x: Tensor) -> bool:
    """True if channels are neighbours in memory, and torch keeps that for what it computes of `x`."""
    return suggest_memory_format(x) in (torch.channels_last, torch.channels_last_3d)


def channels_behind(x: Tensor) -> Tensor:
    """Return x [N, C, ...] as [N, ..., C]."""
    return x.permute(0, *range(2, x.dim()), 1)


def channels_in_front(x: Tensor) -> Tensor:
    """Return x [N, ..., C] as [N, C, ...]."""
    return x.permute(0, x.dim() - 1, *range(1, x.dim() - 1))


def before(x: Tensor, count: int) -> Tensor:
    """Return a tensor in front of `count` axes of one element."""
    return x.reshape(*x.shape, *[1] * count) if count else x


def wide_type(x: Tensor) -> torch.dtype:
    """Return the type in which elements are added."""
    return torch.promote_types(x.dtype, torch.float32)


def integers_below(count: int) -> torch.dtype:
    """Return the type for positions among so many elements: 64 bits cost several instructions each."""
    return torch.int32 if count < 2**31 else torch.int64


def counted(count: Any, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return 0, 1, 2 and so on, in a type for positions."""
    return torch.arange(count, dtype=dtype, device=device)


def looked_up(values: Tensor, first: int, places: Sequence[Tensor]) -> Tensor:
    """Return elements [..., n, k, m, l, ...] of an image whose axes from `first` on are looked up at `places` [n, k], [m, l], one of them for each axis."""
    everything: list[Any] = [slice(None)] * first
    return values[tuple(everything + [before(place, 2 * (len(places) - number) - 2) for number, place in enumerate(places)])]


def sum_of_windows(x: Tensor, windows: Sequence[Window]) -> Tensor:
    """Return the weighted sums over windows of an image [N, C, ...] in a type of 32 bits or more, in the memory format of `x`. windows: of the axes behind
    C."""
    is_last = is_channels_last(x)
    values, first = (channels_behind(x), 1) if is_last else (x, 2)
    if math.prod(window.size for window in windows) <= MOST_APART:
        total = _one_by_one(values, first, windows)
    elif pays_by_axes([(values.shape[first + n], len(window.at(0)[0]), window.size) for n, window in enumerate(windows)]):
        total = values
        for number in reversed(range(len(windows))):  # neighbours in memory are shared first, and are whole vectors behind that
            window = windows[number]
            total = (_one_by_one if window.size <= MOST_APART else _reduced)(total, first + number, [window])
    else:
        total = _reduced(values, first, windows)
    return channels_in_front(total) if is_last else total


def pays_by_axes(axes: Sequence[tuple[int, int, int]]) -> bool:
    """Tell whether windows take less than half of the elements axis by axis, the last one first: what is computed along an axis is shared by all windows that
    overlap along the others. axes: elements, results, and elements of a window along each."""
    results = math.prod(count for _, count, _ in axes)
    at_once = results * math.prod(size for _, _, size in axes)
    by_axes, of_axis = 0.0, float(results)
    for elements, count, size in axes:
        by_axes += of_axis * size
        of_axis *= elements / count
    return 2 * by_axes < at_once


def _one_by_one(values: Tensor, first: int, windows: Sequence[Window]) -> Tensor:
    values = values.to(wide_type(values))
    for axis, window in enumerate(windows, start=first):  # results that are neighbours in memory share the sums along the axes before the last one
        terms = []
        for k in range(window.size):
            place, weight = window.at(k)
            term = values.index_select(axis, place)
            terms.append(term if weight is None else term * before(weight, values.dim() - axis - 1))
        values = terms[0]
        for term in terms[1:]:
            values = values + term
    return values


def _reduced(values: Tensor, first: int, windows: Sequence[Window]) -> Tensor:
    lines = [window.at(counted(window.size, values.device)) for window in windows]
    behind = values.dim() - first - len(windows)
    values = looked_up(values, first, [place for place, _ in lines]).to(wide_type(values))
    for number, (_, weight) in enumerate(lines, start=1):  # in front of the axes of the windows behind it, and of the channels
        values = values if weight is None else values * before(weight, 2 * (len(lines) - number) + behind)
    return values.sum([first + 2 * number + 1 for number in range(len(lines))])
