"""A training step and inference of five models through eager torch, torch.compile, Liger and weft, each model in one process. Needs a GPU.

    PYTHONPATH=. python bench/compile_models.py --starts --caches DIR --at-once 2   first steps of new processes: all without caches, then all with them
    PYTHONPATH=. python bench/compile_models.py OUT.jsonl --caches DIR              the rows of all models and backends
    PYTHONPATH=. python bench/compile_models.py OUT.jsonl --models llama gpt --backends eager,inductor,weft,weft-graphs,inductor-autotune --details
    PYTHONPATH=. python bench/compile_models.py OUT.jsonl --table                   the rows as a table of Markdown

A row: milliseconds of a step and of a forward without gradients (medians of five medians), seconds of the first step, milliseconds until a step has been
queued (host), kernels of a step, milliseconds of those that are no product, convolution or attention, peak memory, and the largest relative error of a
gradient against eager. Models: `models.py`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import importlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from measure import kernel_times
from models import DEVICE, MODELS, Llama, made, with_liger

from weft.cache import Artefact, DiskCache
from weft.frontend.backend import GRAPHS, backend

BACKENDS: dict[str, dict[str, Any] | None] = {
    "eager": None, "liger": None, "inductor": {"backend": "inductor"}, "weft": {"backend": backend},
    "inductor-graphs": {"backend": "inductor", "mode": "reduce-overhead"}, "weft-graphs": {"backend": backend, "mode": "reduce-overhead"},
    "inductor-autotune": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
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


def inference_of(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    def infer() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return function(*inputs[:-1])

    return infer


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
    rows = [(kernel.name, kernel.count, kernel.us / 1e3) for kernel in kernel_times(step)]
    own = [r for r in rows if not FOREIGN.search(r[0])]
    return sum(r[1] for r in rows), sum(r[2] for r in rows), sum(r[2] for r in own), own[:16] + [r for r in rows if FOREIGN.search(r[0])][:8]


def median_ms(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return statistics.median(do_bench(call, warmup=30, rep=100, return_mode="median") for _ in range(5))


def has_dropout(model: nn.Module) -> bool:
    return any(isinstance(m, nn.Dropout) for m in model.modules())


def measure(name: str, which: str, exact: list[torch.Tensor], details: bool) -> dict[str, Any]:
    """Return the row of one model and backend; `exact` gets the gradients of the first."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    model, inputs = made(name)
    if which == "liger":
        model = with_liger(model)
    settings = BACKENDS[which]
    function: Callable[..., torch.Tensor] = model if settings is None else torch.compile(model, **settings)
    step, infer = step_of(model, function, inputs), inference_of(function, inputs)
    row: dict[str, Any] = {"model": name, "backend": which, "first_s": seconds_of(step)}
    graphs = list(GRAPHS) if which == "weft" else []
    step()
    if not has_dropout(model):
        gradients = {key: p.grad.cpu() for key, p in model.named_parameters() if p.grad is not None}
        exact.extend(gradients.values() if not exact else [])
        pairs = ((a.to(DEVICE).float(), b.to(DEVICE).float()) for a, b in zip(gradients.values(), exact))
        row["error"] = max(float((a - b).norm() / (b.norm() + 1e-9)) for a, b in pairs)
        del gradients
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    row["step_ms"], row["host_ms"] = median_ms(step), host_ms(step)
    row["kernels"], row["kernels_ms"], row["own_ms"], longest = kernels_of(step)
    if details:
        row["longest"] = longest
    model.zero_grad(set_to_none=True)
    model.eval()
    for _ in range(4):
        infer()
    row["infer_ms"], row["infer_host_ms"] = median_ms(infer), host_ms(infer)
    row["infer_kernels"], _, row["infer_own_ms"], longest = kernels_of(infer)
    if details:
        row["infer_longest"] = longest
    if graphs:
        row["graphs"] = [f"{g.kind}: {g.covered_nodes} of {g.compute_nodes} compute nodes in {len(g.regions)} regions; torch: {g.torch_ops}" for g in graphs]
        row["fallbacks"] = [f"{call.__name__}: {call.fallback_reason}" for g in graphs for _, call in g.regions if call.fallback_reason]
    return row


def start_of(name: str, which: str) -> None:
    """Print what the first step of a model takes in this process, which has run it eagerly, and what of weft's came from caches; then run inference once, for
    the caches."""
    written: list[str] = []
    put = DiskCache.put

    def noted(self: DiskCache, key: str, artefact: Artefact) -> bool:
        written.append(key)
        return put(self, key, artefact)

    DiskCache.put = noted  # type: ignore[method-assign]
    model, inputs = made(name)
    seconds_of(step_of(model, model, inputs))
    torch.cuda.empty_cache()
    importlib.import_module("torch._dynamo")
    settings = BACKENDS[which]
    begun = time.process_time()
    function = torch.compile(model, **settings) if settings else model
    seconds = seconds_of(step_of(model, function, inputs))
    busy, spent = time.process_time() - begun, torch._dynamo.utils.calculate_time_spent()
    calls = [call.calls for graph in GRAPHS for call in graph.calls]
    kept = {"entries_written": len(written), "calls": len(calls), "calls_from_records": sum(c.executor is None for c in calls)} if calls else {}
    model.eval()
    inference_of(function, inputs)()
    torch.cuda.synchronize()
    found = {"first_s": seconds, "processors_s": busy, "frame_s": spent.get("entire_frame_compile", 0.0), "backend_s": spent.get("backend_compile", 0.0)} | kept
    print(json.dumps({key: round(value, 3) for key, value in found.items()}))


def one_start(name: str, which: str, caches: str, state: str) -> str:
    """Run `start_of` in a new process, and say what it took. state: cold or warm, what its caches are."""
    places = {"TORCHINDUCTOR_CACHE_DIR": "torch", "WEFT_CACHE_DIR": "weft", "TRITON_CACHE_DIR": "triton"}
    environment = {**os.environ, **{variable: f"{caches}/{name}/{place}" for variable, place in places.items()}}
    command = [sys.executable, __file__, "--models", name, "--backends", which, "--first"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {"problem": done.stderr[-600:]}
    return json.dumps({"model": name, "backend": which, "state": state} | found)


def starts(names: list[str], backends: list[str], caches: str, states: tuple[str, ...], at_once: int) -> None:
    """Print the seconds of first steps of all models and backends, so many at once; those with caches when all without have ended. The caches that they leave
    serve the measurements."""
    for state in states:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            waiting = [pool.submit(one_start, name, which, caches, state) for name in names for which in backends]
            for done in concurrent.futures.as_completed(waiting):
                print(done.result(), flush=True)


def rows_of(names: list[str], backends: list[str], out: str, details: bool) -> None:
    for name in names:
        exact: list[torch.Tensor] = []
        for which in backends:
            try:
                row = measure(name, which, exact, details)
            except Exception as error:  # noqa: BLE001  (another library's failure is a result)
                row = {"model": name, "backend": which, "problem": f"{type(error).__name__}: {error}"[:600]}
            with open(out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items() if key not in ("longest", "infer_longest", "graphs")}, flush=True)


def one_process_each(names: list[str], given: argparse.Namespace) -> None:
    """Measure each model in a process of its own, with the caches that `--starts` left for it."""
    for name in names:
        places = {"TORCHINDUCTOR_CACHE_DIR": "torch", "WEFT_CACHE_DIR": "weft", "TRITON_CACHE_DIR": "triton"}
        environment = {**os.environ, **({v: f"{given.caches}/{name}/{place}" for v, place in places.items()} if given.caches else {})}
        command = [sys.executable, __file__, given.out, "--models", name, "--backends", given.backends, "--here", *(["--details"] if given.details else [])]
        subprocess.run(command, env=environment, check=False)


COLUMNS = {
    "step_ms": ("step ms", 2), "infer_ms": ("inference ms", 2), "own_ms": ("own ms", 2), "kernels": ("kernels", 0), "host_ms": ("host ms", 1),
    "peak_gib": ("peak GiB", 2),
}  # fmt: skip


def table(out: str) -> None:
    """Print the rows as Markdown, with what Inductor takes over what weft takes."""
    rows = [json.loads(line) for line in Path(out).read_text(encoding="utf-8").splitlines()]
    print("| model | backend | " + " | ".join(title for title, _ in COLUMNS.values()) + " |\n" + "|---" * (2 + len(COLUMNS)) + "|")
    for row in rows:
        cells = [f"{row[key]:.{digits}f}" if key in row else row.get("problem", "")[:60] for key, (_, digits) in COLUMNS.items()]
        print(f"| {row['model']} | {row['backend']} | " + " | ".join(cells) + " |")
    found = {(row["model"], row["backend"]): row for row in rows if "step_ms" in row}
    for other in ("inductor", "inductor-autotune", "liger", "eager"):
        for key in ("step_ms", "infer_ms", "own_ms"):
            ratios = {m: found[m, other][key] / found[m, "weft"][key] for m in MODELS if (m, other) in found and (m, "weft") in found}
            if ratios:
                mean = math.exp(statistics.mean(map(math.log, ratios.values())))
                print(f"{other} over weft, {key}: {', '.join(f'{m} {r:.3f}' for m, r in ratios.items())}; geometric mean {mean:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="compile_models.jsonl")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--backends", default="eager,liger,inductor,weft,inductor-graphs,weft-graphs")
    parser.add_argument("--caches", default="", help="folder for caches, one for each model")
    parser.add_argument("--details", action="store_true", help="the longest kernels of each backend")
    parser.add_argument("--starts", action="store_true", help="seconds of first steps in new processes")
    parser.add_argument("--once", action="store_true", help="of --starts, those without caches alone")
    parser.add_argument("--at-once", type=int, default=10, help="of --starts, processes that run at once")
    parser.add_argument("--first", action="store_true", help="seconds of the first step in this process, after one of eager torch")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    parser.add_argument("--table", action="store_true", help="print what OUT holds")
    a = parser.parse_args()
    backends = a.backends.split(",")
    if a.table:
        table(a.out)
    elif a.first:
        start_of(a.models[0], backends[0])
    elif a.starts:
        starts(a.models, backends, a.caches, ("cold",) if a.once else ("cold", "warm"), a.at_once)
    elif a.here:
        rows_of(a.models, backends, a.out, a.details)
    else:
        one_process_each(a.models, a)


__all__ = ["Llama", "seconds_of", "step_of"]

if __name__ == "__main__":
    main()
