"""Kernels that must be slow, found by counting, without a GPU: they spill, leave half of the chip idle, or keep more in arrays than a thread has registers.

    python bench/by_count.py [OUT.json] [--only TEXT] [--chip H200]

Each definition is lowered at sizes that no table has (odd, few and long, many and narrow), and compiled for the chip. A line is a kernel with something to
report; the last line says how many were looked at. Read first: `DEFINITIONS`, `found_in`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from weft import DataType, FusionDefinition
from weft.arch import Arch, arch_by_name
from weft.device.library import translation_unit
from weft.expr import evaluate_int
from weft.ir.values import no_reductions
from weft.lower.program import KernelProgram
from weft.options import current, options
from weft.runtime.nvrtc import Compiled, compile_or_load
from weft.runtime.spills import fewest_spills, mixed_or_apart
from weft.schedulers.limits import STEP_BYTES

FLOAT, BF16 = DataType.Float, DataType.BFloat16
TORCH = {FLOAT: torch.float32, BF16: torch.bfloat16}
ODD = [(4096, 4099), (1000, 8193), (65536, 321), (16384, 1023), (333, 20001), (3001, 2999), (20000, 77), (8192, 4096)]
FEW = [(1, 1 << 24), (2, 1 << 23), (5, 3000001), (16, 1 << 20), (1 << 22, 4), (1 << 21, 9), (300000, 40), (1 << 24, 1), (65, 131072)]
LARGE_BYTES = 8 << 20
"""Of the inputs, from which an idle half of a chip is reported."""
SIZES = {"weft::bf16": 2, "weft::half": 2, "double": 8, "long long": 8}


def compiled_for(program: KernelProgram, arch: Arch) -> Compiled:
    """Return a program's machine code as the runtime compiles it, however much it spills."""
    unit = translation_unit(program.text, program.blocks, shortened=True)

    def compile_with(limit: int | None) -> Compiled:
        return mixed_or_apart(unit, lambda text: compile_or_load(text, program.name, arch.nvrtc_target, max_registers=limit))

    return fewest_spills(program, arch, compile_with)


class Tensors:
    """The inputs of a definition: matrices, columns (one value per column) and rows (one value per row). kinds: of each, in order."""

    def __init__(self, fd: FusionDefinition, dtype: DataType) -> None:
        self.fd, self.ops, self.dtype = fd, fd.ops, dtype
        self.kinds: list[str] = []

    def matrix(self) -> Any:
        self.kinds.append("matrix")
        return self.ops.cast(self.fd.define_tensor([-1, -1], contiguity=True, dtype=self.dtype), FLOAT)

    def column(self, like: Any) -> Any:
        self.kinds.append("column")
        value = self.ops.cast(self.fd.define_tensor([-1], contiguity=True, dtype=self.dtype), FLOAT)
        return self.ops.broadcast_in_dim(value, shape=like.shape(), broadcast_dims=[1])

    def row(self) -> Any:
        self.kinds.append("row")
        return self.fd.define_tensor([-1, 1], contiguity=[True, None], dtype=FLOAT)

    def add(self, value: Any, *, is_wide: bool = False) -> None:
        self.fd.add_output(value if is_wide else self.ops.cast(value, self.dtype))

    def shaped(self, rows: int, columns: int) -> list[torch.Tensor]:
        shapes = {"matrix": (rows, columns), "column": (columns,), "row": (rows, 1)}
        return [torch.empty(shapes[kind], dtype=torch.float32 if kind == "row" else TORCH[self.dtype]) for kind in self.kinds]


def _normed(t: Tensors, x: Any, dim: int) -> Any:
    variance, mean = t.ops.var_mean(x, dims=[dim], correction=0, keepdim=True)
    return t.ops.mul(t.ops.sub(x, mean), t.ops.rsqrt(t.ops.add(variance, 1e-5)))


def add_layer_norm(t: Tensors) -> None:
    x = t.ops.add(t.matrix(), t.matrix())
    t.add(x)
    t.add(t.ops.add(t.ops.mul(_normed(t, x, 1), t.column(x)), t.column(x)))


def gated_rms_norm(t: Tensors) -> None:
    x, z = t.matrix(), t.matrix()
    x = t.ops.mul(x, t.ops.mul(z, t.ops.sigmoid(z)))
    t.add(t.ops.mul(t.ops.mul(x, t.ops.rsqrt(t.ops.add(t.ops.mean(t.ops.mul(x, x), [1], True), 1e-6))), t.column(x)))


def biased_softmax(t: Tensors) -> None:
    x = t.matrix()
    x = t.ops.add(t.ops.mul(x, t.row()), t.column(x))
    e = t.ops.exp(t.ops.sub(x, t.ops.max(x, [1], True)))
    t.add(t.ops.div(e, t.ops.sum(e, [1], True)))


def standardized_columns(t: Tensors) -> None:
    t.add(_normed(t, t.matrix(), 0))


def masked_mean(t: Tensors) -> None:
    x = t.matrix()
    mask = t.ops.cast(t.ops.gt(x, 0.0), FLOAT)
    t.add(t.ops.div(t.ops.sum(t.ops.mul(x, mask), [0, 1]), t.ops.sum(mask, [0, 1])), is_wide=True)


def extent_of_rows(t: Tensors) -> None:
    x = t.matrix()
    low, high = t.ops.min(x, [1], True), t.ops.max(x, [1], True)
    t.add(t.ops.div(t.ops.sub(x, low), t.ops.sub(high, low)))


def column_sums_of_columns(t: Tensors) -> None:
    x, g = t.matrix(), t.matrix()
    y = t.ops.add(t.ops.mul(x, t.column(x)), t.column(x))
    t.add(t.ops.sum(t.ops.mul(t.ops.mul(y, t.ops.sigmoid(y)), g), [0]))
    t.add(t.ops.sum(g, [0]))


def layer_norm_backward(t: Tensors) -> None:
    x, g = t.matrix(), t.matrix()
    inverse, mean, weight = t.row(), t.row(), t.column(x)
    normed, weighted = t.ops.mul(t.ops.sub(x, mean), inverse), t.ops.mul(g, weight)
    tilt = t.ops.mul(normed, t.ops.mean(t.ops.mul(weighted, normed), [1], True))
    t.add(t.ops.mul(t.ops.sub(t.ops.sub(weighted, tilt), t.ops.mean(weighted, [1], True)), inverse))
    t.add(t.ops.sum(t.ops.mul(g, normed), [0]))
    t.add(t.ops.sum(g, [0]))


def running_sums(t: Tensors) -> None:
    t.add(t.ops.cumsum(t.matrix(), 1))


def running_sums_down(t: Tensors) -> None:
    x = t.matrix()
    t.add(t.ops.cumsum(t.ops.add(x, t.column(x)), 0))


DEFINITIONS: dict[str, Callable[[Tensors], None]] = {
    made.__name__: made for made in (
        add_layer_norm, gated_rms_norm, biased_softmax, standardized_columns, masked_mean, extent_of_rows, column_sums_of_columns, layer_norm_backward,
        running_sums, running_sums_down,
    )
}  # fmt: skip


def array_bytes(text: str) -> int:
    """Return what a thread keeps in arrays, if all of them were alive at once."""
    return sum(SIZES.get(kind, 4) * int(count) for kind, count in re.findall(r"weft::Array<([\w: ]+), (\d+)>", text))


def found_in(name: str, dtype: DataType, shapes: list[tuple[int, int]], arch: Arch) -> Iterator[dict[str, Any]]:
    """Yield a row for each kernel of a definition at each size; "found" says what must be slow."""
    with FusionDefinition() as fd:
        tensors = Tensors(fd, dtype)
        DEFINITIONS[name](tensors)
    for shape in shapes:
        given = tensors.shaped(*shape)
        caller = fd._executor_cache()._caller
        sizes, engine = caller.sizes(given, None, current())
        for use in sizes.kernels:
            program = caller.kernels.program(caller.request(use, sizes, engine, current()))
            compiled = compiled_for(program, arch)
            used, blocks = compiled.resources, math.prod(evaluate_int(extent, use.env) for extent in program.grid)
            found = []
            if (used.spill_store_bytes or 0) > STEP_BYTES and not program.cooperative:  # those that are cooperative have others to choose from
                found.append(f"spills {used.spill_store_bytes} bytes per thread")
            if 2 * blocks < arch.sm_count - 2 and sum(t.nbytes for t in given) >= LARGE_BYTES and program.cooperative is False and _is_large(use, LARGE_BYTES):
                found.append(f"{blocks} blocks for {arch.sm_count} multiprocessors")
            if array_bytes(program.text) > 3 * 4 * used.registers:
                found.append(f"{array_bytes(program.text)} bytes of arrays, {used.registers} registers")
            case = f"{name} {dtype.name} {shape[0]}x{shape[1]}"
            yield {"case": case, "kernel": program.name, "registers": used.registers, "blocks": blocks, "found": found}


def _is_large(use: Any, bytes_: int) -> bool:
    """True if one of a kernel's inputs has so many bytes."""
    tensors = [t for t in use.inputs if hasattr(t, "get_logical_domain")]
    axes = ([axis for axis in no_reductions(t.get_logical_domain()) if not axis.is_broadcast()] for t in tensors)
    counts = [math.prod(evaluate_int(axis.sym, use.env) for axis in own) for own in axes]
    return any(count * t.dtype().bits // 8 >= bytes_ for count, t in zip(counts, tensors))


def report(
    about: str, names: Iterable[str], rows_of: Callable[[str, str], Iterable[dict[str, Any]]], line_of: Callable[[dict[str, Any]], str]
) -> list[dict[str, Any]]:  # fmt: skip
    """Run a program that counts: print the lines of the rows of each name that is asked for, write the rows to a file, and return them. rows_of: of a name and
    a chip. line_of: "" for nothing to say.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--chip", default="H200")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with options(chip=given.chip):
        for name in (n for n in names if given.only in n):
            for row in rows_of(name, given.chip):
                rows.append(row)
                if line := line_of(row):
                    print(line, flush=True)
    if given.out:
        Path(given.out).write_text(json.dumps({"chip": given.chip, "rows": rows}, indent=1), encoding="utf-8")
    return rows


def main() -> None:
    def rows_of(name: str, chip: str) -> Iterator[dict[str, Any]]:
        for dtype in (BF16, FLOAT):
            yield from found_in(name, dtype, ODD + FEW, arch_by_name(chip))

    def line_of(row: dict[str, Any]) -> str:
        return f"{row['case']:55s} {row['kernel']:42s} {'; '.join(row['found'])}" if row["found"] else ""

    rows = report(__doc__.split("\n")[0], DEFINITIONS, rows_of, line_of)
    print(f"{sum(bool(row['found']) for row in rows)} of {len(rows)} kernels")


if __name__ == "__main__":
    main()
