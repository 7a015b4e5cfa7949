"""Products of 16-bit matrices with odd sizes are padded; values and what the user sees stay eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from weft.frontend.aligned import align_products
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
    assert not [call.fallback_reason for graph in GRAPHS for _, call in graph.regions if call.fallback_reason]


def test_the_gradient_of_logits_is_written_once_in_long_rows() -> None:
    """The backward of the loss pads its own result: no copy stands between it and the two products that read it."""
    x, weight = torch.randn(264, 256).bfloat16().requires_grad_(), torch.randn(301, 256).bfloat16().requires_grad_()
    torch.compile(loss_of_words, backend=backend, options={"emulate": True})(x, weight).backward()
    (region, _), *others = [pair for graph in GRAPHS if graph.kind == "backward" for pair in graph.regions]
    assert not others and [tuple(n.meta["val"].shape) for n in region.outputs] == [(264, 304)]


def test_the_kernel_that_writes_the_gradient_of_logits_adds_up_that_of_their_bias() -> None:
    """Nothing reads the logits again for the bias, whose gradient is the sum of padded rows without their last zeros."""
    torch.manual_seed(0)
    target = torch.arange(264) % 301

    def loss(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, weight, bias).float(), target)

    given = [torch.randn(264, 256).mul(0.1).bfloat16(), torch.randn(301, 256).bfloat16(), torch.randn(301).bfloat16()]
    leaves, exact = ([t.to(dtype).requires_grad_() for t in given] for dtype in (torch.bfloat16, torch.float64))
    found = torch.autograd.grad(torch.compile(loss, backend=backend, options={"emulate": True, "strict": True})(*leaves), leaves)
    wanted = torch.autograd.grad(F.cross_entropy(F.linear(*exact), target), exact)
    assert all((f.double() - w).norm() / w.norm() < 2**-7 and f.stride() == w.stride() for f, w in zip(found, wanted))
    (region, call), *others = [pair for graph in GRAPHS if graph.kind == "backward" for pair in graph.regions]
    assert not others and (264, 304) in [tuple(n.meta["val"].shape) for n in region.outputs]
    assert len(call.kernels()) == 2  # the first computes a value per row


@pytest.mark.parametrize(
    "sizes, dtype, shape",
    [
        ((256, 256, 257), torch.bfloat16, (256, 264)), ((257, 256, 256), torch.float16, (257, 256)), ((256, 257, 256), torch.float16, (256, 256)),
        ((256, 256, 257), torch.float32, (256, 257)), ((255, 256, 257), torch.bfloat16, (255, 257)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_turned", [False, True])
def test_only_large_products_grow_along_what_lies_in_memory(sizes: tuple[int, int, int], dtype: torch.dtype, shape: tuple[int, int], is_turned: bool) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    rows, inner, columns = sizes
    a = torch.randn(inner, rows).to(dtype) if is_turned else torch.randn(rows, inner).to(dtype)
    b = torch.randn(columns, inner).to(dtype)
    gm = make_fx(lambda a, b: (torch.mm(a.t() if is_turned else a, b.t()) * 2,), tracing_mode="fake")(a, b)
    align_products(gm.graph)
    (product,) = [node for node in gm.graph.nodes if node.target is torch.ops.aten.mm.default]
    grows = is_turned and rows == 257
    assert tuple(product.meta["val"].shape) == ((264, shape[1]) if grows else shape)
    inner_size = product.args[0].meta["val"].shape[1]
    assert inner_size == (264 if inner == 257 else inner)
    gm.recompile()
    (out,) = gm(a, b)
    exact = 2 * (a.t() if is_turned else a).double() @ b.t().double()
    assert out.shape == exact.shape and (out.double() - exact).norm() / exact.norm() < 2**-7
