"""How long a definition takes before the C++ compiler, stage by stage, and how that grows with its size.

    python bench/compile_time.py [OUT.json] [--kinds chain,norms] [--sizes 1000,2000] [--repeat 3]

Each row is the best of `--repeat` runs, in milliseconds of the processor. definition: building the graph. key: the structural key.
template: copies of the graph, the plan of outputs. analysis: equal sizes, and what each scheduler finds without sizes. choice: parameters for
these sizes. schedule: the transforms, on a copy. lowering: kernel IR. text: CUDA. growth: the exponent between a size and the one above it, of the sum;
1 is linear. Nothing here needs a GPU or a C++ compiler.
Read first: `DEFINITIONS`, `stages`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Callable
from typing import Any

from weft import DataType, FusionDefinition, compiler
from weft.arch import arch_by_name
from weft.codegen.cuda import generate
from weft.errors import WeftError
from weft.ir.structure import structural_key
from weft.ir.values import TensorView
from weft.lower.pipeline import lower
from weft.runtime import collector
from weft.runtime.runtimes import SharedDefinition
from weft.segment.partition import kernel_step

ROWS, COLUMNS, PART_ELEMS = 256, 1024, 512
STAGES = ("definition", "key", "template", "analysis", "choice", "schedule", "lowering", "text")


# ---------------------------------------------------------------- definitions
def matrix(fd: FusionDefinition) -> Any:
    return fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)


def chain(fd: FusionDefinition, count: int) -> None:
    """A chain of `count` pointwise ops: each reads the result before it."""
    x = matrix(fd)
    for n in range(count):
        x = (fd.ops.sin, fd.ops.neg, fd.ops.abs)[n % 3](x)
    fd.add_output(x)


def skips(fd: FusionDefinition, count: int) -> None:
    """`count` pointwise ops that each read the results one and seven places before them, and every tenth the first."""
    values = [matrix(fd)]
    for n in range(count):
        other = values[0] if n % 10 == 9 else values[max(0, len(values) - 8)]
        values.append((fd.ops.add, fd.ops.mul, fd.ops.sub)[n % 3](values[-1], other))
    fd.add_output(values[-1])


def scalars(fd: FusionDefinition, count: int) -> None:
    """`count` pointwise ops of a tensor and a scalar that is computed from the one before it."""
    x, s = matrix(fd), fd.define_scalar(dtype=DataType.Double)
    for n in range(count // 2):
        s = fd.ops.mul(s, 1.5) if n % 2 else fd.ops.add(s, 0.5)
        x = fd.ops.mul(x, s)
    fd.add_output(x)


def inputs(fd: FusionDefinition, count: int) -> None:
    """The sum of `count` inputs."""
    x = matrix(fd)
    for _ in range(count - 1):
        x = fd.ops.add(x, matrix(fd))
    fd.add_output(x)


def outputs(fd: FusionDefinition, count: int) -> None:
    """`count` outputs, each computed from the one before it."""
    x = matrix(fd)
    for _ in range(count):
        x = fd.ops.sin(x)
        fd.add_output(x)


def fan(fd: FusionDefinition, count: int) -> None:
    """`count` outputs of one input."""
    x = matrix(fd)
    for n in range(count):
        fd.add_output(fd.ops.mul(x, float(n + 2)))


def norm(fd: FusionDefinition, x: Any) -> Any:
    """RMS norm of rows."""
    mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(x, x), dims=[1], keepdim=True), 1.0 / COLUMNS)
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, 1e-6)))


def norms(fd: FusionDefinition, count: int) -> None:
    """`count` RMS norms of rows, each of the result of the one before it."""
    x = matrix(fd)
    for _ in range(count):
        x = norm(fd, x)
    fd.add_output(x)


def sums(fd: FusionDefinition, count: int) -> None:
    """`count` row sums of one input."""
    x = matrix(fd)
    for n in range(count):
        fd.add_output(fd.ops.sum(fd.ops.mul(x, float(n + 2)), dims=[1]))


def parts(fd: FusionDefinition, count: int) -> None:
    """`count` parts of rows next to each other, each with numbers of its own."""
    x = fd.define_tensor(shape=[ROWS, PART_ELEMS * count], dtype=DataType.Float)
    slices = [fd.ops.slice(x, [0, n * PART_ELEMS], [ROWS, (n + 1) * PART_ELEMS]) for n in range(count)]
    fd.add_output(fd.ops.cat([fd.ops.sin(fd.ops.exp(fd.ops.mul(part, float(n + 2)))) for n, part in enumerate(slices)], 1))


DEFINITIONS: dict[str, tuple[Callable[[FusionDefinition, int], None], tuple[int, ...]]] = {
    "chain": (chain, (100, 400, 1000, 2000, 3000)),
    "skips": (skips, (400, 1000, 2000, 3000)),
    "scalars": (scalars, (400, 1000, 2000, 3000)),
    "inputs": (inputs, (75, 150, 300)),
    "outputs": (outputs, (75, 150, 300)),
    "fan": (fan, (75, 150, 300)),
    "norms": (norms, (1, 25, 50, 100)),
    "sums": (sums, (25, 50, 100)),
    "parts": (parts, (12, 25, 50, 100)),
}


# ---------------------------------------------------------------- measuring
@collector.paused
def stages(define: Callable[[FusionDefinition, int], None], size: int) -> dict[str, float]:
    """Return the processor's seconds of each stage. Errors: NoScheduler."""
    clock = time.process_time
    marks = [clock()]
    with FusionDefinition() as fd:
        define(fd, size)
    marks.append(clock())
    structural_key(fd.fusion)
    marks.append(clock())
    fusion = SharedDefinition(fd.fusion).base.plans.fusion
    step = kernel_step(fusion, fusion.tensor_exprs(), fusion.outputs()).fusion
    marks.append(clock())
    prepared = compiler.prepare(step)
    for scheduler in compiler.SCHEDULERS:
        prepared.analysis(scheduler)
    marks.append(clock())
    env: dict[Any, int] = {}
    for tensor in step.inputs():
        if isinstance(tensor, TensorView):
            env |= zip((axis.sym for axis in tensor.get_logical_domain()), (ROWS, COLUMNS))
    proposal = compiler.propose(step, env, {}, arch_by_name("H100"))
    marks.append(clock())
    scheduled, result = compiler.schedule_clone(step, proposal)
    marks.append(clock())
    fixed = {"static_block": dict(result.static_block), "cluster_blocks": result.cluster_blocks, "peel": result.peel}
    kernel = lower(scheduled, name="kernel", index_type=DataType.Int32, **fixed)
    marks.append(clock())
    generate(scheduled, kernel, result.max_registers)
    marks.append(clock())
    return {name: after - before for name, before, after in zip(STAGES, marks, marks[1:])}


def measured(kind: str, size: int, repeat: int) -> dict[str, float]:
    """Return the best of each stage in seconds."""
    define = DEFINITIONS[kind][0]
    best: dict[str, float] = {}
    for _ in range(repeat):
        gc.collect()
        for name, seconds in stages(define, size).items():
            best[name] = min(seconds, best.get(name, math.inf))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--kinds", default=",".join(DEFINITIONS))
    parser.add_argument("--sizes", default="")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    print(f"{'kind':<9}{'size':>6}" + "".join(f"{name:>11}" for name in (*STAGES, "all", "growth")), flush=True)
    for kind in arguments.kinds.split(","):
        sizes = tuple(map(int, arguments.sizes.split(","))) if arguments.sizes else DEFINITIONS[kind][1]
        before: tuple[int, float] | None = None
        for size in sizes:
            try:
                spent = measured(kind, size, arguments.repeat)
            except WeftError as error:
                print(f"{kind:<9}{size:>6}  {str(error).splitlines()[0]}", flush=True)
                continue
            whole = sum(spent.values())
            growth = math.log(whole / before[1]) / math.log(size / before[0]) if before else math.nan
            rows.append({"kind": kind, "size": size, **{f"{n}_ms": round(1e3 * s, 2) for n, s in spent.items()}, "all_ms": round(1e3 * whole, 2)})
            print(f"{kind:<9}{size:>6}" + "".join(f"{1e3 * spent[n]:>11.1f}" for n in STAGES) + f"{1e3 * whole:>11.1f}{growth:>11.2f}", flush=True)
            before = (size, whole)
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
