"""Rotations: found among lookups, moved to inputs and outputs, and done by the kernels that read and write these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.graph_ops import LookupOp, RollOp
from weft.options import options


def roll(fd: FusionDefinition, x: Any, shifts: dict[int, int], sizes: tuple[int, ...], start: int = 0) -> Any:
    """torch.roll, as the backend for torch.compile writes it. start: where positions are counted from."""
    for dim, shift in shifts.items():
        extent = sizes[dim]
        place = fd.ops.add(fd.ops.iota(extent, start, dtype=DataType.Int), -shift % extent)
        x = fd.ops.index_select(x, fd.ops.where(fd.ops.lt(place, extent), place, fd.ops.sub(place, extent)), dim)
    return x


Sizes = tuple[int, ...]
Case = tuple[Callable[[FusionDefinition, Any, Sizes], Any], Callable[[torch.Tensor], torch.Tensor], int]


def rolled(x: torch.Tensor) -> torch.Tensor:
    return torch.roll(x, (2, -1), (0, 1))


def _softmax(fd: FusionDefinition, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [2], True)))
    return fd.ops.div(e, fd.ops.sum(e, [2], True))


def _windows(fd: FusionDefinition, x: Any, s: Sizes) -> Any:
    """Two neighbouring rows of each sample at a time."""
    parts = fd.ops.permute(fd.ops.reshape(x, [s[0], s[1] // 2, 2, s[2]]), [1, 0, 2, 3])
    return fd.ops.reshape(parts, [s[0] * s[1] // 2, 2 * s[2]])


def _of_windows(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (-1, 2)).permute(1, 0, 2, 3).flatten(2).flatten(0, 1)


SHIFTS = {0: 2, 1: -1}
CASES: dict[str, Case] = {
    "copy": (lambda fd, x, s: roll(fd, x, SHIFTS, s), rolled, 1),
    "innermost": (lambda fd, x, s: fd.ops.exp(roll(fd, x, {2: 3}, s)), lambda x: torch.roll(x, 3, 2).exp(), 1),
    "both": (lambda fd, x, s: fd.ops.add(x, roll(fd, fd.ops.neg(x), SHIFTS, s)), lambda x: x - rolled(x), 1),
    "before rows": (lambda fd, x, s: _softmax(fd, roll(fd, x, SHIFTS, s)), lambda x: rolled(x).softmax(2), 1),
    "behind rows": (lambda fd, x, s: fd.ops.exp(roll(fd, _softmax(fd, x), SHIFTS, s)), lambda x: rolled(x.softmax(2)).exp(), 1),
    "around rows": (lambda fd, x, s: roll(fd, _softmax(fd, roll(fd, x, {0: 1}, s)), {0: 1}, s), lambda x: torch.roll(x, 2, 0).softmax(2), 1),
    "between rows": (lambda fd, x, s: _softmax(fd, roll(fd, _softmax(fd, x), SHIFTS, s)), lambda x: rolled(x.softmax(2)).softmax(2), 2),
    "windows of rows": (lambda fd, x, s: _windows(fd, roll(fd, _softmax(fd, x), SHIFTS, s), s), lambda x: _of_windows(rolled(x.softmax(2))), 1),
    "rows of windows": (lambda fd, x, s: _windows(fd, _softmax(fd, roll(fd, x, SHIFTS, s)), s), lambda x: _of_windows(rolled(x).softmax(2)), 1),
    "rolled alike": (
        lambda fd, x, s: (lambda y: fd.ops.mul(roll(fd, y, SHIFTS, s), roll(fd, fd.ops.exp(y), SHIFTS, s)))(_softmax(fd, x)),
        lambda x: rolled(x.softmax(2) * x.softmax(2).exp()), 1,
    ),
    "rolled otherwise": (
        lambda fd, x, s: (lambda y: fd.ops.mul(roll(fd, y, SHIFTS, s), roll(fd, fd.ops.exp(y), {0: 2}, s)))(_softmax(fd, x)),
        lambda x: rolled(x.softmax(2)) * torch.roll(x.softmax(2).exp(), 2, 0), 2,
    ),
    "again and again": (
        lambda fd, x, s: _softmax(fd, roll(fd, _softmax(fd, roll(fd, _softmax(fd, x), {0: 1}, s)), {0: 2}, s)),
        lambda x: torch.roll(torch.roll(x.softmax(2), 1, 0).softmax(2), 2, 0).softmax(2), 3,
    ),
    "summed": (lambda fd, x, s: fd.ops.sum(roll(fd, _softmax(fd, x), SHIFTS, s), [0, 1]), lambda x: x.softmax(2).sum((0, 1)), 1),
    "summed in part": (lambda fd, x, s: fd.ops.sum(roll(fd, fd.ops.exp(x), SHIFTS, s), [0]), lambda x: torch.roll(x.exp().sum(0), -1, 0), 1),
    "transposed": (lambda fd, x, s: fd.ops.permute(roll(fd, fd.ops.exp(x), SHIFTS, s), [0, 2, 1]), lambda x: rolled(x.exp()).transpose(1, 2), 1),
    "of rows and columns": (lambda fd, x, s: fd.ops.mul(roll(fd, x, SHIFTS, s), fd.ops.sum(x, [0, 1], True)), lambda x: rolled(x) * x.sum((0, 1)), 2),
}  # fmt: skip
"""What a definition computes, the same in torch, and the number of kernels of large tensors."""


@pytest.mark.parametrize("sizes", [(3, 6, 64), (2, 4, 33), (1, 2, 1), (5, 14, 8), (7, 2, 300), (3, 0, 8), (0, 2, 8)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_rolled_values_are_right(name: str, sizes: Sizes) -> None:
    define, reference, _ = CASES[name]
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=[None if n == 1 else True for n in sizes])
        fd.add_output(define(fd, x, sizes) if all(sizes) else fd.ops.exp(x))
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x])
    want = reference(x.double()) if all(sizes) else x.double().exp()
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max()) if want.numel() else 1.0))


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_is_rotated_in_memory_that_need_not_be(name: str) -> None:
    define, _, kernels = CASES[name]
    sizes = (8, 32, 64)
    with FusionDefinition() as fd:
        fd.add_output(define(fd, fd.define_tensor(list(sizes), contiguity=True), sizes))
    fd.execute([torch.randn(sizes)])
    assert len(fd.fec.kernel_runtimes) == kernels
    assert not any(isinstance(e, LookupOp) for e in normalize(fd.fusion).tensor_exprs())


def test_layouts_that_are_read_and_written_rolled() -> None:
    """The input lies transposed with gaps, and the result in another order."""
    sizes = (4, 6, 16)
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6, 16], contiguity=[False, False, False], stride_order=[1, 2, 0], dtype=DataType.BFloat16)
        y = fd.ops.cast(_softmax(fd, roll(fd, fd.ops.cast(x, DataType.Float), SHIFTS, sizes)), DataType.BFloat16)
        fd.add_output(fd.ops.stride_order(roll(fd, y, {1: 2, 2: 5}, sizes), [1, 2, 0]))
    x = torch.randn(6, 5, 40).bfloat16()[:, :4, ::2][..., :16].transpose(0, 1)
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x])
    assert got.stride() == (16, 64, 1)
    torch.testing.assert_close(got.double(), torch.roll(rolled(x.double()).softmax(2), (2, 5), (1, 2)), rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_result_that_is_written_over_what_is_read_elsewhere(is_read: bool) -> None:
    """All threads read old values although the input's memory gets the result: it is read rolled, or written rolled."""
    sizes = (4, 6, 16)
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True)
        place = fd.ops.broadcast_in_dim(fd.ops.iota(6, dtype=DataType.Float), list(sizes), [1])
        y = fd.ops.exp(roll(fd, x, SHIFTS, sizes)) if is_read else roll(fd, fd.ops.add(x, place), SHIFTS, sizes)
        fd.add_output(y, x)
    x = torch.randn(sizes)
    want = rolled(x.double()).exp() if is_read else rolled(x.double() + torch.arange(6).double()[:, None])
    with options(check="races"):
        fd.execute([x])
    torch.testing.assert_close(x.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start, shift, is_found", [(0, 0, True), (0, 1, True), (0, 5, True), (1, 0, False)])
def test_which_lookups_are_rotations(start: int, shift: int, is_found: bool) -> None:
    sizes = (3, 6, 8)
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(sizes), contiguity=True)
        fd.add_output(fd.ops.exp(roll(fd, x, {1: shift}, sizes, start)))
    found = normalize(fd.fusion).tensor_exprs()
    assert any(isinstance(e, RollOp) for e in found) is is_found
    x = torch.randn(sizes)
    torch.testing.assert_close(fd.execute([x])[0], torch.roll(x, shift - start, 1).exp())


def test_a_rotation_by_other_sizes_stays_a_lookup() -> None:
    """i + 2, less 5 from position 4 on: no rotation of 6 rows."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([6, 8], contiguity=True)
        place = fd.ops.add(fd.ops.iota(6, dtype=DataType.Int), 2)
        fd.add_output(fd.ops.index_select(x, fd.ops.where(fd.ops.lt(place, 6), place, fd.ops.sub(place, 5)), 0))
    x = torch.randn(6, 8)
    assert torch.equal(fd.execute([x])[0], x[[2, 3, 4, 5, 1, 2]])
