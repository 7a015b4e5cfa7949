"""Gradients of maxima and minima of what is computed from far smaller arguments: nothing of its size is saved, and ties share as in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compared_images import compare
from torch import Tensor

from weft.frontend.backend import backend

Function = Callable[[Tensor, Tensor], Tensor]


def nearest(a: Tensor, b: Tensor) -> Tensor:
    """The Chamfer distance of two clouds of points."""
    d = (a[:, :, None] - b[:, None]).square().sum(-1)
    return d.amin(2).mean() + d.amin(1).mean()


def farthest_kept(a: Tensor, b: Tensor) -> Tensor:
    d = (a[:, :, None] - b[:, None]).pow(2).sum(-1, keepdim=True)
    return (d.amax(2) * 0.5).sum() + a.sum()


def largest_product(a: Tensor, b: Tensor) -> Tensor:
    """Some pairs do not count; the largest of relu(-x y + |x|)."""
    product = a[:, :, None, 0] * b[:, None, :, 0]
    open_ = torch.where(b[:, None, :, 1] > 0, (a[:, :, None, 0].abs() - product).relu(), -product)
    return open_.amax(2).sum() - open_.amin(1).sum()


def of_logs(a: Tensor, b: Tensor) -> Tensor:
    """Logarithms have other bits in other kernels."""
    return (a.exp()[:, :, None] * b[:, None]).sum(-1).amax(2).sum()


def of_many_terms(a: Tensor, b: Tensor) -> Tensor:
    """Sums of many terms are added in an order of each kernel."""
    return (a.repeat(1, 1, 3)[:, :, None] - b.repeat(1, 1, 3)[:, None]).square().sum(-1).amin(2).sum()


def largest_in_size(a: Tensor, b: Tensor) -> Tensor:
    y = (a.exp()[:, :, None] * b[:, None]).sum(-1) - 3
    return (torch.linalg.vector_norm(y, float("inf"), dim=2) * y.sin().sum(2)).sum()


def above_a_threshold(a: Tensor, b: Tensor) -> Tensor:
    """What is less than the third largest of a row does not count; the third largest itself does."""
    y = (a.exp()[:, :, None] * b[:, None]).sum(-1)
    return y.masked_fill(y < y.topk(3, 2).values[..., -1:], 0.0).sin().sum()


def above_the_middle(a: Tensor, b: Tensor) -> Tensor:
    y = (a.exp()[:, :, None] * b[:, None]).sum(-1)
    return torch.where(y.median(2, keepdim=True).values <= y, y.sin(), 0.0).sum()


def largest_at_places(a: Tensor, b: Tensor) -> Tensor:
    """Each place gets the largest of the rows that an index names."""
    y = (a.exp()[:, :, None] * b[:, None]).sum(-1)
    index = (torch.arange(y.shape[1]) % 7)[None, :, None].expand_as(y)
    return torch.full((y.shape[0], 9, y.shape[2]), -1e9).to(y.dtype).scatter_reduce(1, index, y, "amax")[:, :7].sin().sum()


def saved_and_gradients(function: Function, a: Tensor, b: Tensor) -> tuple[int, Tensor, tuple[Tensor, ...]]:
    """Return the number of elements of the largest saved tensor, the result, and the gradients."""
    torch._dynamo.reset()
    largest = 0

    def pack(t: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, t.numel())
        return t

    leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = torch.compile(function, backend=backend, options={"emulate": True})(*leaves)
    return largest, out.detach(), torch.autograd.grad(out, leaves)


def wanted(function: Function, a: Tensor, b: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = a.double().requires_grad_(), b.double().requires_grad_()
    out = function(*leaves)
    return out.detach(), torch.autograd.grad(out, leaves)


def check(function: Function, a: Tensor, b: Tensor, *, tolerance: float = 2.0**-19) -> int:
    largest, out, gradients = saved_and_gradients(function, a, b)
    exact, slopes = wanted(function, a, b)
    assert abs(out.double() - exact) <= tolerance * abs(exact) + 1e-30
    for made, slope in zip(gradients, slopes, strict=True):
        assert (made.double() - slope).abs().max() <= tolerance * max(1.0, float(slope.abs().max()))
    return largest


def points(n: int, m: int, coordinates: int, *, has_ties: bool, samples: int = 2) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(n * 31 + m)
    shape = (samples, n + m, coordinates)
    both = torch.randint(-2, 3, shape, generator=made).float() if has_ties else torch.randn(shape, generator=made)
    return both[:, :n].contiguous(), both[:, n:].contiguous()


@pytest.mark.parametrize(("n", "m", "has_ties"), [(37, 129, False), (37, 129, True), (64, 64, True), (1, 100, True), (100, 1, False), (1, 1, False)])
@pytest.mark.parametrize("function", [nearest, farthest_kept, largest_product], ids=lambda f: f.__name__)
def test_no_pairs_are_saved(function: Function, n: int, m: int, has_ties: bool) -> None:
    a, b = points(n, m, 3, has_ties=has_ties)
    largest = check(function, a, b)
    if min(n, m) > 1:
        assert largest <= max(a.numel(), b.numel()) < 2 * n * m


@pytest.mark.parametrize("coordinates", [2, 4, 1])
def test_points_of_other_spaces(coordinates: int) -> None:
    a, b = points(110, 91, coordinates, has_ties=False, samples=3)
    assert check(nearest, a, b) <= max(a.numel(), b.numel())


@pytest.mark.parametrize(
    "function", [of_logs, of_many_terms, largest_in_size, above_a_threshold, above_the_middle, largest_at_places], ids=lambda f: f.__name__
)
def test_what_has_other_bits_in_other_kernels_is_saved(function: Function) -> None:
    a, b = points(40, 50, 3, has_ties=False)
    assert check(function, a, b, tolerance=2.0**-17) == 2 * 40 * 50


def test_what_is_not_much_larger_than_its_arguments_is_saved() -> None:
    a, b = points(33, 33, 3, has_ties=False)
    assert check(lambda x, y: (x * y).amax(1).sum(), a, b) >= a.numel()


def test_16_bits_are_widened_first() -> None:
    a, b = (t.bfloat16() for t in points(45, 60, 3, has_ties=True))
    largest, out, gradients = saved_and_gradients(lambda x, y: nearest(x.float(), y.float()), a, b)
    exact, slopes = wanted(nearest, a, b)
    assert largest <= b.numel() and abs(out.double() - exact) <= 2.0**-20 * exact
    for made, slope in zip(gradients, slopes, strict=True):
        assert made.dtype is torch.bfloat16 and (made.double() - slope).abs().max() <= 2.0**-8 * slope.abs().max()


def test_kernels_do_not_contract_the_products() -> None:
    """The text says so in forward and backward; the compiler for the GPU then has no multiplication that it could join to a sum."""
    from weft import DataType, FusionDefinition

    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], contiguity=True, dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.add(fd.ops.rounded_mul(x, y), y))
    x, y = torch.randn(100, dtype=torch.float32), torch.randn(100)
    (out,) = fd.execute([x, y])
    assert "weft::rounded_mul(" in fd.fec.get_cuda_kernel([x, y]) and torch.equal(out, x * y + y)


@pytest.mark.usefixtures("fresh")
def test_the_largest_of_running_maxima() -> None:
    """One of two results of an op."""

    def function(x: Tensor) -> Tensor:
        y = torch.cummax(x * 0.5, 0).values
        return y - y.amax(0, keepdim=True) * 0.5

    compare(function, torch.randn(37, 9), rtol=1e-6, atol=1e-6, gradient_rtol=1e-5, gradient_atol=1e-5)


@pytest.mark.usefixtures("fresh")
def test_softmax_over_the_edges_of_a_graph() -> None:
    """Scores of edges, from which the largest of each node is subtracted: the backward has to find scores that equal it."""

    left, right, (source, target) = torch.randn(2, 4), torch.randn(2, 4), torch.randint(13, (2, 40))

    def function(h: Tensor) -> Tensor:
        a = torch.nn.functional.leaky_relu((h * left).sum(-1)[source] + (h * right).sum(-1)[target], 0.2)
        top = torch.full((13, 2), -torch.inf).to(h).scatter_reduce(0, target[:, None].expand(-1, 2), a, "amax")
        e = (a - top[target]).exp()
        total = torch.zeros(13, 2).to(h).index_add(0, target, e)
        return torch.zeros_like(h).index_add(0, target, (e / (total[target] + 1e-16))[..., None] * h[source])

    compare(function, torch.randn(13, 2, 4), rtol=1e-5, atol=1e-6, gradient_rtol=1e-4, gradient_atol=1e-5)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_extrema_of_rows_of_16_bits(kind: str, dtype: torch.dtype) -> None:
    """Kernels compute the rows in float32: an extremum that was rounded would equal none of them, and its gradient would be 0 / 0."""
    group = torch.arange(37) % 5
    x = torch.randn(37, 6).to(dtype)

    def function(x: Tensor) -> Tensor:
        rows = (x * 1.7).sin() * 3
        found = rows.new_full((6, 6), -9.0 if kind == "amax" else 9.0).scatter_reduce(0, group[:, None].expand_as(rows), rows, kind)
        return found[group] * 0.5 + rows

    (slope,) = torch.autograd.grad(function(leaf := x.double().requires_grad_()).sum(), leaf)
    out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True})(leaf := x.clone().requires_grad_())
    (found,) = torch.autograd.grad(out, leaf, torch.ones_like(out))
    torch.testing.assert_close(found.double(), slope, rtol=0.02, atol=0.05)
