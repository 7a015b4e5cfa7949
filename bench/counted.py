"""Times of what `by_count.py` and `moved.py` count: few long rows, running sums, spills, torch functions forward and backward. Needs a GPU.

    PYTHONPATH=. python bench/counted.py OUT.json [--only TEXT]      each case: microseconds, the fraction of a copy of the same bytes
    PYTHONPATH=. python bench/counted.py --check [--share 0/8]       compare each definition's results with float64 instead, so many processes at once

Run it with the packages of two commits (PYTHONPATH) to compare them. Times of torch functions are sums of the profiler's times of all kernels, so the host
does not count, with Inductor beside weft. Read first: `SHAPES`, `of_function`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import by_count
import moved
import torch
from by_count import BF16, FLOAT, ODD
from measure import FLUSHED_BYTES, KernelTime, copy_us, kernel_times, median_us, moved_bytes, write

from weft import DataType, FusionDefinition
from weft.frontend.backend import backend as weft_backend

LONG = [(1, 1 << 24), (2, 1 << 23), (5, 3000001), (16, 1 << 20), (65, 131072)]
TALL = [(1 << 22, 4), (1 << 24, 1), (300000, 40), (16384, 64)]
WIDE = [(4096, 4099), (8192, 4096), (1000, 8193), (333, 20001)]
SHAPES: dict[str, list[tuple[int, int]]] = {
    "add_layer_norm": LONG + WIDE, "gated_rms_norm": LONG + WIDE, "biased_softmax": LONG + WIDE, "standardized_columns": TALL,
    "masked_mean": [*LONG, (4096, 4096)],
    "extent_of_rows": LONG, "column_sums_of_columns": ODD + TALL, "layer_norm_backward": [*WIDE, (65536, 321), (3001, 2999), (120, 100003)],
    "running_sums": [*LONG, (8192, 4096)], "running_sums_down": [*TALL, (8192, 4096)],
}  # fmt: skip
"""Definitions of `by_count.py`, and where to time them."""


def _defined(name: str, dtype: DataType) -> tuple[FusionDefinition, by_count.Tensors]:
    with FusionDefinition() as fd:
        tensors = by_count.Tensors(fd, dtype)
        by_count.DEFINITIONS[name](tensors)
    return fd, tensors


def _inputs(tensors: by_count.Tensors, shape: tuple[int, int]) -> list[torch.Tensor]:
    made = [torch.empty(t.shape, dtype=t.dtype, device="cuda").normal_() for t in tensors.shaped(*shape)]
    return [t.abs() + 0.5 if kind == "row" else t for t, kind in zip(made, tensors.kinds)]


def cases() -> Iterator[tuple[str, DataType, tuple[int, int]]]:
    for name, shapes in SHAPES.items():
        for dtype in (BF16, FLOAT):
            for shape in shapes:
                yield name, dtype, shape


def of_definition(name: str, dtype: DataType, shape: tuple[int, int]) -> dict[str, Any]:
    """Return a row: the median time of a call, L2 flushed before each, and that of a copy of the same bytes over it."""
    fd, tensors = _defined(name, dtype)
    given = _inputs(tensors, shape)
    bytes_ = moved_bytes(given, fd.execute(given))
    us = median_us(lambda: fd.execute(given), "cuda", 25)
    return {"case": f"{name} {dtype.name} {shape[0]}x{shape[1]}", "us": us, "of_a_copy": copy_us(bytes_, "cuda") / us, "bytes": bytes_}


def check(share: int, shares: int, only: str) -> None:
    """Compare each definition's results with an evaluation in float64."""
    for place, (name, dtype, shape) in enumerate(cases()):
        if place % shares != share or only not in name:
            continue
        fd, tensors = _defined(name, dtype)
        try:
            fd.validate(_inputs(tensors, shape))
            print("right", name, dtype.name, shape, flush=True)
        except Exception as error:  # noqa: BLE001  (the next case is to run, too)
            print("WRONG", name, dtype.name, shape, type(error).__name__, str(error)[:600], flush=True)
        del fd
        torch.cuda.empty_cache()


def kernel_us(call: Callable[[], Any], repeats: int = 12) -> tuple[float, list[KernelTime]]:
    """Return the microseconds that all kernels of a call take, and the kernels: medians over calls, L2 flushed before each."""
    for _ in range(4):
        call()
    kernels = kernel_times(call, repeats, flushed_bytes=FLUSHED_BYTES)
    return sum(kernel.us for kernel in kernels), kernels


def of_function(function: moved.Function, shapes: moved.Shapes, backend: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a torch function, forward and backward, compiled by a backend."""
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # the backward runs more than once
    compiled = torch.compile(function, backend=weft_backend if backend == "weft" else backend)
    given = [torch.randn(shape, device="cuda", dtype=moved.BF16) for shape in shapes]
    with torch.no_grad():
        out = compiled(*given)
        forward = kernel_us(lambda: compiled(*given))
    leaves = [t.requires_grad_() for t in given[: len(given) - moved.TABLES.get(function, 0)]]
    result = compiled(*given)
    ones = torch.randn_like(result)
    gradients = torch.autograd.grad(result, leaves, ones, retain_graph=True)
    backward = kernel_us(lambda: torch.autograd.grad(result, leaves, ones, retain_graph=True))
    for way, (us, kernels), tensors in (("forward", forward, [*given, out]), ("backward", backward, [*given, out, *gradients])):
        source = torch.empty(sum(t.nbytes for t in tensors) // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copied_us, _ = kernel_us(lambda: target.copy_(source))  # noqa: B023
        names = {kernel.name[:60]: round(kernel.us, 1) for kernel in kernels}
        count = sum(kernel.count for kernel in kernels)
        yield {"case": f"{function.__name__}, {way}, {backend}", "us": us, "of_a_copy": copied_us / us, "kernels": count, "us_of": names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--functions", action="store_true", help="torch functions only")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--share", default="0/1", help="of --check: the first of so many processes is 0/8")
    parser.add_argument("--backends", default="weft,inductor", help="of torch functions")
    parser.set_defaults(cpu_smoke=False)
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.check:
        share, shares = map(int, given.share.split("/"))
        check(share, shares, given.only)
        return
    rows = []
    for name, dtype, shape in cases():
        if given.only in name and not given.functions:
            rows.append(row := of_definition(name, dtype, shape))
            print(f"{row['case']:44s} {row['us']:9.1f} us {row['of_a_copy']:.2f}", flush=True)
            torch.cuda.empty_cache()
    for function, shapes in moved.FUNCTIONS.items():
        for backend in given.backends.split(",") if given.only in function.__name__ else ():
            for row in of_function(function, shapes, backend):
                rows.append(row)
                print(f"{row['case']:44s} {row['us']:9.1f} us {row['of_a_copy']:.2f} in {row['kernels']} kernels: {row['us_of']}", flush=True)
            torch.cuda.empty_cache()
    if given.out:
        write(given, __file__, "cuda", rows)


if __name__ == "__main__":
    main()
