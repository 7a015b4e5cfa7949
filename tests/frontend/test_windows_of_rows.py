"""Windows of rows, such as the trend of a series: neighbouring rows of a thread share what they look up; values and gradients are torch's in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare

from weft.frontend.backend import GRAPHS
from weft.schedulers.pointwise_heuristic import Candidate, Candidates

pytestmark = pytest.mark.usefixtures("fresh")


def trend(x: torch.Tensor, half: int) -> torch.Tensor:
    """Return the moving average of series [N, rows, features], whose ends are repeated."""
    padded = torch.cat([x[:, :1].expand(-1, half, -1), x, x[:, -1:].expand(-1, half, -1)], 1)
    return F.avg_pool1d(padded.transpose(1, 2), 2 * half + 1, 1).transpose(1, 2)


def windows(x: torch.Tensor, size: int) -> torch.Tensor:
    return F.avg_pool1d((x * 2).transpose(1, 2), size, 1).transpose(1, 2).sin()


@pytest.fixture
def several_rows(monkeypatch: pytest.MonkeyPatch, chosen_anew: None) -> list[int]:
    """Threads have several rows wherever these share windows; how many, of each kernel, is told."""
    told: list[int] = []
    ranked = Candidates.ranked

    def ranked_by_rows(self: Candidates, count: int) -> Sequence[Candidate]:
        def key(candidate: Candidate) -> int:
            p = candidate.params
            return -p.unroll_outer if any(self.facts.shared_rows[p.break_point : p.break_point + 1]) and p.unroll_outer <= 4 else 0

        found = sorted(ranked(self, len(self.rows)), key=key)
        told.append(found[0].params.unroll_outer)
        return found[:count]

    monkeypatch.setattr(Candidates, "ranked", ranked_by_rows)
    return told


@pytest.mark.parametrize("shape", [(2, 16, 32), (3, 18, 24), (2, 13, 8), (2, 17, 7), (1, 9, 1), (2, 5, 3), (0, 9, 8)], ids=str)
def test_values_and_gradients_of_windows_with_several_rows_per_thread(shape: tuple[int, ...], several_rows: list[int]) -> None:
    compare(lambda x: windows(x, 5), torch.randn(shape), gradient_atol=1e-5)
    assert max(several_rows, default=1) > 1 or 0 in shape or shape[-1] == 1 or shape[1] % 2


@pytest.mark.parametrize(("shape", "half"), [((1, 19, 5), 2), ((3, 1, 8), 2), ((2, 7, 1), 7)], ids=str)
def test_the_trend_of_a_series(shape: tuple[int, ...], half: int, several_rows: list[int]) -> None:
    """One row, one feature, and windows longer than the series."""
    compare(lambda x: x - trend(x, half), torch.randn(shape), gradient_atol=1e-5)


def test_the_gradient_of_windows_reads_rows_in_place() -> None:
    """Channels are turned behind and back; a kernel of its own wrote what is between, in float32."""
    x = torch.randn(2, 24, 8)

    def f(x: torch.Tensor) -> Any:
        return F.avg_pool1d((x * 2).transpose(1, 2), 9, 1).transpose(1, 2)

    compare(f, x, gradient_atol=1e-5)
    assert [len(call.kernels()) for call in GRAPHS[-1].calls] == [1]
