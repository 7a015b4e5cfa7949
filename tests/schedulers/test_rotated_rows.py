"""Rows and columns reduced in one kernel where an input is read only at computed positions: the backward of a norm of queries or keys behind rotary positions."""

from __future__ import annotations

import pytest
import torch
from two_sided_fusions import TORCH, numbers, relative_error

from weft import DataType, FusionDefinition
from weft.ir.enums import SchedulerType

# Of the largest value: a sum of at most 400 terms in float, and one rounding of the result (bf16: 2^-9).
TOLERANCE = {DataType.Float: 64 * 2.0**-23, DataType.BFloat16: 2.0**-8}


def rotated_norm_backward(rows: int, heads: int, width: int, cut: int, dtype: DataType) -> FusionDefinition:
    """(gradient, sine, x, 1 / root of the mean square, weight) -> gradients of x and of the weight. The sine is read at rotated positions alone."""
    with FusionDefinition() as fd:
        ops, shape = fd.ops, [rows, heads, width]

        def given(sizes: list[int], kind: DataType = dtype):  # noqa: ANN202
            t = fd.define_tensor(shape=sizes, contiguity=[None if n == 1 else True for n in sizes], dtype=kind)
            return t if kind is DataType.Float else ops.cast(t, DataType.Float)

        g, sine, x, rstd = given(shape), given([rows, 1, width]), given(shape), given([rows, heads, 1], DataType.Float)
        weight = ops.broadcast_in_dim(given([width]), shape, [2])
        turned = ops.mul(g, sine)
        low = ops.slice(turned, [0, 0, 0], [rows, heads, cut])
        high = ops.slice(turned, [0, 0, cut], [rows, heads, width])
        g = ops.add(g, ops.cat([high, ops.neg(low)], -1))
        normed, scaled = ops.mul(x, rstd), ops.mul(g, weight)
        mean = ops.mul(ops.sum(ops.mul(scaled, normed), [2], True), fd.define_scalar(1.0 / width))
        fd.add_output(ops.cast(ops.mul(ops.sub(scaled, ops.mul(normed, mean)), rstd), dtype))
        fd.add_output(ops.cast(ops.sum(ops.mul(g, normed), [0, 1]), dtype))
    return fd


@pytest.mark.parametrize("rows, heads, width, cut", [(37, 3, 128, 64), (9, 5, 34, 17), (23, 2, 30, 11), (40, 1, 256, 100)])
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float], ids=str)
def test_rotated_rows_and_columns_are_one_kernel(rows, heads, width, cut, dtype):
    g, x = (numbers(rows, heads, width).to(TORCH[dtype]) for _ in range(2))
    sine, weight = numbers(rows, 1, width).to(TORCH[dtype]), numbers(width).to(TORCH[dtype])
    rstd = (x.double().square().mean(2, keepdim=True) + 1e-6).rsqrt().float()
    fd = rotated_norm_backward(rows, heads, width, cut, dtype)
    outputs = fd.execute([g, sine, x, rstd, weight])
    (kernel,) = fd.fec.kernel_runtimes
    assert kernel.proposal.scheduler is SchedulerType.inner_outer_persistent
    turned = g.double() * sine.double()
    total = g.double() + torch.cat((turned[..., cut:], -turned[..., :cut]), -1)
    normed, scaled = x.double() * rstd.double(), total * weight.double()
    wanted = [(scaled - normed * (scaled * normed).mean(2, keepdim=True)) * rstd.double(), (total * normed).sum((0, 1))]
    for got, expected in zip(outputs, wanted, strict=True):
        assert relative_error(got, expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize("heads, width", [(3, 64), (2, 128), (5, 96)])
@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Float], ids=str)
def test_tables_of_positions_are_loaded_with_short_rows(heads, width, dtype):
    """All heads of a position share its row of a table, other rows have others."""
    rows = 37
    with FusionDefinition() as fd:
        ops = fd.ops
        x, table = (ops.cast(fd.define_tensor(shape=sizes, contiguity=[None if n == 1 else True for n in sizes], dtype=dtype), DataType.Float)
                    for sizes in ([rows, heads, width], [rows, 1, width]))  # fmt: skip
        scale = ops.rsqrt(ops.add(ops.mean(ops.mul(x, x), [2], keepdim=True), 1e-6))
        fd.add_output(ops.cast(ops.mul(ops.mul(x, scale), table), dtype))
    x, table = numbers(rows, heads, width).to(TORCH[dtype]), numbers(rows, 1, width).to(TORCH[dtype])
    (out,) = fd.execute([x, table])
    wanted = x.double() * (x.double().square().mean(2, keepdim=True) + 1e-6).rsqrt() * table.double()
    assert relative_error(out, wanted) <= TOLERANCE[dtype]
    assert fd.fec.kernel_runtimes[-1].proposal.params.weights == "registers"
