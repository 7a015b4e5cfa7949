"""Norm backward over a grid of rows and columns: is there a size at which it is much slower than beside it, or wrong?

    python bench/grid.py [OUT.json] [--processes 16] [--only TEXT]

Columns from 256 to 262,144, odd ones among them, rows from 1 to 262,144, three types. Each cell has its time, its fraction of a copy of the same bytes, and its
largest error over a bound that is derived, not tried out (`bounds_of`). A cliff is a cell that takes longer than one that has no fewer rows and no fewer
columns: `--cliff` times as long. Several processes compile; one at a time has the GPU. Read first: `measure_cell`, `cliffs`.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from corners import KINDS
from measure import copy_us, device_of, median_us, moved_bytes, parser, table, write

COLUMNS = (256, 257, 1000, 1024, 3001, 4096, 10000, 16384, 40001, 65536, 131072, 262144)
ROWS = (1, 9, 132, 1001, 8192, 65537, 262144)
CASES = (("layer_backward", torch.bfloat16), ("rms_backward", torch.float16), ("layer_backward", torch.float32))
MOST_ELEMS = 1 << 26
HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
UNIT = 2.0**-24
"""Of a float: half of the distance between neighbours of 1."""
TERM_ROUNDINGS, RESULT_ROUNDINGS = 6, 10
"""In float, of a term before it is added, and of what is made of the sums of a row."""
SAMPLED_COLUMNS = 4096
"""Of a cell that are checked where it has more than MOST_CHECKED elements: float64 takes eight bytes for each of them, several times."""
MOST_CHECKED = 1 << 25


def cells(only: str) -> list[tuple[str, torch.dtype, int, int]]:
    found = [(name, dtype, m, n) for name, dtype in CASES for n in COLUMNS for m in ROWS if m * n <= MOST_ELEMS]
    return [c for c in found if only in f"{c[0]} {c[1]}"]


# ---------------------------------------------------------------- errors
def additions(count: int) -> int:
    """Return the longest chain of additions in a sum of so many terms, whatever the kernel: no part of a thread is longer than the terms of 32 threads."""
    return min(count, max(64, count // 32)) + 32


def bounds_of(inputs: list[torch.Tensor], at: slice) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return float64 results, those of columns for the columns `at` only, and the bound of each element's error.

    A sum of n terms in float is off by at most (longest chain of additions) * 2^-24 * the sum of their magnitudes, and each term by its own roundings; a result
    is rounded once to its type.
    """
    x, g, rstd, *mean = (t.double() for t in inputs[:-1])
    w, half_ulp, (rows, columns) = inputs[-1].double(), HALF_ULP[inputs[0].dtype], inputs[0].shape
    x.sub_(mean[0]) if mean else None
    centered = x[:, at].abs().mul_(rstd)
    if mean:  # the subtraction's own rounding is of the size of its operands
        centered.add_(mean[0].abs() * rstd)
    normed, wg = x.mul_(rstd), g * w
    along = (additions(columns) + TERM_ROUNDINGS) * UNIT
    c1, most_1 = (wg * normed).mean(1, keepdim=True), (wg * normed).abs().mean(1, keepdim=True)
    c2, most_2 = (wg.mean(1, keepdim=True), wg.abs().mean(1, keepdim=True)) if mean else (0.0, 0.0)
    if mean:
        most_1 = most_1 + wg.abs().mean(1, keepdim=True) * mean[0].abs() * rstd
    size = wg[:, at].abs() + normed[:, at].abs() * abs(c1) + (c2.abs() if mean else 0.0)  # type: ignore[union-attr]
    dx = (wg[:, at] - normed[:, at] * c1 - c2) * rstd
    dx_bound = rstd * (RESULT_ROUNDINGS * UNIT * (size + centered * c1.abs()) + along * (normed[:, at].abs() * most_1 + most_2)) + half_ulp * dx.abs()
    down = (additions(rows) + TERM_ROUNDINGS) * UNIT
    out = [(dx, dx_bound)]
    sums = [(g[:, at] * normed[:, at], g[:, at].abs() * centered)] + ([(g[:, at], g[:, at].abs())] if mean else [])
    for terms, magnitudes in sums:
        total = terms.sum(0)
        out.append((total, down * magnitudes.sum(0) + half_ulp * total.abs()))
    return out


def error_over_bound(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> float:
    """Return the largest error over its bound; a bound has the smallest number of the type besides, for results that are nearly 0."""
    columns = inputs[0].shape[1]
    at = slice(0, columns)
    if inputs[0].numel() > MOST_CHECKED and columns > SAMPLED_COLUMNS:
        inputs = [t.clone() if t.dim() == 1 else t for t in inputs]
        at = slice(columns - SAMPLED_COLUMNS, columns)
    worst = 0.0
    for got, (wanted, bound) in zip(outputs, bounds_of(inputs, at), strict=True):
        seen = got[..., at].double()
        worst = max(worst, float(((seen - wanted).abs() / (bound + torch.finfo(got.dtype).smallest_normal)).max()))
    return worst


# ---------------------------------------------------------------- one cell
def measure_cell(cell: tuple[str, torch.dtype, int, int], device: str, lock: Any, rep_ms: int) -> dict[str, Any]:
    name, dtype, rows, columns = cell
    fd = KINDS[name].definition(dtype)
    meta = KINDS[name].inputs(min(rows, 2), columns, dtype, device)
    given = [t if t.dim() == 1 else torch.empty((rows, t.shape[1]), dtype=t.dtype, device=device) for t in meta]
    for tensor in given[:2]:
        tensor.normal_()
    for tensor, value in zip(given[2:-1], (0.75, 0.125)):
        tensor.uniform_(value, 2 * value)
    outputs = fd.execute(given)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        error = error_over_bound(given, list(outputs))
        if device == "cuda":
            torch.cuda.empty_cache()
        count = moved_bytes(given, outputs)
        copied, us = copy_us(count, device), median_us(lambda: fd.execute(given), device, rep_ms)
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
    kernel = fd.fec.kernel_runtimes[-1]
    return {
        "case": name, "dtype": str(dtype).removeprefix("torch."), "rows": rows, "columns": columns, "us": round(us, 2), "bytes": count,
        "of_copy": round(copied / us, 3), "error_over_bound": round(error, 4), "scheduler": kernel.proposal.scheduler.name,
        "kernels": len(fd.fec.kernel_runtimes),
    }  # fmt: skip


# ---------------------------------------------------------------- cliffs
def cliffs(rows: list[dict[str, Any]], factor: float) -> list[str]:
    """Return the cells that take longer than one with no fewer rows and columns: their time over that of the fastest of these."""
    out = []
    for cell in rows:
        larger = [r for r in rows if (r["case"], r["dtype"]) == (cell["case"], cell["dtype"]) and r["rows"] >= cell["rows"] and r["columns"] >= cell["columns"]]
        best = min(larger, key=lambda r: r["us"])
        if cell["us"] > factor * best["us"]:
            out.append(
                f"{cell['case']} {cell['dtype']} {cell['rows']}x{cell['columns']}: {cell['us']:.1f} us, {best['rows']}x{best['columns']} {best['us']:.1f} us"
            )
    return out


def shown_grid(rows: list[dict[str, Any]]) -> str:
    """Return a table for each case: rows down, columns across, fractions of a copy, or microseconds below 16 MB."""
    out = []
    for case, dtype in dict.fromkeys((r["case"], r["dtype"]) for r in rows):
        found = {(r["rows"], r["columns"]): r for r in rows if (r["case"], r["dtype"]) == (case, dtype)}
        widths = sorted({n for _, n in found})
        lines = []
        for height in sorted({m for m, _ in found}):
            seen = [found.get((height, n)) for n in widths]
            lines.append([height, *("-" if r is None else f"{r['of_copy']:.2f}" if r["bytes"] >= 16e6 else f"{r['us']:.0f} us" for r in seen)])
        out.append(f"{case} {dtype}\n" + table(("rows", *map(str, widths)), lines))
    return "\n\n".join(out)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--processes", type=int, default=16)
    arguments.add_argument("--share", type=int, default=-1, help="what one of the processes does; set by the first one")
    arguments.add_argument("--folder", default="")
    arguments.add_argument("--only", default="", help="cases whose name has this text")
    arguments.add_argument("--rep-ms", type=int, default=15)
    arguments.add_argument("--seconds", type=float, default=1e9, help="after which no further cell is begun")
    arguments.add_argument("--cliff", type=float, default=1.25)
    a = arguments.parse_args()
    device, start = device_of(a), time.monotonic()
    wanted = [(n, d, min(r, 5), min(c, 70)) for n, d, r, c in cells(a.only)[:6]] if a.cpu_smoke else cells(a.only)
    if a.share < 0:
        with tempfile.TemporaryDirectory() as folder:
            count = 2 if a.cpu_smoke else a.processes
            given = [sys.executable, __file__, *sys.argv[1:], "--folder", folder]
            workers = [subprocess.Popen([*given, "--share", str(n), "--processes", str(count)]) for n in range(count)]
            failed = sum(worker.wait() != 0 for worker in workers)
            rows = [json.loads(line) for path in sorted(Path(folder).glob("*.lines")) for line in path.read_text().splitlines()]
        order = {(n, str(d).removeprefix("torch."), r, c): k for k, (n, d, r, c) in enumerate(wanted)}
        rows.sort(key=lambda r: order[r["case"], r["dtype"], r["rows"], r["columns"]])
        print(shown_grid(rows))
        found = cliffs(rows, a.cliff)
        print(f"{len(rows)} of {len(wanted)} cells, {failed} processes failed; largest error over its bound {max(r['error_over_bound'] for r in rows):.3f}")
        print(f"{len(found)} cells take {a.cliff} times as long as a larger one, or longer", *found, sep="\n  ")
        write(a, __file__, device, rows, is_row_a_line=True)
        return
    with (Path(a.folder) / "lock").open("a") as lock, (Path(a.folder) / f"{a.share}.lines").open("a") as out:
        for cell in wanted[a.share :: a.processes]:
            if time.monotonic() - start > a.seconds:
                return
            out.write(json.dumps(measure_cell(cell, device, lock, a.rep_ms)) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
