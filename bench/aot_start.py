"""The first training step of a process that loads a file of `aot_compile`: no tracing, no compiler. Seconds.

    PYTHONPATH=. python bench/aot_start.py FILE [--device cpu]     saves FILE in one process, and loads it in another twice

A Llama of 8 layers without its head (width 2048, 16 heads, MLP 5632, 4 x 2048 tokens, bfloat16; on the CPU width 64 and float32 in the emulator), written as
a function of its weights. Results and gradients are compared with eager torch. Read first: `decoder`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

LAYERS = 8


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def decoder(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int, *weights: torch.Tensor) -> torch.Tensor:
    """x: (batch, tokens, width). weights: six per layer: norm, queries with keys and values, output, norm, gate with up, down. Returns the mean square."""
    batch, tokens, width = x.shape
    for n in range(0, len(weights), 6):
        first, qkv, out, second, gate, down = weights[n : n + 6]
        q, k, v = (t.view(batch, tokens, heads, width // heads).transpose(1, 2) for t in F.linear(rms(x, first), qkv).chunk(3, -1))
        seen = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        x = x + F.linear(seen.transpose(1, 2).reshape(batch, tokens, width), out)
        a, b = F.linear(rms(x, second), gate).chunk(2, -1)
        x = x + F.linear(F.silu(a) * b, down)
    return x.float().square().mean()


def arguments(device: str) -> tuple[torch.Tensor | int, ...]:
    torch.manual_seed(0)
    batch, tokens, width, heads, hidden, dtype = (4, 2048, 2048, 16, 5632, torch.bfloat16) if device == "cuda" else (1, 64, 64, 2, 176, torch.float32)
    shapes = [(width,), (3 * width, width), (width, width), (width,), (2 * hidden, width), (width, hidden)]
    weights = [torch.randn(s, device=device) * (0.02 if len(s) > 1 else 0.1) + (len(s) == 1) for s in shapes * LAYERS]
    angles = torch.arange(tokens, device=device)[:, None] / 10000 ** (torch.arange(width // heads // 2, device=device) / (width // heads // 2))
    cos, sin = (t.repeat(1, 2).to(dtype) for t in (angles.cos(), angles.sin()))
    return torch.randn(batch, tokens, width, device=device, dtype=dtype), cos, sin, heads, *(w.to(dtype).requires_grad_() for w in weights)


def gradients_after(call: object, given: tuple[torch.Tensor | int, ...], device: str) -> tuple[float, list[torch.Tensor]]:
    """Return the seconds of a training step, and the loss with the gradients of the weights."""
    weights = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    for w in weights:
        w.grad = None
    begun = time.perf_counter()
    loss = call(*given)  # type: ignore[operator]
    loss.backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, [loss.detach(), *(w.grad for w in weights if w.grad is not None)]


def save(file: str, device: str) -> dict[str, float]:
    from weft.frontend.backend import backend

    torch._dynamo.config.enable_aot_compile = True  # torch 2.11 has it off
    given = arguments(device)
    begun = time.perf_counter()
    compiled = torch.compile(decoder, fullgraph=True, dynamic=False, backend=backend, options={"emulate": device == "cpu"}).aot_compile((given, {}))
    compiled.save_compiled_function(file)
    return {"save_s": time.perf_counter() - begun}


def load(file: str, device: str) -> dict[str, float]:
    given = arguments(device)
    gradients_after(decoder, given, device)  # so that the GPU and its libraries are there
    begun = time.perf_counter()
    import torch._dynamo  # noqa: F401

    imported = time.perf_counter()
    with open(file, "rb") as stream:
        loaded = torch.compiler.load_compiled_function(stream)
    read = time.perf_counter()
    first_s, got = gradients_after(loaded, given, device)
    second_s, _ = gradients_after(loaded, given, device)
    eager_s, want = gradients_after(decoder, given, device)
    error = max(float((a.double() - b.double()).norm() / (b.double().norm() + 1e-9)) for a, b in zip(got, want, strict=True))
    from weft.frontend.backend import GRAPHS

    kernels = sum(len(call.kernels()) for graph in GRAPHS for _, call in graph.regions)
    left = sum(bool(call.fallback_reason) for graph in GRAPHS for _, call in graph.regions)
    found = {"import_s": imported - begun, "load_s": read - imported, "first_s": first_s, "second_s": second_s, "eager_s": eager_s, "error": error}
    return found | {"graphs": len(GRAPHS), "kernels": kernels, "regions_in_torch": left, "compiler": "weft.compiler" in sys.modules}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--what", choices=["save", "load"])
    a = parser.parse_args()
    if a.what:
        found = (save if a.what == "save" else load)(a.file, a.device)
        print(json.dumps({key: value if isinstance(value, int) else float(f"{value:.3g}") for key, value in found.items()}))
        return
    for what in ("save", "load", "load"):
        done = subprocess.run([sys.executable, __file__, a.file, "--device", a.device, "--what", what], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{what} failed:\n{done.stderr[-3000:]}")
        print(what, done.stdout.strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
