"""Torch functions of learning for `model_functions.py`: rewards and preferences, recommenders, steps of optimizers, what is logged.

The other half of `serving_functions.py`. Sizes of a call are read off the arguments. Adds them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- rewards and preferences
@case(R(65536, 18), I(18, 65536), R(65536, dt=FLOAT), R(65536, dt=FLOAT), R(65536, dt=FLOAT), R(65536, dt=FLOAT), R(65536, dt=FLOAT), grads=(0, 3))
def whole_ppo_loss(x: Tensor, action: Tensor, old: Tensor, v: Tensor, before: Tensor, returns: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logp = x.float().log_softmax(-1)
    ratio = torch.exp(logp.gather(1, action[:, None])[:, 0] - old)
    a = (a - a.mean()) / (a.std() + 1e-8)
    policy = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
    value = 0.5 * torch.max((v - returns).square(), (before + (v - before).clamp(-0.2, 0.2) - returns).square()).mean()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    return policy + 0.5 * value - 0.01 * entropy, ((ratio - 1) - ratio.log()).mean().detach(), ((ratio - 1).abs() > 0.2).float().mean()


@case(R(32, 8192, dt=FLOAT), R(32, 8192, dt=FLOAT), R(32, 8192, dt=FLOAT), R(33, 8192, dt=FLOAT), I(9, 32, 8192), grads=())
def vtrace_targets(new: Tensor, old: Tensor, r: Tensor, v: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """IMPALA: the loop over time as it is written."""
    rho, g = torch.exp(new - old).clamp(max=1.0), 0.99 * (left > 0)
    delta = rho * (r + g * v[1:] - v[:-1])
    acc, out = torch.zeros_like(v[0]), []
    for t in range(r.shape[0] - 1, -1, -1):
        acc = delta[t] + g[t] * rho[t] * acc
        out.insert(0, acc)
    vs = torch.stack(out) + v[:-1]
    return vs, rho * (r + g * torch.cat([vs[1:], v[-1:]]) - v[:-1])


@case(R(256, 1024, dt=FLOAT), R(256, 1024, dt=FLOAT), I(2, 256, 1024), R(128, dt=FLOAT), grads=(0,))
def preference_losses(policy: Tensor, reference: Tensor, mask: Tensor, margin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """IPO, robust DPO and a likelihood term together, of log probabilities of tokens; chosen samples, then rejected ones."""
    n = mask.sum(-1).clamp(min=1)
    p, r = (policy * mask).sum(-1), (reference * mask).sum(-1)
    a, b = (p - r).chunk(2)
    per_token = ((p - r) / n).chunk(2)
    z = 0.1 * (a - b) - margin
    loss = (-F.logsigmoid(z) * 0.9 + F.logsigmoid(-z) * 0.1) / 0.8 + (per_token[0] - per_token[1] - 5).square() - 0.1 * (p / n)[: margin.shape[0]]
    return loss.mean(), (0.1 * a).detach(), (a > b).float().mean()


@case(R(8, 512, 32000), R(8, 512, 32000), I(32000, 8, 512), grads=(0,))
def token_level_preferences(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """TDPO: margins, and KL divergences of positions, of two models; chosen samples, then rejected ones."""
    p, r = x.float().log_softmax(-1), y.float().log_softmax(-1)
    seen = (t != 0).float()
    kl = ((r.exp() * (r - p)).sum(-1) * seen).sum(-1)
    margin = ((p - r).gather(-1, t[..., None])[..., 0] * seen).sum(-1)
    a, b = margin.chunk(2)
    ka, kb = kl.chunk(2)
    return -F.logsigmoid(0.1 * (a - b) - 0.05 * (kb - ka.detach())).mean()


@case(R(131072, 34), R(131072, 17), R(131072, dt=FLOAT), R(131072, dt=FLOAT), R(1, dt=FLOAT), grads=(0, 2, 3, 4))
def soft_actor(out: Tensor, noise: Tensor, q1: Tensor, q2: Tensor, log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """SAC: a squashed Gaussian's actions, log probabilities, and the losses of actor and temperature."""
    mean, s = out.float().chunk(2, -1)
    s = -5 + 3.5 * (torch.tanh(s) + 1)
    u = mean + s.exp() * noise
    logp = (-0.5 * noise.float().square() - s - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
    actor = (log_alpha.exp().detach() * logp - torch.min(q1, q2)).mean()
    return torch.tanh(u).to(out.dtype), actor - (log_alpha * (logp - 17).detach()).mean()


@case(R(32768, 18, 51), R(32768, 18, 51), R(32768, dt=FLOAT), I(2, 32768), grads=())
def distribution_of_returns(online: Tensor, target: Tensor, r: Tensor, done: Tensor) -> Tensor:
    """Rainbow: the best action's distribution, moved and added to the two places of the support beside it."""
    n, _, k = target.shape
    z = torch.linspace(-10, 10, k, device=r.device)
    action = (online.float().softmax(-1) * z).sum(-1).argmax(-1)
    p = target.float().softmax(-1)[torch.arange(n, device=r.device), action]
    to = ((r[:, None] + 0.99 * (1 - done)[:, None] * z).clamp(-10, 10) + 10) / (20 / (k - 1))
    low = to.floor().clamp(max=k - 2)
    i = low.long()
    return torch.zeros_like(p).scatter_add(1, i, p * (low + 1 - to)).scatter_add(1, i + 1, p * (to - low))


@case(R(16384, 512), R(16384, 512), I(4, 16384, 512), grads=(0,))
def masked_actions(x: Tensor, u: Tensor, legal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Actions that are legal: one that is drawn, its log probability, and the entropy."""
    logp = x.float().masked_fill(legal == 0, -1e8).log_softmax(-1)
    action = (logp.detach() - torch.log(-torch.log(u.float().sigmoid().clamp(1e-6, 1 - 1e-6)))).argmax(-1)
    entropy = -torch.where(legal > 0, logp * logp.exp(), 0.0).sum(-1)
    return action, logp.gather(1, action[:, None])[:, 0], entropy


# ---------------------------------------------------------------- recommenders
@case(R(500000, 16), R(500000, 1), I(500000, 16384, 26), R(1, dt=FLOAT), grads=(0, 1, 3))
def factorization_machine(table: Tensor, weights: Tensor, i: Tensor, bias: Tensor) -> Tensor:
    e = F.embedding(i, table).float()
    pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(-1)
    return bias + F.embedding(i, weights).float().sum((1, 2)) + pairs


@case(R(32768, 512), R(32768, 4, 512), R(32768, 4), R(512), R(32768, 512))
def mixed_cross_layer(x0: Tensor, experts: Tensor, gate: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """DCN v2."""
    return (gate.softmax(-1)[..., None] * (x0[:, None] * (experts + bias))).sum(1) + x


@case(R(32768, 6, 256), R(32768, 3, 6))
def experts_of_tasks(y: Tensor, gate: Tensor) -> tuple[Tensor, ...]:
    """MMoE: each task weighs the experts."""
    return (gate.softmax(-1)[..., None] * y[:, None]).sum(2).unbind(1)


@case(R(8192, dt=FLOAT), R(8192, dt=FLOAT), R(8192, dt=FLOAT))
def ranked_pairs(positive: Tensor, negative: Tensor, w: Tensor) -> Tensor:
    """A smooth area under the curve: every positive one against every negative one."""
    d = 1 - (positive[:, None] - negative)
    return (F.relu(d).square() * w.abs()).mean() + F.softplus(d - 1).mean()


@case(R(8192, 2000), R(8192), I(2, 8192, 2000), grads=(0, 1))
def weighted_ranks(s: Tensor, true: Tensor, seen: Tensor) -> Tensor:
    """WARP: hinges of items that rank too high, weighted by the logarithm of how many do."""
    d = (1 - true.float()[:, None] + s.float()).masked_fill(seen > 0, 0)
    wrong = d > 0
    rank = wrong.sum(-1)
    return (torch.log1p(rank.float()) * (d * wrong).sum(-1) / rank.clamp(min=1)).mean()


@case(R(64, 4, 512, 512), R(4, 129), R(64, 512, dt=FLOAT), I(513, 64), grads=(0, 1))
def scores_of_times(s: Tensor, table: Tensor, time: Tensor, length: Tensor) -> Tensor:
    """HSTU: buckets of the logarithm of time between two actions, and SiLU in place of a softmax."""
    n = s.shape[-1]
    i, t = torch.arange(n, device=s.device), time.abs().cumsum(-1) * 1000
    bucket = ((t[:, :, None] - t[:, None]).abs().clamp(min=1).log() / 0.301).long().clamp(0, table.shape[1] - 1)
    seen = (i <= i[:, None]) & (i < length[:, None, None])
    return F.silu(s + table[:, bucket].transpose(0, 1)) / n * seen[:, None]


# ---------------------------------------------------------------- steps of training
@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(11008, 4096, dt=FLOAT), R(11008, 4096), grads=())
def adaptive_clipping(p1: Tensor, g1: Tensor, p2: Tensor, g2: Tensor) -> tuple[Tensor, ...]:
    """AGC: each row's gradient is at most a part of the row's length."""
    out = []
    for p, g in ((p1, g1), (p2, g2)):
        most = p.norm(dim=1, keepdim=True).clamp(min=1e-3) * 0.01
        n = g.float().norm(dim=1, keepdim=True)
        out.append(torch.where(n > most, g * (most / n.clamp(min=1e-6)).to(g.dtype), g))
    return tuple(out)


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, dt=FLOAT), R(4096), R(1024, 4096, dt=FLOAT), R(1024, 4096), R(1, dt=FLOAT), grads=())
def adaptive_sharpness(p1: Tensor, g1: Tensor, p2: Tensor, g2: Tensor, p3: Tensor, g3: Tensor, rho: Tensor) -> tuple[Tensor, ...]:
    """ASAM: all weights move uphill, by a length for all of them."""
    ps, gs = (p1, p2, p3), (g1.float(), g2.float(), g3.float())
    norm = torch.stack([((p.abs() + 0.01) * g).norm() for p, g in zip(ps, gs, strict=True)]).norm()
    by = rho / (norm + 1e-12)
    return tuple(p + (p.abs() + 0.01).square() * g * by for p, g in zip(ps, gs, strict=True))


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), grads=())
def centered_amsgrad(p: Tensor, g: Tensor, m: Tensor, v: Tensor, top: Tensor) -> tuple[Tensor, ...]:
    """Gradients without the mean of their rows."""
    g = g.float()
    g = g - g.mean(1, keepdim=True)
    m, v = m.lerp(g, 0.1), torch.addcmul(v.abs() * 0.999, g, g, value=0.001)
    top = torch.maximum(top, v)
    return p - 1e-3 * m / (top.sqrt() + 1e-8), m, v, top


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), grads=())
def prodigy_step(p: Tensor, g: Tensor, m: Tensor, s: Tensor, start: Tensor) -> tuple[Tensor, ...]:
    """The step's length is estimated from all gradients so far, then used."""
    g = g.float()
    s = s * 0.97 + 0.03 * g
    d = ((g * (start - p)).sum() / s.abs().sum().clamp(min=1e-12)).clamp(min=1e-6)
    m = m * 0.9 + 0.1 * d * g
    return p - d * m / (m.abs().sqrt() + 1e-8), m, s, d


@case(R(4096, 4096), R(1024, 4096), R(4096, 4096, dt=FLOAT), R(1024, 4096, dt=FLOAT), R(1, dt=FLOAT), R(1, dt=FLOAT), grads=())
def unscaled_step(g1: Tensor, g2: Tensor, p1: Tensor, p2: Tensor, scale: Tensor, tracker: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a scaled loss: where one is infinite no weight moves, and the scale falls."""
    inverse = 1 / (scale.abs() + 1)
    gs = [g.float() * inverse for g in (g1, g2)]
    bad = torch.stack([(~torch.isfinite(g)).any() for g in gs]).any()
    tracker = torch.where(bad, 0.0, tracker + 1)
    return *(torch.where(bad, p, p - 1e-3 * g) for p, g in zip((p1, p2), gs, strict=True)), torch.where(bad, scale * 0.5, scale), tracker


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), grads=())
def cautious_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW that moves only where its step and the gradient agree."""
    g = g.float()
    m, v = m.lerp(g, 0.1), v.abs().lerp(g.square(), 0.001)
    u = m / (v.sqrt() + 1e-8)
    mask = (u * g > 0).float()
    return p * (1 - 1e-5) - 1e-3 * u * mask / mask.mean().clamp(min=1e-3), m, v


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, dt=FLOAT), grads=())
def normalized_muon(p: Tensor, o: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """NorMuon: an orthogonal step, its rows scaled by their second moments, at the length that it had."""
    o = o.float()
    v = v.abs().lerp(o.square().mean(1), 0.05)
    u = o / (v.sqrt() + 1e-8)[:, None]
    return p * (1 - 1e-4) - 0.02 * u * (o.norm() / (u.norm() + 1e-8)), v


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), grads=())
def sophia_step(p: Tensor, g: Tensor, hessian: Tensor, m: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """And how many steps were clipped."""
    m, h = m.lerp(g.float(), 0.04), h.lerp(hessian.float(), 0.01)
    u = m / (0.04 * h).clamp(min=1e-12)
    return p * (1 - 1e-4) - 1e-3 * u.clamp(-1, 1), m, h, (u.abs() < 1).float().mean()


@case(R(8192, 8192), grads=())
def statistics_of_activations(x: Tensor) -> tuple[Tensor, ...]:
    """What is logged: mean, root mean square, largest, kurtosis, zeros, and the part that FP8 cannot have."""
    x = x.float()
    m, s = x.mean(), x.square().mean()
    return m, s.sqrt(), x.abs().amax(), x.pow(4).mean() / s.square().clamp(min=1e-12), (x == 0).float().mean(), (x.abs() > 448).float().mean()


@case(R(8192, 32000), I(32000, 8192), grads=(0,))
def capped_loss(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Gemma 2's capped scores, a penalty of their sum, tokens without padding (0), and how many are right."""
    s = 30 * torch.tanh(x.float() / 30)
    seen = (t != 0).float()
    total = s.logsumexp(-1)
    loss = ((total - s.gather(1, t[:, None])[:, 0] + 1e-4 * total.square()) * seen).sum() / seen.sum().clamp(min=1)
    return loss, ((s.argmax(-1) == t) * seen).sum() / seen.sum().clamp(min=1)
