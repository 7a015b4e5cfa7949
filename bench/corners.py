"""Corners: shapes where kernels were slow once, or could be: wide rows, few long rows, odd widths, narrow rows, odd column sums, rows and columns at once.

    python bench/corners.py [OUT.json] [--only TEXT] [--rep-ms 30]

Each case is a fraction of a copy of the bytes that it must move. Every third case is marked "held": nothing is tuned on it. Kernels are compiled by 16
processes before anything is measured. Read first: `CORNERS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cases import BY_NAME, Case, matrix, output
from measure import compile_ahead, device_of, fraction_of_copy, moved_bytes, parser, requests_for, table, write
from widths import shown

from weft import DataType, FusionDefinition

BF16, FLOAT = torch.bfloat16, torch.float32
TENSOR_BYTES = 64 * 10**6


# ---------------------------------------------------------------- rows and columns at once
def norm_backward(fd: FusionDefinition, dtype: DataType, *, is_layer_norm: bool) -> None:
    """Gradients of x, the weight and, for layer norm, the bias; the statistics are inputs."""
    ops = fd.ops
    x, g = (ops.cast(matrix(fd, dtype), DataType.Float) for _ in range(2))
    stats = [fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Float) for _ in range(1 + is_layer_norm)]
    w = ops.broadcast_in_dim(ops.cast(fd.define_tensor([-1], contiguity=True, dtype=dtype), DataType.Float), x.shape(), [1])
    normed = ops.mul(ops.sub(x, stats[1]) if is_layer_norm else x, stats[0])
    wg, inv = ops.mul(g, w), ops.reciprocal(x.size(1))
    d = ops.sub(wg, ops.mul(normed, ops.mul(ops.sum(ops.mul(wg, normed), [1], True), inv)))
    if is_layer_norm:
        d = ops.sub(d, ops.mul(ops.sum(wg, [1], True), inv))
    output(fd, ops.mul(d, stats[0]), dtype)
    for value in (ops.mul(g, normed), g)[: 1 + is_layer_norm]:
        output(fd, ops.sum(value, [0]), dtype)


def torch_norm_backward(x, g, *more, wide=torch.float32):  # noqa: ANN001, ANN201
    *stats, w = (t.to(wide) for t in more)
    dtype, x, g = x.dtype, x.to(wide), g.to(wide)
    normed = (x - stats[1] if len(stats) == 2 else x) * stats[0]
    wg = g * w
    d = wg - normed * (wg * normed).mean(1, keepdim=True)
    if len(stats) == 2:
        d = d - wg.mean(1, keepdim=True)
    return [t.to(dtype) for t in (d * stats[0], (g * normed).sum(0), *([g.sum(0)] if len(stats) == 2 else []))]


class Backward(Case):
    """A norm backward: the statistics are columns between matrices and vectors."""

    def inputs(self, rows: int, columns: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        x, g = (torch.randn((rows, columns), dtype=dtype, device=device) for _ in range(2))
        stats = [1 / x.float().square().mean(1, keepdim=True).sqrt(), x.float().mean(1, keepdim=True)]
        return [x, g, *stats[: 2 if self.name.startswith("layer") else 1], torch.randn(columns, dtype=dtype, device=device)]


def backward(name: str, is_layer_norm: bool) -> Backward:
    return Backward(name, "backward", lambda fd, dtype: norm_backward(fd, dtype, is_layer_norm=is_layer_norm), torch_norm_backward, 2, 1)


KINDS: dict[str, Case] = {**BY_NAME, "rms_backward": backward("rms_backward", False), "layer_backward": backward("layer_backward", True)}


# ---------------------------------------------------------------- cases
def rows_of(columns: int, dtype: torch.dtype) -> int:
    return TENSOR_BYTES // dtype.itemsize // columns


def corner(kind: str, dtype: torch.dtype, *shapes: int | tuple[int, int]) -> list[tuple[str, torch.dtype, int, int]]:
    """Return cases. A shape that is a number is a width, with the rows that make 64 MB."""
    return [(kind, dtype, *(s if isinstance(s, tuple) else (rows_of(s, dtype), s))) for s in shapes]


FEW_LONG = ((50, 20480), (96, 60001), (131, 30000), (200, 40009), (264, 24576), (400, 50021), (530, 33000), (800, 60000))
LONG_KINDS = (("layer_norm", BF16), ("add_rms_norm", BF16), ("rms_norm", FLOAT), ("dropout_layer_norm", BF16), ("softmax_backward", FLOAT))
CORNERS: dict[str, list[tuple[str, torch.dtype, int, int]]] = {
    "wide rows": [
        *corner("layer_norm", BF16, 32768, 40960, 49152, 65536, 98304, 131072), *corner("rms_norm", BF16, 65536), *corner("layer_norm", FLOAT, 32768, 65536),
    ],
    "few long rows": [c for kind, dtype in LONG_KINDS for c in corner(kind, dtype, *FEW_LONG)],
    "odd lengths": [
        *corner("layer_norm", BF16, 4093, 10007, 20011), *corner("dropout_layer_norm", BF16, 2999, 3000, 3072), *corner("add_rms_norm", BF16, 5003),
    ],
    "narrow rows": [
        *corner("gelu_bias", BF16, 500, 501, 640, 768, 777, 1000, 1001, 3001), *corner("silu_mul", BF16, 501, 1001, 3001),
        *corner("gelu_bias", FLOAT, 500, 1001),
    ],
    "column sums": [
        *corner("col_sum", BF16, (4099, 4097), (10007, 3001), (3000, 5000), (5001, 2047), (65536, 513), (1025, 20011), (20000, 1000), (2048, 6144)),
        *corner("col_sum", BF16, (8191, 8191)), *corner("col_sum", FLOAT, (4099, 4097), (3000, 3000), (10007, 1001)),
    ],
    "backward": [
        *corner("rms_backward", BF16, 257, 1001, 2047, 2049, 3000, 3001, 4093, 4098, 4100, 5003, 6000, 7001, 8191, 8200, 12001, 20001, 32769),
        *corner("layer_backward", BF16, 1001, 2047, 3000, 3001, 4097, 4100, 5000, 6001, 7000, 8191, 16383), *corner("rms_backward", FLOAT, 2049, 4097, 6002),
    ],
}  # fmt: skip
SMOKE = {name: [(kind, dtype, 3, min(columns, 70)) for kind, dtype, _, columns in cases[:2]] for name, cases in CORNERS.items()}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="corners, or kinds, whose name has this text")
    arguments.add_argument("--rep-ms", type=int, default=30)
    a = arguments.parse_args()
    device, start = device_of(a), time.monotonic()
    chosen = [(name, *c) for name, cases in (SMOKE if a.cpu_smoke else CORNERS).items() for c in cases if a.only in name or a.only in c[0]]
    definitions: dict[tuple[str, torch.dtype], FusionDefinition] = {(kind, dtype): KINDS[kind].definition(dtype) for _, kind, dtype, _, _ in chosen}
    inputs: Callable[[Sequence[Any]], list[torch.Tensor]] = lambda c: KINDS[c[1]].inputs(c[3], c[4], c[2], device)  # noqa: E731
    requests = [r for c in chosen for r in requests_for(definitions[c[1], c[2]], inputs(c))]
    lowered_s = time.monotonic() - start
    compile_ahead(requests, 2 if a.cpu_smoke else 16)
    print(f"{len(requests)} cases: lowered in {lowered_s:.1f} s, compiled in {time.monotonic() - start - lowered_s:.1f} s", flush=True)
    rows = []
    for n, (name, kind, dtype, height, width) in enumerate(chosen):
        fd, given = definitions[kind, dtype], KINDS[kind].inputs(height, width, dtype, device)
        outputs = fd.execute(given)
        error = KINDS[kind].error(given, outputs)
        fraction = fraction_of_copy(lambda: fd.execute(given), moved_bytes(given, outputs), device, a.rep_ms)  # noqa: B023
        params = fd.fec.kernel_runtimes[-1].proposal
        rows.append({
            "corner": name, "case": kind, "dtype": str(dtype).removeprefix("torch."), "rows": height, "columns": width, "held": n % 3 == 2,
            "fraction": round(fraction, 3), "error": error, "scheduler": params.scheduler.name, "params": shown(params.params),
        })  # fmt: skip
        print(name, kind, dtype, height, width, "held" if n % 3 == 2 else "", f"{fraction:.3f} error {error:.1e}", shown(params.params), flush=True)
    print(table(("corner", "case", "fraction"), [(r["corner"], f"{r['case']} {r['dtype']} {r['rows']}x{r['columns']}", r["fraction"]) for r in rows]))
    write(a, __file__, device, rows, is_row_a_line=True)


if __name__ == "__main__":
    main()
