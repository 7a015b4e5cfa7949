"""Functions of torch's that are formulas of other ops in a graph, and gradients that torch's own formulas have wrong: of means of nothing, and of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")


def compared(function: Callable[..., Tensor], *inputs: Tensor, terms: float, where: float = 1.0) -> None:
    """Compare the result, and the gradients of all inputs, with float64; every op is in a region of weft's. terms: how many roundings there are at most.
    where: what absolute errors are relative to besides the largest number."""
    torch._dynamo.reset()
    ours, theirs = [x.clone().requires_grad_() for x in inputs], [x.double().requires_grad_() for x in inputs]
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "debug": True})(*ours)
        slope = torch.randn_like(out)
        gradients = torch.autograd.grad(out, ours, slope)
    want = function(*theirs)
    exact = torch.autograd.grad(want, theirs, slope.double())
    assert out.dtype is inputs[0].dtype and out.shape == want.shape
    for a, b in zip((out, *gradients), (want, *exact)):
        eps = torch.finfo(a.dtype).eps
        size = float(b.detach().abs().max()) if b.numel() else 0.0
        torch.testing.assert_close(a.double(), b, rtol=terms * eps, atol=terms * eps * size * where)
    assert not any(graph.torch_ops for graph in GRAPHS)


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (0,)])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.binary_cross_entropy_with_logits])
def test_the_mean_loss_of_nothing(loss: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    """NaN, with a gradient without elements; torch's decompositions divide by zero."""
    x = torch.zeros(shape, requires_grad=True)
    out = torch.compile(loss, backend=backend, options={"emulate": True, "strict": True})(x, torch.zeros(shape))
    out.backward()
    assert out.isnan() and x.grad is not None and x.grad.shape == shape


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_smooth_l1(dtype: torch.dtype, reduction: str) -> None:
    x, y = torch.randn(7, 33).to(dtype), torch.randn(7, 33).to(dtype)
    compared(lambda x, y: F.smooth_l1_loss(x, y, beta=0.7, reduction=reduction), x, y, terms=16 if reduction != "none" else 4)


def test_gradients_of_nan_are_nan() -> None:
    """As torch's kernels have them; torch's decompositions return 0, which hides the NaN."""
    values = torch.tensor([math.nan, 0.25, -math.inf, 0.0, 1.0, 0.9999, 7.0])
    for function in (lambda x: F.smooth_l1_loss(x, values.flip(0), reduction="sum"), lambda x: torch.logit(x, 1e-3).sum(), lambda x: torch.logit(x).sum()):
        torch._dynamo.reset()
        ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
        torch.compile(function, backend=backend, options={"emulate": True, "strict": True})(ours).backward()
        function(theirs).backward()
        torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (33, 30, 16), (0, 4, 2), (4, 0, 2)])
def test_distances_of_all_pairs(shape: tuple[int, int, int], p: float) -> None:
    n, m, coordinates = shape
    compared(lambda a, b: torch.cdist(a, b, p) * 2, torch.randn(2, n, coordinates), torch.randn(2, m, coordinates), terms=64)


def test_the_distance_to_itself_has_no_slope() -> None:
    x = torch.randn(9, 3)
    compared(lambda a: torch.cdist(a, a.detach().clone()).amin(1) + torch.cdist(a, a).sum(1), x, terms=32)


def test_the_nearest_points_are_one_kernel() -> None:
    """No matrix of all distances is written: what reads them is in their kernel."""
    a, b = torch.randn(70, 3), torch.randn(50, 3)
    torch._dynamo.reset()
    with poisoned_outputs():
        out = torch.compile(lambda a, b: torch.cdist(a, b).amin(1), backend=backend, options={"emulate": True, "strict": True})(a, b)
    torch.testing.assert_close(out.double(), (a.double()[:, None] - b.double()).norm(dim=-1).amin(1), rtol=2.0**-20, atol=0)
    (call,) = GRAPHS[-1].calls
    assert len(call.kernels()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["lgamma", "digamma", "polygamma", "multigammaln", "ndtri", "ldexp", "dist"])
def test_functions(name: str, dtype: torch.dtype) -> None:
    if (name, dtype) == ("ndtri", torch.bfloat16):
        pytest.skip("torch has no such function on a CPU")
    x, y = torch.rand(7, 33).add(0.01).to(dtype), torch.randn(7, 33).to(dtype)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "lgamma": lambda x: torch.lgamma(x * 9 + 2), "digamma": lambda x: torch.digamma(x.detach()) + x, "polygamma": lambda x: torch.polygamma(1, x.detach()) + x,
        "multigammaln": lambda x: torch.special.multigammaln(x + 2, 3), "ndtri": lambda x: torch.special.ndtri(x * 0.9), "ldexp": lambda x: torch.ldexp(x, torch.tensor([3])),
        "dist": lambda x: torch.dist(x, y.to(x.dtype)).reshape(1),
    }  # fmt: skip
    compared(functions[name], x, terms=1e8 if name in ("digamma", "polygamma") and dtype is torch.float64 else 32)


def test_rounding_to_decimals_and_angles() -> None:
    x = torch.cat([torch.randn(300) * 100, torch.tensor([math.nan, -0.0, 0.0, math.inf, -math.inf, 0.25, -0.35])])
    for function in (lambda x: torch.round(x, decimals=2), lambda x: torch.round(x, decimals=-1), lambda x: torch.round(x, decimals=0), torch.angle):
        torch._dynamo.reset()
        with poisoned_outputs():
            out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "debug": True})(x)
        torch.testing.assert_close(out, function(x), rtol=2.0**-23, atol=0, equal_nan=True)
        assert not any(graph.torch_ops for graph in GRAPHS)
