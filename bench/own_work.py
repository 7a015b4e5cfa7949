"""weft's own work in a first and in a second process of a compiled training step: seconds of processors, by what they are spent on.

    PYTHONPATH=. python bench/own_work.py                              16 Llama layers of width 1024, on a GPU
    PYTHONPATH=. python bench/own_work.py --device cpu --width 64      in the emulator

Each process runs the model eagerly first, then one step through the backend, then two more. What weft's functions take is counted once, in the innermost of
them, on every thread; tracing, AOTAutograd and its partitioner, and reading of entries from disk by torch are torch's. Calls count with what they take more
than in the third step. Read first: `Clock`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class Clock:
    """Seconds of processors by name; a function inside another is not counted in that one, too."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.times: Counter[str] = Counter()
        self._inner = threading.local()
        self._lock = threading.Lock()

    def watch(self, owner: Any, function: str, name: str) -> None:
        """Count what owner.function takes as `name`."""
        setattr(owner, function, self.timed(name, getattr(owner, function)))

    def timed(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is counted as `name`."""

        @functools.wraps(plain)
        def timed(*args: Any, **keywords: Any) -> Any:
            outer = getattr(self._inner, "spent", 0.0)
            self._inner.spent, begun = 0.0, time.thread_time()
            try:
                return plain(*args, **keywords)
            finally:
                whole = time.thread_time() - begun
                with self._lock:
                    self.seconds[name] += whole - self._inner.spent
                    self.times[name] += 1
                self._inner.spent = outer + whole

        return timed

    def taken(self) -> dict[str, float]:
        """Return the seconds so far, and begin again."""
        with self._lock:
            found, self.seconds = dict(self.seconds), Counter()
        return found


OF_FIRST, OF_SECOND, CALLS = ("graphs", "rewrites"), ("tag", "graphs", "plans", "records", "machine code", "calls"), "calls"


def watched() -> Clock:
    """Return a clock of weft's functions."""
    import functorch.compile

    from weft.cache import DiskCache
    from weft.frontend import ahead, backend, packs, region_call, stored
    from weft.runtime import call_records, driver, engines, nvrtc

    clock = Clock()
    clock.watch(backend, "_tag", "tag")
    clock.watch(backend, "compile_graph", "graphs")
    clock.watch(backend, "partition", "rewrites")
    clock.watch(functorch.compile, "min_cut_rematerialization_partition", "torch's partitioner")
    clock.watch(stored.StoredGraph, "prepare_for_serialization", "writing")
    clock.watch(stored.StoredGraph, "post_compile", "plans")
    clock.watch(stored.StoredGraph, "graph", "graphs read again")
    clock.watch(ahead, "_prepare", "kernels")
    clock.watch(call_records.RecordedCalls, "_restore", "records")
    clock.watch(call_records.RecordedCalls, "_keep", "writing")
    for engine in (engines.GpuEngine, engines.EmulatorEngine):
        clock.watch(engine, "build", "machine code")
    clock.watch(call_records, "code_version", "records: version of weft's files")
    clock.watch(call_records, "_engine", "records: engine")
    clock.watch(call_records, "_read", "records: decoded")
    clock.watch(call_records, "_rebuilt", "records: function")
    clock.watch(DiskCache, "get", "records: entries read")
    clock.watch(nvrtc, "kept_code", "machine code: found")
    clock.watch(driver, "load_kernel", "machine code: loaded")
    clock.watch(packs, "use_pack", "records: pack")
    clock.watch(packs, "write_pack", "writing")
    clock.watch(region_call.RegionCall, "_run", CALLS)
    return clock


def one_process(device: str, layers: int, width: int, *, is_first: bool) -> None:
    """Print what a process takes, as JSON."""
    import torch
    import torch._dynamo

    begun = time.process_time()
    from weft.frontend.backend import GRAPHS, backend

    if is_first:  # one that finds its graphs in caches does without
        importlib.import_module("weft.api.definition")
    import_s = time.process_time() - begun
    import compile_models as models

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = models.Llama(width=width, heads=max(1, width // 128), hidden=width * 11 // 4, layers=layers, words=32 * width).to(device, dtype)
    tokens = torch.randint(0, 32 * width, (1, width), device=device)

    def seconds(function: Callable[..., Any]) -> float:
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        function(tokens, tokens.roll(1, 1)).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(model)
    clock = watched()
    fast = torch.compile(model, backend=backend, options={"emulate": device == "cpu"})
    begun = time.process_time()
    first_s = seconds(fast)
    processors_s = time.process_time() - begun
    found = clock.taken()
    seconds(fast)
    clock.taken()
    again_s = seconds(fast)
    found[CALLS] -= clock.taken()[CALLS]
    whole = {"first_s": first_s, "processors_s": processors_s, "again_s": again_s, "import_s": import_s}
    print(json.dumps({**whole, "work": found, "graphs": [described(g) for g in GRAPHS]}))


def described(graph: Any) -> str:
    """Return what became of a graph."""
    structures = len({call.plan.key for call in graph.calls})
    restored, in_torch = sum(call.calls.executor is None for call in graph.calls), sum(bool(call.fallback_reason) for call in graph.calls)
    covered = f"{graph.covered_nodes} of {graph.compute_nodes} nodes"
    kernels = len({kernel.program.name for call in graph.calls for kernel in call.kernels()})
    return f"{graph.kind}: {len(graph.calls)} regions of {structures} structures, {kernels} kernels, {covered}, {restored} from records, {in_torch} in torch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--one", action="store_true", help="this process, with the caches that the environment names")
    parser.add_argument("--cold", action="store_true", help="with --one: its caches are empty")
    parser.add_argument("--profile", default="", help="TORCH_LOGS of each process, whose text is shown")
    a = parser.parse_args()
    if a.one:
        one_process(a.device, a.layers, a.width, is_first=a.cold)
        return
    command = [sys.executable, __file__, "--one", "--device", a.device, "--layers", str(a.layers), "--width", str(a.width)]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch", "WEFT_CACHE_DIR": f"{folder}/weft", "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
        logs = {"TORCH_LOGS": a.profile} if a.profile else {}
        environment = {**os.environ, **caches, **logs, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}  # an installation has its bytecode
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        elsewhere = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch1", "WEFT_CACHE_DIR": f"{folder}/weft1"}
        for _ in range(2):  # the first and the second process use different modules
            subprocess.run([*command, "--layers", "1"], env=environment | elsewhere, capture_output=True, check=False)
        for number in range(a.processes):
            done = subprocess.run([*command, *(["--cold"] if number == 0 else [])], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-3000:])
            print(done.stderr[-6000:] if a.profile else "", end="")
            found = json.loads(done.stdout.strip().splitlines()[-1])
            show(number, found)


def show(number: int, found: dict[str, Any]) -> None:
    """Print what process `number` took."""
    work, names = found["work"], OF_SECOND if number else OF_FIRST
    own = sum(s for name, s in work.items() if name.partition(":")[0] in names)
    print(f"process {number + 1}: first step {found['first_s']:.2f} s, {found['processors_s']:.2f} s of processors; third {1e3 * found['again_s']:.1f} ms")
    print(f"  own work ({' + '.join(names)}): {own:.3f} s, beside {found['import_s']:.3f} s for the import of weft.frontend")
    print("  " + ", ".join(f"{name} {s:.3f}" for name, s in sorted(work.items(), key=lambda p: -p[1])))
    for line in found["graphs"]:
        print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
