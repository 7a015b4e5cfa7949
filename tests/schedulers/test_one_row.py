"""Column reductions of one row: threads that would share a column are one, and each lane of a vector has a result of its own."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition


@pytest.mark.parametrize("op, columns", [("sum", 64), ("min", 4)])
def test_a_column_reduction_of_one_row_is_that_row(op, columns):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Half)
        fd.add_output(getattr(fd.ops, op)(x, [0]))
    x = torch.randn(1, columns, generator=torch.Generator().manual_seed(0)).half()
    assert torch.equal(fd.execute([x])[0].half(), x[0])
