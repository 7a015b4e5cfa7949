"""Sums down columns of odd rows: vectors begin at any element, and the last one repeats columns of the one before."""

from __future__ import annotations

import pytest
import torch
from channel_cases import checked
from row_fusions import numbers, wide

from weft import DataType, FusionDefinition
from weft.options import options


def sums(dtype: DataType = DataType.BFloat16, rank: int = 2, count: int = 1) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype)
        for n in range(count):
            fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.mul(wide(fd, x), n + 1.0), [rank - 2]), dtype if n else DataType.Float))
    return fd


@pytest.mark.parametrize(("sizes", "count"), [((70, 37), 2), ((1, 5), 1), ((300, 131), 1), ((3, 7), 1), ((2000, 9), 1), ((17, 4099), 1)])
def test_odd_columns(sizes: tuple[int, int], count: int) -> None:
    with options(check="races"):
        runtime = checked(sums(count=count), [numbers(DataType.BFloat16, *sizes)])
    assert runtime.proposal.params.overlaps and "load_global_shifted<4" in runtime.program.text


def test_columns_that_are_left_alone() -> None:
    """Fewer than a vector of them; rows that do not begin with a word; types of 32 bits; axes in the middle."""
    x = numbers(DataType.BFloat16, 64 * 33 + 1)
    for fd, given in (
        (sums(), x[:30].view(10, 3)), (sums(), x[1:].view(64, 33)), (sums(DataType.Float), numbers(DataType.Float, 20, 33)),
        (sums(), numbers(DataType.BFloat16, 30, 48)),
    ):  # fmt: skip
        assert not checked(fd, [given]).proposal.params.overlaps
    checked(sums(rank=3), [numbers(DataType.BFloat16, 3, 20, 37)])
    for sizes in ((0, 33), (33, 0)):
        assert sums().execute([torch.empty(sizes, dtype=torch.bfloat16)])[0].shape == sizes[1:]


def test_columns_of_one_row() -> None:
    """No threads along the columns: each lane is a result of its own."""
    checked(sums(), [numbers(DataType.BFloat16, 1, 8)])


def test_columns_of_a_part_of_wider_odd_rows() -> None:
    """Vectors begin at any element whatever the stride of the rows, which was refused: channels of an odd number of them, channels last."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 2, contiguity=True, dtype=DataType.BFloat16)
        part = fd.define_tensor([-1] * 2, contiguity=[False, True], dtype=DataType.BFloat16)
        product = fd.ops.mul(wide(fd, x), wide(fd, part))
        fd.add_output(fd.ops.cast(product, DataType.BFloat16))
        fd.add_output(fd.ops.sum(product, [0]))
    for rows, columns, stride in ((196, 24, 51), (33, 96, 195), (40, 25, 63)):
        first = columns + columns % 2
        parts = numbers(DataType.BFloat16, rows, stride)[:, first : first + columns]
        runtime = checked(fd, [numbers(DataType.BFloat16, rows, columns), parts])
        assert runtime.proposal.params.overlaps
