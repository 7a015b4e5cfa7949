"""Transposes of rows that begin anywhere: lanes of a warp load aligned vectors and put rows together from them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from test_transpose import declared, numbers, one_of_two, params_of, permuted, reference_one

from weft import FusionDefinition
from weft.options import options

from weft.schedulers.transpose import Transpose, TransposeParams


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are loaded by lanes, whatever the cost model says."""
    ranked = Transpose._ranked

    def kept(self: Transpose, *given: Any) -> tuple[list[TransposeParams], list[float]]:
        found = [(p, ns) for p, ns in zip(*ranked(self, *given)) if p.across_anywhere]
        return [p for p, _ in found], [ns for _, ns in found]

    monkeypatch.setattr(Transpose, "_ranked", kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool])
@pytest.mark.parametrize("shape", [(1, 67, 131), (3, 129, 257), (2, 45, 33)])
def test_odd_matrices(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if dtype is torch.bool:
        shape = (shape[0], 2 * shape[1] + 131, 2 * shape[2] + 131)
    x = numbers(*shape, dtype=dtype)
    fd, out = permuted([x], [0, 2, 1])
    params = params_of(fd)
    assert torch.equal(out, x.transpose(1, 2)) and params.across_anywhere


@pytest.mark.parametrize("first", [1, 3, 6])
def test_memory_that_begins_within_a_unit(first: int) -> None:
    x = numbers(65 * 131 + first, dtype=torch.bfloat16)[first:].view(65, 131)
    _, out = permuted([x], [1, 0])
    assert torch.equal(out, x.t())


def test_runs_of_axes() -> None:
    x = numbers(2, 35, 7, 9, dtype=torch.bfloat16)
    _, out = permuted([x], [0, 2, 3, 1])
    assert torch.equal(out, x.permute(0, 2, 3, 1))


def test_arithmetic_with_an_input_that_lies_across() -> None:
    inputs = [numbers(67, 131, dtype=torch.bfloat16), numbers(131, 67, dtype=torch.bfloat16), numbers(131)]
    with FusionDefinition() as fd:
        one_of_two(fd, *(declared(fd, t) for t in inputs))
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute(inputs)
    torch.testing.assert_close(out.double(), reference_one(*inputs)[0], rtol=2**-7, atol=2**-7)
    assert params_of(fd).across_anywhere
