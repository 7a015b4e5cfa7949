"""Inputs that lie in another order than the loops, beside inputs that move in vectors: each pass that loads them again does so element by element."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options
from weft.schedulers import inner_persistent


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def normalized(axis: int, x_order: list[int] | None, other_order: list[int] | None) -> FusionDefinition:
    """min(x, y) minus its sum along `axis`, with x and y of two axes in the given orders of memory."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, **({"stride_order": x_order} if x_order else {}))
        other = fd.define_tensor([-1, -1], contiguity=True, **({"stride_order": other_order} if other_order else {}))
        y = fd.ops.minimum(x, other)
        fd.add_output(fd.ops.sub(y, fd.ops.sum(y, [axis], True)))
    return fd


@pytest.mark.parametrize("rows, columns", [(1056, 2), (1056, 5), (1054, 3), (529, 7), (1, 4), (1056, 1)])
def test_columns_beside_an_input_that_lies_along_the_reduction(rows: int, columns: int) -> None:
    """Columns of x are vectors; the elements of the other input that belong to one are not neighbours, and are read in both passes."""
    fd = normalized(1, [0, 1], None)
    with poisoned_outputs():
        fd.validate([numbers(columns, rows).t(), numbers(rows, columns)])


def test_three_axes_with_the_middle_one_outermost_in_memory() -> None:
    """The axis that is reduced lies between the others in memory; its two elements are neighbours in the second input."""
    with FusionDefinition() as fd:
        x0 = fd.define_tensor([-1, -1, -1], contiguity=True, dtype=DataType.BFloat16, stride_order=[0, 2, 1])
        x1 = fd.define_tensor([-1, -1, -1], contiguity=[False, True, True], dtype=DataType.Half)
        y = fd.ops.minimum(fd.ops.cast(x0, dtype=DataType.Float), fd.ops.cast(x1, dtype=DataType.Float))
        centered = fd.ops.silu(fd.ops.sub(y, fd.ops.mul(fd.ops.sum(y, [2], True), 0.5)))
        fd.add_output(fd.ops.minimum(centered, fd.ops.mul(fd.ops.sum(centered, [2], True), 0.5)))
    for a, b, c in [(1024, 1, 2), (600, 2, 3), (1, 1, 2), (5, 0, 2)]:
        second = numbers(2 * a, b, c).half()[::2]
        with poisoned_outputs():
            fd.validate([numbers(b, c, a).bfloat16().permute(2, 0, 1), second])


@pytest.mark.parametrize("rows, columns", [(2, 100_004), (3, 70_001)])
def test_long_rows_beside_an_input_that_lies_across_them(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows too long for the registers of a chip without clusters: later passes load both inputs again. So few rows would otherwise be two kernels."""
    monkeypatch.setattr(inner_persistent, "why_not_in_one_kernel", lambda *_: None)
    fd = normalized(1, None, [0, 1])
    with poisoned_outputs(), options(chip="A100"):
        fd.validate([numbers(rows, columns), numbers(columns, rows).t()])
    assert fd.fec.kernel_runtimes[-1].proposal.params.storage == "reread"
