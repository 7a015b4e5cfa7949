"""One training step of two models through eager torch, Inductor and weft, in one process. Needs a GPU.

    PYTHONPATH=. python bench/compile_models.py

Prints per model and backend: milliseconds of a step (median), seconds of the first, the loss, the largest relative error of a gradient against eager, and
peak memory; then what weft's regions hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable

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


def step_of(model: nn.Module, function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = function(*inputs)
        loss.backward()
        return loss

    return step


def measure(name: str, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    from triton.testing import do_bench

    exact: list[torch.Tensor] = []
    for which in ("eager", "inductor", "weft"):
        torch._dynamo.reset()
        torch.cuda.reset_peak_memory_stats()
        function = model if which == "eager" else torch.compile(model, backend=backend if which == "weft" else which)
        step = step_of(model, function, inputs)
        start = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        first_s = time.perf_counter() - start
        gradients = [p.grad.float().clone() for p in model.parameters()]
        exact = exact or gradients
        error = max(float((a - b).norm() / (b.norm() + 1e-9)) for a, b in zip(gradients, exact))
        ms = do_bench(step, warmup=100, rep=300, return_mode="median")
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"{name} {which}: step {ms:.2f} ms, first {first_s:.1f} s, loss {loss.item():.5f}, gradient error {error:.1e}, peak {peak:.2f} GiB", flush=True)
    for graph in GRAPHS:
        print(f"  {graph.kind}: {graph.covered_nodes} of {graph.compute_nodes} compute nodes in {len(graph.regions)} regions; torch: {graph.torch_ops}")


def main() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 32000, (4, 2048), device=DEVICE)
    measure("llama, 4 layers", Llama().to(DEVICE, DTYPE), (tokens, tokens.roll(1, 1)))
    measure("gpt, 4 layers", GPT().to(DEVICE, DTYPE), (torch.randn(8, 1024, 1024, device=DEVICE, dtype=DTYPE),))


if __name__ == "__main__":
    main()
