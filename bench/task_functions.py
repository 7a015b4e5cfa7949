"""More torch functions for `model_functions.py`: parts of retrieval, detection, speech, forecasting, graph networks, quantization, diffusion and image tasks.

They were written after everything else was tuned, to see what is slow that nobody looked for. Adds them to `CASES` there. Read first: that file's `case`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, Input, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- language models
@case(R(4, 2048, 16, 128), R(2048, 64), R(2048, 64), grads=(0,))
def rotary_pairs(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    c, s = c[None, :, None], s[None, :, None]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


@case(R(4, 2048, 16, 128), R(2048, 64, dt=torch.complex64), grads=(0,))
def rotary_complex(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (64, 2)))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(-2).type_as(x)


@case(R(4, 16, 2048, 128), R(8192, 128), R(8192, 128), I(8192, 4, 2048), grads=(0,))
def rotary_by_position(x: Tensor, c: Tensor, s: Tensor, p: Tensor) -> Tensor:
    c, s = c[p][:, None], s[p][:, None]
    a, b = x.chunk(2, -1)
    return x * c + torch.cat((-b, a), -1) * s


@case(R(8192, 2 * 2880))
def swiglu_clamped(x: Tensor) -> Tensor:
    g, u = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(-7.0, 7.0)
    return (u + 1) * g * torch.sigmoid(1.702 * g)


@case(R(6000, 3584), R(6000, 3584), R(3584, dt=FLOAT))
def norm_of_offset_weights(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    h = (x + r).float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + w)).to(x.dtype)


@case(R(2, 2048, 8, 128))
def repeated_keys(x: Tensor) -> Tensor:
    return x[:, :, :, None].expand(2, 2048, 8, 4, 128).reshape(2, 2048, 32, 128).transpose(1, 2)


@case(R(2, 16, 2048, 2048))
def capped_softmax_in_a_window(x: Tensor) -> Tensor:
    i = torch.arange(2048, device=x.device)
    seen = (i[:, None] >= i) & (i[:, None] - i < 512)
    return torch.softmax((50.0 * torch.tanh(x.float() / 50.0)).masked_fill(~seen, float("-inf")), -1).to(x.dtype)


@case(R(6000, 50257), I(50257, 6000), grads=(0,))
def z_loss(x: Tensor, t: Tensor) -> Tensor:
    total = torch.logsumexp(x.float(), -1)
    return (F.cross_entropy(x.float(), t, reduction="none") + 1e-4 * total * total).mean()


@case(R(4096, 32000), R(4096, 32000), grads=(0,))
def distilled(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(x.float() / 2, -1), F.log_softmax(y.float() / 2, -1), log_target=True, reduction="batchmean") * 4


# ---------------------------------------------------------------- retrieval and graphs
@case(R(4096, 4096, dt=FLOAT))
def loss_of_rows_and_columns(x: Tensor) -> Tensor:
    t = torch.arange(4096, device=x.device)
    return (F.cross_entropy(x, t) + F.cross_entropy(x.t(), t)) / 2


@case(R(64, 512, 1024), I(2, 64, 512), grads=(0,))
def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    seen = mask[..., None].to(x.dtype)
    return (x * seen).sum(1) / seen.sum(1).clamp(min=1e-9)


@case(R(8192, 3000), R(8192, 3000))
def correlation(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.float() - x.float().mean(-1, keepdim=True), y.float() - y.float().mean(-1, keepdim=True)
    return 1 - (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


@case(R(100000, 128), I(100000, 400000), I(100000, 400000), R(400000, 1), grads=(0, 3))
def message_passing(x: Tensor, source: Tensor, target: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, target, x[source] * w)


# ---------------------------------------------------------------- series and speech
@case(R(16384, 96, 9), R(16384, 96), grads=(0,))
def quantile_loss(q: Tensor, y: Tensor) -> Tensor:
    error, level = y[..., None] - q, torch.linspace(0.1, 0.9, 9, device=q.device, dtype=q.dtype)
    return torch.maximum(level * error, (level - 1) * error).mean()


@case(R(256, 321, 336))
def moving_average(x: Tensor) -> Tensor:
    return x - F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, 1)


@case(R(8192, 1024, dt=FLOAT))
def log_of_running_sums(x: Tensor) -> Tensor:
    return x.logcumsumexp(-1)


@case(R(256, 500, 300))
def maximum_over_time(x: Tensor) -> Tensor:
    return x.max(1).values


@case(R(64, 160000, dt=FLOAT), grads=())
def mu_law(x: Tensor) -> Tensor:
    return ((torch.sign(x) * torch.log1p(255 * x.abs()) / math.log1p(255) + 1) / 2 * 255 + 0.5).to(torch.int64)


# ---------------------------------------------------------------- images
@case(R(16384, 1000), R(1000), R(1000))
def batch_norm_of_rows(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, True)


@case(R(64, 192, 3000), R(192), R(192))
def batch_norm_of_series(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, True))


@case(R(8, 64, 16, 56, 56), R(64), R(64))
def group_norm_of_volumes(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, w, b))


@case(R(16, 512, 64, 64), R(16, 512), R(16, 512))
def adaptive_instance_norm(x: Tensor, s: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(x) * (1 + s[..., None, None]) + b[..., None, None]


@case(R(16, 512, 64, 64))
def pixel_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-8).to(x.dtype)


@case(R(64, 240, 56, 56))
def channel_shuffle(x: Tensor) -> Tensor:
    return x.view(64, 3, 80, 56, 56).transpose(1, 2).reshape(64, 240, 56, 56)


@case(R(256, 3, 224, 224))
def patches(x: Tensor) -> Tensor:
    return x.reshape(256, 3, 14, 16, 14, 16).permute(0, 2, 4, 3, 5, 1).reshape(256, 196, 768)


@case(R(256, 8, 197, 197), R(8, 732), I(732, 197, 197), grads=(0, 1))
def softmax_with_positions(x: Tensor, t: Tensor, i: Tensor) -> Tensor:
    return torch.softmax(x + t[:, i], -1)


@case(R(16, 21, 256, 256), I(21, 16, 256, 256), grads=(0,))
def dice_of_softmax(x: Tensor, t: Tensor) -> Tensor:
    p, h = torch.softmax(x.float(), 1), F.one_hot(t, 21).permute(0, 3, 1, 2)
    return 1 - ((2 * (p * h).sum((0, 2, 3)) + 1) / ((p + h).sum((0, 2, 3)) + 1)).mean()


@case(R(4096, 4, dt=FLOAT), R(4096, 4, dt=FLOAT), grads=())
def overlap_of_boxes(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    size = (high - low).clamp(min=0)
    both = size[..., 0] * size[..., 1]
    of_a, of_b = ((t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1]) for t in (a, b))
    return both / (of_a[:, None] + of_b[None] - both)


@case(R(64, 4, 128, 128), R(64, 4, 128, 128), R(1000, dt=FLOAT), I(1000, 64), grads=(0,))
def noise_of_a_time(x: Tensor, n: Tensor, a: Tensor, t: Tensor) -> Tensor:
    k = a.abs()[t][:, None, None, None]
    return (k.sqrt() * x + (1 + k).sqrt() * n).to(x.dtype)


@case(R(32, 3, 256, 256))
def contrast(x: Tensor) -> Tensor:
    gray = (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    mean = gray.mean((1, 2, 3), keepdim=True)
    return (x - mean) * 1.3 + mean


@case(R(32, 64, 128, 128))
def total_variation(x: Tensor) -> Tensor:
    return (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()


# ---------------------------------------------------------------- weights
@case(R(512, 256 * 9), R(512, 1))
def standardized_weights(w: Tensor, g: Tensor) -> Tensor:
    v, mean = torch.var_mean(w.float(), 1, keepdim=True)
    return ((w - mean) * torch.rsqrt(v + 1e-5) * g).to(w.dtype)


@case(R(8192, 8192, dt=FLOAT), grads=())
def standardized(x: Tensor) -> Tensor:
    return (x - x.mean()) / x.std()


@case(R(2048, 8192), R(2048, 1), grads=())
def packed_in_4_bits(x: Tensor, s: Tensor) -> Tensor:
    q = (x / s).round().clamp(-8, 7).to(torch.int8) + 8
    return (q[:, ::2] | (q[:, 1::2] << 4)).to(torch.uint8)


@case(Input((4096, 4096), torch.uint8, 255), R(4096, 64), grads=())
def unpacked_from_4_bits(q: Tensor, s: Tensor) -> Tensor:
    low, high = (q & 15).to(torch.int8) - 8, (q >> 4).to(torch.int8) - 8
    return (torch.stack((low, high), -1).reshape(4096, 64, 128) * s[..., None]).reshape(4096, 8192).to(s.dtype)
