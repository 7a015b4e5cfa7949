"""Complex tensors in torch.compile: kernels compute with their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

pytestmark = pytest.mark.usefixtures("fresh")


def compare(function: Callable[..., Any], *inputs: Tensor, left: tuple[str, ...] = (), tolerance: float = 1e-5) -> None:
    """Compare results and gradients with torch's in double precision. left: ops that torch runs."""
    torch._dynamo.reset()
    ours = [x.clone().requires_grad_(x.is_floating_point() or x.is_complex()) for x in inputs]
    theirs = [x.to(torch.complex128 if x.is_complex() else torch.float64 if x.is_floating_point() else x.dtype) for x in inputs]
    theirs = [x.clone().requires_grad_(x.is_floating_point() or x.is_complex()) for x in theirs]
    with poisoned_outputs():
        outs = torch.compile(function, backend=backend, options={"emulate": True, "strict": True, "debug": True})(*ours)
    eager, wants = function(*inputs), function(*theirs)
    outs, eager, wants = ([o] if isinstance(o, Tensor) else list(o) for o in (outs, eager, wants))
    for out, plain, want in zip(outs, eager, wants, strict=True):
        assert out.dtype is plain.dtype and out.stride() == plain.stride() and not out.is_conj()
        torch.testing.assert_close(out.to(want.dtype), want, rtol=tolerance, atol=tolerance)
    slopes = [torch.randn_like(out) for out in outs]
    with poisoned_outputs():
        torch.autograd.backward(outs, slopes)
    torch.autograd.backward(wants, [s.to(w.dtype) for s, w in zip(slopes, wants)])
    for a, b in zip(ours, theirs):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad.to(b.grad.dtype), b.grad, rtol=4 * tolerance, atol=4 * tolerance)
    told = {op.removeprefix("aten.") for graph in GRAPHS for op in graph.torch_ops}
    assert told == set(left)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.to(turns.real.dtype).unflatten(-1, (x.shape[-1] // 2, 2)))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (1, 1, 1, 2), (0, 3, 2, 4), (3, 7, 1, 66)], ids=str)
def test_rotary_positions_as_complex_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """One kernel each way for a tensor; the turns have a gradient, too."""
    x = torch.randn(shape).to(dtype)
    turns = torch.polar(torch.ones(shape[1], shape[3] // 2), torch.randn(shape[1], shape[3] // 2)).to(torch.complex128 if dtype is torch.float64 else torch.complex64)
    compare(rotated, x, turns, tolerance=2e-2 if dtype is torch.bfloat16 else 1e-5)


def test_a_table_of_turns_is_not_written() -> None:
    """Its parts are views that the backward gets; it looks like a gradient, and must not lend its memory to one."""
    x, turns = torch.randn(1, 6, 1, 8, requires_grad=True), torch.polar(torch.ones(6, 4), torch.randn(6, 4))
    kept = turns.clone()
    torch.compile(rotated, backend=backend, options={"emulate": True, "strict": True})(x, turns).backward(torch.ones(1, 6, 1, 8))
    assert torch.equal(turns, kept)
    assert sum(len(call.kernels()) for graph in GRAPHS for call in graph.calls) == 2


def test_conjugates_that_come_in_and_go_out() -> None:
    """An input may be a conjugate that torch has not computed yet."""
    x, y = torch.randn(5, 7, dtype=torch.complex64), torch.randn(7, 5, dtype=torch.complex64)
    compare(lambda x, y: (x.conj() * 2 - y.mH.resolve_conj()).resolve_conj(), x, y)
    torch._dynamo.reset()
    z = x.conj()
    out = torch.compile(lambda z: torch.view_as_real((z * (2 - 1j)).resolve_conj()), backend=backend, options={"emulate": True, "strict": True})(z)
    torch.testing.assert_close(out, torch.view_as_real(z.resolve_conj() * (2 - 1j)))


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "arithmetic": lambda z, r: (z * r + 3 - z / (r * r + 1), 2j * z - r, -z, r - z, (1 + 2j) * r, torch.add(z, r, alpha=3)),
    "size and angle": lambda z, r: (z.abs() + r, z.angle(), (z.real - z.imag) * r),
    "exponential": lambda z, r: (torch.exp(z * 0.5) * r).real, "made of parts": lambda z, r: torch.complex(r, z.imag) * torch.polar(r.abs() + 1, r),
    "sums": lambda z, r: ((z * r).sum(1), z.mean(0), (z * z).sum()), "shapes": lambda z, r: (z * r).reshape(-1).unflatten(0, (-1, 3)).T.contiguous() + 1,
    "pieces": lambda z, r: torch.cat([z[:, 1:] * 2, r[:, :3].to(z.dtype)], 1).flip(0), "masks": lambda z, r: torch.where(r > 0, z, r.to(z.dtype)) + torch.where(r > 1, z, 0),
    "blocks": lambda z, r: torch.block_diag(z * 2, r), "padded": lambda z, r: torch.nn.functional.pad(z * r, (1, 2)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [(name, (torch.complex64, torch.complex128)[n % 2]) for n, name in enumerate(FUNCTIONS)], ids=str)
def test_functions_of_complex_numbers(name: str, dtype: torch.dtype) -> None:
    z = torch.randn(6, 9, dtype=dtype)
    compare(FUNCTIONS[name], z, torch.randn(6, 9, dtype=z.real.dtype))
    compare(FUNCTIONS[name], torch.randn(12, 9, dtype=dtype)[::2], torch.randn(9, 6, dtype=z.real.dtype).T)


def test_a_size_at_zero_has_the_gradient_zero() -> None:
    z = torch.randn(4, 5, dtype=torch.complex64)
    z[1], z[2, 3] = 0, 0
    compare(lambda z: z.abs() * 2, z)


def test_spectra() -> None:
    """What torch transforms, and what lies between: the sizes, a filter, a loss."""
    x, filtered = torch.randn(3, 33), torch.randn(17, dtype=torch.complex64)
    compare(lambda x: (torch.fft.rfft(x * 2).abs() + 1).log().sum(), x, left=("_fft_r2c.default", "_fft_c2c.default"), tolerance=1e-4)
    compare(lambda x, f: torch.fft.irfft(torch.fft.rfft(x * 2) * f * f, n=33) * x, x, filtered, left=("_fft_r2c.default", "_fft_c2r.default", "_fft_c2c.default"), tolerance=1e-4)


def test_a_diagonal_state_space() -> None:
    """S4D: the kernel is a sum of powers, real parts of complex exponentials."""
    a, c = torch.randn(4, 8), torch.randn(4, 8, dtype=torch.complex64)

    def kernel(a: Tensor, c: Tensor) -> Tensor:
        steps = torch.arange(19, device=a.device)
        powers = torch.exp((torch.complex(-a.abs(), a) * 0.1)[..., None] * steps)
        return 2 * (c[..., None] * powers).sum(1).real

    compare(kernel, a, c, tolerance=1e-4)


def test_sizes_that_change_share_a_graph() -> None:
    """Symbolic sizes are not compared with numbers: no further graph for another length."""
    made = torch.compile(rotated, backend=backend, options={"emulate": True, "strict": True, "debug": True}, dynamic=True)
    for length in (5, 9, 12):
        x, turns = torch.randn(2, length, 3, 8), torch.polar(torch.ones(length, 4), torch.randn(length, 4))
        torch.testing.assert_close(made(x, turns), rotated(x.double(), turns.to(torch.complex128)).float(), rtol=1e-5, atol=1e-5)
    assert len(GRAPHS) == 1


def test_open_sizes_and_numbers_as_parts_stay_with_torch() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.view_as_real(x.to(torch.complex64) * (1 + 2j) + 1)

    made = torch.compile(f, backend=backend, options={"emulate": True, "strict": True, "debug": True}, dynamic=True)
    for length in (5, 9):
        x = torch.randn(length, 3)
        torch.testing.assert_close(made(x), f(x))
