"""Norms and activations whose results are quantized in groups of a row, as they are written in torch, through torch.compile: one kernel each.

Compared with the same function of float64 tensors. Codes may be the next one where the float64 quotient lies between two: what torch rounds to 16 bits between its
kernels is not rounded here, so a quotient differs by up to 2^-8 of itself, an eighth of a step of e4m3 and half a step of int8.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare
from fusion_check import poisoned_outputs

from weft.frontend.backend import GRAPHS, backend

FP8 = torch.float8_e4m3fn
Results = tuple[torch.Tensor, ...]


def wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype is torch.float64 else x.float()


def normal(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    h = x + r
    return F.rms_norm(h, h.shape[-1:], w, 1e-6), h


def to_fp8(y: torch.Tensor, group: int) -> Results:
    y = wide(y).unflatten(-1, (-1, group))
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (y / s).clamp(-448, 448).to(FP8).flatten(-2), s.squeeze(-1)


def plain(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    y, h = normal(x, w, r)
    return *to_fp8(y, 32), h


def rounded_scales(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """DeepGEMM's scales of Blackwell."""
    y, h = normal(x, w, r)
    y = wide(y).view(-1, y.shape[-1] // 32, 32)
    s = torch.pow(2.0, torch.ceil(torch.log2((y.abs().amax(2).view(y.shape[0], -1).clamp(1e-4) / 448.0).abs())))
    return (y * (1.0 / s.unsqueeze(2))).to(FP8).view(h.shape), s, h


def biased_exponents(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """MX: scales of e8m0 as bytes."""
    y, h = normal(x, w, r)
    y = wide(y).unflatten(-1, (-1, 32))
    e = torch.ceil(torch.log2(y.abs().amax(-1, keepdim=True) / 448)).clamp(-127, 127)
    return (y / torch.exp2(e)).clamp(-448, 448).to(FP8).flatten(-2), (e.squeeze(-1) + 127).to(torch.uint8), h


def zero_points(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """Two folds over groups: the least and the largest."""
    y, h = normal(x, w, r)
    y = wide(y).view(*y.shape[:-1], -1, 32)
    low, high = y.amin(-1, keepdim=True), y.amax(-1, keepdim=True)
    s = (high - low).clamp(min=1e-5) / 255
    return ((y - low) / s).round().to(torch.uint8).flatten(-2), s.squeeze(-1), low.squeeze(-1), h


def layer_norm_to_integers(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    h = x + r
    y = wide(F.layer_norm(h, h.shape[-1:], w)).view(-1, h.shape[-1] // 16, 16)
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return (y / s).round().clamp(-128, 127).to(torch.int8).view(h.shape), s.view(y.shape[0], -1), h


def two_levels(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """Scales of groups, and a scale of these per row."""
    y, h = normal(x, w, r)
    y = wide(y).unflatten(-1, (-1, 16))
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    t = s.amax((-2, -1), keepdim=True) / 448
    return (y / (s / t * t)).clamp(-448, 448).to(FP8).flatten(-2), (s / t).squeeze(-1), t.flatten(-3), h


def two_levels_without_a_norm(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """The largest of a row is the largest of those of its groups."""
    y = wide(x + r).unflatten(-1, (-1, 16))
    s = y.abs().amax(-1)
    t = s.amax(-1, keepdim=True)
    u = s / t
    return (y / (u * t)[..., None]).mul(448).to(FP8).flatten(-2), u, t


def sums_of_codes(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """What integers of a row add up to, for products with zero points."""
    y, h = normal(x, w, r)
    y = wide(y).unflatten(-1, (-1, 32))
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    q = (y / s).round().clamp(-128, 127)
    return q.to(torch.int8).flatten(-2), s.squeeze(-1), (q * s).sum((-1, -2)), h


def norms_of_groups(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """Sums: each group of a normalized row is normalized again."""
    y, h = normal(x, w, r)
    y = wide(y).unflatten(-1, (-1, 32))
    m, v = y.mean(-1, keepdim=True), y.var(-1, correction=0, keepdim=True)
    return ((y - m) * torch.rsqrt(v + 1e-3)).flatten(-2).to(x.dtype), m.squeeze(-1), h


def columns_of_scales(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    y, h = normal(x, w, r)
    q, s = to_fp8(y, 32)
    return q, s.t().contiguous(), h


def smoothed(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """A weight per group multiplies its scale, and one per element the row."""
    y, h = normal(x, w, r)
    q, s = to_fp8(y, 32)
    return q, s * w.view(-1, 32)[:, 0], h


def shares(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    return to_fp8(wide(x + r).softmax(-1), 32)


def gated(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    return to_fp8(F.silu(x) * r, 32)


def twice(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Results:
    """Groups of 32, what they stand for, a norm of that, groups of 16."""
    y, h = normal(x, w, r)
    q, s = to_fp8(y, 32)
    y = (q.to(s.dtype).unflatten(-1, (-1, 32)) * s[..., None]).flatten(-2)
    return *to_fp8(F.rms_norm(y, y.shape[-1:], eps=1e-6), 16), s, h


FUNCTIONS: list[Callable[..., Results]] = [
    plain, zero_points, layer_norm_to_integers, two_levels, two_levels_without_a_norm, norms_of_groups, columns_of_scales, smoothed, shares, gated,
]
IN_FLOAT: list[Callable[..., Results]] = [rounded_scales, biased_exponents, sums_of_codes, twice]
"""A scale that is a power of two is twice as large, and what is computed from codes has other terms, where the norm is rounded to 16 bits."""


def numbers(rows: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows whose sums are exact in bfloat16, and a weight."""
    made = torch.Generator().manual_seed(rows + width)
    x, r = (torch.randint(-64, 65, (rows, width), generator=made) / 32 for _ in range(2))
    return [t.to(dtype) for t in (x, torch.rand(width, generator=made) + 0.5, r)]


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compare a result with that of float64 tensors."""
    assert got.shape == want.shape
    if got.dtype is FP8:
        a, b = got.double(), want.double()
        step = torch.exp2((torch.floor(torch.log2(torch.maximum(a.abs(), b.abs()).clamp(min=1e-30))) - 3).clamp(min=-9))
        assert ((a - b).abs() <= step).all() and (a != b).double().sum() <= 0.15 * a.numel()
    elif got.dtype in (torch.int8, torch.uint8):
        assert ((got.double() - want.double()).abs() <= 1).all() and (got != want).sum() <= 0.5 * got.numel()
    else:
        size = float(want.double().abs().sum()) / max(1, want.numel())
        torch.testing.assert_close(got.double(), want.double(), rtol=2.0**-7, atol=2.0**-7 * size)


def run(function: Callable[..., Results], given: list[torch.Tensor], *, dynamic: bool | None = False) -> list[str]:
    """Compare a function with float64; return its kernels."""
    want = function(*(t.double() for t in given))
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "strict": True}, dynamic=dynamic)
    with torch.no_grad():
        compiled(*given)  # torch traces symbolic sizes with tensors that cannot be poisoned
        with poisoned_outputs():
            got = compiled(*given)
    for a, b in zip(got, want, strict=True):
        check(a, b)
    return [kernel.scheduler for graph in GRAPHS for call in graph.calls for kernel in call.kernels()]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("rows", "width"), [(5, 4064), (1, 480)], ids=str)
def test_one_kernel_quantizes_groups_of_what_it_normalizes(function: Callable[..., Results], rows: int, width: int) -> None:
    GRAPHS.clear()
    assert run(function, numbers(rows, width, torch.bfloat16)) == ["inner_persistent"]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [plain, zero_points, two_levels, norms_of_groups, *IN_FLOAT], ids=lambda f: f.__name__)
def test_floats_of_32_bits(function: Callable[..., Results]) -> None:
    GRAPHS.clear()
    assert run(function, numbers(3, 736, torch.float32)) == ["inner_persistent"]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [plain, zero_points, two_levels, norms_of_groups], ids=lambda f: f.__name__)
def test_floats_of_16_bits(function: Callable[..., Results]) -> None:
    GRAPHS.clear()
    assert run(function, numbers(3, 736, torch.float16)) == ["inner_persistent"]


@pytest.mark.usefixtures("fresh")
def test_sizes_of_each_call() -> None:
    """The number of rows is symbolic."""
    GRAPHS.clear()
    for rows in (3, 6, 40):
        given = numbers(rows, 736, torch.bfloat16)
        torch._dynamo.mark_dynamic(given[0], 0)
        torch._dynamo.mark_dynamic(given[2], 0)
        assert set(run(plain, given, dynamic=None)) == {"inner_persistent"}


@pytest.mark.usefixtures("fresh")
def test_no_rows() -> None:
    run(plain, numbers(0, 736, torch.bfloat16))


def tiles(x: torch.Tensor) -> Results:
    """A scale per square of a weight."""
    rows, width = x.shape
    y = wide(x).view(rows // 16, 16, width // 32, 32)
    s = y.abs().amax((1, 3), keepdim=True).clamp(1e-4) / 448
    return (y / s).to(FP8).view(rows, width), s.view(rows // 16, width // 32)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("rows", "width"), [(48, 160), (16, 32), (32, 4096)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_squares_of_a_weight_are_read_once(rows: int, width: int, dtype: torch.dtype) -> None:
    GRAPHS.clear()
    assert run(tiles, numbers(rows, width, dtype)[:1]) == ["inner_persistent"]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("shape", [(239, 6), (1, 3), (17, 9)], ids=str)
def test_slices_of_groups(shape: tuple[int, int]) -> None:
    """Differences of neighbours in a group have one element fewer, so they are no elements of the rows, and no kernel may take them for these."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * (x * x).mean() + x.clamp(-1, 1)
        scale = y.abs().amax(-1, keepdim=True).detach() / 7
        return torch.diff((y / scale).sin(), dim=1) * scale

    compare(function, torch.randn(shape), rtol=1e-4, atol=1e-5, gradient_rtol=1e-4, gradient_atol=1e-4)
