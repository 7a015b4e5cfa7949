"""Differences of periodic fields, which are rotations of what is computed from rotations: one kernel, forward and backward, and torch's values in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compared_images import compare

from weft import DataType, FusionDefinition
from weft.frontend.backend import GRAPHS
from weft.graph.normalize import normalize
from weft.ir.graph_ops import LookupOp, RollOp

pytestmark = pytest.mark.usefixtures("fresh")


def limited(u: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Burgers' equation with limited slopes: a result reads two neighbours on either side."""
    left, right = u - u.roll(1, dim), u.roll(-1, dim) - u
    slope = torch.where(left * right > 0, torch.where(left.abs() < right.abs(), left, right), 0.0)
    a, b = u + 0.5 * slope, (u - 0.5 * slope).roll(-1, dim)
    flux = 0.25 * (a * a + b * b) - 0.5 * torch.maximum(a.abs(), b.abs()) * (b - a)
    return u - 0.1 * (flux - flux.roll(1, dim))


def along_columns(u: torch.Tensor) -> torch.Tensor:
    return limited(u, 1)


def waves(u: torch.Tensor) -> torch.Tensor:
    """A Laplacian of a Laplacian, of both axes."""
    for _ in range(2):
        u = (u * 0.7).sin()
        u = u.roll(1, -1) + u.roll(-1, -1) + u.roll(1, -2) + u.roll(-1, -2) - 4 * u
    return u


def there_and_back(u: torch.Tensor) -> torch.Tensor:
    """Rotations that add up to none, and to more than a whole turn."""
    v = (u.roll(3, -1) * 2).roll(-3, -1) + u
    return v * (v.roll(2, -1).sin()).roll(u.shape[-1] - 1, -1)


def far_away(u: torch.Tensor) -> torch.Tensor:
    """Rotations by half of the extent and more."""
    n = u.shape[-1]
    return u.roll(n // 2, -1) * u.roll(n // 2 + 1, -1) + u.roll(n - 1, -1).exp() * u.roll(2 * n + 1, -1)


FIELDS: list[Callable[[torch.Tensor], torch.Tensor]] = [limited, along_columns, waves, there_and_back, far_away]
SIZES = [(3, 5, 16), (2, 7, 33), (1, 9, 250), (4, 1, 3), (5, 6, 1), (1, 1, 2), (0, 4, 8)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("function", FIELDS, ids=lambda f: f.__name__)
def test_values_and_gradients_of_fields(function: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...]) -> None:
    compare(function, torch.randn(sizes), gradient_atol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [limited, along_columns, far_away], ids=lambda f: f.__name__)
def test_a_field_is_one_kernel_forward_and_backward(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compare(function, torch.randn(64, 48, 1024), gradient_atol=1e-4, atol=1e-5)
    assert [len(call.kernels()) for graph in GRAPHS for call in graph.calls] == [1, 1]


def _rolled(fd: FusionDefinition, shifts: list[int], extent: int) -> None:
    x = fd.define_tensor([6, extent], contiguity=True)
    total = x
    for shift in shifts:
        place = fd.ops.add(fd.ops.iota(extent, dtype=DataType.Int), -shift % extent)
        total = fd.ops.mul(total, fd.ops.index_select(x, fd.ops.where(fd.ops.lt(place, extent), place, fd.ops.sub(place, extent)), 1))
    fd.add_output(total)


@pytest.mark.parametrize(("shifts", "lookups", "rolls"), [([1], 0, 1), ([1, -1], 3, 0), ([1, 1], 0, 2), ([2, 7, -3], 4, 0)], ids=str)
def test_several_rotations_of_an_input_are_lookups_and_one_is_none(shifts: list[int], lookups: int, rolls: int) -> None:
    """With them what is read in place, so that neighbours find it there."""
    with FusionDefinition() as fd:
        _rolled(fd, shifts, 40)
    exprs = normalize(fd.fusion).tensor_exprs()
    assert (sum(isinstance(e, LookupOp) for e in exprs), sum(isinstance(e, RollOp) for e in exprs)) == (lookups, rolls)
