"""topk of a few values, and scatters, beside torch's own: times of a call, and whether the results are right.

    python bench/index_ops.py [OUT.json]

Microseconds of a warm call (median, L2 flushed). "copy": of as many bytes as the input has, read and written together. Right: values of topk, and what is at
its positions, are torch's, bit by bit. Errors of scatters: relative distance (L2 norm) to torch in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from measure import copy_us, device_of, median_us, parser, table, write

from weft import FusionDefinition

TOPK = (
    ((16384, 4096), 1, 2, torch.bfloat16), ((16384, 4096), 1, 8, torch.bfloat16), ((8192, 256), 1, 8, torch.float32), ((65536, 64), 1, 4, torch.bfloat16),
    ((64, 131072), 1, 8, torch.bfloat16), ((1, 1 << 24), 1, 8, torch.float32), ((4096, 16384), 0, 4, torch.float32), ((4093, 1001), 1, 5, torch.float64),
    ((1000, 1003), 1, 3, torch.int64),
)  # fmt: skip
"""Sizes, axis, k, type."""
SCATTERS = (
    ("scatter_add", (128256, 1024), 8192, 0, torch.float32), ("scatter_add", (4096, 4096), 65536, 0, torch.float32),
    ("scatter_add", (4096, 4096), 65536, 0, torch.bfloat16), ("scatter_add", (1 << 20,), 1 << 24, 0, torch.float32),
    ("scatter_add", (4093, 1001), 9999, 0, torch.float64), ("scatter_add", (999, 1003), 777, 1, torch.int64), ("scatter", (4096, 4096), 4096, 0, torch.float32),
    ("scatter", (4096, 4096), 4096, 0, torch.bfloat16), ("scatter", (1 << 20,), 1 << 20, 0, torch.float32),
)  # fmt: skip
"""Op, sizes of the base, length of the index along the axis, axis, type."""


def numbers(sizes: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(sizes, device=device).mul(100).to(dtype)


def topk_row(sizes: tuple[int, ...], dim: int, k: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Time one topk."""
    x = numbers(sizes, dtype, device)
    with FusionDefinition() as fd:
        for result in fd.ops.topk(fd.from_pytorch(x), fd.define_scalar(k), dim, True, True):
            fd.add_output(result)
    values, places = fd.execute([x])
    wanted = x.topk(k, dim)[0]
    is_right = torch.equal(values, wanted) and torch.equal(x.gather(dim, places), wanted)
    return row(f"topk {k} along {dim}", sizes, dtype, "right" if is_right else "WRONG", lambda: fd.execute([x]), lambda: x.topk(k, dim), x.nbytes, device)


def scatter_row(op: str, sizes: tuple[int, ...], count: int, dim: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Time one scatter of whole rows: each element of a row has the position of the row."""
    x, shape = numbers(sizes, dtype, device), tuple(count if d == dim else n for d, n in enumerate(sizes))
    s = numbers(shape, dtype, device)
    places = torch.randint(0, sizes[dim], (count,), device=device) if op == "scatter_add" else torch.randperm(sizes[dim], device=device)[:count]
    i = places.view([-1 if d == dim else 1 for d in range(len(sizes))]).expand(shape).contiguous()
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, op)(*(fd.from_pytorch(t) for t in (x, i, s)), dim))
    (out,) = fd.execute([x, i, s])
    wanted = getattr(x.double(), op)(dim, i, s.double())
    error = f"{float((out.double() - wanted).norm() / wanted.norm()):.1e}"
    return row(f"{op} of {count} along {dim}", sizes, dtype, error, lambda: fd.execute([x, i, s]), lambda: getattr(x, op)(dim, i, s), x.nbytes, device)


def row(name: str, sizes: tuple[int, ...], dtype: torch.dtype, error: str, call: Any, torchs: Any, size_bytes: int, device: str) -> dict[str, Any]:
    times = {"weft us": median_us(call, device), "torch us": median_us(torchs, device), "copy us": copy_us(size_bytes, device)}
    return {"case": name, "sizes": "x".join(map(str, sizes)), "type": str(dtype)[6:], **{k: round(v, 1) for k, v in times.items()}, "error": error}


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    device = device_of(arguments)
    torch.manual_seed(0)
    rows = []
    for sizes, dim, k, dtype in TOPK[:: 4 if arguments.cpu_smoke else 1]:
        rows.append(topk_row(small(sizes, device), dim, k, dtype, device))
    for op, sizes, count, dim, dtype in SCATTERS[:: 3 if arguments.cpu_smoke else 1]:
        base = small(sizes, device)
        rows.append(scatter_row(op, base, count if device == "cuda" else min(count, base[dim]), dim, dtype, device))
    print(table(list(rows[0]), [list(r.values()) for r in rows]))
    write(arguments, __file__, device, rows, is_row_a_line=True)


def small(sizes: tuple[int, ...], device: str) -> tuple[int, ...]:
    return sizes if device == "cuda" else tuple(min(n, 70) for n in sizes)


if __name__ == "__main__":
    main()
