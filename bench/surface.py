"""Functions of weft.nn on this machine: host time of a call, and forward and backward through autograd beside eager torch, torch.compile and, where they are
installed, Liger and quack.

    python bench/surface.py [OUT.json] [--seconds N] [--warm K/N] [--host] [--only FUNCTION,... [--rows N,...] [--hidden N,...]]

--warm K/N: compile what the Kth of N parts of the cases needs, without measuring (several processes fill the caches side by side). --host: only host times.
--only: these functions, at the table's sizes or those given. Each contender's gradients are compared with eager's: "_apart" is the largest difference of a
gradient over the largest of its values.
Without a GPU only the host times, in the emulator (they show ratios, not speed). The cases are in `surface_cases.py`.
Owns the measurement; nothing in it is chosen by a shape. Read first: `host_rows`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from surface_cases import Case, arguments, chosen, liger, quack

import weft
from weft.nn import functional as W

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


def sync() -> None:
    if HAS_GPU:
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], calls: int, repeats: int = 5, host: bool = False) -> float:
    """Return the least time per call of `repeats` runs of `calls` calls; host: until the last call returns, else until the device is done."""
    call(), call(), sync()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if host:
            best = min(best, (time.perf_counter() - start) / calls)
        sync()
        if not host:
            best = min(best, (time.perf_counter() - start) / calls)
    return best


# ---------------------------------------------------------------- host time
def host_rows() -> dict[str, float]:
    """Return microseconds per call at a size whose kernel takes no time: what the host needs, the device works beside it.

    "launches" are the two executors that a call of ours comes to, called by hand; "launches in a Function" are these in the least that torch asks for.
    """
    calls = 64 if HAS_GPU else 20
    x, w = torch.randn(4, 256, device=DEVICE), torch.rand(256, device=DEVICE)
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    grad = torch.randn_like(x)
    with weft.FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.rms_norm(a, [-1], b, 1e-6))
    plans = [fd.autograd().plan((True, True)) for _ in range(2)]  # a warm path is prepared for calls inside of autograd, or outside
    (plan, inside), plain_key = plans, tuple(False if form is None else None for form in plans[0].plain_forms())
    plain, plain_inside = plan.step(plain_key), inside.step(plain_key)
    made = plan.executor.execute([x, w])
    saved = [made[o] if i is None else (x, w)[i] for i, o in zip(plan.saved_inputs, plan.saved_outputs)]  # type: ignore[index]
    given = [saved[i] for i in plain.used] + [plan.read_scalar(s, saved, None) for s in plain.scalars]

    class Bare(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g, w

    class Launches(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            made = inside.executor.execute([x, w])
            ctx.save_for_backward(*[made[o] if i is None else (x, w)[i] for i, o in zip(plan.saved_inputs, plan.saved_outputs)])  # type: ignore[index]
            return made[0]

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            saved = ctx.saved_tensors
            return tuple(plain_inside.executor.execute([*(saved[i] for i in plain.used), *given[len(plain.used) :], g]))

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return W.rms_norm(x, (256,), w, 1e-6)  # type: ignore[no-any-return]

    functions: dict[str, Callable[..., Any]] = {
        "weft": ours, "eager": lambda x, w: F.rms_norm(x, (256,), w, 1e-6), "bare Function": Bare.apply, "launches in a Function": Launches.apply,
    }  # fmt: skip
    functions.update({kind: theirs["rms_norm"] for kind, theirs in (("liger", liger()), ("quack", quack())) if theirs})
    rows = {
        "launches, no gradient": Timed(lambda: fd.execute([x, w])), "launches, forward that saves": Timed(lambda: plan.executor.execute([x, w])),
        "launches, backward": Timed(lambda: plain.executor.execute([*given, grad])),
    }  # fmt: skip
    for name, f in functions.items():
        both, chain = both_ways(f, [xg, wg]), chained(f, xg, wg, grad)
        rows[f"{name}, no gradient"] = Timed(lambda f=f: f(x, w), mode=torch.no_grad)
        rows[f"{name}, forward that saves"] = Timed(lambda f=f: f(xg, wg))
        rows[f"{name}, forward and backward"] = Timed(both)
        rows[f"{name}, forward and backward, until the device is done"] = Timed(both, host=False)
        rows[f"{name}, forward and backward, each of {CHAIN} in a row"] = Timed(chain, CHAIN)
        rows[f"{name}, each of {CHAIN} in a row, until the device is done"] = Timed(chain, CHAIN, host=False)
        rows[f"{name}, each of {CHAIN} in a row, backward in the calling thread"] = Timed(chain, CHAIN, mode=in_the_calling_thread)
    found = {name: 1e6 * us for name, us in in_turn(rows, calls, 15 if HAS_GPU else 2).items()}
    forward, backward = found["launches, forward that saves"], found["launches, backward"]
    found["weft above its launches, no gradient"] = found["weft, no gradient"] - found["launches, no gradient"]
    found["weft above its launches, forward that saves"] = found["weft, forward that saves"] - forward
    for where in (f"forward and backward, each of {CHAIN} in a row", f"each of {CHAIN} in a row, backward in the calling thread"):
        found[f"weft above its launches, {where}"] = found[f"weft, {where}"] - forward - backward
    return found


@dataclass(frozen=True)
class Timed:
    """A call that counts as `parts`, timed until it returns or (`host` False) until the device is done, in a mode of torch's."""

    call: Callable[[], Any]
    parts: int = 1
    host: bool = True
    mode: Callable[[], Any] = contextlib.nullcontext


def in_the_calling_thread() -> Any:
    return torch.autograd.set_multithreading_enabled(False)


def in_turn(rows: dict[str, Timed], calls: int, rounds: int) -> dict[str, float]:
    """Return seconds of a part of each, the least of the rounds: all run in turn, since the host is faster in one second than in the next."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(rounds):
        for name, row in rows.items():
            with row.mode():
                best[name] = min(best[name], seconds(row.call, max(1, calls // row.parts), 1, row.host) / row.parts)
    return best


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


# ---------------------------------------------------------------- forward and backward
def contenders(case: Case, compiled: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return all implementations of a case that are installed. compiled: torch.compile's, one per function."""
    if case.name not in compiled:
        compiled[case.name] = torch.compile(case.theirs, dynamic=True)
    found = {"weft": case.ours, "eager": case.theirs, "compile": compiled[case.name]}
    found.update({kind: functions[case.name] for kind, functions in (("liger", liger()), ("quack", quack())) if case.name in functions})
    return found


def both_ways(f: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """Return forward and backward of a function, with gradients of all its outputs that stay the same, and are the same for all functions."""
    leaves = [t for t in inputs if t.requires_grad]
    outputs = f(*inputs)
    torch.manual_seed(0)
    grads = [torch.randn(o.shape, device=o.device).to(o.dtype) for o in (outputs if isinstance(outputs, tuple) else (outputs,))]
    return lambda: torch.autograd.grad(f(*inputs), leaves, grads)


def apart(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of a tensor over the largest of the values wanted."""
    return max(float((a.float() - b.float()).abs().max() / b.abs().max().float().clamp(min=1e-30)) for a, b in zip(found, wanted, strict=True))


def speed_row(case: Case, compiled: dict[str, Callable[..., Any]], calls: int, rounds: int = 5) -> dict[str, Any]:
    """Measure one case, all contenders in turn, several rounds, since the host's speed changes; one that fails has a `_error` with its words.

    weft takes part twice: what lies between "weft_us" and "weft_again_us" is noise.
    """
    row: dict[str, Any] = {"name": case.name, "rows": case.rows, "hidden": case.hidden}
    inputs = case.tensors()
    running: dict[str, Callable[[], Any]] = {}
    wanted = both_ways(case.theirs, inputs)()
    for kind, f in contenders(case, compiled).items():
        try:
            running[kind] = both = both_ways(f, arguments(kind, case.name, inputs))
            row[kind + "_apart"] = apart(both(), wanted)
            both(), sync()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            both()
            row[kind + "_peak_mb"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        except Exception as error:  # noqa: BLE001  (another library's failure is a result)
            row[kind + "_error"] = f"{type(error).__name__}: {error}"[:300]
            running.pop(kind, None)
    del wanted
    for _ in range(rounds):
        for kind, both in [*running.items(), *((k + "_again", v) for k, v in running.items() if k == "weft")]:
            few = max(5, min(calls, int(calls * 500 / row.get(kind + "_us", 1.0))))
            row[kind + "_us"] = min(row.get(kind + "_us", math.inf), 1e6 * seconds(both, few, 1))
    return row


TIE = 0.98
"""A case is a tie from here to 1 / TIE: runs of one contender in one process differ by about this much ("noise" of the summary)."""


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the geometric mean of best other / weft, and in how many cases weft is at least the best other: strictly, and with ties; all and by function."""
    ratios: dict[str, list[float]] = {}
    noise, best = [], dict.fromkeys(("eager", "compile", "liger", "quack"), 0)
    for row in rows:
        others = {kind: row[kind + "_us"] for kind in best if kind + "_us" in row}
        if others and "weft_us" in row:
            winner = min(others, key=lambda kind: others[kind])
            best[winner] += 1
            ratios.setdefault("all", []).append(others[winner] / row["weft_us"])
            ratios.setdefault(row["name"], []).append(others[winner] / row["weft_us"])
            noise.append(abs(math.log(row["weft_again_us"] / row["weft_us"])))
    found: dict[str, Any] = {
        name: {
            "cases": len(of), "at_least_the_best": sum(r >= 1.0 for r in of), "with_ties": sum(r >= TIE for r in of),
            "geometric_mean": math.exp(sum(map(math.log, of)) / len(of)),
        }
        for name, of in ratios.items()
    }  # fmt: skip
    noise.sort()
    middle = {f"noise_{q}": math.expm1(noise[int(q / 100 * (len(noise) - 1))]) for q in (50, 90)} if noise else {}
    return {**found, **middle, "best_other": best}


def shown(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Measure, print rows as they come, and write them to the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--warm")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--only", type=lambda text: text.split(","), help="functions to measure, and no host times")
    for sizes in ("--rows", "--hidden"):
        parser.add_argument(sizes, type=lambda text: [int(n) for n in text.split(",")], help="these sizes instead of the table's")
    given = parser.parse_args()
    cases = chosen(given.only, given.rows, given.hidden)
    chip = torch.cuda.get_device_name() if HAS_GPU else "emulator"
    results: dict[str, Any] = {"chip": chip, "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "speed": []}
    compiled: dict[str, Callable[..., Any]] = {}
    if given.warm:
        part, parts = map(int, given.warm.split("/"))
        for case in cases[part::parts]:
            print({k: v for k, v in speed_row(case, compiled, 1, 1).items() if k.endswith("_error") or k in ("name", "rows", "hidden")}, flush=True)
        return
    end = time.perf_counter() + given.seconds

    def save() -> None:
        if given.out:
            results["summary"] = summary(results["speed"])
            with open(given.out, "w", encoding="utf-8") as out:
                json.dump(results, out, indent=1)

    if given.only is None:
        results["host_us"] = host_rows()
        for name, value in results["host_us"].items():
            print(f"{value:8.2f} us  {name}", flush=True)
        results["kernels"] = kernel_rows()
        print(results["kernels"], flush=True)
        save()
    for case in cases if HAS_GPU and not given.host else []:
        if time.perf_counter() > end:
            print("the time is over before", case.name, case.rows, case.hidden)
            break
        row = speed_row(case, compiled, 25)
        results["speed"].append(row)
        print(json.dumps({k: shown(v) for k, v in row.items()}), flush=True)
        save()
    print(json.dumps(summary(results["speed"])))


if __name__ == "__main__":
    main()
