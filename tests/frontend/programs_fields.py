"""Programs around models of further fields: boxes, volumes of light, filters, sequences with labels, points, graphs of hashed features.

Read first: `PROGRAMS`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from program_run import Program, Run
from torch import Tensor


def corners(run: Run, count: int) -> Tensor:
    """Boxes of random places and sizes, as two corners."""
    x = run.rand(count, 4)
    return torch.cat([x[:, :2], x[:, :2] + x[:, 2:] + 0.1], 1)


def boxes(run: Run) -> Any:
    """The complete intersection-over-union loss of boxes, and a suppression of overlapping ones, written out."""

    def loss(p: Tensor, t: Tensor) -> Tensor:
        (w1, h1), (w2, h2) = ((b[:, 2:] - b[:, :2]).unbind(-1) for b in (p, t))
        inner = (torch.min(p[:, 2:], t[:, 2:]) - torch.max(p[:, :2], t[:, :2])).clamp(min=0).prod(-1)
        overlap = inner / (w1 * h1 + w2 * h2 - inner + 1e-7)
        whole = (torch.max(p[:, 2:], t[:, 2:]) - torch.min(p[:, :2], t[:, :2])).square().sum(-1) + 1e-7
        apart = (p[:, :2] + p[:, 2:] - t[:, :2] - t[:, 2:]).square().sum(-1) / 4
        shape = 4 / math.pi**2 * (torch.atan(w2 / h2) - torch.atan(w1 / h1)) ** 2
        with torch.no_grad():
            weight = shape / (1 - overlap + shape + 1e-7)
        return (1 - overlap + apart / whole + weight * shape).mean()

    def kept(b: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        order = score.argsort(descending=True, stable=True)
        b = b[order]
        area = (b[:, 2:] - b[:, :2]).prod(-1)
        inner = (torch.minimum(b[:, None, 2:], b[None, :, 2:]) - torch.maximum(b[:, None, :2], b[None, :, :2])).clamp(min=0).prod(-1)
        overlap, is_kept = inner / (area[:, None] + area - inner), torch.ones(len(b), dtype=torch.bool)
        for n in range(len(b)):
            is_kept = is_kept & ~((overlap[n] > 0.3) & is_kept[n] & (torch.arange(len(b)) > n))
        return order, is_kept

    given, wanted = corners(run, 7).requires_grad_(), corners(run, 7)
    made = run.compile(loss)(given, wanted)
    made.backward()
    return [made, given.grad, *run.compile(kept)(corners(run, 6), run.rand(6))]


def volume_of_light(run: Run) -> Any:
    """Colours along rays, and places that are drawn where the density is (a radiance field)."""

    def f(density: Tensor, colour: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        step = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e3)], -1)
        opaque = 1 - torch.exp(-F.relu(density) * step)
        weight = opaque * torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-6], -1), -1)[:, :-1]
        share = weight[:, 1:-1] + 1e-5
        total = F.pad((share / share.sum(-1, keepdim=True)).cumsum(-1), (1, 0))
        u = torch.linspace(0.01, 0.99, 8, dtype=z.dtype).expand(len(z), 8).contiguous()
        after = torch.searchsorted(total.detach(), u, right=True)
        ends = torch.stack([(after - 1).clamp(min=0), after.clamp(max=total.shape[-1] - 1)], -1)
        middle = (z[:, 1:] + z[:, :-1]) / 2
        low, high = (t[:, None].expand(-1, 8, -1).gather(2, ends) for t in (total, middle))
        width = low[..., 1] - low[..., 0]
        width = torch.where(width < 1e-5, torch.ones_like(width), width)
        return (weight[..., None] * colour.sigmoid()).sum(1), high[..., 0] + (u - low[..., 0]) / width * (high[..., 1] - high[..., 0])

    density, colour, z = run.leaf(4, 12), run.leaf(4, 12, 3), torch.linspace(2, 6, 12).to(run.dtype) + run.rand(4, 12) / 5
    made = run.compile(f)(density, colour, z)
    sum(t.square().sum() for t in made).backward()  # type: ignore[union-attr]
    return [*made, density.grad, colour.grad]


def filter_of_sounds(run: Run) -> Any:
    """A filter with two poles and two zeros, step by step, whose coefficients are trained."""

    def f(x: Tensor, b: Tensor, a: Tensor) -> Tensor:
        last = before = given = earlier = torch.zeros_like(x[:, 0])
        out = []
        for t in range(x.shape[1]):
            y = b[0] * x[:, t] + b[1] * given + b[2] * earlier - a[0] * last - a[1] * before
            earlier, given, before, last = given, x[:, t], last, y
            out.append(y)
        return torch.stack(out, 1)

    x, b, a = run.leaf(3, 10), run.leaf(3), (run.randn(2) / 5).requires_grad_()
    made = run.compile(f)(x, b, a)
    made.square().sum().backward()
    return [made, x.grad, b.grad, a.grad]


def labels_of_sequences(run: Run) -> Any:
    """A conditional random field: the sum over all paths, the path that was labelled, and the best one."""

    def f(score: Tensor, step: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = best = score[:, 0]
        gold, ways = score[:, 0].gather(1, labels[:, :1])[:, 0], []
        for t in range(1, score.shape[1]):
            is_inside = mask[:, t, None]
            total = torch.where(is_inside, torch.logsumexp(total[:, :, None] + step + score[:, t, None], 1), total)
            gold = gold + (score[:, t].gather(1, labels[:, t : t + 1])[:, 0] + step[labels[:, t - 1], labels[:, t]]) * mask[:, t]
            largest, way = (best[:, :, None] + step).max(1)
            ways.append(way)
            best = torch.where(is_inside, largest + score[:, t], best)
        return (torch.logsumexp(total, 1) - gold).mean(), torch.stack(ways, 1), best

    score, step, mask = run.leaf(3, 5, 4), run.leaf(4, 4), torch.arange(5) < torch.tensor([5, 4, 2])[:, None]
    made = run.compile(f)(score, step, torch.randint(0, 4, (3, 5)), mask)
    made[0].backward()
    return [*made, score.grad, step.grad]


def points_that_are_turned(run: Run) -> Any:
    """Rotations by quaternions and by vectors, and the distance of two clouds of points."""

    def f(q: Tensor, w: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        s, x, y, z = F.normalize(q, dim=-1).unbind(-1)
        rows = [1 - 2 * (y * y + z * z), 2 * (x * y - s * z), 2 * (x * z + s * y), 2 * (x * y + s * z), 1 - 2 * (x * x + z * z), 2 * (y * z - s * x)]
        turn = torch.stack([*rows, 2 * (x * z - s * y), 2 * (y * z + s * x), 1 - 2 * (x * x + y * y)], -1).unflatten(-1, (3, 3))
        angle, none = w.norm(dim=-1, keepdim=True)[..., None], torch.zeros_like(w[:, 0])
        u, v, t = w.unbind(-1)
        cross = torch.stack([none, -t, v, t, none, -u, -v, u, none], -1).view(-1, 3, 3)
        other = torch.eye(3, dtype=w.dtype) + angle.sin() / angle * cross + (1 - angle.cos()) / angle**2 * (cross @ cross)
        apart = ((a @ turn)[:, :, None] - (b @ other)[:, None]).square().sum(-1)
        return apart.amin(2).mean() + apart.amin(1).mean(), apart.argmin(2), turn, other

    leaves = run.leaf(2, 4), run.leaf(2, 3), run.leaf(2, 7, 3), run.leaf(2, 9, 3)
    made = run.compile(f)(*leaves)
    (made[0] + made[2].sin().sum()).backward()
    return [*made, *[t.grad for t in leaves]]


PROGRAMS: dict[str, Program] = {f.__name__: f for f in (boxes, volume_of_light, filter_of_sounds, labels_of_sequences, points_that_are_turned)}
