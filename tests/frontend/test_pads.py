"""Pads that repeat pixels: mirrored, continued and wrapped images, and their gradients, in one kernel each."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare
from fusion_check import poisoned_outputs

import weft
from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "image": ((2, 3, 6, 8), (1, 1, 1, 1)),
    "uneven": ((2, 3, 7, 9), (2, 0, 1, 3)),
    "wide": ((2, 2, 5, 6), (4, 5, 4, 3)),
    "one side": ((2, 3, 4, 16), (0, 3, 0, 0)),
    "without a batch": ((3, 5, 7), (1, 2, 3, 1)),
    "row": ((2, 5, 11), (3, 2)),
    "row without a batch": ((5, 8), (1, 4)),
    "volume": ((1, 2, 4, 5, 6), (1, 1, 2, 0, 1, 2)),
    "volume without a batch": ((2, 3, 4, 5), (1, 0, 1, 1, 2, 0)),
    "smallest": ((1, 2, 2, 2), (1, 1, 1, 1)),
    "aligned": ((1, 2, 16, 64), (8, 8, 2, 2)),
    "no image": ((0, 3, 6, 8), (1, 1, 1, 1)),
}


def padded(x: torch.Tensor, widths: tuple[int, ...], mode: str) -> torch.Tensor:
    return F.silu(F.pad(x * 2, widths, mode=mode)) * 3


def check(x: torch.Tensor, widths: tuple[int, ...], mode: str) -> None:
    """Values, strides and gradients are those of torch in float64."""
    compare(lambda t: padded(t, widths, mode), x, gradient_atol=1e-5)


@pytest.mark.parametrize(("mode", "channels_last"), [("reflect", False), ("reflect", True), ("replicate", True), ("circular", False)])
@pytest.mark.parametrize("name", CASES)
def test_values_strides_and_gradients(name: str, mode: str, channels_last: bool) -> None:
    shape, widths = CASES[name]
    if channels_last and len(shape) - len(widths) // 2 != 2 or len(shape) == 3 and channels_last:
        pytest.skip("no channels")
    if channels_last and mode == "replicate" and name == "wide":
        pytest.skip("torch's kernel, which writes other strides than its fake one tells")
    if mode == "circular" and len(shape) - len(widths) // 2 != 2:
        pytest.skip("torch pads only batches this way")
    if mode == "reflect" and any(width >= n for n, pair in zip(reversed(shape), zip(widths[::2], widths[1::2])) for width in pair):
        pytest.skip("wider than the image")
    if mode == "circular" and any(width > n for n, pair in zip(reversed(shape), zip(widths[::2], widths[1::2])) for width in pair):
        pytest.skip("wider than the image")
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d) if channels_last else x
    check(x, widths, mode)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("widths", [(-1, 2, 1, -2), (0, -3, 2, 2), (-2, -1, 0, 0)], ids=str)
def test_negative_widths_cut(widths: tuple[int, ...], mode: str) -> None:
    check(torch.randn(2, 3, 6, 9), widths, mode)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11), (torch.float64, 1e-13)], ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_types_are_rounded_once(mode: str, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(2, 3, 10, 12).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    function = torch.compile(lambda t: F.pad(t, (2, 1, 1, 3), mode=mode), backend=backend, options={"emulate": True, "strict": True})
    out, want = function(ours), F.pad(theirs, (2, 1, 1, 3), mode=mode)
    assert torch.equal(out.double(), want)
    slope = torch.randn_like(out)
    out.backward(slope)
    want.backward(slope.double())
    assert (ours.grad.double() - theirs.grad).abs().max() <= tolerance * theirs.grad.abs().max()


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_integers_and_strided_inputs(mode: str) -> None:
    for x in (torch.randint(-99, 99, (2, 3, 6, 9)), torch.randn(2, 6, 7, 9)[:, ::2, 1:, :8], torch.randn(9, 6, 3, 2).permute(3, 2, 0, 1)):
        torch._dynamo.reset()
        function = torch.compile(lambda t: F.pad(t * 2, (2, 1, 1, 2), mode=mode), backend=backend, options={"emulate": True, "debug": True, "strict": True})
        with poisoned_outputs():
            assert torch.equal(function(x), F.pad(x * 2, (2, 1, 1, 2), mode=mode))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_open_sizes(mode: str) -> None:
    function = torch.compile(lambda t: F.pad(t * 2, (2, 1, 1, 3), mode=mode), backend=backend, options={"emulate": True}, dynamic=True)
    for shape in ((2, 3, 6, 9), (3, 2, 4, 33), (2, 3, 17, 5)):
        ours = torch.randn(shape, requires_grad=True)
        theirs = ours.detach().double().requires_grad_()
        out, want = function(ours), F.pad(theirs * 2, (2, 1, 1, 3), mode=mode)
        torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)
        slope = torch.randn_like(out)
        out.backward(slope)
        want.backward(slope.double())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_each_is_one_kernel(mode: str) -> None:
    x = torch.randn(2, 3, 16, 18, requires_grad=True)
    out = torch.compile(lambda t: F.pad(t * 2, (1, 1, 1, 1), mode=mode) + 1, backend=backend, options={"emulate": True})(x)
    out.backward(torch.ones_like(out))
    kernels = [list(call.kernels()) for graph in GRAPHS for call in graph.calls]
    assert list(map(len, kernels)) == [1, 1]


def test_positions_that_are_known_are_not_tested() -> None:
    """The text has neither a test of a negative position nor one of a position behind the axis."""
    x = torch.randn(2, 3, 16, 18)
    torch.compile(lambda t: F.pad(t * 2, (1, 1, 1, 1), mode="reflect"), backend=backend, options={"emulate": True})(x)
    (kernel,) = [kernel for graph in GRAPHS for call in graph.calls for kernel in call.kernels()]
    assert "weft::position" not in kernel.program.text and "weft::select" not in kernel.program.text


def test_widths_that_are_many_places_and_complex_images_are_torchs() -> None:
    for x, mode in ((torch.randn(2, 3, 8, 8, dtype=torch.complex64), "circular"), (torch.randn(2, 3, 16, 16, requires_grad=True), "replicate")):
        torch._dynamo.reset()
        function = torch.compile(lambda t, m=mode: F.pad(t * 2, (6, 6, 6, 6), mode=m), backend=backend, options={"emulate": True})
        out, want = function(x), F.pad(x * 2, (6, 6, 6, 6), mode=mode)
        torch.testing.assert_close(out, want)
        if x.requires_grad:
            torch.testing.assert_close(torch.autograd.grad(out.sum(), x), torch.autograd.grad(want.sum(), x))
    assert "replication_pad2d_backward" in weft.explain()
