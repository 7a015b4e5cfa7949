"""Casts and quantization to 8 and 4 bits, of a copy of the same packed bytes.

    python bench/narrow.py [OUT.json] [--rows 16384] [--columns 4096] [--only TEXT] [--torch]

Bytes are those of inputs and results, scales counted, narrow elements packed. --torch: torch.compile of the same functions beside it, of the same bytes.
Read first: `cases`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import torch
from measure import copy_us, device_of, measured, median_us, sized_parser, write
from narrow_torch import reference

from weft import FusionDefinition, quantize
from weft.dtypes import DataType

FP4, FP8 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn


def cast_of(source: DataType, target: DataType) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=source)
        fd.add_output(fd.ops.cast(x, target))
    return lambda x: fd.execute([x])


def sums_of(source: DataType) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=source)
        fd.add_output(fd.ops.sum(fd.ops.cast(x, DataType.Float), [1]))
    return lambda x: fd.execute([x])


def grouped() -> Callable[..., list[torch.Tensor]]:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        for result in fd.ops.nv_grouped_block_quantize(x, *(fd.define_tensor([-1], dtype=DataType.Int32) for _ in range(2))):
            fd.add_output(result)
    return lambda *inputs: fd.execute(list(inputs))


def groups_of(rows: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the rows of 8 groups of unlike sizes begin, and where their tiles do."""
    shares = torch.tensor([1, 3, 0, 7, 2, 5, 9, 5])
    tokens = shares * rows // 32
    begins = torch.cumsum(tokens, 0) - tokens
    tiles = (tokens + 127) // 128 * 128
    return begins.int().to(device), (torch.cumsum(tiles, 0) - tiles).int().to(device)


def cases(rows: int, columns: int, device: str) -> dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    """Return name -> (function, inputs)."""
    generator = torch.Generator(device).manual_seed(1)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator).bfloat16()

    x, y, w = made(rows, columns), made(rows, columns), made(columns)
    packed = torch.randint(0, 256, (rows, columns // 2), device=device, dtype=torch.uint8, generator=generator).view(FP4)
    bytes_ = torch.randint(0, 120, (rows, columns), device=device, dtype=torch.uint8, generator=generator).view(FP8)
    q = quantize
    return {
        "fp4 to bf16": (cast_of(DataType.Float4_e2m1fn_x2, DataType.BFloat16), (packed,)),
        "fp4 to float": (cast_of(DataType.Float4_e2m1fn_x2, DataType.Float), (packed,)),
        "fp8 to bf16": (cast_of(DataType.Float8_e4m3fn, DataType.BFloat16), (bytes_,)),
        "row sums of fp4": (sums_of(DataType.Float4_e2m1fn_x2), (packed,)),
        "nvfp4 linear": (lambda x: q.nvfp4(x), (x,)),
        "nvfp4 swizzled": (lambda x: q.nvfp4(x, None, "128x4"), (x,)),
        "mxfp8 linear": (lambda x: q.mxfp8(x), (x,)),
        "mxfp8 swizzled": (lambda x: q.mxfp8(x, "128x4"), (x,)),
        "per row fp8": (lambda x: q.per_row(x), (x,)),
        "1x128": (lambda x: q.per_1x128(x), (x,)),
        "1x128 columns": (lambda x: q.per_1x128(x, "columns"), (x,)),
        "rms mxfp8 linear": (lambda x, w: q.rms_norm_mxfp8(x, w, "rows"), (x, w)),
        "rms mxfp8 swizzled": (lambda x, w: q.rms_norm_mxfp8(x, w, "128x4"), (x, w)),
        "rms nvfp4 linear": (lambda x, w: q.rms_norm_nvfp4(x, w, None, "rows"), (x, w)),
        "rms nvfp4 swizzled": (lambda x, w: q.rms_norm_nvfp4(x, w, None, "128x4"), (x, w)),
        "add rms per row": (lambda x, y, w: q.add_rms_norm_per_row(x, y, w), (x, y, w)),
        "silu mul mxfp8": (lambda x, y: q.silu_mul_mxfp8(x, y, "rows"), (x, y)),
        "silu mul mxfp8 swizzled": (lambda x, y: q.silu_mul_mxfp8(x, y, "128x4"), (x, y)),
        "mxfp8 rows and columns": (lambda x: q.mxfp8_both_ways(x), (x,)),
        "silu mul mxfp8 rows and columns": (lambda x, y: q.silu_mul_mxfp8_both_ways(x, y), (x, y)),
        "nvfp4 rows and columns": (lambda x: q.nvfp4_both_ways(x), (x,)),
        "nvfp4 rows and columns swizzled": (lambda x: q.nvfp4_both_ways(x, None, "128x4"), (x,)),
        "silu mul nvfp4 rows and columns": (lambda x, y: q.silu_mul_nvfp4_both_ways(x, y), (x, y)),
        "nvfp4 in groups": (grouped(), (x, *groups_of(rows, device))),
        "nvfp4 hadamard": (lambda x: q.nvfp4(x, None, "128x4", hadamard=(1, -1) * 8), (x,)),
        "nvfp4 stochastic": (lambda x: q.nvfp4(x, None, "128x4", is_stochastic=True), (x,)),
        "nvfp4 hadamard stochastic": (lambda x: q.nvfp4(x, None, "128x4", hadamard=(1, -1) * 8, is_stochastic=True), (x,)),
        "silu mul nvfp4 swizzled": (lambda x, y: q.silu_mul_nvfp4(x, y, None, "128x4"), (x, y)),
        "nvfp4 swizzled of zeros": (lambda x: q.nvfp4(x, None, "128x4"), (torch.zeros_like(x),)),
        "rms nvfp4 swizzled of zeros": (lambda x, w: q.rms_norm_nvfp4(x, w, None, "128x4"), (torch.zeros_like(x), w)),
        "rms nvfp4 swizzled, a tenth zeros": (lambda x, w: q.rms_norm_nvfp4(x, w, None, "128x4"), (with_zeros(x, generator), w)),
    }


def with_zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return x with a tenth of its blocks of 16 zeros."""
    blocks = x.unflatten(-1, (-1, 16))
    return (blocks * (torch.rand(*blocks.shape[:-1], 1, device=x.device, generator=generator) >= 0.1)).flatten(-2)


def main() -> None:
    parser = sized_parser(__doc__ or "")
    parser.add_argument("--torch", action="store_true", help="time torch.compile, too")
    arguments = parser.parse_args()
    device = device_of(arguments)
    rows, columns = (128, 256) if arguments.cpu_smoke else (arguments.rows, arguments.columns)
    found = []
    for name, (function, inputs) in cases(rows, columns, device).items():
        if arguments.only in name:
            found.append({"case": name, "rows": rows, "columns": columns, **measured(functools.partial(function, *inputs), inputs, device)})
            if arguments.torch and (written := reference(name)) is not None:
                torch._dynamo.reset()
                us = median_us(functools.partial(torch.compile(written, dynamic=False), *inputs), device)
                found[-1] |= {"torch_us": round(us, 2), "torch_of_copy": round(copy_us(found[-1]["bytes"], device) / us, 4)}
            print(json.dumps(found[-1]), flush=True)
    write(arguments, __file__, device, found)


if __name__ == "__main__":
    main()
