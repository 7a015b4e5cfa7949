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


def products(u: torch.Tensor) -> torch.Tensor:
    """Whose gradients read what the forward rotated: the field along both axes, and what is computed from it."""
    v = (u * 0.7).sin()
    crossed = (u.roll(1, -2) - u.roll(-1, -2)) * (u.roll((1, 1), (-2, -1)) - u.roll((1, -1), (-2, -1)))
    return crossed + u.roll(2, -1) * u.roll(-1, -1) + v.roll(1, -2) * v.roll(-1, -2) * v


FIELDS: list[Callable[[torch.Tensor], torch.Tensor]] = [limited, along_columns, waves, there_and_back, far_away, products]
SIZES = [(3, 5, 16), (2, 7, 33), (1, 9, 250), (4, 1, 3), (5, 6, 1), (1, 1, 2), (0, 4, 8)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("function", FIELDS, ids=lambda f: f.__name__)
def test_values_and_gradients_of_fields(function: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[int, ...]) -> None:
    compare(function, torch.randn(sizes), gradient_atol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [limited, along_columns, far_away], ids=lambda f: f.__name__)
def test_a_field_is_one_kernel_forward_and_backward(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compare(function, torch.randn(64, 48, 1024), gradient_atol=1e-4, atol=1e-5)
    assert [len(call.kernels()) for graph in GRAPHS for call in graph.calls] == [1, 1]


def test_the_gradient_rotates_the_field_again() -> None:
    """The field itself is saved, and none of its rotations."""
    u, saved = torch.randn(3, 7, 33, requires_grad=True), list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        out = torch.compile(products, backend="weft", options={"emulate": True, "strict": True})(u)
    assert [t.data_ptr() for t in saved if t.numel() >= u.numel()] == [u.data_ptr()]
    exact = u.detach().double().requires_grad_()
    got, want = (torch.autograd.grad(o.sum(), of)[0] for o, of in ((out, u), (products(exact), exact)))
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_a_rotation_that_is_returned_is_saved_as_it_is() -> None:
    u = torch.randn(5, 9, requires_grad=True)
    compiled = torch.compile(lambda u: (u.roll(1, 1), u.roll(1, 1) * u.sin()), backend="weft", options={"emulate": True, "strict": True})
    exact = u.detach().double().requires_grad_()
    got = torch.autograd.grad(compiled(u)[1].sum(), u)[0]
    want = torch.autograd.grad((exact.roll(1, 1) * exact.sin()).sum(), exact)[0]
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


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
