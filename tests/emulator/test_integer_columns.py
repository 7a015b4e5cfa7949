"""Sums of integers down columns, of which a thread has two: GCC's loop vectorizer made every other one of them 0 in the emulator."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition

DTYPES = {DataType.Int: torch.int64, DataType.Int32: torch.int32, DataType.Float: torch.float32, DataType.Double: torch.float64}


@pytest.mark.parametrize("check", ["bounds", "races"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(3, 7, 130), (5, 64, 64), (3, 7, 33)])
def test_sums_down_columns(sizes: tuple[int, int, int], dtype: DataType, check: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True, dtype=dtype)
        total = fd.ops.sum(x, [0], True, dtype)
        fd.add_output(total)
        fd.add_output(fd.ops.sub(x, total))
    torch.manual_seed(sum(sizes))
    values = torch.randint(-9, 10, sizes).to(DTYPES[dtype])
    wanted = values.sum(0, keepdim=True).to(values.dtype)
    sums, rest = fd.execute([values], check=check)
    assert torch.equal(sums, wanted) and torch.equal(rest, values - wanted)


@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Int32])
def test_gradient_of_a_minimum_over_rows(dtype: DataType) -> None:
    """As frontends write it: shared among the elements that are as small, which are counted as integers."""
    with FusionDefinition() as fd:
        x, smallest, g = (fd.define_tensor(shape=shape, contiguity=True) for shape in ([3, 7, 130], [7, 130], [7, 130]))
        least, slope = (fd.ops.expand(fd.ops.broadcast(t, [True, False, False]), [3, -1, -1]) for t in (smallest, g))
        found = fd.ops.eq(x, least)
        count = fd.ops.cast(fd.ops.sum(fd.ops.cast(found, dtype), [0], True), DataType.Float)
        fd.add_output(fd.ops.mul(fd.ops.mul(slope, fd.ops.cast(found, DataType.Float)), fd.ops.reciprocal(count)))
    values, slopes = torch.randn(3, 7, 130), torch.randn(7, 130)
    leaf = values.double().requires_grad_()
    leaf.amin(0).backward(slopes.double())
    (out,) = fd.execute([values, values.amin(0), slopes], check="bounds")
    torch.testing.assert_close(out, leaf.grad.float())
