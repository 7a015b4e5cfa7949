"""Convolutions of 16-bit images run in channels last; values and what the user sees stay eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontend.backend import GRAPHS, backend
from weft.frontend import channels_last, regions
from weft.frontend.channels_last import lay_out_convolutions

pytestmark = pytest.mark.usefixtures("fresh", "small_images")
OPTIONS = {"emulate": True, "debug": True, "strict": True}
Result = torch.Tensor | tuple[torch.Tensor, ...]


@pytest.fixture
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a test count as large ones."""
    monkeypatch.setattr(channels_last, "LEAST_ELEMS", 1)
    monkeypatch.setattr(regions, "LARGE_ELEMS", 1)


def residual(x: torch.Tensor, w: torch.Tensor) -> Result:
    return x + F.conv2d(F.silu(F.group_norm(x, 4)), w, padding=1)


def chained(x: torch.Tensor, w: torch.Tensor) -> Result:
    return F.conv2d(F.conv2d(x, w), w, stride=2)


def normalized(x: torch.Tensor, w: torch.Tensor) -> Result:
    return F.gelu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True))


def several(x: torch.Tensor, w: torch.Tensor) -> Result:
    """The result of a convolution itself, views of it, and what is computed of both."""
    y = F.conv2d(x, w, padding=1)
    return y, y.flatten(2), y[:, 1], y.flatten(2).softmax(-1), y.transpose(1, 2)


def attended(x: torch.Tensor, w: torch.Tensor) -> Result:
    """Patches go through a product: pixels become rows."""
    y = F.conv2d(x, w, padding=1).flatten(2).transpose(1, 2)
    return torch.softmax((y @ y.transpose(1, 2)).float(), -1)


def parts(found: Result) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.detach().double() - want.detach()).norm() / want.detach().norm())


LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize(
    ("function", "memory_format", "shape"),
    [
        *((function, FIRST, (2, 16, 9, 7)) for function in (residual, chained, normalized, several, attended)),
        (residual, LAST, (2, 16, 9, 7)), (several, LAST, (1, 16, 5, 5)), (residual, FIRST, (1, 16, 1, 5)),
    ],
)  # fmt: skip
def test_values_gradients_and_strides_are_eagers(function: Callable[..., Result], memory_format: torch.memory_format, shape: tuple[int, ...]) -> None:
    """At most 8 roundings to bfloat16 (2^-9 each) stand between an exact value or gradient and ours."""
    x, w = torch.randn(shape).to(memory_format=memory_format), torch.randn(16, 16, 3, 3) / 12
    given, exact, plain = [[a.bfloat16().to(dtype).requires_grad_() for a in (x, w)] for dtype in (torch.bfloat16, torch.float64, torch.bfloat16)]
    found, want, eager = torch.compile(function, backend=backend, options=OPTIONS)(*given), function(*exact), function(*plain)
    for got, right, same in zip(parts(found), parts(want), parts(eager), strict=True):
        assert got.stride() == same.stride()
        assert error(got, right) < 8 * 2**-9
    for results in (found, want):
        sum((part.double() * torch.linspace(-1, 1, part.numel()).view(part.shape)).sum() for part in parts(results)).backward()  # type: ignore[union-attr]
    for got, right, leaf in zip(given, exact, (x, w)):
        assert got.grad is not None and right.grad is not None
        assert got.grad.stride() == leaf.stride()
        assert error(got.grad, right.grad) < 8 * 2**-9
    assert not [call.fallback_reason for graph in GRAPHS for _, call in graph.regions if call.fallback_reason]


@pytest.mark.parametrize("function", [residual, several])
def test_open_sizes_and_no_gradients(function: Callable[..., Result]) -> None:
    """At most 8 roundings to bfloat16."""
    compiled, w = torch.compile(function, backend=backend, options=OPTIONS, dynamic=True), torch.randn(16, 16, 3, 3).bfloat16() / 12
    with torch.no_grad():
        for shape in ((2, 16, 9, 7), (3, 16, 4, 12)):
            x = torch.randn(shape).bfloat16()
            for got, right, same in zip(parts(compiled(x, w)), parts(function(x.double(), w.double())), parts(function(x, w)), strict=True):
                assert got.stride() == same.stride()
                assert error(got, right) < 8 * 2**-9


def strides_of_images(function: Callable[..., Result], x: torch.Tensor, w: torch.Tensor) -> list[tuple[int, ...]]:
    """The strides of what convolutions read."""
    graph = make_fx(function, tracing_mode="fake")(x, w).graph
    lay_out_convolutions(graph)
    graph.lint()
    return [node.args[0].meta["val"].stride() for node in graph.nodes if node.target is torch.ops.aten.convolution.default]


def test_which_convolutions_take_channels_last() -> None:
    x, w = torch.randn(2, 16, 9, 7).bfloat16(), torch.randn(16, 16, 3, 3).bfloat16()
    first, last = (1008, 63, 7, 1), (1008, 1, 112, 16)
    assert strides_of_images(residual, x, w) == [last]
    assert strides_of_images(chained, x, w) == [last, (560, 1, 80, 16)]
    assert strides_of_images(residual, x.to(memory_format=torch.channels_last), w) == [last]
    assert strides_of_images(residual, x.float(), w.float()) == [first]
    assert strides_of_images(lambda x, w: F.conv2d(F.relu(x), w), x[:, :3].contiguous(), w[:, :3].contiguous()) == [(189, 63, 7, 1)]
    assert strides_of_images(lambda x, w: F.conv2d(F.relu(x), w, groups=16), x, w[:, :1].contiguous()) == [first]
    assert strides_of_images(lambda x, w: F.conv_transpose2d(F.relu(x), w), x, w) == [first]
