"""Torch functions of serving and new layers for `model_functions.py`: caches, samplers, few bits, states, routers, heads.

`learning_functions.py` is the other half. Functions that take caches as arguments write to them, as servers do. Sizes of a call are read off the
arguments, so that tests can call them with few elements. Adds them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, Input, R, case
from torch import Tensor

FLOAT, FP8, INF = torch.float32, torch.float8_e4m3fn, float("inf")


def _turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * c + torch.cat([-b, a], -1) * s


# ---------------------------------------------------------------- caches
@case(R(64, 32, 1, 128), R(64, 8, 1, 128), R(64, 8, 1, 128), R(1, 128), R(1, 128), R(64, 8, 2048, 128), R(64, 8, 2048, 128), I(2048, 1), grads=())
def static_cache(q: Tensor, k: Tensor, v: Tensor, c: Tensor, s: Tensor, keys: Tensor, values: Tensor, place: Tensor) -> Tensor:
    """One token of each sequence: turned, and written to a cache of a fixed length."""
    keys.index_copy_(2, place, _turned(k, c, s))
    values.index_copy_(2, place, v)
    return _turned(q, c, s)


@case(R(256, 8, 128), R(256, 8, 128), R(256, 1024, 8, 128), R(256, 1024, 8, 128), I(1024, 256), grads=())
def cache_of_lengths(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, length: Tensor) -> Tensor:
    """Each sequence has its own length; the token goes behind it."""
    row = torch.arange(k.shape[0], device=k.device)
    keys[row, length] = k * torch.rsqrt(k.float().square().mean(-1, keepdim=True) + 1e-6).to(k.dtype)
    values[row, length] = v
    return length + 1


@case(R(4096, 16, 8, 128), R(8, dt=FLOAT), I(4096, 32, 64), I(1024, 32), grads=())
def keys_of_pages(pages: Tensor, scale: Tensor, table: Tensor, length: Tensor) -> Tensor:
    """Blocks of 16 tokens, by each sequence's table, as rows of heads; what is behind its length is 0."""
    k = pages[table].flatten(1, 2).transpose(1, 2)
    seen = torch.arange(k.shape[2], device=k.device) < length[:, None]
    return (k.float() * scale.abs()[:, None, None]).to(k.dtype).masked_fill(~seen[:, None, :, None], 0)


@case(R(8192, 8, 128), R(8192, 8, 128), Input((16384, 2, 8, 128), torch.uint8, 256), R(1, dt=FLOAT), I(16384, 8192), grads=())
def slots_in_fp8(k: Tensor, v: Tensor, cache: Tensor, scale: Tensor, slot: Tensor) -> Tensor:
    """Keys and values in 8 bits, in the slots of a paged cache."""
    kv = (torch.stack([k, v], 1).float() / (scale.abs() + 0.5)).clamp(-448, 448).to(FP8).view(torch.uint8)
    return cache.index_put((slot,), kv)


@case(R(16, 8, 4096, 128), R(16, 8, 1, 128), I(8192, 1), grads=())
def sliding_cache(keys: Tensor, k: Tensor, place: Tensor) -> Tensor:
    """A window of the last tokens: moved by one when it is full."""
    n = keys.shape[2]
    shift = (place >= n - 1).long()
    return keys[:, :, (torch.arange(n, device=k.device) + shift) % n].index_copy(2, place.clamp(max=n - 1), k)


@case(R(64, 1024, dt=FLOAT), I(1024, 64), I(1024, 1024), grads=())
def prefix_mask(padding: Tensor, prefix: Tensor, place: Tensor) -> Tensor:
    """A prefix that sees itself, a window behind it, and padding, as numbers that are added to scores."""
    j = torch.arange(padding.shape[1], device=padding.device)
    causal = (j <= place[:, None]) & (j > place[:, None] - 512)
    seen = (causal | (j < prefix[:, None, None])) & (padding > -1.5)[:, None]
    return torch.zeros(seen.shape, dtype=torch.bfloat16, device=j.device).masked_fill(~seen, torch.finfo(torch.bfloat16).min)[:, None]


@case(R(4, 16, 8, 2048, 128), R(4, 16, 8, 2048, 128), I(16, 16), grads=())
def caches_of_beams(keys: Tensor, values: Tensor, beam: Tensor) -> tuple[Tensor, Tensor]:
    return keys.index_select(1, beam), values.index_select(1, beam)


@case(R(32, 64, 32000), I(32000, 32, 64), I(64, 42, 5), grads=())
def accepted_paths(x: Tensor, draft: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
    """Medusa: a tree of 64 drafts, its paths, and the longest one that the model would have taken."""
    told = x.argmax(-1)[:, path]
    match = (told[..., :-1] == draft[:, path][..., 1:]).int().cumprod(-1).sum(-1)
    n, best = match.max(-1)
    return n, told[torch.arange(x.shape[0], device=x.device), best]


# ---------------------------------------------------------------- samplers
@case(R(256, 128256), grads=())
def top_k_probabilities(x: Tensor) -> Tensor:
    x = x.float() / 0.8
    return x.masked_fill(x < x.topk(50, -1).values[:, -1:], -INF).softmax(-1)


@case(R(256, 32000), I(32000, 256, 2048), grads=())
def no_pair_twice(x: Tensor, t: Tensor) -> Tensor:
    """Tokens that would repeat a pair of tokens are banned."""
    found = t[:, :-1] == t[:, -1:]
    banned = torch.zeros_like(x).scatter(1, t[:, 1:], found.to(x.dtype), reduce="add")
    return x.masked_fill(banned > 0, -INF)


@case(R(256, 128256), I(128256, 256, 1024), R(256, dt=FLOAT), grads=())
def penalties_of_counts(x: Tensor, t: Tensor, temperature: Tensor) -> Tensor:
    """What was said is less likely: by how often, and because it was."""
    count = torch.zeros(x.shape, device=x.device).scatter_add(1, t, torch.ones(t.shape, device=x.device))
    return ((x.float() - 0.2 * count - 0.5 * (count > 0)) / (temperature.abs() + 0.1)[:, None]).softmax(-1)


@case(R(512, 32000), grads=())
def eta_sampling(x: Tensor) -> Tensor:
    logp = x.float().log_softmax(-1)
    p = logp.exp()
    least = (3e-4**0.5 * torch.exp((p * logp).sum(-1, keepdim=True))).clamp(max=3e-4)
    return x.masked_fill((p < least) & (x < x.amax(-1, keepdim=True)), -INF)


@case(R(64, 32000), grads=())
def typical_sampling(x: Tensor) -> Tensor:
    logp = x.float().log_softmax(-1)
    entropy = -(logp.exp() * logp).nansum(-1, keepdim=True)
    order = (-logp - entropy).abs().argsort(-1)
    behind = logp.gather(-1, order).exp().cumsum(-1) > 0.9
    return x.masked_fill(behind.scatter(-1, order, F.pad(behind[:, :-1], (1, 0))), -INF)


@case(R(512, 32000), R(512, 32000), grads=())
def contrastive_decoding(expert: Tensor, amateur: Tensor) -> Tensor:
    """What the expert finds likely, by how much more than the amateur does."""
    a, b = expert.float().log_softmax(-1), amateur.float().log_softmax(-1)
    return (1.5 * a - 0.5 * b).masked_fill(a < a.amax(-1, keepdim=True) + math.log(0.1), -INF)


@case(R(512, 32000), R(512, 32000), grads=())
def drawn_tokens(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Top-n-sigma, the largest of noisy scores, its log probability and rank."""
    x = x.float() / 1.2
    kept = x.masked_fill(x < x.amax(-1, keepdim=True) - x.std(-1, keepdim=True), -INF)
    token = (kept - torch.log(-torch.log(u.float().sigmoid().clamp(1e-6, 1 - 1e-6)))).argmax(-1, keepdim=True)
    logp = x.log_softmax(-1)
    said = logp.gather(-1, token)
    return token, said, (logp > said).sum(-1)


@case(R(512, 32000), grads=())
def guided_scores(x: Tensor) -> Tensor:
    """Guidance of language models: scores with and without the prompt, half of the batch each."""
    a, b = x.float().log_softmax(-1).chunk(2)
    return (b + 1.5 * (a - b)).log_softmax(-1).to(x.dtype)


@case(R(16, 1024, 32000), I(32000, 16, 1025), grads=(0,))
def scores_of_sequences(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log probabilities of tokens, of whole sequences, and their mean entropies, without padding (0)."""
    logp = x.float().log_softmax(-1)
    seen = (t[:, 1:] != 0).float()
    token = logp.gather(-1, t[:, 1:, None])[..., 0] * seen
    entropy = -(logp.exp() * logp).sum(-1)
    return token, token.sum(-1), (entropy * seen).sum(-1) / seen.sum(-1).clamp(min=1)


# ---------------------------------------------------------------- few bits
@case(Input((8192, 4096), torch.uint8, 256), R(8192, 1, dt=FLOAT), Input((8192, 1), torch.uint8, 16), grads=())
def int4_of_channels(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    q = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    return ((q.to(torch.int8) - zero.to(torch.int8)).float() * scale).to(torch.bfloat16)


@case(Input((8192, 8192), torch.int32, 1000), R(8192, 64, dt=FLOAT), R(8192), grads=())
def groups_with_bias(acc: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Scales of groups of 128, a bias and an activation."""
    return F.silu((acc.float().unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1) + bias).to(torch.bfloat16)


@case(
    Input((8192, 4096), torch.int32, 1000), R(8192, 1, dt=FLOAT), R(4096, dt=FLOAT), Input((4096,), torch.int32, 100),
    Input((8192, 1), torch.int32, 9), R(4096), grads=(),
)  # fmt: skip
def requantized(acc: Tensor, rows: Tensor, columns: Tensor, sums: Tensor, zero: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """What follows a product of integers: zero points, scales, bias, GELU, and integers again."""
    y = F.gelu((acc - zero * sums).float() * rows * columns + bias, approximate="tanh")
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (y / s).round().to(torch.int8), s


@case(R(8192, 4096), R(4096), grads=())
def norm_to_packed_int4(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A norm, its rows in 4 bits with zero points, two in a byte."""
    y = F.rms_norm(x.float(), (x.shape[-1],), eps=1e-6) * w
    low, high = y.aminmax(dim=-1, keepdim=True)
    s = ((high - low) / 15).clamp(min=1e-5)
    q = ((y - low) / s).round().clamp(0, 15).to(torch.uint8)
    return q[:, ::2] | q[:, 1::2] << 4, s, low


@case(R(8192, 4096), grads=())
def hadamard_to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """QuaRot: butterflies within blocks of 64, and rows in 8 bits."""
    y = x.float().unflatten(-1, (-1, 64))
    for n in (1, 2, 4, 8, 16, 32):
        a, b = y.unflatten(-1, (-1, 2, n)).unbind(-2)
        y = torch.stack([a + b, a - b], -2).flatten(-3)
    y = y.flatten(-2) / 8
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return (y / s).round().to(torch.int8), s


@case(R(64, 8, 4, 128), Input((64, 8, 2048, 128), torch.int8, 127), R(64, 8, 2048, dt=FLOAT), I(2048, 64), grads=())
def probabilities_of_int8_keys(q: Tensor, keys: Tensor, scale: Tensor, length: Tensor) -> Tensor:
    """Keys in 8 bits are read by 4 queries of their group."""
    s = (q.float()[:, :, :, None] * keys.float()[:, :, None]).sum(-1) * scale[:, :, None] * q.shape[-1] ** -0.5
    seen = torch.arange(keys.shape[2], device=q.device) < length[:, None]
    return s.masked_fill(~seen[:, None, None], -1e9).softmax(-1)


@case(Input((8192, 2048), torch.uint8, 256), Input((8192, 128), torch.uint8, 255), grads=())
def mxfp4_weights(packed: Tensor, exponents: Tensor) -> Tensor:
    """Numbers of 4 bits by a table, times powers of two of blocks of 32."""
    code = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.bfloat16, device=packed.device)
    v = torch.stack([code[(packed & 15).int()], code[(packed >> 4).int()]], -1).flatten(1)
    return torch.ldexp(v.unflatten(1, (-1, 32)), exponents[..., None].int() - 127).flatten(1)


@case(R(16, 8, 2048, 128), grads=())
def keys_in_2_bits(k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """KIVI: ranges of 32 tokens of each channel, four tokens in a byte."""
    g = k.float().unflatten(2, (-1, 32))
    low, high = g.amin(3, keepdim=True), g.amax(3, keepdim=True)
    s = ((high - low) / 3).clamp(min=1e-6)
    q = ((g - low) / s).round().to(torch.uint8).unflatten(3, (8, 4))
    return q[:, :, :, :, 0] | q[:, :, :, :, 1] << 2 | q[:, :, :, :, 2] << 4 | q[:, :, :, :, 3] << 6, s, low


@case(R(16384, 4096), grads=())
def groups_to_int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of 128 in 4 bits with a scale each, two in a byte."""
    g = x.float().unflatten(-1, (-1, 128))
    s = g.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 7
    q = ((g / s).round().clamp(-8, 7) + 8).to(torch.uint8).flatten(-2)
    return q[:, ::2] | q[:, 1::2] << 4, s.squeeze(-1).half()


@case(R(16384, 4096), grads=())
def rows_to_words_of_int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 4 bits, eight in an integer of 32."""
    s = x.float().abs().amax(-1, keepdim=True) / 7
    q = ((x / s).round() + 8).to(torch.int32).unflatten(-1, (-1, 8))
    packed = torch.zeros_like(q[..., 0])
    for k in range(8):
        packed |= q[..., k] << (4 * k)
    return packed, s


@case(R(4096, 4096, dt=FLOAT), R(4096, 64, 1, dt=FLOAT), R(4096, 64, 1, dt=FLOAT), grads=())
def half_quadratic_step(w: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """HQQ: zero points of groups of 64 that shrink the errors."""
    g, scale = w.unflatten(1, (zero.shape[1], -1)), scale.abs() + 1
    q = (g * scale + zero).round().clamp(0, 15)
    e = g - (q - zero) / scale
    e = e.sign() * F.relu(e.abs() - 0.1 * e.abs().clamp(min=1e-6) ** -0.3)
    return (q - (g - e) * scale).mean(-1, keepdim=True), e.abs().mean()


# ---------------------------------------------------------------- new layers
@case(R(2, 1024, 1024), R(2, 1024, 1024), R(1024, dt=FLOAT), R(1024, 16, dt=FLOAT), R(2, 1024, 16))
def discretized_states(u: Tensor, delta: Tensor, bias: Tensor, a_log: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba: what its scan reads."""
    d = F.softplus(delta.float() + bias)
    return torch.exp(d[..., None] * -a_log.exp()), (d * u.float())[..., None] * b.float()[:, :, None]


@case(
    R(256, 4096), R(256, 4096, 4), R(4096, 4), R(4096), R(256, 4096), R(256, 16), R(256, 16), R(4096, 16, dt=FLOAT), R(256, 4096, 16, dt=FLOAT),
    R(256, 4096), grads=(),
)  # fmt: skip
def mamba_token(
    x: Tensor, conv: Tensor, w: Tensor, bias: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, state: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One token of Mamba: the window of its convolution moves, its state decays and is read."""
    conv = conv.roll(-1, -1)
    conv = torch.cat([conv[..., :-1], x[..., None]], -1)
    x = F.silu((conv * w).sum(-1) + bias).float()
    dt = F.softplus(dt.float())[..., None]
    state = state * torch.exp(dt * -a.exp()) + dt * b.float()[:, None] * x[..., None]
    return ((state * c.float()[:, None]).sum(-1) * F.silu(z.float())).to(z.dtype), conv, state


@case(R(8, 8, 1024, 1024), R(8, dt=FLOAT), grads=(0,))
def retention(s: Tensor, g: Tensor) -> Tensor:
    """RetNet: scores that decay with distance, in place of a softmax."""
    i = torch.arange(s.shape[-1], device=s.device)
    d = (i[:, None] - i)[None]
    decay = torch.where(d >= 0, torch.exp(d.clamp(min=0) * -(g.abs() * 0.01)[:, None, None]), 0.0)
    s = s.float() * decay / decay.sum(-1, keepdim=True).sqrt()
    return (s / s.detach().abs().sum(-1, keepdim=True).clamp(min=1)).to(torch.bfloat16)


@case(R(8, 4, 1024, 1024), R(8, 4, 1024), R(8, 4, 1024))
def exponential_gates(s: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """xLSTM's matrix memory: gates of pairs of tokens, relative to the largest one."""
    c = F.logsigmoid(f.float()).cumsum(-1)
    seen = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
    d = (c[..., :, None] - c[..., None, :] + i.float()[..., None, :]).masked_fill(~seen, -INF)
    m = d.amax(-1, keepdim=True).detach()
    s = s.float() * torch.exp(d - m)
    return (s / torch.maximum(s.sum(-1, keepdim=True).abs(), torch.exp(-m))).to(torch.bfloat16)


@case(R(4096, 4 * 2048), R(4, 2048), R(4096, 2048, dt=FLOAT), R(4096, 2048, dt=FLOAT), R(4096, 2048, dt=FLOAT))
def scalar_memory(g: Tensor, bias: Tensor, c: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """xLSTM's other cell."""
    i, f, z, o = (g.float().unflatten(-1, (4, -1)) + bias).unbind(1)
    f = F.logsigmoid(f)
    top = torch.maximum(f + m, i)
    i, f = torch.exp(i - top), torch.exp(f + m - top)
    c, n = f * c + i * torch.tanh(z), f * n.abs() + i
    return (torch.sigmoid(o) * c / n.clamp(min=1e-6)).to(g.dtype), c, n, top


@case(R(8, 2048, 3 * 1024), R(3 * 1024, 4), R(3 * 1024))
def gated_short_convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Hyena: causal convolutions of four taps, a product of two branches, and the third one."""
    n = x.shape[1]
    p = F.pad(x, (0, 0, 3, 0))
    y = sum(p[:, k : k + n] * w[:, k] for k in range(4)) + b
    q, k, v = y.chunk(3, -1)
    return q * (k * v)


@case(R(8, 1024, 2048), R(8, 2048), R(5, 8, 1024, 2048), R(5, 2048))
def five_mixtures(x: Tensor, last: Tensor, lora: Tensor, mu: Tensor) -> tuple[Tensor, ...]:
    """RWKV-6: each branch mixes a token with the one before in its own way."""
    before = torch.cat([last[:, None], x[:, :-1]], 1) - x
    return tuple(x + before * (mu[n] + torch.tanh(lora[n])) for n in range(5))


@case(R(4, 2048, 16, 192), R(4, 2048, 16, 256), R(4, 2048, 64), R(2048, 32, dt=FLOAT), R(2048, 32, dt=FLOAT), grads=(0, 1, 2))
def latent_attention_inputs(q: Tensor, kv: Tensor, shared: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """DeepSeek's attention: a part of each head is turned, and of the keys it is shared by the heads."""

    def turned(x: Tensor) -> Tensor:
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.cat([a * c[:, None] - b * s[:, None], a * s[:, None] + b * c[:, None]], -1).to(x.dtype)

    d = shared.shape[-1]
    still, moving = q.split([q.shape[-1] - d, d], -1)
    k, v = kv.chunk(2, -1)
    q = torch.cat([still, turned(moving)], -1)
    k = torch.cat([k, turned(shared[:, :, None]).expand(-1, -1, k.shape[2], -1)], -1)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


@case(R(16384, 256), R(256, dt=FLOAT), grads=(0,))
def router_of_groups(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3: eight of 256 experts, out of the best four of eight groups."""
    s = x.float().sigmoid()
    g = (s + bias).detach().unflatten(-1, (8, -1))
    best = g.topk(2, -1).values.sum(-1).topk(4, -1).indices
    seen = torch.zeros(g.shape[:-1], device=x.device).scatter(1, best, 1.0) > 0
    chosen = g.masked_fill(~seen[..., None], -INF).flatten(1).topk(8, -1).indices
    w = s.gather(1, chosen)
    return w / (w.sum(-1, keepdim=True) + 1e-20) * 2.5, chosen


@case(R(16, 2048, 2048), R(16, 256, 2048), R(16, 2048, dt=FLOAT), I(2048, 16, 256), grads=(0, 1, 2))
def mixture_of_depths(x: Tensor, y: Tensor, score: Tensor, token: Tensor) -> Tensor:
    """Some tokens went through a block; its outputs, weighted by the router's scores, are added at their places."""
    w = score.gather(1, token).sigmoid()[..., None].to(y.dtype)
    return x.scatter_add(1, token[..., None].expand_as(y), y * w)


@case(R(4, 8, 2, 1024, 1024), R(128, dt=FLOAT), R(128, dt=FLOAT), R(128, dt=FLOAT), R(128, dt=FLOAT))
def differential_softmax(s: Tensor, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor) -> Tensor:
    weight = torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + 0.8
    seen = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
    p = s.float().masked_fill(~seen, -INF).softmax(-1)
    return (p[:, :, 0] - weight * p[:, :, 1]).to(s.dtype)


@case(R(8192, 4096), R(8192, 4096), R(4096, dt=FLOAT))
def step_on_a_sphere(x: Tensor, y: Tensor, rate: Tensor) -> Tensor:
    """nGPT: states of length 1, moved towards a block's output."""
    a, b = F.normalize(x.float(), dim=-1), F.normalize(y.float(), dim=-1)
    return F.normalize(a + (rate * 0.05 * x.shape[-1] ** 0.5).abs() * (b - a), dim=-1).to(x.dtype)


@case(R(4, 2048, 48 * 128), R(128), R(128), R(2048, 32), R(2048, 32), grads=(0, 1, 2))
def packed_heads_with_norms(qkv: Tensor, wq: Tensor, wk: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one product: norms of heads, a quarter of each head turned."""
    d, r = wq.shape[0], c.shape[-1]
    heads = qkv.unflatten(-1, (-1, d))
    n = heads.shape[2] // 6

    def made(x: Tensor, w: Tensor) -> Tensor:
        x = F.rms_norm(x, (d,), w, 1e-6).transpose(1, 2)
        return torch.cat([_turned(x[..., :r], c, s), x[..., r:]], -1)

    q, k, v = heads.split([4 * n, n, n], 2)
    return made(q, wq), made(k, wk), v.transpose(1, 2)


@case(R(4, 16, 1024, 1024), R(16), R(16, dt=FLOAT), grads=(0, 1))
def capped_softmax_with_sinks(s: Tensor, sink: Tensor, slope: Tensor) -> Tensor:
    """Scores that are capped and fall with distance, and a sink for each head, beside them as a column."""
    i = torch.arange(s.shape[-1], device=s.device)
    s = 30 * torch.tanh(s.float() / 30) - slope.abs()[:, None, None] * (i[:, None] - i).abs()
    s = s.masked_fill(i > i[:, None], -INF)
    return torch.cat([s, sink.float()[:, None, None].expand(*s.shape[:-1], 1)], -1).softmax(-1)[..., :-1].to(torch.bfloat16)


@case(R(4096, 8, 4096), R(4096, 8, dt=FLOAT), R(4096, 4096), R(4096, 1), R(4096, 4096))
def outputs_of_experts(y: Tensor, w: Tensor, shared: Tensor, gate: Tensor, x: Tensor) -> Tensor:
    total = (y * w[..., None].to(y.dtype)).sum(1)
    return x + total + torch.sigmoid(gate) * shared


@case(R(8, 32, 2048, 128), R(8, 2048, 32), R(128))
def gated_heads(x: Tensor, gate: Tensor, w: Tensor) -> Tensor:
    """Attention's output, a norm of each head, a gate for each token and head, as rows of tokens."""
    return (F.rms_norm(x, (x.shape[-1],), w, 1e-6).transpose(1, 2) * torch.sigmoid(gate)[..., None]).flatten(2)


@case(R(8192, 3584), R(8192, 3584), R(3584), R(3584))
def sandwich_norms(x: Tensor, y: Tensor, after: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Gemma 2: a norm behind a block, the residual, and the norm before the next block."""

    def norm(v: Tensor, w: Tensor) -> Tensor:
        v = v.float()
        return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6) * (1.0 + w.float())).to(torch.bfloat16)

    x = x + norm(y, after)
    return x, norm(x, before)


@case(R(4, 1024, 4, 2048), R(4, 1024, 4, 4), R(4, 1024, 4), R(4, 1024, 2048), R(4, 4, dt=FLOAT))
def streams_of_residuals(h: Tensor, mix: Tensor, into: Tensor, y: Tensor, still: Tensor) -> Tensor:
    """Hyper-connections: four streams, mixed for each token, and a block's output added to them by weights."""
    a = still + 0.1 * torch.tanh(mix.float())
    return ((a[..., None] * h.float()[:, :, None]).sum(3) + torch.sigmoid(into.float())[..., None] * y.float()[:, :, None]).to(h.dtype)
