"""Functions whose gradients fold rows, and columns of each sample, through torch.compile: their backward is one kernel, and equals torch's in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft.frontend import regions
from weft.frontend.backend import GRAPHS, backend


def adaptive(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


def gated(x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return adaptive(r + gate[:, None] * x, scale, shift)


def biased_softmax(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x + bias).softmax(-1)


def norm_of_heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.layer_norm(x, x.shape[-1:]) * w).transpose(1, 2)


CASES = {
    "adaptive": (adaptive, ((3, 19, 72), (3, 72), (3, 72))),
    "one sample": (adaptive, ((1, 19, 72), (1, 72), (1, 72))),
    "odd": (adaptive, ((3, 19, 75), (3, 75), (3, 75))),
    "gated": (gated, ((5, 33, 40), (5, 33, 40), (5, 40), (5, 40), (5, 40))),
    "biased softmax": (biased_softmax, ((7, 3, 5, 24), (3, 5, 24))),
    "norm of heads": (norm_of_heads, ((2, 9, 6, 32), (6, 32))),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", CASES)
def test_the_backward_is_one_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LARGE_ELEMS", 1)  # readers of a tensor share a kernel
    function: Callable[..., torch.Tensor]
    function, shapes = CASES[name]
    given = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n, shape in enumerate(shapes)]
    grad = torch.randn(function(*given).shape, generator=torch.Generator().manual_seed(99))
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)
    results = []
    for made, dtype in ((compiled, torch.float32), (function, torch.float64)):
        leaves = [t.detach().clone().to(dtype).requires_grad_() for t in given]
        with poisoned_outputs():
            out = made(*leaves)
            results.append([out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))])
    kernels = [kernel.program.name for graph in GRAPHS if graph.kind == "backward" for call in graph.calls for kernel in call.kernels()]
    assert name == "odd" or len(kernels) == 1 and "inner_outer" in kernels[0], kernels
    for got, want in zip(*results, strict=True):
        assert (got.double() - want).norm() <= 1e-5 * want.norm()
