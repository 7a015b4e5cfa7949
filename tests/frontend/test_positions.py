"""Ops at positions: scatters of few elements, and slices with steps of open sizes, as parts of regions; values and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from weft.frontend.aten import lookups
from weft.frontend.backend import GRAPHS, backend
from weft.options import options

pytestmark = pytest.mark.usefixtures("fresh")

PLACES = torch.tensor([[1, 0], [2, 2], [4, 1]])


def check(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, dynamic: bool = False) -> None:
    """Compare values and gradients with eager in float64, and see that no scatter or slice stayed with torch."""
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "debug": True}, dynamic=dynamic)
    given, exact = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    out, want = compiled(given), function(exact)
    slope = torch.randn_like(want)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(out, given, slope.to(out.dtype))[0]
    torch.testing.assert_close(got.double(), torch.autograd.grad(want, exact, slope)[0], rtol=1e-5, atol=1e-5)
    assert GRAPHS and not [op for graph in GRAPHS for op in graph.torch_ops if "scatter" in op or "slice" in op]
    assert not [call.fallback_reason for graph in GRAPHS for call in graph.calls if call.fallback_reason]


SCATTERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shares of experts": lambda x: x.new_zeros(3, 5).scatter(1, PLACES, x.softmax(-1)) * 2,
    "sums": lambda x: x.new_zeros(3, 5).scatter_add(1, PLACES, x.exp()) * 2,
    "a number": lambda x: (x.sum() * torch.arange(15).view(3, 5)).scatter(1, PLACES[:, :1], 7.0),
    "along the first axis": lambda x: (x.new_zeros(6, 2) + x.mean()).scatter(0, torch.tensor([[5, 0]]), x[:1]),
    "along the last axis of three": lambda x: x.new_zeros(1, 3, 5).scatter(-1, PLACES[None], x[None].sin()),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_a_scatter_of_few_elements_is_part_of_a_region(name: str) -> None:
    check(SCATTERS[name], torch.randn(3, 2))


def test_a_scatter_of_many_elements_stays_with_torch_where_the_last_one_must_win() -> None:
    places = torch.arange(9).flip(0)[None]
    with options(deterministic=True):
        torch.compile(lambda x: x.new_zeros(1, 9).scatter(1, places, x) * 2, backend=backend, options={"emulate": True})(torch.randn(1, 9))
    assert [why for graph in GRAPHS for _, why in graph.torch_ops.values()] == ["a scatter whose number of elements along its axis is unknown or not 1 to 8"]


def test_16_bit_sums_of_a_scatter_are_rounded_once() -> None:
    x = torch.tensor([[1.0, 2**-9]]).bfloat16()
    places = torch.tensor([[2, 2]])
    out = torch.compile(lambda x: (x.new_zeros(1, 3).scatter_add(1, places, x).float() - 1) * 2, backend=backend, options={"emulate": True})(x)
    assert out[0, 2] == 2 * 2**-9  # torch rounds 1 + 2^-9 to 1


@pytest.mark.parametrize("function", [lambda x: (x[:, ::2].exp() * 2).sum(0), lambda x: x[1::3].sin() * 2, lambda x: torch.tanh(x[:, 1:-1:2]) * x[:, 2::2]])
def test_slices_with_steps_of_open_sizes_are_parts_of_regions(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for sizes in ((7, 9), (10, 13), (5, 21)):
        check(function, torch.randn(sizes), dynamic=True)


NAN = float("nan")
ROWS = {
    "floats": torch.tensor([[1.0, 3, 3, 2], [NAN, 1, NAN, 2], [-1, -1, -1, -1], [-float("inf")] * 4]),
    "16-bit floats": torch.tensor([[1.0, 3, 3, 2], [2, NAN, 1, NAN]]).bfloat16(),
    "integers": torch.tensor([[1, 3, 3, 2], [0, 0, -5, 0]]),
}


@pytest.mark.parametrize("name", ROWS)
def test_extrema_have_their_first_places(name: str) -> None:
    """As torch: the first of equal ones; NaN before everything."""
    functions = (lambda x: x.max(-1), lambda x: x.min(0), lambda x: x.max(1, keepdim=True), lambda x: (x.argmax(-1), x.argmin(0, keepdim=True), x.argmax()))
    for function in functions:
        found = torch.compile(function, backend=backend, options={"emulate": True, "debug": True})(ROWS[name])
        for got, want in zip(found, function(ROWS[name]), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert GRAPHS and not [op for graph in GRAPHS for op in graph.torch_ops]


def test_the_gradient_of_a_maximum_goes_to_its_place() -> None:
    check(lambda x: (x * 2).max(-1)[0].sin(), torch.randn(4, 6))


@pytest.mark.parametrize("is_ordered", [True, False], ids=["equal bits", "any order"])
def test_a_scatter_that_takes_longer_to_compare_is_torchs_or_atomic(is_ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a gather of some elements of each row, where comparisons take longer than a launch, and where not: few, or beside the bytes."""
    monkeypatch.setattr(lookups, "LAUNCH_BYTES", 16 * 20)
    monkeypatch.setattr(lookups, "COMPARED_INSTRUCTIONS", 8.0)
    for count, width, is_compared in ((4, 40, False), (4, 12, True), (2, 40, True)):
        torch._dynamo.reset()
        GRAPHS.clear()
        x, index = torch.randn(16, width, requires_grad=True), torch.randint(width, (16, count))
        with options(deterministic=is_ordered):
            out = torch.compile(lambda t, i: t.gather(1, i) * 2, backend=backend, options={"emulate": True})(x, index)
            (got,) = torch.autograd.grad(out, x, torch.ones_like(out))
        torch.testing.assert_close(got, torch.zeros_like(x).scatter_add(1, index, torch.full((16, count), 2.0)))
        by_torch = "aten.scatter_add.default" in {op for graph in GRAPHS for op in graph.torch_ops}
        is_atomic = any("weft::scatter_add" in kernel.program.text for graph in GRAPHS for call in graph.calls for kernel in call.kernels())
        assert (by_torch, is_atomic) == (is_ordered and not is_compared, not is_ordered and not is_compared)
