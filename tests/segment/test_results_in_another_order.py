"""Rows and columns whose results lie in another order of memory than the inputs: large ones are left to a kernel that transposes."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options


def norm_of(rank: int, dim: int, dims: list[int], weighted: bool) -> FusionDefinition:
    """Normalized along `dim`, stored with axes in the order `dims`."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1] * rank, contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        var, mean = fd.ops.var_mean(x, [dim], 0, True)
        y = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))
        if weighted:
            w = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
            y = fd.ops.mul(y, fd.ops.broadcast(w, [d != dim for d in range(rank)]))
        out = fd.ops.permute(fd.ops.cast(y, DataType.BFloat16), dims)
        fd.add_output(fd.ops.stride_order(out, stride_order=list(range(rank - 1, -1, -1))))
    return fd


def check(fd: FusionDefinition, x: torch.Tensor, dim: int, dims: list[int], weighted: bool) -> int:
    """Compare with float64; return the number of kernels."""
    w = torch.randn(x.shape[dim])
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x, w] if weighted else [x])
    wide = x.double()
    var, mean = torch.var_mean(wide, dim, correction=0, keepdim=True)
    want = (wide - mean) / (var + 1e-5).sqrt()
    want = want * w.double().view([-1 if d == dim else 1 for d in range(x.dim())]) if weighted else want
    torch.testing.assert_close(got.double(), want.permute(dims), rtol=2**-8, atol=1e-4)
    assert got.is_contiguous()
    return len(list(fd.fec.kernel_runtimes))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim", "dims"),
    [
        ((16, 96, 28, 28), 1, [0, 2, 3, 1]), ((16, 28, 28, 96), 3, [0, 3, 1, 2]), ((5, 97, 33, 31), 1, [0, 2, 3, 1]), ((2048, 515), 1, [1, 0]),
        ((515, 2048), 0, [1, 0]), ((7, 9, 11), 1, [0, 2, 1]), ((1, 9, 1), 1, [0, 2, 1]), ((3, 1, 64), 1, [2, 0, 1]), ((0, 8, 4), 1, [0, 2, 1]),
    ],
    ids=str,
)  # fmt: skip
def test_normalized_and_transposed(shape: tuple[int, ...], dim: int, dims: list[int], weighted: bool) -> None:
    check(norm_of(len(shape), dim, dims, weighted), torch.randn(shape).bfloat16(), dim, dims, weighted)


def test_large_ones_are_transposed_by_another_kernel() -> None:
    assert check(norm_of(4, 1, [0, 2, 3, 1], True), torch.randn(16, 96, 56, 56).bfloat16(), 1, [0, 2, 3, 1], True) == 2


def test_neighbours_in_a_sector_and_small_ones_are_stored_one_by_one() -> None:
    """Two channels of a pixel: a warp stores to as many sectors as a vector would. A second launch takes longer than small results."""
    assert check(norm_of(4, 1, [0, 2, 3, 1], False), torch.randn(64, 2, 56, 56).bfloat16(), 1, [0, 2, 3, 1], False) == 1
    assert check(norm_of(3, 1, [0, 2, 1], False), torch.randn(2, 64, 100).bfloat16(), 1, [0, 2, 1], False) == 1


def test_values_in_the_other_order_stay_in_one_kernel() -> None:
    """The gradient of a softmax that was transposed: one input lies as the results do, and the other does not."""
    with FusionDefinition() as fd:
        y, g = (fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16) for _ in range(2))
        y, g = (fd.ops.cast(t, DataType.Float) for t in (y, fd.ops.permute(g, [1, 0])))
        product = fd.ops.mul(y, g)
        total = fd.ops.broadcast(fd.ops.sum(product, [1]), [False, True])
        fd.add_output(fd.ops.cast(fd.ops.sub(product, fd.ops.mul(y, total)), DataType.BFloat16))
    y, g = torch.randn(1030, 520).softmax(1).bfloat16(), torch.randn(520, 1030).bfloat16()
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([y, g])
    product = y.double() * g.double().t()
    torch.testing.assert_close(got.double(), product - y.double() * product.sum(1, keepdim=True), rtol=2**-7, atol=1e-4)
    assert len(list(fd.fec.kernel_runtimes)) == 1
