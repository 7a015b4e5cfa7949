"""The code that runs: chains of views are one call where the tensor lies as it was traced; written to a file and read it is the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch

from weft.frontend.backend import GRAPHS, backend
from weft.frontend.graph_plan import Boxed


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def chain(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A slice, a position, heads, a transposition of an input; views of a product and of a region's result."""
    y = (x * 2)[:, 1:-1].view(3, 4, 2, 4).permute(2, 0, 1, 3)
    return y[1].transpose(1, 2) @ w.t().unsqueeze(0).expand(3, -1, -1)[:, 2:6].squeeze(0), (x[2] @ w.t()).view(6, 2, 3)[:, 1].t()


def test_a_plan_that_was_written_and_read_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a constant tensor of the program's, which the plan holds."""
    made: list[Boxed] = []
    plain: Callable[..., None] = Boxed.__init__

    def seen(self: Boxed, *rest: object) -> None:
        made.append(self)
        plain(self, *rest)

    monkeypatch.setattr(Boxed, "__init__", seen)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * torch.tensor([1.0, 2.0, 3.0]), -1) @ x.t()

    x = torch.randn(4, 3)
    want = torch.compile(f, backend=backend, options={"emulate": True})(x)
    torch.testing.assert_close(want, f(x))
    plan = made[0].plan()
    assert plan is not None and len(plan.constants) == 1
    again = pickle.loads(pickle.dumps(plan)).function(GRAPHS[0].calls)
    for _ in range(2):
        arguments = [x]
        (found,) = again(arguments)
        assert torch.equal(found, want) and not arguments


VIEWS = ("aten_view", "aten_t_", "aten_permute", "aten_transpose", "aten_slice", "aten_select", "aten_unsqueeze", "aten_expand")


def test_views_are_one_call_each_where_sizes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []
    plain: Callable[..., None] = Boxed.__init__

    def seen(self: Boxed, source: str, *rest: object) -> None:
        sources.append(source)
        plain(self, source, *rest)

    monkeypatch.setattr(Boxed, "__init__", seen)
    inputs = [torch.randn(3, 6, 8), torch.randn(6, 8)]
    inputs[0] = torch.cat([inputs[0], inputs[0]])[3:]  # begins somewhere in its memory
    fast = torch.compile(chain, backend=backend, options={"emulate": True, "strict": True, "cache": False})
    for got, want in zip(fast(*inputs), chain(*inputs), strict=True):
        assert got.shape == want.shape and got.stride() == want.stride()
        torch.testing.assert_close(got, want)
    (text,) = sources
    assert "reinterpret_tensor" in text and not any(view in text for view in VIEWS)


def behind_attention(x: torch.Tensor) -> torch.Tensor:
    """Views of what torch computes: nobody knows how that lies in memory."""
    heads = torch.nn.functional.scaled_dot_product_attention(x, x, x).transpose(1, 2)
    return torch.relu(heads.reshape(2, heads.shape[1], -1) @ torch.ones(8, 3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_unknown_memory_do_without_the_table_of_overloads(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    """Their function is in the text, and the plan on disk names it."""
    made: list[tuple[Boxed, str]] = []
    plain: Callable[..., None] = Boxed.__init__

    def seen(self: Boxed, source: str, *rest: object) -> None:
        made.append((self, source))
        plain(self, source, *rest)

    monkeypatch.setattr(Boxed, "__init__", seen)
    fast = torch.compile(behind_attention, backend=backend, dynamic=dynamic, options={"emulate": True, "strict": True})
    for tokens in (5, 7) if dynamic else (5,):
        x = torch.randn(2, 2, tokens, 4)
        torch.testing.assert_close(fast(x), behind_attention(x))
    ((graph, text),) = made
    assert "torch_view(" in text and not any(view in text for view in VIEWS)
    plan = graph.plan()
    assert plan is not None
    again = pickle.loads(pickle.dumps(plan)).function(GRAPHS[0].calls)
    torch.testing.assert_close(again([tokens, x] if dynamic else [x])[0], behind_attention(x))
