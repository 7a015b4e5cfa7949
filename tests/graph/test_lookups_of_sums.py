"""Sums of a few terms that are read at other positions, as the backward of rotary positions of shared keys reads them: the terms are read there instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.lookups_of_sums import MOST_TERMS
from weft.graph.normalize import normalize
from weft.ir.graph_ops import LookupOp
from weft.ir.values import ReductionOp
from weft.options import options

Sizes = tuple[int, int, int, int]


def _halves(fd: FusionDefinition, y: Any, s: Sizes) -> Any:
    """The halves of the innermost axis, exchanged."""
    half = s[3] // 2
    parts = [fd.ops.slice(y, start_indices=[0, 0, at], end_indices=[s[0], s[2], at + half]) for at in (half, 0)]
    return fd.ops.cat([fd.ops.neg(parts[0]), parts[1]], dim=2)


def rotary(fd: FusionDefinition, x: Any, s: Sizes) -> list[Any]:
    y = fd.ops.sum(x, [1])
    return [fd.ops.add(y, fd.ops.mul(_halves(fd, y, s), 0.5))]


def _in_rotary(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.sum(1)
    a, b = y.chunk(2, -1)
    return [y + 0.5 * torch.cat((-b, a), -1)]


def shifted(fd: FusionDefinition, x: Any, s: Sizes) -> list[Any]:
    """Along rows, zeros before the first, and the sum is a result, too."""
    y = fd.ops.sum(fd.ops.exp(x), [1])
    rows = fd.ops.pad(fd.ops.slice(y, start_indices=[0, 0, 0], end_indices=[s[0], s[2] - 1, s[3]]), [0, 0, 1, 0, 0, 0])
    return [y, fd.ops.sub(y, rows)]


def _in_shifted(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.exp().sum(1)
    return [y, y - torch.nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]]


def all_pairs(fd: FusionDefinition, x: Any, s: Sizes) -> list[Any]:
    """Each element of a sum and each of the shifted one: the loops of both differ."""
    y = fd.ops.sum(x, [0, 1, 2])
    back = fd.ops.pad(fd.ops.slice(y, start_indices=[1], end_indices=[s[3]]), [0, 1])
    return [fd.ops.mul(fd.ops.broadcast(y, [False, True]), fd.ops.broadcast(back, [True, False]))]


def _in_all_pairs(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.sum((0, 1, 2))
    return [y[:, None] * torch.nn.functional.pad(y[1:], (0, 1))[None]]


def filled(fd: FusionDefinition, x: Any, s: Sizes) -> list[Any]:
    """Ones outside, which are no sums of zeros: they are chosen behind the sum."""
    y = fd.ops.sum(x, [1])
    return [fd.ops.add(y, fd.ops.pad(fd.ops.slice(y, start_indices=[0, 0, 1], end_indices=[s[0], s[2], s[3]]), [0, 1], 1.0))]


CASES: dict[Callable[..., Any], Callable[[torch.Tensor], list[torch.Tensor]]] = {
    rotary: _in_rotary, shifted: _in_shifted, all_pairs: _in_all_pairs,
    filled: lambda x: [x.sum(1) + torch.nn.functional.pad(x.sum(1)[..., 1:], (0, 1), value=1.0)],
}  # fmt: skip


def defined(define: Callable[..., Any], sizes: Sizes) -> FusionDefinition:
    with FusionDefinition() as fd:
        for out in define(fd, fd.define_tensor(list(sizes), contiguity=True), sizes):
            fd.add_output(out)
    return fd


@pytest.mark.parametrize("sizes", [(2, 4, 5, 16), (1, 3, 2, 6), (3, 2, 7, 130), (2, 8, 3, 64), (1, 1, 2, 4), (2, 9, 4, 8), (2, 0, 3, 8), (0, 2, 3, 8)], ids=str)
@pytest.mark.parametrize("define", CASES, ids=lambda define: define.__name__)
def test_values_are_right(define: Callable[..., Any], sizes: Sizes) -> None:
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))
    with poisoned_outputs(), options(check="races"):
        got = defined(define, sizes).execute([x])
    for mine, want in zip(got, CASES[define](x.double()), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max()) if want.numel() else 1.0))


@pytest.mark.parametrize("terms, is_moved", [(2, True), (MOST_TERMS, True), (MOST_TERMS + 1, False)])
@pytest.mark.parametrize("define", [rotary, shifted], ids=lambda define: define.__name__)
def test_one_kernel_reads_the_terms_at_both_positions(define: Callable[..., Any], terms: int, is_moved: bool) -> None:
    fd = defined(define, (2, terms, 16, 64))
    fd.execute([torch.randn(2, terms, 16, 64)])
    assert (len(fd.fec.kernel_runtimes) == 1) is is_moved


@pytest.mark.parametrize("define, is_moved", [(rotary, True), (shifted, True), (all_pairs, False), (filled, True)], ids=["rotary", "shifted", "all pairs", "filled"])
def test_which_lookups_are_moved(define: Callable[..., Any], is_moved: bool) -> None:
    """A lookup that is moved reads no sum."""
    exprs = normalize(defined(define, (2, 2, 4, 16)).fusion).tensor_exprs()
    assert any(isinstance(e, LookupOp) and isinstance(e.source.definition(), ReductionOp) for e in exprs) is not is_moved


def test_sums_in_a_narrower_type_keep_their_bits() -> None:
    """The terms are cast where they are read, and added in the same order."""
    sizes = (2, 4, 8, 64)
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor(list(sizes), contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        fd.add_output(_halves(fd, fd.ops.sum(x, [1]), sizes))
    x = torch.randn(sizes).bfloat16()
    with poisoned_outputs(), options(check="races"):
        (got,) = fd.execute([x])
    a, b = x.float().sum(1).chunk(2, -1)
    torch.testing.assert_close(got, torch.cat((-b, a), -1), rtol=1e-6, atol=1e-6)
