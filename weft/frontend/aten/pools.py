"""Averages over windows of pixels, of one to three axes: torch's pooling ops as sums over windows, for AOTAutograd.

Windows next to each other are views; others are looked up. The gradient of a pixel is a sum over the results that it is part of.
Owns the windows of a pooling op, too. Read first: `Axis`, `average`; `AdaptiveAxis` for windows of a given number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..windows import Window, channels_behind, channels_in_front, counted, is_channels_last, rows_for, sum_of_windows, wide_type

aten = torch.ops.aten


@dataclass(frozen=True)
class Axis:
    """Windows along an axis of n pixels: `count` of them, of `size` pixels, `step` apart, the first one `pad` pixels before the first pixel."""

    n: int
    count: int
    size: int
    step: int
    pad: int
    counts_padding: bool

    @property
    def is_tiled(self) -> bool:
        """True if windows are next to each other and inside the axis."""
        return self.size == self.step and not self.pad and self.count * self.size <= self.n

    @property
    def is_inside(self) -> bool:
        return not self.pad and (self.count - 1) * self.step + self.size <= self.n

    def divisors(self, result: Tensor) -> Tensor:
        """Return how many pixels the windows of these results count."""
        start = result * self.step - self.pad
        if self.counts_padding:
            return (start + self.size).clamp_max(self.n + self.pad) - start
        return (start + self.size).clamp_max(self.n) - start.clamp_min(0)

    @property
    def divisor(self) -> int | None:
        """That number if it is the same for all."""
        first, end = (0, self.n) if not self.counts_padding else (-self.pad, self.n + self.pad)
        starts = (result * self.step - self.pad for result in range(self.count))
        found = {min(start + self.size, end) - max(start, first) for start in starts}
        return found.pop() if len(found) == 1 else None

    def forward(self, wide: torch.dtype, device: torch.device, has_divisor: bool) -> Window:
        """Return the pixels of each result, and their weights: 0 outside of the axis, and the inverse of the divisor, if they are to have one."""

        def at(k: Any) -> tuple[Tensor, Tensor | None]:
            place, is_inside = self.windows(device, k)
            weight = None if self.is_inside else is_inside.to(wide)
            if has_divisor:
                shares = 1 / self.divisors(rows_for(counted(self.count, device), k)).to(wide)
                weight = shares if weight is None else weight * shares
            return place, weight

        return Window(self.size, at)

    def windows(self, device: torch.device, k: Any) -> tuple[Tensor, Tensor]:
        """Return pixels k of the windows of each result, and whether they are in the image. k: a number, or a tensor."""
        place = rows_for(counted(self.count, device), k) * self.step - self.pad + k
        return place.clamp(0, self.n - 1), (place >= 0) & (place < self.n)

    @property
    def results_of_a_pixel(self) -> int:
        return -(-self.size // self.step)

    def backward(self, wide: torch.dtype, device: torch.device, has_divisor: bool) -> Window:
        """Return the results that each pixel is part of, and their weights."""

        def at(k: Any) -> tuple[Tensor, Tensor]:
            place, is_part = self.results(device, k)
            weight = is_part.to(wide)
            return place, weight / self.divisors(place).to(wide) if has_divisor else weight

        return Window(self.results_of_a_pixel, at)

    def results(self, device: torch.device, k: Any) -> tuple[Tensor, Tensor]:
        """Return results k of those whose windows may have each pixel, and whether they have it. k: a number, or a tensor."""
        pixel = rows_for(counted(self.n, device), k) + self.pad
        result = torch.div(pixel, self.step, rounding_mode="trunc") - k
        return result.clamp(0, self.count - 1), (result >= 0) & (result < self.count) & (result * self.step + self.size > pixel)


@dataclass(frozen=True)
class AdaptiveAxis:
    """`count` windows that cover an axis of n pixels and are almost equally long: window i begins at i * n // count, and ends before the first pixel that is
    i * n / count + n / count or more. Other names are those of `Axis`."""

    n: int
    count: int
    is_tiled = False
    divisor = None

    def begin(self, result: Any) -> Any:
        return _quotient(result * self.n, self.count)

    def end(self, result: Any) -> Any:
        return _quotient((result + 1) * self.n + self.count - 1, self.count)

    def first_result(self, pixel: Any) -> Any:
        return _quotient(pixel * self.count, self.n)

    def last_result(self, pixel: Any) -> Any:
        return _quotient((pixel + 1) * self.count + self.n - 1, self.n) - 1

    def forward(self, wide: torch.dtype, device: torch.device, has_divisor: bool) -> Window:
        """Return the pixels of each result, and their weights."""

        def at(k: Any) -> tuple[Tensor, Tensor]:
            result = rows_for(counted(self.count, device), k)
            begin, end = self.begin(result), self.end(result)
            return (begin + k).clamp_max(self.n - 1), (begin + k < end).to(wide) / (end - begin).to(wide)

        return Window(max(self.end(r) - self.begin(r) for r in range(self.count)), at)

    def backward(self, wide: torch.dtype, device: torch.device, has_divisor: bool) -> Window:
        """Return the results that each pixel is part of, and their weights."""

        def at(k: Any) -> tuple[Tensor, Tensor]:
            pixel = rows_for(counted(self.n, device), k)
            result = self.first_result(pixel) + k
            place = result.clamp_max(self.count - 1)
            return place, (result <= self.last_result(pixel)).to(wide) / (self.end(place) - self.begin(place)).to(wide)

        return Window(max(self.last_result(p) - self.first_result(p) + 1 for p in range(self.n)), at)


def _quotient(a: Any, b: int) -> Any:
    """Of numbers that are not negative."""
    return torch.div(a, b, rounding_mode="trunc") if isinstance(a, Tensor) else a // b


def per_axis(given: Any, rank: int) -> list[int]:
    """Return a number for each axis, of which torch takes one for all, also by itself."""
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * rank if len(numbers) == 1 else numbers


def axes_of(x: Tensor, size: Any, step: Any, pad: Any, rounds_up: bool, counts_padding: bool, rank: int = 2) -> list[Axis] | None:
    """Return the windows of the last axes (rank: how many); None for types and sizes that are left to torch."""
    if not _is_pooled(x):
        return None
    found = []
    for n, k, s, p in zip(x.shape[-rank:], per_axis(size, rank), per_axis(step or size, rank), per_axis(pad, rank)):
        count = (n + 2 * p - k + (s - 1) * rounds_up) // s + 1
        count -= rounds_up and (count - 1) * s >= n + p
        if count < 1 or 2 * p > k:  # an error of torch's
            return None
        found.append(Axis(n, count, k, s, p, counts_padding))
    return found


def _is_pooled(x: Tensor) -> bool:
    return x.is_floating_point() and all(isinstance(n, int) for n in x.shape) and 0 not in x.shape


def adaptive_axes_of(x: Tensor, counts: Sequence[int]) -> list[Any] | None:
    """Return the windows of the last axes for so many results; None for types and sizes that are left to torch."""
    if not _is_pooled(x) or not all(isinstance(count, int) and count > 0 for count in counts):
        return None
    sizes = zip(x.shape[-len(counts) :], counts)
    return [AdaptiveAxis(n, count) if n % count else Axis(n, count, n // count, n // count, 0, True) for n, count in sizes]


def _average(x: Tensor, axes: Sequence[Any], override: int | None) -> Tensor:
    """Return the averages; x may lack the axis in front of the channels."""
    if x.dim() < len(axes) + 2:
        return _average(x.unsqueeze(0), axes, override).squeeze(0)
    if all(axis.is_tiled for axis in axes):
        return (_sum_of_tiles(x, axes) / (override or math.prod(axis.size for axis in axes))).to(x.dtype)
    divisor = _divisor(axes, override)
    total = sum_of_windows(x, [axis.forward(wide_type(x), x.device, not divisor) for axis in axes])
    return (total * (1 / divisor) if divisor else total).to(x.dtype)


def _divisor(axes: Sequence[Axis], override: int | None) -> int | None:
    """Return what the sums of all windows are divided by; None if it differs among them."""
    of_axes = [axis.divisor for axis in axes]
    return override or (math.prod(n for n in of_axes if n) if all(of_axes) else None)


def _sum_of_tiles(x: Tensor, axes: Sequence[Axis]) -> Tensor:
    is_last = is_channels_last(x)
    values, first = (channels_behind(x), 1) if is_last else (x, 2)
    for d, axis in enumerate(axes):
        at = first + 2 * d
        values = values.narrow(at, 0, axis.count * axis.size).unflatten(at, (axis.count, axis.size))
    total = values.sum([first + 2 * d + 1 for d in range(len(axes))], dtype=wide_type(x))
    return channels_in_front(total) if is_last else total


def _average_backward(grad: Tensor, x: Tensor, axes: Sequence[Any], override: int | None) -> Tensor:
    if x.dim() < len(axes) + 2:
        return _average_backward(grad.unsqueeze(0), x.unsqueeze(0), axes, override).squeeze(0)
    grad = in_format_of(x, grad)
    if all(axis.is_tiled for axis in axes):
        share = (grad.to(wide_type(grad)) / (override or math.prod(axis.size for axis in axes))).to(grad.dtype)
        return _spread(share, axes, is_channels_last(grad)).to(x.dtype)
    divisor = _divisor(axes, override)
    total = sum_of_windows(grad, [axis.backward(wide_type(grad), grad.device, not divisor) for axis in axes])
    return (total * (1 / divisor) if divisor else total).to(x.dtype)


def in_format_of(x: Tensor, other: Tensor) -> Tensor:
    return other.contiguous(memory_format=torch.channels_last if is_channels_last(x) else torch.contiguous_format)


def _spread(share: Tensor, axes: Sequence[Axis], is_last: bool) -> Tensor:
    """Return each result at all pixels of its tile, and 0 behind the last tile."""
    values, first = (channels_behind(share), 1) if is_last else (share, 2)
    for d, axis in enumerate(axes):
        at = first + d
        shape = [*values.shape[: at + 1], axis.size, *values.shape[at + 1 :]]
        values = values.unsqueeze(at + 1).expand(shape).flatten(at, at + 1)
    left = [axis.n - axis.count * axis.size for axis in axes]
    if any(left):
        values = aten.constant_pad_nd(values, [0, 0] * is_last + [n for rest in reversed(left) for n in (0, rest)], 0.0)
    return channels_in_front(values) if is_last else values


def average(
    x: Tensor, size: Any, step: Any = (), pad: Any = (0,), ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    *, rank: int = 2,
) -> Any:  # fmt: skip
    """torch's avg_pool2d, and its likes of other ranks."""
    axes = axes_of(x, size, step, pad, ceil_mode, count_include_pad, rank)
    return NotImplemented if axes is None else _average(_as_torch_has_it(x, rank), axes, divisor_override)


def _as_torch_has_it(x: Tensor, rank: int) -> Tensor:
    """torch keeps the memory format of images, and not that of volumes."""
    return x if rank < 3 else x.contiguous()


def average_backward(
    grad: Tensor, x: Tensor, size: Any, step: Any, pad: Any, ceil_mode: bool, count_include_pad: bool, divisor_override: int | None, *, rank: int = 2
) -> Any:  # fmt: skip
    """The gradient of `average`."""
    axes = axes_of(x, size, step, pad, ceil_mode, count_include_pad, rank)
    return NotImplemented if axes is None else _average_backward(grad, _as_torch_has_it(x, rank), axes, divisor_override)


def adaptive_average(x: Tensor, counts: Any) -> Any:
    """torch's adaptive_avg_pool2d and adaptive_avg_pool3d, and its likes with fewer results."""
    axes = adaptive_axes_of(x, counts)
    return NotImplemented if axes is None else _average(_as_torch_has_it(x, len(counts)), axes, None)


def adaptive_average_backward(grad: Tensor, x: Tensor, *, rank: int = 2) -> Any:
    """The gradient of `adaptive_average`."""
    axes = adaptive_axes_of(x, grad.shape[-rank:])
    return NotImplemented if axes is None else _average_backward(grad, _as_torch_has_it(x, rank), axes, None)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d.default: average, aten.avg_pool2d_backward.default: average_backward,
    aten.avg_pool3d.default: functools.partial(average, rank=3), aten.avg_pool3d_backward.default: functools.partial(average_backward, rank=3),
    aten._adaptive_avg_pool2d.default: adaptive_average, aten._adaptive_avg_pool2d_backward.default: adaptive_average_backward,
    aten._adaptive_avg_pool3d.default: adaptive_average, aten._adaptive_avg_pool3d_backward.default: functools.partial(adaptive_average_backward, rank=3),
}  # fmt: skip
"""For AOTAutograd."""
