"""Torch functions of training and inference for `model_functions.py`: few bits, optimizers, series, contrast, graphs, turns, fields, images, sounds.

Written on 2026-11-29, after everything else was tuned, with `applied_functions.py`. Sizes come from the inputs, so the functions also run on small ones. Adds
them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, Input, R, case
from torch import Tensor

FLOAT, INT32, COMPLEX = torch.float32, torch.int32, torch.complex64
EXCHANGES = [(1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3), (5, 8), (4, 7), (3, 6), (1, 4), (2, 5), (4, 7)]
EXCHANGES += [(4, 2), (6, 4), (4, 2)]
"""Which bring the median of nine to the middle."""


# ---------------------------------------------------------------- caches and weights of few bits
@case(R(64, 8, 128), Input((4096, 8, 128), torch.int8, 100), R(4096, 8, dt=FLOAT), I(4096, 64), grads=())
def int8_cache(k: Tensor, cache: Tensor, scales: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Keys of new tokens, quantized and written to their places."""
    s = k.float().abs().amax(-1) / 127
    q = (k.float() / s.clamp(min=1e-8)[..., None]).round().clamp(-128, 127).to(torch.int8)
    return cache.index_copy(0, place, q), scales.index_copy(0, place, s)


@case(Input((4096, 512), INT32, 2**31 - 1), Input((32, 512), INT32, 2**31 - 1), R(32, 4096), grads=())
def awq_weights(packed: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    shifts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28], device=packed.device, dtype=INT32)
    w = (packed[..., None] >> shifts & 15).flatten(1)
    z = (zeros[..., None] >> shifts & 15).flatten(1)
    group = w.shape[0] // scales.shape[0]
    return (w - z.repeat_interleave(group, 0)) * scales.repeat_interleave(group, 0)


@case(Input((512, 4096), INT32, 2**31 - 1), Input((32, 512), INT32, 2**31 - 1), R(32, 4096), I(32, 4096), grads=())
def gptq_weights(packed: Tensor, zeros: Tensor, scales: Tensor, group: Tensor) -> Tensor:
    """With an order of groups (act-order)."""
    shifts = torch.arange(0, 32, 4, device=packed.device, dtype=INT32)
    w = (packed[:, None] >> shifts[:, None] & 15).flatten(0, 1)
    z = (zeros[..., None] >> shifts & 15).flatten(1) + 1
    return scales[group] * (w - z[group]).to(scales.dtype)


@case(Input((131072, 32), torch.uint8, 256), Input((131072,), torch.uint8, 256), R(512, dt=FLOAT), R(16, dt=FLOAT), R(256, dt=FLOAT), grads=())
def nf4_weights(packed: Tensor, absmax: Tensor, absmax2: Tensor, code: Tensor, code2: Tensor) -> Tensor:
    """QLoRA: values of a table, times scales that are such values themselves."""
    v = code[torch.stack([packed >> 4, packed & 15], -1).flatten(1).int()]
    block = absmax.shape[0] // absmax2.shape[0]
    s = code2[absmax.int()] * absmax2.repeat_interleave(block) + 0.01
    return (v * s[:, None]).to(torch.bfloat16)


@case(R(8192, 4096, dt=FLOAT), R(4096, dt=FLOAT), R(4096, dt=FLOAT), grads=())
def smooth_quantized(x: Tensor, weight_max: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """SmoothQuant: ranges moved from activations to weights, then scales of tokens."""
    s = (x.abs().amax(0).clamp(min=1e-5).sqrt() / weight_max.abs().clamp(min=1e-5).sqrt()).clamp(min=1e-5)
    y = x / s + bias
    t = y.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return (y / t).round().to(torch.int8), t, s


@case(R(4096, 4096, dt=FLOAT), Input((4096, 4096), INT32, 2**16), grads=())
def stochastically_rounded(x: Tensor, noise: Tensor) -> Tensor:
    return ((x.view(INT32) + noise) & -65536).view(FLOAT).to(torch.bfloat16)


@case(R(4096, 4096, dt=FLOAT))
def ternary_weights(w: Tensor) -> Tensor:
    """BitNet b1.58."""
    s = 1 / w.abs().mean().clamp(min=1e-5)
    q = (w * s).round().clamp(-1, 1) / s
    return w + (q - w).detach()


@case(R(8192, 4096, dt=FLOAT), R(1, dt=FLOAT))
def learned_step_size(x: Tensor, step: Tensor) -> Tensor:
    """LSQ: the step has a gradient, scaled by the number of elements."""
    g = 1 / math.sqrt(x.numel() * 7 + 1)
    s = step.abs() + 0.1
    s = (s - s * g).detach() + s * g
    v = (x / s).clamp(-8, 7)
    return ((v.round() - v).detach() + v) * s


# ---------------------------------------------------------------- optimizers
@case(R(65536, 256, dt=FLOAT), R(65536, 256), Input((65536, 256), torch.uint8, 256), R(65536, dt=FLOAT), R(256, dt=FLOAT), grads=())
def adam_in_8_bits(p: Tensor, g: Tensor, m8: Tensor, scale: Tensor, code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first moment as places in a sorted table, with a scale for each block."""
    code = torch.linspace(-1, 1, 256, device=p.device) + 0 * code
    m = code[m8.int()] * scale.abs()[:, None]
    m = 0.9 * m + 0.1 * g.float()
    s = m.abs().amax(-1)
    n = m / s.clamp(min=1e-12)[:, None]
    i = torch.bucketize(n, (code[1:] + code[:-1]) / 2)
    return p * (1 - 1e-5) - 1e-3 * m.sign(), i.to(torch.uint8), s


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, dt=FLOAT), R(4096, dt=FLOAT), grads=())
def adafactor_step(p: Tensor, g: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g = g.float()
    s = g.square() + 1e-30
    row, column = torch.lerp(row.abs(), s.mean(-1), 0.2), torch.lerp(column.abs(), s.mean(-2), 0.2)
    u = g * (row / row.mean()).rsqrt()[:, None] * column.rsqrt()
    u = u / (u.square().mean().sqrt() / 1.0).clamp(min=1.0)
    return p - u * (1e-2 * p.square().mean().sqrt().clamp(min=1e-3)), row, column


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), R(4, dt=FLOAT), grads=())
def schedule_free_step(z: Tensor, g: Tensor, x: Tensor, v: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = g.float()
    v = v.abs() * 0.999 + g * g * 0.001
    y = torch.lerp(z, x, 0.9)
    u = g / (v / (1 - 0.999 ** c[0].abs())).sqrt().clamp(min=1e-8) + 0.01 * y
    z = z - 1e-3 * u
    x = torch.lerp(x, z, c[1].sigmoid())
    return z, x, v, torch.lerp(z, x, 0.9).to(torch.bfloat16)


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), R(4096, 4096), grads=())
def adan_step(p: Tensor, g: Tensor, m: Tensor, d: Tensor, n: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g, diff = g.float(), g.float() - before.float()
    m, d = m.lerp(g, 0.02), d.lerp(diff, 0.08)
    n = n.abs().lerp((g + 0.92 * diff).square(), 0.01)
    return (p - 1e-3 * (m / 0.1 + 0.92 * d / 0.3) / ((n / 0.05).sqrt() + 1e-8)) / (1 + 1e-5), m, d, n


@case(R(4096, 4096, dt=FLOAT), R(4096, dt=FLOAT))
def spectral_norm_by_iteration(w: Tensor, v: Tensor) -> Tensor:
    """Without matrix products: the vectors have no gradient, the norm has."""
    with torch.no_grad():
        v = F.normalize(v, dim=0)
        u = F.normalize((w * v).sum(1), dim=0)
        v = F.normalize((w * u[:, None]).sum(0), dim=0)
    return w / (u * (w * v).sum(1)).sum().abs().clamp(min=1e-6)


@case(R(4096, 1024), R(4096, 1024), R(1024, 4096), R(1024), R(1024), grads=())
def clipped_each(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> tuple[Tensor, ...]:
    """AGC for matrices, by units; vectors by value."""

    def clipped(p: Tensor, g: Tensor) -> Tensor:
        most = p.float().norm(dim=1, keepdim=True).clamp(min=1e-3) * 0.01
        n = g.float().norm(dim=1, keepdim=True)
        return torch.where(n > most, g * (most / n.clamp(min=1e-6)), g)

    return clipped(a, b), clipped(b, a), clipped(c, c), d.clamp(-1, 1), e.clamp(-1, 1)


# ---------------------------------------------------------------- series, survival, likelihoods
@case(R(256, 512, 64), R(64), R(64), R(256, 96, 64))
def reversible_norm_of_a_forecast(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """RevIN: statistics of the history scale the forecast back; the last value is what is subtracted."""
    last = x[:, -1:].detach().float()
    std = torch.sqrt(x.float().var(1, keepdim=True, unbiased=False) + 1e-5).detach()
    n = (x.float() - last) / std * w + b
    return ((y.float() + n.mean(1, keepdim=True) - b) / (w + 1e-2) * std + last).to(y.dtype)


@case(R(65536, 32, dt=FLOAT), R(65536, dt=FLOAT), grads=(0,))
def energy_score(x: Tensor, y: Tensor) -> Tensor:
    """CRPS of an ensemble, all pairs of members."""
    a = (x - y[:, None]).abs().mean(-1)
    b = (x[:, :, None] - x[:, None]).abs().mean((-1, -2))
    return (a - 0.5 * b).mean()


@case(R(65536, 9), R(65536, dt=FLOAT), grads=(0,))
def pinball_with_monotone_quantiles(x: Tensor, y: Tensor) -> Tensor:
    q = torch.cat([x[:, :1].float(), F.softplus(x[:, 1:].float())], -1).cumsum(-1)
    tau = torch.arange(1, x.shape[1] + 1, device=x.device) / (x.shape[1] + 1)
    e = y[:, None] - q
    return torch.maximum(tau * e, (tau - 1) * e).sum(-1).nanmean()


@case(R(65536, dt=FLOAT), R(65536, dt=FLOAT), I(50, 65536), grads=(0, 1))
def negative_binomial_loss(mean: Tensor, alpha: Tensor, y: Tensor) -> Tensor:
    """DeepAR: counts."""
    mu, r = F.softplus(mean) + 1e-4, 1 / (F.softplus(alpha) + 1e-4)
    logp = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1.0) + r * torch.log(r / (r + mu)) + y * torch.log(mu / (r + mu))
    return -logp.mean()


@case(R(65536, dt=FLOAT), R(65536, dt=FLOAT), I(2, 65536), grads=(0,))
def cox_loss(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """Samples are in order of falling times (Breslow)."""
    logs = torch.logcumsumexp(risk, 0)
    return -((risk - logs) * event).sum() / event.sum().clamp(min=1) + 0 * time.mean()


@case(R(65536, 40), I(40, 65536), I(2, 65536), grads=(0,))
def hazards_of_intervals(x: Tensor, k: Tensor, event: Tensor) -> Tensor:
    """Discrete survival times: hazards up to the interval of the event or of the end of the observation."""
    i = torch.arange(x.shape[1], device=x.device)
    y = (i == k[:, None]) & (event[:, None] > 0)
    loss = F.binary_cross_entropy_with_logits(x.float(), y.float(), reduction="none")
    return (loss * (i <= k[:, None])).sum(-1).mean()


@case(R(16384, 3 * 10, dt=FLOAT), R(16384, dt=FLOAT), grads=(0,))
def mixture_of_logistics(x: Tensor, y: Tensor) -> Tensor:
    """PixelCNN++: numbers between -1 and 1 in 256 steps."""
    pi, mean, log_s = x.chunk(3, -1)
    y = y.tanh()[:, None]
    inv = torch.exp(-log_s.clamp(min=-7))
    up, down = inv * (y - mean + 1 / 255), inv * (y - mean - 1 / 255)
    middle = inv * (y - mean)
    d = torch.sigmoid(up) - torch.sigmoid(down)
    inner = torch.where(d > 1e-5, torch.log(d.clamp(min=1e-12)), middle - log_s.clamp(min=-7) - 2 * F.softplus(middle) - math.log(127.5))
    logp = torch.where(y < -0.999, up - F.softplus(up), torch.where(y > 0.999, -F.softplus(down), inner))
    return -(logp + pi.log_softmax(-1)).logsumexp(-1).mean()


@case(R(16384, 100), I(100, 16384), grads=(0,))
def evidential_loss(x: Tensor, t: Tensor) -> Tensor:
    """Dirichlet: the expected squared error, and the divergence from no evidence."""
    alpha = F.softplus(x.float()) + 1
    y = F.one_hot(t, x.shape[1]).float()
    s = alpha.sum(-1, keepdim=True)
    p = alpha / s
    error = ((y - p).square() + p * (1 - p) / (s + 1)).sum(-1)
    a = y + (1 - y) * alpha
    total = a.sum(-1)
    kl = torch.lgamma(total) - torch.lgamma(a).sum(-1) - math.lgamma(x.shape[1]) + ((a - 1) * (torch.digamma(a) - torch.digamma(total)[:, None])).sum(-1)
    return (error + 0.1 * kl).mean()


@case(R(8192, 2048), R(8192, 2048), grads=())
def statistics_without_nan(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.float().masked_fill(m > 1, float("nan"))
    mean = x.nanmean(-1, keepdim=True)
    count = (~x.isnan()).sum(-1)
    std = ((x - mean).square().nansum(-1) / (count - 1).clamp(min=1)).sqrt()
    return torch.nan_to_num((x - mean) / std[:, None].clamp(min=1e-6), nan=0.0), std, count


# ---------------------------------------------------------------- distances and contrast
@case(R(16384, 512), I(1000, 16384), R(16384, 1000), grads=(0, 2))
def margin_of_angles(x: Tensor, t: Tensor, cosine: Tensor) -> Tensor:
    """ArcFace: the angle of the true class grows by a margin; CosFace's sign where it would pass pi."""
    c = cosine.float().tanh() * 0.999
    hit = F.one_hot(t, c.shape[1]).bool()
    s = (1 - c.square()).clamp(min=1e-9).sqrt()
    turned = torch.where(c > math.cos(math.pi - 0.5), c * math.cos(0.5) - s * math.sin(0.5), c - 0.5 * math.sin(0.5))
    return F.cross_entropy(torch.where(hit, turned, c) * 64, t) + 1e-4 * x.float().norm(dim=-1).mean()


@case(R(2048, 2048, dt=FLOAT), I(64, 2048))
def hardest_triplets(d: Tensor, label: Tensor) -> Tensor:
    d = d.abs()
    same = label[:, None] == label
    far = d.masked_fill(~same, 0).amax(1)
    near = d.masked_fill(same, float("inf")).amin(1)
    return F.relu(far - near.clamp(max=1e4) + 0.3).mean()


@case(R(2048, 2048), I(128, 2048), grads=(0,))
def supervised_contrast(s: Tensor, label: Tensor) -> Tensor:
    s = s.float() / 0.1
    me = torch.eye(s.shape[0], dtype=torch.bool, device=s.device)
    same = (label[:, None] == label) & ~me
    logp = s - s.masked_fill(me, float("-inf")).logsumexp(1, keepdim=True)
    return -((logp * same).sum(1) / same.sum(1).clamp(min=1)).mean()


@case(R(8192, 1024), R(8192, 1024))
def variances_and_invariance(a: Tensor, b: Tensor) -> Tensor:
    """VICReg without its covariances."""
    a, b = a.float(), b.float()
    spread = F.relu(1 - torch.sqrt(a.var(0) + 1e-4)).mean() + F.relu(1 - torch.sqrt(b.var(0) + 1e-4)).mean()
    return 25 * F.mse_loss(a, b) + 25 * spread


@case(R(4096, 8192), R(4096, 8192), R(1, 8192, dt=FLOAT), grads=(0,))
def self_distilled(student: Tensor, teacher: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """DINO: a sharpened and centered teacher, and its next center."""
    q = ((teacher.float() - center) / 0.04).softmax(-1)
    loss = -(q * (student.float() / 0.1).log_softmax(-1)).sum(-1).mean()
    return loss, center * 0.9 + teacher.float().mean(0, keepdim=True) * 0.1


@case(R(8192, 1000), R(8192, 1000), I(1000, 8192), grads=(0,))
def decoupled_distillation(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    hit = F.one_hot(t, x.shape[1]).bool()

    def parts(z: Tensor) -> tuple[Tensor, Tensor]:
        p = (z.float() / 4).softmax(-1)
        target = torch.stack([(p * hit).sum(-1), (p * ~hit).sum(-1)], -1)
        return target, (z.float() / 4 - 1000.0 * hit).log_softmax(-1)

    (a, la), (b, lb) = parts(x), parts(y)
    target = F.kl_div(a.clamp(min=1e-8).log(), b, reduction="batchmean")
    others = F.kl_div(la, lb, reduction="batchmean", log_target=True)
    return (target + 8.0 * others) * 16


@case(R(1024, 64), R(1024, 64, dt=FLOAT), grads=(0,))
def lambda_rank(s: Tensor, gain: Tensor) -> Tensor:
    """All pairs of a list, weighted by what a swap changes in NDCG; the ranks are those of the scores."""
    s, gain = s.float(), gain.abs()
    rank = (s[:, None].detach() > s[:, :, None].detach()).sum(-1) + 1
    discount = 1 / torch.log2(1.0 + rank)
    delta = (gain[:, :, None] - gain[:, None]) * (discount[:, :, None] - discount[:, None])
    pair = F.softplus(-(s[:, :, None] - s[:, None])) * (gain[:, :, None] > gain[:, None])
    return (pair * delta.abs()).sum((1, 2)).mean()


@case(R(8192, 1024), R(8192, dt=FLOAT), R(1024, dt=FLOAT), I(5000, 8192), grads=(0,))
def sampled_softmax(x: Tensor, q_true: Tensor, q: Tensor, item: Tensor) -> Tensor:
    """Two towers: negatives of the batch, corrected by how often they are drawn; equal items are no negatives."""
    n = min(x.shape)
    s = x[:n, :n].float() - q[:n].sigmoid().log() * 0.5
    same = (item[:n, None] == item[:n]) & ~torch.eye(n, dtype=torch.bool, device=x.device)
    return F.cross_entropy(s.masked_fill(same, -1e9), torch.arange(n, device=x.device)) + 0 * q_true.sum()


# ---------------------------------------------------------------- graphs
@case(R(400000, 64), I(20000, 400000), R(20000, 64), grads=(0,))
def principal_aggregators(x: Tensor, to: Tensor, like: Tensor) -> Tensor:
    """PNA: mean, maximum, minimum and deviation of messages, scaled by degrees."""
    n, x = like.shape[0], x.float()
    i = to[:, None].expand_as(x)
    zero = torch.zeros(n, x.shape[1], device=x.device)
    degree = torch.zeros(n, device=x.device).index_add(0, to, torch.ones_like(to, dtype=FLOAT))[:, None]
    mean = zero.scatter_add(0, i, x) / degree.clamp(min=1)
    square = zero.scatter_add(0, i, x * x) / degree.clamp(min=1)
    most, least = (zero.scatter_reduce(0, i, x, how, include_self=False) for how in ("amax", "amin"))
    std = torch.sqrt(F.relu(square - mean * mean) + 1e-5)
    out = torch.cat([mean, most, least, std], -1)
    by = torch.log(degree + 1)
    return torch.cat([out, out * by, out / by.clamp(min=0.1)], -1)


@case(R(50000, 64, dt=FLOAT), R(50000, 3, dt=FLOAT), I(50000, 2, 400000), grads=(0, 1))
def equivariant_messages(h: Tensor, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """EGNN: places move along the differences to neighbours."""
    a, b = edges[0], edges[1]
    d = x[a] - x[b]
    r = d.square().sum(-1, keepdim=True)
    m = F.silu(h[a] + h[b] - r)
    move = d / (r.sqrt() + 1) * m.mean(-1, keepdim=True)
    return h + torch.zeros_like(h).index_add(0, a, m), x + torch.zeros_like(x).index_add(0, a, move)


# ---------------------------------------------------------------- turns and places
@case(R(1000000, 4, dt=FLOAT), R(1000000, 4, dt=FLOAT), R(1000000, 3, dt=FLOAT))
def turned_by_quaternions(a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    aw, av, bw, bv = a[:, :1], a[:, 1:], b[:, :1], b[:, 1:]
    w = aw * bw - (av * bv).sum(-1, keepdim=True)
    v = aw * bv + bw * av + torch.linalg.cross(av, bv)
    t = 2 * torch.linalg.cross(v, p)
    return p + w * t + torch.linalg.cross(v, t)


@case(R(262144, 6, dt=FLOAT), R(262144, 3, 3, dt=FLOAT), grads=(0,))
def turns_of_six_numbers(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Gram-Schmidt, and the angle to another matrix."""
    a, b = F.normalize(x[:, :3], dim=-1), x[:, 3:]
    b = F.normalize(b - (a * b).sum(-1, keepdim=True) * a, dim=-1)
    r = torch.stack([a, b, torch.cross(a, b, dim=-1)], -2)
    trace = (r * target).sum((-1, -2))
    return r, torch.acos(((trace - 1) / 2).clamp(-1 + 1e-6, 1 - 1e-6))


@case(R(262144, 6, dt=FLOAT), R(262144, 3, dt=FLOAT))
def twists(x: Tensor, p: Tensor) -> Tensor:
    """SE(3): the exponential of a twist moves a point; series near no turn."""
    w, v = x[:, :3], x[:, 3:]
    s = w.square().sum(-1, keepdim=True)
    small = s < 1e-6
    t = torch.where(small, 1.0, s).sqrt()
    a = torch.where(small, 1 - s / 6, t.sin() / t)
    b = torch.where(small, 0.5 - s / 24, (1 - t.cos()) / (t * t))
    c = torch.where(small, 1 / 6 - s / 120, (t - t.sin()) / (t * t * t))

    def turned(y: Tensor, one: Tensor, two: Tensor) -> Tensor:
        wy = torch.linalg.cross(w, y)
        return y + one * wy + two * torch.linalg.cross(w, wy)

    return turned(p, a, b) + turned(v, b, c)


@case(R(8, 256, 3, dt=FLOAT), R(8, 256, 3, dt=FLOAT), R(8, 256, 3, 3, dt=FLOAT), R(8, 256, 3, 3, dt=FLOAT), grads=(0,))
def frame_aligned_error(x: Tensor, y: Tensor, rx: Tensor, ry: Tensor) -> Tensor:
    """FAPE: places seen from each frame."""
    a = (rx[:, :, None] * (x[:, None] - x[:, :, None])[..., None]).sum(-2)
    b = (ry[:, :, None] * (y[:, None] - y[:, :, None])[..., None]).sum(-2)
    return ((a - b).square().sum(-1) + 1e-4).sqrt().clamp(max=10).mean() / 10


# ---------------------------------------------------------------- fields, images, sounds
@case(R(64, 1024, 1024, dt=FLOAT))
def limited_advection(u: Tensor) -> Tensor:
    """Burgers' equation along the last axis, periodic, slopes limited (minmod)."""
    left, right = u - u.roll(1, -1), u.roll(-1, -1) - u
    slope = torch.where(left * right > 0, torch.where(left.abs() < right.abs(), left, right), 0.0)
    a, b = u + 0.5 * slope, (u - 0.5 * slope).roll(-1, -1)
    speed = torch.maximum(a.abs(), b.abs())
    flux = 0.25 * (a * a + b * b) - 0.5 * speed * (b - a)
    return u - 0.1 * (flux - flux.roll(1, -1))


@case(R(32, 512, 512, dt=FLOAT), R(32, 512, 512, dt=FLOAT), R(512, 512, dt=FLOAT))
def wave_step(u: Tensor, before: Tensor, speed: Tensor) -> Tensor:
    """A Laplacian of fourth order between fixed edges."""
    p = F.pad(u, (2, 2, 2, 2))
    lap = -5.0 * u
    for d, w in ((1, 4 / 3), (2, -1 / 12)):
        for side in (2 - d, 2 + d):
            lap = lap + w * (p[:, side : side + u.shape[1], 2:-2] + p[:, 2:-2, side : side + u.shape[2]])
    return 2 * u - before + speed.square() * 0.1 * lap


@case(R(32, 3, 256, 256), R(32, 3, 256, 256), grads=(0,))
def structural_similarity(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.float(), y.float()
    mx, my = F.avg_pool2d(x, 7, 1), F.avg_pool2d(y, 7, 1)
    vx, vy = F.avg_pool2d(x * x, 7, 1) - mx * mx, F.avg_pool2d(y * y, 7, 1) - my * my
    c = F.avg_pool2d(x * y, 7, 1) - mx * my
    return 1 - ((2 * mx * my + 1e-4) * (2 * c + 9e-4) / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4))).mean()


@case(R(32, 3, 512, 512), grads=(0,))
def edges_of_grey_images(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sobel, and the direction in eight steps."""
    g = (x.float() * torch.tensor([0.299, 0.587, 0.114], device=x.device)[:, None, None]).sum(1)
    p = F.pad(g[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    s = p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]
    t = p[..., :-2] + 2 * p[..., 1:-1] + p[..., 2:]
    dx, dy = s[..., 2:] - s[..., :-2], t[:, 2:] - t[:, :-2]
    return (dx * dx + dy * dy + 1e-6).sqrt(), torch.round(torch.atan2(dy, dx).detach() / (math.pi / 4)).to(torch.int32)


@case(R(32, 3, 512, 512, dt=FLOAT))
def lab_of_rgb(x: Tensor) -> Tensor:
    x = x.sigmoid()
    r, g, b = torch.where(x > 0.04045, ((x + 0.055) / 1.055) ** 2.4, x / 12.92).unbind(1)
    xyz = torch.stack([0.4339 * r + 0.3762 * g + 0.1899 * b, 0.2126 * r + 0.7152 * g + 0.0722 * b, 0.0178 * r + 0.1095 * g + 0.8727 * b], 1)
    f = torch.where(xyz > 0.008856, xyz ** (1 / 3), 7.787 * xyz + 16 / 116)
    return torch.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


@case(R(32, 3, 512, 512), grads=(0,))
def median_of_nine(x: Tensor) -> Tensor:
    """By exchanges, without a sort."""
    p = F.pad(x, (1, 1, 1, 1), mode="reflect")
    h, w = x.shape[-2:]
    v = [p[..., i : i + h, j : j + w] for i in range(3) for j in range(3)]
    for a, b in EXCHANGES:
        v[a], v[b] = torch.minimum(v[a], v[b]), torch.maximum(v[a], v[b])
    return v[4]


@case(R(64, 65536, dt=FLOAT), R(64, dt=FLOAT), grads=(0,))
def soft_histogram(x: Tensor, width: Tensor) -> Tensor:
    centers = torch.linspace(-3, 3, 16, device=x.device)
    k = torch.exp(-0.5 * ((x[:, :, None] - centers) / (width.abs() + 0.2)[:, None, None]).square()).sum(1)
    return k / k.sum(-1, keepdim=True)


@case(R(64, 160000, dt=FLOAT), R(64, 160000, dt=FLOAT), grads=(0,))
def scale_invariant_distortion(x: Tensor, y: Tensor) -> Tensor:
    """SI-SDR in decibels."""
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    part = (x * y).sum(-1, keepdim=True) / (y.square().sum(-1, keepdim=True) + 1e-8) * y
    return -10 * torch.log10((part.square().sum(-1) + 1e-8) / ((x - part).square().sum(-1) + 1e-8)).mean()


@case(R(32, 513, 400, dt=COMPLEX), R(513, 400, dt=FLOAT), R(1, dt=FLOAT), grads=())
def decibels_of_a_spectrum(x: Tensor, gate: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """A masked spectrum, its power in decibels below a floor, and the phase's steps over time."""
    y = x * torch.sigmoid(gate)
    p = 10 * torch.log10((y.real.square() + y.imag.square()).clamp(min=1e-10))
    p = torch.maximum(p, p.amax((-2, -1), keepdim=True) - 80) + 0 * least
    step = x[..., 1:] * x[..., :-1].conj()
    return p, torch.atan2(step.imag, step.real)


@case(R(16, 16, 64, 128, 128), R(16, 16), R(64), grads=(0, 1))
def unpatchified(x: Tensor, gate: Tensor, w: Tensor) -> Tensor:
    """Space to depth of volumes and back with a gate for each place of a patch (einops' rearrange)."""
    b, c, t, h, v = x.shape
    y = x.reshape(b, c, t, h // 2, 2, v // 2, 2).permute(0, 2, 3, 5, 4, 6, 1).reshape(b, t, h // 2, v // 2, 4 * c)
    y = F.rms_norm(y, (4 * c,), w) * (1 + gate.repeat(1, 4)[:, None, None, None])
    return y.reshape(b, t, h // 2, v // 2, 2, 2, c).permute(0, 6, 1, 2, 4, 3, 5).reshape(b, c, t, h, v)


@case(R(32, 256, 64, 64), R(256), R(256), R(3, dt=FLOAT), R(3, dt=FLOAT))
def switchable_norm(x: Tensor, w: Tensor, b: Tensor, of_mean: Tensor, of_var: Tensor) -> Tensor:
    x = x.float()
    m, v = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True)
    s = v + m * m
    ml, mb = m.mean(1, keepdim=True), m.mean(0, keepdim=True)
    vl, vb = s.mean(1, keepdim=True) - ml * ml, s.mean(0, keepdim=True) - mb * mb
    p, q = of_mean.softmax(0), of_var.softmax(0)
    n = (x - (p[0] * m + p[1] * ml + p[2] * mb)) * torch.rsqrt(q[0] * v + q[1] * vl + q[2] * vb + 1e-5)
    return (n * w[:, None, None] + b[:, None, None]).to(torch.bfloat16)
