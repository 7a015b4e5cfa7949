"""Tensors between kernels lie as the inputs that they are taken from in parts; results of a definition do not."""

from __future__ import annotations

import pytest

from weft import DataType, FusionDefinition
from weft.analysis.layouts import memory_formats

ROWS, COLUMNS = 7, 30


@pytest.mark.parametrize("part", ["slice", "positions", "both axes"])
def test_a_transposed_part_keeps_the_order_of_its_source(part: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, ROWS, COLUMNS], contiguity=True, dtype=DataType.Float)
        if part == "slice":
            taken = fd.ops.slice(x, [0, 0, 10], [3, ROWS, 20])
        else:
            place = fd.ops.minimum(fd.ops.iota(ROWS + 4, dtype=DataType.Int), ROWS - 1)
            taken = fd.ops.index_select(x, place, 1)
        if part == "both axes":
            taken = fd.ops.slice(taken, [0, 0, 5], [3, ROWS + 4, 13])
        out = fd.ops.mul(fd.ops.permute(taken, [0, 2, 1]), 2.0)
        fd.add_output(out)
    fusion = fd.fusion
    (output,) = fusion.tensor_outputs()
    found = memory_formats(fusion, [output], follows_rows=True)
    axes = output.get_logical_domain()
    assert found == {output: [axes[0], axes[2], axes[1]]}
    assert memory_formats(fusion, [output]) == {}
