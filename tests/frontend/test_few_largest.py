"""topk of a few values through torch.compile: a fold in the region that reads it, with gradients; torch finds more of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from half_of_pairs import half
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")
OPTIONS = {"emulate": True, "strict": True, "debug": True}


def different(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers that all differ along each axis, so that positions are unique."""
    count = torch.Size(shape).numel()
    return (torch.randperm(count) - count // 2).reshape(shape).to(dtype)


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "rows": ((7, 33), {"k": 3}), "columns": ((33, 7), {"k": 5, "dim": 0}), "smallest": ((5, 64), {"k": 8, "largest": False}), "one": ((5, 9), {"k": 1}),
    "all": ((6, 4), {"k": 4}), "middle": ((2, 9, 5), {"k": 2, "dim": 1}), "in any order": ((4, 130), {"k": 6, "sorted": False}), "vector": ((40,), {"k": 7}),
    "one element": ((3, 1), {"k": 1}), "no rows": ((0, 9), {"k": 2}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), half(CASES, [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32]), ids=str)
def test_values_and_positions(name: str, dtype: torch.dtype) -> None:
    shape, given = CASES[name]
    x = different(*shape, dtype=dtype)
    torch._dynamo.reset()
    with poisoned_outputs():
        values, places = torch.compile(lambda x: (x * 2).topk(**given), backend=backend, options=OPTIONS)(x)
    want = (x * 2).topk(**given)
    if not given.get("sorted", True):
        values, order = values.sort(given.get("dim", -1), descending=True)
        places, want = places.gather(given.get("dim", -1), order), (x * 2).topk(**{**given, "sorted": True})
    assert values.dtype is dtype and torch.equal(values, want[0]) and torch.equal(places, want[1])
    assert values.stride() == want[0].stride() and places.dtype is torch.int64
    assert not any(graph.torch_ops for graph in GRAPHS)


def routed(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The router of a mixture of experts: scores with a bias decide, and scores without it weigh."""
    scores = x.sigmoid()
    places = (scores + bias).topk(4, -1).indices
    weights = scores.gather(-1, places)
    return weights / weights.sum(-1, keepdim=True), places


@pytest.mark.parametrize("rows", [1, 37])
def test_a_router_is_two_kernels(rows: int) -> None:
    x, bias = different(rows, 64).div(rows * 32), torch.randn(64)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    out, places = torch.compile(routed, backend=backend, options=OPTIONS)(ours, bias)
    want, wanted_places = routed(theirs, bias.double())
    assert torch.equal(places, wanted_places)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-7)
    slope = torch.randn_like(out)
    out.backward(slope)
    want.backward(slope.double())
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]
    assert not any(graph.torch_ops for graph in GRAPHS)
    forward = next(graph for graph in GRAPHS if graph.kind == "forward")
    assert sum(len(call.kernels()) for call in forward.calls) == 2


def test_a_number_that_is_none_is_the_largest() -> None:
    x = different(5, 20)
    x[1, 3] = x[2, 4] = x[2, 9] = float("nan")
    x[3] = float("-inf")
    values, places = torch.compile(lambda x: x.topk(3), backend=backend, options=OPTIONS)(x)
    torch.testing.assert_close(values, x.topk(3).values, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(x.gather(1, places), values, equal_nan=True, rtol=0, atol=0)


def test_torch_finds_many_and_those_of_bits() -> None:
    x = different(5, 40)
    values, places = torch.compile(lambda x: (x + 1).topk(9), backend=backend, options=OPTIONS)(x)
    assert torch.equal(values, (x + 1).topk(9).values) and torch.equal(places, x.topk(9).indices)
    assert [list(graph.torch_ops) for graph in GRAPHS] == [["aten.topk.default"]]


def test_rows_of_open_length() -> None:
    """A row that may be shorter than k stays with torch, which raises the error."""
    made = torch.compile(lambda x: (x * 2).topk(2), backend=backend, options=OPTIONS, dynamic=True)
    for rows, columns in ((3, 17), (5, 29)):
        x = different(rows, columns)
        values, places = made(x)
        assert torch.equal(values, (x * 2).topk(2).values) and torch.equal(places, x.topk(2).indices)
