"""Images enlarged by whole numbers with (bi-, tri-)linear interpolation: one operator, whose gradient gathers what each pixel went into.

torch's decomposition computes positions and weights of each result in floating point; its gradient adds to pixels that four indices name: four tensors of the
result's size in float32, each of which torch sorts by its index. Here positions are integers that follow from the pixel and the result's number within it, so
that neighbours share them and each element is loaded once per thread; and each pixel of the gradient takes the sum over a window, with the weights of the
forward. Read first: `enlarge`, `enlarge_backward`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .windows import before, channels_behind, channels_in_front, is_channels_last, sum_of_windows, wide_type

@torch.library.custom_op("weft::enlarge_linear", mutates_args=())
def enlarge_linear(x: Tensor, factors: Sequence[int], is_aligned: bool) -> Tensor:
    """Return an image whose spatial axes have `factors` times as many pixels. is_aligned: the centers of the pixels in corners stay corners."""
    return enlarge(x, factors, is_aligned)


@torch.library.custom_op("weft::enlarge_linear_backward", mutates_args=())
def enlarge_linear_backward(grad: Tensor, factors: Sequence[int], sizes: Sequence[int], is_aligned: bool) -> Tensor:
    """Return the gradient of the image. sizes: of its spatial axes."""
    return enlarge_backward(grad, factors, sizes, is_aligned)


def enlarge(x: Tensor, factors: Sequence[int], is_aligned: bool) -> Tensor:
    """Return the enlarged image, in the memory format of `x`: each result lies between two pixels of each axis, and takes its share of both."""
    is_last, wide = is_channels_last(x), wide_type(x)
    values, first = (channels_behind(x), 1) if is_last else (x, 2)
    lines = [(_aligned_shares if is_aligned else _shares)(n, f, wide, x.device) for n, f in zip(x.shape[2:], factors)]
    behind = [2 * (len(lines) - number) - 2 for number in range(len(lines))]  # axes of the lines behind each one
    everything: list[Any] = [slice(None)] * first
    corners = [
        values[tuple(everything + [before(place, more) for place, more in zip(corner, behind)])].to(wide)
        for corner in itertools.product(*(places for places, _ in lines))
    ]
    for (places, weight), more in reversed(list(zip(lines, behind))):
        if len(places) == 2:
            share = before(weight, more + is_last)
            corners = [low * (1 - share) + high * share for low, high in zip(corners[::2], corners[1::2])]
    out = corners[0].to(x.dtype)
    for axis in range(first, first + len(lines)):
        out = out.flatten(axis, axis + 1)
    return channels_in_front(out) if is_last else out


def enlarge_backward(grad: Tensor, factors: Sequence[int], sizes: Sequence[int], is_aligned: bool) -> Tensor:
    """Return the gradient of the image, in the memory format of `grad`: each pixel takes the results that it is part of, times its weights."""
    line = _aligned_line if is_aligned else _line
    return sum_of_windows(grad, [line(n, f, wide_type(grad), grad.device) for n, f in zip(sizes, factors)]).to(grad.dtype)


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


def _aligned_shares(n: Any, factor: int, wide: torch.dtype, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """The same with aligned corners: result o lies at o * (n - 1) / (n * f - 1). The shares are [n, f]."""
    last = max(1, n * factor - 1)
    dtype = torch.int32 if n * last < 2**31 else torch.int64
    result = torch.arange(n * factor, dtype=dtype, device=device).unflatten(0, (n, factor))
    if factor == 1:
        return [result], torch.ones(1, 1, dtype=wide, device=device)
    steps = result * (n - 1)
    place = torch.div(steps, last, rounding_mode="trunc")
    return [place.clamp(0, n - 1), (place + 1).clamp(0, n - 1)], (steps - place * last).to(wide) * (1 / last)


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


def _aligned_line(n: int, factor: int, wide: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same with aligned corners: the result at o lies at o * (n - 1) / (n * f - 1), which is less than a pixel away from i. In front of the first pixel the
    first place is rounded up: there are no results before it."""
    last, steps = n * factor - 1, max(1, n - 1)
    dtype = torch.int32 if n * last < 2**31 else torch.int64
    k = torch.arange(-(-2 * last // steps) if n > 1 else factor, dtype=dtype, device=device)
    pixel = torch.arange(n, dtype=dtype, device=device)[:, None]
    place = torch.div((pixel - 1) * last, steps, rounding_mode="trunc") + 1 + k if n > 1 else pixel + k
    weight = 1 - (place.to(wide) * ((n - 1) / last if last else 0.0) - pixel).abs()
    return place.clamp(0, last), torch.where((place < 0) | (place > last), 0.0, weight.clamp_min(0.0))


@enlarge_linear.register_fake
def _(x: Tensor, factors: Sequence[int], is_aligned: bool) -> Tensor:
    return enlarge(x, factors, is_aligned)


@enlarge_linear_backward.register_fake
def _(grad: Tensor, factors: Sequence[int], sizes: Sequence[int], is_aligned: bool) -> Tensor:
    return enlarge_backward(grad, factors, sizes, is_aligned)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given = list(inputs[1]), list(inputs[0].shape[2:]), inputs[2]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.weft.enlarge_linear_backward(grad, *ctx.given), None, None


enlarge_linear.register_autograd(_backward, setup_context=_save)

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.weft.enlarge_linear.default: enlarge, torch.ops.weft.enlarge_linear_backward.default: enlarge_backward,
}  # fmt: skip
"""For AOTAutograd."""
