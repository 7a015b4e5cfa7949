"""Torch functions of many ops, for `function_compile_time.py --cliffs`: each grows with `count`, and none is like what models contain.

What compiles slowly because of how many ops there are of one kind shows here first. Read first: `CLIFFS`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from function_cases import Case, Input, R
from torch import Tensor

FLOAT = torch.float32
Made = Callable[..., "Tensor | tuple[Tensor, ...]"]
CLIFFS: dict[str, tuple[Made, tuple[Input, ...], int]] = {}
"""Name -> a function of `count` and of tensors, its inputs, and the usual count."""


def cliff(count: int, *inputs: Input) -> Callable[[Made], Made]:
    def put(function: Made) -> Made:
        CLIFFS[function.__name__] = function, inputs, count
        return function

    return put


def case_of(name: str, scale: float) -> Case:
    """Return a function with its count times `scale`."""
    function, inputs, count = CLIFFS[name]
    return Case(functools.partial(function, max(1, round(count * scale))), inputs, tuple(n for n, i in enumerate(inputs) if i.dtype.is_floating_point))


@cliff(200, R(512, 256, dt=FLOAT), R(512, 256, dt=FLOAT))
def tangled_outputs(count: int, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Small ops of what was computed before, five results."""
    values = [x, y]
    for n in range(count):
        near = values[-20:]
        a, b = near[n * 7919 % len(near)], near[n * n * 104729 % len(near)]
        values.append((a + b, a * b, (a - b).sin(), a.tanh())[n % 4])
    return tuple(values[-5:])


@cliff(60, R(512, 256, dt=FLOAT))
def slices_and_cats(count: int, x: Tensor) -> Tensor:
    """Parts put together again in another order."""
    for n in range(count):
        at = 3 + 7 * n % 200
        x = torch.cat([x[:, at:] * 1.5, x[:, :at].sin()], 1)
    return x


@cliff(40, R(16, 24, 40, 48, dt=FLOAT))
def reductions_over_axes(count: int, x: Tensor) -> tuple[Tensor, ...]:
    """Reductions over all sets of axes in turn."""
    sets = [dims for n in (1, 2, 3) for dims in itertools.combinations(range(4), n)]
    return tuple((x * (n + 1)).exp().sum(sets[n % len(sets)]) for n in range(count))


@cliff(20, R(16, 24, 40, 48, dt=FLOAT))
def norms_over_axes(count: int, x: Tensor) -> Tensor:
    """Normalizations over sets of axes in turn."""
    sets = [dims for n in (1, 2, 3) for dims in itertools.combinations(range(4), n)]
    for n in range(count):
        x = x - x.mean(sets[n % len(sets)], keepdim=True)
    return x


@cliff(100, R(512, 256, dt=FLOAT))
def siblings(count: int, x: Tensor) -> tuple[Tensor, ...]:
    """Many results of one input."""
    return tuple((x.exp() * (n + 2)).tanh() for n in range(count))


@cliff(60, R(512, 256, dt=FLOAT))
def sums_of_siblings(count: int, x: Tensor) -> Tensor:
    """Many sums of one input, along rows and columns in turn, that are all used again."""
    total = x
    for n in range(count):
        total = total + (x * (n + 2)).tanh().sum(n % 2, keepdim=True)
    return total


@cliff(60, R(8, 24, 40, 48, dt=FLOAT))
def reshapes(count: int, x: Tensor) -> Tensor:
    """Deep chains of reshapes and transpositions."""
    shapes = [(8, 24, 40, 48), (192, 1920), (8, 960, 48), (24, 320, 48), (64, 120, 48)]
    for n in range(count):
        x = x.reshape(shapes[n % len(shapes)])
        x = x.sin() if n % 3 else x.transpose(0, 1) * 2
    return x


@cliff(32, R(64, 64, 128, dt=FLOAT), R(128, dt=FLOAT))
def unrolled_steps(count: int, x: Tensor, w: Tensor) -> Tensor:
    """A recurrence unrolled over steps, whose results are stacked."""
    state, out = torch.zeros_like(x[:, 0]), []
    for n in range(count):
        state = (state * w + x[:, n]).tanh()
        out.append(state)
    return torch.stack(out, 1)


@cliff(7, R(16, 200, 200, dt=FLOAT))
def box_filter(count: int, x: Tensor) -> Tensor:
    """A sum of shifted windows."""
    y = F.pad(x, (0, count - 1, 0, count - 1))
    return sum(y[:, a : a + x.shape[1], b : b + x.shape[2]] * (a + b + 1) for a in range(count) for b in range(count))  # type: ignore[return-value]


@cliff(8, R(10000, 3, 3, dt=FLOAT))
def small_matrices(count: int, x: Tensor) -> Tensor:
    """Powers of small matrices, each product a sum of broadcast products."""
    y = x
    for _ in range(count):
        y = (y[:, :, :, None] * x[:, None]).sum(2) / 3 + x.transpose(1, 2)
    return y


@cliff(4, R(20000, 3, 3, dt=FLOAT))
def elements_of_matrices(count: int, x: Tensor) -> Tensor:
    """Products of small matrices, element by element, stacked again."""
    y = x
    for _ in range(count):
        rows = [[sum(y[:, i, k] * x[:, k, j] for k in range(3)) for j in range(3)] for i in range(3)]
        y = torch.stack([torch.stack(row, -1) for row in rows], -2)  # type: ignore[arg-type]
    return y


@cliff(16, R(4096, 16, dt=FLOAT))
def butterflies(count: int, x: Tensor) -> Tensor:
    """Sums and differences of columns, as in a fast Fourier transform, put together at the end."""
    parts, step = list(x[:, :count].unbind(1)), 1
    while step < count:
        parts = [parts[n] + parts[n ^ step] if not n & step else parts[n ^ step] - parts[n] for n in range(count)]
        step *= 2
    return torch.stack(parts, 1)


@cliff(12, R(1024, 768, dt=FLOAT))
def normalized_in_turn(count: int, x: Tensor) -> Tensor:
    """Rows and columns normalized in turn."""
    for n in range(count):
        x = x - x.logsumexp(n % 2, keepdim=True)
    return x.exp()


@cliff(24, R(512, 768, dt=FLOAT), R(768, dt=FLOAT))
def residual_norms(count: int, x: Tensor, w: Tensor) -> Tensor:
    """Layers of norms, gates and residuals."""
    for _ in range(count):
        x = x + F.silu(F.layer_norm(x, (768,), w)) * x.sigmoid()
    return x


@cliff(12, R(256, 64, dt=FLOAT), R(300, 64, dt=FLOAT))
def distances(count: int, x: Tensor, y: Tensor) -> Tensor:
    """Several kernels of distances of all pairs."""
    d = (x[:, None] - y[None]).square().sum(-1)
    return sum((-d * (n + 1)).exp() / (1 + d / (n + 1)) for n in range(count)).mean()  # type: ignore[union-attr, return-value]


@cliff(10, R(2000, 3, dt=FLOAT), R(2000, 3, dt=FLOAT))
def pairs_of_points(count: int, x: Tensor, y: Tensor) -> Tensor:
    """Coordinates of all pairs, in several terms."""
    total = torch.zeros(())
    for n in range(count):
        d = x[:, None] - y[None] * (n + 1)
        r = (d * d).sum(-1)
        total = total + torch.where(r > 1, 1 / (r + 1), r).sum()
    return total


@cliff(30, *(R(64 + 8 * n, 32, dt=FLOAT) for n in range(30)))
def tensors_of_many_sizes(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The same for tensors of different sizes, whose norms meet."""
    norm = sum(t.square().sum() for t in tensors[:count]).sqrt()  # type: ignore[union-attr]
    return tuple(t * (1 / (norm + 1)) for t in tensors[:count])


@cliff(20, R(64, 3, 64, 64, dt=FLOAT))
def colours(count: int, x: Tensor) -> Tensor:
    """Channels taken out, mixed, and stacked again."""
    for n in range(count):
        r, g, b = x.unbind(1)
        x = torch.stack((r * 0.5 + g * 0.3 + b, (g - b).abs() + n, torch.maximum(r, b)), 1)
    return x
