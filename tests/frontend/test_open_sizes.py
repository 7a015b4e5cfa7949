"""Graphs with open sizes (dynamic=True): one trace for calls of several sizes, every op in regions of weft's, equal to eager torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")
EPS = 2.0**-23


def check(function: Callable[..., Tensor], *calls: tuple[Tensor, ...], terms: int, left: frozenset[str] = frozenset()) -> None:
    """Compare results and the first argument's gradients with float64. terms: how many roundings a result has, at most. left: what torch runs, by name."""
    compiled = torch.compile(function, backend=backend, dynamic=True, options={"emulate": True, "strict": True, "debug": True})
    for given in calls:
        ours, theirs = (given[0].clone().requires_grad_(), given[0].double().requires_grad_())
        compiled(ours, *given[1:]).sum().backward()  # torch does not trace while outputs are poisoned
        with poisoned_outputs():
            out = compiled(ours, *given[1:])
            slope = torch.randn_like(out)
            (gradient,) = torch.autograd.grad(out, ours, slope)
        want = function(theirs, *given[1:])
        (exact,) = torch.autograd.grad(want, theirs, slope.double())
        for a, b in ((out, want), (gradient, exact)):
            size = float(b.detach().abs().max()) if b.numel() else 0.0
            torch.testing.assert_close(a.double(), b, rtol=terms * EPS, atol=terms * EPS * size)
    assert not {op for graph in GRAPHS for op in graph.torch_ops} - left


def test_extrema_of_rows_by_an_index() -> None:
    """Also their counts, whose sizes are those of the index: open sizes that the rewriting adds are nodes, as torch needs to run the graph (`debug`)."""

    def extrema(x: Tensor, to: Tensor) -> Tensor:
        i = to[:, None].expand_as(x)
        zero = torch.zeros(4, x.shape[1], dtype=x.dtype)
        return torch.cat([zero.scatter_reduce(0, i, x, how, include_self=False) for how in ("amax", "amin")], 1)

    check(extrema, *((torch.randn(n, m), torch.randint(4, (n,))) for n, m in ((9, 5), (31, 7), (2, 33))), terms=4)


def test_patches_whose_sizes_are_quotients() -> None:
    """A permuted tensor is dense also where torch cannot tell that no size is 0."""

    def patches(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return F.rms_norm(x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, 4 * c), (4 * c,)) * 2

    check(patches, *((torch.randn(shape),) for shape in ((2, 3, 12, 14), (3, 5, 6, 10), (2, 2, 16, 4))), terms=40)


def test_sizes_that_are_multiples_of_a_quotient_and_a_number() -> None:
    """A region has the pooled image, and its size alone: twice that is no sum of sizes that it has."""

    def repeated(x: Tensor) -> Tensor:
        return F.avg_pool2d(x.sin(), 3, 2, 1).repeat(1, 1, 2, 3).tanh() * 2

    calls = [(torch.randn(shape),) for shape in ((2, 3, 12, 14), (3, 5, 6, 9), (1, 2, 17, 4))]
    check(repeated, *calls, terms=40, left=frozenset({"aten.avg_pool2d.default", "aten.avg_pool2d_backward.default"}))


def test_a_number_of_sizes_is_the_result_of_a_region() -> None:
    """The share of an element in a group's mean, which has no axes and is not computed from a tensor, and which regions on both sides of a convolution read."""

    def twice(x: Tensor, weight: Tensor) -> Tensor:
        y = x
        for _ in range(2):
            y = F.conv2d(F.silu(F.group_norm(y, 2, weight[0].to(x.dtype), weight[1].to(x.dtype))), weight[:, :, None, None].to(x.dtype))
        return y

    weight = torch.randn(4, 4)
    calls = [(torch.randn(2, 4, *sizes), weight) for sizes in ((9, 11), (7, 5))]
    check(twice, *calls, terms=400, left=frozenset({"aten.convolution.default", "aten.convolution_backward.default"}))
