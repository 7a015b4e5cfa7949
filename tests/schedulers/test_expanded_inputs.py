"""Inputs with expanded axes: a reduction over one squeezes it away, beside uses that keep it."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(fd: FusionDefinition, *inputs: torch.Tensor) -> None:
    """Compare with torch in float64; what a kernel does not write is NaN."""
    with poisoned_outputs():
        fd.validate(list(inputs))


COLUMNS = [(1, 1), (3, 5), (2, 8), (1, 10_000), (5, 4097), (2, 70_001), (0, 3)]


@pytest.mark.parametrize("keepdim", [False, True])
def test_rows_that_are_one_row_are_summed_along_and_across(keepdim: bool) -> None:
    """The sum across is a product by the extent of what the one row is squeezed to: it has no loop over rows."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[None, True])
        fd.add_output(fd.ops.sum(x, [1], keepdim))
        fd.add_output(fd.ops.sum(x, [0], keepdim))
    for rows, columns in COLUMNS:
        check(fd, numbers(columns).expand(rows, columns))
        check(fd, numbers(columns + 1)[1:].expand(rows, columns))


def test_a_sum_across_one_row_is_used_beside_the_row() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[None, True])
        y = fd.ops.mul(x, x)
        fd.add_output(fd.ops.mul(fd.ops.sum(y, [1], True), 0.0001))
        fd.add_output(fd.ops.add(fd.ops.minimum(y, -0.893), fd.ops.mul(fd.ops.sum(fd.ops.sub(x, y), [0], True), 0.5)))
    for rows, columns in COLUMNS:
        check(fd, numbers(columns).expand(rows, columns))


def test_one_row_is_normalized_and_summed_across() -> None:
    """The row stays on chip between its sum and its use."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[None, True], dtype=DataType.Half)
        y = fd.ops.cast(x, DataType.Float)
        fd.add_output(fd.ops.sub(y, fd.ops.mul(fd.ops.sum(y, [1], True), 0.001)))
        fd.add_output(fd.ops.sum(y, [0]))
    for rows, columns in COLUMNS:
        check(fd, numbers(columns).half().expand(rows, columns))


@pytest.mark.parametrize("dims", [[0], [0, 1], [2, 0]], ids=str)
def test_a_column_of_matrices_is_reduced_over_some_axes_and_over_all(dims: list[int]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=[True, None, None])
        fd.add_output(fd.ops.sum(x, dims, True))
        fd.add_output(fd.ops.max(x, [2, 0, 1]))
    for length, rows, columns in [(1, 1, 1), (5, 3, 4), (4099, 1, 2), (8, 2, 1)]:
        check(fd, numbers(length, 1, 1).expand(length, rows, columns))
        check(fd, numbers(length + 1)[1:].view(length, 1, 1).expand(length, rows, columns))


def test_an_expanded_axis_beside_rows() -> None:
    """Rows, an expanded axis, and columns: the squeezed copy has the rows and lacks the expanded axis."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=[True, None, True])
        fd.add_output(fd.ops.sum(x, [2]))
        fd.add_output(fd.ops.sum(x, [1, 2]))
    for rows, repeats, columns in [(1, 1, 1), (5, 3, 33), (7, 2, 4100), (300, 4, 8)]:
        check(fd, numbers(rows, 1, columns).expand(rows, repeats, columns))
