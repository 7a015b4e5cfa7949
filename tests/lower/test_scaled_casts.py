"""A product with a factor of a block, cast to 4 bits, is one statement; other products stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition, quantize
from weft.arch import H200
from weft.compiler import compile_program, propose
from weft.reference import narrow

BF16, FLOAT, FP4 = DataType.BFloat16, DataType.Float, DataType.Float4_e2m1fn


def text_of(build: Callable[[Any, Any], None], dtype: DataType = BF16) -> str:
    with FusionDefinition() as fd:
        build(fd, fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), FLOAT))
    sizes = dict(zip([a.sym for t in fd.fusion.inputs() for a in t.get_logical_domain()], (4096, 512)))
    return compile_program(fd.fusion, propose(fd.fusion, sizes, {}, H200), DataType.Int32, name="scaled").text


def give(fd: Any, *results: Any) -> None:
    for result in results:
        fd.add_output(result)


def tripled(fd: Any, x: Any) -> None:
    give(fd, fd.ops.cast(fd.ops.mul(x, 3.0), FP4))


def squared(fd: Any, x: Any) -> None:
    give(fd, fd.ops.cast(fd.ops.mul(x, x), FP4))


def read_twice(fd: Any, x: Any) -> None:
    product = fd.ops.mul(x, 3.0)
    give(fd, fd.ops.cast(product, FP4), fd.ops.cast(product, BF16))


@pytest.mark.parametrize("dtype", [BF16, FLOAT], ids=str)
def test_a_block_and_its_scale_are_one_statement(dtype):
    """The elements are read as they are in registers, cast or not."""
    text = text_of(lambda fd, x: give(fd, *fd.ops.nv_block_quantize(x)), dtype)
    assert "convert_scaled_vector<" in text and "convert_narrow_vector<" not in text


@pytest.mark.parametrize("build, is_joined", [(tripled, True), (squared, False), (read_twice, False)])
def test_only_products_with_one_factor_that_nothing_else_reads(build, is_joined):
    text = text_of(build)
    assert ("convert_scaled_vector<" in text) == is_joined and ("convert_narrow_vector<" in text) != is_joined


@pytest.mark.parametrize("build, product", [(tripled, lambda x: x * 3), (squared, lambda x: x * x), (read_twice, lambda x: x * 3)])
@pytest.mark.parametrize("shape", [(1, 32), (37, 48), (5, 34), (129, 96)])
def test_codes_are_those_of_the_products(build, product, shape):
    """Exact; NaN, infinities and what is beyond the largest code among them."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])).bfloat16()
    x[0, 0], x[0, 1], x[shape[0] // 2, 3], x[-1, -1] = float("nan"), float("-inf"), -1e30, -0.0
    with FusionDefinition() as fd:
        build(fd, fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=BF16), FLOAT))
    found = fd.execute([x])[0]
    assert torch.equal(found.view(torch.uint8), narrow.packed(product(x.float()).double(), FP4).view(torch.uint8))


@pytest.mark.parametrize("has_scale", [False, True])
def test_a_block_of_zeros_keeps_signs(has_scale):
    """The factor of a scale of 0 is the largest float, whose products with 256 are beyond. Tiny numbers and zeros that a mask made are among the blocks."""
    x = torch.zeros(5, 64, dtype=torch.bfloat16)
    x[:, ::3] = -0.0
    x[1, 16:32] = 1e-38
    x[2, 5] = -1e-40
    x[3] = 0.0
    x[4] = torch.randn(64, generator=torch.Generator().manual_seed(4)).bfloat16() * 0.0
    codes, scales = quantize.nvfp4(x, torch.ones(()) if has_scale else None)
    expected = narrow.packed((x.float() * torch.finfo(torch.float32).max).double(), FP4)
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8)) and not scales.view(torch.uint8).any()
