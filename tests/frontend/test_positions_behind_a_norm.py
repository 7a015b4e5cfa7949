"""Positions and class tokens before a norm (GPT-2, BERT, ViT), through torch.compile: their gradients are sums over samples, those of the norm over all rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft.frontend import regions
from weft.frontend.backend import GRAPHS, backend


def words(x: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The residual, and its norm."""
    x = x + places
    return x + F.layer_norm(x, x.shape[-1:], w, b)


def patches(x: torch.Tensor, token: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return words(torch.cat((token.expand(x.shape[0], -1, -1), x), 1), places, w, b)


def patches_in_float(x: torch.Tensor, token: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Autocast: patches come from a product in bfloat16, all else is in float32."""
    return patches(x.to(token.dtype), token, places, w, b)  # in float64 nothing is narrow


def two_tokens(x: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Tokens at both ends."""
    first, last = (t.expand(x.shape[0], -1, -1) for t in tokens.chunk(2, 1))
    return words(torch.cat((first, x, last), 1), places, w, b)


CASES = {
    "words": (words, ((6, 33, 72), (33, 72), (72,), (72,)), 2),
    "words, many samples": (words, ((40, 5, 264), (5, 264), (264,), (264,)), 2),
    "words, odd": (words, ((6, 7, 137), (7, 137), (137,), (137,)), 0),
    "two samples": (words, ((2, 33, 72), (33, 72), (72,), (72,)), 0),
    "one sample": (words, ((1, 33, 72), (33, 72), (72,), (72,)), 0),
    "patches": (patches, ((8, 16, 72), (1, 1, 72), (1, 17, 72), (72,), (72,)), 3),
    "patches, odd": (patches, ((9, 6, 23), (1, 1, 23), (1, 7, 23), (23,), (23,)), 0),
    "patches, one position": (patches, ((9, 1, 40), (1, 1, 40), (1, 2, 40), (40,), (40,)), 0),
    "two tokens": (two_tokens, ((8, 16, 72), (1, 2, 72), (1, 18, 72), (72,), (72,)), 0),
}
"""Function, shapes, and how many kernels the backward has; 0: not said."""


def compared(function: Callable[..., torch.Tensor], given: list[torch.Tensor], tolerance: float) -> list[str]:
    """Compare results and gradients with torch's in float64; return the kernels of the backward."""
    grad = torch.randn(function(*given).shape, generator=torch.Generator().manual_seed(99)).to(function(*given).dtype)
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)
    results = []
    for made, dtype in ((compiled, None), (function, torch.float64)):
        leaves = [t.detach().clone().to(dtype or t.dtype).requires_grad_() for t in given]
        with poisoned_outputs():
            out = made(*leaves)
            results.append([out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype or grad.dtype))])
    for got, want in zip(*results, strict=True):
        assert got.shape == want.shape
        assert (got.double() - want).norm() <= tolerance * max(1.0, float(want.norm()))
    return [kernel.program.name for graph in GRAPHS if graph.kind == "backward" for call in graph.calls for kernel in call.kernels()]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_positions_come_from_the_kernel_of_the_norm(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LARGE_ELEMS", 1)  # readers of a tensor share a kernel
    function, shapes, count = CASES[name]
    given = [torch.randn(shape, generator=torch.Generator().manual_seed(n)).to(dtype) for n, shape in enumerate(shapes)]
    kernels = compared(function, given, 1e-5 if dtype is torch.float32 else 2.0**-6)  # inputs of the backward are rounded results
    if count:
        assert len(kernels) == count and sum("inner_outer" in kernel for kernel in kernels) == 1, kernels


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("shape", [(8, 16, 72), (9, 6, 23), (4, 40, 136)], ids=str)
def test_a_slice_of_the_gradient_in_a_narrow_type(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the norm writes all positions in bfloat16, and another one copies those of the patches."""
    monkeypatch.setattr(regions, "LARGE_ELEMS", 1)
    batch, length, width = shape
    shapes = ((batch, length, width), (1, 1, width), (1, length + 1, width), (width,), (width,))
    given = [torch.randn(s, generator=torch.Generator().manual_seed(n)) for n, s in enumerate(shapes)]
    kernels = compared(patches_in_float, [given[0].bfloat16(), *given[1:]], 2.0**-8)
    if width % 8 == 0:
        assert sum("inner_outer" in kernel for kernel in kernels) == 1, kernels
