"""More steps for `random_compositions.py`: views, masks, values put at places, sorts, windows, weights, changes in place.

Each is made as the steps there are: from a random generator and the sizes so far. Constants are made from the argument, so that programs run on any device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Step = Callable[[Tensor], Tensor]
Make = Callable[[random.Random, Sequence[int]], Step]


def _axis(r: random.Random, shape: Sequence[int]) -> int:
    return r.randrange(len(shape))


def numbers(x: Tensor, n: int, scale: float = 0.37) -> Tensor:
    """n fixed numbers of x's type."""
    return torch.sin(torch.arange(n, device=x.device) * scale + 0.3).to(x.dtype)


def _reshaped(r: random.Random, shape: Sequence[int]) -> Step:
    way = r.choice(["flat", "pairs", "permute", "merge", "swap"])
    order = r.sample(range(len(shape)), len(shape))
    if way == "flat":
        return lambda x: (x.flatten() * 1.5 + 1).view(x.shape)
    if way == "pairs" and math.prod(shape) % 2 == 0:
        return lambda x: x.reshape(-1, 2).flip(-1).reshape(x.shape) + x
    if way == "merge" and len(shape) > 2:
        return lambda x: x.flatten(0, 1)
    if way == "swap":
        return lambda x: x.transpose(0, -1).reshape(-1, x.shape[-1]) * 0.8
    return lambda x: x.permute(order)


def _masked(r: random.Random, shape: Sequence[int]) -> Step:
    way, k = r.choice(["tril", "triu", "fill", "where", "rows"]), r.choice([-1, 0, 1])
    made: dict[str, Step] = {
        "tril": lambda x: x.tril(k), "triu": lambda x: x.triu(k) + x * 0.1, "fill": lambda x: x.masked_fill(x > 0.5, -0.25),
        "where": lambda x: torch.where(torch.arange(x.shape[-1], device=x.device) % 3 == 1, x * 2, x.sin()),
        "rows": lambda x: x.masked_fill((torch.arange(x.shape[0], device=x.device) < 2).view(-1, *[1] * (x.dim() - 1)), 0.5),
    }  # fmt: skip
    return made[way]


def _put(r: random.Random, shape: Sequence[int]) -> Step:
    d, way, n = _axis(r, shape), r.choice(["copy", "put", "add", "fill", "slice", "scatter"]), min(2, shape[0])
    count = min(2, shape[d])

    def put(x: Tensor) -> Tensor:
        places = (torch.arange(count, device=x.device) * 2 + 1) % x.shape[d] if x.shape[d] != 2 else torch.arange(count, device=x.device)
        part = x.narrow(d, 0, count) * 0.5 - 1
        if way == "copy":
            return x.index_copy(d, places, part) if places.unique().numel() == count else x.index_add(d, places, part)
        if way == "add":
            return x.index_add(d, places, part, alpha=0.5)
        if way == "fill":
            return x.index_fill(d, places, 0.75)
        if way == "put":
            return torch.index_put(x, (torch.arange(n, device=x.device),), x[:n].cos())
        if way == "slice":
            return x.slice_scatter(part, d, 0, count)
        return x.scatter(d, (torch.arange(count, device=x.device).view(*[count if k == d else 1 for k in range(x.dim())])).expand(part.shape), part)

    return put


def _sorted(r: random.Random, shape: Sequence[int]) -> Step:
    d, way = _axis(r, shape), r.choice(["topk", "sort", "argmax", "argsort", "largest"])
    k = min(3, shape[d])
    made: dict[str, Step] = {
        "topk": lambda x: x.topk(k, d).values, "sort": lambda x: x.sort(d).values * 0.5 + x,
        "argmax": lambda x: x * 0.5 + x.gather(d, x.argmax(d, keepdim=True)), "argsort": lambda x: x.gather(d, x.detach().argsort(dim=d, stable=True)) - x,
        "largest": lambda x: torch.where(x >= x.amax(d, keepdim=True), x, x * 0.1),
    }  # fmt: skip
    return made[way]


def _weighted(r: random.Random, shape: Sequence[int]) -> Step:
    way, last = r.choice(["scale", "layer", "rms", "conv", "product", "outer"]), shape[-1]
    width = r.choice([2, 3, 5])

    def conv(x: Tensor) -> Tensor:
        return F.conv1d(x.reshape(-1, 1, x.shape[-1]), numbers(x, 3)[None, None], padding=1).reshape(x.shape) + x

    made: dict[str, Step] = {
        "scale": lambda x: x * numbers(x, x.shape[0]).view(-1, *[1] * (x.dim() - 1)) + numbers(x, x.shape[-1]),
        "layer": lambda x: F.layer_norm(x, (last,), numbers(x, last), numbers(x, last, 0.9)), "rms": lambda x: F.rms_norm(x, (last,), numbers(x, last), 0.05),
        "conv": conv, "product": lambda x: x @ numbers(x, last * width).view(last, width) * 0.5,
        "outer": lambda x: (x.unsqueeze(-1) * numbers(x, width)).flatten(-2) if x.shape[-1] < 30 else x,
    }  # fmt: skip
    return made[way]


def _in_place(r: random.Random, shape: Sequence[int]) -> Step:
    way, d = r.choice(["add", "part", "column", "clamp", "twice"]), _axis(r, shape)

    def changed(x: Tensor) -> Tensor:
        y = x.clone() if way != "twice" else x * 1.0
        if way == "add":
            y.add_(x.sin()).mul_(0.5)
        elif way == "part":
            y.narrow(d, 0, (x.shape[d] + 1) // 2).mul_(-1.5)
        elif way == "column":
            y[..., 0] = x[..., -1].exp().clamp(max=2)
        elif way == "clamp":
            y[..., ::2].clamp_(-0.5, 0.5)
        else:
            y[..., -1:] += y[..., :1]
            y[..., :1] -= y[..., -1:] * 0.5
        return y

    return changed


def _windowed(r: random.Random, shape: Sequence[int]) -> Step:
    size, step = r.choice([2, 3]), r.choice([1, 2])
    if r.random() < 0.3:
        return lambda x: x.unfold(-1, size, step).flatten(-2)
    if r.random() < 0.5:
        return lambda x: x.unfold(-1, size, step).amax(-1) + 0.1
    return lambda x: x.unfold(0, size, 1).mean(-1)


def _repeated(r: random.Random, shape: Sequence[int]) -> Step:
    d, way = _axis(r, shape), r.choice(["interleave", "repeat", "strided", "reversed"])
    made: dict[str, Step] = {
        "interleave": lambda x: x.repeat_interleave(2, d), "repeat": lambda x: x.repeat(*[2 if k == d else 1 for k in range(x.dim())]) * 0.5,
        "strided": lambda x: x[..., ::2] * x[..., :1] + 0.5, "reversed": lambda x: x[1:].flip(0) if x.shape[0] > 1 else x,
    }  # fmt: skip
    return made[way]


def _split(r: random.Random, shape: Sequence[int]) -> Step:
    d = r.choice([k for k, size in enumerate(shape) if size > 2])
    first = r.randint(1, shape[d] - 2)

    def split(x: Tensor) -> Tensor:
        a, b = x.split([first, x.shape[d] - first], d)
        return torch.cat([b.tanh(), a * 2, b.mean(d, keepdim=True)], d)

    return split


def _moments(r: random.Random, shape: Sequence[int]) -> Step:
    axes = sorted(r.sample(range(len(shape)), min(2, len(shape))))
    way = r.choice(["var", "logsumexp", "norm", "std", "prod"])
    made: dict[str, Step] = {
        "var": lambda x: x * torch.rsqrt(x.var(axes, keepdim=True, correction=0) + 0.3), "logsumexp": lambda x: x - torch.logsumexp(x, axes, keepdim=True),
        "norm": lambda x: x / (torch.linalg.vector_norm(x, dim=axes, keepdim=True) + 0.5), "std": lambda x: x - (x.var(axes, keepdim=True, correction=0) + 0.1).sqrt(),
        "prod": lambda x: x + x[..., :4].tanh().prod(-1, keepdim=True),
    }  # fmt: skip
    return made[way]


FURTHER: tuple[tuple[Make, Callable[[Sequence[int]], bool]], ...] = (
    (_reshaped, lambda s: True), (_masked, lambda s: len(s) > 1), (_put, lambda s: True), (_sorted, lambda s: True), (_weighted, lambda s: len(s) > 1),
    (_in_place, lambda s: True), (_windowed, lambda s: min(s[0], s[-1]) >= 3), (_repeated, lambda s: math.prod(s) < 3000), (_split, lambda s: max(s) > 2), (_moments, lambda s: True),
)  # fmt: skip
"""What else a step can be, and the sizes that it needs."""
