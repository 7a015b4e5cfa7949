"""Backward of a group norm: the decomposition that regions get equals torch's own kernel, and its kernels read their inputs once where that is possible."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from fusion_check import poisoned_outputs

import weft  # noqa: F401
from weft.frontend.aten import groups
from weft.frontend.backend import backend
from weft.segment import partition

NATIVE = torch.ops.aten.native_group_norm_backward.default
SHAPES = [((2, 6, 5), 3), ((3, 8, 4, 7), 2), ((1, 4, 1), 4), ((2, 5, 3, 3), 1), ((4, 6, 2, 3, 2), 6)]


@pytest.mark.parametrize("shape, count", SHAPES, ids=str)
@pytest.mark.parametrize("is_scaled", [True, False])
def test_it_is_torchs(shape: tuple[int, ...], count: int, is_scaled: bool) -> None:
    x, grad = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    weight = torch.randn(shape[1], dtype=torch.float64) if is_scaled else None
    n, channels, pixels = shape[0], shape[1], x[0, 0].numel()
    _, mean, rstd = torch.native_group_norm(x, weight, None, n, channels, pixels, count, 1e-5)
    for mask in itertools.product((True, False), (True, False)[not is_scaled :], (True, False)[not is_scaled :]):
        wanted = NATIVE(grad, x, mean, rstd, weight, n, channels, pixels, count, list(mask))
        made = groups.native_group_norm_backward(grad, x, mean, rstd, weight, n, channels, pixels, count, list(mask))
        for got, want, is_wanted in zip(made, wanted, mask, strict=True):
            assert (got is not None) == is_wanted
            if got is not None:
                torch.testing.assert_close(got, want.view(got.shape), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("act", [torch.nn.Identity(), torch.nn.SiLU(), torch.nn.ReLU()], ids=lambda act: type(act).__name__)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients(act: torch.nn.Module, memory: torch.memory_format) -> None:
    x = torch.randn(3, 12, 9, 10).to(memory_format=memory)
    given = [x, torch.randn(12), torch.randn(12)]

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return act(F.group_norm(x, 4, weight, bias))

    compiled = torch.compile(norm, backend="weft", options={"emulate": True, "strict": True})
    grad = torch.randn(3, 12, 9, 10)
    results = []
    for function, dtype in ((compiled, torch.float32), (norm, torch.float64)):
        leaves = [t.detach().clone().to(dtype).requires_grad_() for t in given]
        out = function(*leaves)
        results.append([out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))])
    for got, want in zip(*results, strict=True):
        assert (got.double() - want).norm() <= 1e-5 * want.norm()


def modulated(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """As in the residual blocks of a U-Net, with a scale and a shift for each sample."""
    return F.silu(F.group_norm(x, 4, w, b) * (1 + scale[..., None, None]) + shift[..., None, None])


@pytest.mark.usefixtures("fresh")
def test_a_modulated_norm_through_sums_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are cut as beside large images, because launches count nothing."""
    monkeypatch.setattr(partition, "LAUNCH_BYTES", 0)
    shapes = ((3, 12, 9, 11), (12,), (12,), (3, 12), (3, 12))
    leaves = [torch.randn(s).requires_grad_() for s in shapes]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    with poisoned_outputs():
        out = torch.compile(modulated, backend=backend, options={"emulate": True, "strict": True, "cache": False})(*leaves)
        grad = torch.randn_like(out)
        found = torch.autograd.grad(out, leaves, grad)
    for got, want in zip(found, torch.autograd.grad(modulated(*exact), exact, grad.double()), strict=True):
        assert (got.double() - want).norm() <= 1e-5 * want.norm()
