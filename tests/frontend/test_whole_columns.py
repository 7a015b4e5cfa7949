"""Pointwise kernels whose threads have whole columns: all steps of a loop over an outer axis that is written out, and stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compared_images import compare
from torch import Tensor

from weft.arch import H200
from weft.frontend.backend import GRAPHS
from weft.schedulers import pointwise
from weft.schedulers.base import Sizes
from weft.schedulers.facts import PointwiseFacts
from weft.schedulers.pointwise_analysis import PointwiseAnalysis
from weft.schedulers.whole_rows import MOST_OF_A_COLUMN, WholeRowParams, choose_whole_rows, in_columns


def advantages(x: Tensor) -> Tensor:
    """Discounted sums from the last step on."""
    gate, total, out = x.sigmoid(), torch.zeros_like(x[0]), []
    for t in range(x.shape[0] - 1, -1, -1):
        total = x[t] + 0.9 * gate[t] * total
        out.insert(0, total)
    return torch.stack(out)


def filtered(x: Tensor) -> Tensor:
    """A filter of second order along the axis in the middle."""
    y = [x[:, 0], 0.5 * x[:, 0] + x[:, 1]]
    for t in range(2, x.shape[1]):
        y.append(x[:, t] + 0.5 * y[-1] - 0.25 * y[-2])
    return torch.stack(y, 1).tanh()


def parts(x: Tensor) -> Tensor:
    """Rows of which each has another function, turned."""
    a, b, c = x[:1], x[1:3], x[3:]
    return torch.cat([a.sin(), (b * a).exp(), c - b.sum(0)]).t()


CASES: list[tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = [
    (advantages, (5, 37)), (advantages, (MOST_OF_A_COLUMN, 3)), (advantages, (4, 1)), (advantages, (3, 2, 33)), (filtered, (3, 7, 41)), (filtered, (1, 2, 130)),
    (filtered, (2, 5, 1, 9)), (parts, (5, 67)), (parts, (4, 1)), (advantages, (6, 0)),
]  # fmt: skip


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch, chosen_anew: None) -> None:
    """Take columns wherever they are possible."""

    def columns(*args: Any) -> list[tuple[float, WholeRowParams]]:
        return [(0.0, params) for _, params in choose_whole_rows(*args) if params.column is not None]

    monkeypatch.setattr(pointwise, "choose_whole_rows", columns)


def chosen() -> list[Any]:
    return [runtime.proposal.params for graph in GRAPHS for call in graph.calls for runtime in call.kernels()]


@pytest.mark.usefixtures("fresh", "preferred")
@pytest.mark.parametrize(("function", "shape"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_values_and_gradients(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    compare(function, torch.rand(shape) + 0.1, rtol=2e-5, atol=2e-6, gradient_rtol=1e-4, gradient_atol=2e-5)
    if function is not parts and 0 not in shape and shape[-1] > 1 and shape[:2] != (1, 2):
        assert any(isinstance(p, WholeRowParams) and p.column is not None for p in chosen())


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("steps", "width", "is_wanted"), [(24, 8192, True), (MOST_OF_A_COLUMN + 1, 64, False)])
def test_the_choice(monkeypatch: pytest.MonkeyPatch, steps: int, width: int, is_wanted: bool) -> None:
    """Each step of many columns has all later ones in front of it; of few, or of loops that are longer than a thread's, each element is alone."""
    seen: list[bool] = []

    def found(analysis: PointwiseAnalysis, facts: PointwiseFacts, sizes: Sizes, arch: Any) -> list[tuple[float, WholeRowParams]]:
        made = choose_whole_rows(analysis, facts, sizes, H200)
        seen.append(bool(made) and made[0][1].column is not None)
        return made

    monkeypatch.setattr(pointwise, "choose_whole_rows", found)
    compare(advantages, torch.rand(steps, width), rtol=2e-5, atol=2e-6, gradient_rtol=1e-4, gradient_atol=2e-5)
    assert any(seen) == is_wanted


def test_order_of_loops() -> None:
    assert in_columns((4, 7, 2), 0) == (7, 2, 4) and in_columns((4, 7, 2), 1) == (4, 2, 7)
