"""An iota of one element is a constant wherever its axis repeats: a mask made of it does not depend on that axis."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition


@pytest.mark.parametrize("order", [None, [2, 0, 1]])
def test_a_mask_of_one_element_does_not_depend_on_the_axis_it_repeats_over(order: list[int] | None) -> None:
    sizes = [4, 64, 16]
    with FusionDefinition() as fd:
        x = fd.define_tensor(sizes, contiguity=True, dtype=DataType.Float)
        number = fd.ops.iota(fd.define_scalar(1, dtype=DataType.Int), fd.define_scalar(0, dtype=DataType.Int), fd.define_scalar(1, dtype=DataType.Int), DataType.Int)
        chosen = fd.ops.eq(fd.ops.broadcast(number, [False, True, True]), 0)
        out = fd.ops.where(chosen, fd.ops.mul(fd.ops.sin(x), 2.0), fd.ops.full(sizes, fd.define_scalar(0.0, dtype=DataType.Float), DataType.Float))
        fd.add_output(fd.ops.stride_order(out, [2, 0, 1]) if order else out)
    given = torch.randn(sizes)
    with poisoned_outputs():
        (result,) = fd.execute([given])
    torch.testing.assert_close(result, given.sin() * 2, rtol=1e-6, atol=1e-6)
