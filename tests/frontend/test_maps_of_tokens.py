"""Tokens turned into maps, and back: a slice at an offset keeps a reshape from vanishing, so it moves to inputs and results; slices and pads are read in tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")

Function = Callable[..., torch.Tensor]

ONE_KERNEL: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "map": (lambda x: x[:, 1:].transpose(1, 2).reshape(2, 24, 3, 5) * 2, ((2, 16, 24),)),
    "dense map": (lambda x: x[:, 1:].transpose(1, 2).reshape(2, 40, 8, 8).contiguous() * 2, ((2, 65, 40),)),
    "odd map": (lambda x: F.silu(x[:, 1:].transpose(1, 2).reshape(3, 37, 7, 5).contiguous()), ((3, 36, 37),)),
    "map with channels behind": (lambda x: x[:, 1:].reshape(2, 8, 8, 24) * 2, ((2, 65, 24),)),
    "bias of channels": (lambda x, b: x[:, 1:].reshape(2, 4, 6, 8) * 2 + b, ((2, 25, 8), (8,))),
    "bias of images": (lambda x, b: x[:, 1:].reshape(2, 4, 6, 8) * b[:, None, None, None], ((2, 25, 8), (2,))),
    "end of rows": (lambda x: x[..., 3:].unflatten(-1, (4, 8)) * 2, ((5, 7, 35),)),
    "two maps": (lambda x, y: x[:, 1:].reshape(2, 4, 6, 8) * y[:, 2:].reshape(2, 4, 6, 8) + 1, ((2, 25, 8), (2, 26, 8))),
    "class token in front": (lambda c, x: torch.cat([c, x.flatten(2).transpose(1, 2)], 1) * 2, ((2, 1, 40), (2, 40, 8, 8))),
    "tokens in front": (lambda c, x: torch.cat([c, x.flatten(2).transpose(1, 2)], 1), ((2, 3, 36), (2, 36, 5, 9))),
    "turned part": (lambda x: x[:, 1:, 8:].transpose(1, 2).contiguous() * 2, ((2, 65, 72),)),
    "turned pad": (lambda x: F.pad(x * 2, (0, 0, 1, 2)).transpose(1, 2).contiguous() * 2, ((2, 61, 64),)),
    "pad of what is turned": (lambda x: F.pad(x.transpose(1, 2) * 2, (3, 0, 1, 0)), ((2, 61, 64),)),
}


def compiled(function: Function, **options: Any) -> Function:
    found: Function = torch.compile(function, backend=backend, dynamic=False, options={"emulate": True, "debug": True, "strict": True, **options})
    return found


def check(function: Function, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> list[int]:
    """Compare values, strides and gradients with float64; return how many kernels each graph has."""
    ours = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    theirs = [t.detach().double().requires_grad_() for t in ours]
    eager = function(*(t.detach() for t in ours))
    with poisoned_outputs():
        out = compiled(function)(*ours)
    want = function(*theirs)
    assert out.shape == want.shape and out.stride() == eager.stride()
    near = dict(rtol=1e-5, atol=1e-5) if dtype is torch.float32 else dict(rtol=2.0**-7, atol=2.0**-7)
    torch.testing.assert_close(out.double(), want, **near)  # type: ignore[arg-type]
    slope = torch.randn_like(out)
    with poisoned_outputs():
        found = torch.autograd.grad(out, ours, slope)
    for mine, other in zip(found, torch.autograd.grad(want, theirs, slope.double())):
        torch.testing.assert_close(mine.double(), other, **near)  # type: ignore[arg-type]
    return [len(list(call.kernels())) for graph in GRAPHS for call in graph.calls]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    function, shapes = ONE_KERNEL[name]
    kernels = check(function, shapes, dtype)
    assert kernels[0] == 1
    assert len(shapes) > 1 or kernels == [1, 1]


def test_transposes_are_tiles() -> None:
    """Forward and backward of a dense map, and a cat behind a transposed map, are the kernel with tiles in shared memory."""
    for name in ("dense map", "class token in front"):
        torch._dynamo.reset()
        check(*ONE_KERNEL[name])
        names = [kernel.program.name for graph in GRAPHS for call in graph.calls for kernel in call.kernels()]
        assert names[0].startswith("weft_transpose")


def test_what_is_reduced_behind_a_reshape_still_reads_memory() -> None:
    """A sum over a part of what the reshape makes: the reshape stays where it is."""
    check(lambda x: (x[:, 1:].reshape(2, 4, 6, 8) * 2).sum(1), ((2, 25, 8),))


def test_inputs_with_gaps_and_one_image() -> None:
    function = compiled(lambda x: x[:, 1:].transpose(1, 2).reshape(x.shape[0], 24, 3, 5) * 2)
    for x in (torch.randn(2, 16, 48)[..., ::2], torch.randn(2, 20, 24)[:, 3:19], torch.randn(16, 2, 24).transpose(0, 1), torch.randn(1, 16, 24)):
        torch._dynamo.reset()
        with poisoned_outputs():
            out = function(x)
        torch.testing.assert_close(out, x[:, 1:].transpose(1, 2).reshape(x.shape[0], 24, 3, 5) * 2)


def test_open_sizes() -> None:
    function = torch.compile(
        lambda x: x[:, 1:].transpose(1, 2).reshape(x.shape[0], x.shape[2], 3, 5) * 2, backend=backend, dynamic=True, options={"emulate": True, "debug": True}
    )
    for shape in ((2, 16, 24), (3, 16, 7), (5, 16, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(function(x), x[:, 1:].transpose(1, 2).reshape(shape[0], shape[2], 3, 5) * 2)


def test_a_map_that_is_changed_in_place() -> None:
    """The reshape's input is written by the call: it is read before that."""

    def function(x: torch.Tensor) -> torch.Tensor:
        out = x[:, 1:].reshape(2, 4, 6, 8) * 2
        x.add_(1)
        return out

    ours, theirs = (torch.arange(2 * 25 * 8).reshape(2, 25, 8).float() for _ in range(2))
    with poisoned_outputs():
        assert torch.equal(compiled(function)(ours), function(theirs))
    assert torch.equal(ours, theirs)
