"""Sums over windows of what is computed from images, and what is summed of these: each kernel is of a bounded size, and values are those of torch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare

from weft.frontend.backend import GRAPHS

pytestmark = pytest.mark.usefixtures("fresh")


def similarity(x: torch.Tensor, size: int = 3) -> torch.Tensor:
    """The structural similarity of two images, of which the channels are halves, by windows of pixels."""
    x, y = x.chunk(2, 1)
    mx, my = F.avg_pool2d(x, size, 1), F.avg_pool2d(y, size, 1)
    vx, vy = F.avg_pool2d(x * x, size, 1) - mx * mx, F.avg_pool2d(y * y, size, 1) - my * my
    c = F.avg_pool2d(x * y, size, 1) - mx * my
    return (2 * mx * my + 0.1) * (2 * c + 0.9) / ((mx * mx + my * my + 0.1) * (vx.abs() + vy.abs() + 0.9))


def mean_similarity(x: torch.Tensor) -> torch.Tensor:
    return 1 - similarity(x).mean()


def similarity_of_each(x: torch.Tensor) -> torch.Tensor:
    return similarity(x).mean((1, 2, 3))


def similarity_of_columns(x: torch.Tensor) -> torch.Tensor:
    """The innermost axis stays."""
    return similarity(x).mean((0, 1, 2))


def beside_an_image(x: torch.Tensor) -> torch.Tensor:
    """Windows, and a tensor of their size that is read in vectors."""
    return (F.avg_pool2d(x * x, 3, 1, 1) * x).square().sum((2, 3))


def expensive(x: torch.Tensor) -> torch.Tensor:
    """What is not computed again for each pixel of a window."""
    return F.avg_pool2d((x.tanh() / (1 + x.exp())).sin(), 3, 1)


def normalized(x: torch.Tensor) -> torch.Tensor:
    """The windows of a row are used once its sum is known."""
    y = F.avg_pool2d(x * x, 3, 1, 1) + 1
    return y / y.sum(-1, keepdim=True)


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    similarity, mean_similarity, similarity_of_each, similarity_of_columns, beside_an_image, expensive, normalized,
]  # fmt: skip
SIZES = [(2, 2, 8, 22), (1, 4, 5, 17)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_and_gradients(function: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...]) -> None:
    compare(function, torch.randn(sizes), rtol=1e-4, atol=1e-5, gradient_rtol=1e-3, gradient_atol=1e-4)


@pytest.mark.parametrize("sizes", [(1, 2, 3, 3), (0, 2, 8, 8), (2, 2, 3, 40), (2, 2, 40, 3)], ids=str)
def test_one_row_one_column_and_no_image(sizes: tuple[int, ...]) -> None:
    compare(similarity_of_each, torch.randn(sizes), rtol=1e-4, atol=1e-5, gradient_rtol=1e-3, gradient_atol=1e-4)


def test_what_is_expensive_is_stored_once_and_what_is_cheap_is_not() -> None:
    """Of images large enough that a launch costs less than the instructions."""
    x = torch.randn(4, 4, 128, 128)
    for function, kernels in ((expensive, 2), (lambda t: F.avg_pool2d(t * t, 3, 1), 1)):
        compare(function, x, atol=1e-5, gradient_atol=1e-4)
        assert len(GRAPHS[-2].calls[0].kernels()) == kernels


def test_a_row_of_large_windows_is_no_part_of_a_normalization() -> None:
    """A thread would look up all windows of its part of a row before it uses the first."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.avg_pool2d(x * x, 7, 1, 3) + 1).softmax(-1)

    compare(f, torch.randn(1, 2, 5, 33), atol=1e-5, gradient_atol=1e-4)
    assert len(GRAPHS[-2].calls[0].kernels()) == 2
