"""Losses over words through torch.compile, with weft and with Inductor, and the gradients of tables of words in torch. Needs a GPU.

    PYTHONPATH=. python bench/losses.py            cross entropy of 8192 rows of bf16 logits: rows of 50,257 words in steps of 50,264, without gaps, and others
    PYTHONPATH=. python bench/losses.py --tables   gradients of tables: torch's sums in one order beside atomic sums in float32 and in bf16

Prints a line of JSON each: milliseconds (`do_bench`, median), kernels with their microseconds, those of a copy of as many bytes, and errors against float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from measure import kernel_times

from weft.frontend.backend import backend

ROWS = 8192
WORDS = ((50257, 50264), (50257, 50257), (50264, 50264), (32000, 32000))
"""Words, and elements from one row to the next."""
TABLES = ((8192, 1024, 50257), (8192, 2048, 32000), (1024, 1024, 1024), (2048, 256, 1000), (16384, 2048, 8192), (128, 64, 100))
"""Rows that are added, their width, rows of the table."""


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), target.view(-1))


def median_ms(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return round(do_bench(call, warmup=15, rep=60, return_mode="median"), 4)


def kernels(call: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """Names of kernels of a call, how often each runs, and microseconds of one."""
    rows = [(kernel.name[:90], kernel.count, round(kernel.us / kernel.count, 1)) for kernel in kernel_times(call, 5)]
    return sorted(rows, key=lambda row: -row[2])


def loss_row(words: int, stride: int, which: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    whole = torch.randn(ROWS, stride, device="cuda", dtype=torch.bfloat16)
    logits, target = whole[:, :words].requires_grad_(), torch.randint(0, words, (ROWS,), device="cuda")
    compiled = torch.compile(loss, backend=which)

    def step() -> torch.Tensor:
        logits.grad = None
        out = compiled(logits, target)
        out.backward()
        return out

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return compiled(logits, target)

    out = step().detach().double()
    exact = sum(F.cross_entropy(part.double(), t, reduction="sum") for part, t in zip(whole[:, :words].split(512), target.split(512))) / ROWS
    some = whole[:256, :words].double().requires_grad_()
    (F.cross_entropy(some, target[:256], reduction="sum") / ROWS).backward()
    errors = {"loss_error": float(abs(out - exact)), "gradient_error": float((logits.grad[:256].double() - some.grad).norm() / some.grad.norm())}
    for _ in range(3):
        step()
        forward()
    times = {"step_ms": median_ms(step), "forward_ms": median_ms(forward), "copy_ms": median_ms(whole.clone)}
    return {**errors, **times, "step_kernels": kernels(step), "forward_kernels": kernels(forward)}


def table_row(rows: int, width: int, words: int) -> dict[str, Any]:
    """Of each way: milliseconds of a call, its kernels, their microseconds, and the error."""
    torch.manual_seed(0)
    index, gradient = torch.randint(0, words, (rows,), device="cuda"), torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    zeros = {"device": "cuda", "dtype": torch.bfloat16}
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "embedding_dense_backward": lambda: torch.ops.aten.embedding_dense_backward(gradient, index, words, -1, False),
        "index_put": lambda: torch.zeros(words, width, **zeros).index_put_((index,), gradient, accumulate=True),
        "atomic, float32": lambda: torch.zeros(words, width, device="cuda").index_add_(0, index, gradient.float()).bfloat16(),
        "atomic, bfloat16": lambda: torch.zeros(words, width, **zeros).index_add_(0, index, gradient),
    }
    exact = torch.zeros(words, width, device="cuda", dtype=torch.float64).index_add_(0, index, gradient.double())
    found = {}
    for name, call in ways.items():
        parts = kernels(call)
        error = float((call().double() - exact).norm() / exact.norm())
        found[name] = [median_ms(call), round(sum(n for _, n, _ in parts)), round(sum(n * us for _, n, us in parts), 1), f"{error:.1e}"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", action="store_true")
    if parser.parse_args().tables:
        for rows, width, words in TABLES:
            print(json.dumps({"rows": rows, "width": width, "words": words} | table_row(rows, width, words)), flush=True)
        return
    for words, stride in WORDS:
        for name, which in (("weft", backend), ("inductor", "inductor")):
            print(json.dumps({"words": words, "stride": stride, "backend": name} | loss_row(words, stride, which)), flush=True)


if __name__ == "__main__":
    main()
