"""cummax and cummin through torch.compile: values and positions from one kernel, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compared_images import compare
from fusion_check import poisoned_outputs
from half_of_pairs import half
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")
OPTIONS = {"emulate": True, "strict": True, "debug": True}


def few_values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of which many are equal."""
    x = torch.randint(0 if dtype is torch.uint8 else -6, 7, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    return x > 4 if dtype is torch.bool else x


def compiled(function: Any, *inputs: Tensor, **given: Any) -> Any:
    torch._dynamo.reset()
    with poisoned_outputs():
        return torch.compile(function, backend=backend, options=OPTIONS, **given)(*inputs)


TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool]
SCANNED = [((7, 333), 1), ((129, 6), 0), ((2, 40, 3), -2), ((5, 1), 1), ((0, 4), 1), ((), 0), ((1,), 0)]


@pytest.mark.parametrize(("dtype", "scanned"), half(TYPES, SCANNED), ids=str)
def test_values_and_positions(scanned: tuple[tuple[int, ...], int], dtype: torch.dtype) -> None:
    shape, dim = scanned
    x = few_values(*shape, dtype=dtype)
    for name in ("cummax", "cummin"):
        values, places = compiled(lambda x: getattr(torch, name)(x, dim), x)
        want = getattr(torch, name)(x, dim)
        assert values.dtype is dtype and torch.equal(values, want.values) and torch.equal(places, want.indices) and places.dtype is torch.int64
        assert values.stride() == want.values.stride()
    assert not any(graph.torch_ops for graph in GRAPHS)


def test_what_is_no_number_stays() -> None:
    x = few_values(4, 300)
    x[0, 7] = x[0, 9] = x[2, 299] = float("nan")
    x[1] = float("-inf")
    values, places = compiled(lambda x: x.cummax(1), x)
    torch.testing.assert_close(values, x.cummax(1).values, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(places, x.cummax(1).indices)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_gradient_goes_to_the_positions(name: str, dim: int) -> None:
    ours, slope = few_values(33, 50).requires_grad_(), torch.randn(33, 50)
    theirs = ours.detach().double().requires_grad_()
    out = compiled(lambda x: getattr(torch, name)(x * 2, dim)[0].sin(), ours)
    want = getattr(torch, name)(theirs * 2, dim)[0].sin()
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    out.backward(slope)
    want.backward(slope.double())
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-4)  # type: ignore[union-attr]
    forward = next(graph for graph in GRAPHS if graph.kind == "forward")
    assert sum(len(call.kernels()) for call in forward.calls) == 1 and not forward.torch_ops


def test_rows_of_any_length_share_a_graph() -> None:
    function = torch.compile(lambda x: x.cummax(1), backend=backend, options=OPTIONS, dynamic=True)
    for shape in ((3, 40), (5, 2100), (2, 77)):
        x = few_values(*shape)
        values, places = function(x)
        assert torch.equal(values, x.cummax(1).values) and torch.equal(places, x.cummax(1).indices)


@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp"])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_running_sums_begin_at_the_end_in_one_kernel(name: str, dim: int) -> None:
    ours, slope = torch.randn(33, 50).requires_grad_(), torch.randn(33, 50).abs()
    theirs = ours.detach().double().requires_grad_()
    compiled(lambda x: getattr(torch, name)(x, dim), ours).backward(slope)
    getattr(torch, name)(theirs, dim).backward(slope.double())
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
    backward = next(graph for graph in GRAPHS if graph.kind == "backward")
    assert sum(len(call.kernels()) for call in backward.calls) == 1 and not backward.torch_ops


@pytest.mark.parametrize("last", ["cumsum", "cummax", "logcumsumexp"])
@pytest.mark.parametrize("first", ["cumsum", "logcumsumexp"])
def test_scans_in_front_of_and_behind_windows(first: str, last: str) -> None:
    """The backward scans columns of what it looks up in windows: a thread has one of them."""

    def function(x: Tensor) -> Tensor:
        x = getattr(torch, first)(x * 0.5, 1)
        y = torch.nn.functional.max_pool2d(x.reshape(1, -1, *x.shape[-2:]), 3, 2)
        y = getattr(torch, last)(y.reshape(*x.shape[:-2], *y.shape[-2:]) * 0.5, 3)
        return y.values if last == "cummax" else y

    compare(function, torch.randn(2, 3, 8, 11), rtol=1e-5, atol=1e-5, gradient_rtol=1e-4, gradient_atol=1e-5)
