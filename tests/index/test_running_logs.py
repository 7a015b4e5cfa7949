"""Logarithms of running sums of exponentials: scaled sums, whose scale follows the largest element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fusion_check import poisoned_outputs
from lookup_cases import TYPES, numbers

from weft import FusionDefinition


def steps(count: int, height: float) -> torch.Tensor:
    """`count` numbers that rise by `height` every 100, so that the scale stays, or changes, as the largest element does."""
    return (torch.arange(count) // 100) * height


INF, NAN = math.inf, math.nan
ROWS = {
    "noise": numbers(6, 3000), "rising slowly": numbers(6, 3000) + steps(3000, 0.5), "rising by the most that a scale takes": numbers(6, 3000) * 0.01 + steps(3000, 4.0),
    "rising fast": numbers(6, 3000) + steps(3000, 90.0), "falling fast": numbers(6, 3000) - steps(3000, 90.0), "far apart": 300 * numbers(6, 3000),
    "one large element": torch.cat([numbers(6, 1500) - 200, torch.full((6, 1), 60.0), numbers(6, 1400) + 50], 1),
    "the ends of the range": torch.cat([torch.full((6, 40), -3.4e38), numbers(6, 1000), torch.full((6, 9), 3.4e38), numbers(6, 1000)], 1),
}


def check(x: torch.Tensor, dim: int) -> None:
    """Compare with numbers of 80 bits, because steps one after the other in float64 round more often than the kernel. Roundings of partial sums: neighbours,
    lanes and warps of a thread's piece and one per piece, 2^-24 each (2^-53 for double), and those of the exponentials; the unit for logarithms has 2^-22; the
    result is rounded once, as are numbers of 16 bits."""
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1] * x.dim(), contiguity=[True] * x.dim(), dtype=TYPES[x.dtype])
        fd.add_output(fd.ops.logcumsumexp(t, dim))
    with poisoned_outputs():
        (out,) = fd.execute([x])
    with np.errstate(invalid="ignore"):  # infinity beside infinity
        want = torch.from_numpy(np.logaddexp.accumulate(x.double().numpy().astype(np.longdouble), dim).astype(np.float64))
    unit = 2.0**-53 if x.dtype is torch.float64 else 2.0**-24
    roundings = 40 + x.shape[dim] / 64 + 4 * math.log2(max(2, x.shape[dim]))
    torch.testing.assert_close(out.double(), want, rtol=torch.finfo(x.dtype).eps, atol=roundings * unit, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_and_columns_of_any_range(name: str, dtype: torch.dtype) -> None:
    x = ROWS[name].to(dtype)
    x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    check(x, 1)
    check(x.t().contiguous(), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_infinities_and_what_is_no_number(dtype: torch.dtype) -> None:
    """Of nothing but -infinity the logarithm is -infinity; infinity and what is no number stay, also as the first or the last element."""
    x = numbers(11, 2500).to(dtype)
    x[0], x[1, :1800], x[2, 100], x[3, 2000] = -INF, -INF, INF, NAN
    x[4, 7], x[5, 0], x[6, ::2], x[7, 1000:] = -INF, INF, -INF, -INF
    x[8, 0], x[9, 600], x[9, 700], x[10, -1] = NAN, INF, NAN, INF
    check(x, 1)
    check(x.t().contiguous(), 0)
    for row in (1, 2, 3, 9):  # shared by several blocks
        check(x[row].repeat(20).view(1, -1), 1)
        check(x[row].repeat(20), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(5, 1), (1, 5), (1, 1), (0, 5), (5, 0), (3, 7), (2, 33)], ids=str)
def test_few_elements_and_none(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (20 * numbers(*shape)).to(dtype)
    check(x, 0)
    check(x, 1)


@pytest.mark.parametrize("name", ROWS)
def test_blocks_that_share_a_row(name: str) -> None:
    check(ROWS[name].reshape(1, -1), 1)
    check(ROWS[name].reshape(-1, 2).repeat(2, 1), 0)
