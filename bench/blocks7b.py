"""A training step of parts of a Llama of 7 billion parameters: eager torch, torch.compile and weft, repeats in turn, in one process. Needs a GPU.

    PYTHONPATH=. python bench/blocks7b.py OUT.json                a layer with batch 4 and batch 1 of 2,048 tokens, and norm, head and loss
    PYTHONPATH=. python bench/blocks7b.py OUT.json --repeats 2    a few, to fill the caches
    PYTHONPATH=. python bench/blocks7b.py OUT.json --cpu-smoke    small ones on the CPU, without kernels' times

A repeat takes each backend once: the median of a step's milliseconds (`triton.testing.do_bench`), and by the profiler the milliseconds of the step's kernels
that are no product, convolution or attention. Speeds over the others are geometric means of the repeats' ratios with 95 % confidence intervals (Student's t of
their logarithms). Read first: `measured`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compile_models as steps
import models
import torch

from weft.frontend.backend import GRAPHS, backend

BACKENDS = ("eager", "inductor", "weft")
STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 14: 2.145, 19: 2.093}
"""Degrees of freedom -> Student's t that 97.5 % stay below."""


def mean_ratio(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean, and its 95 % confidence interval."""
    logs = [math.log(r) for r in ratios]
    mean = statistics.mean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    freedom = max(n for n in STUDENT if n < len(logs))
    reach = STUDENT[freedom] * statistics.stdev(logs) / len(logs) ** 0.5
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def steps_of(name: str, smoke: bool) -> tuple[dict[str, Callable[[], Any]], float, list[str]]:
    """Return the steps by backend, the largest relative error of weft's gradients against eager, and what weft's graphs hold."""
    torch._dynamo.reset()
    model, inputs = models.made(name)
    ours = torch.compile(model, backend=backend, options={"emulate": True} if smoke else None)
    functions = {"eager": model, "inductor": torch.compile(model, backend="aot_eager" if smoke else "inductor"), "weft": ours}
    found = {which: steps.step_of(model, function, inputs) for which, function in functions.items()}
    gradients = {}
    for which, step in found.items():
        step()
        gradients[which] = [p.grad.float() for p in model.parameters() if p.grad is not None]
        step()
    error = max(float((a - b).norm() / (b.norm() + 1e-9)) for a, b in zip(gradients["weft"], gradients["eager"]))
    told = [f"{g.kind}: {g.covered_nodes} of {g.compute_nodes} compute nodes in {len(g.calls)} regions; torch: {g.torch_ops}" for g in GRAPHS]
    return found, error, told


def once(step: Callable[[], Any], rep_ms: int, smoke: bool) -> dict[str, float]:
    """Milliseconds of a step, and of its own kernels."""
    if smoke:
        begun = time.perf_counter()
        step()
        return {"step_ms": 1e3 * (time.perf_counter() - begun), "own_ms": 1.0}
    from triton.testing import do_bench

    row = {"step_ms": float(do_bench(step, warmup=5, rep=rep_ms, return_mode="median"))}
    row["own_ms"] = min(steps.kernels_of(step)[2] for _ in range(2))
    return row


def measured(name: str, repeats: int, rep_ms: int, smoke: bool) -> dict[str, Any]:
    """Return the figures of a case: medians by backend, and what the others take over what weft takes, with intervals."""
    found, error, told = steps_of(name, smoke)
    for step in found.values():
        step()
    rows: dict[str, list[dict[str, float]]] = {which: [] for which in BACKENDS}
    for number in range(repeats):
        for which in BACKENDS[number % 3 :] + BACKENDS[: number % 3]:
            rows[which].append(once(found[which], rep_ms, smoke))
    out: dict[str, Any] = {"case": name, "error": error, "graphs": told, "repeats": rows}
    for key in ("step_ms", "own_ms"):
        out[key] = {which: statistics.median(r[key] for r in rows[which]) for which in BACKENDS}
        out[f"over weft, {key}"] = {which: mean_ratio([a[key] / b[key] for a, b in zip(rows[which], rows["weft"])]) for which in BACKENDS[:2]}
    if not smoke:
        out["longest"] = {which: steps.kernels_of(step)[3] for which, step in found.items()}
    return out


def show(row: dict[str, Any]) -> None:
    for key in ("step_ms", "own_ms"):
        ratios = "; ".join(f"{which} over weft {m:.3f} ({low:.3f} to {high:.3f})" for which, (m, low, high) in row[f"over weft, {key}"].items())
        print(f"{row['case']}, {key}: {', '.join(f'{which} {v:.3f}' for which, v in row[key].items())}; {ratios}", flush=True)
    print(f"  error {row['error']:.2g}; " + " | ".join(row["graphs"]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rep-ms", type=int, default=100)
    parser.add_argument("--cpu-smoke", action="store_true")
    a = parser.parse_args()
    if a.cpu_smoke:
        models.DEVICE = "cpu"
        small = {"block7b": lambda: models.Block7B(64, 2, 176, 16), "head7b": lambda: models.Head7B(64, 500)}
        normal = lambda: torch.randn(2, 16, 64, dtype=models.DTYPE)  # noqa: E731
        models.BLOCKS = {n: (make, lambda n=n: (normal(), normal() if n == "block7b" else torch.randint(0, 500, (2, 16)))) for n, make in small.items()}
    rows = []
    for name in models.BLOCKS:
        rows.append(measured(name, a.repeats, a.rep_ms, a.cpu_smoke))
        show(rows[-1])
        chip = "CPU" if a.cpu_smoke else torch.cuda.get_device_name()
        Path(a.out).write_text(json.dumps({"chip": chip, "date": str(datetime.date.today()), "torch": torch.__version__, "cases": rows}, indent=1))
    for which in BACKENDS[:2]:
        for key in ("step_ms", "own_ms"):  # repeat by repeat, the mean of the cases
            each = [[r["repeats"][which][n][key] / r["repeats"]["weft"][n][key] for r in rows] for n in range(a.repeats)]
            mean, low, high = mean_ratio([statistics.geometric_mean(ratios) for ratios in each])
            print(f"{which} over weft, {key}, geometric mean of {len(rows)} cases: {mean:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
