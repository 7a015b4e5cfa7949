"""Torch functions of yet more fields for `model_functions.py`: optimizers, science, audio, series, vision. The other half of `further_functions.py`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from function_cases import I, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- optimizers
@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), R(1, dt=FLOAT), grads=())
def lamb_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g = g.float()
    m, v = m.lerp(g, 0.1), v * 0.999 + 0.001 * g * g
    u = (m / (1 - 0.9**step)) / ((v.abs() / (1 - 0.999**step)).sqrt() + 1e-6) + 0.01 * p
    a, b = p.norm(), u.norm()
    return p - 1e-3 * torch.where((a > 0) & (b > 0), a / b, 1.0) * u, m, v


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096), R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), R(4096, 4096), grads=())
def adamw_with_average(p: Tensor, g: Tensor, m: Tensor, v: Tensor, average: Tensor) -> tuple[Tensor, ...]:
    m, v = m.lerp(g.float(), 0.1), torch.addcmul(v * 0.99, g.float(), g.float(), value=0.01)
    p = p * (1 - 1e-4) - 1e-3 * m / (v.abs().sqrt() + 1e-8)
    return p, m, v, average.lerp(p.to(average.dtype), 0.001), p.to(torch.bfloat16)


@case(R(2048, 8192, dt=FLOAT), R(2048, 8192), grads=())
def muon_start(m: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Nesterov momentum, normalized by its norm, for Newton-Schulz steps."""
    m = m * 0.95 + g.float()
    u = (g.float() + 0.95 * m).to(torch.bfloat16)
    return u / (u.float().norm() + 1e-7).to(u.dtype), m


@case(R(2048, 2048), R(2048, 2048), grads=())
def newton_schulz_terms(a: Tensor, squared: Tensor) -> Tensor:
    return 3.4445 * torch.eye(2048, device=a.device, dtype=a.dtype) - 4.7750 * a + 2.0315 * squared


@case(R(4096, 4096), R(1024, 4096), R(1024, 4096), R(4096, 11008), R(4096), R(4096), grads=())
def clipped_by_norm(*given: Tensor) -> tuple[Tensor, ...]:
    norm = torch.stack([g.float().norm() for g in given]).norm()
    by = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    return tuple(g * by.to(g.dtype) for g in given)


# ---------------------------------------------------------------- science
@case(R(3000, 3, dt=FLOAT), R(3, dt=FLOAT), grads=(0,))
def lennard_jones(x: Tensor, box: Tensor) -> Tensor:
    """Energy of all pairs in a periodic box, cut at a distance."""
    box = box.abs() + 10
    d = x[:, None] - x[None]
    d = d - box * torch.round(d / box)
    r2 = d.square().sum(-1) + torch.eye(3000, device=x.device)
    i6 = (1 / r2) ** 3
    return torch.where((r2 < 9) & ~torch.eye(3000, dtype=torch.bool, device=x.device), 4 * (i6 * i6 - i6), 0.0).sum() / 2


@case(R(2000, 64, 3, dt=FLOAT), R(16, dt=FLOAT), grads=(0,))
def radial_descriptors(d: Tensor, centers: Tensor) -> Tensor:
    """Behler-Parrinello: sums over 64 neighbours."""
    r = d.square().sum(-1).add(1e-12).sqrt()
    cut = torch.where(r < 6, 0.5 * (torch.cos(math.pi * r / 6) + 1), 0.0)
    return (torch.exp(-4 * (r[..., None] - centers).square()) * cut[..., None]).sum(1)


@case(R(500, 48, 3, dt=FLOAT), R(8, dt=FLOAT), grads=(0,))
def angular_descriptors(d: Tensor, angles: Tensor) -> Tensor:
    r = d.square().sum(-1).add(1e-12).sqrt()
    cosine = (d[:, :, None] * d[:, None]).sum(-1) / (r[:, :, None] * r[:, None])
    cut = torch.where(r < 4, 0.5 * (torch.cos(math.pi * r / 4) + 1), 0.0)
    f = torch.exp(-((r[:, :, None] + r[:, None]) / 2 - 2).square()) * cut[:, :, None] * cut[:, None]
    return ((1 + torch.cos(torch.acos(0.95 * cosine)[..., None] - angles)) ** 8 * f[..., None]).sum((1, 2))


@case(R(64, 512, 512, dt=FLOAT), R(64, 512, 512, dt=FLOAT), grads=(0,))
def heat_residual(u: Tensor, before: Tensor) -> Tensor:
    """Finite differences with periodic boundaries."""
    laplace = u.roll(1, 1) + u.roll(-1, 1) + u.roll(1, 2) + u.roll(-1, 2) - 4 * u
    return ((u - before) / 0.01 - 0.1 * laplace).square().mean()


@case(R(32, 64, 256, 129, dt=FLOAT), R(32, 64, 256, 129, dt=FLOAT), grads=(0, 1))
def spectral_band_loss(real: Tensor, imag: Tensor) -> Tensor:
    """Power of a spectrum in 16 bands of wave numbers."""
    power = (real.square() + imag.square()).mean(1)
    k = torch.arange(256, device=real.device)
    k = torch.minimum(k, 256 - k)
    band = (k[:, None].square() + torch.arange(129, device=real.device).square()).float().sqrt() / 12
    inside = (band[None].long() == torch.arange(16, device=real.device)[:, None, None]).float()
    return (power[:, None] * inside).sum((2, 3)).add(1e-8).log().mean()


# ---------------------------------------------------------------- audio
@case(R(64, 513, 400, dt=FLOAT), R(64, 513, 400, dt=FLOAT), grads=(0,))
def magnitude_losses(x: Tensor, y: Tensor) -> Tensor:
    """Spectral convergence and the distance of logarithms."""
    a, b = x.square().clamp(min=1e-7).sqrt(), y.square().clamp(min=1e-7).sqrt()
    return (b - a).norm() / b.norm() + F.l1_loss(a.log(), b.log())


@case(R(64, 80000, dt=FLOAT), R(400, dt=FLOAT))
def windowed_frames(x: Tensor, window: Tensor) -> Tensor:
    f = x.unfold(-1, 400, 160)
    return (f - f.mean(-1, keepdim=True)) * window


@case(R(64, 800, 400, dt=FLOAT), R(400, dt=FLOAT), grads=(0,))
def joined_windows_of_audio(f: Tensor, window: Tensor) -> Tensor:
    """Windows of 400 in steps of 200, added where they overlap."""
    f = f * window
    a, b = f[:, :, :200], f[:, :, 200:]
    return F.pad(a, (0, 0, 0, 1)).flatten(1) + F.pad(b, (0, 0, 1, 0)).flatten(1)


@case(R(2000, 512, dt=FLOAT), grads=())
def pitch_differences(x: Tensor) -> Tensor:
    """YIN: squared differences with 128 lags."""
    lagged = x.unfold(1, 256, 1)[:, :128]
    return (lagged - x[:, None, :256]).square().sum(-1)


# ---------------------------------------------------------------- series
@case(R(256, 336, 321), R(321), R(321))
def reversible_norm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """RevIN, and its patches of 16 in steps of 8."""
    v, m = torch.var_mean(x.float(), 1, keepdim=True, unbiased=False)
    y = ((x.float() - m) * torch.rsqrt(v + 1e-5) * w + b).to(x.dtype)
    return y.transpose(1, 2).unfold(-1, 16, 8).contiguous(), m


@case(R(256, 96, 512))
def decomposed_series(x: Tensor) -> tuple[Tensor, Tensor]:
    """Autoformer: a trend, and what it leaves."""
    padded = torch.cat([x[:, :1].expand(-1, 12, -1), x, x[:, -1:].expand(-1, 12, -1)], 1)
    trend = F.avg_pool1d(padded.transpose(1, 2), 25, 1).transpose(1, 2)
    return x - trend, trend


@case(R(512, 96, 321), R(512, 96, 321), I(2, 512, 96, 321), grads=(0,))
def masked_scaled_error(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """MASE: errors over those of the last value, missing ones left out."""
    error = ((x - y).abs().float() * seen).sum(1) / seen.sum(1).clamp(min=1)
    naive = (y[:, 1:] - y[:, :-1]).abs().float().mean(1)
    return (error / (naive + 1e-5)).mean()


# ---------------------------------------------------------------- vision
@case(R(64, 256, 56, 56), R(64, 256), R(64, 1, 56, 56))
def two_attentions(x: Tensor, channels: Tensor, places: Tensor) -> Tensor:
    """CBAM: what the attention over places reads, of a map that is scaled by channels."""
    y = x * channels.sigmoid()[:, :, None, None]
    return torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1) + places


@case(R(64, 56, 56, 384), R(384), R(384))
def global_response_norm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    n = x.float().square().sum((1, 2), keepdim=True).sqrt()
    return (g * (x.float() * (n / (n.mean(-1, keepdim=True) + 1e-6))) + b + x).to(x.dtype)


@case(R(64, 196, 1024), R(64, 196, 1024), R(1024), R(64, 1, 1, dt=FLOAT), grads=(0, 1, 2))
def layer_scale_with_drop(x: Tensor, y: Tensor, g: Tensor, u: Tensor) -> Tensor:
    return x + y * g * ((u > 0.1).to(x.dtype) / 0.9)


@case(R(1024, 4, 49, 49), R(4, 49, 49), R(64, 49, 49), grads=(0, 1))
def masked_windows(x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Swin's attention with shifted windows: 64 windows per image."""
    x = x + bias
    return (x.view(16, 64, 4, 49, 49) + mask[:, None]).softmax(-1).view(1024, 4, 49, 49)


@case(R(8, 8, 22, 4, 2048, 2), R(8, 2048, 4, 2), grads=(0, 1))
def sampling_places(offset: Tensor, reference: Tensor) -> Tensor:
    """Deformable attention: offsets of points, scaled by the sizes of four levels, at reference points, as grids in -1 to 1."""
    sizes = torch.tensor([[100.0, 134], [50, 67], [25, 34], [13, 17]], device=offset.device, dtype=offset.dtype)
    at = reference.transpose(1, 2)[:, None, None] + offset / sizes[:, None]
    return 2 * at - 1


@case(R(16, 64, 128, 128))
def blur_pool(x: Tensor) -> Tensor:
    k = torch.tensor([1.0, 3.0, 3.0, 1.0], device=x.device, dtype=x.dtype) / 8
    y = F.pad(x, (1, 2, 1, 2), mode="reflect")
    h = sum(y[..., i : i + 128 : 2] * k[i] for i in range(4))
    return sum(h[..., i : i + 128 : 2, :] * k[i] for i in range(4))


@case(R(64, 3, 224, 224), R(64, 1, 1, dt=FLOAT), grads=())
def turned_hues(x: Tensor, turn: Tensor) -> Tensor:
    """Color jitter: to hue, saturation and value, and back."""
    r, g, b = x.float().unbind(1)
    top, low = x.float().amax(1), x.float().amin(1)
    d = top - low
    safe = torch.where(d == 0, 1.0, d)
    h = torch.where(top == r, (g - b) / safe, torch.where(top == g, 2 + (b - r) / safe, 4 + (r - g) / safe)) / 6
    h, s = (h + turn) % 1.0, d / torch.where(top == 0, 1.0, top)
    k = (torch.tensor([5.0, 3.0, 1.0], device=x.device)[:, None, None] + 6 * h[:, None]) % 6
    return (top[:, None] * (1 - s[:, None] * torch.minimum(k, 4 - k).clamp(0, 1))).to(x.dtype)


@case(R(64, 3, 224, 224), I(64, 64), grads=())
def cut_and_mixed(x: Tensor, p: Tensor) -> Tensor:
    """CutMix: a box of each image from another one."""
    i = torch.arange(224, device=x.device)
    inside = (i >= 50) & (i < 150)
    return torch.where(inside[:, None] & inside, x[p], x)


@case(R(16, 19, 256, 512), I(19, 16, 256, 512), grads=(0,))
def hard_pixels(x: Tensor, t: Tensor) -> Tensor:
    """Cross entropy of the pixels whose truth is unlikely, weighted by how many there are."""
    loss = F.cross_entropy(x.float(), t, reduction="none")
    hard = (loss.detach() > 0.3).float()
    return (loss * hard).sum() / hard.sum().clamp(min=1)


@case(R(64, 1024, 768), R(64, 1024), grads=(0,))
def masked_patches_loss(x: Tensor, mask: Tensor) -> Tensor:
    """MAE: patches that are normalized as targets, and predicted ones, beside each other."""
    p, t = x.float().chunk(2, -1)
    v, m = torch.var_mean(t, -1, keepdim=True)
    error = (p - (t - m) * torch.rsqrt(v + 1e-6)).square().mean(-1)
    seen = (mask > 0).float()
    return (error * seen).sum() / seen.sum().clamp(min=1)


# ---------------------------------------------------------------- gated linear recurrences
@case(R(16, 1024, 1024), R(16, 1024, 1024))
def min_gru(k: Tensor, h: Tensor) -> Tensor:
    """minGRU in logarithms: h[t] = (1 - z) * h[t-1] + z * g, where z = sigmoid(k), as torch's running sums can say it."""
    k, h = k.float(), h.float()
    kept = torch.cumsum(-F.softplus(k), 1)
    new = -F.softplus(-k) + torch.where(h >= 0, (F.relu(h) + 0.5).log(), -F.softplus(-h))
    return (kept + torch.logcumsumexp(new - kept, 1)).exp().to(torch.bfloat16)
