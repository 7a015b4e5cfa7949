"""Torch functions of yet more fields for `model_functions.py`: recommenders, rewards, graphs, detection, diffusion, radiance fields, language models.

Written on 2026-11-29, after everything else was tuned; `science_functions.py` has the rest of that day. Adds them to `CASES` there.
Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, Input, R, case
from torch import Tensor

FLOAT, FP8 = torch.float32, torch.float8_e4m3fn


# ---------------------------------------------------------------- recommenders
@case(R(8192, 27, 27), R(8192, 128))
def dot_interactions(products: Tensor, dense: Tensor) -> Tensor:
    """DLRM: the products of pairs of features below the diagonal, behind the dense features."""
    i, j = torch.tril_indices(27, 27, -1, device=products.device)
    return torch.cat([dense, products[:, i, j]], 1)


@case(R(200000, 64), I(200000, 8192, 20), R(8192, 20), grads=(0, 2))
def weighted_bags(table: Tensor, i: Tensor, w: Tensor) -> Tensor:
    return (F.embedding(i, table) * w[..., None]).sum(1)


@case(R(2048, 100, 64), R(2048, 64), grads=(0, 1))
def pairs_of_history(h: Tensor, q: Tensor) -> Tensor:
    """DIN: what the attention's network reads."""
    q = q[:, None].expand_as(h)
    return torch.cat([h, q, h - q, h * q], -1)


@case(R(16384, 1024), R(1024, dt=FLOAT), R(1024, dt=FLOAT), R(1024))
def dice_activation(x: Tensor, mean: Tensor, var: Tensor, alpha: Tensor) -> Tensor:
    p = torch.sigmoid((x.float() - mean) * torch.rsqrt(var.abs() + 1e-8)).to(x.dtype)
    return p * x + (1 - p) * alpha * x


# ---------------------------------------------------------------- learning from rewards
@case(R(8192, 32, dt=FLOAT), R(8192, 32, dt=FLOAT), grads=(0,))
def quantile_huber(q: Tensor, target: Tensor) -> Tensor:
    tau = (torch.arange(32, device=q.device, dtype=FLOAT) + 0.5) / 32
    u = target[:, None, :] - q[:, :, None]
    huber = torch.where(u.abs() <= 1, 0.5 * u * u, u.abs() - 0.5)
    return ((tau[:, None] - (u.detach() < 0).float()).abs() * huber).mean(-1).sum(-1).mean()


@case(R(16384, 51, dt=FLOAT), R(16384, 1, dt=FLOAT), R(16384, 1, dt=FLOAT), grads=())
def projected_distribution(p: Tensor, r: Tensor, discount: Tensor) -> Tensor:
    """C51: probabilities of returns, moved to the places of the support."""
    z = torch.linspace(-10, 10, 51, device=p.device)
    to = (r + discount * z).clamp(-10, 10)
    return ((1 - (to[:, None] - z[:, None]).abs() / 0.4).clamp(0, 1) * p[:, None]).sum(-1)


@case(R(4096, 256, dt=FLOAT), R(4096, 256, dt=FLOAT), R(4096, 256, dt=FLOAT), R(4096, 257, dt=FLOAT), grads=())
def vtrace_deltas(new: Tensor, old: Tensor, r: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    ratio = torch.exp(new - old)
    return ratio.clamp(max=1.0) * (r + 0.99 * v[:, 1:] - v[:, :-1]), 0.99 * ratio.clamp(max=1.0)


@case(R(512, 2048, dt=FLOAT), R(512, 2048, dt=FLOAT), R(512, 2048, dt=FLOAT), R(512, dt=FLOAT), I(2, 512, 2048), grads=(0,))
def group_relative_loss(new: Tensor, old: Tensor, reference: Tensor, reward: Tensor, mask: Tensor) -> Tensor:
    """GRPO: groups of 8 samples."""
    g = reward.view(64, 8)
    a = ((g - g.mean(-1, keepdim=True)) / (g.std(-1, keepdim=True) + 1e-4)).view(512, 1)
    ratio = torch.exp(new - old)
    d = reference - new
    token = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a) + 0.04 * (torch.exp(d) - d - 1)
    return ((token * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


@case(R(16, 512, 32000), I(32000, 16, 512), grads=(0,))
def odds_ratio_loss(x: Tensor, t: Tensor) -> Tensor:
    """ORPO: chosen samples, then rejected ones."""
    mask = t != 0
    p = (x.float().log_softmax(-1).gather(-1, t[..., None])[..., 0] * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    chosen, rejected = p.chunk(2)
    odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen) + 1e-6) - torch.log1p(-torch.exp(rejected) + 1e-6))
    return (-chosen - 0.1 * F.logsigmoid(odds)).mean()


# ---------------------------------------------------------------- graph networks
@case(R(500000, 8, dt=FLOAT), I(50000, 500000))
def softmax_of_edges(s: Tensor, node: Tensor) -> Tensor:
    to = node[:, None].expand_as(s)
    top = torch.full((50000, 8), float("-inf"), device=s.device).scatter_reduce(0, to, s.detach(), "amax")
    e = torch.exp(s - top[node])
    return e / (torch.zeros(50000, 8, device=s.device).scatter_add(0, to, e)[node] + 1e-16)


@case(R(50000, 128), R(50000, 128), I(50000, 400000), I(50000, 400000), R(8, 16), grads=(0, 1, 4))
def gatv2_scores(left: Tensor, right: Tensor, source: Tensor, target: Tensor, a: Tensor) -> Tensor:
    x = F.leaky_relu(left[source] + right[target], 0.2).view(-1, 8, 16)
    return (x * a).sum(-1)


@case(R(100000, 128), I(100000, 2, 400000), grads=(0,))
def normalized_by_degree(x: Tensor, edges: Tensor) -> Tensor:
    """GCN: messages weighted by the degrees of both ends, added at their targets."""
    source, target = edges[0], edges[1]
    degree = torch.zeros(100000, device=x.device).scatter_add(0, target, torch.ones(400000, device=x.device))
    by = (degree + 1).rsqrt()
    w = (by[source] * by[target]).to(x.dtype)
    return torch.zeros_like(x).index_add(0, target, x[source] * w[:, None])


@case(R(400000, 64), I(2000, 400000), grads=(0,))
def pooled_graphs(x: Tensor, graph: Tensor) -> Tensor:
    """Means and maxima of the nodes of each graph."""
    to = graph[:, None].expand_as(x)
    total = torch.zeros(2000, 64, device=x.device).scatter_add(0, to, x.float())
    count = torch.zeros(2000, device=x.device).scatter_add(0, graph, torch.ones(400000, device=x.device))
    return total / count.clamp(min=1)[:, None]


# ---------------------------------------------------------------- detection and segmentation
@case(R(200000, 4, dt=FLOAT), R(200000, 4, dt=FLOAT), grads=(0,))
def generalized_overlap(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    union = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1) - both
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(-1)
    return (1 - both / (union + 1e-7) + (hull - union) / (hull + 1e-7)).mean()


@case(R(16, 120000, 4), R(120000, 4, dt=FLOAT), grads=())
def decoded_anchors(d: Tensor, anchors: Tensor) -> Tensor:
    dx, dy, dw, dh = d.float().unbind(-1)
    w, h = anchors[:, 2] - anchors[:, 0], anchors[:, 3] - anchors[:, 1]
    x, y = anchors[:, 0] + 0.5 * w + dx * w, anchors[:, 1] + 0.5 * h + dy * h
    w, h = torch.exp(dw.clamp(max=4.135)) * w, torch.exp(dh.clamp(max=4.135)) * h
    return torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1).clamp(0, 1024)


@case(R(16, 900, 256), I(256, 320), R(16, 900, 4, dt=FLOAT), R(320, 4, dt=FLOAT), grads=())
def matching_cost(x: Tensor, labels: Tensor, boxes: Tensor, truth: Tensor) -> Tensor:
    """DETR: focal cost of classes and distance of boxes, each query with each truth."""
    p = x.float().flatten(0, 1).sigmoid()
    positive, negative = 0.25 * (1 - p) ** 2 * -(p + 1e-8).log(), 0.75 * p**2 * -(1 - p + 1e-8).log()
    distance = (boxes.flatten(0, 1)[:, None] - truth[None]).abs().sum(-1)
    return 5 * distance + 2 * (positive[:, labels] - negative[:, labels])


@case(R(32, 8400, 4, 16), R(32, 8400, 4, dt=FLOAT), grads=(0,))
def distribution_focal(x: Tensor, target: Tensor) -> Tensor:
    """YOLOv8: cross entropy of the two bins beside a distance."""
    t = target.clamp(0, 14.99)
    low = t.long()
    logs = x.float().log_softmax(-1)
    a, b = logs.gather(-1, low[..., None])[..., 0], logs.gather(-1, low[..., None] + 1)[..., 0]
    return -(a * (low + 1 - t) + b * (t - low)).mean()


# ---------------------------------------------------------------- diffusion
@case(R(64, 16, 64, 64), R(64, 16, 64, 64), R(64, 16, 64, 64), R(1000, dt=FLOAT), I(1000, 64), grads=(0,))
def velocity_loss(v: Tensor, x: Tensor, noise: Tensor, alphas: Tensor, t: Tensor) -> Tensor:
    """Of v-prediction with min-SNR weights."""
    a = alphas.sigmoid()[t]
    snr = a / (1 - a)
    target = a.sqrt()[:, None, None, None] * noise - (1 - a).sqrt()[:, None, None, None] * x
    return ((v.float() - target.float()).square().mean((1, 2, 3)) * (snr.clamp(max=5.0) / (snr + 1))).mean()


@case(R(64, 4, 128, 128), R(64, 4, 128, 128), grads=())
def rescaled_guidance(cond: Tensor, plain: Tensor) -> Tensor:
    guided = plain + 7.5 * (cond - plain)
    ratio = cond.float().std((1, 2, 3), keepdim=True) / guided.float().std((1, 2, 3), keepdim=True)
    return (0.7 * guided.float() * ratio + 0.3 * guided.float()).to(cond.dtype)


@case(R(65536, dt=FLOAT), R(160, dt=FLOAT), grads=())
def time_embedding(t: Tensor, scale: Tensor) -> Tensor:
    f = torch.exp(-math.log(10000) * torch.arange(160, device=t.device) / 160) * scale
    x = t[:, None] * f
    return torch.cat([x.cos(), x.sin()], -1).to(torch.bfloat16)


@case(R(64, 4, 128, 128), R(64, 4, 128, 128), R(64, 4, 128, 128), R(5, dt=FLOAT), grads=())
def solver_step(x: Tensor, m0: Tensor, m1: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """DPM-Solver++(2M), and the denoised sample for the next step."""
    d0 = s[0] * x.float() - s[1] * m0.float()
    d1 = (d0 - m1.float()) / s[2]
    return (s[3] * x.float() - s[4] * (d0 + 0.5 * d1)).to(x.dtype), d0.to(x.dtype)


# ---------------------------------------------------------------- radiance fields and splats
@case(R(16384, 128, dt=FLOAT), R(16384, 128, dt=FLOAT), R(16384, 128, 3))
def composited(density: Tensor, step: Tensor, color: Tensor) -> Tensor:
    a = 1 - torch.exp(-F.relu(density) * step)
    seen = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a + 1e-10], -1), -1)[:, :-1]
    return ((a * seen)[..., None] * color.float()).sum(1)


@case(R(1000000, 16, 3, dt=FLOAT), R(1000000, 3, dt=FLOAT), grads=(0,))
def spherical_harmonics(c: Tensor, d: Tensor) -> Tensor:
    d = d / (d.norm(dim=-1, keepdim=True) + 1e-8)
    x, y, z = d[:, 0:1], d[:, 1:2], d[:, 2:3]
    r = 0.2820948 * c[:, 0] - 0.4886025 * y * c[:, 1] + 0.4886025 * z * c[:, 2] - 0.4886025 * x * c[:, 3]
    r = r + 1.0925485 * x * y * c[:, 4] - 1.0925485 * y * z * c[:, 5] + 0.3153916 * (2 * z * z - x * x - y * y) * c[:, 6]
    return (r - 1.0925485 * x * z * c[:, 7] + 0.5462742 * (x * x - y * y) * c[:, 8] + 0.5).clamp(min=0)


@case(R(262144, 3, dt=FLOAT))
def positional_encoding(x: Tensor) -> Tensor:
    y = x[..., None, :] * (2.0 ** torch.arange(10, device=x.device))[:, None]
    return torch.cat([x, torch.stack([y.sin(), y.cos()], -2).flatten(1)], -1)


@case(R(1000000, 4, dt=FLOAT), R(1000000, 3, dt=FLOAT))
def covariances(q: Tensor, s: Tensor) -> Tensor:
    """Gaussian splats: R S S^T R^T from quaternions and logarithms of scales, six numbers each."""
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    r = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                     2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1).view(-1, 3, 3)  # fmt: skip
    m = r * s.exp()[:, None]
    c = (m[:, :, None] * m[:, None]).sum(-1)
    return torch.stack([c[:, 0, 0], c[:, 0, 1], c[:, 0, 2], c[:, 1, 1], c[:, 1, 2], c[:, 2, 2]], -1)


# ---------------------------------------------------------------- language models, inference
@case(R(64, 8, 2048, 128), R(64, 8, 1, 128), I(2048, 1), grads=())
def written_to_cache(cache: Tensor, key: Tensor, place: Tensor) -> Tensor:
    return cache.index_copy(2, place, key)


@case(R(256, 128256), I(128256, 256, 1024), grads=())
def repetition_penalty(x: Tensor, before: Tensor) -> Tensor:
    s = x.gather(1, before)
    return x.scatter(1, before, torch.where(s < 0, s * 1.2, s / 1.2))


@case(R(256, 8, 32000), R(256, 8, 32000), I(32000, 256, 8), R(256, 8, dt=FLOAT), grads=())
def accepted_drafts(target: Tensor, draft: Tensor, t: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Speculative decoding: which tokens are accepted, and what is sampled from where one is not."""
    p, q = target.float().softmax(-1), draft.float().softmax(-1)
    keep = u < p.gather(-1, t[..., None])[..., 0] / q.gather(-1, t[..., None])[..., 0].clamp(min=1e-20)
    rest = (p - q).clamp(min=0)
    return keep, rest / rest.sum(-1, keepdim=True).clamp(min=1e-20)


@case(R(512, 128256), R(512, 1, dt=FLOAT), grads=())
def min_p_sampling(x: Tensor, u: Tensor) -> Tensor:
    """Softcap, temperature, tokens of a tenth of the likeliest, and a sample by the Gumbel trick."""
    x = 30 * torch.tanh(x.float() / 30) / 0.8
    p = x.softmax(-1)
    p = p.masked_fill(p < 0.1 * p.amax(-1, keepdim=True), 0)
    return (p / (u + 1)).argmax(-1)


@case(R(8192, 576), R(512), R(8192, 32), R(8192, 32), grads=(0, 1))
def latent_keys(x: Tensor, w: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """MLA: a norm of the compressed part, rotary positions for the rest, one row of the cache."""
    latent, k = x.split([512, 64], -1)
    a, b = k[..., ::2], k[..., 1::2]
    return torch.cat([F.rms_norm(latent, (512,), w), a * c - b * s, b * c + a * s], -1)


# ---------------------------------------------------------------- norms and activations, quantized in groups of a row
def to_fp8(y: Tensor, group: int) -> tuple[Tensor, Tensor]:
    y = y.float().unflatten(-1, (-1, group))
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (y / s).clamp(-448, 448).to(FP8).flatten(-2), s.squeeze(-1)


@case(R(16384, 4096), R(4096), R(16384, 4096), grads=())
def norm_to_fp8_per_group(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = x + r
    y = F.rms_norm(h, (4096,), w).float().unflatten(-1, (32, 128))
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (y / s).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(1), s[..., 0], h


@case(R(16384, 7168), R(7168), R(16384, 7168), grads=())
def norm_to_fp8_with_rounded_scales(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """DeepGEMM: scales that are powers of two."""
    h = x + r
    y = F.rms_norm(h, (7168,), w).view(-1, 56, 128)
    s = y.abs().float().amax(2).view(-1, 56).clamp(1e-4) / 448.0
    s = torch.pow(2.0, torch.ceil(torch.log2(s.abs())))
    return (y * (1.0 / s.unsqueeze(2))).to(FP8).view(-1, 7168), s, h


@case(R(16384, 4096), R(4096), R(16384, 4096), grads=())
def norm_to_fp8_with_scales_in_columns(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = x + r
    q, s = to_fp8(F.rms_norm(h, (4096,), w), 128)
    return q, s.t().contiguous(), h


@case(R(16384, 4608), R(4608), R(16384, 4608), grads=())
def norm_to_fp8_per_group_of_96(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = x + r
    q, s = to_fp8(F.rms_norm(h, (4608,), w), 96)
    return q, s, h


@case(R(16384, 4096), R(4096), R(4096), R(16384, 4096), grads=())
def layer_norm_to_int8_per_group(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = x + r
    y = F.layer_norm(h, (4096,), w, b).float().view(-1, 64, 64)
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return (y / s).round().clamp(-128, 127).to(torch.int8).view(-1, 4096), s.view(-1, 64), h


@case(R(16384, 4096), R(4096), R(16384, 4096), grads=())
def norm_to_uint8_with_zero_points(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h = x + r
    y = F.rms_norm(h, (4096,), w).float().view(-1, 128, 32)
    low, high = y.amin(-1, keepdim=True), y.amax(-1, keepdim=True)
    s = (high - low).clamp(min=1e-5) / 255
    z = (-low / s).round()
    return ((y / s).round() + z).clamp(0, 255).to(torch.uint8).view(-1, 4096), s.squeeze(-1), z.squeeze(-1).to(torch.uint8), h


@case(R(16384, 4096), R(4096), R(16384, 4096), grads=())
def norm_to_int8_with_sums(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """And what the numbers of a row add up to, for products with zero points."""
    h = x + r
    y = F.rms_norm(h, (4096,), w).float().unflatten(-1, (-1, 128))
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    q = (y / s).round().clamp(-128, 127)
    return q.to(torch.int8).flatten(-2), s.squeeze(-1), (q * s).sum((-1, -2)), h


@case(R(16384, 4096), R(4096), R(16384, 4096), grads=())
def norm_to_fp8_in_two_levels(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scales of groups of 16, and a scale of these per row."""
    h = x + r
    y = F.rms_norm(h, (4096,), w).float().unflatten(-1, (-1, 16))
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    t = s.amax((1, 2), keepdim=True) / 448
    u = (s / t).to(FP8)
    return (y / (u.float() * t)).clamp(-448, 448).to(FP8).flatten(-2), u.squeeze(-1), t.flatten(), h


@case(R(16384, 4096), R(4096), R(16384, 4096), grads=())
def norm_to_mxfp8(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of e8m0, as bytes."""
    h = x + r
    y = F.rms_norm(h, (4096,), w).float().unflatten(-1, (-1, 32))
    e = torch.ceil(torch.log2(y.abs().amax(-1, keepdim=True) / 448)).clamp(-127, 127)
    return (y / torch.exp2(e)).clamp(-448, 448).to(FP8).flatten(-2), (e.squeeze(-1) + 127).to(torch.uint8), h


@case(R(16384, 4096), R(4096), R(16384, 4096), R(1, dt=FLOAT), grads=())
def norm_to_nvfp4(x: Tensor, w: Tensor, r: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two numbers in a byte, packed by hand; scales of e4m3."""
    h = x + r
    y = F.rms_norm(h, (4096,), w).float().unflatten(-1, (-1, 16))
    s = (y.abs().amax(-1, keepdim=True) / 6 * g).clamp(max=448).to(FP8)
    y = (y * (g / s.float().clamp(min=1e-12))).flatten(-2)
    a, u = y.abs(), torch.uint8
    code = (a > 0.25).to(u) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5) + (y < 0).to(u) * 8
    return code[..., ::2] | (code[..., 1::2] << 4), s.squeeze(-1), h


@case(R(16384, 14336), grads=())
def swiglu_to_fp8_per_group(x: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = x.chunk(2, -1)
    return to_fp8(F.silu(gate) * up, 128)


@case(R(16384, 4096), grads=())
def softmax_to_fp8_per_group(x: Tensor) -> tuple[Tensor, Tensor]:
    return to_fp8(x.float().softmax(-1), 128)


@case(Input((16384, 4096), torch.uint8, 120), R(16384, 32, dt=FLOAT), R(16384, 4096), R(4096), grads=())
def norm_of_scaled_groups(q: Tensor, s: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = (q.view(FP8).float().unflatten(-1, (-1, 128)) * s[..., None]).flatten(-2).to(r.dtype) + r
    return F.rms_norm(h, (4096,), w), h


@case(R(7168, 4096), grads=())
def weight_to_fp8_in_squares(w: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek: a scale per 128 x 128."""
    y = w.float().view(56, 128, 32, 128)
    s = y.abs().amax((1, 3), keepdim=True).clamp(1e-4) / 448
    return (y / s).to(FP8).view(7168, 4096), s.view(56, 32)


# ---------------------------------------------------------------- language models, training
@case(R(8192, 64), grads=(0,))
def balance_of_experts(x: Tensor) -> Tensor:
    """The auxiliary losses of a mixture of experts: balance of load, and squared logarithms of totals."""
    p = x.float().softmax(-1)
    top = p.topk(8, -1).indices
    load = F.one_hot(top, 64).float().sum(1).mean(0)
    return 64 * (load * p.mean(0)).sum() + 1e-3 * x.float().logsumexp(-1).square().mean()


@case(I(16, 8, 4096), R(8, 16, 4096, 1), grads=(1,))
def packed_mask(document: Tensor, slope: Tensor) -> Tensor:
    i = torch.arange(4096, device=document.device)
    seen = (document[:, None, :, None] == document[:, None, None, :]) & (i[:, None] >= i)
    return torch.where(seen, slope, float("-inf"))


@case(R(4, 2048, 32000), I(32000, 4, 2048), I(2, 4, 2048), grads=(0,))
def next_tokens(x: Tensor, t: Tensor, mask: Tensor) -> Tensor:
    """Shifted labels, smoothed, masked tokens ignored."""
    t = F.pad(t.masked_fill(mask == 0, -100), (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(x.float().flatten(0, 1), t.flatten(), ignore_index=-100, label_smoothing=0.1)


@case(R(4, 1024, 32000), R(4, 1024, 32000), I(32000, 4, 1026), grads=(0, 1))
def two_tokens_ahead(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    one = F.cross_entropy(x.float().flatten(0, 1), t[:, 1:-1].flatten())
    two = F.cross_entropy(y.float().flatten(0, 1), t[:, 2:].flatten())
    return one + 0.3 * two


@case(R(64, 1024, dt=FLOAT), R(64, 1024, dt=FLOAT), I(2, 64), grads=(0,))
def prospect_loss(policy: Tensor, reference: Tensor, liked: Tensor) -> Tensor:
    """KTO."""
    ratio = (policy - reference).sum(-1)
    middle = ratio.mean().clamp(min=0).detach()
    return torch.where(liked == 1, 1 - torch.sigmoid(0.1 * (ratio - middle)), 1 - torch.sigmoid(0.1 * (middle - ratio))).mean()
