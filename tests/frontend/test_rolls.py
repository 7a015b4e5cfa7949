"""Rotations through torch.compile, as those of shifted windows (Swin): they are part of the kernels around them, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compared_images import compare
from fusion_check import poisoned_outputs

from weft.frontend import regions
from weft.frontend.backend import GRAPHS, backend


def windows(x: torch.Tensor, size: int) -> torch.Tensor:
    x = x.unflatten(2, (-1, size)).unflatten(1, (-1, size))
    return x.transpose(2, 3).flatten(0, 2).contiguous()


def image(parts: torch.Tensor, height: int, width: int) -> torch.Tensor:
    size = parts.shape[1]
    return parts.view(-1, height // size, width // size, size, size, parts.shape[-1]).transpose(2, 3).reshape(-1, height, width, parts.shape[-1])


def cut(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A norm, of which shifted windows are cut."""
    return windows(torch.roll(F.layer_norm(x, x.shape[-1:], w, b), (-1, -2), (1, 2)), 3)


def joined(parts: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Windows put together and shifted back, a residual and a norm."""
    x = x + torch.roll(image(parts, *x.shape[1:3]), (1, 2), (1, 2))
    return x + F.layer_norm(x, x.shape[-1:], w, b)


def flattened(x: torch.Tensor) -> torch.Tensor:
    return torch.roll(x, 5).softmax(-1)


def with_itself(x: torch.Tensor) -> torch.Tensor:
    """As in attention between neighbours: each row and its neighbour, and no rotation at all."""
    return (x * torch.roll(x, 1, 1) + torch.roll(x, x.shape[1], 1)).softmax(-1)


def sizes(height: int, width: int, columns: int) -> dict[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]:
    x, w = (2, height, width, columns), (columns,)
    parts = (2 * height * width // 9, 3, 3, columns)
    return {cut: (x, w, w), joined: (parts, x, w, w), flattened: (x,), with_itself: (x,)}


CASES = {f"{function.__name__} {n}": (function, shapes) for n in ((6, 9, 32), (3, 3, 7), (6, 3, 1)) for function, shapes in sizes(*n).items()}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_rotations_are_part_of_kernels(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LARGE_ELEMS", 1)  # readers of a tensor share a kernel
    function, shapes = CASES[name]
    given = [torch.randn(shape, generator=torch.Generator().manual_seed(n)).to(dtype) for n, shape in enumerate(shapes)]
    grad = torch.randn(function(*given).shape, generator=torch.Generator().manual_seed(99)).to(dtype)
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)
    results = []
    for made, kind in ((compiled, dtype), (function, torch.float64)):
        leaves = [t.detach().clone().to(kind).requires_grad_() for t in given]
        with poisoned_outputs():
            out = made(*leaves)
            results.append([out.detach(), *torch.autograd.grad(out, leaves, grad.to(kind))])
    tolerance = 1e-5 if dtype is torch.float32 else 2.0**-6  # a result is rounded once, and inputs of the backward are rounded results
    for got, want in zip(*results, strict=True):
        assert (got.double() - want).norm() <= tolerance * max(1.0, float(want.norm()))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [cut, joined], ids=lambda f: f.__name__)
def test_forward_and_backward_are_one_kernel_each(function: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LARGE_ELEMS", 1)
    given = [torch.randn(shape).requires_grad_() for shape in sizes(6, 9, 32)[function]]
    compiled = torch.compile(function, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)
    out = compiled(*given)
    torch.autograd.grad(out, given, torch.ones_like(out))
    kernels = {graph.kind: [kernel.program.name for call in graph.calls for kernel in call.kernels()] for graph in GRAPHS}
    assert [len(kernels[kind]) for kind in ("forward", "backward")] == [1, 1], kernels
    assert "inner_persistent" in kernels["forward"][0] and "inner_outer" in kernels["backward"][0]


@pytest.mark.usefixtures("fresh")
def test_sizes_that_are_not_known() -> None:
    compiled = torch.compile(lambda x: torch.roll(x, (3, -1), (0, 1)).softmax(-1), backend=backend, options={"emulate": True, "strict": True}, dynamic=True)
    for shape in ((5, 6, 8), (4, 7, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), torch.roll(x, (3, -1), (0, 1)).softmax(-1))
    assert not any(graph.torch_ops for graph in GRAPHS)


@pytest.mark.usefixtures("fresh")
def test_a_tensor_that_is_rotated_in_place() -> None:
    def turn(x: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.roll(x, 2, 0) * 2)
        return x + 1

    compiled = torch.compile(turn, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)
    for _ in range(3):
        x = torch.randn(5, 8)
        want = torch.roll(x, 2, 0) * 2
        assert torch.equal(compiled(x), want + 1) and torch.equal(x, want)


CUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a part": lambda x: torch.roll(x, 1, 0)[1:] * 2,
    "differences": lambda x: torch.diff(x - 0.5 * torch.roll(x, 1, 1) + torch.roll(x, 1, 0) * 0.25, dim=0),
    "parts of a product": lambda x: torch.roll(x * 2, -1, 1)[:, 2:] + x[:, :-2],
    "a pad": lambda x: F.pad(torch.roll(x, 2, 1) * 3, (1, 2)),
    "a cat": lambda x: torch.cat([torch.roll(x, 1, 1).sin(), x], 1),
    "a rotated rotation": lambda x: torch.roll(torch.roll(x, 1, 0) + x, 1, 1)[:-1],
    "halves": lambda x: torch.roll(x, 3, 1)[:, : x.shape[1] // 2] * torch.roll(x, 3, 1)[:, -(x.shape[1] // 2) :],
    "places": lambda x: torch.roll(x, 1, 1)[:, torch.arange(x.shape[1] - 1) // 2] + 1,
}
"""Rotations of which other lookups read parts."""


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("shape", [(97, 6), (4, 5), (3, 129)], ids=str)
@pytest.mark.parametrize("name", CUT)
def test_parts_of_rotations(name: str, shape: tuple[int, ...]) -> None:
    compare(CUT[name], torch.randn(shape), rtol=1e-5, atol=1e-5, gradient_rtol=1e-5, gradient_atol=1e-5)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("last", [0, 2, 3])
def test_rotations_of_rotations(first: int, last: int) -> None:
    """Along any two axes of four, of which the outer ones are rows of the places that are looked up."""

    def function(x: torch.Tensor) -> torch.Tensor:
        x = (x - 0.5 * torch.roll(x, 1, 1) + torch.roll(x, 1, first) * 0.25).tanh()
        return x - 0.5 * torch.roll(x, 2, 2) + torch.roll(x, 1, last) * 0.25

    compare(function, torch.randn(3, 8, 3, 3), rtol=1e-5, atol=1e-5, gradient_rtol=1e-5, gradient_atol=1e-5)
