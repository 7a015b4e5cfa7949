"""What programmatic dependent launch gains: chains of small kernels with and without it, in a CUDA graph and in stream order.

    python bench/dependent_launch.py [OUT.json] [--rows 1,8,64]

A chain is five calls, six times over: add + RMS norm, GELU + bias, SiLU * up, softmax, layer norm, each of which reads what the one before wrote, at 4096
columns of bf16. Times are microseconds of the GPU per kernel, the smallest of several chains: `graph` replays a CUDA graph of it; `stream` has all launches in
the queue before the first kernel starts, so that the host's time does not count. "same" says that all bits of the results are those of the chain without it.
The last table has single kernels of the size of training, behind a kernel that empties the cache, as fractions of a copy: what the setting `on` would do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import BY_NAME
from measure import copy_us, device_of, median_us, parser, synchronize, table, write

from weft.options import options

COLUMNS, REPEATS = 4096, 6
ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)
LARGE = ("rms_norm", "softmax", "silu_mul", "gelu_bias", "layer_norm")


class Chain:
    """Calls that read what the ones before wrote; `run` returns the last results."""

    def __init__(self, rows: int, device: str) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(rows, COLUMNS, device=device).bfloat16()
        self.weight, self.bias = (torch.randn(COLUMNS, device=device).bfloat16() for _ in range(2))
        self.calls = {name: BY_NAME[name].definition(torch.bfloat16) for name in ("add_rms_norm", "gelu_bias", "silu_mul", "softmax", "layer_norm")}
        self.kernels = len(self.calls) * REPEATS

    def run(self) -> list[torch.Tensor]:
        x, residual = self.x, self.x
        for _ in range(REPEATS):
            x, residual = self.calls["add_rms_norm"].execute([x, residual, self.weight])
            (up,) = self.calls["gelu_bias"].execute([x, self.bias])
            (x,) = self.calls["silu_mul"].execute([up, x])
            (x,) = self.calls["softmax"].execute([x])
            x = self.calls["layer_norm"].execute([x, self.weight, self.bias])[0]
        return [x, residual]


def gpu_us(run: Callable[[], Any], rounds: int = 15) -> float:
    """Return the time of the GPU for what `run` queues, while it is busy with something else."""
    best = float("inf")
    for _ in range(rounds):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)
        before.record()
        run()
        after.record()
        after.synchronize()
        best = min(best, before.elapsed_time(after) * 1e3)
    return best


def measured(rows: int, setting: str, device: str) -> tuple[dict[str, float], list[torch.Tensor]]:
    with options(dependent_launch=setting):
        chain = Chain(rows, device)
        for _ in range(3):
            results = chain.run()
        if device == "cpu":
            return {}, results
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = chain.run()
        times = {"graph": gpu_us(graph.replay) / chain.kernels, "stream": gpu_us(chain.run) / chain.kernels}
        graph.replay()
        synchronize(device)
        assert all(torch.equal(a, b) for a, b in zip(held, results)), "a replay has other results than the calls"
        return times, results


def small(rows: int, device: str) -> dict[str, Any]:
    """Return the times of a chain without and with it."""
    row: dict[str, Any] = {"rows": rows, "kB": rows * COLUMNS * 2 // 1000}
    results = {}
    for setting in ("off", "on"):
        times, results[setting] = measured(rows, setting, device)
        row |= {f"{where} {setting}": round(us, 2) for where, us in times.items()}
    row["same"] = all(torch.equal(a, b) for a, b in zip(results["off"], results["on"]))
    return row


def large(name: str, rows: int, device: str) -> dict[str, Any]:
    """Return the fraction of a copy of one case without and with it, in turn, the better of two each."""
    row: dict[str, Any] = {"case": name, "rows": rows}
    inputs = BY_NAME[name].inputs(rows, COLUMNS, torch.bfloat16, device)
    for setting in ("off", "on", "off", "on"):
        with options(dependent_launch=setting):
            fd = BY_NAME[name].definition(torch.bfloat16)
            outputs = fd.execute(inputs)
            us = median_us(lambda: fd.execute(inputs), device)
        fraction = round(copy_us(sum(t.numel() * t.element_size() for t in (*inputs, *outputs)), device) / us, 3)
        row[setting] = max(row.get(setting, 0.0), fraction)
    return row


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rows", default=",".join(map(str, ROWS)))
    a = arguments.parse_args()
    device = device_of(a)
    found = [small(rows, device) for rows in ([2] if a.cpu_smoke else map(int, a.rows.split(",")))]
    print(table(list(found[0]), [list(row.values()) for row in found]))
    others = [] if a.cpu_smoke else [large(name, rows, device) for rows in (1024, 16384) for name in LARGE]
    if others:
        print(table(list(others[0]), [list(row.values()) for row in others]))
    write(a, __file__, device, found, large=others)


if __name__ == "__main__":
    main()
