"""Which pixels of an axis each result of another size takes, and which results each pixel is part of, with weights: linear and cubic interpolation.

Positions are integers, in steps of which a pixel has a known number, so that neighbours share pixels: with an enlargement by a whole number, places follow
from a pixel and the result's number within it, and weights from the latter. Read first: `Axis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .windows import Window, counted, integers_below, rows_for

CUBIC = -0.75
"""torch's parameter of cubic interpolation, the slope of its kernel at 1."""


@dataclass(frozen=True)
class Axis:
    """An axis of n pixels, and its m results, which lie between `pixels` pixels each.

    factor: m / n if it is whole, and corners are not aligned; 0: positions follow from n and m. Only then must these be known.
    Results lie at o * (n - 1) / (m - 1) with aligned corners, else at (o + 1 / 2) * n / m - 1 / 2.
    """

    n: Any
    m: Any
    factor: int
    is_aligned: bool
    pixels: int

    @property
    def reach(self) -> int:
        """Pixels have a part in results at less than this distance."""
        return self.pixels // 2

    @property
    def steps(self) -> tuple[int, int, int]:
        """Steps from a result to the next, from pixel 0 to the first result, and of a pixel."""
        if self.factor:
            return 2, 1 - self.factor, 2 * self.factor
        return (self.n - 1, 0, max(1, self.m - 1)) if self.is_aligned else (2 * self.n, self.n - self.m, 2 * self.m)

    def forward(self, wide: torch.dtype, device: torch.device) -> Window:
        """Return the pixels that each result takes: where they are outside of the image, the first or the last one."""
        if self.factor == 1:
            return Window(1, lambda k: (rows_for(counted(self.n, device), k), None))
        first, share = self._between(wide, device)

        def at(k: int) -> tuple[Tensor, Tensor]:
            place = (first + (k + 1 - self.reach)).clamp(0, self.n - 1)
            return place.flatten(), weight_of(share, k, self.pixels).expand(place.shape).flatten()

        return Window(self.pixels, at)

    def _between(self, wide: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the pixels at or before each result, and the share of the pixel behind. With a factor they are [n, factor] and [1, factor], else [m]."""
        step, first, per_pixel = self.steps
        if self.factor:
            k = counted(self.factor, device)[None]
            steps = k * step + (first + per_pixel)
            whole = torch.div(steps, per_pixel, rounding_mode="trunc")
            return counted(self.n, device)[:, None] + (whole - 1), (steps - whole * per_pixel).to(wide) / per_pixel
        steps = counted(self.m, device, self._integers) * step + (first + per_pixel)  # from a pixel in front of the image on, so that none is negative
        whole = torch.div(steps, per_pixel, rounding_mode="trunc")
        return whole - 1, (steps - whole * per_pixel).to(wide) * (1 / per_pixel)

    @property
    def _integers(self) -> torch.dtype:
        return torch.int32 if self.factor else integers_below((2 * self.m + 3) * (2 * self.n + 3) * self.reach)

    def backward(self, wide: torch.dtype, device: torch.device) -> Window:
        """Return the results that each pixel is part of, and its weights in them, 0 for results that do not exist."""
        if self.factor == 1:
            return Window(1, lambda k: (rows_for(counted(self.n, device), k), None))
        pixels = counted(self.n, device, self._integers)

        def at(k: Any) -> tuple[Tensor, Tensor]:
            pixel = rows_for(pixels, k)
            place, distance = self._results(pixel, k, wide)
            weight = _tensor(kernel_at(distance, self.pixels), wide, device)
            for border, away in ((0, 1), (self.n - 1, -1)):  # parts of pixels outside of the image, which are those of the first or the last one
                more = sum(kernel_at(distance + away * p, self.pixels) for p in range(1, self.reach + 1))
                weight = torch.where(pixel == border, weight + more, weight)
            return place.clamp(0, self.m - 1), torch.where((place < 0) | (place >= self.m), 0.0, weight)

        return Window(self._results_of_a_pixel, at)

    @property
    def _results_of_a_pixel(self) -> int:
        """Return how many results lie at less than `reach` from a pixel, at most."""
        if self.factor:
            return 2 * self.reach * self.factor - self.factor % 2
        step, _, per_pixel = self.steps
        return -(-2 * self.reach * per_pixel // step) if step else self.m

    def _results(self, pixel: Tensor, k: Any, wide: torch.dtype) -> tuple[Tensor, Any]:
        """Return results k of those that may lie near each pixel, and how far, in pixels."""
        step, first, per_pixel = self.steps
        if self.factor:
            number = k + ((self.factor - 1) // 2 + 1 - self.reach * self.factor)  # from the first result of the pixel on
            steps = number * step + first
            return pixel * self.factor + number, (steps.to(wide) if isinstance(steps, Tensor) else steps) / per_pixel
        if not step:  # one pixel with aligned corners
            return pixel + k, (pixel * 0).to(wide)
        least = self.reach * per_pixel + max(0, first)
        place = _floor((pixel - self.reach) * per_pixel - first, step, least) + 1 + k
        return place, (place * step + first - pixel * per_pixel).to(wide) * (1 / per_pixel)


def _floor(x: Tensor, divisor: int, least: int) -> Tensor:
    """Return x / divisor, rounded down. x is -least or more, so that a division of numbers that are not negative will do, which takes fewer instructions."""
    shift = -(-least // divisor)
    return torch.div(x + divisor * shift, divisor, rounding_mode="trunc") - shift


def weight_of(share: Tensor, k: int, pixels: int) -> Tensor:
    """Return the weight of pixel k of those that a result lies between. share: how far it lies from the one before it, in pixels, from 0 to below 1."""
    rest = 1 - share
    if pixels == 2:
        return share if k else rest
    near, far = (share, rest) if k < 2 else (rest, share)  # of the pixel: its distance, or 1 less, and the rest
    if k in (0, 3):
        return far * far * near * CUBIC
    return ((CUBIC + 2) * near - (CUBIC + 3)) * (near * near) + 1


def kernel_at(distance: Any, pixels: int) -> Any:
    """Return the weight of a pixel in a result at this distance, a tensor or a number. Linear: 1 - |d| below 1. Cubic: (a + 2) |d|^3 - (a + 3) |d|^2 + 1
    below 1, and a (|d|^3 - 5 |d|^2 + 8 |d| - 4) from there to 2."""
    within_one = _not_negative(1 - abs(distance))
    if pixels == 2:
        return within_one
    within_two = _not_negative(2 - abs(distance))
    return (1 - within_two) * (within_two * within_two) * CUBIC + (4 * CUBIC + 3 - 2 * within_one) * (within_one * within_one)


def _tensor(x: Any, wide: torch.dtype, device: torch.device) -> Tensor:
    return x if isinstance(x, Tensor) else torch.full((), x, dtype=wide, device=device)


def _not_negative(x: Any) -> Any:
    return x.clamp_min(0) if isinstance(x, Tensor) else max(x, 0.0)
