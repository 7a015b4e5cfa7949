"""One reciprocal for each row: which divisions become products, and that results are those of a division."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.compiler import prepare

BF16, FLOAT = torch.bfloat16, torch.float32
TYPES = {BF16: DataType.BFloat16, FLOAT: DataType.Float}


def normalized(dtype: torch.dtype, axis: int, *, shares: bool = False) -> FusionDefinition:
    """x over its norm along `axis`; shares: and, over the same norm, one more."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=TYPES[dtype])
        wide = fd.ops.cast(x, DataType.Float)
        norm = fd.ops.sqrt(fd.ops.sum(fd.ops.mul(wide, wide), [axis], keepdim=True))
        fd.add_output(fd.ops.cast(fd.ops.div(wide, norm), TYPES[dtype]))
        if shares:
            fd.add_output(fd.ops.cast(fd.ops.div(fd.ops.add(wide, 1.0), norm), TYPES[dtype]))
    return fd


def op_names(fd: FusionDefinition) -> list[str]:
    return [expr.op_name for expr in prepare(fd.fusion).fusion.tensor_exprs()]


def test_a_row_has_one_reciprocal_where_results_have_16_bits() -> None:
    names = op_names(normalized(BF16, 1, shares=True))
    assert names.count("narrow_inverse") == 1 and "div" not in names


def test_a_row_has_one_reciprocal_where_results_have_32_bits() -> None:
    names = op_names(normalized(FLOAT, 1, shares=True))
    assert names.count("reciprocal") == 1 and names.count("fma") == 4
    assert "narrow_inverse" not in names and "div" not in names


@pytest.mark.parametrize("largest", [1, 0, None])
def test_a_softmax_of_32_bits_needs_no_test_for_infinity(largest: int | None) -> None:
    """Only where the maximum is along the axis of the sum: its divisor is 1 or more."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        e = fd.ops.exp(x if largest is None else fd.ops.sub(x, fd.ops.max(x, [largest], True)))
        fd.add_output(fd.ops.div(e, fd.ops.sum(e, [1], True)))
    names = op_names(fd)
    assert names.count("fma") == 2 and "div" not in names
    assert ("isfinite" in names) is (largest != 1)
    given = torch.randn(5, 33, generator=torch.Generator().manual_seed(9)) * 9  # exponentials are within 3 units of rounding, approximate ones of 27 within 27
    given[0, 3], given[1, 4], given[2, 5] = float("inf"), float("nan"), -float("inf")
    exact = given - given.amax(largest, keepdim=True) if largest is not None else given
    torch.testing.assert_close(fd.execute([given])[0], exact.exp() / exact.exp().sum(1, keepdim=True), rtol=2.0**-19, atol=2.0**-140, equal_nan=True)


def test_without_a_reduction_results_of_32_bits_are_divided() -> None:
    with FusionDefinition() as fd:
        x, b = (fd.define_tensor(shape, contiguity=True) for shape in ([-1, -1], [-1, 1]))
        fd.add_output(fd.ops.div(x, b))
    assert "div" in op_names(fd)


def _quotients(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """x[i, j] / b[i] in a kernel that also adds up rows."""
    with FusionDefinition() as fd:
        numerators, divisors = (fd.define_tensor(shape, contiguity=True) for shape in ([-1, -1], [-1]))
        quotients = fd.ops.div(numerators, fd.ops.broadcast_in_dim(divisors, numerators.shape(), [0]))
        fd.add_output(quotients)
        fd.add_output(fd.ops.sum(quotients, [1]))
    assert "fma" in op_names(fd)
    return fd.execute([x, b])[0]


def test_quotients_of_all_magnitudes_are_rounded_as_by_a_division() -> None:
    generator = torch.Generator().manual_seed(4)
    bits = torch.randint(-(2**31), 2**31, (400, 64), generator=generator, dtype=torch.int64).to(torch.int32).view(FLOAT)
    b = torch.randint(-(2**31), 2**31, (400,), generator=generator, dtype=torch.int64).to(torch.int32).view(FLOAT)
    b[:64] = torch.randint(1, 2**23, (64,), generator=generator, dtype=torch.int64).to(torch.int32).view(FLOAT)  # denormal
    found, exact = _quotients(bits, b), bits / b[:, None]
    is_normal = (exact.abs() >= 2.0**-125) & (bits.abs() >= 2.0**-100)  # of smaller numerators the remainder is rounded
    assert torch.equal(found[is_normal & ~exact.isinf()], exact[is_normal & ~exact.isinf()])
    assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found[exact.isinf()], exact[exact.isinf()])
    others = ~is_normal & ~exact.isnan() & ~exact.isinf()
    assert ((found - exact).double().abs()[others] <= 2.0**-148 + 2.0**-22 * exact.double().abs()[others]).all()


def test_quotients_of_special_values_are_those_of_a_division() -> None:
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 1e-38, 3.4e38, -3.4e38, float("inf"), -float("inf"), float("nan")])
    found, exact = _quotients(special.repeat(len(special), 1), special), special / special[:, None]
    torch.testing.assert_close(found, exact, rtol=2.0**-22, atol=2.0**-148, equal_nan=True)


def test_a_divisor_for_each_element_divides() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        total = fd.ops.sum(fd.ops.cast(x, DataType.Float), [1], keepdim=True)
        fd.add_output(fd.ops.cast(fd.ops.div(total, fd.ops.cast(x, DataType.Float)), DataType.BFloat16))
    assert "narrow_inverse" not in op_names(fd)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(7, 33), (1, 40), (65, 1), (130, 256), (0, 8)])
def test_results_are_those_of_a_division(shape: tuple[int, int], axis: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator).to(BF16)
    found = normalized(BF16, axis, shares=True).execute([x])
    norm = x.double().square().sum(axis, keepdim=True).sqrt()
    for out, exact in zip(found, (x.double() / norm, (x.double() + 1.0) / norm)):
        assert ((out.double() - exact).abs() <= 2.0**-8 * exact.abs()).all()


@pytest.mark.parametrize(("row", "expected"), [([0.0, 0.0], "nan"), ([float("inf"), 1.0], "nan 0"), ([float("nan"), 1.0], "nan")])
def test_zeros_and_infinities_are_as_in_torch(row: list[float], expected: str) -> None:
    x = torch.tensor([row], dtype=BF16)
    (found,) = normalized(BF16, 1).execute([x])
    exact = x.float() / x.float().square().sum(1, keepdim=True).sqrt()
    assert torch.equal(found.float().nan_to_num(7.0), exact.to(BF16).float().nan_to_num(7.0)), expected
