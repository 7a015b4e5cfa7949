"""Kernels of real fusions can be launched on every chip: threads, registers and shared memory of the lowered program, not of the params alone."""

from __future__ import annotations

import pytest
from example_fusions import BF16, F32, column_sum, layer_norm, op, output, row_sum, row_sum_only, size, softmax, tensor, up
from weft.arch import CHIPS
from weft.compiler import compile_program, propose
from weft.dtypes import DataType
from weft.expr import evaluate
from weft.ir.fusion import Fusion
from weft.ops.build import broadcast
from weft.ops.reductions import reduce


def sums(count: int, axis: int, dtype: DataType) -> Fusion:
    """`count` sums over one axis."""
    fusion = Fusion()
    x = up(tensor(fusion, ["m", "n"], dtype))
    for number in range(count):
        output(reduce(fusion, "sum", op("mul", x, float(number + 1)), [axis]), dtype)
    return fusion


def centered(count: int, axis: int) -> Fusion:
    """Sums over one axis, each used over that axis."""
    fusion = Fusion()
    x = total = up(tensor(fusion, ["m", "n"]))
    for number in range(count):
        scaled = op("mul", x, float(number + 1))
        folded = row_sum(scaled) if axis else broadcast(fusion, reduce(fusion, "sum", scaled, [0]), [True, False])
        total = op("add", op("sub", x, folded), total)
    output(total, BF16)
    return fusion


CASES = {
    "12 column sums": (lambda: sums(12, 0, BF16), (8192, 8192)),
    "12 shared column sums": (lambda: sums(12, 0, BF16), (16384, 4096)),
    "8 column sums of float32": (lambda: sums(8, 0, F32), (8192, 8192)),
    "8 row sums": (lambda: sums(8, 1, BF16), (16, 1 << 20)),
    "8 row sums used": (lambda: centered(8, 1), (512, 131072)),
    "8 short row sums used": (lambda: centered(8, 1), (16384, 129)),
    "12 column sums used": (lambda: centered(12, 0), (8192, 262144)),  # with few columns, two kernels are chosen
    "column sum of odd rows": (lambda: column_sum(F32), (5001, 4097)),
    "row sum": (row_sum_only, (16384, 4096)),
    "softmax of float32": (lambda: softmax(F32), (4096, 16384)),
    "softmax, odd": (softmax, (600, 100_003)),
    "layer norm": (layer_norm, (100_000, 100_000)),
    "layer norm, odd": (lambda: layer_norm(F32), (300, 200_001)),
}


@pytest.mark.parametrize("arch", CHIPS.values(), ids=lambda a: a.name)
@pytest.mark.parametrize("name", CASES)
def test_a_block_of_the_kernel_fits_the_chip(name, arch):
    make, (rows, columns) = CASES[name]
    fusion, env = make(), {size("m"): rows, size("n"): columns}
    # rows by TMA, whose blocks test_rows_by_tma.py checks, need sizes that are named after an input
    program = compile_program(fusion, propose(fusion, env, {}, arch, way="register"), DataType.Int, name="k")
    x, y, z = (int(evaluate(extent, env)) for extent in program.block)
    shared = int(evaluate(program.shared_bytes, env))
    assert x * y * z <= arch.max_threads_per_block and z <= 64
    assert arch.blocks_per_sm(x * y * z, program.max_registers or arch.max_registers_per_thread, shared) >= 1
