"""What a compiled call costs the host above its kernels: each region above its definition's own execute, and the whole call above all of its kernels.

    PYTHONPATH=. python bench/region_host.py [OUT.json]     on a GPU
    PYTHONPATH=. python bench/region_host.py --cpu-smoke    anywhere: launches and memory of weft's kernels are stubs (host_parts.py), products run on the CPU

Inference of small models, so that the GPU never holds the host up. One call is taken apart: its regions with their inputs, and the ops that torch computes with
theirs (views are no kernels: they count as cost of the call). A region's cost is that of its call in the graph less `execute` of its definition with the same
inputs; a whole call's is the time until it returns less that of a loop over `execute` and the products, each called as the graph calls it. "Frame": the call
when its graph returns at once, which is torch's own part. "Floor": a call
of the same model compiled by a backend that does nothing, and the loop behind it: what no backend is below, since the two drive each other out of the
processor's caches. All parts run in turn; the smallest of many calls counts. Read first: `Parts`, `measured`.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from host_parts import stubs
from models import LlamaLayer
from torch.utils._python_dispatch import TorchDispatchMode

from weft.frontend.backend import GRAPHS, backend
from weft.frontend.calling import PRODUCTS
from weft.frontend.graph_plan import Boxed
from weft.frontend.region_call import RegionCall

CALLS = 12
"""Calls in a run: fewer than a GPU's queue takes."""


class Block(nn.Module):
    """A Llama layer with its table of angles."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = LlamaLayer(64, 2, 128)
        self.register_buffer("table", torch.randn(2, 16, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, self.table[0], self.table[1])


def models() -> dict[str, nn.Module]:
    mlp = nn.Sequential(*[nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
    return {"norm and activation": nn.Sequential(nn.LayerNorm(64), nn.GELU()), "four norms, products, activations": mlp, "Llama layer": Block()}


class Parts(TorchDispatchMode):
    """What one call of a graph runs: regions and ops of torch's, each with its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.regions: list[tuple[RegionCall, tuple[Any, ...]]] = []
        self.ops: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.order: list[tuple[Any, tuple[Any, ...], dict[str, Any]] | None] = []  # None for a region
        self.is_inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        is_view = func.is_view or "view" in str(func) or "as_strided" in str(func)
        if not self.is_inside and not is_view:
            self.ops.append((PRODUCTS.get(func, func), args, kwargs or {}))
            self.order.append(self.ops[-1])
        return func(*args, **(kwargs or {}))


def graphs_of(make: Callable[[], Any]) -> tuple[Any, list[Boxed]]:
    """Return what `make` returns, and the graphs' functions that it makes."""
    graphs: list[Boxed] = []
    plain = Boxed.__init__

    def noting(self: Boxed, *rest: Any) -> None:
        graphs.append(self)
        plain(self, *rest)

    Boxed.__init__ = noting  # type: ignore[method-assign]
    try:
        return make(), graphs
    finally:
        Boxed.__init__ = plain  # type: ignore[method-assign]


def parts_of(call: Callable[[], Any], graphs: list[Boxed]) -> Parts:
    """Take a call apart: the functions of its graphs run once more, with the arguments of that call, and regions as calls."""
    kept: list[tuple[Boxed, list[Any]]] = []
    region = RegionCall.__call__
    for graph in graphs:
        run = graph.run
        graph.run = lambda arguments, graph=graph, run=run: (kept.append((graph, list(arguments))), run(arguments))[1]  # type: ignore[misc]
        call()
        graph.run = run
    parts = Parts()

    def told(self: RegionCall, *inputs: Any) -> Any:
        parts.regions.append((self, inputs))
        parts.order.append(None)
        parts.is_inside = True
        try:
            with torch.utils._python_dispatch._disable_current_modes():
                return region(self, *inputs)
        finally:
            parts.is_inside = False

    RegionCall.__call__ = told  # type: ignore[method-assign]
    try:
        for graph, arguments in kept:
            with torch.no_grad(), parts:
                graph.plain(arguments)
    finally:
        RegionCall.__call__ = region  # type: ignore[method-assign]
    return parts


def without_its_graph(call: Callable[[], Any], graphs: list[Boxed]) -> Callable[..., Any]:
    """Return the same call with graphs that return at once what they did: what is left is torch's (guards, AOTAutograd)."""
    (graph,) = graphs
    run = graph.run
    results: list[Any] = []

    def noting(arguments: list[Any]) -> Any:
        results[:] = [run(arguments)]
        return results[0]

    def at_once(arguments: list[Any]) -> Any:
        arguments.clear()
        return results[0]

    graph.run = noting
    call()
    graph.run = run

    def timed() -> Any:
        graph.run = at_once
        try:
            return call()
        finally:
            graph.run = run

    return timed


def pieces(model: nn.Module, inputs: tuple[torch.Tensor, ...], smoke: bool) -> tuple[dict[str, Callable[[], Any]], int, int]:
    """Return what is timed: "call", "frame", "kernels", "floor", "region N", "execute N" and "op N", and how many regions and ops there are."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, options={"emulate": smoke, "cache": False})

    def call() -> Any:
        return compiled(*inputs)

    _, graphs = graphs_of(call)
    for _ in range(4):  # the third call writes the graph anew
        call()
    assert not any(c.fallback_reason for g in GRAPHS for c in g.calls)
    parts = parts_of(call, graphs)
    out: dict[str, Callable[[], Any]] = {"call": call, "frame": without_its_graph(call, graphs)}
    for n, (region, given) in enumerate(parts.regions):
        execute = region.translated.definition.execute
        values = list(given)
        out[f"region {n}"] = lambda region=region, given=given: region(*given)
        out[f"execute {n}"] = lambda execute=execute, values=values: execute(values)
    for n, (function, args, keywords) in enumerate(parts.ops):
        out[f"op {n}"] = lambda f=function, a=args, k=keywords: f(*a, **k)
    out["nothing"] = lambda: None
    executes = [(r.translated.definition.execute, (list(given),), {}) for r, given in parts.regions]
    order = [executes.pop(0) if op is None else op for op in parts.order]

    def kernels() -> None:
        for function, args, keywords in order:
            function(*args, **keywords)

    out["kernels"] = kernels
    ready = [call()]
    empty = torch.compile(model, backend=lambda graph, examples: lambda *given: ready)
    out["floor"] = lambda: (empty(*inputs), kernels())
    return out, len(parts.regions), len(parts.ops)


def best_of(timed: dict[str, Callable[[], Any]], rounds: int, wait: Callable[[], None]) -> dict[str, float]:
    """Return microseconds of each, the smallest of `rounds` runs of calls, all in turn."""
    best = dict.fromkeys(timed, float("inf"))
    for call in timed.values():
        call(), call()
    for _ in range(rounds):
        for name, call in timed.items():
            wait()
            for _ in range(CALLS):
                begun = time.perf_counter()
                call()
                best[name] = min(best[name], 1e6 * (time.perf_counter() - begun))
    return {name: us - best["nothing"] for name, us in best.items()}


def measured(name: str, model: nn.Module, rounds: int, smoke: bool) -> dict[str, Any]:
    device, dtype = ("cpu", torch.float32) if smoke else ("cuda", torch.bfloat16)
    inputs = (torch.randn(2, 16, 64, device=device, dtype=dtype),)
    with torch.no_grad():
        timed, regions, ops = pieces(model.to(device, dtype).eval(), inputs, smoke)
        us = best_of(timed, rounds, (lambda: None) if smoke else torch.cuda.synchronize)
    above = [us[f"region {n}"] - us[f"execute {n}"] for n in range(regions)]
    row = {"model": name, "regions": regions, "ops": ops, "call_us": us["call"], "kernels_us": us["kernels"], "above_us": us["call"] - us["kernels"]}
    row |= {"floor_above_us": us["floor"] - us["kernels"]}
    return row | {"frame_us": us["frame"], "regions_above_us": above, "parts_us": us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--cpu-smoke", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if a.cpu_smoke:
        stubs()
        torch.set_flush_denormal(True)  # the stubs' memory holds anything
    gc.disable()
    rows = []
    for name, model in models().items():
        rows.append(row := measured(name, model, a.rounds, a.cpu_smoke))
        above = ", ".join(f"{us:.2f}" for us in row["regions_above_us"])
        print(f"{name}: call {row['call_us']:.1f} us, {row['regions']} regions and {row['ops']} ops {row['kernels_us']:.1f}, "
              f"above them {row['above_us']:.1f} (an empty backend and the loop: {row['floor_above_us']:.1f}), "
              f"of which torch's frame {row['frame_us']:.1f}; regions above their execute: {above}", flush=True)  # fmt: skip
        if a.out:
            chip = "CPU, stubs" if a.cpu_smoke else torch.cuda.get_device_name()
            Path(a.out).write_text(json.dumps({"chip": chip, "date": str(datetime.date.today()), "torch": torch.__version__, "rows": rows}, indent=1))


__all__ = ["Parts", "best_of", "graphs_of", "parts_of"]

if __name__ == "__main__":
    main()
