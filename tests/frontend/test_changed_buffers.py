"""Buffers that a forward changes, while its backward needs what was in them before: gradients of eager torch in float64, step after step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from weft.frontend.backend import GRAPHS, backend


class Changing(nn.Module):
    """step(x, w, b): changes the buffer b, and reads clones of it where eager torch would otherwise refuse the backward."""

    def __init__(self, step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.step = step
        self.w = nn.Parameter(torch.linspace(-1, 1, 6))
        self.register_buffer("b", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x, self.w, self.b)


def scaled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = (x * b.clone() * w).sin()
    b.mul_(1.1)
    return y


def replaced(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = (x * b.clone()).exp() * w
    b.copy_(x.detach().mean(0))
    return y * b.clone()


def averaged_first(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        b.lerp_(x.mean(0), 0.1)
    return (x * b.clone() * w).tanh()


def in_part(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x * w * b.clone()
    b[2:4] = x.detach()[0, 2:4]
    return y.sin() + b.clone() * w


def both_values(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    before = b.clone()
    b.add_(1)
    return (x * before.sin() * w).sin() * (x * b.clone().sin() * w)


def added(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The gradient of GELU needs the sum."""
    y = torch.nn.functional.gelu(x * w + b)
    b.mul_(0.5)
    return y


STEPS = [scaled, replaced, averaged_first, in_part, both_values, added]


def trained(module: nn.Module, run: Callable[[Tensor], Tensor], dtype: torch.dtype, width: int) -> list[Tensor]:
    """Results, gradients and buffers of three steps."""
    out: list[Tensor] = []
    for step in range(3):
        x = torch.linspace(-1, 1, 5 * width, dtype=dtype).view(5, width).mul(step + 1).requires_grad_()
        module.zero_grad()
        y = run(x)
        y.square().sum().backward()
        out += [y.detach(), x.grad, *(p.grad for p in module.parameters()), *(b.clone() for b in module.buffers())]  # type: ignore[list-item]
    return out


def check(make: Callable[[], nn.Module], width: int = 6) -> None:
    ours, theirs = make(), make().double()
    made = trained(ours, torch.compile(ours, backend=backend, options={"emulate": True, "strict": True}), torch.float32, width)
    for a, b in zip(made, trained(theirs, theirs, torch.float64, width), strict=True):
        assert a.shape == b.shape and float((a.double() - b).abs().max()) <= 2.0**-18 * (1 + float(b.abs().max()))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_the_backward_has_the_value_before_the_change(step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    check(lambda: Changing(step))
    copies = sum(times for graph in GRAPHS for op, (times, _) in graph.torch_ops.items() if "copy_" in op)
    assert copies == (step is in_part)  # one kernel writes what the backward keeps and the new value


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("width", [1, 3, 4])
def test_spectral_norm(width: int) -> None:
    """Its buffers are improved in each forward; the gradient of the weight is that of the vectors that were used."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.utils.parametrizations.spectral_norm(nn.Linear(4, width))

    check(make, 4)
