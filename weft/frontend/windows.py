"""Sums over windows of images: the elements of each window are looked up and added, in one kernel. Read first: `sum_of_windows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

Line = tuple[Tensor, "Tensor | None"]
"""Of an axis with n results: the places [n, k] of their k elements, and their weights [n, k]; None: all are 1."""


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


def looked_up(values: Tensor, first: int, places: Sequence[Tensor]) -> Tensor:
    """Return elements [..., n, k, m, l, ...] of an image whose axes from `first` on are looked up at `places` [n, k], [m, l], one of them for each axis."""
    everything: list[Any] = [slice(None)] * first
    return values[tuple(everything + [before(place, 2 * (len(places) - number) - 2) for number, place in enumerate(places)])]


def sum_of_windows(x: Tensor, lines: Sequence[Line]) -> Tensor:
    """Return the weighted sums over windows of an image [N, C, ...] in a type of 32 bits or more, in the memory format of `x`. lines: of each axis behind C."""
    is_last = is_channels_last(x)
    values, first = (channels_behind(x), 1) if is_last else (x, 2)
    values = looked_up(values, first, [place for place, _ in lines]).to(wide_type(x))
    for number, (_, weight) in enumerate(lines, start=1):  # in front of the axes of the lines behind it, and of the channels
        values = values if weight is None else values * before(weight, 2 * (len(lines) - number) + is_last)
    total = values.sum([first + 2 * number + 1 for number in range(len(lines))])
    return channels_in_front(total) if is_last else total
