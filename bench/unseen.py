"""Kernels at shapes that are in no table of the pages: softmax down columns, column sums, layer norm of odd lengths, batch norm of training. Needs a GPU.

    PYTHONPATH=. python bench/unseen.py OUT.json       each case: microseconds, the fraction of a copy of the same bytes, the error against float64

Run it with the packages of two commits (PYTHONPATH) to compare them: nothing was tuned on these shapes. Read first: `CASES`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from weft import DataType, FusionDefinition
from weft.ir.values import TensorView

BF16, FLOAT = torch.bfloat16, torch.float32
TYPES = {BF16: DataType.BFloat16, FLOAT: DataType.Float}


def softmax_down(fd: FusionDefinition, x: TensorView) -> TensorView:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[0], keepdim=True)))
    return fd.ops.div(e, fd.ops.sum(e, dims=[0], keepdim=True))


def column_sum(fd: FusionDefinition, x: TensorView) -> TensorView:
    return fd.ops.sum(x, dims=[0])


def _normalized(fd: FusionDefinition, x: TensorView, dims: list[int]) -> TensorView:
    variance, mean = fd.ops.var_mean(x, dims=dims, correction=0, keepdim=True)
    return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, fd.define_scalar(1e-5))))


def layer_norm(fd: FusionDefinition, x: TensorView) -> TensorView:
    return _normalized(fd, x, [1])


def batch_norm(fd: FusionDefinition, x: TensorView) -> TensorView:
    return _normalized(fd, x, [0, 2, 3])


Define = Callable[[FusionDefinition, TensorView], TensorView]
REFERENCES: dict[Define, Callable[[torch.Tensor], torch.Tensor]] = {
    softmax_down: lambda x: x.softmax(0), column_sum: lambda x: x.sum(0), layer_norm: lambda x: F.layer_norm(x, x.shape[1:]),
    batch_norm: lambda x: F.batch_norm(x, None, None, training=True),
}  # fmt: skip
WIDE = [(1500, 30000), (3000, 12000), (700, 100000), (333, 77777), (6000, 9000), (150, 400000), (2500, 16384), (8192, 8192)]
WIDE_FLOAT = [(1500, 16000), (3000, 8192), (700, 50000), (333, 40001), (6000, 5000), (150, 200000)]
COLUMNS = [(12000, 4020), (7777, 2052), (5000, 12340), (16384, 4096), (9001, 4097), (30000, 1001)]
ROWS = [(2500, 12345), (300, 30011), (96, 60001), (1599, 20011), (700, 45003), (5000, 6007)]
IMAGES = [(48, 192, 40, 40), (20, 96, 160, 160), (200, 1000, 9, 9), (96, 320, 32, 32), (8, 48, 300, 300), (256, 1024, 7, 7)]
CASES: list[tuple[Define, torch.dtype, tuple[int, ...]]] = [
    *((softmax_down, BF16, s) for s in WIDE), *((softmax_down, FLOAT, s) for s in WIDE_FLOAT), *((column_sum, BF16, s) for s in COLUMNS),
    *((layer_norm, BF16, s) for s in ROWS), (layer_norm, FLOAT, (900, 20003)), *((batch_norm, BF16, s) for s in IMAGES),
]  # fmt: skip


def measured(define: Define, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, float | str]:
    from triton.testing import do_bench

    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1] * len(shape), contiguity=True, dtype=TYPES[dtype])
        fd.add_output(fd.ops.cast(define(fd, fd.ops.cast(x, dtype=DataType.Float)), dtype=TYPES[dtype]))
    given = torch.randn(shape, device="cuda", dtype=dtype)
    (made,) = fd.execute([given])
    want = REFERENCES[define](given.double())
    error = float((made.double() - want).norm() / want.norm())
    source = torch.empty((given.nbytes + made.nbytes) // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    us, copy_us = (1e3 * do_bench(call, rep=25, return_mode="median") for call in (lambda: fd.execute([given]), lambda: target.copy_(source)))
    return {"case": f"{define.__name__} {str(dtype)[6:]} {'x'.join(map(str, shape))}", "us": us, "of_a_copy": copy_us / us, "error": error}


def main() -> None:
    torch.manual_seed(0)
    rows = []
    for case in CASES:
        rows.append(row := measured(*case))
        print(f"{row['case']:44s} {row['us']:8.1f} us {row['of_a_copy']:.2f} of a copy, error {row['error']:.1e}", flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"chip": torch.cuda.get_device_name(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
