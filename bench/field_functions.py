"""Torch functions of further fields for `model_functions.py`: protein structure, recommendation, reinforcement learning, audio, video, splines, optimizers.

Written on 2026-11-29, after everything else was tuned. Adds them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- protein structure
@case(R(384, 384, 128), R(384, 384, 128), R(384, 384, 128))
def triangle_gate(x: Tensor, g: Tensor, r: Tensor) -> Tensor:
    return r + torch.sigmoid(g) * F.layer_norm(x, (128,))


@case(R(384, 128), R(384, 128))
def outer_sum_norm(a: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(a[:, None] + b[None], (128,))


@case(R(512, 8, 384, 384), R(8, 384, 384), R(512, 384, dt=FLOAT), grads=(0, 1))
def triangle_attention(x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    return (x + bias + (1e9 * (mask - 1))[:, None, None]).softmax(-1)


@case(R(2048, 3, dt=FLOAT), R(64, dt=FLOAT), grads=(0,))
def radial_basis(x: Tensor, centers: Tensor) -> Tensor:
    d = (x[:, None] - x[None]).square().sum(-1).add(1e-8).sqrt()
    return torch.exp(-10 * (d[..., None] - centers).square()).to(torch.bfloat16)


@case(R(4096, 16, 3, dt=FLOAT), R(4096, 3, 3, dt=FLOAT), R(4096, 3, dt=FLOAT))
def rigid_points(p: Tensor, r: Tensor, t: Tensor) -> Tensor:
    return (r[:, None] * p[:, :, None]).sum(-1) + t[:, None]


# ---------------------------------------------------------------- recommendation and retrieval
@case(R(16384, 27, 64))
def pairwise_interactions(x: Tensor) -> Tensor:
    s = x.sum(1)
    return 0.5 * (s * s - (x * x).sum(1))


@case(R(65536, 256), R(256), R(65536, 256), R(256))
def cross_layer(x0: Tensor, w: Tensor, x: Tensor, b: Tensor) -> Tensor:
    return x0 * (x * w).sum(-1, keepdim=True) + b + x


@case(R(8192, 50, 64), R(8192, 64), I(51, 8192), grads=(0, 1))
def attention_over_history(h: Tensor, q: Tensor, n: Tensor) -> Tensor:
    s = (h * q[:, None]).sum(-1) / 8
    s = s.masked_fill(torch.arange(50, device=h.device) >= n[:, None], -1e9).softmax(-1)
    return (s[..., None] * h).sum(1)


@case(R(65536, 512), R(255, dt=FLOAT), R(256, 64), grads=(2,))
def bucket_embedding(x: Tensor, bounds: Tensor, w: Tensor) -> Tensor:
    return w[torch.bucketize(x[:, :64].float(), bounds)].sum(1)


@case(R(8192, 4096), R(8192, 4096))
def listwise_loss(s: Tensor, y: Tensor) -> Tensor:
    return -(y.float().softmax(-1) * s.float().log_softmax(-1)).sum(-1).mean()


# ---------------------------------------------------------------- reinforcement learning
@case(R(4096, 2048, dt=FLOAT), R(4096, 2048, dt=FLOAT), R(4096, 2048, dt=FLOAT), grads=(0, 2))
def clipped_policy_loss(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    ratio = torch.exp(new - old.detach())
    a = (a - a.mean()) / (a.std() + 1e-8)
    return -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()


@case(R(64, 2048, 4096), I(4096, 64, 2048), grads=(0,))
def log_probability_of_tokens(x: Tensor, t: Tensor) -> Tensor:
    return x.float().log_softmax(-1).gather(-1, t[..., None]).squeeze(-1)


@case(R(16384, 1024), R(1, dt=FLOAT))
def policy_entropy(x: Tensor, scale: Tensor) -> Tensor:
    p = x.float().softmax(-1)
    return -(p * p.clamp_min(1e-9).log()).sum(-1).mean() * scale


@case(R(2048, 4096, dt=FLOAT), R(2048, 4096, dt=FLOAT), grads=(0,))
def normalized_returns(r: Tensor, m: Tensor) -> Tensor:
    g = (r * m).flip(-1).cumsum(-1).flip(-1)
    return (g - g.mean(-1, keepdim=True)) / (g.std(-1, keepdim=True) + 1e-6)


# ---------------------------------------------------------------- audio
@case(R(64, 256, 1001))
def snake(x: Tensor) -> Tensor:
    a = torch.linspace(0.5, 2, 256, device=x.device, dtype=x.dtype)[:, None]
    return x + torch.sin(a * x).square() / a


@case(R(64, 80, 3000, dt=FLOAT))
def log_mel_normalized(x: Tensor) -> Tensor:
    s = x.abs().clamp_min(1e-10).log10()
    return (torch.maximum(s, s.amax((-2, -1), keepdim=True) - 8) + 4) / 4


@case(R(64, 400, 201, dt=torch.complex64), R(64, 400, 201, dt=torch.complex64), grads=())
def spectral_distance(a: Tensor, b: Tensor) -> Tensor:
    return (a.abs() - b.abs()).square().mean() + (a.abs().add(1e-7).log() - b.abs().add(1e-7).log()).abs().mean()


@case(R(64, 2 * 256, 1500))
def gated_convolution(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.tanh(a) * torch.sigmoid(b)


# ---------------------------------------------------------------- video, splines, flows
@case(R(4, 16, 64, 56, 56), R(64), R(64))
def group_norm_of_frames(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    n, t, c, h, v = x.shape
    return F.silu(F.group_norm(x.transpose(1, 2), 8, w, b)).transpose(1, 2).contiguous()


@case(R(4, 64, 16, 56, 56))
def pooled_volume(x: Tensor) -> Tensor:
    return F.avg_pool3d(F.relu(x), (1, 2, 2))


@case(R(16, 64, 55, 55))
def pyramid(x: Tensor) -> Tensor:
    return torch.cat([F.adaptive_avg_pool2d(x, n).flatten(2) for n in (1, 2, 3, 6)], -1)


@case(R(65536, 128), R(12, dt=FLOAT), grads=(0,))
def cubic_splines(x: Tensor, grid: Tensor) -> Tensor:
    x = x.float()[..., None]
    basis = ((x >= grid[:-1]) & (x < grid[1:])).float()
    for k in range(1, 4):
        left = (x - grid[: -(k + 1)]) / (grid[k:-1] - grid[: -(k + 1)])
        right = (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k])
        basis = left * basis[..., :-1] + right * basis[..., 1:]
    return basis.to(torch.bfloat16)


@case(R(131072, 64, dt=FLOAT), R(131072, 64, dt=FLOAT))
def affine_coupling(x: Tensor, st: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    s, t = st.chunk(2, -1)
    s = torch.tanh(s)
    return torch.cat([a, b * s.exp() + t], -1) + s.sum(-1, keepdim=True)


@case(R(8192, 2048), R(8192, 2048))
def reparameterized(mean: Tensor, log_var: Tensor) -> Tensor:
    kl = -0.5 * (1 + log_var.float() - mean.float().square() - log_var.float().exp()).sum(-1).mean()
    return mean + torch.exp(0.5 * log_var) * kl.to(mean.dtype)


# ---------------------------------------------------------------- states and tokens
@case(R(8, 2048, 64, 64), R(8, 2048, 64))
def decays_of_a_chunk(x: Tensor, a: Tensor) -> Tensor:
    d = F.logsigmoid(a.float()).unflatten(1, (32, 64)).cumsum(2)
    return x.unflatten(1, (32, 64)) * torch.exp(d)[..., None].to(x.dtype)


@case(R(4, 4096, 1024), R(4, 4096, 1024), R(1024))
def data_dependent_shift(x: Tensor, s: Tensor, mu: Tensor) -> Tensor:
    before = F.pad(x, (0, 0, 1, -1))
    return x + (before - x) * (mu + s)


@case(R(16384, 2048), R(2048), R(2048, dt=FLOAT))
def tanh_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (torch.tanh(0.7 * x.float()) * w + b).to(x.dtype)


@case(R(16384, 16, 128), R(16384, 16, 128), R(16, 128))
def norm_of_heads_with_gate(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return (F.rms_norm(x.float(), (128,)) * w * F.silu(g.float())).to(x.dtype).flatten(1)


@case(R(32768, 64), R(64, dt=FLOAT), grads=(0,))
def balanced_router(x: Tensor, bias: Tensor) -> Tensor:
    s = x.float().sigmoid()
    top = (s + bias).topk(8, -1).indices
    w = s.gather(-1, top)
    return w / w.sum(-1, keepdim=True)


# ---------------------------------------------------------------- optimizers and quantization
@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), grads=())
def lion_step(p: Tensor, g: Tensor, m: Tensor) -> Tensor:
    u = torch.sign(m * 0.9 + g * 0.1)
    return p * (1 - 1e-4) - 1e-3 * u + 0 * (m * 0.99 + g * 0.01)


@case(R(4096, 4096), grads=())
def adafactor_factors(g: Tensor) -> Tensor:
    s = g.float().square() + 1e-30
    r, c = s.mean(-1), s.mean(-2)
    return g.float() * (r / r.mean()).rsqrt()[:, None] * c.rsqrt()[None]


@case(R(8192, 8192), grads=())
def quantized_in_blocks(x: Tensor) -> Tensor:
    t = x.unflatten(0, (64, 128)).unflatten(2, (64, 128))
    scale = t.abs().amax((1, 3), keepdim=True).float().clamp_min(1e-4) / 448
    return (t / scale).to(torch.float8_e4m3fn).flatten(2).flatten(0, 1)


@case(R(8192, 4096), R(4096, dt=FLOAT), grads=(0,))
def fake_quantized(x: Tensor, scale: Tensor) -> Tensor:
    zero = torch.zeros(4096, dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_channel_affine(x.float(), scale.detach().abs() * 0.01 + 0.01, zero, 1, -8, 7)


@case(R(8192, 8192), R(1, dt=FLOAT), grads=(0,))
def softmax_with_a_sink(x: Tensor, sink: Tensor) -> Tensor:
    m = torch.maximum(x.float().amax(-1, keepdim=True), sink)
    e = torch.exp(x.float() - m)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(sink - m))).to(x.dtype)


@case(R(4096, 64, 64), grads=())
def sinkhorn(x: Tensor) -> Tensor:
    x = x.float()
    for _ in range(4):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return x.exp()


@case(R(64, 1024, 1024))
def ring_of_rows(x: Tensor) -> Tensor:
    return (x + x.roll(1, 1) + x.roll(-1, 1)) / math.sqrt(3)


# ---------------------------------------------------------------- rows that an index names
@case(R(64, 4096, 128), I(4096, 2048), grads=(0,))
def tokens_by_index(x: Tensor, i: Tensor) -> Tensor:
    return x[:, i] * 2


@case(R(8192, 4096), I(4096, 1024), grads=(0,))
def features_by_index(x: Tensor, i: Tensor) -> Tensor:
    return x[:, i] * 2


@case(R(32, dt=FLOAT), I(32, 4096 * 1024), grads=(0,))
def biases_of_distances(bias: Tensor, distance: Tensor) -> Tensor:
    return bias[distance].exp()


@case(R(100000, 128), I(100000, 8192 * 20), R(8192, 20), grads=(0, 2))
def weighted_history(table: Tensor, i: Tensor, w: Tensor) -> Tensor:
    return (F.embedding(i.view(8192, 20), table) * w[..., None]).sum(1)


@case(R(50000, 64), I(50000, 500000), I(50000, 500000), R(500000, 4), R(500000, 4), grads=(0, 3))
def attention_over_edges(x: Tensor, source: Tensor, target: Tensor, score: Tensor, mask: Tensor) -> Tensor:
    e = torch.exp(score.float() + mask.float())
    total = torch.zeros(50000, 4, device=x.device).index_add(0, target, e)
    weight = (e / total[target]).to(x.dtype)
    return torch.zeros(50000, 4, 16, device=x.device, dtype=x.dtype).index_add(0, target, x.view(-1, 4, 16)[source] * weight[..., None])
