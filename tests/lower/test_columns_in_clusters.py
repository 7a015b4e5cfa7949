"""Columns that the blocks of a cluster fold together: each block hands its part of every column to all."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft.check.captured_launches import PlannedCaller
from weft.check.kernels import KERNELS
from weft.options import options


@pytest.mark.parametrize("sizes", [(150, 70), (1, 1), (513, 33), (64, 32), (7, 100), (2000, 3)], ids=str)
def test_columns_are_folded_across_a_cluster(sizes: tuple[int, int]) -> None:
    fusion, launch = KERNELS["column_sum_cluster"].define()
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))
    with options(check="races"), poisoned_outputs():
        (given,) = PlannedCaller("column_sum_cluster", fusion, launch).execute([x], device="cpu")
    torch.testing.assert_close(given.double(), x.double().sum(0), rtol=1e-5, atol=1e-4)
