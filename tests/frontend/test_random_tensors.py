"""Random tensors of a compiled function: kernels draw them, distributed as torch's, others in each call, and the same in a forward and its backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from weft.frontend.aten import randoms
from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")

DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float, float, float]] = {  # mean, standard deviation, least, most
    "rand_like": (torch.rand_like, 0.5, 12**-0.5, 0.0, 1.0),
    "rand": (lambda x: torch.rand(x.shape, dtype=x.dtype), 0.5, 12**-0.5, 0.0, 1.0),
    "randn_like": (torch.randn_like, 0.0, 1.0, -math.inf, math.inf),
    "randn": (lambda x: torch.randn(x.shape, dtype=x.dtype), 0.0, 1.0, -math.inf, math.inf),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, 4 * 12**-0.5, -1.0, 3.0),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 3), 1.0, 3.0, -math.inf, math.inf),
    "normal": (lambda x: torch.normal(1.0, 3.0, x.shape, dtype=x.dtype), 1.0, 3.0, -math.inf, math.inf),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5, 0.0, math.inf),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.25)), 0.25, (0.25 * 0.75) ** 0.5, 0.0, 1.5),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.25), 0.25, (0.25 * 0.75) ** 0.5, 0.0, 1.5),
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options={"emulate": True, "debug": True})


def torch_ops() -> set[str]:
    return {op for graph in GRAPHS for op in graph.torch_ops} | {call.fallback_reason for graph in GRAPHS for call in graph.calls if call.fallback_reason}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_mean_deviation_and_limits(name: str, dtype: torch.dtype) -> None:
    """Six deviations of the mean of 99,900 numbers, and what 16 bits round."""
    draw, mean, deviation, least, most = DRAWS[name]
    x = torch.zeros(333, 300, dtype=dtype)
    with poisoned_outputs():
        out, again = (f(x) for f in [compiled(draw)] * 2)
    eager = draw(x)
    assert (out.dtype, out.shape, out.stride()) == (eager.dtype, eager.shape, eager.stride())
    assert not torch.equal(out, again) and not torch_ops()
    error = 6 * deviation / out.numel() ** 0.5 + torch.finfo(dtype).eps
    assert abs(out.double().mean() - mean) < error and abs(out.double().std() - deviation) < 2 * error
    assert out.min() >= least and out.max() < most


@pytest.mark.parametrize("sizes", [(1,), (0, 3), (5, 1, 7)], ids=str)
def test_few_numbers_and_none(sizes: tuple[int, ...]) -> None:
    out = compiled(lambda x: x + torch.randn_like(x))(torch.zeros(sizes))
    assert out.shape == sizes and out.isfinite().all() and not torch_ops()


def test_two_tensors_are_independent() -> None:
    x = torch.zeros(200, 333)
    for a, b in (compiled(lambda x: (torch.randn_like(x), torch.randn(x.shape)))(x), compiled(lambda x: (torch.rand_like(x), F.dropout(x + 1, 0.5)))(x)):
        pair = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))
        assert abs(pair[0, 1]) < 6 / x.numel() ** 0.5


def test_one_seed_gives_the_same_numbers() -> None:
    function, x = compiled(lambda x: x + torch.randn_like(x)), torch.zeros(7, 33)
    torch.manual_seed(3)
    first, second = function(x), function(x)
    torch.manual_seed(3)
    assert torch.equal(first, function(x)) and not torch.equal(first, second)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_the_backward_has_the_numbers_of_the_forward(is_checkpointed: bool) -> None:
    def noisy(x: Tensor) -> Tensor:
        return (x * torch.randn_like(x)).sin() + x * torch.rand_like(x)

    def slope(x: Tensor) -> Tensor:
        torch.manual_seed(5)
        y = compiled(lambda x: checkpoint(noisy, x, use_reentrant=False) if is_checkpointed else noisy(x))(x)
        return torch.autograd.grad(y.sum(), x)[0], y.detach()

    x = torch.randn(6, 33, dtype=torch.float64).requires_grad_()
    step, (got, here) = 1e-6, slope(x)
    with torch.no_grad():
        moved = x + step
    there = slope(moved.requires_grad_())[1]
    torch.testing.assert_close(got, (there - here) / step, rtol=1e-4, atol=1e-4)


def test_waiting_times_are_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the least number that may be drawn."""
    monkeypatch.setattr(randoms, "drawn", lambda t, *_: t.ops.full(t.extents(t.node.meta["val"].shape), t.constant(0.0, torch.float32), t.dtype(torch.float32)))
    out = compiled(lambda x: torch.empty_like(x).exponential_().log())(torch.zeros(3, 5))
    assert out.isfinite().all() and (out < -16).all()


def test_numbers_of_eager_torch_where_they_are_wanted() -> None:
    x = torch.ones(7, 33)

    def function(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.randn_like(x)

    with torch._inductor.config.patch(fallback_random=True):
        torch.manual_seed(3)
        out = compiled(function)(x)
    torch.manual_seed(3)
    assert torch.equal(out, function(x))
    assert torch_ops() == {"aten.native_dropout.default", "aten.randn_like.default"}


def test_single_numbers_and_integers_stay_with_torch() -> None:
    out, whole = compiled(lambda x: (x * torch.rand(()), torch.randint(0, 9, x.shape)))(torch.ones(5))
    assert (out == out[0]).all() and ((whole >= 0) & (whole < 9)).all()
