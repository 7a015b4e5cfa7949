"""First steps in new processes: cold (empty caches) and warm (those of a process before), one process at a time, and what a warm one is made of.

    PYTHONPATH=. python bench/starts.py --caches DIR                                       on a GPU: all models, weft and Inductor
    PYTHONPATH=. python bench/starts.py --caches DIR --models llama unet --states warm
    PYTHONPATH=. python bench/starts.py --caches DIR --device cpu --models llama           a small Llama in the emulator

Each process runs a step of eager torch first, so that the GPU, its libraries and the model are there. Then it counts: `first_s`, the first compiled step
(forward, backward, until the GPU has ended), with Dynamo and the backend imported before; `total_s`, the same with these imports. Phases are torch's own
(`dynamo_timed`). Python's bytecode is kept in DIR, as an installation has it: processes that do not count run before the others. Read first: `start_of`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACES = {"TORCHINDUCTOR_CACHE_DIR": "torch", "WEFT_CACHE_DIR": "weft", "TRITON_CACHE_DIR": "triton"}
PHASES = ("bytecode_tracing", "build_guards", "OutputGraph.call_user_compiler", "inductor_codecache_torch_key", "AOTAutogradCache.inductor_load")


def start_of(name: str, which: str, device: str, *, infers: bool = True) -> None:
    """Print what the first step of a model takes in this process, and what of weft's came from caches; then run inference once, for the caches."""
    import models
    import torch

    if device == "cpu":
        models.DEVICE, models.DTYPE = "cpu", torch.float32
        models.MODELS["llama"] = (lambda: models.Llama(width=64, heads=1, hidden=176, words=2048), lambda: models._tokens(1, 64, 2048))
    model, inputs = models.made(name)

    def step(function: Any) -> float:
        model.zero_grad(set_to_none=True)
        begun = time.perf_counter()
        function(*inputs).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    step(model)
    began, processors = time.perf_counter(), time.process_time()
    importlib.import_module("torch._dynamo")
    options: dict[str, Any] = {"backend": "inductor"}
    if which == "weft":
        options = {"backend": importlib.import_module("weft.frontend.backend").backend, "options": {"emulate": device == "cpu"}}
    imports_s = time.perf_counter() - began
    fast = torch.compile(model, **options)
    first_s = step(fast)
    total_s, processors_s = time.perf_counter() - began, time.process_time() - processors
    found: dict[str, Any] = {"first_s": first_s, "total_s": total_s, "processors_s": processors_s, "imports_s": imports_s}
    times = torch._dynamo.utils.compilation_time_metrics
    found |= {phase: sum(times[phase]) for phase in PHASES if phase in times}
    found |= {"second_s": step(fast)} | (taken_from_caches() if which == "weft" else {})
    found |= {"cache": dict(torch._dynamo.utils.counters["aot_autograd"])}
    if infers:
        model.eval()
        with torch.no_grad():
            fast(*inputs[:-1])
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in found.items()}))


def taken_from_caches() -> dict[str, int]:
    from weft.frontend.backend import GRAPHS

    calls = [call.calls for graph in GRAPHS for call in graph.calls]
    return {"calls": len(calls), "from_records": sum(c.executor is None for c in calls)}


def one_start(name: str, which: str, caches: str, device: str, *more: str) -> dict[str, Any]:
    """Run `start_of` in a new process with the caches in a folder, and return what it printed."""
    environment = {**os.environ, **{variable: f"{caches}/{which}/{name}/{place}" for variable, place in PLACES.items()}}
    environment |= {"PYTHONPYCACHEPREFIX": f"{Path(caches).parent}/bytecode", "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "--one", "--models", name, "--backends", which, "--device", device, *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {"problem": done.stderr[-900:]}
    return {"model": name, "backend": which} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["llama", "gpt", "vit", "unet", "moe"])
    parser.add_argument("--backends", nargs="+", default=["weft", "inductor"])
    parser.add_argument("--states", nargs="+", default=["cold", "warm", "warm"])
    parser.add_argument("--caches", default="", help="folder for caches, which are to be empty for cold starts")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--trains-only", action="store_true", help="no inference behind the counted steps")
    parser.add_argument("--one", action="store_true", help="the start of this process, with the caches that the environment names")
    a = parser.parse_args()
    more = ["--trains-only"] if a.trains_only else []
    if a.one:
        start_of(a.models[0], a.backends[0], a.device, infers=not a.trains_only)
        return
    for which in a.backends if "cold" in a.states else ():
        for _ in range(2):  # a warm process imports other modules than a cold one
            one_start(a.models[-1], which, f"{a.caches}/first", a.device, *more)
    for state in a.states:
        for name in a.models:
            for which in a.backends:
                print(json.dumps({"state": state} | one_start(name, which, f"{a.caches}/counted", a.device)), flush=True)


if __name__ == "__main__":
    main()
