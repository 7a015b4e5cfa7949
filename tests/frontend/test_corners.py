"""Values at the corners of single ops: NaN in a gradient, quotients that round up to a whole number. Eager torch is what they have to equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")

NAN, INF = float("nan"), float("inf")
SPECIALS = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.5, 2.5, 1e30, -1e-40])


def compiled(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Return the result of a function whose ops are all in regions."""
    out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True})(*inputs)
    assert GRAPHS and all(graph.covered_nodes == graph.compute_nodes > 0 for graph in GRAPHS)
    return out


@pytest.mark.parametrize("function", [torch.relu, lambda x: torch.nn.functional.threshold(x, 0.5, 2.0)])
def test_a_gradient_passes_a_relu_at_nan(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A NaN in an activation shows in the gradients before it, and is not cut off."""
    x, y = (SPECIALS.clone().requires_grad_() for _ in range(2))
    compiled(function, x).backward(slope := torch.arange(10.0) + 1)
    function(y).backward(slope)
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [
    lambda x, y: x // 0.1, lambda x, y: x // -0.3, lambda x, y: x // y, lambda x, y: torch.div(x, 0.7, rounding_mode="floor"), lambda x, y: 1.0 // y, lambda x, y: x // 0.0,
])  # fmt: skip
def test_a_floor_of_a_quotient_is_that_of_the_exact_one(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """1.0 // 0.1 is 9 in torch and in Python, though the quotient, rounded to a float, is 10."""
    x = torch.cat([torch.arange(-40, 41) * 0.1, SPECIALS]).to(dtype)
    y = torch.cat([torch.linspace(-1, 1, 81), SPECIALS.flip(0)]).to(dtype)
    out, want = compiled(function, x, y), function(x, y)
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit() & ~out.isnan(), want.signbit() & ~want.isnan())
