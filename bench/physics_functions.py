"""Torch functions of sounds, diffusion, physics and statistics for `model_functions.py`, written before anything was tuned for them (2026-11-30).

Sizes come from the inputs, so the functions also run on small ones. Adds them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math
from itertools import permutations

import torch
import torch.nn.functional as F
from function_cases import I, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- sounds
@case(R(64, 300, 80), R(80, dt=FLOAT), R(80, dt=FLOAT))
def features_with_deltas(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Log energies, first and second regressions over time, and one normalization."""

    def delta(y: Tensor) -> Tensor:
        p = F.pad(y.transpose(1, 2), (2, 2), mode="replicate").transpose(1, 2)
        t = y.shape[1]
        return sum(n * (p[:, 2 + n : 2 + n + t] - p[:, 2 - n : 2 - n + t]) for n in (1, 2)) / 10

    y = x.float().square().clamp(min=1e-10).log()
    d = delta(y)
    y = (y - mean) / F.softplus(deviation)
    return torch.cat([y, d, delta(d)], -1).to(x.dtype)


@case(R(64, 513, 256, dt=FLOAT), grads=())
def shapes_of_spectra(x: Tensor) -> Tensor:
    """Centroid, bandwidth, flatness, flux, and the frequency below which 85 % of the energy lies."""
    p = x.square() + 1e-8
    f = torch.linspace(0, 8000, p.shape[1], device=x.device)[:, None]
    total = p.sum(1, keepdim=True)
    centroid = (p * f).sum(1, keepdim=True) / total
    width = ((p * (f - centroid).square()).sum(1, keepdim=True) / total).sqrt()
    flatness = p.log().mean(1, keepdim=True).exp() / p.mean(1, keepdim=True)
    flux = F.pad(F.relu(x.abs()[:, :, 1:] - x.abs()[:, :, :-1]).sum(1, keepdim=True), (1, 0))
    rolloff = (p.cumsum(1) < 0.85 * total).sum(1, keepdim=True).float() * (8000 / (p.shape[1] - 1))
    return torch.cat([centroid, width, flatness, flux, rolloff], 1)


@case(R(64, 3, 32000, dt=FLOAT), R(64, 3, 32000, dt=FLOAT), grads=(0,))
def separation_loss(x: Tensor, y: Tensor) -> Tensor:
    """SI-SDR of three sources in the order that fits best."""
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    dot = (x[:, :, None] * y[:, None]).sum(-1)
    energy, own = y.square().sum(-1)[:, None], x.square().sum(-1)[:, :, None]
    signal = dot.square() / (energy + 1e-8)
    sdr = 10 * torch.log10((signal + 1e-8) / (own - signal + 1e-8).clamp(min=1e-8))
    orders = [sum(sdr[:, n, p[n]] for n in range(3)) / 3 for p in permutations(range(3))]
    return -torch.stack(orders, -1).amax(-1).mean()


@case(R(32, 8, 5, dt=FLOAT), R(1025, dt=FLOAT), grads=(0,))
def filter_responses(k: Tensor, target: Tensor) -> Tensor:
    """The magnitudes of cascades of eight biquads in decibels, beside those that are wanted."""
    w = torch.linspace(0, math.pi, target.shape[0], device=k.device)
    c1, s1, c2, s2 = w.cos(), w.sin(), (2 * w).cos(), (2 * w).sin()
    b0, b1, b2, a1, a2 = (t[..., None] for t in k.unbind(-1))
    a1, a2 = 2 * torch.tanh(a1), torch.tanh(a2)
    top = (b0 + b1 * c1 + b2 * c2).square() + (b1 * s1 + b2 * s2).square()
    low = (1 + a1 * c1 + a2 * c2).square() + (a1 * s1 + a2 * s2).square()
    decibels = (10 * torch.log10(top + 1e-6) - 10 * torch.log10(low + 1e-6)).sum(1)
    return F.smooth_l1_loss(decibels, target.expand_as(decibels))


@case(R(64, 400, 1024))
def harmonic_product(x: Tensor) -> Tensor:
    """Log spectra of every first to fifth bin, added: where the fundamental is."""
    y = x.float().square().add(1e-6).log()
    n = y.shape[-1] // 5
    return sum(y[..., : n * k : k] for k in range(1, 6)).softmax(-1)


@case(R(8, 256, 8192), R(256, dt=FLOAT), R(256, dt=FLOAT))
def smooth_snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """BigVGAN: twice as many samples by a short filter, the activation, and half as many again."""
    k = [0.0625, 0.25, 0.375, 0.25, 0.0625]
    x = x.float()
    p = F.pad(x, (1, 1), mode="replicate")
    even = 2 * (k[0] * p[..., :-2] + k[2] * p[..., 1:-1] + k[4] * p[..., 2:])
    odd = 2 * (k[1] * p[..., 1:-1] + k[3] * p[..., 2:])
    up = torch.stack([even, odd], -1).flatten(-2)
    up = up + torch.sin(up * alpha.exp()[:, None]).square() / (beta.exp()[:, None] + 1e-9)
    q = F.pad(up, (2, 2), mode="replicate")
    return sum(k[i] * q[..., i : i + up.shape[-1] : 2] for i in range(5)).to(torch.bfloat16)


@case(R(8, 16000, dt=FLOAT), R(8, 16000, 32), R(8, 16000, dt=FLOAT), grads=(1, 2))
def harmonic_oscillators(pitch: Tensor, amplitude: Tensor, loudness: Tensor) -> Tensor:
    """DDSP: phases are running sums; harmonics above half the rate are silent."""
    f = 200 * (0.2 * pitch).exp()
    k = torch.arange(1, amplitude.shape[-1] + 1, device=f.device)
    phase = (f / 16000).cumsum(1)
    phase = 2 * math.pi * (phase - phase.floor())
    a = amplitude.float().sigmoid() * (f[..., None] * k < 8000)
    a = a / a.sum(-1, keepdim=True).clamp(min=1e-7)
    return (torch.sin(phase[..., None] * k) * a).sum(-1) * loudness.exp()


# ---------------------------------------------------------------- diffusion
@case(R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128), R(1000, dt=FLOAT), I(1000, 32), grads=(0,))
def min_snr_loss(v: Tensor, x: Tensor, noise: Tensor, betas: Tensor, t: Tensor) -> Tensor:
    """Velocities, a schedule rescaled to end at zero, weights of at most five."""
    root = (1 - (betas.sigmoid() * 0.02 + 1e-4)).cumprod(0).sqrt()
    root = (root - root[-1]) * (root[0] / (root[0] - root[-1]))
    a = root[t]
    s = (1 - a * a).sqrt()
    target = a[:, None, None, None] * noise.float() - s[:, None, None, None] * x.float()
    snr = (a / s) ** 2
    return ((v.float() - target).square().mean((1, 2, 3)) * snr.clamp(max=5) / (snr + 1)).mean()


@case(R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128, dt=FLOAT), R(3, 32, dt=FLOAT), grads=())
def multistep_solver(x: Tensor, eps: Tensor, before: Tensor, noise: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
    """DPM-Solver++ of second order with noise; what is predicted is clipped at its own largest value."""
    last, now, then = (s[:, None, None, None] for s in log_sigma.sort(0, descending=True).values.exp())
    x0 = x.float() - now * eps.float()
    top = x0.abs().amax((1, 2, 3), keepdim=True).clamp(min=1) * 0.9
    x0 = x0.clamp(-top, top) / top
    h, h_last = (now / then).log(), (last / now).log()
    d = x0 + (x0 - before.float()) * (h / (2 * h_last + 1e-3))
    out = then / now * torch.exp(-h) * x.float() - torch.expm1(-2 * h) * d + then * (-torch.expm1(-2 * h)).clamp(min=0).sqrt() * noise
    return out.to(x.dtype), x0.to(x.dtype)


@case(R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128, dt=FLOAT), grads=())
def projected_guidance(x: Tensor, free: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
    """APG: guidance with momentum, of limited norm, and little of what is parallel to the prediction."""
    x, free = x.float(), free.float()
    d = (x - free) - 0.5 * momentum
    limited = d * (2.5 / d.flatten(1).norm(dim=1).clamp(min=1e-6)).clamp(max=1)[:, None, None, None]
    unit = F.normalize(x, dim=(1, 2, 3))
    parallel = (limited * unit).sum((1, 2, 3), keepdim=True) * unit
    return (x + 6.5 * (limited - parallel + 0.1 * parallel)).to(torch.bfloat16), d


@case(R(32, 3, 64, 64), R(32, 3, 64, 64), R(32, 3, 64, 64), R(32, dt=FLOAT), grads=(0,))
def consistency_loss(student: Tensor, teacher: Tensor, x: Tensor, log_sigma: Tensor) -> Tensor:
    """Pseudo-Huber distances with the scales that keep the boundary."""
    s = log_sigma.exp()[:, None, None, None] + 0.01
    r = s * 0.9
    skip, out = 0.25 / ((s - 0.002) ** 2 + 0.25), 0.5 * (s - 0.002) / (s**2 + 0.25).sqrt()
    skip_r, out_r = 0.25 / ((r - 0.002) ** 2 + 0.25), 0.5 * (r - 0.002) / (r**2 + 0.25).sqrt()
    d = skip * x + out * student.float() - (skip_r * x + out_r * teacher.float()).detach()
    c = 0.00054 * math.sqrt(x[0].numel())
    return (((d.square().flatten(1).sum(1) + c * c).sqrt() - c) / (s - r).flatten()).mean()


# ---------------------------------------------------------------- molecules and fields
@case(R(64, 96, 3, dt=FLOAT), R(64, 96, 96), R(64, 96, 3, dt=FLOAT), R(64, 96), grads=(0, 1, 2))
def moved_points(x: Tensor, phi: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """EGNN with velocities: each point moves along differences to all others."""
    m = (mask > -1).float()
    d = x[:, :, None] - x[:, None]
    r = d.square().sum(-1, keepdim=True)
    push = (d / ((r + 1e-8).sqrt() + 1) * phi.float().tanh()[..., None] * m[:, None, :, None]).sum(2) / m.sum(-1)[:, None, None].clamp(min=1)
    v = v * 0.5 + push
    moved = (x + v) * m[..., None]
    return moved - moved.sum(1, keepdim=True) / m.sum(-1)[:, None, None].clamp(min=1) * m[..., None], v


@case(R(20000, 128), R(200000, 128), R(200000, dt=FLOAT), I(20000, 200000), I(20000, 200000), grads=(0, 1))
def continuous_filters(x: Tensor, w: Tensor, r: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """SchNet: neighbours times filters, cut smoothly, added."""
    r = r.abs()
    cut = torch.where(r < 2, 0.5 * (torch.cos(math.pi * r / 2) + 1), 0.0)
    f = (F.softplus(w.float()) - math.log(2)) * cut[:, None]
    return torch.zeros_like(x, dtype=FLOAT).index_add(0, target, x[source].float() * f).to(x.dtype)


@case(R(64, 2048, 3, dt=FLOAT), R(2045, 3, dt=FLOAT), grads=(0,))
def torsion_energy(x: Tensor, k: Tensor) -> Tensor:
    """Bonds, angles and dihedrals of chains."""
    b = x[:, 1:] - x[:, :-1]
    r = b.square().sum(-1).sqrt()
    u = b / r[..., None]
    cosine = -(u[:, 1:] * u[:, :-1]).sum(-1)
    n = torch.linalg.cross(b[:, :-1], b[:, 1:], dim=-1)
    n0, n1 = n[:, :-1], n[:, 1:]
    angle = torch.atan2((torch.linalg.cross(n0, n1, dim=-1) * u[:, 1:-1]).sum(-1), (n0 * n1).sum(-1))
    torsion = sum(k[:, m - 1].abs() * (1 + torch.cos(m * angle - 0.3 * m)) for m in (1, 2, 3))
    return (100 * (r - 1.5).square()).sum(-1) + (20 * (cosine + 0.5).square()).sum(-1) + torsion.sum(-1)


@case(R(2048, 3, dt=FLOAT), R(2048, dt=FLOAT), grads=(0,))
def ewald_in_real_space(x: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Screened charges in a periodic box: the energy and the field at each."""
    d = x[:, None] - x[None]
    d = d - 8.0 * torch.round(d / 8.0)
    far = d.square().sum(-1) + torch.eye(x.shape[0], device=x.device)
    r = far.sqrt()
    keep = (r < 4) & ~torch.eye(x.shape[0], dtype=torch.bool, device=x.device)
    screened = torch.where(keep, torch.erfc(0.9 * r) / r, 0.0)
    slope = torch.where(keep, (torch.erfc(0.9 * r) / r + 1.8 / math.sqrt(math.pi) * torch.exp(-0.81 * far)) / far, 0.0)
    return 0.5 * (q[:, None] * q * screened).sum(), (q[:, None] * slope[..., None] * d).sum(1)


@case(R(9, 1024, 1024, dt=FLOAT), R(1024, 1024), grads=())
def lattice_boltzmann(f: Tensor, solid: Tensor) -> Tensor:
    """D2Q9: collision towards equilibrium, walls that send back, streaming."""
    cx, cy = (0, 1, 0, -1, 0, 1, -1, -1, 1), (0, 0, 1, 0, -1, 1, 1, -1, -1)
    w, back = (4 / 9, *[1 / 9] * 4, *[1 / 36] * 4), (0, 3, 4, 1, 2, 7, 8, 5, 6)
    f = f.abs() + 1
    rho = f.sum(0)
    ux, uy = sum(c * f[n] for n, c in enumerate(cx)) / rho, sum(c * f[n] for n, c in enumerate(cy)) / rho
    wall, out = solid > 1.5, []
    for n in range(9):
        cu = 3 * (cx[n] * ux + cy[n] * uy)
        equal = w[n] * rho * (1 + cu + 0.5 * cu * cu - 1.5 * (ux * ux + uy * uy))
        out.append(torch.where(wall, f[back[n]], f[n] - (f[n] - equal) / 0.6).roll((cy[n], cx[n]), (0, 1)))
    return torch.stack(out)


@case(R(8, 512, 512, dt=FLOAT), R(8, 512, 512, dt=FLOAT), R(8, 512, 512, dt=FLOAT))
def shallow_water(h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Lax and Friedrichs with walls."""
    h = F.softplus(h) + 1
    states = (h, h * u, h * v)
    fx = (h * u, h * u * u + 4.9 * h * h, h * u * v)
    fy = (h * v, h * u * v, h * v * v + 4.9 * h * h)

    def sides(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p = F.pad(t, (1, 1, 1, 1), mode="replicate")
        return p[:, 1:-1, :-2], p[:, 1:-1, 2:], p[:, :-2, 1:-1], p[:, 2:, 1:-1]

    out = []
    for s, x, y in zip(states, fx, fy):
        left, right, _, _ = sides(x)
        _, _, up, down = sides(y)
        out.append(sum(sides(s)) / 4 - 0.01 * (right - left) - 0.01 * (down - up))
    return out[0], out[1] / out[0], out[2] / out[0]


@case(R(4, 64, 128, 128, dt=FLOAT), R(3, 4, 64, 128, 128), grads=(0,))
def advected_volume(c: Tensor, velocity: Tensor) -> Tensor:
    """A scalar in a volume: upwind advection and diffusion."""
    p = F.pad(c, (1, 1, 1, 1, 1, 1), mode="replicate")
    out = c
    for n, axis in enumerate((1, 2, 3)):
        keep = tuple(slice(None) if d in (0, axis) else slice(1, -1) for d in range(4))
        line, size = p[keep], c.shape[axis]
        before, after = line.narrow(axis, 0, size), line.narrow(axis, 2, size)
        u = velocity[n].float()
        out = out - 0.1 * (F.relu(u) * (c - before) - F.relu(-u) * (after - c)) + 0.05 * (before - 2 * c + after)
    return out


@case(R(64, 256, 256, dt=FLOAT), R(2, 64, 256, 256), R(64, dt=FLOAT), grads=())
def checkerboard_sweep(s: Tensor, u: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor]:
    """Ising: black sites flip, then white ones; the energy and magnetization of each lattice."""
    s = torch.where(s >= 0, 1.0, -1.0)
    i = torch.arange(s.shape[-1], device=s.device)
    parity = (i[: s.shape[1], None] + i) % 2
    near = torch.zeros_like(s)
    for color in range(2):
        near = s.roll(1, 1) + s.roll(-1, 1) + s.roll(1, 2) + s.roll(-1, 2)
        flip = (parity == color) & (u[color].float().sigmoid() < torch.exp(-2 * coupling.abs()[:, None, None] * s * near))
        s = torch.where(flip, -s, s)
    return s, torch.stack([-(s * near).mean((1, 2)) / 2, s.mean((1, 2))], -1)


@case(R(8, 512, 512, dt=FLOAT), R(8, 512, 512, dt=FLOAT), grads=(0, 1))
def arakawa_jacobian(p: Tensor, z: Tensor) -> Tensor:
    """Advection of vorticity that conserves energy and enstrophy, periodic."""

    def at(t: Tensor, i: int, j: int) -> Tensor:
        return t.roll((-i, -j), (1, 2))

    one = (at(p, 1, 0) - at(p, -1, 0)) * (at(z, 0, 1) - at(z, 0, -1)) - (at(p, 0, 1) - at(p, 0, -1)) * (at(z, 1, 0) - at(z, -1, 0))
    two = (
        at(p, 1, 0) * (at(z, 1, 1) - at(z, 1, -1)) - at(p, -1, 0) * (at(z, -1, 1) - at(z, -1, -1))
        - at(p, 0, 1) * (at(z, 1, 1) - at(z, -1, 1)) + at(p, 0, -1) * (at(z, 1, -1) - at(z, -1, -1))
    )  # fmt: skip
    return (one + two) / 8 - 0.01 * (at(z, 1, 0) + at(z, -1, 0) + at(z, 0, 1) + at(z, 0, -1) - 4 * z)


@case(R(8, 20, 181, 360), R(8, 20, 181, 360), R(20, 181, 360), R(181, 360), grads=(0,))
def weather_scores(x: Tensor, y: Tensor, climate: Tensor, land: Tensor) -> tuple[Tensor, Tensor]:
    """Errors and correlations of anomalies, weighted by the area of a latitude, over the sea."""
    lat = torch.linspace(-90, 90, x.shape[2], device=x.device).deg2rad().cos().clamp(min=0)[:, None] * (land < 1)
    w = lat / lat.sum()
    a, b = x.float() - climate.float(), y.float() - climate.float()
    a, b = a - (a * w).sum((2, 3), keepdim=True), b - (b * w).sum((2, 3), keepdim=True)
    acc = (a * b * w).sum((2, 3)) / ((a * a * w).sum((2, 3)) * (b * b * w).sum((2, 3))).sqrt()
    return ((x.float() - y.float()).square() * w).sum((2, 3)).sqrt().mean(0), acc.mean(0)


# ---------------------------------------------------------------- statistics and finance
@case(R(1000000, dt=FLOAT), R(1000000, dt=FLOAT), R(1000000, dt=FLOAT), R(1000000, dt=FLOAT), grads=(3,))
def option_greeks(s: Tensor, k: Tensor, t: Tensor, sigma: Tensor) -> tuple[Tensor, ...]:
    """Black and Scholes: price, delta, gamma, vega, theta, rho."""
    s, k, t, sigma = 100 * (0.1 * s).exp(), 100 * (0.1 * k).exp(), F.softplus(t) + 0.05, 0.2 * (0.3 * sigma).exp()
    root = sigma * t.sqrt()
    d1 = ((s / k).log() + (0.03 + 0.5 * sigma.square()) * t) / root
    d2, discount = d1 - root, torch.exp(-0.03 * t)
    n1, n2 = torch.special.ndtr(d1), torch.special.ndtr(d2)
    density = torch.exp(-0.5 * d1.square()) / math.sqrt(2 * math.pi)
    theta = -s * density * sigma / (2 * t.sqrt()) - 0.03 * k * discount * n2
    return s * n1 - k * discount * n2, n1, density / (s * root), s * density * t.sqrt(), theta, k * t * discount * n2


@case(R(4096, 24, dt=FLOAT), R(3, 4096, dt=FLOAT), R(4096, dt=FLOAT))
def garch_likelihood(r: Tensor, parameters: Tensor, freedom: Tensor) -> Tensor:
    """GARCH(1,1) with Student's t, the loop over time as it is written."""
    omega, alpha, beta = F.softplus(parameters[0]), 0.3 * parameters[1].sigmoid(), 0.65 * parameters[2].sigmoid()
    nu = 2.1 + F.softplus(freedom)
    h, total = omega / (1 - alpha - beta), torch.zeros_like(omega)
    for t in range(r.shape[1]):
        total = total - 0.5 * h.log() - (nu + 1) / 2 * torch.log1p(r[:, t].square() / (h * (nu - 2)))
        h = omega + alpha * r[:, t].square() + beta * h
    constant = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * torch.log(math.pi * (nu - 2))
    return -(total + r.shape[1] * constant).mean()


@case(R(65536, 4, dt=FLOAT), R(65536, 4, 4, dt=FLOAT), R(65536, 2, dt=FLOAT), R(4, dt=FLOAT), grads=())
def kalman_step(x: Tensor, root: Tensor, z: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Constant velocity in a plane, of which places are measured; small matrices written out."""
    p = (root[:, :, None] * root[:, None]).sum(-1) + torch.eye(4, device=x.device)
    step = torch.eye(4, device=x.device) + 0.1 * torch.diag(torch.ones(2, device=x.device), 2)
    x = (x[:, None] * step).sum(-1)
    p = ((step[:, :, None] * p[:, None]).sum(2)[:, :, None] * step).sum(-1) + torch.diag(noise.abs() + 0.1)
    y = z - x[:, :2]
    s = p[:, :2, :2] + 0.5 * torch.eye(2, device=x.device)
    a, b, c = s[:, 0, 0], s[:, 0, 1], s[:, 1, 1]
    det = a * c - b * b
    inverse = torch.stack([c, -b, -b, a], -1).view(-1, 2, 2) / det[:, None, None]
    gain = (p[:, :, :2, None] * inverse[:, None]).sum(2)
    after = p - (gain[:, :, :, None] * p[:, None, :2]).sum(2)
    chi = (y[:, :, None] * inverse * y[:, None]).sum((1, 2))
    return x + (gain * y[:, None]).sum(-1), (after + after.transpose(1, 2)) / 2, -0.5 * (chi + det.log()) - math.log(2 * math.pi)


@case(R(16384, 32, dt=FLOAT), R(16384, 32, 23), grads=(0, 1))
def rational_splines(x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Neural spline flows: eight bins of rational quadratics, linear outside, and the logarithm of the slope."""
    bins = (theta.shape[-1] + 1) // 3
    w, h, d = theta.float().split([bins, bins, bins - 1], -1)
    w, h = 1e-3 + (1 - 1e-3 * bins) * w.softmax(-1), 1e-3 + (1 - 1e-3 * bins) * h.softmax(-1)
    at_x, at_y = 6 * F.pad(w.cumsum(-1), (1, 0)) - 3, 6 * F.pad(h.cumsum(-1), (1, 0)) - 3
    slopes = F.pad(1e-3 + F.softplus(d), (1, 1), value=1.0)
    inside = (x >= -3) & (x <= 3)
    t = x.clamp(-3, 3)[..., None]
    bin_ = ((t >= at_x).sum(-1, keepdim=True) - 1).clamp(0, bins - 1)
    x0, y0, d0 = (q.gather(-1, bin_) for q in (at_x, at_y, slopes))
    x1, y1, d1 = (q.gather(-1, bin_ + 1) for q in (at_x, at_y, slopes))
    s, e = (y1 - y0) / (x1 - x0), (t - x0) / (x1 - x0)
    down = s + (d1 + d0 - 2 * s) * e * (1 - e)
    y = y0 + (y1 - y0) * (s * e.square() + d0 * e * (1 - e)) / down
    slope = s.square() * (d1 * e.square() + 2 * s * e * (1 - e) + d0 * (1 - e).square())
    log = slope.log() - 2 * down.log()
    return torch.where(inside, y[..., 0], x), torch.where(inside, log[..., 0], 0.0).sum(-1)


@case(R(32768, 10, dt=FLOAT), R(32768, 10, dt=FLOAT), R(32768, dt=FLOAT), grads=())
def leapfrog_on_a_funnel(x: Tensor, p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Hamiltonian Monte Carlo on Neal's funnel: five steps, then accepted or not."""

    def energy(q: Tensor) -> Tensor:
        v = q[:, 0]
        return v.square() / 18 + (q[:, 1:].square().sum(-1) * torch.exp(-v) + (q.shape[1] - 1) * v) / 2

    def slope(q: Tensor) -> Tensor:
        v, rest = q[:, :1], q[:, 1:]
        k = torch.exp(-v)
        return torch.cat([v / 9 - 0.5 * k * rest.square().sum(-1, keepdim=True) + 0.5 * (q.shape[1] - 1), rest * k], -1)

    before = energy(x) + 0.5 * p.square().sum(-1)
    y, r = x, p - 0.025 * slope(x)
    for n in range(5):
        y = y + 0.05 * r
        r = r - (0.05 if n < 4 else 0.025) * slope(y)
    accept = torch.log(u.sigmoid()) < before - energy(y) - 0.5 * r.square().sum(-1)
    return torch.where(accept[:, None], y, x), accept.float().mean()


@case(R(16384, 64), R(16384, 64), grads=(0,))
def dirichlet_divergence(a: Tensor, b: Tensor) -> Tensor:
    p, q = F.softplus(a.float()) + 0.1, F.softplus(b.float()) + 0.1
    total, other = p.sum(-1), q.sum(-1)
    kl = torch.lgamma(total) - torch.lgamma(other) + (torch.lgamma(q) - torch.lgamma(p)).sum(-1)
    return (kl + ((p - q) * (torch.digamma(p) - torch.digamma(total)[:, None])).sum(-1)).mean()


@case(R(65536, 2, dt=FLOAT), R(65536, 8, 4), grads=(1,))
def directions_mixture(x: Tensor, theta: Tensor) -> Tensor:
    """A mixture of eight von Mises distributions over an angle, and Student's t over a length."""
    w, mu, kappa, nu = theta.float().unbind(-1)
    angle, length = x[:, :1], x[:, 1:]
    kappa, nu = F.softplus(kappa) + 0.1, F.softplus(nu) + 2
    von = kappa * torch.cos(angle - mu) - math.log(2 * math.pi) - torch.log(torch.special.i0e(kappa)) - kappa
    student = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * (nu * math.pi).log() - (nu + 1) / 2 * torch.log1p(length.square() / nu)
    return -torch.logsumexp(w.log_softmax(-1) + von + student, -1).mean()


@case(R(2048, 8, dt=FLOAT), R(2048, 8, dt=FLOAT), R(8, dt=FLOAT), R(2, dt=FLOAT), grads=(0, 2, 3))
def matern_kernel(x: Tensor, y: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
    """Matern 5/2 with a length for each dimension."""
    s = scales.exp()
    r2 = ((x / s)[:, None] - (y / s)[None]).square().sum(-1)
    r = (5 * r2 + 1e-12).sqrt()
    eye = torch.eye(x.shape[0], y.shape[0], device=x.device)
    return noise[0].exp() * (1 + r + r * r / 3) * torch.exp(-r) + eye * F.softplus(noise[1])


@case(R(4096, 4096, dt=FLOAT), grads=(0,))
def mean_discrepancy(gram: Tensor) -> Tensor:
    """MMD of two halves with five widths, from inner products."""
    n = gram.shape[0]
    own = gram.diagonal()
    d = (own[:, None] + own - 2 * gram).clamp(min=0)
    width = d.detach().sum() / (n * n - n)
    k = sum(torch.exp(-d / (width * 2.0 ** (i - 2))) for i in range(5))
    h = n // 2
    return k[:h, :h].mean() + k[h:, h:].mean() - k[:h, h:].mean() - k[h:, :h].mean()


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), grads=(0,))
def centered_alignment(k: Tensor, m: Tensor) -> Tensor:
    """CKA of two Gram matrices."""
    k = k - k.mean(0, keepdim=True) - k.mean(1, keepdim=True) + k.mean()
    m = m - m.mean(0, keepdim=True) - m.mean(1, keepdim=True) + m.mean()
    return (k * m).sum() / (k.square().sum() * m.square().sum()).sqrt()


@case(R(4096, 4096), R(4096, dt=FLOAT), R(4096, dt=FLOAT), grads=(0,))
def redundancy_loss(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Barlow Twins, from products of features that are not normalized yet."""
    c = c.float() / (a.abs()[:, None] + 1) / (b.abs() + 1)
    on = (c.diagonal() - 1).square().sum()
    off = c.masked_fill(torch.eye(c.shape[0], dtype=torch.bool, device=c.device), 0.0).square().sum()
    return on + 0.005 * off


@case(R(6, 64, 8192), R(2, 64, 8192), R(1, 8192, dt=FLOAT), grads=(0,))
def self_distillation_of_crops(student: Tensor, teacher: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """DINO: every crop predicts both large ones but itself; the center moves."""
    q = ((teacher.float() - center) / 0.04).softmax(-1).detach()
    logp = (student.float() / 0.1).log_softmax(-1)
    total, terms = 0.0, 0
    for i in range(teacher.shape[0]):
        for v in range(student.shape[0]):
            if v != i:
                total, terms = total - (q[i] * logp[v]).sum(-1).mean(), terms + 1
    return total / terms, center * 0.9 + 0.1 * teacher.float().mean((0, 1))[None]


@case(R(4096, 1000), I(1000, 4096), grads=(0,))
def proxy_anchor_loss(x: Tensor, label: Tensor) -> Tensor:
    """Log sums over the samples of a class, and over those of others."""
    hit = label[:, None] == torch.arange(x.shape[1], device=x.device)
    s = torch.tanh(x.float())
    pos = torch.where(hit, torch.exp(-32 * (s - 0.1)), 0.0).sum(0)
    neg = torch.where(hit, 0.0, torch.exp(32 * (s + 0.1))).sum(0)
    return torch.log1p(pos).sum() / hit.any(0).sum().clamp(min=1) + torch.log1p(neg).mean()


@case(R(262144, 4, dt=FLOAT), R(6, dt=FLOAT), grads=(0, 1))
def gaussian_copula(u: Tensor, w: Tensor) -> Tensor:
    """The density of four dependent numbers: normal scores, and a triangular matrix in front of them."""
    z = torch.special.ndtri(u.sigmoid().clamp(1e-4, 1 - 1e-4))
    a, b, c, d = z.unbind(-1)
    y = torch.stack([a, (b - w[0] * a) * w[3].exp(), (c - w[1] * a - w[2] * b) * w[4].exp(), (d - 0.1 * (a + b + c)) * w[5].exp()], -1)
    return (0.5 * (y.square() - z.square()).sum(-1) - w[3:].sum()).mean()
