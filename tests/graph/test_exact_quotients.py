"""Quotients by powers of two are products, with the same bits."""

from __future__ import annotations

import math

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.values import PointwiseOp


def quotient(divisor: float, dtype: DataType = DataType.Float) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.div(x, divisor))
    return fd


def ops_of(fd: FusionDefinition) -> list[str]:
    return [e.op_name for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, PointwiseOp) and e.op_name != "cast"]


@pytest.mark.parametrize("divisor", [2.0, 8.0, -0.25, 1.0, 2.0**-126, 2.0**126, -(2.0**100)])
def test_powers_of_two_have_exact_reciprocals(divisor: float) -> None:
    fd = quotient(divisor)
    assert ops_of(fd) == ["mul"]
    x = torch.cat([torch.randn(3, 7) * 2.0**k for k in (-140, -126, -30, 0, 30, 100, 126)])
    x[0, :5] = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])
    with poisoned_outputs():
        (out,) = fd.execute([x])
    wanted = x / divisor
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out.nan_to_num(5.0).view(torch.int32), wanted.nan_to_num(5.0).view(torch.int32))


@pytest.mark.parametrize("divisor", [3.0, 10.0, 0.0, math.inf, math.nan, 1.5, 2.0**127, 2.0**-127])
def test_others_stay_quotients(divisor: float) -> None:
    assert ops_of(quotient(divisor)) == ["div"]


def test_integers_stay_quotients() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.div(fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int), 4))
    assert ops_of(fd) == ["div"]
    x = torch.arange(-9, 9)
    assert torch.equal(fd.execute([x])[0], torch.div(x, 4, rounding_mode="trunc"))


@pytest.mark.parametrize(("dtype", "of_torch"), [(DataType.BFloat16, torch.bfloat16), (DataType.Half, torch.float16), (DataType.Double, torch.float64)])
def test_types(dtype: DataType, of_torch: torch.dtype) -> None:
    fd = quotient(16.0, dtype)
    assert ops_of(fd) == ["mul"]
    x = torch.randn(5, 9).to(of_torch)
    with poisoned_outputs():
        (out,) = fd.execute([x])
    assert torch.equal(out.to(of_torch), x / 16.0)
