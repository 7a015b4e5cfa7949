"""One training step of five models through eager torch, Inductor and weft, in one process. Needs a GPU.

    PYTHONPATH=. python bench/compile_models.py                                  every model, default backends
    PYTHONPATH=. python bench/compile_models.py llama gpt --backends eager,inductor,weft,inductor-graphs,weft-graphs,inductor-autotune
    PYTHONPATH=. python bench/compile_models.py --starts --backends inductor,weft     first steps of new processes, without and with caches

Prints per model and backend: milliseconds of a step and of a forward without gradients (medians of five medians), seconds of the first step and of the
first after `torch._dynamo.reset()`, milliseconds until a step has been queued (host), kernels of a step, milliseconds of those that are no product,
convolution or attention, peak memory, and the largest relative error of a gradient against eager; then what weft's regions hold. Models have fewer layers
than those that they are named after: widths and sizes of a layer are theirs.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from weft.frontend.backend import GRAPHS, backend

DEVICE, DTYPE = "cuda", torch.bfloat16


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def rotated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((width, hidden), (width, hidden), (hidden, width)))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attention)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width: int = 2048, heads: int = 16, hidden: int = 5632, layers: int = 4, words: int = 32000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, hidden) for _ in range(layers))
        self.norm, self.head, self.head_width = RMSNorm(width), nn.Linear(width, words, bias=False), width // heads

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        frequency = 10000 ** (-torch.arange(0, self.head_width, 2, device=tokens.device).float() / self.head_width)
        angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), frequency)
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, self.head.out_features), target.view(-1))


class GPTLayer(nn.Module):
    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.norm1, self.norm2, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 16, width // 16).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, -1))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.out(attention))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[GPTLayer() for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).float().square().mean()


class ViTLayer(nn.Module):
    """Attention over all tokens, GELU with erf."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 16, width // 16).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches of 16 x 16 of images of 224 x 224, a class token, 1000 classes."""

    def __init__(self, layers: int = 6, width: int = 1024) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers, self.norm, self.head = nn.Sequential(*[ViTLayer(width) for _ in range(layers)]), nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.position
        return F.cross_entropy(self.head(self.norm(self.layers(x))[:, 0]).float(), target)


class UNet(nn.Module):
    """Two residual blocks with group norm and a change by the time step, as in diffusion models."""

    def __init__(self, channels: int = 320) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))
        self.times = nn.ModuleList(nn.Linear(1280, 2 * channels) for _ in range(2))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        for block in range(2):
            y = self.convs[2 * block](F.silu(self.norms[2 * block](x)))
            scale, shift = self.times[block](F.silu(time))[:, :, None, None].chunk(2, 1)
            x = x + self.convs[2 * block + 1](F.silu(self.norms[2 * block + 1](y) * (1 + scale) + shift))
        return x.float().square().mean()


class MoELayer(nn.Module):
    """Top 2 of 8 experts: every expert gets the tokens with the largest shares of it, up to a capacity."""

    def __init__(self, width: int, hidden: int, experts: int = 8) -> None:
        super().__init__()
        self.norm, self.router = RMSNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.norm(x).view(-1, x.shape[-1])
        weight, chosen = torch.softmax(self.router(flat).float(), -1).topk(2, -1)
        share = torch.zeros(flat.shape[0], self.experts, device=x.device).scatter(1, chosen, weight / weight.sum(-1, keepdim=True))
        share, token = share.t().topk(flat.shape[0] // 4, -1)
        gate, up = torch.bmm(flat[token], self.up).chunk(2, -1)
        y = torch.bmm(F.silu(gate) * up, self.down) * share.unsqueeze(-1).to(x.dtype)
        return x + torch.zeros_like(flat).index_add(0, token.flatten(), y.flatten(0, 1)).view(x.shape)


class MoE(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[MoELayer(2048, 1408) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).float().square().mean()


def _tokens() -> tuple[torch.Tensor, ...]:
    tokens = torch.randint(0, 32000, (4, 2048), device=DEVICE)
    return tokens, tokens.roll(1, 1)


def _normal(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, device=DEVICE, dtype=DTYPE)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "llama": (Llama, _tokens),
    "gpt": (GPT, lambda: (_normal(8, 1024, 1024),)),
    "vit": (ViT, lambda: (_normal(64, 3, 224, 224), torch.randint(0, 1000, (64,), device=DEVICE))),
    "unet": (UNet, lambda: (_normal(16, 320, 64, 64), _normal(16, 1280))),
    "moe": (MoE, lambda: (_normal(4, 2048, 2048),)),
}
"""Name -> what makes the model, what makes its inputs."""

BACKENDS: dict[str, dict[str, Any] | None] = {
    "eager": None, "inductor": {"backend": "inductor"}, "weft": {"backend": backend}, "weft-graphs": {"backend": backend, "mode": "reduce-overhead"},
    "inductor-graphs": {"backend": "inductor", "mode": "reduce-overhead"}, "inductor-autotune": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
}  # fmt: skip

PRODUCTS = "triton_tem|gemm|cutlass|nvjet|flash|fmha|xmma|cudnn|conv|splitK|implicit|wgrad|dgrad|sm90_|gemv"
FOREIGN = re.compile(f"^(?!triton_(?!tem)|weft).*({PRODUCTS})", re.IGNORECASE)
"""Names of kernels that are products, convolutions or attention."""


def step_of(model: nn.Module, function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad(set_to_none=True)
        loss = function(*inputs)
        loss.backward()
        return loss

    return step


def seconds_of(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def host_ms(step: Callable[[], Any]) -> float:
    """Milliseconds until a step has been queued, from an idle GPU; median of nine."""
    found = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        found.append(1e3 * (time.perf_counter() - start))
    return statistics.median(found)


def kernels_of(step: Callable[[], Any]) -> tuple[int, float, float, list[tuple[str, int, float]]]:
    """Kernels of a step, milliseconds of all and of those that are no product, convolution or attention, and the longest of these and of the others."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    rows = [(e.key, e.count, e.self_device_time_total / 1e3) for e in profile.key_averages() if e.self_device_time_total > 0]
    rows.sort(key=lambda r: -r[2])
    own = [r for r in rows if not FOREIGN.search(r[0])]
    return sum(r[1] for r in rows), sum(r[2] for r in rows), sum(r[2] for r in own), own[:12] + [r for r in rows if FOREIGN.search(r[0])][:8]


def measure(name: str, which: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], exact: list[torch.Tensor], details: bool) -> dict[str, float]:
    """Print one row; `exact` is filled by the first backend."""
    from triton.testing import do_bench

    torch._dynamo.reset()
    settings = BACKENDS[which]

    def compiled() -> Callable[..., torch.Tensor]:
        return model if settings is None else torch.compile(model, **settings)

    step = step_of(model, compiled(), inputs)
    first_s = seconds_of(step)
    graphs = list(GRAPHS)
    torch._dynamo.reset()
    function = compiled()
    step = step_of(model, function, inputs)
    again_s = seconds_of(step)
    step()
    gradients = [p.grad.float().clone() for p in model.parameters()]
    exact.extend(gradients if not exact else [])
    error = max(float((a - b).norm() / (b.norm() + 1e-9)) for a, b in zip(gradients, exact))
    del gradients
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**30
    ms = statistics.median(do_bench(step, warmup=30, rep=100, return_mode="median") for _ in range(5))
    with torch.no_grad():
        forward_ms = statistics.median(do_bench(lambda: function(*inputs), warmup=30, rep=50, return_mode="median") for _ in range(5))
    count, total, own, longest = kernels_of(step)
    print(f"{name} {which}: step {ms:.2f} ms, forward {forward_ms:.2f} ms, first {first_s:.1f} s, again {again_s:.1f} s, host {host_ms(step):.1f} ms")
    print(f"  {count} kernels, {total:.2f} ms in them, {own:.2f} ms of no product, peak {peak:.2f} GiB, gradient error {error:.1e}", flush=True)
    if details:
        for key, times, spent in longest:
            print(f"    {spent:7.3f} ms {times:4d}x {key[:110]}", flush=True)
    if which == "weft":
        for graph in graphs:
            print(f"  {graph.kind}: {graph.covered_nodes} of {graph.compute_nodes} compute nodes in {len(graph.regions)} regions; torch: {graph.torch_ops}")
            for text in (f"{call.__name__}: {call.fallback_reason}" for _, call in graph.regions if call.fallback_reason):
                print(f"    fallback {text}")
    return {"step": ms, "own": own}


def start_of(name: str, backends: list[str]) -> None:
    """Print the seconds of the first step of a model through the first of `backends`, in a process that has run it eagerly."""
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    model, inputs = make_model().to(DEVICE, DTYPE), make_inputs()
    seconds_of(step_of(model, model, inputs))
    importlib.import_module("torch._dynamo")
    settings = BACKENDS[backends[0]]
    begun = time.process_time()
    seconds = seconds_of(step_of(model, torch.compile(model, **settings) if settings else model, inputs))
    print(f"{seconds:.2f} {time.process_time() - begun:.2f}")


def starts_of(name: str, backends: list[str]) -> None:
    """Print the seconds of a first step in a new process with empty caches (cold), and in one with those that it left (warm): time, and time of processors."""
    for which in backends:
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": "torch", "WEFT_CACHE_DIR": "weft", "TRITON_CACHE_DIR": "triton"}
            environment = {**os.environ, **{variable: f"{folder}/{place}" for variable, place in caches.items()}}
            found = []
            for _ in range(2):
                command = [sys.executable, __file__, name, "--backends", which, "--first"]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                found.append(done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr[-300:])
        print(f"{name} {which}: first step cold {found[0]}, warm {found[1]} (s, s of this process's processors)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--backends", default="eager,inductor,weft")
    parser.add_argument("--details", action="store_true", help="the longest kernels of each backend")
    parser.add_argument("--starts", action="store_true", help="seconds of the first step in new processes, with empty caches and with those left by the first")
    parser.add_argument("--first", action="store_true", help="seconds of the first step in this process, after one of eager torch")
    a = parser.parse_args()
    ratios: dict[str, list[float]] = {"step": [], "own": []}
    if a.starts or a.first:
        for name in a.models or MODELS:
            (start_of if a.first else starts_of)(name, a.backends.split(","))
        return
    for name in a.models or MODELS:
        torch.manual_seed(0)
        make_model, make_inputs = MODELS[name]
        model, inputs = make_model().to(DEVICE, DTYPE), make_inputs()
        exact: list[torch.Tensor] = []
        rows = {which: measure(name, which, model, inputs, exact, a.details) for which in a.backends.split(",")}
        if "inductor" in rows and "weft" in rows:
            for part, found in ratios.items():
                found.append(rows["inductor"][part] / rows["weft"][part])
    for part, found in ratios.items():
        if found:
            print(f"Inductor over weft, {part}: {[round(r, 3) for r in found]}, geometric mean {math.exp(statistics.mean(map(math.log, found))):.3f}")


if __name__ == "__main__":
    main()
