"""Torch functions as programs are written: assignments to parts of tensors, lists and masks as indices, random tensors, ragged rows, searches.

Written on 2026-11-30 as first trials of the backend; each had more regions, ops of torch or bytes than it needs. Adds them to `CASES`.
Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from function_cases import I, Input, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- assignments
@case(R(8, 1000000, dt=FLOAT), R(9, 1000000, dt=FLOAT), Input((8, 1000000), torch.bool, 2), grads=(0, 1))
def advantages_row_by_row(rewards: Tensor, values: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    advantages, last = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        goes_on = 1.0 - done[t].float()
        last = rewards[t] + 0.99 * values[t + 1] * goes_on - values[t] + 0.9405 * goes_on * last
        advantages[t] = last
    return advantages, advantages + values[:-1]


@case(R(1000000, 3, dt=FLOAT), R(1000000, 4, dt=FLOAT))
def axes_of_gaussians(scale: Tensor, turn: Tensor) -> Tensor:
    r, x, y, z = F.normalize(turn, dim=-1).unbind(-1)
    m = torch.zeros(scale.shape[0], 3, 3, dtype=scale.dtype, device=scale.device)
    m[:, 0, 0] = 1 - 2 * (y * y + z * z)
    m[:, 0, 1] = 2 * (x * y - r * z)
    m[:, 0, 2] = 2 * (x * z + r * y)
    m[:, 1, 0] = 2 * (x * y + r * z)
    m[:, 1, 1] = 1 - 2 * (x * x + z * z)
    m[:, 1, 2] = 2 * (y * z - r * x)
    m[:, 2, 0] = 2 * (x * z - r * y)
    m[:, 2, 1] = 2 * (y * z + r * x)
    m[:, 2, 2] = 1 - 2 * (x * x + y * y)
    return m * scale.exp()[:, None]


@case(R(4, 2048, 32, 128), R(2048, 1, 64), R(2048, 1, 64), grads=(0,))
def rotary_assigned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 1::2] * cos + x[..., ::2] * sin
    return y


@case(R(4000000, 4, dt=FLOAT), R(4000000, 4, dt=FLOAT), grads=(0,))
def boxes_in_pixels(boxes: Tensor, wanted: Tensor) -> Tensor:
    b = boxes * 1.0
    b[:, [0, 2]] = b[:, [0, 2]] * 640
    b[:, [1, 3]] = b[:, [1, 3]] * 480
    b[b[:, 2] < b[:, 0]] = 0.0
    return (b - wanted).abs().sum(-1)


@case(R(4000000, 3, dt=FLOAT))
def distance_to_shapes(p: Tensor) -> Tensor:
    ball = p.norm(dim=-1) - 0.8
    q = p.abs() - 0.4
    box = q.clamp(min=0).norm(dim=-1) + q.amax(-1).clamp(max=0)
    ring = torch.stack([p[:, [0, 2]].norm(dim=-1) - 0.6, p[:, 1]], -1).norm(dim=-1) - 0.2
    near = (0.5 + 5 * (box - ball)).clamp(0, 1)
    return torch.min(torch.lerp(box, ball, near) - 0.1 * near * (1 - near), ring)


# ---------------------------------------------------------------- random tensors
@case(R(64, 4, 128, 128), I(1000, 64), R(1000, dt=FLOAT), grads=())
def noised_images(x: Tensor, t: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    noise = torch.randn_like(x)
    a = kept.sigmoid()[t][:, None, None, None]
    return a.sqrt() * x + (1 - a).sqrt() * noise, noise


@case(R(8192, 4096))
def gumbel_softmax(x: Tensor) -> Tensor:
    return F.gumbel_softmax(x.float(), tau=0.5)


# ---------------------------------------------------------------- ragged rows and searches
@case(R(65536, 1024), I(1024, 64), grads=(0,))
def positions_in_ragged_rows(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    sequence = torch.repeat_interleave(torch.arange(counts.shape[0], device=x.device), counts, output_size=x.shape[0])
    place = torch.arange(x.shape[0], device=x.device) - (counts.cumsum(0) - counts)[sequence]
    return x * torch.cos(place.float())[:, None], sequence


@case(R(65536, 64, dt=FLOAT), R(65536, 64, dt=FLOAT), R(65536, 128, dt=FLOAT), grads=())
def sampled_along_rays(weights: Tensor, depths: Tensor, u: Tensor) -> Tensor:
    total = weights.softmax(-1).cumsum(-1)
    at = torch.searchsorted(total, u.sigmoid().contiguous(), right=True)
    low, high = (at - 1).clamp(min=0), at.clamp(max=total.shape[-1] - 1)
    t0, t1, d0, d1 = total.gather(1, low), total.gather(1, high), depths.gather(1, low), depths.gather(1, high)
    step = torch.where(t1 - t0 < 1e-5, torch.ones_like(t0), t1 - t0)
    return d0 + (u.sigmoid() - t0) / step * (d1 - d0)


# ---------------------------------------------------------------- images
@case(R(8, 2, 512, 512, dt=FLOAT), R(8, 3, 512, 512, dt=FLOAT))
def smoothness_between_edges(flow: Tensor, image: Tensor) -> Tensor:
    def across(z: Tensor) -> Tensor:
        return z[..., :, :-1] - z[..., :, 1:]

    def down(z: Tensor) -> Tensor:
        return z[..., :-1, :] - z[..., 1:, :]

    wide, high = ((-10 * step(image).abs().mean(1, True)).exp() for step in (across, down))
    return (across(flow).abs() * wide).mean() + (down(flow).abs() * high).mean()
