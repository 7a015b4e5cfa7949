"""Results that take over the memory of tensors that nothing reads afterwards: where it happens, where it must not, and that values stay right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.frontend.region_call import RegionCall

OPTIONS = {"emulate": True, "cache": False, "debug": True}


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """For each call of a region, how many of its results are in the memory of one of its inputs."""
    out: list[int] = []
    run = RegionCall._run

    def noted(self: RegionCall, inputs: tuple[Any, ...]) -> Any:
        places = {value.data_ptr() for value in inputs if isinstance(value, torch.Tensor) and value.numel()}
        made = run(self, inputs)
        out.append(sum(value.data_ptr() in places for value in made))
        return made

    monkeypatch.setattr(RegionCall, "_run", noted)
    yield out
    torch._dynamo.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="weft", options=OPTIONS)


def check(function: Callable[..., Any], *given: torch.Tensor, calls: int = 4) -> None:
    """Compare results and gradients of several calls, the later ones warm, with eager torch."""
    fast = compiled(function)

    def results(f: Callable[..., Any]) -> list[torch.Tensor]:
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in given]
        out = f(*leaves)
        out = list(out) if isinstance(out, tuple) else [out]
        made = [t for t in out if t.requires_grad]
        wanted = [t for t in leaves if t.requires_grad]
        return out + (list(torch.autograd.grad(made, wanted, [torch.ones_like(t) for t in made])) if made else [])

    want = results(function)
    for _ in range(calls):
        torch.testing.assert_close(results(fast), want)


def normal(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_(grad)


def test_the_gradient_of_logits_is_written_over_the_logits(reused: list[int]) -> None:
    target = torch.arange(37) % 101
    check(lambda x, w: F.cross_entropy(x @ w, target), normal(37, 16), normal(16, 101))
    assert sum(reused) == 4, "once in each backward"


def test_logits_of_sequences_are_read_in_another_shape(reused: list[int]) -> None:
    """The product has two axes, the logits three, the loss two."""
    target = torch.arange(40) % 101
    check(lambda x, w: F.cross_entropy((x @ w).float().view(-1, 101), target), normal(2, 20, 16), normal(16, 101))
    assert sum(reused) == 4, "once in each backward"


def test_a_view_that_others_read_later(reused: list[int]) -> None:
    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x @ a
        return F.silu(y) @ b + 1e-3 * (torch.tanh(y).mean() + y.flatten(1).amax() + y[1, 3, 5])

    with torch.no_grad():
        check(function, normal(2, 20, 16, grad=False), normal(16, 32, grad=False), normal(32, 32, grad=False))
    check(function, normal(2, 20, 16), normal(16, 32), normal(32, 32))


def test_gradients_of_a_gated_activation_take_the_memory_of_its_halves(reused: list[int]) -> None:
    check(lambda x, a, b: F.silu(x @ a) * (x @ b), normal(33, 16), normal(16, 100), normal(16, 100))
    assert sum(reused) >= 8, "both halves, in each backward"


def test_an_activation_between_products(reused: list[int]) -> None:
    """Without gradients nothing is saved."""
    with torch.no_grad():
        check(lambda x, a, b: F.gelu(x @ a) @ b, normal(33, 16, grad=False), normal(16, 99, grad=False), normal(99, 5, grad=False))
    assert sum(reused) == 4


def test_what_the_graph_returns_keeps_its_memory(reused: list[int]) -> None:
    def returned(x: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ a
        return y, F.gelu(y)

    def shown(x: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ a
        return y.t()[3:], F.gelu(y)

    for function in (returned, shown):
        with torch.no_grad():
            check(function, normal(33, 16, grad=False), normal(16, 40, grad=False))
    assert sum(reused) == 0


def test_what_the_user_has_is_not_overwritten_by_a_backward(reused: list[int]) -> None:
    """The saved result of exp is the user's result, too; arguments are the user's anyway."""
    x, a = normal(33, 16), normal(16, 40)
    fast = compiled(lambda x, a: ((x @ a).exp(), x.sin()))
    for _ in range(4):
        y, z = fast(x, a)
        before = [t.detach().clone() for t in (x, a, y, z)]
        torch.autograd.grad([y, z], [x, a], [torch.ones_like(y), torch.ones_like(z)])
        assert all(torch.equal(t, old) for t, old in zip((x, a, y, z), before))


def test_what_others_read_later(reused: list[int]) -> None:
    """A product, another region and a view read the same tensor; whoever is last may overwrite it."""

    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x @ a
        return F.gelu(y) @ b + torch.tanh((y.t() @ F.relu(y)).sum()) + y.flatten()[7]

    with torch.no_grad():
        check(function, normal(32, 16, grad=False), normal(16, 32, grad=False), normal(32, 32, grad=False))
    check(function, normal(32, 16), normal(16, 32), normal(32, 32))


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y + y.t(), lambda y: y * y.sum(1, keepdim=True), lambda y: F.softmax(y, -1), lambda y: y.flip(0) + 1, lambda y: torch.cumsum(y, 1),
        lambda y: y + y[:, :1], lambda y: y.roll(1, 0) * y, lambda y: y.reshape(-1)[torch.arange(y.numel() - 1, -1, -1)].reshape(y.shape) + y,
    ],
)  # fmt: skip
def test_elements_that_others_need(reused: list[int], function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A result whose elements depend on other elements of the tensor has its own memory."""
    with torch.no_grad():
        check(lambda x, a: function(x @ a).neg(), normal(40, 16, grad=False), normal(16, 40, grad=False))
    assert sum(reused) == 0


def test_each_memory_is_taken_once(reused: list[int]) -> None:
    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ a
        return F.gelu(y) @ b, torch.tanh(y) @ b

    with torch.no_grad():
        check(function, normal(33, 16, grad=False), normal(16, 40, grad=False), normal(40, 40, grad=False))
    assert sum(reused) == 4, "one of the two results, in each call"


def test_other_types_and_layouts(reused: list[int]) -> None:
    with torch.no_grad():
        check(lambda x, a: (x @ a).bfloat16() * 2, normal(33, 16, grad=False), normal(16, 40, grad=False))
        check(lambda x, a: F.gelu((x @ a).t()).contiguous(), normal(33, 16, grad=False), normal(16, 40, grad=False))
    assert sum(reused) == 0


def test_a_graph_that_is_kept_keeps_what_it_saved(reused: list[int]) -> None:
    """With `donated_buffer` off a backward may run twice."""
    x, a = normal(33, 16), normal(16, 40)
    with torch._functorch.config.patch(donated_buffer=False):  # type: ignore[attr-defined]
        y = compiled(lambda x, a: F.silu(x @ a))(x, a).sum()
        once = torch.autograd.grad(y, [x, a], retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(y, [x, a]), once)
    assert sum(reused) == 0


def test_an_argument_that_is_updated_is_not_spare(reused: list[int]) -> None:
    """What a region writes into an argument is the user's, whatever reads it afterwards."""

    def function(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        buffer.mul_(0.5).add_(x)
        return F.gelu(buffer @ buffer.t()) + torch.tanh(buffer @ x.t())

    mine, theirs = normal(20, 20, grad=False), normal(20, 20, grad=False)
    x = normal(20, 20, grad=False) + 1
    fast = compiled(function)
    for _ in range(4):
        torch.testing.assert_close(fast(mine, x), function(theirs, x))
        torch.testing.assert_close(mine, theirs)
