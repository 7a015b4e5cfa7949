"""What reductions need of windows of many rows is stored first, where neighbouring rows share what they look up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft.frontend.record import GRAPHS
from weft.graph import window_places
from weft.options import options

Function = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


@pytest.fixture
def launches_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of sizes that the emulator computes in a second are otherwise not worth a launch."""
    monkeypatch.setattr(window_places, "LAUNCH_BYTES", 0)


def border_sums(size: int) -> Function:
    """Sums of each image, weighted by how far its averages differ from it."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = 1 + (F.avg_pool2d(y, size, 1, size // 2) - y).abs()
        return ((weight * x).sum((2, 3)), weight.sum((2, 3)))

    return function


def correlation(size: int) -> Function:
    """Three averages that meet before the reduction."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, both = (F.avg_pool2d(t, size, 1, size // 2) for t in (x, y, x * y))
        return ((both - a * b).mean((1, 2, 3)),)

    return function


def weights_too(size: int) -> Function:
    """The weights are a result, too."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = (F.avg_pool2d(y, size, 1, size // 2) - y).abs()
        return weight, (weight * x).sum((2, 3))

    return function


def run(function: Function, x: torch.Tensor, y: torch.Tensor) -> int:
    """Compare a function's results with those in float64; return the number of its kernels."""
    torch._dynamo.reset()
    with poisoned_outputs(), options(check="races"), torch.no_grad():
        got = torch.compile(function, backend="weft", options={"emulate": True})(x, y)
    for result, want in zip(got, function(x.double(), y.double()), strict=True):
        torch.testing.assert_close(result.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
    return sum(len(list(call.kernels())) for call in GRAPHS[-1].calls)


def images(*sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=given), torch.randn(*sizes, generator=given)


@pytest.mark.usefixtures("launches_are_free")
@pytest.mark.parametrize("made", [border_sums, correlation, weights_too])
@pytest.mark.parametrize("sizes", [(2, 1, 23, 20), (1, 3, 13, 36)], ids=str)
def test_what_is_computed_from_windows_is_stored(made: Callable[[int], Function], sizes: tuple[int, ...]) -> None:
    """One kernel for averages along rows, one for those along columns and what follows, one for the sums."""
    assert run(made(11), *images(*sizes)) == 3


@pytest.mark.usefixtures("launches_are_free")
@pytest.mark.parametrize("size, sizes", [(5, (2, 1, 23, 20)), (11, (2, 1, 23, 21))], ids=str)
def test_short_windows_and_rows_without_vectors_stay(size: int, sizes: tuple[int, ...]) -> None:
    assert run(border_sums(size), *images(*sizes)) <= 2


def test_small_images_are_not_worth_a_launch() -> None:
    assert run(border_sums(11), *images(2, 1, 25, 20)) == 2  # sizes of no other test, whose kernels would be known
