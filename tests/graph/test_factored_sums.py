"""Sums whose terms differ in factors that do not vary along them are one sum."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.values import ReductionOp
from weft.options import options

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16, torch.float64: DataType.Double}


def sums_of(dtype: torch.dtype, dims: list[int], rank: int, axis: int) -> FusionDefinition:
    """sum(x), sum(x * w), sum((w * x) * (y * v)) and sum(y * x): w varies along `axis` alone, v over all but `dims`."""
    wide = DataType.Double if dtype is torch.float64 else DataType.Float
    with FusionDefinition() as fd:
        ops, others = fd.ops, [n for n in range(rank) if n not in dims]
        x, y = (ops.cast(fd.define_tensor([-1] * rank, contiguity=True, dtype=TYPES[dtype]), wide) for _ in range(2))
        w, v = (ops.cast(fd.define_tensor([-1] * n, contiguity=True, dtype=TYPES[dtype]), wide) for n in (1, len(others)))
        w, v = ops.broadcast_in_dim(w, x.shape(), [axis]), ops.broadcast_in_dim(v, x.shape(), others)
        scaled = ops.mul(x, w)
        for t in (x, scaled, ops.mul(scaled, ops.mul(y, v)), ops.mul(y, x)):
            fd.add_output(ops.sum(t, dims))
    return fd


def given(dtype: torch.dtype, shape: tuple[int, ...], dims: list[int], axis: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(sum(shape))
    sizes = [shape, shape, (shape[axis],), [n for d, n in enumerate(shape) if d not in dims]]
    return [torch.randn(*s, generator=made, dtype=torch.float64).to(dtype) for s in sizes]


def count_of_sums(fd: FusionDefinition) -> int:
    return sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("shape", "dims", "axis"), [((5, 3, 4, 6), [0, 2, 3], 1), ((37, 45), [1], 0), ((37, 45), [0], 1), ((1, 1, 7), [2], 1), ((0, 3, 4), [0, 2], 1)])
def test_four_sums_are_two_unless_they_are_of_rows(dtype, shape, dims, axis) -> None:
    fd = sums_of(dtype, dims, len(shape), axis)
    x, y, w, v = inputs = given(dtype, shape, dims, axis)
    assert count_of_sums(fd) == (4 if dims[0] == len(shape) - len(dims) else 2)
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute(inputs)
    x, y, w, v = (t.double() for t in inputs)
    w = w.reshape([n if d == axis else 1 for d, n in enumerate(shape)])
    v = v.reshape([1 if d in dims else n for d, n in enumerate(shape)])
    terms = max(1, x.numel() // max(1, outs[0].numel()))
    # a product of up to four factors, a sum of `terms` and two products: relative to the sum of the terms' magnitudes
    bound = (terms + 8) * torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    for out, t in zip(outs, (x, x * w, x * w * y * v, y * x), strict=True):
        assert ((out.double() - t.sum(dims)).abs() <= bound * t.abs().sum(dims)).all()


def test_a_factor_that_varies_along_the_sum_stays() -> None:
    """w varies along one of the axes that are summed: what it is multiplied with is summed in two ways."""
    fd = sums_of(torch.float32, [0, 1], 3, 1)
    assert count_of_sums(fd) == 4


def test_a_sum_alone_keeps_its_factors() -> None:
    """Rounding stays as the definition has it where nothing is gained."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, fd.ops.broadcast_in_dim(w, x.shape(), [0])), [1]))
    (only,) = [e for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, ReductionOp)]
    assert len(only.tensor_inputs[0].definition().tensor_inputs) == 2
