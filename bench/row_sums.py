"""Gradients of embeddings, for indices of several kinds: all kernels of weft beside those of Inductor, and the error against float64.

    PYTHONPATH=. python bench/row_sums.py [OUT.json] [--only weft]     a GPU

Microseconds by the profiler, without flushing L2. Zipf: row k is named about 1 / k times as often as row 1, as words are. Read first: `CASES`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from measure import kernel_times, write

from weft.frontend.backend import backend as weft_backend


def _zipf(rows: int, count: int) -> torch.Tensor:
    return torch.multinomial(1 / torch.arange(1, rows + 1, device="cuda").float(), count, replacement=True)


def _any(rows: int, count: int) -> torch.Tensor:
    return torch.randint(0, rows, (count,), device="cuda")


BF, F32 = torch.bfloat16, torch.float32
Index = Callable[[int], torch.Tensor]
CASES: dict[str, tuple[int, int, Index, torch.dtype]] = {
    "32768 of 16384x2048, any": (16384, 2048, lambda rows: _any(rows, 32768), BF),
    "8192 of 30522x768, Zipf": (30522, 768, lambda rows: _zipf(rows, 8192), BF),
    "16384 of 128256x4096, Zipf": (128256, 4096, lambda rows: _zipf(rows, 16384), BF),
    "16384 of 50257x1024, Zipf": (50257, 1024, lambda rows: _zipf(rows, 16384), F32),
    "16384 of 30522x768, all the same": (30522, 768, lambda rows: torch.full((16384,), 77, device="cuda"), BF),
    "8192 of 2x768": (2, 768, lambda rows: (torch.rand(8192, device="cuda") < 0.3).long(), BF),
    "128 of 128x150528, each once": (128, 150528, lambda rows: torch.randperm(rows, device="cuda"), BF),
    "1000000 of 100000x64, any": (100000, 64, lambda rows: _any(rows, 1000000), F32),
    "262144 of 32x16, any": (32, 16, lambda rows: _any(rows, 262144), F32),
    "65536 sums of 64 rows of 256x64": (256, 64, lambda rows: _any(rows, 4194304).view(-1, 64), BF),
    "8192 sums of 20 rows of 100000x128": (100000, 128, lambda rows: _any(rows, 163840).view(-1, 20), BF),
}
"""Rows and columns of the table, the index (of two axes: rows are added along the second), and the type."""


def looked_up(table: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    rows = F.embedding(place, table)
    return rows.sum(1) if place.dim() == 2 else rows


def timed(name: str, which: str) -> dict[str, Any]:
    """Return the time of all kernels of a gradient, their number, and the error."""
    rows, columns, index, dtype = CASES[name]
    torch._dynamo.reset()
    x, i = torch.randn(rows, columns, device="cuda", dtype=dtype, requires_grad=True), index(rows)
    compiled = torch.compile(looked_up, backend=weft_backend if which == "weft" else "inductor")
    out = compiled(x, i)
    slope = torch.randn_like(out)

    def call() -> torch.Tensor:
        return torch.autograd.grad(out, [x], slope, retain_graph=True)[0]

    each = slope.double()[:, None].expand(*i.shape, columns) if i.dim() == 2 else slope.double()
    wanted = torch.zeros(rows, columns, device="cuda", dtype=torch.float64).index_add_(0, i.flatten(), each.reshape(-1, columns))
    error = float((call().double() - wanted).norm() / wanted.norm())
    kernels = kernel_times(call, 9)
    return {f"{which}_us": round(sum(k.us for k in kernels), 1), f"{which}_kernels": sum(k.count for k in kernels), f"{which}_error": f"{error:.1e}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--only", default="", help="weft or inductor")
    given = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for name, (*_, dtype) in CASES.items():
        row = {"case": f"{name}, {str(dtype)[6:]}"}
        for which in ("weft", "inductor"):
            row |= timed(name, which) if given.only in ("", which) else {}
        print(row, flush=True)
        rows.append(row)
    if given.out:
        write(given, __file__, "cuda", rows, is_row_a_line=True)


if __name__ == "__main__":
    main()
