"""Images enlarged by whole numbers: pixels are repeated by kernels, and gradients are summed over windows. Others are torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

import weft
from weft.frontend.backend import GRAPHS, backend
from weft.schedulers import short_rows

pytestmark = pytest.mark.usefixtures("fresh")

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "twice": ((2, 3, 5, 7), {"scale_factor": 2}),
    "by each axis": ((2, 3, 5, 7), {"scale_factor": (3.0, 1.0)}),
    "to a size": ((1, 4, 3, 8), {"size": (9, 16)}),
    "exact": ((2, 1, 5, 4), {"scale_factor": 4, "mode": "nearest-exact"}),
    "a line": ((2, 3, 11), {"scale_factor": 5}),
    "a volume": ((1, 2, 3, 2, 5), {"size": (6, 4, 5)}),
    "one pixel": ((3, 1, 1, 1), {"scale_factor": 8}),
    "no image": ((0, 3, 4, 4), {"scale_factor": 2}),
    "linear": ((2, 3, 11), {"scale_factor": 3, "mode": "linear"}),
    "bilinear": ((2, 3, 5, 7), {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear, a square": ((2, 3, 6, 6), {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear, by each axis": ((2, 3, 5, 7), {"size": (15, 28), "mode": "bilinear", "align_corners": False}),
    "bilinear, one axis": ((2, 3, 5, 7), {"scale_factor": (1, 5), "mode": "bilinear"}),
    "bilinear, one pixel": ((2, 3, 1, 1), {"scale_factor": 4, "mode": "bilinear"}),
    "trilinear": ((1, 2, 3, 3, 3), {"scale_factor": 2, "mode": "trilinear"}),
    "linear, aligned": ((2, 3, 11), {"scale_factor": 2, "mode": "linear", "align_corners": True}),
    "bilinear, aligned": ((2, 3, 5, 7), {"size": (10, 21), "mode": "bilinear", "align_corners": True}),
    "bilinear, a square, aligned": ((2, 3, 6, 6), {"scale_factor": 2, "mode": "bilinear", "align_corners": True}),
    "bilinear, other sizes": ((2, 3, 5, 7), {"size": (8, 5), "mode": "bilinear"}),
    "bilinear, other sizes, aligned": ((2, 3, 5, 7), {"size": (8, 5), "mode": "bilinear", "align_corners": True}),
    "bilinear, halved": ((2, 3, 6, 8), {"scale_factor": 0.5, "mode": "bilinear"}),
    "bilinear, one and a half": ((2, 3, 6, 8), {"scale_factor": (1.5, 2.5), "mode": "bilinear"}),
    "bilinear, from one pixel": ((2, 3, 1, 1), {"size": (5, 6), "mode": "bilinear", "align_corners": True}),
    "bilinear, to one pixel": ((2, 3, 5, 6), {"size": (1, 1), "mode": "bilinear", "align_corners": True}),
    "trilinear, other sizes": ((1, 2, 3, 4, 2), {"size": (5, 3, 3), "mode": "trilinear"}),
    "linear, many times": ((2, 3, 4), {"scale_factor": 11, "mode": "linear"}),
    "bicubic": ((2, 3, 5, 7), {"scale_factor": 2, "mode": "bicubic"}),
    "bicubic, a square": ((2, 3, 8, 8), {"scale_factor": 2, "mode": "bicubic"}),
    "bicubic, by each axis": ((2, 3, 5, 7), {"size": (15, 7), "mode": "bicubic"}),
    "bicubic, aligned": ((2, 3, 5, 7), {"size": (10, 21), "mode": "bicubic", "align_corners": True}),
    "bicubic, other sizes": ((2, 3, 5, 7), {"size": (8, 6), "mode": "bicubic"}),
    "bicubic, other sizes, aligned": ((2, 3, 7, 5), {"size": (8, 4), "mode": "bicubic", "align_corners": True}),
    "bicubic, halved": ((2, 3, 6, 8), {"scale_factor": 0.5, "mode": "bicubic"}),
    "bicubic, few pixels": ((2, 3, 2, 3), {"scale_factor": (2, 3), "mode": "bicubic"}),
    "bicubic, from one pixel": ((2, 3, 1, 1), {"size": (5, 6), "mode": "bicubic"}),
    "bicubic, from one pixel, aligned": ((2, 3, 1, 2), {"size": (5, 3), "mode": "bicubic", "align_corners": True}),
    "bicubic, to one pixel": ((2, 3, 5, 6), {"size": (1, 1), "mode": "bicubic", "align_corners": True}),
    "bicubic, one pixel": ((2, 3, 1, 1), {"scale_factor": 4, "mode": "bicubic"}),
    "bilinear, one row, aligned": ((2, 3, 1, 7), {"scale_factor": 3, "mode": "bilinear", "align_corners": True}),
}


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=backend, options={"emulate": True, "debug": True, **options})


@pytest.mark.parametrize(("name", "channels_last"), [(name, n % 2 == 1) for n, name in enumerate(CASES)] + [("bilinear", False), ("bicubic", True), ("trilinear", True)])
def test_values_strides_and_gradients(name: str, channels_last: bool) -> None:
    shape, given = CASES[name]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = torch.randn(shape)
    x = x.to(memory_format=formats[x.dim()]) if channels_last and x.dim() in formats else x
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    with poisoned_outputs():
        out, want = compiled(lambda t: F.silu(F.interpolate(t * 2, **given)), strict=True)(ours), F.silu(F.interpolate(theirs * 2, **given))
    assert out.shape == want.shape
    assert 0 in shape or all(a == b for n, a, b in zip(want.shape, out.stride(), want.stride()) if n > 1)
    torch.testing.assert_close(out, want)
    slope = torch.randn_like(want)
    with poisoned_outputs():
        out.backward(slope)
    want.backward(slope)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)
    assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


def test_every_pixel_up_to_the_largest_factor() -> None:
    for factor in range(1, 9):
        x = torch.arange(1.0, 2000.0).view(1, 1, -1)
        assert torch.equal(compiled(lambda t, f=factor: F.interpolate(t * 1.0, scale_factor=f))(x), F.interpolate(x, scale_factor=factor))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("given", [{"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}, {"mode": "bicubic"}], ids=str)
def test_gradients_of_other_types(given: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    """They are rounded once."""
    x, slope = torch.randn(2, 3, 9, 10).to(dtype), torch.randn(2, 3, 36, 40).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    compiled(lambda t: F.interpolate(t, scale_factor=4, **given), strict=True)(ours).backward(slope)
    F.interpolate(theirs, scale_factor=4, **given).backward(slope.double())
    assert (ours.grad.double() - theirs.grad).abs().max() <= tolerance * theirs.grad.abs().max()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("is_aligned", [False, True])
def test_the_gradient_of_a_square_is_one_kernel(mode: str, is_aligned: bool) -> None:
    """Both axes of a square have the same positions, which torch counts once."""
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    compiled(lambda t: F.interpolate(t, scale_factor=2, mode=mode, align_corners=is_aligned))(x).sum().backward()
    assert [len(list(call.kernels())) for graph in GRAPHS for call in graph.calls] == [1, 1]
    assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


def test_open_sizes_of_a_linear_image() -> None:
    function = torch.compile(lambda t: F.interpolate(t * 2, scale_factor=2, mode="bilinear"), backend=backend, options={"emulate": True}, dynamic=True)
    for size in (5, 8, 11):
        ours, theirs = (torch.randn(2, 3, size, size + 1, generator=torch.Generator().manual_seed(size)).requires_grad_() for _ in range(2))
        slope = torch.randn(2, 3, 2 * size, 2 * size + 2)
        (got,), (want,) = (torch.autograd.grad(f(t), t, slope) for f, t in ((function, ours), (lambda t: F.interpolate(t * 2, scale_factor=2, mode="bilinear"), theirs)))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_open_sizes_are_one_graph() -> None:
    function = torch.compile(lambda t: F.interpolate(t * 2, scale_factor=2), backend=backend, options={"emulate": True}, dynamic=True)
    for size in (5, 8, 11):
        x = torch.randn(2, 3, size, size + 1)
        torch.testing.assert_close(function(x), F.interpolate(x * 2, scale_factor=2))
    assert len(GRAPHS) == 1


@pytest.mark.parametrize("given", [
    {"scale_factor": 1.5}, {"size": (7, 9)}, {"scale_factor": 9}, {"scale_factor": 0.5}, {"scale_factor": 2.0, "recompute_scale_factor": True},
    {"scale_factor": 1.3, "mode": "bilinear"}, {"size": (3, 3), "mode": "bilinear", "antialias": True},
    {"scale_factor": 1.3, "mode": "bicubic"}, {"size": (3, 3), "mode": "bicubic", "antialias": True},
], ids=str)  # fmt: skip
def test_others_are_torchs(given: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 5, 6)
    torch.testing.assert_close(compiled(lambda t: F.interpolate(t * 2, **given))(x), F.interpolate(x * 2, **given))


@pytest.mark.parametrize("given", [
    {"scale_factor": 1.3, "mode": "bilinear"}, {"scale_factor": 1.3, "mode": "bicubic"}, {"scale_factor": (0.7, 2), "mode": "bicubic", "align_corners": True},
], ids=str)  # fmt: skip
def test_gradients_of_scales_are_torchs_kernels(given: dict[str, Any]) -> None:
    """Not its decomposition, which sorts an index for each pixel that a result lies between."""
    ours = torch.randn(2, 3, 5, 6, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    out, want = compiled(lambda t: F.silu(F.interpolate(t * 2, **given)))(ours), F.silu(F.interpolate(theirs * 2, **given))
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    slope = torch.randn_like(want)
    out.backward(slope)
    want.backward(slope)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert "weft.resize_by_torch_backward" in weft.explain() and "index_put" not in weft.explain()


def test_gradients_of_open_sizes_are_torchs_kernels() -> None:
    function = torch.compile(lambda t, like: F.interpolate(t * 2, size=like.shape[2:], mode="bilinear"), backend=backend, options={"emulate": True}, dynamic=True)
    for size in (5, 8, 11):
        ours, like = torch.randn(2, 3, size, size + 1, requires_grad=True), torch.randn(1, 1, size + 3, 9)
        theirs = ours.detach().clone().requires_grad_()
        out, want = function(ours, like), F.interpolate(theirs * 2, size=like.shape[2:], mode="bilinear")
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
        out.backward(torch.ones_like(out))
        want.backward(torch.ones_like(out))
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert "weft.resize_by_torch_backward" in weft.explain()


def test_a_module_and_a_graph_from_the_cache() -> None:
    """Dynamo inlines the module; torch's key takes the graph that stands in its place."""
    x = torch.randn(1, 2, 4, 4)
    for _ in range(2):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(torch.nn.Upsample(scale_factor=2.0))(x), F.interpolate(x, scale_factor=2))
    assert "torch runs" not in weft.explain()


@pytest.mark.parametrize("is_aligned", [False, True])
def test_large_windows(is_aligned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a pixel is a sum of more elements than a thread loads at once: it takes them line by line."""
    monkeypatch.setattr(short_rows, "SHORT_THREADS", 1)  # so that few pixels fill the chip
    x, slope = torch.randn(2, 3, 7, 9), torch.randn(2, 3, 42, 54)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    with poisoned_outputs():
        compiled(lambda t: F.interpolate(t, scale_factor=6, mode="bilinear", align_corners=is_aligned), strict=True, cache=False)(ours).backward(slope)
    F.interpolate(theirs, scale_factor=6, mode="bilinear", align_corners=is_aligned).backward(slope.double())
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5)
    made = [kernel.proposal.params for graph in GRAPHS for call in graph.calls for kernel in call.kernels()]
    assert [getattr(params, "kind", "") for params in made] == ["", "short"]
