"""Diagonals of matrices in regions, and gradients of matrices whose diagonals were read: beside float64 torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compared_images import compare
from torch import Tensor

from weft.frontend.record import GRAPHS

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "input": lambda x: x.diagonal() * 2,
    "of_computed": lambda x: (x * 2).exp().diagonal(1) + 1,
    "below": lambda x: x.diagonal(-2) * x.diagonal(-2),
    "trace": lambda x: x.trace() * x.sum(0),
    "distances": lambda x: (x.square().sum(-1, keepdim=True) + x.diagonal(-1).sum() - 2 * x).clamp(min=0),
    "replaced": lambda x: torch.diagonal_scatter(x * 3, x.diagonal(-1).tanh(), -1) * 0.5,
    "on_and_off": lambda x: (x.diagonal() - 1).square().sum() + 0.1 * x.square().sum(),
    "from_a_row": lambda x: torch.diag_embed(x[0], 1) * 2,
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 7), (9, 4), (33, 33)])
def test_diagonals(name: str, shape: tuple[int, ...]) -> None:
    compare(FUNCTIONS[name], torch.randn(shape), gradient_atol=2e-5, rtol=2e-5, atol=2e-5)
    assert not any(graph.torch_ops for graph in GRAPHS)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("dims", "offset"), [((0, 2), 1), ((2, 0), 1), ((1, 2), -1), ((-1, -2), 0)])
def test_any_two_axes(dims: tuple[int, int], offset: int) -> None:
    compare(lambda x: (x + 1).diagonal(offset, *dims) * 2, torch.randn(5, 6, 4), gradient_atol=1e-6)
    assert not any(graph.torch_ops for graph in GRAPHS)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("shape", "offset"), [((1, 4), 0), ((4, 1), -3), ((1, 1), 0), ((5, 7), 9), ((0, 7), 0)])
def test_few_or_no_elements(shape: tuple[int, ...], offset: int) -> None:
    compare(lambda x: x.diagonal(offset) * 2, torch.randn(shape), gradient_atol=1e-6)
