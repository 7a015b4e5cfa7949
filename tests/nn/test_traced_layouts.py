"""Traces know how the gradients of weft's operators lie in memory: as real ones do, so that compiled graphs expect no other strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import weft.nn.functional as WF
from weft.frontend.backend import backend

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": WF.swiglu, "softmax": lambda x: WF.softmax(x, -1), "softmax of columns": lambda x: WF.softmax(x, 1), "normalize": lambda x: WF.normalize(x, dim=-1),
    "log_softmax": lambda x: WF.log_softmax(x, 1), "gelu": WF.gelu, "silu": WF.silu, "rms_norm": lambda x: WF.rms_norm(x, (24,)),
    "layer_norm": lambda x: WF.layer_norm(x, (24,)),
}  # fmt: skip
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(3, 7, 24), "columns": lambda: torch.randn(3, 24, 7).transpose(1, 2), "gaps": lambda: torch.randn(3, 7, 50)[..., ::2][..., :24],
    "the first axis innermost": lambda: torch.randn(7, 24, 3).permute(2, 0, 1), "nothing": lambda: torch.randn(0, 24, 7).transpose(1, 2),
}  # fmt: skip


def strides(function: Callable[[Tensor], Tensor], x: Tensor) -> list[tuple[int, ...]]:
    """Of the result, and of the gradient for a gradient like the result, one in rows, and one that is the same everywhere."""
    x = x.detach().requires_grad_()
    out = function(x)
    slopes = [torch.ones_like(out), torch.ones(out.shape, device=out.device), torch.ones((), device=out.device).expand(out.shape)]
    return [out.stride(), *(torch.autograd.grad(function(x), x, slope)[0].stride() for slope in slopes)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_traced_strides_are_those_of_calls(name: str, layout: str) -> None:
    x = LAYOUTS[layout]()
    with FakeTensorMode() as mode:
        traced = strides(FUNCTIONS[name], mode.from_tensor(x))
    assert traced == strides(FUNCTIONS[name], x)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("compiler", ["aot_eager", "weft"])
@pytest.mark.parametrize("name", ["softmax", "gelu", "normalize"])
def test_compiled_gradients_lie_as_eager_ones(name: str, compiler: str, is_open: bool) -> None:
    x, function = LAYOUTS["columns"](), FUNCTIONS[name]
    torch._dynamo.reset()
    keywords = {"backend": backend, "options": {"emulate": True, "debug": True}} if compiler == "weft" else {"backend": compiler}
    fast = torch.compile(function, dynamic=is_open, **keywords)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    slope = torch.randn(3, 24, 7).transpose(1, 2)
    (got,), (want,) = (torch.autograd.grad(f(leaf), leaf, slope) for f, leaf in ((fast, ours), (function, theirs)))
    assert is_open or got.stride() == want.stride() == x.stride()  # with open sizes AOTAutograd copies the slope into rows
    torch.testing.assert_close(got, want)
