"""Steps for `random_compositions.py` as networks have them: norms, gates, attention, quantization, images of another size, rows by indices, segments.

Each is made as the steps there are: from a random generator and the sizes so far. Constants are made from the argument, so that programs run on any device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from further_steps import Make, Step, numbers
from torch import Tensor


def _axis(r: random.Random, shape: Sequence[int]) -> int:
    return r.randrange(len(shape))


def _places(x: Tensor, n: int, below: int, step: int) -> Tensor:
    """n fixed positions below a bound, some of them equal."""
    return torch.arange(n, device=x.device) * step % below


def _layer_norm(r: random.Random, shape: Sequence[int]) -> Step:
    way, n = r.choice(["layer", "rms", "group", "batch", "instance"]), shape[-1]
    made: dict[str, Step] = {
        "layer": lambda x: F.layer_norm(x, x.shape[-1:], numbers(x, n), numbers(x, n, 0.7), 1e-3),
        "rms": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * numbers(x, n),
        "group": lambda x: F.group_norm(x, math.gcd(x.shape[1], 2), eps=0.1), "batch": lambda x: F.batch_norm(x, None, None, training=True, eps=0.1),
        "instance": lambda x: F.instance_norm(x, eps=0.1),
    }  # fmt: skip
    if way == "instance" and (len(shape) < 3 or math.prod(shape[2:]) < 2) or way in ("batch", "group") and math.prod(shape) < 2 * shape[1]:
        way = "layer"
    return made[way]


def _gated(r: random.Random, shape: Sequence[int]) -> Step:
    made: list[Step] = [
        lambda x: F.glu(torch.cat([x, x.flip(-1)], -1), -1), lambda x: F.hardswish(x), lambda x: F.prelu(x, numbers(x, 1)), lambda x: F.mish(x), lambda x: F.elu(x, 0.7),
        lambda x: F.gelu(x, approximate="tanh") * torch.sigmoid(x.mean(0, keepdim=True)), lambda x: F.silu(x) * x.flip(0), lambda x: F.hardtanh(x, -0.7, 0.9),
        lambda x: F.softshrink(x, 0.2) + F.celu(x), lambda x: torch.addcmul(x, x, x.tanh(), value=0.3), lambda x: torch.lerp(x, x.flip(-1), 0.25),
    ]  # fmt: skip
    return r.choice(made)


def _attended(r: random.Random, shape: Sequence[int]) -> Step:
    """Scores of rows with rows, masked or with a bias by distance, and a mixture of the rows."""
    way = r.choice(["causal", "bias", "window", "sigmoid"])

    def attended(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-2], device=x.device)
        far = places[:, None] - places
        scores = (x.unsqueeze(-2) * x.unsqueeze(-3)).sum(-1) * 0.3
        if way == "causal":
            scores = scores.masked_fill(far < 0, float("-inf"))
        elif way == "window":
            scores = torch.where(far.abs() <= 2, scores, -1e4)
        elif way == "bias":
            scores = scores - far.abs().to(x.dtype) * 0.1
        weights = scores.sigmoid() if way == "sigmoid" else scores.softmax(-1)
        return (weights.unsqueeze(-1) * x.unsqueeze(-3)).sum(-2)

    return attended


def _quantized(r: random.Random, shape: Sequence[int]) -> Step:
    """Values rounded to a grid; the gradient passes (a straight-through estimate)."""
    way, d = r.choice(["row", "all", "axis"]), _axis(r, shape)

    def quantized(x: Tensor) -> Tensor:
        with torch.no_grad():
            largest = x.abs().amax() if way == "all" else x.abs().amax(d if way == "axis" else -1, keepdim=True)
            scale = largest.clamp(min=1e-3) / 7
        return x * 0.5 + (x.detach() / scale).clamp(-8, 7).trunc().to(torch.int8).to(x.dtype) * scale * 0 + x.clamp(-2 * scale, 3 * scale)

    return quantized


def _resized(r: random.Random, shape: Sequence[int]) -> Step:
    way, factor = r.choice(["nearest", "bilinear", "corners", "area", "shuffle"]), r.choice([2, 0.5, 1.5])

    def resized(x: Tensor) -> Tensor:
        image = x.reshape(1, -1, *x.shape[-2:])
        if way == "shuffle":
            return F.pixel_unshuffle(F.interpolate(image, scale_factor=2), 2).reshape(*x.shape[:-2], -1, x.shape[-1])
        mode = {"corners": "bilinear"}.get(way, way)
        size = [max(1, int(n * factor)) for n in x.shape[-2:]]
        image = F.interpolate(image, size, mode=mode, **({"align_corners": way == "corners"} if mode == "bilinear" else {}))
        return image.reshape(*x.shape[:-2], *size)

    return resized


def _looked_up(r: random.Random, shape: Sequence[int]) -> Step:
    way, d, step = r.choice(["gather", "rows", "embedding", "largest", "diagonal"]), _axis(r, shape), r.choice([1, 3, 5])

    def looked_up(x: Tensor) -> Tensor:
        n = x.shape[d]
        if way == "gather":
            return x.gather(d, _places(x, x.numel(), n, step).view(x.shape)) * 0.7 + x
        if way == "rows":
            return x[_places(x, 3, x.shape[0], step)] * 1.1
        if way == "embedding":
            return F.embedding(_places(x, 6, x.shape[0], step).view(2, 3), x.reshape(x.shape[0], -1)).reshape(6, *x.shape[1:])
        if way == "largest":
            return x - x.gather(d, x.detach().argmax(d, keepdim=True)) * 0.5
        return x + torch.diagonal(x, dim1=0, dim2=-1).sum(-1).mean() * 0.1

    return looked_up


def _segments(r: random.Random, shape: Sequence[int]) -> Step:
    """Sums, means or extrema of the rows of each of a few groups, given back to the rows."""
    way, groups, step = r.choice(["sum", "mean", "amax", "softmax"]), r.choice([2, 3, 5]), r.choice([1, 2, 3])

    def segments(x: Tensor) -> Tensor:
        rows = x.reshape(x.shape[0], -1)
        group = _places(x, x.shape[0], groups, step)
        if way == "amax":
            found = rows.new_full((groups, rows.shape[1]), -9.0).scatter_reduce(0, group[:, None].expand_as(rows), rows, "amax")
            return (rows - found[group] * 0.5).view(x.shape)
        weights = rows.exp() if way == "softmax" else rows
        totals = rows.new_zeros(groups, rows.shape[1]).index_add(0, group, weights)
        if way == "softmax":
            return (weights / totals[group]).view(x.shape)
        counts = torch.bincount(group, minlength=groups).clamp(min=1).to(x.dtype) if way == "mean" else rows.new_ones(groups)
        return (rows + (totals / counts[:, None])[group] * 0.3).view(x.shape)

    return segments


def _outer(r: random.Random, shape: Sequence[int]) -> Step:
    way = r.choice(["outer", "distances", "products", "ranks"])
    made: dict[str, Step] = {
        "outer": lambda x: (x.mean(0, keepdim=True) * x.mean(-1, keepdim=True)).expand(x.shape) + x,
        "distances": lambda x: (x.unsqueeze(-2) - x.unsqueeze(-3)).square().sum(-1).add(0.1).sqrt().mean(-1, keepdim=True) * 0.1 + x,
        "products": lambda x: torch.einsum("...ik,...jk->...i", x, x.tanh()).unsqueeze(-1) * 0.1 + x,
        "ranks": lambda x: (x.unsqueeze(-1) > x.unsqueeze(-2)).to(x.dtype).mean(-1) + x.sin(),
    }  # fmt: skip
    return made[way]


def _compared(r: random.Random, shape: Sequence[int]) -> Step:
    """Losses of each element, row or pair, beside what they are of."""
    made: list[Step] = [
        lambda x: x + F.smooth_l1_loss(x, x.detach().flip(0), reduction="none"), lambda x: x * F.cosine_similarity(x, x.flip(-1) + 1.5, -1).unsqueeze(-1),
        lambda x: x + F.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.3), reduction="none"),
        lambda x: F.log_softmax(x, -1) + x, lambda x: x - F.kl_div(F.log_softmax(x, -1), x.detach().softmax(-1), reduction="none") * 0.5,
        lambda x: x + F.cross_entropy(x.reshape(-1, x.shape[-1]), _places(x, x.numel() // x.shape[-1], x.shape[-1], 3)),
        lambda x: x * F.huber_loss(x, torch.zeros_like(x), reduction="mean") + x.clamp(-1, 1),
    ]  # fmt: skip
    return r.choice(made)


def _rotated(r: random.Random, shape: Sequence[int]) -> Step:
    is_halves = r.random() < 0.5

    def rotated(x: Tensor) -> Tensor:
        n = x.shape[-1] // 2
        angles = torch.arange(x.shape[-2], device=x.device)[:, None].to(x.dtype) * numbers(x, n)
        cos, sin = angles.cos(), angles.sin()
        a, b = (x[..., :n], x[..., n:]) if is_halves else (x[..., ::2], x[..., 1::2])
        parts = a * cos - b * sin, b * cos + a * sin
        return torch.cat(parts, -1) if is_halves else torch.stack(parts, -1).flatten(-2)

    return rotated


def _in_16_bits(r: random.Random, shape: Sequence[int]) -> Step:
    """A part of the program in another type, as under autocast: exact halves and powers, so that no reference differs by a rounding."""
    return lambda x: (x * 0.5).to(torch.float64).mul(0.25).to(x.dtype) + x.sign() * 0.1


NETWORK: tuple[tuple[Make, Callable[[Sequence[int]], bool]], ...] = (
    (_layer_norm, lambda s: True), (_gated, lambda s: True), (_attended, lambda s: len(s) > 1 and math.prod(s) * s[-2] < 40000), (_quantized, lambda s: True),
    (_resized, lambda s: len(s) > 2 and min(s[-2:]) > 1 and math.prod(s) < 3000), (_looked_up, lambda s: True), (_segments, lambda s: True),
    (_outer, lambda s: len(s) > 1 and math.prod(s) * max(s[-2:]) < 40000), (_compared, lambda s: True), (_rotated, lambda s: len(s) > 1 and s[-1] % 2 == 0),
    (_in_16_bits, lambda s: True),
)  # fmt: skip
"""What a step of a network can be, and the sizes that it needs."""
