"""Rows that are multiplied by a number before they are summed in bags: the sums are multiplied instead, and the product is not stored. Rows of any axis are read
where they lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options

NARROW = {torch.bfloat16: DataType.BFloat16, torch.float16: DataType.Half}


def scaled(x: torch.Tensor, make: Callable[[Any, Any], Any]) -> tuple[torch.Tensor, int]:
    """Return sums of bags of make(ops, x), rounded to the type of x, and the number of kernels. Bag 1 has no rows."""
    places = torch.tensor([0, 4, 4]), torch.tensor([4, 4, 7]), torch.tensor([5, 1, 1, 0, 2, 5, 3])
    with FusionDefinition() as fd:
        rows, *given = (fd.from_pytorch(t) for t in (x, *places))
        made = make(fd.ops, rows)
        if x.dtype in NARROW:
            made = fd.ops.cast(made, dtype=NARROW[x.dtype])
        fd.add_output(fd.ops.bag_sum(made, *given))
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute([x, *places])
    return out, len(fd.fec.kernel_runtimes)


def sums(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[[5, 1, 1, 0]].sum(0), 0 * x[0].nan_to_num(), x[[2, 5, 3]].sum(0)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_another_axis(dtype: torch.dtype) -> None:
    """A permutation between the product and the sums."""
    x, narrow = torch.randn(5, 6, 8).to(dtype), NARROW.get(dtype, DataType.Float)

    def behind(ops: Any, t: Any) -> Any:
        return ops.permute(ops.cast(ops.mul(ops.cast(t, dtype=DataType.Float), 3.0), dtype=narrow), [1, 2, 0])

    def between(ops: Any, t: Any) -> Any:
        first = ops.permute(ops.mul(ops.cast(ops.permute(t, [2, 0, 1]), dtype=DataType.Float), 2.0), [2, 1, 0])  # axes 1, 0, 2
        return ops.permute(ops.cast(ops.mul(first, 1.5), dtype=narrow), [0, 2, 1])

    for make in (behind, between):
        out, kernels = scaled(x, make)
        assert kernels == 1
        torch.testing.assert_close(out.double(), 3 * sums(x.permute(1, 2, 0).double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [1, 7, 24])
def test_numbers_are_multiplied_with_the_sums(dtype: torch.dtype, width: int) -> None:
    x = torch.randn(6, 2 * width).to(dtype)[:, ::2]
    found, count = scaled(x, lambda o, t: o.div(o.mul(3.0, t), -7.0))
    unit = 2.0**-52 if dtype is torch.float64 else 2.0**-23
    assert count == 1 and found.dtype is (dtype if dtype in (torch.float32, torch.float64) else torch.float32)
    assert ((found.double() - sums(x.double() * 3 / -7)).abs() <= 6 * unit * sums(x.double().abs())).all()


@pytest.mark.parametrize(
    "make, twin",
    [
        (lambda o, t: o.mul(t, math.inf), lambda x: x * math.inf),  # a bag without rows would be no number
        (lambda o, t: o.div(t, 0.0), lambda x: x / 0),
        (lambda o, t: o.add(t, 1.0), lambda x: x + 1),
        (lambda o, t: o.mul(t, t), lambda x: x * x),
        (lambda o, t: o.div(2.0, t), lambda x: 2 / x),
        (lambda o, t: o.cast(o.mul(o.cast(o.mul(t, 4.0), dtype=DataType.Int), 2.0), dtype=DataType.Float), lambda x: (x * 4).trunc() * 2),
    ],
)
def test_what_is_no_product_with_a_number_is_stored(make: Callable[[Any, Any], Any], twin: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(6, 9)
    found, count = scaled(x, make)
    want = sums(twin(x.double()))
    assert count == 2
    torch.testing.assert_close(found[[0, 2]].double(), want[[0, 2]], rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not found[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factor", [1, 3], ids=["as they are", "multiplied"])
def test_weighted_rows_of_a_later_axis(dtype: torch.dtype, factor: int) -> None:
    """Weights belong to places of the order, whatever axis of the memory the rows lie along."""
    x, weights = torch.randn(3, 6, 7).to(dtype), torch.randn(7).to(dtype)
    given = [torch.tensor([0, 4, 4]), torch.tensor([4, 4, 7]), torch.tensor([5, 1, 1, 0, 2, 5, 3]), weights]
    with FusionDefinition() as fd:
        rows, *read = (fd.from_pytorch(t) for t in (x, *given))
        rows = fd.ops.permute(rows, [1, 2, 0])
        if factor != 1:
            rows = fd.ops.mul(rows, float(factor))
            rows = fd.ops.cast(rows, dtype=NARROW[dtype]) if dtype in NARROW else rows
        fd.add_output(fd.ops.bag_sum(rows, *read))
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute([x, *given])
    terms = factor * x.double().permute(1, 2, 0)[given[2]] * weights.double()[:, None, None]
    unit = 2.0**-52 if dtype is torch.float64 else 2.0**-23
    assert len(fd.fec.kernel_runtimes) == 1
    for found, own in zip(out.double(), (terms[:4], terms[:0], terms[4:])):
        assert ((found - own.sum(0)).abs() <= 6 * unit * own.abs().sum(0)).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_integers_of_a_later_axis(dtype: torch.dtype) -> None:
    x = torch.randint(-50, 50, (5, 6, 8), dtype=dtype)
    out, kernels = scaled(x, lambda ops, t: ops.permute(t, [1, 2, 0]))
    assert kernels == 1 and torch.equal(out, sums(x.permute(1, 2, 0)))
