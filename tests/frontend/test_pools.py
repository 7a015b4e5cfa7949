"""Averages over windows of pixels: views where windows are tiles, else sums of looked up pixels; gradients are sums over the results of each pixel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare
from fusion_check import poisoned_outputs

import weft
from weft.frontend.backend import GRAPHS, backend
from weft.frontend.windows import pays_by_axes

pytestmark = pytest.mark.usefixtures("fresh")

CASES: dict[str, tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = {
    "tiles": ((2, 3, 8, 6), (2,), {}),
    "tiles that leave pixels": ((2, 3, 9, 11), ((2, 3),), {}),
    "one tile": ((2, 3, 7, 7), (7,), {}),
    "padded": ((2, 3, 8, 9), (3, 2, 1), {}),
    "padding that does not count": ((2, 3, 8, 9), (3, 2, 1), {"count_include_pad": False}),
    "overlapping": ((2, 3, 9, 8), (3, 1), {}),
    "gaps": ((2, 3, 9, 11), (2, 3), {}),
    "rounded up": ((2, 3, 8, 9), (3, 2), {"ceil_mode": True}),
    "rounded up, padding": ((1, 3, 8, 10), (3, 2, 1), {"ceil_mode": True}),
    "rounded up, padding that does not count": ((1, 3, 8, 10), (3, 2, 1), {"ceil_mode": True, "count_include_pad": False}),
    "divisor": ((2, 3, 8, 9), (3, 2, 1), {"divisor_override": 5}),
    "divisor of tiles": ((2, 3, 8, 8), (2,), {"divisor_override": 3}),
    "by each axis": ((2, 3, 8, 13), ((1, 5), (1, 2), (0, 2)), {}),
    "one pixel": ((2, 3, 1, 1), (1,), {}),
    "same size": ((2, 4, 5, 7), (3, 1, 1), {"count_include_pad": False}),
    "without a batch": ((3, 8, 6), (2,), {}),
    "no image": ((0, 3, 8, 6), (2,), {}),
    "large": ((1, 2, 15, 17), (9, 1, 4), {"count_include_pad": False}),
    "large, far apart": ((1, 2, 26, 27), (12, 8), {}),
    "long along one axis": ((1, 1, 5, 90), ((2, 70), 1, (1, 35)), {}),
    "large, with one result": ((1, 2, 9, 9), (9,), {"ceil_mode": True}),
}


def pool(x: torch.Tensor, given: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor:
    return F.silu(F.avg_pool2d(x * 2, *given, **keywords))


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", CASES)
def test_values_strides_and_gradients(name: str, channels_last: bool) -> None:
    shape, given, keywords = CASES[name]
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last) if channels_last and x.dim() == 4 else x
    compare(lambda t: pool(t, given, keywords), x, gradient_atol=1e-6)
    if 0 not in shape:
        assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


VOLUMES: dict[str, tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = {
    "tiles": ((2, 3, 4, 8, 6), (2,), {}), "padded": ((2, 3, 5, 8, 9), (3, 2, 1), {"count_include_pad": False}), "along one axis": ((2, 1, 7, 4, 5), ((3, 1, 1), 1), {}),
    "without a batch": ((3, 4, 7, 6), ((1, 2, 3), 2), {"ceil_mode": True}), "divisor": ((1, 2, 5, 5, 5), (3, 1), {"divisor_override": 7}),
}  # fmt: skip


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str, channels_last: bool) -> None:
    shape, given, keywords = VOLUMES[name]
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last_3d) if channels_last and x.dim() == 5 else x
    compare(lambda t: F.silu(F.avg_pool3d(t * 2, *given, **keywords)), x, gradient_atol=1e-6)
    assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("given", [((1, 3, 3), (1, 2, 2), (0, 1, 1)), ((1, 2, 2),), ((1, 3, 2), 1)], ids=str)
def test_maxima_within_planes_of_volumes(given: tuple[Any, ...], channels_last: bool) -> None:
    """As in networks of videos; the positions are those in the volume."""
    x = torch.randn(2, 3, 4, 7, 9)
    x = x.to(memory_format=torch.channels_last_3d) if channels_last else x
    compare(lambda t: F.silu(F.max_pool3d(t * 2, *given)), x, gradient_atol=1e-6)
    torch._dynamo.reset()
    _, places = torch.compile(lambda t: F.max_pool3d(t * 2, *given, return_indices=True), backend=backend, options={"emulate": True, "strict": True})(x)
    assert torch.equal(places, F.max_pool3d(x * 2, *given, return_indices=True)[1])
    assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


def test_maxima_of_several_planes_are_torchs() -> None:
    compare(lambda t: F.max_pool3d(t * 2, 2), torch.randn(2, 3, 4, 6, 8), gradient_atol=1e-6)
    assert any("max_pool3d" in op for graph in GRAPHS for op in graph.torch_ops)


def test_a_norm_of_neighbouring_channels() -> None:
    """local_response_norm is an average along channels."""
    compare(lambda t: F.local_response_norm(t * 2, 3, alpha=0.5), torch.randn(2, 7, 5, 6), gradient_atol=1e-6)
    assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize(
    "shape, counts", [((2, 3, 7, 9), (3, 5)), ((2, 3, 8, 6), (4, 3)), ((1, 2, 5, 4), (7, 9)), ((2, 3, 10, 1), (3, 1)), ((3, 7, 11), (2, 4)), ((2, 3, 6, 7), (6, None)), ((0, 3, 7, 9), (3, 5))], ids=str,
)  # fmt: skip
def test_windows_of_a_given_number(shape: tuple[int, ...], counts: tuple[int | None, ...], channels_last: bool) -> None:
    """Fewer than pixels, as many, or more; some axes divide evenly."""
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last) if channels_last and x.dim() == 4 else x
    compare(lambda t: F.silu(F.adaptive_avg_pool2d(t * 2, counts)), x, gradient_atol=1e-6)
    if 0 not in shape:
        assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


def test_windows_of_a_given_number_along_one_axis_and_along_three() -> None:
    compare(lambda t: F.adaptive_avg_pool1d(t * 2, 4), torch.randn(2, 3, 9), gradient_atol=1e-6)
    compare(lambda t: F.adaptive_avg_pool3d(t * 2, (2, 3, 4)), torch.randn(2, 3, 5, 7, 8), gradient_atol=1e-6)
    assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("given", [(2,), (3, 2, 1)], ids=str)
def test_other_types_are_rounded_once(given: tuple[Any, ...], dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(2, 3, 10, 12).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    out = torch.compile(lambda t: F.avg_pool2d(t, *given), backend=backend, options={"emulate": True, "strict": True})(ours)
    want = F.avg_pool2d(theirs, *given)
    slope = torch.randn_like(out)
    out.backward(slope)
    want.backward(slope.double())
    assert (out.double() - want).abs().max() <= tolerance * want.abs().max()
    assert (ours.grad.double() - theirs.grad).abs().max() <= tolerance * theirs.grad.abs().max()


def test_large_windows_that_overlap_are_added_axis_by_axis() -> None:
    assert pays_by_axes([(64, 64, 9), (64, 64, 9)]) and pays_by_axes([(40, 24, 17), (40, 24, 17)])
    assert not pays_by_axes([(64, 8, 8), (64, 8, 8)])  # each pixel is in one window
    assert not pays_by_axes([(9, 1, 9), (9, 1, 9)]) and not pays_by_axes([(64, 64, 9), (64, 64, 1)])
    assert pays_by_axes([(16, 16, 5)] * 3)
    x = torch.randn(1, 1, 40, 40)
    torch.compile(lambda t: F.avg_pool2d(t, 31, 1, 15), backend=backend, options={"emulate": True})(x)
    assert [len(list(call.kernels())) for graph in GRAPHS for call in graph.calls] == [2]


def test_each_is_one_kernel() -> None:
    for given in ((2,), (3, 2, 1)):
        torch._dynamo.reset()
        x = torch.randn(2, 3, 16, 16, requires_grad=True)
        torch.compile(lambda t, g=given: F.avg_pool2d(t, *g), backend=backend, options={"emulate": True})(x).sum().backward()
        assert [len(list(call.kernels())) for graph in GRAPHS for call in graph.calls] == [1, 1]


def test_integers_and_open_sizes_are_torchs() -> None:
    function = torch.compile(lambda t: F.avg_pool2d(t * 2, 2), backend=backend, options={"emulate": True}, dynamic=True)
    for size in (6, 9):
        x = torch.randn(2, 3, size, size + 1)
        torch.testing.assert_close(function(x), F.avg_pool2d(x * 2, 2))
    x = torch.randint(9, (2, 3, 4, 4))
    assert torch.equal(torch.compile(lambda t: F.avg_pool2d(t * 2, 2), backend=backend, options={"emulate": True})(x), F.avg_pool2d(x * 2, 2))
    assert "avg_pool2d" in weft.explain()


LARGEST: dict[str, tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = {
    "tiles": ((2, 3, 8, 6), (2,), {}),
    "padded": ((2, 3, 8, 9), (3, 2, 1), {}),
    "overlapping": ((2, 3, 9, 8), (3, 1), {}),
    "gaps": ((2, 3, 9, 11), (2, 3), {}),
    "rounded up": ((2, 3, 8, 9), (3, 2, 1), {"ceil_mode": True}),
    "by each axis": ((2, 3, 8, 13), ((1, 5), (1, 2), (0, 2)), {}),
    "one pixel": ((2, 3, 1, 1), (1,), {}),
    "large": ((1, 2, 24, 23), (9, 3, 4), {}),
    "large and close": ((1, 2, 14, 17), (9, 1, 4), {}),
    "large, by each axis": ((1, 1, 11, 23), ((4, 17), (1, 2), (2, 8)), {"ceil_mode": True}),
    "long along one axis": ((1, 1, 5, 90), ((2, 70), (1, 30), (1, 35)), {}),
}


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", LARGEST)
def test_largest_of_windows(name: str, channels_last: bool) -> None:
    """Values, positions and gradients are torch's, also where several are equal, and where there is none."""
    shape, given, keywords = LARGEST[name]
    x = torch.randint(-3, 4, shape).float()
    x[0, 0, 0, 0] = float("nan")
    if min(shape[2:]) > 10:
        x[0, -1, 2:4, 5] = x[0, -1, 3, 7] = float("nan")
        x[0, -1, -9:] = float("-inf")
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    with poisoned_outputs():
        out, places = torch.compile(
            lambda t: F.max_pool2d(t * 2, *given, **keywords, return_indices=True), backend=backend, options={"emulate": True, "debug": True, "strict": True}
        )(ours)  # fmt: skip
    want, wanted = F.max_pool2d(theirs * 2, *given, **keywords, return_indices=True)
    assert torch.equal(out.nan_to_num(99), want.nan_to_num(99)) and torch.equal(places, wanted)
    assert all(a == b for n, a, b in zip(want.shape, out.stride(), want.stride()) if n > 1)
    slope = torch.randn_like(out)
    with poisoned_outputs():
        out.backward(slope)
    want.backward(slope)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)
    assert all(graph.covered_nodes == graph.compute_nodes for graph in GRAPHS)


def test_dilated_windows_and_integers_are_torchs() -> None:
    for x, given in ((torch.randn(2, 3, 9, 9), {"dilation": 2}), (torch.randint(9, (2, 3, 8, 8)), {})):
        torch._dynamo.reset()
        function = torch.compile(lambda t, g=given: F.max_pool2d(t * 2, 3, **g), backend=backend, options={"emulate": True})
        assert torch.equal(function(x), F.max_pool2d(x * 2, 3, **given))
    assert "max_pool2d" in weft.explain()
