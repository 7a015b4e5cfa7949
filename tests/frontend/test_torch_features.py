"""What programs of torch do besides arithmetic: they write into inputs, hand on views, cast automatically, and compute again what was not saved."""

from __future__ import annotations

import pytest
import torch
import torch._functorch.config as functorch_config
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")
OPTIONS = {"emulate": True, "strict": True, "debug": True}


def test_inputs_are_written_as_in_eager() -> None:
    def f(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.mul_(2).add_(x.sum(0))
        return x * b

    x, b = torch.randn(4, 7), torch.randn(7)
    exact, own = b.double(), b.clone()
    got = torch.compile(f, backend=backend, options=OPTIONS)(x, own)
    torch.testing.assert_close(got.double(), f(x.double(), exact), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own.double(), exact, rtol=1e-5, atol=1e-5)


def test_views_of_inputs_share_their_memory_and_results_do_not() -> None:
    x = torch.randn(6, 5)
    view, turned, same = torch.compile(lambda x: (x.view(5, 6), (x * 2).t(), x), backend=backend, options=OPTIONS)(x)
    assert view.data_ptr() == same.data_ptr() == x.data_ptr() != turned.data_ptr()
    torch.testing.assert_close(turned, (x * 2).t())
    assert turned.stride() == (1, 5)


def test_a_step_of_an_optimizer_is_in_regions() -> None:
    """Its sums with a tensor as factor arrive as an op that torch defines when Dynamo first needs it."""
    GRAPHS.clear()  # of other tests
    ours, theirs = ([torch.nn.Parameter(torch.linspace(-1, 1, 40))] for _ in range(2))
    optimizers = [torch.optim.AdamW(p, lr=1e-2) for p in (ours, theirs)]
    for p in (*ours, *theirs):
        p.grad = torch.linspace(2, -1, 40)
    step = torch.compile(optimizers[0].step, backend=backend, options={"emulate": True, "strict": True})
    for _ in range(3):
        step()
        optimizers[1].step()
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=1e-6)
    assert GRAPHS and not any(graph.torch_ops for graph in GRAPHS)


@pytest.mark.parametrize("dtypes", [(torch.int64, torch.float32), (torch.bool, torch.int64), (torch.bfloat16, torch.float64), (torch.float32, torch.int64)])
def test_tensors_without_axes_are_tensors(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """They take part in the types of results as eager has it, and results may come of them alone."""

    def f(x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + number, number * 3 - number, (number.sin() > x.sum()), torch.where(x > 1, number, 2.0)

    x, number = torch.tensor([[0, 1, 3]]).to(dtypes[0]), torch.tensor(5).to(dtypes[1])
    for got, want in zip(torch.compile(f, backend=backend, options=OPTIONS)(x, number), f(x, number), strict=True):
        torch.testing.assert_close(got, want)
    assert not GRAPHS[-1].torch_ops


def test_whole_numbers_of_a_logarithmic_scale_are_torchs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.logspace(0, 4, 5, base=3.0, dtype=torch.int64)

    assert torch.equal(torch.compile(f, backend=backend, options={"emulate": True})(torch.zeros(5)), torch.tensor([1.0, 3.0, 9.0, 27.0, 81.0]))
    assert "aten.logspace.default" in GRAPHS[-1].torch_ops.__repr__()


def test_autocast_gives_the_types_of_eager() -> None:
    model, x = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = torch.compile(model, backend=backend, options=OPTIONS)(x), model(x)
    assert got.dtype is want.dtype is torch.bfloat16
    torch.testing.assert_close(got.double(), model(x).double(), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("how", ["a budget", "a checkpoint"])
def test_what_is_not_saved_is_computed_again(how: str) -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.gelu(x @ w)
        return x

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (checkpoint(layers, x, w, use_reentrant=False) if how == "a checkpoint" else layers(x, w)).sum()

    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    exact = w.detach().double().requires_grad_()
    with functorch_config.patch(activation_memory_budget=0.3 if how == "a budget" else 1.0):
        torch.compile(f, backend=backend, options={**OPTIONS, "cache": False})(x, w).backward()
    layers(x.double(), exact).sum().backward()
    torch.testing.assert_close(w.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)
    products = {graph.kind: sum(times for op, (times, _) in graph.torch_ops.items() if ".mm" in op) for graph in GRAPHS}
    assert products["forward"] == 3 and products["backward"] > 5  # five are the gradient's own
