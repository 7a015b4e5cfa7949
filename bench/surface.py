"""Functions of weft.nn on this machine: host time of a call, and forward and backward through autograd beside eager torch, torch.compile and, where they are
installed, Liger and quack. `python bench/surface.py [OUT.json [SECONDS]]`; without a GPU only the host times, in the emulator (they show ratios, not speed).

Owns the measurement; nothing in it is chosen by a shape. Read first: `cases`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import weft
from weft.nn import functional as W

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


def sync() -> None:
    if HAS_GPU:
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], calls: int, repeats: int = 5) -> float:
    """Return the least time per call of `repeats` runs of `calls` calls, the device done."""
    call(), call(), sync()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        sync()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


# ---------------------------------------------------------------- host time
def host_rows() -> dict[str, float]:
    """Return microseconds per call at a size whose kernel takes no time."""
    calls = 300 if HAS_GPU else 20
    x, w = torch.randn(4, 256, device=DEVICE), torch.rand(256, device=DEVICE)
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    grad = torch.randn_like(x)
    with weft.FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.rms_norm(a, [-1], b, 1e-6))

    class Bare(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            return x

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g, w

    def both(f: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(f(xg, wg), (xg, wg), grad)

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return W.rms_norm(x, (256,), w, 1e-6)  # type: ignore[no-any-return]

    def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (256,), w, 1e-6)

    rows = {
        "fd.execute": lambda: fd.execute([x, w]), "weft, no gradient": lambda: ours(x, w), "weft, forward that saves": lambda: ours(xg, wg),
        "weft, forward and backward": both(ours), "eager, no gradient": lambda: eager(x, w), "eager, forward that saves": lambda: eager(xg, wg),
        "eager, forward and backward": both(eager), "bare Function, forward": lambda: Bare.apply(xg, wg),
        "bare Function, forward and backward": both(Bare.apply),
    }  # fmt: skip
    rows.update({f"{name}, forward and backward": both(f) for name, f in others("rms_norm", 256).items()})
    found = {name: 1e6 * seconds(call, calls) for name, call in rows.items()}
    for name, f in {"weft": ours, "eager": eager, "bare Function": Bare.apply, **others("rms_norm", 256)}.items():
        found[f"{name}, forward and backward, each of {CHAIN} in a row"] = 1e6 * seconds(chained(f, xg, wg, grad), max(1, calls // CHAIN)) / CHAIN
    return found


CHAIN = 32


def chained(f: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> Callable[[], Any]:
    """A graph of many calls: what one costs in a model, without what torch.autograd.grad does once."""

    def call() -> Any:
        y = x
        for _ in range(CHAIN):
            y = f(y, w)
        return torch.autograd.grad(y, (x, w), grad)

    return call


# ---------------------------------------------------------------- several kernels
def kernel_rows() -> list[dict[str, float]]:
    """Return what fd.execute costs with one to six kernels: sums of rows and columns by turns."""
    out = []
    x = torch.rand(64, 256, device=DEVICE)
    for turns in range(1, 7):
        with weft.FusionDefinition() as fd:
            t = fd.define_tensor([-1, -1], contiguity=True)
            for turn in range(turns):
                t = t * t.sum(turn % 2, keepdim=True)
            fd.add_output(t)
        microseconds = 1e6 * seconds(lambda fd=fd: fd.execute([x]), 300 if HAS_GPU else 5)
        out.append({"kernels": len(fd.fec._caller.last.kernels), "us": microseconds})
    return out


def others(name: str, hidden: int) -> dict[str, Callable[..., Any]]:
    """Return the function of that name in other libraries that are installed."""
    found: dict[str, Callable[..., Any]] = {}
    try:
        from liger_kernel.transformers import functional as liger

        found.update({
            "rms_norm": {"liger": lambda x, w: liger.liger_rms_norm(x, w, 1e-6)},
            "layer_norm": {"liger": lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-5)}, "softmax": {"liger": lambda x: liger.liger_softmax(x)},
            "swiglu": {"liger": lambda a, b: liger.liger_swiglu(a, b)},
            "cross_entropy": {"liger": lambda x, t: liger.liger_cross_entropy(x, t)},
        }.get(name, {}))  # fmt: skip
    except ImportError:
        pass
    try:
        import quack

        found.update({"rms_norm": {"quack": lambda x, w: quack.rmsnorm(x, w, eps=1e-6)}}.get(name, {}))
    except ImportError:
        pass
    return found


# ---------------------------------------------------------------- forward and backward
def cases() -> list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[[int, int], list[torch.Tensor]]]]:
    """Return (name, ours, torch's, inputs for rows and hidden size)."""

    def rows(*more: str) -> Callable[[int, int], list[torch.Tensor]]:
        def make(m: int, n: int) -> list[torch.Tensor]:
            out = [torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16).requires_grad_()]
            for kind in more:
                if kind == "row":
                    out.append(torch.rand(n, device=DEVICE, dtype=torch.bfloat16).requires_grad_())
                elif kind == "same":
                    out.append(torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16).requires_grad_())
                else:
                    out.append(torch.randint(0, n, (m,), device=DEVICE))
            return out

        return make

    return [
        ("rms_norm", lambda x, w: W.rms_norm(x, x.shape[-1:], w, 1e-6), lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), rows("row")),
        ("layer_norm", lambda x, w, b: W.layer_norm(x, x.shape[-1:], w, b), lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), rows("row", "row")),
        ("softmax", lambda x: W.softmax(x, -1), lambda x: F.softmax(x, -1), rows()),
        ("swiglu", W.swiglu, lambda a, b: F.silu(a) * b, rows("same")),
        ("cross_entropy", W.cross_entropy, F.cross_entropy, rows("classes")),
    ]


def sizes_of(name: str) -> list[tuple[int, int]]:
    if name == "cross_entropy":
        return [(512, 32000), (4096, 32000), (4096, 128256)]
    return [(1, 4096), (128, 4096), (2048, 1024), (2048, 4096), (16384, 4096), (4096, 16384)]


def speed_rows(emit: Callable[[dict[str, Any]], None], limit_s: float) -> None:
    """Measure forward and backward, host time included, until the time is over."""
    end = time.perf_counter() + limit_s
    for name, ours, theirs, make in cases():
        compiled = torch.compile(theirs, dynamic=True)
        for m, n in sizes_of(name):
            if time.perf_counter() > end:
                return
            inputs = make(m, n)
            leaves = [t for t in inputs if t.requires_grad]
            grad = torch.ones((), device=DEVICE, dtype=torch.bfloat16) if name == "cross_entropy" else torch.randn(m, n, device=DEVICE, dtype=torch.bfloat16)
            row: dict[str, Any] = {"name": name, "rows": m, "hidden": n}
            for kind, f in {"weft": ours, "eager": theirs, "compile": compiled, **others(name, n)}.items():
                try:
                    row[kind + "_us"] = 1e6 * seconds(lambda f=f: torch.autograd.grad(f(*inputs), leaves, grad), 20, 3)
                    row[kind + "_forward_us"] = 1e6 * seconds(lambda f=f: f(*[t.detach() for t in inputs]), 20, 3)
                    if HAS_GPU:
                        torch.cuda.reset_peak_memory_stats()
                        torch.autograd.grad(f(*inputs), leaves, grad)
                        row[kind + "_peak_mb"] = torch.cuda.max_memory_allocated() / 2**20
                except RuntimeError as error:
                    row[kind + "_error"] = str(error)[:300]
            emit(row)


def main() -> None:
    """Measure, print rows as they come, and write them to the file that is named."""
    chip = torch.cuda.get_device_name() if HAS_GPU else "emulator"
    results: dict[str, Any] = {"chip": chip, "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "speed": []}
    results["host_us"] = host_rows()
    for name, value in results["host_us"].items():
        print(f"{value:8.2f} us  {name}", flush=True)
    results["kernels"] = kernel_rows()
    print(results["kernels"], flush=True)

    def emit(row: dict[str, Any]) -> None:
        results["speed"].append(row)
        print(json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
        if len(sys.argv) > 1:
            with open(sys.argv[1], "w", encoding="utf-8") as out:
                json.dump(results, out, indent=1)

    if HAS_GPU:
        speed_rows(emit, float(sys.argv[2]) if len(sys.argv) > 2 else 100.0)


if __name__ == "__main__":
    main()
