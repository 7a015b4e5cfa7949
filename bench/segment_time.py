"""How long the search for segments takes, by the number of ops: definitions that are cut into many kernels, or into few large ones. Needs no GPU.

    python bench/segment_time.py [--ops 750,1500,3000] [--only NAME]

Seconds of processor time until the plan is made: the normal form, the search, and what schedulers are asked on the way (also counted, and timed alone).
Python's garbage collector waits meanwhile, as in a first call.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import table

from weft import DataType, FusionDefinition, compiler
from weft.options import current
from weft.runtime.collector import paused
from weft.runtime.fec import FusionExecutorCache

ROWS, COLUMNS = 64, 128


def tensor(fd: FusionDefinition, *shape: int) -> Any:
    return fd.define_tensor(shape=list(shape), contiguity=True, dtype=DataType.Float)


def spread(fd: FusionDefinition, kind: str, x: Any, axis: int) -> Any:
    """A fold over an axis, spread over it again."""
    return fd.ops.broadcast(getattr(fd.ops, kind)(x, [axis]), [axis == 0, axis == 1])


def rows_and_columns(fd: FusionDefinition, ops: int) -> None:
    """Normalizations by rows and by columns in turn: a cut after each."""
    x = tensor(fd, -1, -1)
    for _ in range(ops // 6):
        x = fd.ops.sub(x, spread(fd, "sum", x, 1))
        x = fd.ops.sub(x, spread(fd, "max", x, 0))
    fd.add_output(x)


def layers(fd: FusionDefinition, ops: int) -> None:
    """Norm, product, SiLU, product, residual."""
    x, weight, norm = tensor(fd, -1, COLUMNS), tensor(fd, COLUMNS, COLUMNS), tensor(fd, COLUMNS)
    for _ in range(ops // 14):
        scale = fd.ops.rsqrt(fd.ops.add(spread(fd, "sum", fd.ops.mul(x, x), 1), 1e-6))
        y = fd.ops.matmul(fd.ops.mul(fd.ops.mul(x, scale), fd.ops.broadcast(norm, [True, False])), weight)
        x = fd.ops.add(x, fd.ops.matmul(fd.ops.mul(y, fd.ops.sigmoid(y)), weight))
    fd.add_output(x)


def heads(fd: FusionDefinition, ops: int) -> None:
    """Many pointwise outputs of one input."""
    x = tensor(fd, -1, -1)
    for number in range(ops // 3):
        fd.add_output(fd.ops.tanh(fd.ops.mul(fd.ops.exp(x), float(number + 2))))


def sums(fd: FusionDefinition, ops: int) -> None:
    """Many sums of one input, along rows and columns in turn."""
    x = tensor(fd, -1, -1)
    for number in range(ops // 3):
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.exp(x), float(number + 2)), [number % 2]))


def tangle(fd: FusionDefinition, ops: int) -> None:
    """Sums and differences of what was computed shortly before, folded along rows and columns at random."""
    rng, values = random.Random(0), [tensor(fd, -1, -1)]
    for number in range(ops * 10 // 13):
        a, b = rng.choice(values[-20:]), rng.choice(values[-20:])
        values.append(fd.ops.add(a, b) if number % 3 else fd.ops.sub(a, spread(fd, "sum", b, number % 2)))
    fd.add_output(values[-1])


CASES: dict[str, Callable[[FusionDefinition, int], None]] = {f.__name__: f for f in (rows_and_columns, layers, heads, sums, tangle)}


def measured(name: str, ops: int) -> dict[str, Any]:
    with FusionDefinition() as fd:
        CASES[name](fd, ops)
    caller = FusionExecutorCache(fd.fusion)._caller
    shapes = [(ROWS, COLUMNS), (COLUMNS, COLUMNS), (COLUMNS,)][: len(fd.fusion.inputs())]
    inputs = [torch.zeros(shape) for shape in shapes]
    asked, plain = [0.0, 0], compiler.declines

    def declines(*arguments: Any) -> Any:
        start = time.process_time()
        try:
            return plain(*arguments)
        finally:
            asked[0] += time.process_time() - start
            asked[1] += 1

    compiler.declines = declines
    start = time.process_time()
    try:
        sizes, _ = paused(caller.sizes)(inputs, None, current())
    finally:
        compiler.declines = plain
    spent = time.process_time() - start
    row = {"case": name, "ops": len(fd.fusion.exprs()), "seconds": round(spent, 2), "of these schedulers": round(asked[0], 2), "asked": asked[1]}
    return {**row, "kernels": len(sizes.kernels), "steps": len(sizes.plan.steps)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ops", default="750,1500,3000")
    arguments.add_argument("--only", default="")
    a = arguments.parse_args()
    found = [measured(name, ops) for name in CASES if a.only in name for ops in map(int, a.ops.split(","))]
    print(table(list(found[0]), [list(row.values()) for row in found]))


if __name__ == "__main__":
    main()
