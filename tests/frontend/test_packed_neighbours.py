"""Codes of normalized rows, several in an integer, in the kernel that reduces the rows. Compared with torch in float64, bit by bit.

Rows hold multiples of 1/16 whose largest magnitude is a power of two, so that scales and quotients are exact in every type.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusion_check import poisoned_outputs
from torch import Tensor

from weft.frontend.backend import GRAPHS, backend

Function = Callable[[Tensor], "tuple[Tensor, ...]"]


def rows_of(shape: tuple[int, ...], dtype: torch.dtype, group: int = 0) -> Tensor:
    """Multiples of 1/16, with +-8 in every row or group."""
    made = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-128, 129, shape, generator=made) / 16
    if x.numel():
        places = x.view(-1, group or shape[-1])
        at = torch.randint(0, places.shape[1], (places.shape[0], 1), generator=made)
        places.scatter_(1, at, torch.where(places.gather(1, at) < 0, -8.0, 8.0))
    return x.to(dtype)


def wide(x: Tensor) -> Tensor:
    """16-bit floats as float32; the reference's float64 stays."""
    return x if x.dtype is torch.float64 else x.float()


def codes(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = wide(x).abs().amax(-1, keepdim=True) / 8
    return (wide(x) / scale).floor().clamp(-8, 7).to(torch.int8), scale


def every_second(x: Tensor) -> tuple[Tensor, ...]:
    q, scale = codes(x)
    return (q[..., ::2] & 15) | (q[..., 1::2] << 4), scale


def added(x: Tensor) -> tuple[Tensor, ...]:
    q, scale = codes(x)
    q = (q + 8).to(torch.uint8).unflatten(-1, (-1, 2))
    return (q[..., 0] << 4) + q[..., 1], scale


def four_of_two_bits(x: Tensor) -> tuple[Tensor, ...]:
    q, scale = codes(x)
    q = ((q >> 2) & 3).unflatten(-1, (-1, 4))
    return q[..., 0] | (q[..., 1] << 2) | ((q[..., 2] << 4) | (q[..., 3] << 6)), scale


def eight_in_a_loop(x: Tensor) -> tuple[Tensor, ...]:
    q, scale = codes(x)
    q = (q + 8).to(torch.int32).unflatten(-1, (-1, 8))
    packed = torch.zeros_like(q[..., 0])
    for k in range(8):
        packed |= q[..., k] << (4 * k)
    return packed, scale


def shifted_codes_too(x: Tensor) -> tuple[Tensor, ...]:
    """What is packed is a result, too."""
    q, scale = codes(x)
    return (q[..., ::2] & 15) | (q[..., 1::2] << 4), q, scale


def groups(x: Tensor) -> tuple[Tensor, ...]:
    q, scale = codes(x.unflatten(-1, (-1, 16)))
    q = q.flatten(-2)
    return (q[..., ::2] & 15) | (q[..., 1::2] << 4), scale.squeeze(-1)


def bits_of_sorted_rows(x: Tensor) -> tuple[Tensor, ...]:
    """Bits that tell what exceeds half of the largest of its row, the last of eight first."""
    b = (wide(x) > wide(x).amax(-1, keepdim=True) / 2).to(torch.uint8).unflatten(-1, (-1, 8))
    packed = b[..., 7]
    for k in range(7):
        packed = packed | (b[..., 6 - k] << (k + 1))
    return (packed,)


def compare(function: Function, x: Tensor, kernels: int | None) -> None:
    """kernels: how many run; None where that is not the point."""
    with poisoned_outputs():
        got = torch.compile(function, backend=backend, options={"emulate": True, "strict": True})(x)
    eager, want = function(x), function(x.double())
    for a, same, b in zip(got, eager, want, strict=True):
        assert (a.shape, a.dtype) == (same.shape, same.dtype)
        assert not a.numel() or all(stride == other for n, stride, other in zip(a.shape, a.stride(), same.stride()) if n > 1)
        assert torch.equal(a.double(), b.double())
    assert kernels is None or sum(len(call.kernels()) for graph in GRAPHS for call in graph.calls) == kernels


FUNCTIONS = [every_second, added, four_of_two_bits, eight_in_a_loop, shifted_codes_too, bits_of_sorted_rows]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("shape", [(5, 4096), (3, 24), (1, 8), (2, 3, 1000)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_codes_are_packed_in_the_kernel_of_the_row(function: Function, shape: tuple[int, ...]) -> None:
    """One short row is no more work in two kernels."""
    compare(function, rows_of(shape, torch.bfloat16), 1 if shape[0] > 1 else None)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("function", "shape", "dtype"), [
    (every_second, (3, 34), torch.float32), (added, (5, 6), torch.float16), (every_second, (4, 2), torch.bfloat16), (four_of_two_bits, (3, 4100), torch.float32),
    (every_second, (9, 4098), torch.bfloat16), (eight_in_a_loop, (2, 9000), torch.float16),
])  # fmt: skip
def test_rows_that_are_no_whole_vectors(function: Function, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    compare(function, rows_of(shape, dtype), 1)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [every_second, eight_in_a_loop])
def test_rows_that_begin_anywhere_and_lie_apart(function: Function) -> None:
    base = rows_of((5, 200), torch.bfloat16)
    x = base[:, 3:51]
    assert (x.amax(-1) > 0).all()
    x = x.abs().amax(-1, keepdim=True).log2().floor().exp2().to(x.dtype) * x.sign()  # plus and minus a power of two
    x = torch.cat([torch.ones(5, 3, dtype=x.dtype), x, x], 1)[:, 3:51]
    compare(function, x, 1)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("shape", [(3, 128), (1, 16), (5, 336), (2, 3, 4096)])
def test_scales_of_groups(shape: tuple[int, ...]) -> None:
    compare(groups, rows_of(shape, torch.bfloat16, group=16), 1 if shape[0] > 1 else None)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [every_second, groups])
def test_no_rows(function: Function) -> None:
    compare(function, rows_of((0, 32), torch.bfloat16), 0)


def unlike(x: Tensor) -> tuple[Tensor, ...]:
    """An exclusive or, and the same half twice, are no such folds."""
    q, scale = codes(x)
    low, high = q[..., ::2], q[..., 1::2]
    return (low & 15) ^ (high << 4), (low & 15) | (low << 4), scale


def with_another(x: Tensor) -> tuple[Tensor, ...]:
    """A part that depends on something else, and one that is a result."""
    q, scale = codes(x)
    low, high = q[..., ::2] & 15, q[..., 1::2] << 4
    return low | high, low, (q[..., ::2] + scale.to(torch.int8)) | high, scale


def of_inputs(x: Tensor) -> tuple[Tensor, ...]:
    """Not behind a reduction: the inputs are read where they lie."""
    q = wide(x).floor().to(torch.int8)
    return ((q[..., ::2] & 15) | (q[..., 1::2] << 4),)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("function", "kernels"), [(unlike, 2), (with_another, 2), (of_inputs, 1)])
def test_what_is_no_fold_of_neighbours(function: Function, kernels: int) -> None:
    compare(function, rows_of((5, 64), torch.bfloat16), kernels)
