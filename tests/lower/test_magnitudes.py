"""Maxima of magnitudes are folded without an op for the magnitude, and 16-bit floats two at once."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.compiler import compile_program, propose

BF16, HALF, FLOAT = DataType.BFloat16, DataType.Half, DataType.Float
TORCH = {BF16: torch.bfloat16, HALF: torch.float16, FLOAT: torch.float32}


def largest(dtype: DataType, axis: int, is_used_twice: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), FLOAT)
        size = fd.ops.magnitude(x)
        fd.add_output(fd.ops.max(size, [axis]))
        if is_used_twice:
            fd.add_output(fd.ops.sum(size, [axis]))
    return fd


def given(dtype: DataType, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    x = torch.randn(rows, columns, generator=generator)
    x[0, 0], x[rows // 2, columns - 1], x[rows - 1, columns // 2] = float("nan"), float("-inf"), -3e4
    x[:, 1] = float("nan")
    x[rows // 3] = -0.0
    return x.to(TORCH[dtype])


@pytest.mark.parametrize("dtype", [BF16, HALF, FLOAT], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3, 8), (65, 72), (33, 57), (300, 64)])
def test_maxima_of_magnitudes(dtype, axis, shape):
    """NaN does not count, and nothing but NaN gives 0; exact."""
    x = given(dtype, *shape)
    wanted = x.double().abs().nan_to_num(nan=0.0, posinf=float("inf")).amax(axis)
    (found,) = largest(dtype, axis).execute([x])
    assert torch.equal(found.double(), wanted)


def text_of(fd: FusionDefinition) -> str:
    sizes = dict(zip([a.sym for t in fd.fusion.inputs() for a in t.get_logical_domain()], (4096, 512)))
    return compile_program(fd.fusion, propose(fd.fusion, sizes, {}, H200), DataType.Int32, name="magnitudes").text


def test_columns_of_16_bits_are_folded_in_vectors():
    """One array of their type stands for the maxima until all rows are folded."""
    text = text_of(largest(BF16, 0))
    assert "_pairs.fill(weft::bf16{})" in text and text.count("weft::larger_magnitudes<") == 2 and "weft::magnitude(" not in text


def test_floats_are_folded_by_one_op():
    text = text_of(largest(FLOAT, 0))
    assert "weft::larger(0.f" not in text and "weft::magnitude(" in text and "larger_magnitudes" not in text


def test_a_magnitude_that_others_read_stays():
    text = text_of(largest(BF16, 0, is_used_twice=True))
    assert "weft::larger(0.f, weft::magnitude(" in text and "larger_magnitudes" not in text
