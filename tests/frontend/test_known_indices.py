"""Indices that are lists in a program: their gradients, and what is assigned to them, are slices put together, without a sort or an atomic addition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_assignments import check
from torch import Tensor

from weft.frontend.backend import backend

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("places", [[0, 2], [2, 1, 0], [-1, 0], [3], [0, 1, 2, 3, 4], [1, 2, 4]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_elements_that_a_list_names(places: list[int], dtype: torch.dtype) -> None:
    check(lambda x: x[:, places] * 2, torch.randn(7, 5).to(dtype))
    check(lambda x: x[places].exp(), torch.randn(5, 3).to(dtype))


@pytest.mark.parametrize("sizes", [(1, 5, 3), (0, 5, 3), (4, 5, 0)], ids=str)
def test_few_and_no_elements(sizes: tuple[int, ...]) -> None:
    check(lambda x: x[:, [4, 1]] * 2, torch.randn(sizes))


@pytest.mark.parametrize("places", [[1, 1], [0, 3, 0, 3, 3], [-5, 0]], ids=str)
def test_elements_that_a_list_names_twice(places: list[int]) -> None:
    """Their gradients are added."""
    check(lambda x: x[:, places] * x.sum(1, True), torch.randn(7, 5))


@pytest.mark.parametrize("places", [[0, 2], [3, 1], [1, -4, 2]], ids=str)
def test_what_is_assigned_to_the_places_of_a_list(places: list[int]) -> None:
    """Of two values for one place the last one stays."""

    def assigned(x: Tensor, y: Tensor) -> Tensor:
        z = x * 3
        z[:, places] = y
        return z * 2

    check(assigned, torch.randn(7, 5, 3), torch.randn(7, len(set(p % 5 for p in places)), 3) if len(places) == 2 else torch.randn(3))


def test_a_number_is_assigned_to_the_places_of_a_list() -> None:
    def assigned(x: Tensor) -> Tensor:
        z = x * 3
        z[:, [0, -1]] = 0.5
        return z

    check(assigned, torch.randn(7, 5, 3))


def test_what_is_assigned_to_all_places_is_no_view_of_it() -> None:
    def assigned(y: Tensor) -> Tensor:
        z = torch.zeros(7, 2)
        z[:, [0, 1]] = y
        return z

    y = torch.randn(7, 2)
    kept, out = y.clone(), torch.compile(assigned, backend=backend, options={"emulate": True})(y)
    assert torch.equal(out, y)
    out.add_(1)
    assert torch.equal(y, kept)


def test_an_axis_in_channels_last() -> None:
    check(lambda x: x[:, [2, 1, 0]] * 2, torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last))


def test_a_place_out_of_range_is_an_error() -> None:
    """torch's own, in the call."""
    function: Callable[[Tensor], Tensor] = torch.compile(lambda x: x.exp().index_put((torch.tensor([7]),), x[:1]), backend=backend, options={"emulate": True})
    with pytest.raises((RuntimeError, IndexError)):
        function(torch.randn(5, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_list_that_is_a_tensor_of_the_gpu() -> None:
    """Its values are read while the graph has no tensors with values."""
    ours = torch.randn(7, 5, device="cuda", requires_grad=True)
    theirs = ours.detach().double().requires_grad_()
    torch.compile(lambda x: x[:, [0, 2]].exp() + x[:, 1:2], backend=backend)(ours).sum().backward()
    (theirs[:, [0, 2]].exp() + theirs[:, 1:2]).sum().backward()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]
