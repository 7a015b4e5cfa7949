"""Products of 16-bit matrices with odd rows: results and operands lie in rows of 16 bytes, values and what the user sees stay eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.frontend.aligned import ALIGNED_MM, align_products
from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")


def loss_of_words(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, weight).float(), torch.arange(x.shape[0]) % 301)


def logits_and_their_mean(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = F.linear(x, weight)
    return logits, logits.float().square().mean()


def biased(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, weight[:, 0]).float().square().mean()


def odd_inside(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(x @ weight.t()), weight.t()).float().square().mean()


def sums(found: object) -> torch.Tensor:
    parts = found if isinstance(found, tuple) else (found,)
    return sum(part.double().sum() for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize("function", [loss_of_words, logits_and_their_mean, biased, odd_inside])
def test_values_gradients_and_strides_are_eagers(function: Callable[..., object]) -> None:
    """At most 4 roundings to bfloat16 (2^-9 each) stand between an exact value and ours: products, activation, bias."""
    x, weight = torch.randn(264, 256).bfloat16().requires_grad_(), (torch.randn(301, 256) / 16).bfloat16().requires_grad_()
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "debug": True})
    given, exact = [[a.detach().to(dtype).requires_grad_() for a in (x, weight)] for dtype in (torch.bfloat16, torch.float64)]
    out, want = compiled(*given), function(*exact)
    for got, right in zip(out if isinstance(out, tuple) else (out,), want if isinstance(want, tuple) else (want,)):
        assert got.stride() == right.stride() and got.is_contiguous()
        assert (got.double() - right).norm() / right.norm() < 4 * 2**-9
    sums(out).backward()
    sums(want).backward()
    for got, right in zip(given, exact):
        assert got.grad.stride() == right.grad.stride()
        assert (got.grad.double() - right.grad).norm() / right.grad.norm() < 4 * 2**-9
    assert "weft.aligned_mm" in weft.explain()
    assert not [call.fallback_reason for graph in GRAPHS for _, call in graph.regions if call.fallback_reason]


def test_the_gradient_of_logits_is_written_once_in_long_rows() -> None:
    """The backward of the loss pads its own result: no copy stands between it and the two products that read it."""
    x, weight = torch.randn(264, 256).bfloat16().requires_grad_(), torch.randn(301, 256).bfloat16().requires_grad_()
    torch.compile(loss_of_words, backend=backend, options={"emulate": True})(x, weight).backward()
    (region, _), *others = [pair for graph in GRAPHS if graph.kind == "backward" for pair in graph.regions]
    assert not others and [tuple(n.meta["val"].shape) for n in region.outputs] == [(264, 304)]


@pytest.mark.parametrize(
    "sizes, dtype, count",
    [((256, 256, 257), torch.bfloat16, 1), ((256, 256, 264), torch.float16, 0), ((256, 256, 257), torch.float32, 0), ((255, 256, 257), torch.bfloat16, 0)],
)
def test_only_large_products_with_odd_rows_change(sizes: tuple[int, int, int], dtype: torch.dtype, count: int) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    rows, inner, columns = sizes
    gm = make_fx(lambda a, b: (torch.mm(a, b) * 2,), tracing_mode="fake")(torch.ones(rows, inner, dtype=dtype), torch.ones(columns, inner, dtype=dtype).t())
    align_products(gm.graph)
    found = [node for node in gm.graph.nodes if node.target is ALIGNED_MM]
    assert len(found) == count and all(node.meta["val"].stride() == (264, 1) for node in found)
