"""A step of AdamW and a clipping of gradients over a model's parameters: torch's ways, and compiled. Milliseconds on a GPU, and of the host to queue a step.

    PYTHONPATH=. python bench/optimizers.py OUT.json [--layers 8] [--width 2048] [--device cpu]

Read first: `ways`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weft.frontend.backend import backend


def parameters(layers: int, width: int, device: str) -> list[torch.nn.Parameter]:
    """Parameters of a Llama in float32 with gradients: seven matrices and two norms a layer, a table of words and a head."""
    hidden = width * 11 // 4
    layer = [(width, width)] * 4 + [(hidden, width)] * 2 + [(width, hidden)] + [(width,)] * 2
    found = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in [*layer * layers, (16 * width, width), (16 * width, width)]]
    for p in found:
        p.grad = torch.randn_like(p)
    return found


def step_of(given: list[torch.nn.Parameter], **how: Any) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(given, lr=1e-3, weight_decay=0.1, **how)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(given, 1.0)
        optimizer.step()

    return step


def ways(given: list[torch.nn.Parameter], device: str) -> dict[str, Callable[[], None]]:
    """Name -> a step."""
    fast = {"backend": backend, "options": {"emulate": device == "cpu"}}
    found = {"eager, lists": step_of(given, foreach=True), "weft, lists": torch.compile(step_of(given, foreach=True), **fast)}
    if device == "cuda":
        found["eager, fused"] = step_of(given, fused=True)
        found["torch.compile, lists"] = torch.compile(step_of(given, foreach=True))
    return found


def measured(step: Callable[[], None], device: str, repeats: int) -> tuple[float, float]:
    """Return medians: milliseconds of a step from start to end of the GPU's work, and until the host has queued it."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[tuple[float, float]] = []
    for number in range(repeats + 3):
        wait()
        begun = time.perf_counter()
        step()
        queued = time.perf_counter()
        wait()
        if number >= 3:
            times.append((time.perf_counter() - begun, queued - begun))
    return 1e3 * statistics.median(a for a, _ in times), 1e3 * statistics.median(b for _, b in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=30)
    a = parser.parse_args()
    chip = torch.cuda.get_device_name() if a.device == "cuda" else "cpu"
    found: dict[str, Any] = {"chip": chip, "date": datetime.date.today().isoformat(), "layers": a.layers, "width": a.width}
    given = parameters(a.layers, a.width, a.device)
    found["gb"] = sum(p.numel() for p in given) * 4 / 1e9
    for name, step in ways(given, a.device).items():
        begun = time.perf_counter()
        try:
            step()
            first_s = time.perf_counter() - begun
            whole, host = measured(step, a.device, a.repeats)
        except Exception as error:  # noqa: BLE001  (the others go on)
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        found[name] = {"step_ms": whole, "host_ms": host, "first_s": first_s}
        print(f"{name}: {whole:.3f} ms, host {host:.3f} ms, first {first_s:.1f} s", flush=True)
    if a.device == "cuda":
        small = torch.empty(sum(p.numel() for p in given) // 8, device=a.device)
        copy = measured(lambda: small.clone(), a.device, a.repeats)[0]
        print(f"a copy of an eighth of the parameters: {copy:.3f} ms", flush=True)
        found["copy_of_an_eighth_ms"] = copy
    Path(a.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
