"""Functions of images, and of other tensors, through torch.compile beside torch in float64: values, strides and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fusion_check import poisoned_outputs

from weft.frontend.backend import backend


def compare(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, gradient_atol: float, rtol: float = 1e-5, atol: float = 1e-6, gradient_rtol: float = 1e-5
) -> None:  # fmt: skip
    """Compile a function strictly for the emulator and compare it; strides are those of eager torch. rtol, atol: of results; gradient_rtol, gradient_atol: of
    elements of the gradient."""
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    eager = function(x)
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True, "debug": True, "strict": True})(ours)
    want = function(theirs)
    assert out.shape == want.shape
    assert 0 in x.shape or all(a == b for n, a, b in zip(eager.shape, out.stride(), eager.stride()) if n > 1)
    torch.testing.assert_close(out.double(), want, rtol=rtol, atol=atol)
    slope = torch.randn_like(out)
    with poisoned_outputs():
        out.backward(slope)
    want.backward(slope.double())
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=gradient_rtol, atol=gradient_atol)
