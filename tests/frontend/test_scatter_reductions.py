"""`scatter_reduce` and `scatter_add` in kernels: values and gradients as torch's, with ties, NaNs, empty places, and rows whose index does not vary along them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from half_of_pairs import half
from row_gradients import kept_by_torch
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend
from weft.options import options

pytestmark = pytest.mark.usefixtures("fresh")


def run(function: Any, *tensors: Tensor) -> Tensor:
    with poisoned_outputs():
        return torch.compile(function, backend=backend, options={"emulate": True, "debug": True, "strict": True})(*tensors)


def reduced(base: Tensor, index: Tensor, values: Tensor, kind: str, dim: int, includes: bool) -> Tensor:
    return (base * 1).scatter_reduce(dim, index, values, kind, include_self=includes)


def kept_reductions() -> set[str]:
    return {name for name in kept_by_torch() if "scatter" in name or "rows" in name}


SHAPES = {"rows": ((7, 19), (150, 19), 0), "columns": ((5, 9), (5, 70), 1), "one axis": ((6,), (90,), 0), "one row": ((1, 3), (40, 3), 0), "nothing": ((5, 4), (0, 4), 0), "three axes": ((3, 5, 8), (3, 33, 8), 1)}  # fmt: skip


def sample(shape: str, dtype: torch.dtype, *, is_row: bool) -> tuple[Tensor, Tensor, Tensor, int]:
    """Base, index and values with many ties: whole numbers and halves. is_row: the index is the same along all axes behind the one that it names."""
    sizes, given, dim = SHAPES[shape]
    base, values = (torch.randint(-9, 9, s).to(dtype) / (2 if dtype.is_floating_point else 1) for s in (sizes, given))
    places = given[: dim + 1] if is_row else given
    index = torch.randint(0, max(1, sizes[dim] - (sizes[dim] > 1)), places)  # nothing goes to the last one
    index = index.view(*places, *(1 for _ in given[len(places) :])).expand(given)
    return base.to(dtype), index, values.to(dtype), dim


@pytest.mark.parametrize(
    ("dtype", "includes"),
    [(torch.float32, True), (torch.float32, False), (torch.float64, True), (torch.bfloat16, False), (torch.float16, True), (torch.int64, False), (torch.int32, True)], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["amax", "amin", "sum", "mean"])
def test_kinds_and_types(kind: str, includes: bool, dtype: torch.dtype) -> None:
    base, index, values, dim = sample("rows", dtype, is_row=True)
    out = run(lambda b, i, v: reduced(b, i, v, kind, dim, includes), base, index, values)
    wide = torch.float64 if dtype.is_floating_point else dtype
    wanted = reduced(base.to(wide), index, values.to(wide), kind, dim, includes)
    assert out.dtype is dtype
    narrow = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}.get(dtype, 2.0**-53)  # sums of halves are exact, means are rounded
    torch.testing.assert_close(out.to(wide), wanted, rtol=narrow if dtype.is_floating_point else 0, atol=0)
    assert bool(kept_reductions()) == (kind == "mean" and not dtype.is_floating_point)


@pytest.mark.parametrize("is_row", [True, False], ids=["rows", "elements"])
@pytest.mark.parametrize(("kind", "shape"), half(["amax", "amin", "sum", "mean"], SHAPES), ids=str)
def test_shapes(kind: str, shape: str, is_row: bool) -> None:
    base, index, values, dim = sample(shape, torch.float32, is_row=is_row)
    out = run(lambda b, i, v: reduced(b, i, v, kind, dim, False), base, index, values)
    torch.testing.assert_close(out.double(), reduced(base.double(), index, values.double(), kind, dim, False), rtol=2.0**-23, atol=0)
    assert not kept_reductions()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_extrema_of_all_floats(kind: str, dtype: torch.dtype) -> None:
    """Infinities, both zeros, the smallest numbers, and NaNs of either sign, in the base and among the values: each beside numbers of both signs."""
    inf, nan, tiny = float("inf"), float("nan"), torch.finfo(dtype).tiny
    numbers = torch.tensor([inf, -inf, 0.0, -0.0, 1.0, -1.0, 3e4, -3e4, tiny, -tiny, nan], dtype=dtype)
    numbers = torch.cat([numbers, torch.copysign(numbers[-1:], torch.tensor(-1.0, dtype=dtype))])
    pairs = torch.cartesian_prod(torch.arange(12), torch.arange(12), torch.arange(12))
    base, values = numbers[pairs[:, 0]], torch.cat([numbers[pairs[:, 1]], numbers[pairs[:, 2]]])
    index = torch.arange(len(pairs)).repeat(2)
    out = run(lambda b, i, v: reduced(b, i, v, kind, 0, True), base, index, values)
    wanted = reduced(base, index, values, kind, 0, True)
    assert torch.equal(out.isnan(), wanted.isnan()) and torch.equal(out.nan_to_num(7.5), wanted.nan_to_num(7.5))


@pytest.mark.parametrize("includes", [True, False], ids=["with self", "without self"])
@pytest.mark.parametrize(("kind", "shape"), half(["amax", "amin", "sum", "mean"], ["rows", "columns", "one axis"]), ids=str)
def test_gradients(shape: str, kind: str, includes: bool) -> None:
    """Equal extrema share the gradient evenly."""
    base, index, values, dim = sample(shape, torch.float32, is_row=True)
    slope = torch.randn(base.shape)
    results = []
    for cast, made in ((torch.float32, lambda *given: run(lambda b, i, v: reduced(b, i, v, kind, dim, includes), *given)), (torch.float64, None)):
        leaves = [t.to(cast).requires_grad_() for t in (base, values)]
        out = made(leaves[0], index, leaves[1]) if made is not None else reduced(leaves[0], index, leaves[1], kind, dim, includes)
        with poisoned_outputs():
            results.append([out, *torch.autograd.grad(out, leaves, slope.to(cast))])
    for got, wanted in zip(*results):
        torch.testing.assert_close(got.double(), wanted, rtol=2.0**-21, atol=2.0**-21)
    assert not kept_reductions() or not includes  # without self, torch writes zeros where something was scattered


def test_extrema_are_the_same_where_equal_bits_are_asked_for() -> None:
    base, index, values, dim = sample("rows", torch.float32, is_row=True)
    with options(deterministic=True):
        out = run(lambda b, i, v: reduced(b, i, v, "amax", dim, True), base, index, values)
        assert not kept_reductions() and torch.equal(out, reduced(base, index, values, "amax", dim, True))
        GRAPHS.clear()
        torch._dynamo.reset()
        run(lambda b, i, v: reduced(b, i, v, "sum", dim, True), base, index, values)
        assert kept_reductions()


def test_products_are_torchs() -> None:
    base, index, values, dim = sample("rows", torch.float32, is_row=True)
    torch.testing.assert_close(run(lambda b, i, v: reduced(b, i, v, "prod", dim, True), base, index, values), reduced(base, index, values, "prod", dim, True))
    assert kept_reductions()


def edge_softmax(s: Tensor, node: Tensor) -> Tensor:
    to = node[:, None].expand_as(s)
    top = torch.full((30, s.shape[1]), float("-inf")).scatter_reduce(0, to, s.detach(), "amax")
    e = torch.exp(s - top[node])
    return e / (torch.zeros(30, s.shape[1]).scatter_add(0, to, e)[node] + 1e-16)


@pytest.mark.parametrize("width", [1, 3, 8])
def test_softmax_of_edges(width: int) -> None:
    """All of it in kernels: maxima, sums, and what is between them."""
    s, node = torch.randn(200, width) * 5, torch.randint(0, 30, (200,))
    out = run(edge_softmax, s, node)
    with torch.no_grad():
        e = s.double().exp()
        wanted = e / torch.zeros(30, width, dtype=torch.float64).index_add(0, node, e)[node]
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-7)
    assert not kept_reductions()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_scatter_that_adds(dtype: torch.dtype) -> None:
    """By its old name."""

    def program(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (x * 2).scatter(1, i, v * 2, reduce="add")

    x, v, i = torch.randint(-9, 9, (5, 33)).to(dtype), torch.randint(-9, 9, (5, 70)).to(dtype), torch.randint(0, 33, (5, 70))
    torch._dynamo.reset()
    with poisoned_outputs():
        out = torch.compile(program, backend=backend, options={"emulate": True, "strict": True})(x, i, v)
    assert out.dtype is dtype and torch.equal(out.double(), (x.double() * 2).scatter_add(1, i, v.double() * 2).to(dtype).double())
    assert not any(graph.torch_ops for graph in GRAPHS)
