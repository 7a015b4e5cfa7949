"""Casts to and from floats of 8 bits in compiled functions: codes of eager torch, also where values are too large; what is refused has its reason."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import weft
from weft.frontend.aten import casts
from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SPECIALS = torch.tensor([
    math.nan, math.inf, -math.inf, 0.0, -0.0, 448.0, 463.9, 464.0, 464.1, 500.0, -1e30, 2.0**-9, 2.0**-10, 3 * 2.0**-11, 1.0625, 1.1875, 57344.0, 61439.0, 61440.0,
])  # fmt: skip
Results = tuple[torch.Tensor, ...]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Codes of eight bits, all NaNs alike; other tensors as they are."""
    if tensor.dtype not in (E4M3, E5M2):
        return tensor
    return torch.where(tensor.float().isnan(), torch.tensor(0x7F, dtype=torch.uint8), tensor.view(torch.uint8))


def rows(x: torch.Tensor) -> Results:
    scale = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-12) / 448
    return (x / scale).clamp(-448, 448).to(E4M3), scale


def both_ways(x: torch.Tensor) -> Results:
    """Rows, and the transpose in memory, as the two products of a linear layer's backward take them."""
    scale = x.abs().amax().float() / 448
    narrow = (x.float() / scale).clamp(min=-448).clamp(max=448).to(E4M3)
    return narrow, narrow.t().contiguous(), narrow.t(), scale


def gradients(x: torch.Tensor) -> Results:
    return ((x.float() * 4096).clamp(-57344, 57344).to(torch.bfloat16).to(E5M2),)


def parts(x: torch.Tensor) -> Results:
    narrow = (x * 128).to(E4M3)  # a power of two: eager torch rounds the product to bfloat16, too
    return torch.cat((narrow[:, 1:], narrow[:, :1]), 1), narrow.float().sum(0), narrow.to(torch.bfloat16) + x, narrow.to(torch.int32)


@pytest.mark.parametrize("shape", [(33, 65), (1, 7), (5, 1), (0, 8), (16, 256)], ids=str)
@pytest.mark.parametrize("function", [rows, both_ways, gradients, parts])
def test_codes_are_those_of_eager_torch(function: Callable[[torch.Tensor], Results], shape: tuple[int, int]) -> None:
    x = torch.randn(shape).clamp(-3.4, 3.4).bfloat16()  # 128 times as much is no NaN in any version of torch
    if 0 in shape and function is both_ways:
        pytest.skip("torch has no maximum of nothing")
    outs = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "debug": True})(x)
    assert GRAPHS and all(graph.covered_nodes == graph.compute_nodes > 0 for graph in GRAPHS)
    for out, want in zip(outs, function(x), strict=True):
        assert out.dtype is want.dtype and (out.stride() == want.stride() or 0 in shape)
        torch.testing.assert_close(bits(out), bits(want), rtol=1e-6, atol=1e-6)


def test_values_that_are_too_large_become_what_torch_makes_of_them() -> None:
    narrowed = torch.compile(lambda x: (x * 1.0).to(E4M3), backend=backend, options={"emulate": True, "strict": True})
    assert torch.equal(bits(narrowed(SPECIALS)), bits(SPECIALS.to(E4M3)))


def test_versions_of_torch_that_make_nan_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casts, "overflow_of", lambda dtype: math.nan)
    monkeypatch.setattr(casts, "last_inside", lambda dtype: 464.0)
    narrowed = torch.compile(lambda x: (x * 1.0).to(E4M3), backend=backend, options={"emulate": True, "strict": True, "cache": False})
    want = torch.where(SPECIALS.abs() <= 464, SPECIALS, math.nan).to(E4M3)
    assert torch.equal(bits(narrowed(SPECIALS)), bits(want))


def test_the_largest_value_inside() -> None:
    assert casts.last_inside(E4M3) == 464.0  # between 448 and 480, which would be the next value; a tie is rounded to the even 448
    last = torch.tensor(casts.last_inside(E5M2))
    assert last.to(E5M2).item() == 57344 and torch.nextafter(last, torch.tensor(math.inf)).to(E5M2).item() == math.inf


def test_a_cast_that_would_overflow_otherwise_stays_with_torch() -> None:
    """torch makes infinities of what is too large for e5m2; a kernel cannot."""
    function = torch.compile(lambda x: (x * 2.0).to(E5M2), backend=backend, options={"emulate": True})
    assert torch.equal(bits(function(SPECIALS)), bits((SPECIALS * 2).to(E5M2)))
    assert "not clamped to its range" in weft.explain(function)


def test_scales_that_are_powers_of_two_are_read_in_kernels() -> None:
    """All codes of float8_e8m0fnu, NaN and the least power of two too; blocks of 32 codes times their scales are one region. A cast to it stays with torch."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    options = {"emulate": True, "strict": True, "debug": True}
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.compile(lambda c, dtype=dtype: c.to(dtype) * 1, backend=backend, options=options)(codes)
        torch.testing.assert_close(out, codes.to(dtype), rtol=0, atol=0, equal_nan=True)

    def read(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (q.float().unflatten(-1, (-1, 32)) * scale.float()[..., None]).flatten(-2)

    q, scale = torch.randn(5, 96).to(E4M3), torch.randint(120, 134, (5, 3), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    torch.testing.assert_close(torch.compile(read, backend=backend, options=options)(q, scale), read(q, scale), rtol=0, atol=0)
    assert len(GRAPHS) == 3 and all(not graph.torch_ops and len(graph.calls) == 1 for graph in GRAPHS)
    x = torch.tensor([1.0, 1.25, 1.75, 3.0, 1e-30])
    assert torch.equal(torch.compile(lambda x: (x * 2).to(torch.float8_e8m0fnu), backend=backend, options=options)(x).float(), (x * 2).to(torch.float8_e8m0fnu).float())
    ((_, why),) = GRAPHS[-1].torch_ops.values()
    assert why == "a cast to torch.float8_e8m0fnu: torch rounds to the nearest power of two, and weft's kernels up"


def test_packed_integers_of_4_bits_are_unpacked_through_int8() -> None:
    """A view of uint8 as int8 and back keeps the bits; shifts of the view extend the sign."""

    def unpacked(packed: torch.Tensor, scale: torch.Tensor) -> Results:
        signed = packed.view(torch.int8)
        low, high = (signed << 4) >> 4, signed >> 4
        return torch.stack([low, high], -1).flatten(-2).float() * scale, (high ^ low).view(torch.uint8) & 15

    packed, scale = torch.arange(256, dtype=torch.uint8).view(8, 32), torch.rand(8, 1)
    outs = torch.compile(unpacked, backend=backend, options={"emulate": True, "strict": True, "debug": True})(packed, scale)
    for out, want in zip(outs, unpacked(packed, scale), strict=True):
        torch.testing.assert_close(out, want, rtol=0, atol=0)
    assert not any(graph.torch_ops for graph in GRAPHS)
