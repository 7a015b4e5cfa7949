"""Normalizations over many widths, odd ones and primes too: the fraction of a copy, the params that were chosen, and cliffs.

    python bench/widths.py [OUT.json] [--seconds 90]

Softmax, RMS norm and layer norm forward, bf16 and float32, rows of 100 to 200,000 elements; as many rows as make 64 MB per tensor. A width is a cliff when
its fraction is below 0.6 of the median of its four neighbours in the list. Kernels are compiled by 16 processes before anything is measured.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

import torch
from cases import BY_NAME
from measure import compile_ahead, device_of, fraction_of_copy, moved_bytes, parser, request_for, table, write

WIDTHS = (
    100, 101, 120, 127, 128, 129, 160, 192, 200, 255, 256, 257, 320, 384, 500, 509, 511, 512, 513, 640, 768, 896, 1000, 1009, 1023, 1024, 1025, 1280, 1536,
    2000, 2039, 2047, 2048, 2049, 2560, 3000, 3001, 3072, 4000, 4093, 4095, 4096, 4097, 5000, 5001, 5120, 6144, 7168, 8000, 8191, 8192, 8193, 10000, 10007,
    12288, 14336, 16000, 16381, 16384, 16385, 20000, 20001, 24576, 24593, 28672, 32000, 32767, 32768, 32769, 40000, 40009, 49152, 50000, 50001, 65535, 65536,
    65537, 80000, 98304, 100000, 100003, 128256, 131071, 131072, 131073, 152064, 160000, 180001, 199999, 200000,
)  # fmt: skip
"""Powers of two with their neighbours, primes, multiples of 8 and not, widths of models and of vocabularies."""
SMOKE_WIDTHS = (100, 101, 128, 5001)
NAMES = ("softmax", "rms_norm", "layer_norm")
TENSOR_BYTES = 64 * 10**6
CLIFF = 0.6
USUAL = {
    "kind": "2d", "project_to_inputs": False, "unroll": 1, "bdimx": None, "rows_per_block": 1, "row_unroll": 1, "bdimz": 1, "outer_batches": 1,
    "cluster_blocks": 1, "is_phased": False,
}  # fmt: skip
FOLLOWING = ("pad_to_warp", "is_warp_only")
"""Params that most kernels have, and those that follow from others."""


def shown(params: Any) -> str:
    """Return the params that differ from what most have."""
    values = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    return " ".join(f"{name}={value}" for name, value in values.items() if name not in FOLLOWING and (name not in USUAL or USUAL[name] != value))


def label_of(row: dict[str, Any]) -> str:
    return f"{row['case']} {row['dtype']}"


def cliffs(rows: list[dict[str, Any]]) -> None:
    """Mark the rows of one fusion and type that fall behind their neighbours."""
    for n, row in enumerate(rows):
        near = [r["fraction"] for r in rows[max(0, n - 2) : n + 3] if r is not row]
        row["neighbours"] = round(statistics.median(near), 3)
        row["is_cliff"] = row["fraction"] < CLIFF * row["neighbours"]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=90, help="measure no more widths after this long; those left are named")
    a = arguments.parse_args()
    device, start = device_of(a), time.monotonic()
    widths, tensor_bytes = (SMOKE_WIDTHS, 10**4) if a.cpu_smoke else (WIDTHS, TENSOR_BYTES)
    groups = [(name, dtype) for dtype in (torch.bfloat16, torch.float32) for name in (NAMES[:1] if a.cpu_smoke else NAMES)]
    pools = {dtype: torch.randn(tensor_bytes // dtype.itemsize + max(widths), device=device).to(dtype) for dtype in (torch.bfloat16, torch.float32)}
    definitions = {group: BY_NAME[group[0]].definition(group[1]) for group in groups}

    def inputs_of(name: str, dtype: torch.dtype, columns: int) -> list[torch.Tensor]:
        """Parts of one random tensor, which starts at an aligned address."""
        rows, pool = max(1, tensor_bytes // dtype.itemsize // columns), pools[dtype]
        return [pool[: rows * columns].view(rows, columns), *[pool[:columns]] * BY_NAME[name].vectors]

    requests = {(name, dtype, n): request_for(definitions[name, dtype], inputs_of(name, dtype, n)) for name, dtype in groups for n in widths}
    lowered_s = time.monotonic() - start
    kernels = compile_ahead(requests.values(), 2 if a.cpu_smoke else 16)
    print(f"{len(requests)} calls, {kernels} kernels: lowered in {lowered_s:.1f} s, compiled in {time.monotonic() - start - lowered_s:.1f} s", flush=True)
    found: list[dict[str, Any]] = []
    left: list[str] = []
    for name, dtype in groups:
        case, fd, rows = BY_NAME[name], definitions[name, dtype], []
        for n in widths:
            label = f"{name} {str(dtype)[6:]} {n}"
            if time.monotonic() - start > a.seconds:
                left.append(label)
                continue
            inputs = inputs_of(name, dtype, n)
            outputs = fd.execute(inputs)
            error = case.error(inputs, outputs)
            count = moved_bytes(inputs, outputs)
            del outputs
            proposal = requests[name, dtype, n][0].proposal
            fraction = fraction_of_copy(lambda fd=fd, inputs=inputs: fd.execute(inputs), count, device, rep_ms=20)
            rows.append({
                "case": name, "dtype": str(dtype)[6:], "rows": inputs[0].shape[0], "columns": n, "fraction": round(fraction, 3), "error": error,
                "scheduler": proposal.scheduler.name, "params": shown(proposal.params),
            })  # fmt: skip
        cliffs(rows)
        found += rows
        head = ["case", "rows", "columns", "fraction", "near", "cliff", "error", "params"]
        keys = ("rows", "columns", "fraction", "neighbours")
        shown_rows = [[label_of(r), *(r[k] for k in keys), "CLIFF" if r["is_cliff"] else "", f"{r['error']:.1e}", r["params"]] for r in rows]
        print(table(head, shown_rows), flush=True)
    fallen = [f"{label_of(r)} {r['columns']}" for r in found if r["is_cliff"]]
    print(f"{len(found)} widths in {time.monotonic() - start:.0f} s; cliffs: {', '.join(fallen) or 'none'}")
    if left:
        print(f"no time for {len(left)}: {', '.join(left)}")
    write(a, __file__, device, found, kernels=kernels, tensor_bytes=tensor_bytes, cliff=CLIFF, left=left)


if __name__ == "__main__":
    main()
