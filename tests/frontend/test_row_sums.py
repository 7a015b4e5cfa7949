"""Gradients of embeddings and of rows taken by an index: sorted by torch and added in kernels, the same bits in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from half_of_pairs import half, name_of
from row_gradients import (
    INDICES, check, check_messages, gradient, has_sums_of_torch, kept_by_torch, messages, padded_table, pooled, pooled_over_samples, scattered_messages, table,
    taken, taken_twice, weighted_sums,
)  # fmt: skip
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend
from weft.options import options

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _sorted() -> Iterator[None]:
    with options(row_sums="sort"):
        yield


@pytest.mark.parametrize(("name", "function"), half(INDICES, [table, padded_table, taken]), ids=name_of)
def test_indices(function: Callable[..., Tensor], name: str) -> None:
    check(function, torch.randn(37, 19), INDICES[name](37))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(1, 64), (37, 40), (300, 33), (5, 4, 16)], ids=str)
def test_types_and_sizes(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    check(taken, torch.randn(sizes).to(dtype), torch.randint(0, sizes[0], (7, 40)))


@pytest.mark.parametrize(("sizes", "shape"), [((5, 9), (70,)), ((3, 9, 17), (4, 30)), ((2, 3, 9, 4), (1,)), ((2, 9, 4), (0,)), ((1, 9, 1), (70,))], ids=str)
def test_places_of_a_later_axis(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    axis = sizes.index(9)
    check(lambda x, i: x[(slice(None),) * axis + (i,)], torch.randn(sizes), torch.randint(-9, 9, shape))
    assert not has_sums_of_torch()


def test_places_of_two_later_axes() -> None:
    check(lambda x, i, j: x[:, i, j], torch.randn(3, 7, 5, 6), torch.randint(0, 7, (8, 9)), torch.randint(0, 5, (8, 9)))
    assert not has_sums_of_torch()


def test_negative_places() -> None:
    check(taken, torch.randn(20, 24), torch.randint(-20, 20, (90,)))


def test_two_indices() -> None:
    check(taken_twice, torch.randn(5, 7, 24), torch.randint(-5, 5, (90,)), torch.randint(0, 7, (90,)))


@pytest.mark.parametrize("dynamic", [True, None])
def test_open_sizes(dynamic: bool | None) -> None:
    """One graph for all lengths of the index; rows of an open number stay with torch."""
    compiled = torch.compile(taken, backend=backend, options={"emulate": True, "debug": True}, dynamic=dynamic)
    for length in (40, 333, 1000, 50):
        x, i = torch.randn(30, 20, requires_grad=True), torch.randint(0, 30, (length,))
        torch._dynamo.mark_dynamic(i, 0)
        compiled(x, i).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, torch.bincount(i, minlength=30)[:, None].expand(30, 20) * 2.0)
    assert dynamic or not any("index_put" in name for name in kept_by_torch())


def test_same_bits() -> None:
    x, i = torch.randn(9, 32).to(torch.bfloat16), torch.randint(0, 9, (4000,))
    first, slope = gradient(taken, x, i)
    torch._dynamo.reset()
    assert torch.equal(first, gradient(taken, x, i, slope=slope)[0])


def test_sums_are_in_kernels() -> None:
    gradient(table, torch.randn(50, 64), torch.randint(0, 50, (4, 30)))
    assert not has_sums_of_torch()


@pytest.mark.parametrize("shape", [(5, 30), (1, 7), (30, 1), (40, 50), (70,)], ids=str)
@pytest.mark.parametrize("function", [pooled, pooled_over_samples], ids=lambda f: f.__name__)
def test_sums_of_rows(function: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    check(function, torch.randn(9, 19), torch.randint(0, 9, shape))
    assert not has_sums_of_torch()


@pytest.mark.parametrize("axes", [(0, 2), (1, 3), (-1,)], ids=str)
def test_sums_over_several_axes(axes: tuple[int, ...]) -> None:
    check(lambda x, i: x[i].sum(axes), torch.randn(9, 24), torch.randint(0, 9, (4, 5, 6)))


@pytest.mark.parametrize(
    ("function", "dtype"), [(messages, torch.float32), (messages, torch.float64), (messages, torch.bfloat16), (scattered_messages, torch.bfloat16)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)  # fmt: skip
@pytest.mark.parametrize(("nodes", "edges", "row"), [(50, 90, (32,)), (7, 700, (37,)), (1, 5, (6, 6)), (30, 0, (32,)), (9, 1, (32, 1))], ids=str)
def test_messages(function: Callable[..., Tensor], dtype: torch.dtype, nodes: int, edges: int, row: tuple[int, ...]) -> None:
    check_messages(function, dtype, nodes, edges, row)
    assert not has_sums_of_torch()


def test_messages_are_not_stored() -> None:
    """Kernels for the index to sort, for places and weights in the order of the sort, and for the sums; none for the rows of edges."""
    x, w, edges = torch.randn(40, 512), torch.randn(60, 1), torch.randint(0, 40, (2, 60))
    torch.compile(messages, backend=backend, options={"emulate": True, "debug": True, "strict": True})(x, *edges, w)
    (graph,) = GRAPHS
    assert sum(len(call.kernels()) for call in graph.calls) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 30), (1, 7), (30, 1), (40, 50)], ids=str)
def test_weighted_sums(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, i, w = torch.randn(9, 19).to(dtype), torch.randint(0, 9, shape), torch.rand(shape).to(dtype)
    check(lambda x, i: weighted_sums(x, i, w.to(x.dtype)), x, i)
    assert not has_sums_of_torch()


@pytest.mark.parametrize("row", [(), (1,), (3,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_short_rows(dtype: torch.dtype, row: tuple[int, ...]) -> None:
    """As the biases of relative positions have them: few places, each named often."""
    check(taken, torch.randn(5, *row).to(dtype), torch.randint(0, 5, (40, 30)))
    assert not has_sums_of_torch()


def test_gradients_meet() -> None:
    """A table that is also a matrix, as in language models: its gradients are added in the kernel of the sums."""

    def tied(x: Tensor, i: Tensor) -> Tensor:
        return F.linear(F.embedding(i, x), x)

    check_tied: Any = tied
    x, i = torch.randn(40, 32), torch.randint(0, 40, (3, 25))
    got, slope = gradient(check_tied, x, i)
    leaf = x.double().requires_grad_()
    tied(leaf, i).backward(slope.double())
    assert leaf.grad is not None
    torch.testing.assert_close(got.double(), leaf.grad, rtol=1e-4, atol=1e-4)


def test_the_forward_does_not_sort() -> None:
    """The order is needed for the gradient only; nothing but the index is kept, so that a backward may run twice."""
    x, i = torch.randn(40, 32, requires_grad=True), torch.randint(0, 40, (3, 25))
    out = torch.compile(table, backend=backend, options={"emulate": True, "debug": True, "strict": True})(x, i)
    first, second = (torch.autograd.grad(out.sum(), [x], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second) and [graph.kind for graph in GRAPHS if "aten.sort.stable" in graph.torch_ops] == ["backward"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_scaled_embedding(dtype: torch.dtype) -> None:
    """The kernel of sums reads the gradient that the backward is given, of tokens in two axes, and the number is multiplied with the sums."""
    check(lambda t, i: F.embedding(i, t) * 6**0.5, torch.randn(11, 48).to(dtype), torch.randint(0, 11, (3, 5)))
    of_backward = [kernel.program.text for graph in GRAPHS if graph.kind == "backward" for call in graph.calls for kernel in call.kernels()]
    assert sum(" mul" in text for text in of_backward) == 1 and any("bag" in text and " mul" in text for text in of_backward)


def test_chunks_of_chunks() -> None:
    """40,000 places of three rows: no thread adds more than some hundred of them."""
    check(taken, torch.randn(3, 2), torch.where(torch.rand(40000) < 0.9, 1, torch.randint(0, 3, (40000,))))
    assert not has_sums_of_torch()


def sorts() -> list[tuple[str, int]]:
    """How often each graph sorts."""
    return [(graph.kind, graph.torch_ops.get("aten.sort.stable", (0, ""))[0]) for graph in GRAPHS]


def test_sums_with_one_index_share_a_sort() -> None:
    def two(x: Tensor, y: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(9, 32).index_add(0, i, x), torch.zeros(9, 48).index_add(0, i, y * 2)

    x, y, i = torch.randn(70, 32), torch.randn(70, 48), torch.randint(0, 9, (70,))
    compiled = torch.compile(two, backend=backend, options={"emulate": True, "debug": True, "strict": True})
    torch.testing.assert_close(compiled(x, y, i), two(x, y, i))
    assert sorts() == [("inference", 1)]


def test_a_backward_has_the_order_that_the_forward_sorts() -> None:
    """Values that edges share at their targets: the forward adds by target, and so does the gradient of what edges read there."""

    def function(x: Tensor, target: Tensor) -> Tensor:
        e = x[target].exp()
        return e / torch.zeros(20, 32, dtype=e.dtype).index_add(0, target, e)[target]

    x, target = torch.rand(20, 32), torch.randint(0, 20, (150,))
    got, slope = gradient(function, x, target)
    leaf = x.double().requires_grad_()
    function(leaf, target).backward(slope.double())
    assert leaf.grad is not None
    torch.testing.assert_close(got.double(), leaf.grad, rtol=1e-5, atol=1e-6)
    assert sorts() == [("forward", 1), ("backward", 0)]


@pytest.mark.parametrize("way", ["sort", "atomic"])
@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 24)), (1, (30, 3, 4)), (1, (110, 3)), (0, (1, 5))], ids=str)
def test_sums_of_sums(axis: int, shape: tuple[int, ...], way: str) -> None:
    """Elements that are taken from taken elements: the gradient of the last ones is what the first ones' sums add."""
    places = torch.arange(4) * 2 % shape[axis]

    def taken(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x.index_select(axis, i).index_select(axis, j).index_select(axis, i) * 2

    with options(row_sums=way):
        check(taken, torch.randn(shape), places, places.flip(0).contiguous())
