"""Measures what a warm call costs on the host. Not a test: run it by hand.

    python tests/runtime/warm_path_cost.py            with a launch that does nothing, on any machine
    python tests/runtime/warm_path_cost.py --device   with real launches, on a GPU
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft import DataType, FusionDefinition

REPEAT, CALLS = 7, 20000


def definition(inputs: int, outputs: int, *, scalar: bool = False, random: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(inputs)]
        total = tensors[0]
        for tensor in tensors[1:]:
            total = fd.ops.add(total, tensor)
        if scalar:
            total = fd.ops.mul(total, fd.define_scalar(DataType.Double))
        if random:
            total = fd.ops.add(total, fd.ops.uniform(0.0, 1.0, total.shape(), dtype=DataType.Float))
        for number in range(outputs):
            fd.add_output(fd.ops.add(total, float(number + 1)))
    return fd


def nothing(pointers: Sequence[int], stream: int, scalars: Sequence[Any] = ()) -> None:
    """Stands for the driver."""


def us(function: Callable[[], Any]) -> float:
    return min(timeit.repeat(function, number=CALLS, repeat=REPEAT)) / CALLS * 1e6


def measure(name: str, fd: FusionDefinition, values: list[Any], *, device: bool) -> None:
    fd.execute(values)
    fd.execute(values)
    caller = fd.fec._caller
    if not device:
        for prepared in caller._prepared.values():
            prepared.run.__globals__["launch0"] = nothing
    execute = fd.fec.execute
    call = us(lambda: execute(values))
    through = us(lambda: fd.execute(values))
    caller._last[0] = (_never, *caller._last[0][1:])
    looked_up = us(lambda: _without_guard(caller, execute, values))
    if device:
        torch.cuda.synchronize()
    print(f"{name:<38} fec.execute {call:5.2f} us   fd.execute {through:5.2f} us   by lookup {looked_up:5.2f} us")


def _without_guard(caller: Any, execute: Any, values: list[Any]) -> Any:
    caller._last[0] = (_never, *caller._last[0][1:])
    return execute(values)


def _never(*tensors: Any) -> bool:
    return False


def main() -> None:
    device = "--device" in sys.argv
    where = "cuda" if device else "cpu"

    def tensors(n: int, shape: tuple[int, int] = (4, 32)) -> list[Any]:
        return [torch.randn(shape, device=where) for _ in range(n)]

    measure("1 input, 1 output", definition(1, 1), tensors(1), device=device)
    measure("2 inputs, 1 output", definition(2, 1), tensors(2), device=device)
    measure("2 inputs, 2 outputs", definition(2, 2), tensors(2), device=device)
    measure("8 inputs, 1 output", definition(8, 1), tensors(8), device=device)
    measure("1 input and a scalar, 1 output", definition(1, 1, scalar=True), [*tensors(1), 2.0], device=device)
    if device:
        measure("1 input and random numbers, 1 output", definition(1, 1, random=True), tensors(1), device=device)
    x = torch.randn(4, 32, device=where)
    print(f"{'for comparison: torch.add':<38} {us(lambda: torch.add(x, 1.0)):5.2f} us")


if __name__ == "__main__":
    main()
