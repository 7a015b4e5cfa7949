"""Where the microseconds of a warm call go on the host.

    python bench/profile_warm.py [OUT.json] [--profile NAME]

A warm call is two written functions: `execute` finds what was prepared for such values, `run` allocates, launches and returns (`weft/runtime/warm_path.py`).
Parts are switched off one after the other, and the differences are what they cost:

    method   fd.execute over fec.execute
    find     unpacking, addresses, guards of the tensors: fec.execute over run
    launch   run over run without the call into the driver; `launch alone` is that call by itself
    allocate one allocation of the outputs each; rest: what is left of run (stream, random state, arguments of the launch, the list)

The last rows have one to five results of one tensor, and the backwards of norms. Cases run in turn, part by part; "fixed work" is a piece of Python that is
always the same: a host that is busy with other guests is slower in all of them.

A second table has definitions of several kernels: a chain of sums with a bias, cut after each (`segment_set`), and what each kernel after the first adds.
With the setting launch_graphs such a call launches a CUDA graph from the third time on, whose kernels get new arguments where addresses have changed:
"new addresses" has all inputs elsewhere in each call.

Each figure is the smallest of 25 rounds of 100 calls, with the GPU idle before each round, on tensors so small that kernels end quickly.
--profile also prints cProfile's view of 20,000 calls.
"""

from __future__ import annotations

import cProfile
import itertools
import pstats
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cases import BY_NAME
from measure import device_of, parser, synchronize, table, write

from weft import DataType, FusionDefinition

NAMES = ("softmax", "rms_norm", "silu_mul", "gelu_bias", "row_sum", "col_sum", "add_rms_norm", "layer_norm", "dropout_layer_norm")
SMOKE_NAMES = ("softmax", "dropout_layer_norm")
RESULTS = (1, 2, 3, 4, 5)
KERNELS, SMOKE_KERNELS = (1, 2, 3, 5, 10, 20), (1, 3)


@dataclass(frozen=True)
class Effort:
    """Where calls run, on tensors of which shape, how many calls a round has, and how many rounds there are."""

    device: str
    shape: tuple[int, int] = (64, 1024)
    calls: int = 100
    rounds: int = 25


@dataclass(frozen=True)
class Part:
    """What is timed: a call, how often in a round (0: as the effort says), and what some of `names`, the globals of its function, mean meanwhile."""

    call: Callable[[], object]
    names: dict[str, Any] | None = None
    others: tuple[tuple[str, Any], ...] = ()
    calls: int = 0


def in_turn(parts: dict[str, Part], effort: Effort) -> dict[str, float]:
    """Return microseconds of each, the smallest of the rounds. All run in turn in each round: the host's speed changes from one second to the next."""
    best = dict.fromkeys(parts, float("inf"))
    for _ in range(effort.rounds):
        for name, part in parts.items():
            names: dict[str, Any] = part.names if part.names is not None else {}
            calls = part.calls or effort.calls
            before = {key: names[key] for key, _ in part.others}
            names.update(part.others)
            synchronize(effort.device)
            start = time.perf_counter()
            for _ in range(calls):
                part.call()
            best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
            names.update(before)
    synchronize(effort.device)
    return best


def nothing(*arguments: object) -> int:
    """Stands for a launch, which succeeds."""
    return 0


def parts_of(execute: Callable[[list[Any]], Any], executor_of: Callable[[], Any], inputs: list[Any]) -> dict[str, Part]:
    """Return the parts of a warm call of a definition, whose executor this is, by name."""
    for _ in range(3):
        execute(inputs)
    executor = executor_of()
    caller = executor._caller
    (prepared,) = caller._prepared.values()
    run, through_executor = prepared.run, executor.execute
    arguments = [*inputs, *caller._pointers(inputs)]
    names = run.__globals__
    launch = "call0" if "call0" in names else "launch0"  # on a GPU a launch is written out in `run`, but for the call into the driver
    driver, seen = names[launch], []
    names[launch] = lambda *given: seen.append(given)
    kept = run(*arguments)  # until the launch has been measured alone: the addresses are those of these outputs
    names[launch] = driver

    def alone() -> object:
        return driver(*seen[0]), kept

    def whole() -> object:
        return run(*arguments)

    no_launch = (launch, nothing)
    return {
        "call": Part(lambda: execute(inputs)), "fec": Part(lambda: through_executor(inputs)), "run": Part(whole), "no launch": Part(whole, names, (no_launch,)),
        "neither": Part(whole, names, (no_launch, ("empty", lambda *given, **named: kept[0]))), "launch alone": Part(alone),
    }  # fmt: skip


Definition = tuple[Callable[[list[Any]], Any], Callable[[], Any], list[Any]]
"""execute, what gives its executor once there is one, and inputs."""


def definitions(effort: Effort, names: Sequence[str]) -> dict[str, Definition]:
    """Return the cases by name, of the backwards of norms, and of definitions that make one to five results of a tensor."""
    out: dict[str, Definition] = {}
    for name in names:
        fd = BY_NAME[name].definition(torch.bfloat16)
        out[name] = (fd.execute, lambda fd=fd: fd.fec, BY_NAME[name].inputs(*effort.shape, torch.bfloat16, effort.device))
    x = torch.randn(effort.shape, device=effort.device)
    for results in RESULTS:
        with FusionDefinition() as fd:
            t = fd.define_tensor(shape=[-1, -1], contiguity=True)
            for n in range(results):
                fd.add_output(fd.ops.add(t, fd.define_scalar(n + 0.5)))
        out[f"{results} results"] = (fd.execute, lambda fd=fd: fd.fec, [x])
    return out | {f"{name} backward": backward_of(name, effort) for name in ("rms_norm", "layer_norm")}


def backward_of(norm: str, effort: Effort) -> Definition:
    """Return the backward of a norm by itself."""
    weights = 1 if norm == "rms_norm" else 2
    with FusionDefinition() as fd:
        x, *given = [fd.define_tensor([-1] * rank, contiguity=True, dtype=DataType.BFloat16) for rank in (2, *[1] * weights)]
        fd.add_output(getattr(fd.ops, norm)(x, [-1], *given))
    plan = fd.autograd().plan((True,) * (1 + weights))
    tensors = [torch.randn(shape, device=effort.device).bfloat16() for shape in (effort.shape, *[effort.shape[1:]] * weights)]
    made = plan.executor.execute(tensors)
    saved = [tensors[i] if o is None else made[o] for i, o in zip(plan.saved_inputs, plan.saved_outputs)]  # type: ignore[index]
    step = plan.plain
    scalars = [plan.read_scalar(s, saved, None) for s in step.scalars]
    return lambda given: step.executor.execute(given), lambda: step.executor, [*(saved[i] for i in step.used), *scalars, torch.randn_like(tensors[0])]


def fixed_work() -> None:
    """Work that is always the same: how fast the host is now."""
    for number in range(50):
        str(number)


def stages(effort: Effort, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each case: the parts of its warm call in microseconds, of all cases in turn."""
    cases = definitions(effort, names)
    measured = {(name, part): timed for name, given in cases.items() for part, timed in parts_of(*given).items()}
    keys = {f"{name}|{part}": (name, part) for name, part in measured}
    found = in_turn({key: measured[which] for key, which in keys.items()} | {"fixed work": Part(fixed_work)}, effort)
    rows: list[dict[str, Any]] = []
    for name, (execute, _, inputs) in cases.items():
        us = {part: found[key] for key, (case, part) in keys.items() if case == name}
        row: dict[str, Any] = {
            "case": name, "inputs": len(inputs), "outputs": len(execute(inputs)), "call": us["call"], "method": us["call"] - us["fec"],
            "find": us["fec"] - us["run"], "allocate": us["no launch"] - us["neither"], "launch": us["run"] - us["no launch"], "rest": us["neither"],
            "launch alone": us["launch alone"], "fixed work": found["fixed work"],
        }  # fmt: skip
        rows.append({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()})
    return rows


def chain(kernels: int) -> FusionDefinition:
    """Return a definition of so many kernels, each of which adds one bias more to a matrix."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        for _ in range(kernels):
            bias = fd.define_tensor(shape=[-1], contiguity=True)
            x = fd.ops.segment_set(fd.ops.relu(fd.ops.add(x, fd.ops.broadcast(bias, [True, False]))))
        fd.add_output(x)
    return fd


def several(counts: Sequence[int], effort: Effort) -> list[dict[str, Any]]:
    """Return a row for each number of kernels: the time of a warm call in microseconds, and of its function alone."""
    parts: dict[str, Part] = {}
    rows: list[dict[str, Any]] = []
    for kernels in counts:
        calls = max(1, effort.calls // kernels)
        inputs = [torch.randn(effort.shape, device=effort.device), *(torch.randn(effort.shape[1], device=effort.device) for _ in range(kernels))]
        fd = chain(kernels)
        for _ in range(3):
            fd.execute(inputs)
        (prepared,) = fd.fec._caller._prepared.values()
        arguments = [*inputs, *fd.fec._caller._pointers(inputs)]
        others = [t.clone() for t in inputs]
        turns = itertools.cycle([arguments, [*others, *fd.fec._caller._pointers(others)]])
        run = prepared.run
        parts[f"{kernels} call"] = Part(lambda fd=fd, inputs=inputs: fd.execute(inputs), calls=calls)
        parts[f"{kernels} run"] = Part(lambda run=run, arguments=arguments: run(*arguments), calls=calls)
        parts[f"{kernels} run, new addresses"] = Part(lambda run=run, turns=turns: run(*next(turns)), calls=calls)
        rows.append({"kernels": len(prepared.plans)})
    found = in_turn(parts, effort)
    for kernels, row in zip(counts, rows):
        row.update({name: found[f"{kernels} {name}"] for name in ("call", "run", "run, new addresses")})
    return rows


def further(rows: list[dict[str, Any]]) -> None:
    """Add what each kernel after the first costs, the finding of more inputs left out."""
    for row in rows:
        row["each further kernel"] = (row["run"] - rows[0]["run"]) / max(1, row["kernels"] - 1)
        row["each, new addresses"] = (row["run, new addresses"] - rows[0]["run"]) / max(1, row["kernels"] - 1)
        row.update({key: round(value, 2) for key, value in row.items() if isinstance(value, float)})


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--profile", default="", help="a case to run under cProfile as well")
    a = arguments.parse_args()
    device = device_of(a)
    effort = Effort(device, (5, 72), calls=3, rounds=1) if a.cpu_smoke else Effort(device)
    rows = stages(effort, SMOKE_NAMES if a.cpu_smoke else NAMES)
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    chains = several(SMOKE_KERNELS if a.cpu_smoke else KERNELS, effort)
    further(chains)
    print(table(list(chains[0]), [list(row.values()) for row in chains]))
    if a.profile:
        inputs, fd = BY_NAME[a.profile].inputs(*effort.shape, torch.bfloat16, device), BY_NAME[a.profile].definition(torch.bfloat16)
        fd.execute(inputs)
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(100 * effort.calls):
            fd.execute(inputs)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(12)
    write(a, __file__, device, rows, shape=list(effort.shape), several=chains, rounds=effort.rounds, calls=effort.calls)


if __name__ == "__main__":
    main()
