"""Inputs of 8 and 4 bits through reductions, norms, norm backward and transposes, in shapes that no table has.

    python bench/narrow_shapes.py [OUT.json] [--only TEXT]

A fraction is of a copy of the packed bytes that must move. Kernels are compiled by 16 processes before anything is measured. Read first: `OPS`, `SHAPES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from measure import compile_ahead, device_of, measured, parser, request_for, table, write

from weft import DataType, FusionDefinition
from weft.errors import WeftError

BF16, FLOAT, E4M3, E5M2, FP4 = DataType.BFloat16, DataType.Float, DataType.Float8_e4m3fn, DataType.Float8_e5m2, DataType.Float4_e2m1fn
TORCH = {BF16: torch.bfloat16, E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2, FP4: torch.float4_e2m1fn_x2}
SHAPES = ((8192, 3072), (4000, 5120), (1000, 24576), (50000, 768), (333, 65536), (16384, 8192))
"""Of 20 to 134 million elements."""
LEAST_BYTES = 8 << 20


def matrix(fd: FusionDefinition, dtype: DataType) -> Any:
    return fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), FLOAT)


def vector(fd: FusionDefinition) -> Any:
    return fd.ops.cast(fd.define_tensor([-1], contiguity=True, dtype=BF16), FLOAT)


def give(fd: FusionDefinition, value: Any, dtype: DataType) -> None:
    fd.add_output(fd.ops.cast(value, dtype))


def normed(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(fd.ops.mean(fd.ops.mul(x, x), [1], True), 1e-5)))


def rms_norm(fd: FusionDefinition, dtype: DataType, out: DataType) -> None:
    x = matrix(fd, dtype)
    give(fd, fd.ops.mul(normed(fd, x), fd.ops.broadcast_in_dim(vector(fd), x.shape(), [1])), out)


def layer_norm(fd: FusionDefinition, dtype: DataType, out: DataType) -> None:
    x = matrix(fd, dtype)
    variance, mean = fd.ops.var_mean(x, [1], 0, True)
    scaled = fd.ops.mul(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))), fd.ops.broadcast_in_dim(vector(fd), x.shape(), [1]))
    give(fd, fd.ops.add(scaled, fd.ops.broadcast_in_dim(vector(fd), x.shape(), [1])), out)


def softmax(fd: FusionDefinition, dtype: DataType, out: DataType) -> None:
    x = matrix(fd, dtype)
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    give(fd, fd.ops.div(e, fd.ops.sum(e, [1], True)), out)


def norm_backward(fd: FusionDefinition, dtype: DataType, out: DataType) -> None:
    """Gradients of x and the weight; x is narrow, the gradient bf16."""
    x, g = matrix(fd, dtype), matrix(fd, BF16)
    scale = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=FLOAT)
    w, y = fd.ops.broadcast_in_dim(vector(fd), x.shape(), [1]), fd.ops.mul(x, scale)
    wg = fd.ops.mul(g, w)
    give(fd, fd.ops.mul(fd.ops.sub(wg, fd.ops.mul(y, fd.ops.mean(fd.ops.mul(wg, y), [1], True))), scale), out)
    give(fd, fd.ops.sum(fd.ops.mul(g, y), [0]), BF16)


def transpose(fd: FusionDefinition, dtype: DataType, out: DataType) -> None:
    give(fd, fd.ops.permute(matrix(fd, dtype), [1, 0]), out)


OPS: dict[str, tuple[Callable[[FusionDefinition, DataType, DataType], None], tuple[DataType, ...], tuple[DataType, ...], str]] = {
    "row sums": (lambda fd, d, o: give(fd, fd.ops.sum(matrix(fd, d), [1]), FLOAT), (E4M3, FP4), (FLOAT,), ""),
    "column sums": (lambda fd, d, o: give(fd, fd.ops.sum(matrix(fd, d), [0]), FLOAT), (E4M3, FP4), (FLOAT,), ""),
    "softmax": (softmax, (E4M3, FP4), (BF16, E4M3), ""),
    "rms norm": (rms_norm, (E4M3, FP4, BF16), (BF16, E4M3), "w"),
    "layer norm": (layer_norm, (E4M3, BF16), (E5M2,), "ww"),
    "norm backward": (norm_backward, (E4M3, FP4), (BF16,), "gsw"),
    "transpose": (transpose, (E4M3, FP4, BF16), (BF16, E4M3), ""),
    "cast": (lambda fd, d, o: give(fd, matrix(fd, d), o), (E4M3, FP4), (E5M2, BF16), ""),
}
"""Name -> definition, types of the matrix, of the result, and further inputs: g a gradient, s a scale per row, w a weight."""


def inputs_of(dtype: DataType, more: str, rows: int, columns: int, device: str) -> list[torch.Tensor]:
    """Return a matrix of the type and what `more` names."""
    if dtype is FP4:
        x = torch.randint(0, 256, (rows, columns // 2), device=device, dtype=torch.uint8).view(TORCH[dtype])
    else:
        x = torch.randn(rows, columns, device=device).to(TORCH[dtype])
    made = {"g": lambda: torch.randn(rows, columns, device=device).bfloat16(), "s": lambda: torch.rand(rows, 1, device=device)}
    return [x, *(made.get(m, lambda: torch.randn(columns, device=device).bfloat16())() for m in more)]


@functools.cache
def definition(op: str, dtype: DataType, out: DataType) -> FusionDefinition:
    with FusionDefinition() as fd:
        OPS[op][0](fd, dtype, out)
    return fd


def main() -> None:
    arguments_of = parser(__doc__ or "")
    arguments_of.add_argument("--only", default="", help="cases whose name has this in it")
    arguments = arguments_of.parse_args()
    device = device_of(arguments)
    wanted = [(op, d, o) for op, (_, types, results, _) in OPS.items() for d in types for o in results if d is not o or op != "cast"]
    shapes = ((64, 256),) if arguments.cpu_smoke else SHAPES
    cases = [(f"{op} {d.name} to {o.name}", op, d, o, *s) for op, d, o in wanted for s in shapes if arguments.only in f"{op} {d.name} to {o.name}"]
    cases = [c for c in cases if arguments.cpu_smoke or c[4] * c[5] * (c[2].bits + c[3].bits * ("sums" not in c[1])) // 8 >= LEAST_BYTES]
    if device == "cuda":
        ahead = []
        for _, op, d, o, rows, columns in cases:
            try:
                ahead.append(request_for(definition(op, d, o), inputs_of(d, OPS[op][3], rows, columns, device)))
            except (ValueError, WeftError):
                continue  # of several kernels: compiled when it is called
        compile_ahead(ahead, 16)
    found = []
    for name, op, d, o, rows, columns in cases:
        given = inputs_of(d, OPS[op][3], rows, columns, device)
        found.append({"case": name, "rows": rows, "columns": columns, **measured(functools.partial(definition(op, d, o).execute, given), given, device)})
    print(table(["case", "rows", "columns", "us", "of copy"], [[f["case"], f["rows"], f["columns"], f["us"], f["of_copy"]] for f in found]))
    write(arguments, __file__, device, found)


if __name__ == "__main__":
    main()
