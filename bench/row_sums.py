"""Gradients of embeddings, for indices of several kinds: all kernels of weft beside those of Inductor, and the error against float64.

    PYTHONPATH=. python bench/row_sums.py [OUT.json] [--only weft] [--way sort|atomic]     a GPU
    PYTHONPATH=. python bench/row_sums.py [OUT.json] --grid                                a GPU

Microseconds by the profiler, without flushing L2. Zipf: row k is named about 1 / k times as often as row 1, as words are. --way: behind a sort, or atomic
additions; otherwise what weft predicts to be faster. --grid: gradients of `x[i]` both ways over a grid of sizes, beside the predictions of
`weft/frontend/row_sum_times.py`, to judge these. Read first: `CASES`, `GRID`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from measure import kernel_times, write

from weft.arch import arch_of_device
from weft.frontend.backend import backend as weft_backend
from weft.frontend.row_sum_times import atomic_us, sorted_us
from weft.frontend.row_sums import row_sum_sizes
from weft.options import options


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


GRID_PLACES = (2048, 16384, 131072, 524288, 2097152)
GRID_ROWS = (64, 1000, 30000, 200000)
GRID_WIDTHS = (1, 8, 64, 512)
GRID_TYPES = (F32, BF)
MOST_ELEMENTS = 2**30
"""Of the rows that are added, or of the result: sizes of the grid with more are left out."""
GRID = [
    (places, rows, width, dtype)
    for places, rows, width, dtype in itertools.product(GRID_PLACES, GRID_ROWS, GRID_WIDTHS, GRID_TYPES)
    if max(places, rows) * width <= MOST_ELEMENTS // 4
]
"""Places, rows of the table, elements of a row, and type."""


def taken(table: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return table[place]


def both_ways(places: int, rows: int, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the times of all kernels of a gradient in both ways, and the predicted ones."""
    row: dict[str, Any] = {"places": places, "rows": rows, "width": width, "dtype": str(dtype)[6:]}
    x, i = torch.randn(rows, width, device="cuda", dtype=dtype, requires_grad=True), _any(rows, places)
    for way in ("sort", "atomic"):
        torch._dynamo.reset()
        with options(row_sums=way):
            out = torch.compile(taken, backend=weft_backend)(x, i)
            slope = torch.randn_like(out)
            kernels = kernel_times(functools.partial(torch.autograd.grad, out, [x], slope, retain_graph=True), 9)
        row |= {f"{way}_us": round(sum(k.us for k in kernels), 1), f"{way}_kernels": sum(k.count for k in kernels)}
    arch, sizes = arch_of_device(torch.cuda.current_device()), row_sum_sizes(places, rows, width, dtype)
    row |= {"predicted_sort_us": round(sorted_us(sizes, arch), 1), "predicted_atomic_us": round(atomic_us(sizes, arch), 1)}
    return row | {"is_chosen_faster": (row["sort_us"] < row["atomic_us"]) == (row["predicted_sort_us"] < row["predicted_atomic_us"])}


def grid() -> list[dict[str, Any]]:
    rows = []
    for sizes in GRID:
        rows.append(both_ways(*sizes))
        print(rows[-1], flush=True)
    right = sum(row["is_chosen_faster"] for row in rows)
    lost = sum(max(0.0, chosen(row) - min(row["sort_us"], row["atomic_us"])) for row in rows)
    print(f"the faster way is chosen for {right} of {len(rows)} sizes; the choices take {lost / len(rows):.1f} us more than the faster way, on average")
    return rows


def chosen(row: dict[str, Any]) -> float:
    """The time of the way that is predicted to be faster."""
    return float(row["sort_us"] if row["predicted_sort_us"] < row["predicted_atomic_us"] else row["atomic_us"])


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
    parser.add_argument("--way", default="auto", help="sort or atomic: how weft adds")
    parser.add_argument("--grid", action="store_true", help="both ways over a grid of sizes, beside what is predicted")
    given = parser.parse_args()
    torch.manual_seed(0)
    with options(row_sums=given.way):
        rows = grid() if given.grid else cases(given.only)
    if given.out:
        write(given, __file__, "cuda", rows, is_row_a_line=True)


def cases(only: str) -> list[dict[str, Any]]:
    rows = []
    for name, (*_, dtype) in CASES.items():
        row = {"case": f"{name}, {str(dtype)[6:]}"}
        for which in ("weft", "inductor"):
            row |= timed(name, which) if only in ("", which) else {}
        print(row, flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
