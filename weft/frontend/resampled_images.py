"""Images of another size by (bi-, tri-)linear interpolation: one operator, whose gradient gathers what each pixel went into.

torch's decomposition computes positions and weights of each result in floating point; its gradient adds to pixels that four indices name: four tensors of the
result's size in float32, each of which torch sorts by its index. Here positions are integers that follow from the pixel and the result's number within it, so
that neighbours share them and each element is loaded once per thread; and each pixel of the gradient takes the sum over a window, with the weights of the
forward. Read first: `resize`, `resize_backward`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .windows import Line, before, channels_behind, channels_in_front, integers_below, is_channels_last, looked_up, sum_of_windows, wide_type

@torch.library.custom_op("weft::resize_linear", mutates_args=())
def resize_linear(x: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool) -> Tensor:
    """Return an image [N, C, ...] of another size. factors: how many times as many pixels each spatial axis gets; 0: as many as `sizes` says, where 0 stands
    for the others. is_aligned: the centers of the pixels in corners stay corners."""
    return resize(x, sizes, factors, is_aligned)


@torch.library.custom_op("weft::resize_linear_backward", mutates_args=())
def resize_linear_backward(grad: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool) -> Tensor:
    """Return the gradient of the image. sizes: of its spatial axes."""
    return resize_backward(grad, sizes, factors, is_aligned)


def resize(x: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool) -> Tensor:
    """Return the image, in the memory format of `x`: each result lies between two pixels of each axis, and takes its share of both."""
    is_last, wide = is_channels_last(x), wide_type(x)
    values, first = (channels_behind(x), 1) if is_last else (x, 2)
    lines = [
        _shares(n, f, wide, x.device) if f == 1 or f and not is_aligned else _any_shares(n, m or n * f, is_aligned, wide, x.device)
        for n, m, f in zip(x.shape[2:], sizes, factors)
    ]
    behind = [2 * (len(lines) - number) - 2 for number in range(len(lines))]  # axes of the lines behind each one
    corners = [looked_up(values, first, corner).to(wide) for corner in itertools.product(*(places for places, _ in lines))]
    for (places, weight), more in reversed(list(zip(lines, behind))):
        if len(places) == 2:
            share = before(weight, more + is_last)
            corners = [low * (1 - share) + high * share for low, high in zip(corners[::2], corners[1::2])]
    out = corners[0].to(x.dtype)
    for axis in range(first, first + len(lines)):
        out = out.flatten(axis, axis + 1)
    return channels_in_front(out) if is_last else out


def resize_backward(grad: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool) -> Tensor:
    """Return the gradient of the image, in the memory format of `grad`: each pixel takes the results that it is part of, times its weights."""
    wide, lines = wide_type(grad), list[Line]()
    for n, m, f in zip(sizes, grad.shape[2:], factors):
        if f and not is_aligned:
            lines.append(_line(n, f, wide, grad.device))
        else:
            lines.append((_aligned_line if is_aligned else _any_line)(n, m, wide, grad.device))
    return sum_of_windows(grad, lines).to(grad.dtype)


def _shares(n: Any, factor: int, wide: torch.dtype, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Return the pixels [n, f] at or before each result and those behind it, and the share of the latter, [1, f].

    Result k of pixel i lies at i + (2 * k + 1 - f) / (2 * f). In front of the first pixel and behind the last one both are that pixel.
    """
    pixel = torch.arange(n, dtype=torch.int32, device=device)[:, None]
    if factor == 1:
        return [pixel], torch.ones(1, 1, dtype=wide, device=device)
    k = torch.arange(factor, dtype=torch.int32, device=device)[None]
    before = (2 * k + 1 < factor).to(torch.int32)
    share = (2 * k + 1 - factor).to(wide) / (2 * factor) + before
    return [(pixel - before).clamp(0, n - 1), (pixel + 1 - before).clamp(0, n - 1)], share


def _any_shares(n: int, m: int, is_aligned: bool, wide: torch.dtype, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """The same [m, 1] for n pixels and any number of results, with shares [m, 1]."""
    steps, per_pixel = _positions(torch.arange(m, dtype=_integers(n, m), device=device)[:, None], n, m, is_aligned)
    steps = steps.clamp_min(0)
    place = torch.div(steps, per_pixel, rounding_mode="trunc")
    return [place.clamp(0, n - 1), (place + 1).clamp(0, n - 1)], (steps - place * per_pixel).to(wide) * (1 / per_pixel)


def _positions(result: Tensor, n: int, m: int, is_aligned: bool) -> tuple[Tensor, int]:
    """Return where results lie, in steps, and the steps of a pixel: result o at o * (n - 1) / (m - 1) with aligned corners, else at
    (o + 1 / 2) * n / m - 1 / 2."""
    return (result * (n - 1), max(1, m - 1)) if is_aligned else ((2 * result + 1) * n - m, 2 * m)


def _integers(n: int, m: int) -> torch.dtype:
    return integers_below((2 * m + 3) * (2 * n + 3))


def _line(n: Any, factor: int, wide: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the results [n, k] that each of n pixels is part of, and its weights in them, 0 for those that do not exist.

    With factor f, pixel i is part of the results at f * i - f // 2 + k for k from 0 to 2 * f - 1. Their distance to it, in pixels, is
    |d| = |(k - f // 2 + 1 / 2) / f - 1 / 2|, and its weight is 1 - |d|, or 1 in front of the first pixel and behind the last one.
    """
    before = factor // 2
    k = torch.arange(2 * factor - factor % 2, dtype=torch.int32, device=device)
    pixel = torch.arange(n, dtype=torch.int32, device=device)[:, None]
    place = pixel * factor + (k - before)
    distance = (k.to(wide) - (before - 0.5)) / factor - 0.5
    is_alone = (pixel == 0) & (distance < 0) | (pixel == n - 1) & (distance > 0)
    weight = torch.where(is_alone, 1.0, 1 - distance.abs())
    return place.clamp(0, n * factor - 1), torch.where((place < 0) | (place >= n * factor), 0.0, weight)


def _aligned_line(n: int, m: int, wide: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same with aligned corners, for any number m of results: those at less than a pixel from i."""
    last, steps, dtype = m - 1, max(1, n - 1), _integers(n, m)
    k = torch.arange(max(1, -(-2 * last // steps)) if n > 1 else m, dtype=dtype, device=device)
    pixel = torch.arange(n, dtype=dtype, device=device)[:, None]
    place = _floor((pixel - 1) * last, steps, last) + (1 if last else 0) + k if n > 1 else pixel + k
    weight = 1 - (place.to(wide) * ((n - 1) / last if last else 0.0) - pixel).abs()
    return place.clamp(0, last), torch.where((place < 0) | (place > last), 0.0, weight.clamp_min(0.0))


def _floor(x: Tensor, divisor: int, least: int) -> Tensor:
    """Return x / divisor, rounded down. x is -least or more, so that a division of numbers that are not negative will do, which takes fewer instructions."""
    shift = -(-least // divisor)
    return torch.div(x + divisor * shift, divisor, rounding_mode="trunc") - shift


def _any_line(n: int, m: int, wide: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same without, for any number m of results. Those in front of the first pixel, or behind the last one, are that pixel."""
    dtype = _integers(n, m)
    k = torch.arange(-(-2 * m // n), dtype=dtype, device=device)
    pixel = torch.arange(n, dtype=dtype, device=device)[:, None]
    place = _floor((2 * pixel - 1) * m - n, 2 * n, m + n) + 1 + k
    steps, per_pixel = _positions(place, n, m, False)
    distance = (steps.clamp_min(0) - pixel * per_pixel).to(wide) * (1 / per_pixel)
    weight = torch.where((pixel == n - 1) & (distance > 0), 1.0, (1 - distance.abs()).clamp_min(0.0))
    return place.clamp(0, m - 1), torch.where((place < 0) | (place >= m), 0.0, weight)


@resize_linear.register_fake
def _(x: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool) -> Tensor:
    return resize(x, sizes, factors, is_aligned)


@resize_linear_backward.register_fake
def _(grad: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool) -> Tensor:
    return resize_backward(grad, sizes, factors, is_aligned)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given = list(inputs[0].shape[2:]), list(inputs[2]), inputs[3]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return torch.ops.weft.resize_linear_backward(grad, *ctx.given), None, None, None


resize_linear.register_autograd(_backward, setup_context=_save)

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.weft.resize_linear.default: resize, torch.ops.weft.resize_linear_backward.default: resize_backward,
}  # fmt: skip
"""For AOTAutograd."""
