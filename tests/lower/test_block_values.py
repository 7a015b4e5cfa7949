"""What is the same for a block of neighbours is computed once, whether the block is a vector, a part of it, or spread over lanes."""

from __future__ import annotations

import re

import pytest
import torch

from weft import FusionDefinition
from weft.arch import arch_by_name
from weft.compiler import compile_program, propose
from weft.dtypes import DataType


def definition(block: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        scale = fd.ops.div(fd.ops.maximum(fd.ops.block_amax(x, block), 1e-4), 448.0)
        fd.add_output(fd.ops.cast(fd.ops.mul(x, fd.ops.div(1.0, scale)), DataType.Float8_e4m3fn))
        fd.add_output(fd.ops.block_sample(scale, block))
    return fd


@pytest.mark.parametrize("block", [4, 16, 128])
def test_divisions_stand_outside_of_the_loop_over_elements(block: int) -> None:
    fd = definition(block)
    sizes = dict(zip([a.sym for t in fd.fusion.inputs() for a in t.get_logical_domain()], (1024, 4096)))
    text = compile_program(fd.fusion, propose(fd.fusion, sizes, {}, arch_by_name("H200")), DataType.Int32, name="blocks").text
    loops = [(m[1], int(m[2]), text[m.end() : text.index("}", m.end())]) for m in re.finditer(r"for \(int (\w+) = 0; \w+ < (\d+);[^\n]*\n", text)]
    assert text.count(" / 448.0f") == 1
    assert not [body for name, count, body in loops if " / 448.0f" in body and not name.endswith("_block")]
    assert [count for name, count, _ in loops if name.endswith("_block")] == ([2] if block == 4 else [])


@pytest.mark.parametrize(("rows", "columns", "block"), [(5, 128, 4), (1, 16, 16), (33, 384, 128), (0, 128, 16), (7, 48, 8)])
def test_results_are_those_of_float64(rows: int, columns: int, block: int) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(block)).bfloat16() * 3
    elements, scales = definition(block).execute([x])
    blocks = x.double().view(rows, columns // block, block)
    expected = blocks.abs().amax(-1).clamp(min=1e-4) / 448 if rows else torch.zeros(0, columns // block)
    torch.testing.assert_close(scales.double(), expected.double(), rtol=2.0**-22, atol=0)
    wanted = (blocks / expected.double()[..., None]).reshape(rows, columns)
    assert ((elements.double() - wanted).abs() <= wanted.abs() / 16 * (1 + 1e-5) + 2.0**-10).all()
