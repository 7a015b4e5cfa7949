"""Pipelines on a GPU: every variant right against float64 over many shapes, under a watchdog.

    PYTHONPATH=. python tests/gpu/pipelines_on_gpu.py right --repeat 200    each case in a child process that is killed when it stands still
    (--cpu-smoke: tiny sizes in the emulator, to see that the script works; --only PATTERN: some cases)

Times are in bench/ways.py. Read first: `cases`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "circular"))
import scheduled  # noqa: E402

from weft import DataType, FusionDefinition, KernelExecutor, LaunchParams  # noqa: E402
from weft.arch import Arch, arch_by_name, arch_of_device  # noqa: E402
from weft.compiler import prepare, program_of_scheduled  # noqa: E402
from weft.device.library import translation_unit  # noqa: E402
from weft.ir.values import TensorView  # noqa: E402
from weft.lower.program import KernelProgram  # noqa: E402
from weft.options import options  # noqa: E402
from weft.runtime.nvrtc import compile_or_load  # noqa: E402
from weft.schedulers import inner_persistent  # noqa: E402
from weft.schedulers.async_rows import apply_async_rows  # noqa: E402
from weft.schedulers.async_rows_heuristic import AsyncRowsParams, choose_async_rows  # noqa: E402
from weft.schedulers.persistent_analysis import analyze_persistent  # noqa: E402

BF16, FLOAT = DataType.BFloat16, DataType.Float
STANDSTILL_S = 60
"""A child that says nothing for so long hangs: a case takes a fraction of a second, its first compilation a few."""


# ---------------------------------------------------------------- fusions
def matrix(fd: FusionDefinition, dtype: DataType) -> Any:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
    return x, x if dtype is FLOAT else fd.ops.cast(x, dtype=FLOAT)


def weight(fd: FusionDefinition, dtype: DataType, like: Any) -> Any:
    w = fd.define_tensor(shape=[-1], contiguity=True, dtype=dtype)
    wide = w if dtype is FLOAT else fd.ops.cast(w, dtype=FLOAT)
    return fd.ops.broadcast_in_dim(wide, shape=like.shape(), broadcast_dims=[1])


def give(fd: FusionDefinition, value: Any, dtype: DataType) -> None:
    fd.add_output(value if dtype is FLOAT else fd.ops.cast(value, dtype=dtype))


def mean(fd: FusionDefinition, value: Any, like: Any) -> Any:
    return fd.ops.mul(fd.ops.sum(value, dims=[1], keepdim=True), fd.ops.reciprocal(like.size(1)))


def softmax(fd: FusionDefinition, dtype: DataType) -> None:
    _, x = matrix(fd, dtype)
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    give(fd, fd.ops.mul(e, fd.ops.reciprocal(fd.ops.sum(e, dims=[1], keepdim=True))), dtype)


def rms_norm(fd: FusionDefinition, dtype: DataType, added: bool = False) -> None:
    first, x = matrix(fd, dtype)
    h = fd.ops.add(x, matrix(fd, dtype)[1]) if added else x
    y = fd.ops.mul(h, fd.ops.rsqrt(fd.ops.add(mean(fd, fd.ops.mul(h, h), first), 1e-6)))
    give(fd, fd.ops.mul(y, weight(fd, dtype, first)), dtype)
    if added:
        give(fd, h, dtype)


def add_rms_norm(fd: FusionDefinition, dtype: DataType) -> None:
    rms_norm(fd, dtype, added=True)


def layer_norm(fd: FusionDefinition, dtype: DataType) -> None:
    first, x = matrix(fd, dtype)
    d = fd.ops.sub(x, mean(fd, x, first))
    y = fd.ops.mul(d, fd.ops.rsqrt(fd.ops.add(mean(fd, fd.ops.mul(d, d), first), 1e-5)))
    give(fd, fd.ops.add(fd.ops.mul(y, weight(fd, dtype, first)), weight(fd, dtype, first)), dtype)


def softmax_exact(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.softmax(x.double(), 1)]


def rms_exact(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    h = x.double()
    return [h * torch.rsqrt((h * h).mean(1, keepdim=True) + 1e-6) * w.double()]


def add_rms_exact(x: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    h = x.double() + z.double()
    return [h * torch.rsqrt((h * h).mean(1, keepdim=True) + 1e-6) * w.double(), h]


def layer_exact(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    return [torch.nn.functional.layer_norm(x.double(), (x.shape[1],), w.double(), b.double(), 1e-5)]


FUSIONS: dict[str, tuple[Callable, Callable, tuple[int, ...]]] = {  # definition, reference, ranks of the inputs
    "softmax": (softmax, softmax_exact, (2,)),
    "rms_norm": (rms_norm, rms_exact, (2, 1)),
    "layer_norm": (layer_norm, layer_exact, (2, 1, 1)),
    "add_rms_norm": (add_rms_norm, add_rms_exact, (2, 2, 1)),
}


def inputs_of(name: str, dtype: DataType, rows: int, cols: int, device: str, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    shapes = [(rows, cols) if rank == 2 else (cols,) for rank in FUSIONS[name][2]]
    return [torch.randn(s, generator=generator, device=device).to(scheduled.TORCH[dtype]) for s in shapes]


class Kernel:
    """A fusion with the params that `choose_async_rows` gives for one row length, some of them changed; it runs as any other, through the executor cache."""

    def __init__(self, name: str, dtype: DataType, rows: int, cols: int, arch: Arch, kind: str, warps: int = 0, bulk: bool = False, **changed: Any) -> None:
        with FusionDefinition() as fd:
            FUSIONS[name][0](fd, dtype)
        self.definition, self.kind = fd, kind
        self.prepared = prepare(fd.fusion)
        self.analysis = analyze_persistent(self.prepared.fusion)
        facts = self.facts(rows, cols)
        found = choose_async_rows(facts, arch, kind, async_warps=warps, is_stored_in_bulk=bulk)
        self.declined = "" if isinstance(found, AsyncRowsParams) else found.reason
        if not self.declined:
            self.params: AsyncRowsParams = replace(found, **changed).filled(facts)  # type: ignore[type-var]

    def facts(self, rows: int, cols: int) -> Any:
        env = {}
        for tensor in self.prepared.fusion.inputs():
            assert isinstance(tensor, TensorView)
            axes = tensor.get_logical_domain()
            env |= {a.sym: rows if len(axes) == 2 and n == 0 else cols for n, a in enumerate(axes) if a.sym.is_var}
        return self.analysis.facts(env, {})

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        chosen = inner_persistent.choose_rows
        inner_persistent.choose_rows = lambda facts, *_, **__: (self.params.filled(facts), "given")  # these params, not those for these sizes
        try:
            with options(rows=self.kind):
                return self.definition.execute(inputs)
        finally:
            inner_persistent.choose_rows = chosen

    def program(self) -> KernelProgram:
        clone, _ = self.prepared.fusion.clone()
        result = apply_async_rows(clone, self.analysis, self.params)
        return program_of_scheduled(clone, DataType.Int32, name="pipeline", result=result)

    def resources(self) -> str:
        made = self.program()
        return str(compile_or_load(translation_unit(made.text, made.blocks), made.name, "sm_90a", max_registers=made.max_registers).resources)


# ---------------------------------------------------------------- right
def error_of(given: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest error in units of what is allowed: two roundings of the type, and 1e-5 of the element and of the row's largest, for float32's sums."""
    worst = 0.0
    for out, wanted in zip(given, exact, strict=True):
        eps = torch.finfo(out.dtype).eps
        allowed = (2 * eps + 1e-5) * wanted.abs() + 1e-5 * wanted.abs().amax(-1, keepdim=True) + 1e-30
        worst = max(worst, float(((out.double() - wanted).abs() / allowed).max()))
    return worst if worst == worst else float("inf")


def flat_case(stages: int, prefetch: int, **given: Any) -> Callable[[int, str, random.Random], float]:
    cache: dict[str, KernelExecutor] = {}

    def run(n: int, device: str, rng: random.Random) -> float:
        most = 40_000 if device == "cpu" else 3_000_000
        elems = rng.choice((4, 128, rng.randrange(1, most) * 4 // 4 * 4))
        xs = [torch.randn(elems // 4 * 4, device=device) for _ in range(given.get("inputs", 1))]
        if "executor" not in cache:
            cache["executor"] = KernelExecutor()
            cache["executor"].compile(scheduled.flat(stages=stages, prefetch=prefetch, blocks=8 if device == "cpu" else 264, **given).fusion, xs)
        return error_of(cache["executor"].run(xs), [sum(x.double() for x in xs) + 1.0])  # type: ignore[list-item]

    return run


def rows_case(case: scheduled.Rows, block: tuple[int, ...], most_cols: int) -> Callable[[int, str, random.Random], float]:
    cache: dict[str, KernelExecutor] = {}
    unit = 8

    def run(n: int, device: str, rng: random.Random) -> float:
        rows = rng.randrange(1, 60 if device == "cpu" else 4000)
        cols = rng.choice((unit, most_cols, rng.randrange(1, most_cols // unit + 1) * unit))
        xs, _ = case.data(1, 1)
        xs = [torch.randn(rows, cols, device=device).to(scheduled.TORCH[case.dtype]) for _ in xs]
        if "executor" not in cache:
            launch = LaunchParams(**{name: size for name, size in zip(("bdimx", "bdimy", "bdimz"), block) if size})
            cache["executor"] = KernelExecutor()
            cache["executor"].compile(replace(case, blocks=2 if device == "cpu" else 132).define().fusion, xs, launch)
        h = sum(x.double() for x in xs) * 0.5
        folded = h.amax(1, keepdim=True) if case.fold == "max" else (h * h).sum(1, keepdim=True)  # type: ignore[union-attr]
        return error_of(cache["executor"].run(xs), [h * folded])  # type: ignore[list-item]

    return run


def norm_case(name: str, dtype: DataType, cols: int, kind: str, **changed: Any) -> Callable[[int, str, random.Random], float]:
    cache: dict[str, Kernel] = {}

    def run(n: int, device: str, rng: random.Random) -> float:
        arch = arch_by_name("H200") if device == "cpu" else arch_of_device(0)
        if "kernel" not in cache:
            cache["kernel"] = Kernel(name, dtype, 4096, cols, arch, kind, **changed, **({"blocks": 2} if device == "cpu" and kind == "specialized" else {}))
        kernel = cache["kernel"]
        if kernel.declined:
            return 0.0
        unit = 16 * 8 // dtype.bits
        fewest = cols // 2 // unit
        rows = rng.randrange(1, 20 if device == "cpu" else 4000)
        xs = inputs_of(name, dtype, rows, rng.choice((cols, rng.randrange(fewest, cols // unit + 1) * unit)), device, n)
        return error_of(kernel(xs), FUSIONS[name][1](*xs))

    return run


def cases() -> dict[str, Callable[[int, str, random.Random], float]]:
    R, P, L = scheduled.Rows, scheduled.P, scheduled.L
    out: dict[str, Callable] = {}
    for load_name, load in (("tma", L.tma), ("cp_async", L.cp_async), ("plain", L.set)):
        for stages, prefetch in ((2, 1), (3, 2), (4, 1), (10, 9)):
            for store in (False, True):
                out[f"ring {load_name} {stages}/{prefetch}{' stored' if store else ''}"] = flat_case(stages, prefetch, load=load, store=store)
        out[f"ring {load_name} nested"] = flat_case(3, 2, load=load, nested=3)
        out[f"ring {load_name} vectors, unrolled, three inputs"] = flat_case(3, 2, load=load, vector=4, unroll=2, tile=512, inputs=3)
        for unswitch in ("around", "inside", "shared"):
            out[f"ring {load_name} unswitched {unswitch}"] = flat_case(3, 2, load=load, unswitch=unswitch)
            out[f"ring {load_name} unswitched {unswitch}, nested, vectors, unrolled, two inputs"] = flat_case(
                3, 2, load=load, unswitch=unswitch, nested=3, vector=4, unroll=2, tile=512, inputs=2
            )
        out[f"copy {load_name}"] = flat_case(1, 1, load=load)
    for name, case, block, most in (
        ("one role", R(warps=(0, 0)), (128,), 1024),
        ("two roles", R(), (128,), 1024),
        ("two roles, 2 and 5 stages", R(stages=(2, 5)), (128,), 1024),
        ("three roles", R(inputs=3, stages=(2, 3, 4), warps=(0, 1, 2)), (128,), 1024),
        ("four roles", R(inputs=4, stages=(2, 2, 2, 2), warps=(0, 1, 2, 3)), (128,), 1024),
        ("chain of two", R(inputs=1, stages=(3, 2), warps=(0, 1), chained=1), (128,), 1024),
        ("chain of three", R(inputs=1, stages=(3, 2, 4), warps=(0, 1, 2), chained=2), (128,), 1024),
        ("own stages", R(own=True), (128,), 1024),
        ("own stages, four groups", R(own=True, groups=4), (64,), 512),
        ("registers", R(own=True, registers=(40, 232), batches=2), (128,), 2048),
        ("registers, stored", R(registers=(40, 232), batches=2, store=True), (128,), 2048),
        ("maximum", R(fold="max"), (128,), 1024),
        ("grouped rows", R(grouped=2, own=True), (128,), 1024),
        ("unswitched around", R(unswitch="around"), (128,), 1024),
        ("unswitched inside", R(unswitch="inside", batches=2), (128,), 2048),
        ("unswitched inside, registers", R(unswitch="inside", own=True, registers=(40, 232), batches=4), (128,), 4096),
        ("unswitched around, chain of two", R(unswitch="around", inputs=1, stages=(3, 2), warps=(0, 1), chained=1), (128,), 1024),
        ("along x", R(axis=P.block_x, groups=1), (256,), 2048),
        ("along z", R(axis=P.block_z), (128,), 1024),
    ):
        out[f"rows {name}"] = rows_case(case, block, most)
    for name in FUSIONS:
        for dtype in (BF16, FLOAT):
            for cols in (1024, 4096, 16384):
                out[f"{name} {dtype.name} {cols} tma"] = norm_case(name, dtype, cols, "tma")
                out[f"{name} {dtype.name} {cols} specialized"] = norm_case(name, dtype, cols, "specialized")
                out[f"{name} {dtype.name} {cols} specialized, stored in bulk"] = norm_case(name, dtype, cols, "specialized", bulk=True)
    return out


def child(arguments: argparse.Namespace) -> None:
    """Run the cases named on standard input, and say after each run that it ended."""
    every = cases()
    for name in map(str.strip, sys.stdin):
        rng = random.Random(name)
        worst = 0.0
        for n in range(arguments.repeat):
            try:
                worst = max(worst, every[name](n, arguments.device, rng))
            except Exception as error:  # noqa: BLE001 - reported to the parent
                text = str(error).splitlines()
                print(json.dumps({"case": name, "failed": f"{type(error).__name__}: {' '.join(text[:3])[:300]}", "at": n}), flush=True)
                break
            if arguments.device == "cuda":
                torch.cuda.synchronize()
            print(json.dumps({"case": name, "done": n + 1, "error": worst}), flush=True)


def right(arguments: argparse.Namespace) -> int:
    """Run every case in a child; kill it and go on with the next case when it stands still. Return how many failed."""
    waiting = [name for name in cases() if fnmatch.fnmatch(name, arguments.only)]
    failed: dict[str, str] = {}
    total = len(waiting)
    while waiting:
        command = [sys.executable, __file__, "child", "--repeat", str(arguments.repeat), "--device", arguments.device]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert worker.stdin and worker.stdout
        worker.stdin.write("\n".join(waiting) + "\n")
        worker.stdin.close()
        for report in _reports(worker, STANDSTILL_S):
            name = report["case"] if report else waiting[0]
            while waiting[0] != name:
                waiting.pop(0)
            if report is None:
                failed[name] = f"stood still for {STANDSTILL_S} s or died: killed"
                waiting.pop(0)
                break
            if "failed" in report:
                failed[name] = f"{report['failed']} (repetition {report['at']})"
                waiting.pop(0)
                print(f"FAILED {name}: {failed[name]}", flush=True)
            elif report["done"] == arguments.repeat:
                waiting.pop(0)
                if report["error"] > 1:
                    failed[name] = f"error {report['error']:.2f} of what is allowed"
                print(f"{'ok    ' if name not in failed else 'FAILED'} {name}: {arguments.repeat} shapes, error {report['error']:.3f}", flush=True)
        worker.kill()
        worker.wait()
    for name, why in failed.items():
        print(f"FAILED {name}: {why}")
    print(f"{total - len(failed)} of {total} cases right, {arguments.repeat} shapes each")
    return len(failed)


def _reports(worker: subprocess.Popen, patience_s: float) -> Iterator[dict | None]:
    """Yield the child's lines; None when it dies or says nothing for `patience_s`."""
    import queue
    import threading

    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in worker.stdout:  # type: ignore[union-attr]
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=patience_s)
        except queue.Empty:
            yield None
            return
        if line is None:
            if worker.wait():
                yield None
            return
        yield json.loads(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("right", "child"))
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--only", default="*")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cpu-smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.cpu_smoke:
        arguments.device, arguments.repeat = "cpu", min(arguments.repeat, 2)
    if arguments.part == "child":
        child(arguments)
        return 0
    return right(arguments)


if __name__ == "__main__":
    sys.exit(main())
