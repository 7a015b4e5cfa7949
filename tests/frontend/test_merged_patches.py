"""Patches that are merged before a norm (Swin), through torch.compile: the gradient of a bias before them is a sum over rows and parts of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft.frontend import regions
from weft.frontend.backend import GRAPHS, backend


def merged(x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A residual and what a product gave, scaled per sample; then two by two patches as one row."""
    x = r + (x + bias) * scale[:, None, None, None]
    x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
    return F.layer_norm(x, x.shape[-1:], w, b)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("shape", [(2, 8, 6, 32), (1, 2, 2, 8), (3, 4, 14, 24), (5, 6, 4, 9), (2, 4, 4, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_gradients_come_from_one_reading(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LARGE_ELEMS", 1)  # readers of a tensor share a kernel
    shapes = (shape, shape, shape[:1], shape[3:], (4 * shape[3],), (4 * shape[3],))
    given = [torch.randn(s, generator=torch.Generator().manual_seed(n)).to(dtype) for n, s in enumerate(shapes)]
    grad = torch.randn(merged(*given).shape, generator=torch.Generator().manual_seed(99)).to(dtype)
    compiled = torch.compile(merged, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)
    results = []
    for made, kind in ((compiled, dtype), (merged, torch.float64)):
        leaves = [t.detach().clone().to(kind).requires_grad_(n != 2) for n, t in enumerate(given)]
        with poisoned_outputs():
            out = made(*leaves)
            results.append([out.detach(), *torch.autograd.grad(out, [t for n, t in enumerate(leaves) if n != 2], grad.to(kind))])
    tolerance = 1e-5 if dtype is torch.float32 else 2.0**-6  # a result is rounded once, and inputs of the backward are rounded results
    for got, want in zip(*results, strict=True):
        assert (got.double() - want).norm() <= tolerance * max(1.0, float(want.norm()))
    kernels = [kernel.program.name for graph in GRAPHS if graph.kind == "backward" for call in graph.calls for kernel in call.kernels()]
    if shape[0] > 1 and shape[3] % 8 == 0:
        assert sorted("inner_outer" in name for name in kernels) == [False, True], kernels
