"""Where the microseconds of a warm call go on the host.

    python bench/profile_warm.py [OUT.json] [--profile NAME]

A warm call is two written functions: `execute` finds what was prepared for such values, `run` allocates, launches and returns (`weft/runtime/warm_path.py`).
Parts are switched off one after the other, and the differences are what they cost:

    method   fd.execute over fec.execute
    find     unpacking, addresses, guards of the tensors: fec.execute over run
    launch   run over run without the call into the driver; `launch alone` is that call by itself
    allocate one allocation of the outputs each; rest: what is left of run (stream, random state, arguments of the launch, the list)

A second table has definitions of several kernels: a chain of sums with a bias, cut after each (`segment_set`), and what each kernel after the first adds.
With the setting launch_graphs such a call launches a CUDA graph from the third time on, whose kernels get new arguments where addresses have changed:
"new addresses" has all inputs elsewhere in each call.

Each figure is the smallest of 9 rounds of 200 calls, with the GPU idle before each round, on tensors so small that kernels end quickly.
--profile also prints cProfile's view of 20,000 calls.
"""

from __future__ import annotations

import cProfile
import itertools
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from cases import BY_NAME
from measure import device_of, parser, synchronize, table, write

from weft import FusionDefinition

NAMES = ("softmax", "rms_norm", "silu_mul", "gelu_bias", "row_sum", "col_sum", "add_rms_norm", "layer_norm", "dropout_layer_norm")
SMOKE_NAMES = ("softmax", "dropout_layer_norm")
KERNELS, SMOKE_KERNELS = (1, 2, 3, 5, 10, 20), (1, 3)


@dataclass(frozen=True)
class Effort:
    """Where calls run, on tensors of which shape, how many calls a round has, and how many rounds there are."""

    device: str
    shape: tuple[int, int] = (64, 1024)
    calls: int = 200
    rounds: int = 9


def smallest_us(call: Callable[[], object], effort: Effort, calls: int = 0) -> float:
    """Return the time of one call, smallest of several rounds that start with an idle GPU. calls: of a round, 0 for the effort's."""
    best, device, calls = float("inf"), effort.device, calls or effort.calls
    for _ in range(effort.rounds):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - start)
    synchronize(device)
    return best / calls * 1e6


def nothing(*arguments: object) -> int:
    """Stands for a launch, which succeeds."""
    return 0


def stages(name: str, effort: Effort) -> dict[str, Any]:
    """Return the parts of a warm call in microseconds."""
    inputs = BY_NAME[name].inputs(*effort.shape, torch.bfloat16, effort.device)
    fd = BY_NAME[name].definition(torch.bfloat16)
    for _ in range(3):
        fd.execute(inputs)
    caller = fd.fec._caller
    (prepared,) = caller._prepared.values()
    run, execute = prepared.run, fd.fec.execute
    arguments = [*inputs, *caller._pointers(inputs)]
    names = run.__globals__
    row: dict[str, Any] = {"case": name, "inputs": len(inputs), "outputs": len(fd.fusion.outputs())}
    row["call"] = smallest_us(lambda: fd.execute(inputs), effort)
    through_fec = smallest_us(lambda: execute(inputs), effort)
    whole = smallest_us(lambda: run(*arguments), effort)
    call = "call0" if "call0" in names else "launch0"  # on a GPU a launch is written out in `run`, but for the call into the driver
    driver, allocate = names[call], names["empty"]
    names[call] = nothing
    without_driver = smallest_us(lambda: run(*arguments), effort)
    kept = run(*arguments)
    names["empty"] = lambda *given, **named: kept[0]
    neither = smallest_us(lambda: run(*arguments), effort)
    names["empty"] = allocate
    seen: list[Any] = []
    names[call] = lambda *given: seen.append(given)
    kept = run(*arguments)  # until the launch has been measured alone: the addresses are those of these outputs
    names[call] = driver
    row |= {
        "method": row["call"] - through_fec, "find": through_fec - whole, "allocate": without_driver - neither, "launch": whole - without_driver,
        "rest": neither, "launch alone": smallest_us(lambda: driver(*seen[0]), effort),
    }  # fmt: skip
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}


def chain(kernels: int) -> FusionDefinition:
    """Return a definition of so many kernels, each of which adds one bias more to a matrix."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        for _ in range(kernels):
            bias = fd.define_tensor(shape=[-1], contiguity=True)
            x = fd.ops.segment_set(fd.ops.relu(fd.ops.add(x, fd.ops.broadcast(bias, [True, False]))))
        fd.add_output(x)
    return fd


def several(kernels: int, effort: Effort) -> dict[str, Any]:
    """Return the time of a warm call of several kernels in microseconds, and of its function alone."""
    device, calls = effort.device, max(1, effort.calls // kernels)
    inputs = [torch.randn(effort.shape, device=device), *(torch.randn(effort.shape[1], device=device) for _ in range(kernels))]
    fd = chain(kernels)
    for _ in range(3):
        fd.execute(inputs)
    (prepared,) = fd.fec._caller._prepared.values()
    arguments = [*inputs, *fd.fec._caller._pointers(inputs)]
    row: dict[str, Any] = {"kernels": len(prepared.plans), "call": smallest_us(lambda: fd.execute(inputs), effort, calls)}
    row["run"] = smallest_us(lambda: prepared.run(*arguments), effort, calls)
    others = [t.clone() for t in inputs]
    turns = itertools.cycle([arguments, [*others, *fd.fec._caller._pointers(others)]])
    row["run, new addresses"] = smallest_us(lambda: prepared.run(*next(turns)), effort, calls)
    return row


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
    rows = [stages(name, effort) for name in (SMOKE_NAMES if a.cpu_smoke else NAMES)]
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    chains = [several(kernels, effort) for kernels in (SMOKE_KERNELS if a.cpu_smoke else KERNELS)]
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
    write(a, __file__, device, rows, shape=list(effort.shape), several=chains)


if __name__ == "__main__":
    main()
