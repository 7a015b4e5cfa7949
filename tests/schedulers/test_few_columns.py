"""Reductions down few columns: a block reads whole rows, also if their vectors are no power of two."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.options import current, options

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16}


def column_sums(dtype: torch.dtype) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=TYPES[dtype]), DataType.Float)
        fd.add_output(fd.ops.sum(x, [0]))
        fd.add_output(fd.ops.max(fd.ops.mul(x, x), [0]))
    return fd


@pytest.mark.parametrize("dtype, columns", [(torch.bfloat16, 24), (torch.bfloat16, 40), (torch.bfloat16, 4), (torch.float32, 12), (torch.float32, 76), (torch.float32, 3)])
@pytest.mark.parametrize("rows", [1, 5, 4001, 30000])
def test_sums_down_few_columns(dtype: torch.dtype, columns: int, rows: int) -> None:
    fd, x = column_sums(dtype), torch.randn(rows, columns).to(dtype)
    sums, largest = fd.execute([x])
    torch.testing.assert_close(sums.double(), x.double().sum(0), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(largest.double(), (x.double() ** 2).amax(0), rtol=1e-5, atol=1e-5)


def test_threads_across_are_the_vectors_of_a_row() -> None:
    """Five vectors of 8 elements: of 8 threads across, three would have nothing to do."""
    caller = column_sums(torch.bfloat16)._executor_cache()._caller
    with options(chip="H100"):
        sizes, engine = caller.sizes([torch.empty(300000, 40, dtype=torch.bfloat16)], None, current())
        params = caller.request(sizes.kernels[0], sizes, engine, current()).proposal.params
    assert (params.vector_elems, params.bdimx) == (8, 5)
    assert params.threads_per_block % arch_by_name("H100").warp_threads == 0
