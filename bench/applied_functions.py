"""Torch functions of training and inference for `model_functions.py`: states, rewards, diffusion, detection, points, sequences.

Written on 2026-11-29, after everything else was tuned; `everyday_functions.py` has the rest. Sizes come from the inputs, so the functions also run on small
ones. Adds them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- states and recurrences
@case(R(8, 4096, 64, 64), R(8, 4096, 64), R(64, dt=FLOAT), R(64, dt=FLOAT))
def mamba2_inputs(x: Tensor, dt: Tensor, bias: Tensor, a_log: Tensor) -> tuple[Tensor, Tensor]:
    dt = F.softplus(dt.float() + bias).clamp(1e-3, 0.1)
    return (x.float() * dt[..., None]).to(x.dtype), torch.exp(-a_log.exp() * dt)


@case(R(64, 64, 256, dt=FLOAT))
def segment_sums(a: Tensor) -> Tensor:
    """Mamba-2: decays between pairs of steps of a chunk."""
    c = a.cumsum(-1)
    d = c[..., :, None] - c[..., None, :]
    keep = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool, device=a.device).tril()
    return torch.exp(d.masked_fill(~keep, float("-inf")))


@case(R(8, 2048, 32, 64), R(8, 2048, 32, 64), R(8, 2048, 32, 64), R(8, 2048, 32, 64), R(32, 64), R(32, 64))
def rwkv7_keys(k: Tensor, a: Tensor, w: Tensor, r: Tensor, k_k: Tensor, k_a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = a.float().sigmoid()
    kk = F.normalize(k.float() * k_k, dim=-1, eps=1e-12)
    decay = torch.exp(-0.606531 * w.float().sigmoid())
    key = k.float() * (1 + (a - 1) * k_a)
    return kk.to(k.dtype), (kk * a).to(k.dtype), decay, (r * key).sum(-1, keepdim=True)


@case(R(64, 16, 128, 128, dt=FLOAT), R(64, 16, 128), R(64, 16, 128), R(64, 16, 128), R(64, 16, dt=FLOAT), R(64, 16, dt=FLOAT), grads=())
def gated_delta_step(s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token: the state decays, forgets what the key recalls, learns its value, and is read."""
    q, k = F.normalize(q.float(), dim=-1), F.normalize(k.float(), dim=-1)
    s = s * (-F.softplus(g)).exp()[..., None, None]
    delta = (v.float() - (s * k[..., None]).sum(-2)) * beta.sigmoid()[..., None]
    s = s + k[..., None] * delta[..., None, :]
    return (s * q[..., None]).sum(-2).to(v.dtype), s


@case(R(8, 2048, 16, 64), R(8, 2048, 16, 64))
def normalizer_of_linear_attention(q: Tensor, k: Tensor) -> Tensor:
    q, k = F.elu(q.float()) + 1, F.elu(k.float()) + 1
    return (q / ((q * k.cumsum(1)).sum(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)


@case(R(4096, 2 * 1024), R(4096, 1024))
def ordered_gates(g: Tensor, c: Tensor) -> Tensor:
    """ON-LSTM: gates that are running sums of softmaxes."""
    a, b = g.float().chunk(2, -1)
    f, i = a.softmax(-1).cumsum(-1), 1 - b.softmax(-1).cumsum(-1)
    return (f * i * c + (f - f * i) * torch.tanh(c.float()) + (i - f * i)).to(c.dtype)


# ---------------------------------------------------------------- rewards
@case(R(2048, 1024, dt=FLOAT), R(2048, 1024, dt=FLOAT), R(2048, 1024, dt=FLOAT), R(2048, dt=FLOAT), I(2, 2048, 1024), grads=(0,))
def reinforce_with_whitened_returns(new: Tensor, old: Tensor, reference: Tensor, reward: Tensor, mask: Tensor) -> Tensor:
    """REINFORCE++: KL penalties of tokens, rewards at the last one, returns, whitened over the batch."""
    m = mask.float()
    last = (m.cumsum(-1) == m.sum(-1, keepdim=True)) & (mask > 0)
    r = -0.01 * (old - reference) * m + last * reward.clamp(-10, 10)[:, None]
    g = r.flip(-1).cumsum(-1).flip(-1)
    mean = (g * m).sum() / m.sum().clamp(min=1)
    var = ((g - mean).square() * m).sum() / m.sum().clamp(min=1)
    a = ((g - mean) * torch.rsqrt(var + 1e-8)).detach()
    ratio = torch.exp((new - old).clamp(-20, 20))
    return (torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.28)) * m).sum() / m.sum().clamp(min=1)


@case(R(65536, dt=FLOAT), R(65536, dt=FLOAT), R(65536, dt=FLOAT), grads=(0,))
def clipped_value_loss(v: Tensor, old: Tensor, target: Tensor) -> Tensor:
    clipped = old + (v - old).clamp(-0.2, 0.2)
    loss = torch.max((v - target).square(), (clipped - target).square())
    explained = 1 - (target - v).var() / (target.var() + 1e-8)
    return 0.5 * loss.mean() + 0 * explained


@case(R(4096, 32, dt=FLOAT), R(4096, 33, dt=FLOAT), R(4096, 32, dt=FLOAT), grads=())
def generalized_advantages(r: Tensor, v: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """GAE, the loop over time as it is written."""
    keep, last, out = (done < 1).float(), torch.zeros_like(r[:, 0]), []
    for t in range(r.shape[1] - 1, -1, -1):
        delta = r[:, t] + 0.99 * v[:, t + 1] * keep[:, t] - v[:, t]
        last = delta + 0.99 * 0.95 * keep[:, t] * last
        out.append(last)
    a = torch.stack(out[::-1], 1)
    return a, a + v[:, :-1]


@case(R(8, 1024, 32000), I(32000, 8, 1024), R(8, dt=FLOAT), grads=(0,))
def simple_preference_loss(x: Tensor, t: Tensor, margin: Tensor) -> Tensor:
    """SimPO, and its share of correct pairs: chosen samples, then rejected ones."""
    mask = t != 0
    logp = torch.gather(x.float(), -1, t[..., None])[..., 0] - x.float().logsumexp(-1)
    mean = (logp * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    half = mean.shape[0] // 2
    d = mean[:half] - mean[half : 2 * half]
    return (-F.logsigmoid(2.0 * d - margin[:half].abs()) * 0.9 - F.logsigmoid(-2.0 * d) * 0.1).mean() + 0 * (d > 0).float().mean()


# ---------------------------------------------------------------- diffusion and codes
@case(R(32, 16, 128, 128), R(32, 16, 128, 128), R(32, dt=FLOAT), R(32, 16, 128, 128), grads=(3,))
def flow_matching_loss(x: Tensor, noise: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Times are logistic-normal and shifted, weights as in SD3."""
    t = torch.sigmoid(u)
    t = 3.0 * t / (1 + 2.0 * t)
    s = t.view(-1, *[1] * (x.ndim - 1))
    target = noise.float() - x.float()
    guess = ((1 - s) * x + s * noise) - s * v.float()
    return ((v.float() - target).square().flatten(1).mean(1) * (1 + 1 / (1.01 - t).clamp(min=0.1))).mean() + 0.1 * F.huber_loss(guess, x.float())


@case(R(32, 3, 128, 128), R(32, 3, 128, 128, dt=FLOAT), R(32, dt=FLOAT), R(32, 3, 128, 128, dt=FLOAT), grads=(0,))
def edm_loss(f: Tensor, y: Tensor, log_sigma: Tensor, n: Tensor) -> Tensor:
    sigma = (log_sigma * 1.2 - 1.2).exp()[:, None, None, None]
    skip, out = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / (sigma**2 + 0.25).sqrt()
    d = skip * (y + n * sigma) + out * f.float()
    return ((sigma**2 + 0.25) / (sigma * 0.5) ** 2 * (d - y) ** 2).sum((1, 2, 3)).mean()


@case(R(32, 4, 128, 128), R(32, 2 * 4, 128, 128), R(32, 4, 128, 128), R(1000, dt=FLOAT), I(1000, 32), grads=())
def learned_variance_step(x: Tensor, out: Tensor, z: Tensor, betas: Tensor, t: Tensor) -> Tensor:
    """DDPM with learned variances between the two bounds, x0 clipped."""
    b = betas.sigmoid() * 0.02 + 1e-5
    bar = (1 - b).cumprod(0)
    before = torch.cat([torch.ones_like(bar[:1]), bar[:-1]])
    post = b * (1 - before) / (1 - bar)

    def at(table: Tensor) -> Tensor:
        return table[t].view(-1, 1, 1, 1)

    eps, v = out.float().chunk(2, 1)
    x0 = (at((1 / bar).sqrt()) * x - at((1 / bar - 1).sqrt()) * eps).clamp(-1, 1)
    mean = at(b * before.sqrt() / (1 - bar)) * x0 + at((1 - before) * (1 - b).sqrt() / (1 - bar)) * x
    frac = (v + 1) / 2
    log_var = frac * at(b.log()) + (1 - frac) * at(post.clamp(min=1e-20).log())
    return (mean + (t != 0).float().view(-1, 1, 1, 1) * (0.5 * log_var).exp() * z).to(x.dtype)


@case(R(16384, 64), R(16384, 1024), R(1024, 64), grads=(0, 2))
def quantized_to_codes(x: Tensor, distance: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """VQ-VAE: the gradient goes straight through; both losses, and the perplexity of the codes."""
    i = distance.float().argmin(-1)
    q = F.embedding(i, codes)
    loss = F.mse_loss(q.float(), x.detach().float()) + 0.25 * F.mse_loss(x.float(), q.detach().float())
    p = F.one_hot(i, codes.shape[0]).float().mean(0)
    return x + (q - x).detach(), loss + 0 * torch.exp(-(p * (p + 1e-10).log()).sum())


@case(R(65536, 6, dt=FLOAT))
def finite_scalars(z: Tensor) -> tuple[Tensor, Tensor]:
    """FSQ with levels 8, 8, 8, 5, 5, 5: numbers that are rounded, and the place in the product of the levels."""
    levels = torch.tensor([8, 8, 8, 5, 5, 5], device=z.device)
    half = (levels - 1) * (1 - 1e-3) / 2
    offset = torch.where(levels % 2 == 1, 0.0, 0.5)
    bounded = (z + torch.tan(offset / half)).tanh() * half - offset
    q = bounded + (bounded.round() - bounded).detach()
    basis = torch.cumprod(torch.cat([torch.ones_like(levels[:1]), levels[:-1]]), 0)
    width = levels // 2
    return q / width, ((q.detach() + width) * basis).sum(-1).to(torch.int32)


@case(R(16384, 512), R(16384, 512, dt=FLOAT), grads=(0,))
def gumbel_straight_through(x: Tensor, u: Tensor) -> Tensor:
    noise = -torch.log(-torch.log(u.sigmoid().clamp(1e-6, 1 - 1e-6)))
    y = ((x.float() + noise) / 0.7).softmax(-1)
    hard = torch.zeros_like(y).scatter_(-1, y.argmax(-1, keepdim=True), 1.0)
    return hard - y.detach() + y


@case(R(8192, 1000, dt=FLOAT))
def entmax_by_bisection(x: Tensor) -> Tensor:
    """1.5-entmax."""
    x = x * 0.5
    low = x.amax(-1, keepdim=True) - 1
    high = low + 1 - (1 / x.shape[-1]) ** 0.5
    for _ in range(12):
        mid = (low + high) / 2
        is_low = (x - mid).clamp(min=0).square().sum(-1, keepdim=True) >= 1
        low, high = torch.where(is_low, mid, low), torch.where(is_low, high, mid)
    p = (x - low).clamp(min=0).square()
    return p / p.sum(-1, keepdim=True)


# ---------------------------------------------------------------- detection, keypoints, points
@case(R(16, 4, 256, 256), I(4, 16, 256, 256), grads=(0,))
def focal_tversky_loss(x: Tensor, t: Tensor) -> Tensor:
    p = x.float().softmax(1)
    y = F.one_hot(t, x.shape[1]).movedim(-1, 1)
    tp, fp, fn = (p * y).sum((0, 2, 3)), (p * (1 - y)).sum((0, 2, 3)), ((1 - p) * y).sum((0, 2, 3))
    return (1 - (tp + 1) / (tp + 0.3 * fp + 0.7 * fn + 1)).clamp(min=1e-6).pow(0.75).mean()


@case(R(200000, 4, dt=FLOAT), R(200000, 4, dt=FLOAT), grads=(0,))
def complete_overlap_loss(a: Tensor, b: Tensor) -> Tensor:
    """CIoU of boxes given by center and size."""
    ca, sa, cb, sb = a[:, :2], a[:, 2:].exp(), b[:, :2], b[:, 2:].exp()
    low, high = torch.maximum(ca - sa / 2, cb - sb / 2), torch.minimum(ca + sa / 2, cb + sb / 2)
    both = (high - low).clamp(min=0).prod(-1)
    iou = both / (sa.prod(-1) + sb.prod(-1) - both + 1e-7)
    hull = torch.maximum(ca + sa / 2, cb + sb / 2) - torch.minimum(ca - sa / 2, cb - sb / 2)
    v = 4 / math.pi**2 * (torch.atan(sb[:, 0] / sb[:, 1]) - torch.atan(sa[:, 0] / sa[:, 1])).square()
    with torch.no_grad():
        alpha = v / (1 - iou + v + 1e-7)
    return (1 - iou + (ca - cb).square().sum(-1) / (hull.square().sum(-1) + 1e-7) + alpha * v).mean()


@case(R(64, 512, 4, dt=FLOAT), R(64, 512, dt=FLOAT), grads=())
def matrix_suppression(boxes: Tensor, scores: Tensor) -> Tensor:
    """Scores decay by the overlap with boxes of higher scores (SOLOv2), boxes are in order of their scores."""
    low, high = torch.minimum(boxes[..., :2], boxes[..., 2:]), torch.maximum(boxes[..., :2], boxes[..., 2:])
    both = (torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])).clamp(min=0).prod(-1)
    area = (high - low).prod(-1)
    iou = (both / (area[:, :, None] + area[:, None] - both + 1e-9)).triu(1)
    most = iou.amax(1)
    return scores * torch.exp(-2 * (iou.square() - most.square()[:, :, None])).amin(1)


@case(R(64, 17, 64, 48), grads=(0,))
def soft_argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Places of keypoints, and how sure they are."""
    n, k, h, w = x.shape
    p = x.float().flatten(2).softmax(-1).view(n, k, h, w)
    px = (p.sum(2) * torch.linspace(0, 1, w, device=x.device)).sum(-1)
    py = (p.sum(3) * torch.linspace(0, 1, h, device=x.device)).sum(-1)
    return torch.stack([px, py], -1), p.amax((2, 3))


@case(R(32, 80, 128, 128), grads=())
def peaks_of_heatmaps(x: Tensor) -> Tensor:
    """CenterNet: what is the largest of its neighbours."""
    p = x.float().sigmoid()
    return p * (F.max_pool2d(p, 3, 1, 1) == p)


@case(R(16, 2048, 3, dt=FLOAT), R(16, 2048, 3, dt=FLOAT))
def chamfer_distance(a: Tensor, b: Tensor) -> Tensor:
    d = (a[:, :, None] - b[:, None]).square().sum(-1)
    return d.amin(2).mean() + d.amin(1).mean()


@case(R(16, 4096, 64), I(4096, 16, 4096, 16), grads=(0,))
def edge_features(x: Tensor, near: Tensor) -> Tensor:
    """DGCNN: differences to neighbours, beside the point itself, and their maximum."""
    batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
    n = x[batch, near]
    return F.leaky_relu(torch.cat([n - x[:, :, None], x[:, :, None].expand_as(n)], -1), 0.2).amax(2)


@case(R(1000000, 3, dt=FLOAT), R(1000000, 3, dt=FLOAT), grads=())
def ray_boxes(origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inverse = 1 / direction
    a, b = (-1 - origin) * inverse, (1 - origin) * inverse
    near, far = torch.minimum(a, b).amax(-1), torch.maximum(a, b).amin(-1)
    hit = (far > near.clamp(min=0)) & torch.isfinite(near)
    return torch.where(hit, near, torch.inf), torch.where(hit, far, -torch.inf), hit


@case(R(262144, 3, dt=FLOAT), R(16 * 4096, 2), grads=(1,))
def hash_grid(x: Tensor, table: Tensor) -> Tensor:
    """Instant-NGP: corners of a cell at each level, by a hash of their places."""
    size = 4096
    x, out = x.sigmoid(), []
    for level in range(4):
        place = x * (16 * 2**level)
        low = place.floor().long()
        f = place - low
        total = 0.0
        for corner in range(8):
            bits = [corner & 1, corner >> 1 & 1, corner >> 2 & 1]
            c = [low[:, d] + bits[d] for d in range(3)]
            i = (c[0] ^ (c[1] * 2654435761) ^ (c[2] * 805459861)) % size + level * size
            w = [f[:, d] if bits[d] else 1 - f[:, d] for d in range(3)]
            total = total + table[i].float() * (w[0] * w[1] * w[2])[:, None]
        out.append(total)
    return torch.cat(out, -1)


# ---------------------------------------------------------------- sequences
@case(R(256, 128, dt=FLOAT), R(256, 8, 128), R(128, 128, dt=FLOAT), I(9, 256), grads=(0, 1, 2))
def crf_forward(alpha: Tensor, emissions: Tensor, transitions: Tensor, length: Tensor) -> Tensor:
    for t in range(emissions.shape[1]):
        step = torch.logsumexp(alpha[:, :, None] + transitions, 1) + emissions[:, t].float()
        alpha = torch.where((t < length)[:, None], step, alpha)
    return alpha.logsumexp(-1)


@case(R(256, 201, dt=FLOAT), R(256, 8, 201, dt=FLOAT), I(2, 256, 201), grads=(0, 1))
def ctc_steps(alpha: Tensor, logp: Tensor, may_skip: Tensor) -> Tensor:
    for t in range(logp.shape[1]):
        one, two = F.pad(alpha, (1, -1), value=-1e30), F.pad(alpha, (2, -2), value=-1e30)
        two = two.masked_fill(may_skip == 0, -1e30)
        top = torch.maximum(torch.maximum(alpha, one), two)
        alpha = top + torch.log(torch.exp(alpha - top) + torch.exp(one - top) + torch.exp(two - top)) + logp[:, t]
    return torch.logaddexp(alpha[:, -1], alpha[:, -2])


@case(R(8192, 32000), I(32000, 8192), R(32000, dt=FLOAT), grads=(0,))
def weighted_smoothed_loss(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
    """With weights of classes and targets that are ignored."""
    return F.cross_entropy(x.float(), torch.where(t % 7 == 0, -100, t), weight=w.abs() + 0.1, label_smoothing=0.1, ignore_index=-100)


@case(R(16384, 64), grads=(0,))
def places_in_experts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Switch: one expert for each token up to a capacity, and the loss that balances them."""
    p = x.float().softmax(-1)
    gate, expert = p.max(-1)
    chosen = F.one_hot(expert, x.shape[1])
    place = (chosen.cumsum(0) * chosen).sum(-1) - 1
    keep = place < max(1, x.shape[0] * 5 // (x.shape[1] * 4))
    loss = x.shape[1] * (p.mean(0) * chosen.float().mean(0)).sum()
    return gate * keep, torch.where(keep, place, -1), loss


@case(R(32, 16, dt=FLOAT), I(2, 1024), I(2, 1024), grads=(0,))
def t5_bias(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Buckets of relative positions: half of them exact, the others logarithmic, in both directions."""
    q, k = torch.arange(rows.shape[0], device=table.device), torch.arange(columns.shape[0], device=table.device)
    d = k[None] - q[:, None]
    half = table.shape[0] // 2
    exact = half // 2
    n = d.abs()
    far = exact + (torch.log(n.float() / exact) / math.log(128 / exact) * (half - exact)).to(torch.long)
    bucket = (d > 0).long() * half + torch.where(n < exact, n, far.clamp(max=half - 1))
    return table[bucket].permute(2, 0, 1)


@case(R(4, 16, 1024, 1024), R(16, dt=FLOAT), I(8, 4, 1024), grads=(0,))
def alibi_of_documents(x: Tensor, slope: Tensor, document: Tensor) -> Tensor:
    """Packed documents, a window, and slopes of heads; rows that see nothing are 0."""
    i, j = torch.arange(x.shape[-2], device=x.device)[:, None], torch.arange(x.shape[-1], device=x.device)
    keep = (j <= i) & (i - j < 256) & (document[:, None, :, None] == document[:, None, None])
    s = x.float() * 0.125 - slope.abs()[:, None, None] * (i - j).abs()
    return s.masked_fill(~keep, float("-inf")).softmax(-1).nan_to_num(0.0).to(x.dtype)


@case(R(4, 4096, 32, 128), I(4096, 4, 4096), grads=(0,))
def yarn_positions(x: Tensor, place: Tensor) -> Tensor:
    d = x.shape[-1]
    f = 10000.0 ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    turns = 4096 * f / (2 * math.pi)
    ramp = ((turns - 1) / 31).clamp(0, 1)
    f = f * ramp + f / 8 * (1 - ramp)
    a = place[..., None].float() * f
    scale = 0.1 * math.log(8) + 1
    c, s = (torch.cat([a, a], -1).cos() * scale)[:, :, None], (torch.cat([a, a], -1).sin() * scale)[:, :, None]
    half = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return (x.float() * c + half.float() * s).to(x.dtype)


@case(R(4, 28, 2048, 128), R(3, 4, 2048, 128), R(3, 4, 2048, 128), grads=(0,))
def positions_in_three_axes(q: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """Qwen2-VL: parts of a head turn by time, height and width."""
    d = q.shape[-1]
    parts = [d // 8, d // 4 - d // 16, d // 2 - d // 8 - d // 4 + d // 16] * 2
    c, s = (torch.cat([m[n % 3] for n, m in enumerate(t.split(parts, -1))], -1)[:, None] for t in (c, s))
    return q * c + torch.cat([-q[..., d // 2 :], q[..., : d // 2]], -1) * s


@case(R(8, 32, 32, 16, 64), grads=(0,))
def positions_in_a_plane(x: Tensor) -> Tensor:
    """Rotary positions of images: half of a head by rows, half by columns."""
    _, h, w, _, d = x.shape
    f = 100.0 ** (-torch.arange(0, d // 2, 2, device=x.device).float() / (d // 2))
    y, z = torch.arange(h, device=x.device).float()[:, None] * f, torch.arange(w, device=x.device).float()[:, None] * f
    a = torch.cat([y[:, None].expand(h, w, -1), z[None].expand(h, w, -1)], -1)[None, :, :, None]
    p, q = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([p * a.cos() - q * a.sin(), p * a.sin() + q * a.cos()], -1).flatten(-2).to(x.dtype)


@case(R(16, 12, 512, 1023), grads=(0,))
def shifted_by_rows(x: Tensor) -> Tensor:
    """Transformer-XL: scores of relative positions, moved to absolute ones."""
    b, h, q, r = x.shape
    x = F.pad(x, (1, 0)).view(b, h, r + 1, q)[:, :, 1:].reshape(b, h, q, r)
    return x[..., : r // 2 + 1] * 0.125


@case(R(64, 5, 32000), R(64, 5, dt=FLOAT), grads=())
def beam_step(x: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logp = x.float().log_softmax(-1) + score[..., None]
    top, i = logp.flatten(1).topk(5, -1)
    return top, i // x.shape[-1], i % x.shape[-1]


@case(R(256, 32000), R(256, 1, dt=FLOAT), grads=())
def nucleus(x: Tensor, p: Tensor) -> Tensor:
    s, i = x.float().sort(-1, descending=True)
    q = s.softmax(-1)
    drop = q.cumsum(-1) - q > p.sigmoid()
    return torch.zeros_like(s).scatter(-1, i, s.masked_fill(drop, float("-inf")))


@case(I(50000, 64, 512), R(64, 512, dt=FLOAT), R(64, 512, dt=FLOAT), I(50000, 64, 512), grads=())
def masked_tokens(t: Tensor, a: Tensor, b: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """BERT: of 15 % of the tokens 80 % are masked, 10 % replaced."""
    a, b = a.sigmoid(), b.sigmoid()
    chosen = (a < 0.3) & (t > 3)
    labels = torch.where(chosen, t, -100)
    t = torch.where(chosen & (b < 0.8), 103, t)
    return torch.where(chosen & (b >= 0.9), other, t), labels


@case(I(600, 64), I(2, 32768), grads=())
def places_in_packed_rows(length: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Which sequence each packed token is of, and its position there."""
    end = length.cumsum(0)
    i = torch.arange(rows.shape[0], device=length.device)
    of = torch.searchsorted(end, i, right=True).clamp(max=max(0, length.shape[0] - 1))
    return of, i - F.pad(end, (1, -1))[of]


@case(R(32, 32, 32, 1024), I(2, 32, 1024), grads=(0,))
def late_interaction(s: Tensor, mask: Tensor) -> Tensor:
    """ColBERT: the best token of a document for each of a query's; queries are axis 0 and 1, documents 2 and 3."""
    best = s.permute(0, 2, 1, 3).float().masked_fill(mask[None, :, None] == 0, -1e4).amax(-1).sum(-1)
    return F.cross_entropy(best / 0.05, torch.arange(s.shape[0], device=s.device) % s.shape[2])
