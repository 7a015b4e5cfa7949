"""Products over one of their factors: which become the other factor, and where that is no number."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.compiler import prepare


def quotient(dtype: DataType, *, is_factor: bool = True) -> FusionDefinition:
    """a * b / b, or a * b / a where a has one element per row."""
    with FusionDefinition() as fd:
        a, b = (fd.ops.cast(fd.define_tensor(shape, contiguity=True, dtype=dtype), DataType.Float) for shape in ([-1, 1], [-1, -1]))
        product = fd.ops.mul(a, b)
        fd.add_output(fd.ops.div(product, b if is_factor else fd.ops.add(b, 1.0)))
    return fd


def names(fd: FusionDefinition) -> list[str]:
    return [expr.op_name for expr in prepare(fd.fusion).fusion.tensor_exprs()]


def test_only_a_factor_is_cancelled() -> None:
    assert "div" not in names(quotient(DataType.BFloat16)) and "cancelled" in names(quotient(DataType.BFloat16))
    assert "div" in names(quotient(DataType.Float, is_factor=False))


def test_whole_numbers_and_doubles_are_divided() -> None:
    for dtype in (DataType.Double, DataType.Int):
        with FusionDefinition() as fd:
            a, b = (fd.define_tensor([-1], contiguity=True, dtype=dtype) for _ in range(2))
            fd.add_output(fd.ops.div(fd.ops.mul(a, b), b))
        assert "cancelled" not in names(fd)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (65, 33), (0, 4)])
def test_results_are_those_of_product_and_quotient(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(8)
    a, b = torch.randn((shape[0], 1), generator=generator), torch.randn(shape, generator=generator)
    special = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45, 3e38])
    b.flatten()[: len(special)] = special[: b.numel()]
    (found,) = quotient(DataType.Float).execute([a, b])
    exact = a.double() * b.double() / b.double()
    torch.testing.assert_close(found.double(), exact, rtol=2.0**-23, atol=0.0, equal_nan=True)


def of_quotients(dtype: DataType) -> FusionDefinition:
    """(c * a) / (a / b), the same over b again, and (a * c) / (b / a), of which nothing is cancelled."""
    with FusionDefinition() as fd:
        a, b, c = (fd.ops.cast(fd.define_tensor(shape, contiguity=True, dtype=dtype), DataType.Float) for shape in ([-1, -1], [-1, -1], [-1, 1]))
        share = fd.ops.div(fd.ops.mul(c, a), fd.ops.div(a, b))
        for t in (share, fd.ops.div(share, b), fd.ops.div(fd.ops.mul(a, c), fd.ops.div(b, a))):
            fd.add_output(t)
    return fd


def test_dividends_of_divisors_are_cancelled() -> None:
    found = names(of_quotients(DataType.Float))
    assert found.count("cancelled") == 3 and found.count("div") == 2


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (65, 33), (0, 4)])
def test_results_of_dividends_of_divisors(shape: tuple[int, int]) -> None:
    """Where a is 0 or no finite number, none; b at its limits times c."""
    generator = torch.Generator().manual_seed(9)
    a, b = (torch.randn(shape, generator=generator) for _ in range(2))
    c = torch.randn((shape[0], 1), generator=generator)
    special = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45, 3e38])
    a.flatten()[: len(special)] = special[: a.numel()]
    b.flatten()[4:7] = torch.tensor([0.5, 2.0, 0.0])[: max(0, b.numel() - 4)]
    found = of_quotients(DataType.Float).execute([a, b, c])
    x, y, z = a.double(), b.double(), c.double()
    share = z * x / (x / y)
    for got, want in zip(found, (share, share / y, x * z / (y / x)), strict=True):
        torch.testing.assert_close(got, want.float(), rtol=2.0**-22, atol=1e-37, equal_nan=True)
