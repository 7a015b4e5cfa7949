"""Folds of stacked tensors: which are computed term by term, and that results are torch's in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.graph.stacked_folds import MOST_TERMS
from weft.ir.values import ReductionOp
from weft.options import options

Sizes = tuple[int, int, int]


def stack(fd: FusionDefinition, parts: list[Any], dim: int, rank: int = 3) -> Any:
    return fd.ops.cat([fd.ops.broadcast(p, [d == dim for d in range(rank + 1)]) for p in parts], dim=dim)


def neighbours(fd: FusionDefinition, x: Any, s: Sizes) -> list[Any]:
    """x at other columns, zeros outside."""
    padded = fd.ops.pad(x, [2, 2])
    return [fd.ops.slice(padded, start_indices=[0, 0, n], end_indices=[s[0], s[1], n + s[2]]) for n in range(5)]


def shifted(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.nn.functional.pad(x, (2, 2))[..., n : n + x.shape[-1]] for n in range(5)]


def compared(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    """Two stacks, with what depends on neither."""
    a, b = (fd.ops.sub(stack(fd, neighbours(fd, t, s), 1), fd.ops.broadcast(t, [False, True, False, False])) for t in (x, y))
    return [fd.ops.sum(fd.ops.div(fd.ops.abs(fd.ops.sub(a, b)), fd.ops.add(fd.ops.abs(a), 0.5)), [1])]


def _compared(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    a, b = (torch.stack(shifted(t), 1) - t[:, None] for t in (x, y))
    return [((a - b).abs() / (a.abs() + 0.5)).sum(1)]


def weighed(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    """Numbers, one for each term, and a tensor in memory that has the axis."""
    weights = fd.ops.broadcast(fd.ops.cast(fd.ops.iota(2, 1, 3), DataType.Float), [True, False, True, True])
    wide = fd.ops.broadcast(fd.ops.slice(y, start_indices=[0, 0, 0], end_indices=[s[0], 2, s[2]]), [False, False, True, False])
    made = stack(fd, [x, fd.ops.exp(x)], 1)
    return [fd.ops.sum(fd.ops.mul(fd.ops.mul(made, weights), wide), [1])]


def _weighed(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [(torch.stack([x, x.exp()], 1) * torch.tensor([1.0, 4.0]).double()[:, None, None] * y[:, :2, None]).sum(1)]


def normalized(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    """The largest of the terms is read by the terms of a sum, whose result others weigh."""
    made = stack(fd, [x, y, fd.ops.neg(x)], 3)
    e = fd.ops.exp(fd.ops.sub(made, fd.ops.max(made, [3], keepdim=True)))
    share = fd.ops.div(e, fd.ops.sum(e, [3], keepdim=True))
    return [fd.ops.sum(fd.ops.mul(share, made), [3])]


def _normalized(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    made = torch.stack([x, y, -x], 3)
    return [(made.softmax(3) * made).sum(3)]


def over_rows(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    """Axes beside that of the stack are folded, too."""
    made = stack(fd, [x, y, fd.ops.mul(x, y)], 0)
    return [fd.ops.sum(fd.ops.cos(made), [0, 3]), fd.ops.max(fd.ops.mul(made, made), [0, 1, 2, 3])]


def _over_rows(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    made = torch.stack([x, y, x * y])
    return [made.cos().sum((0, 3)), made.square().amax()]


def extrema(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    made = stack(fd, neighbours(fd, x, s), 0)
    return [fd.ops.max(made, [0]), fd.ops.min(made, [0]), fd.ops.prod(fd.ops.add(made, 0.5), [0])]


def _extrema(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    made = torch.stack(shifted(x))
    return [made.amax(0), made.amin(0), (made + 0.5).prod(0)]


def with_more_axes(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    """Axes that are added and dropped between stack and fold; a value that is repeated along the axis of the stack."""
    made = fd.ops.broadcast(stack(fd, [x, y], 2), [True, False, False, False, False])
    repeated = fd.ops.expand(fd.ops.broadcast(x, [False, False, True, False]), [s[0], s[1], 2, s[2]])
    dropped = fd.ops.squeeze(fd.ops.mul(made, 3.0), [0])
    return [fd.ops.sum(fd.ops.mul(dropped, repeated), [2])]


def _with_more_axes(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [(3 * torch.stack([x, y], 2) * x[:, :, None]).sum(2)]


CASES: dict[Callable[..., Any], Callable[..., list[torch.Tensor]]] = {
    compared: _compared, weighed: _weighed, normalized: _normalized, over_rows: _over_rows, extrema: _extrema, with_more_axes: _with_more_axes,
}  # fmt: skip


def defined(define: Callable[..., Any], sizes: Sizes) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(list(sizes), contiguity=True) for _ in range(2))
        for out in define(fd, x, y, sizes):
            fd.add_output(out)
    return fd


def folded_axes(fd: FusionDefinition) -> list[int]:
    """Return of each fold of the normal form how many axes it folds."""
    results = [e.tensor_outputs[0] for e in normalize(fd.fusion).tensor_exprs() if isinstance(e, ReductionOp)]
    return sorted(sum(a.is_reduction() for a in t.get_logical_domain()) for t in results)


@pytest.mark.parametrize("sizes", [(2, 3, 40), (3, 7, 129), (1, 2, 5), (4, 2, 1), (2, 0, 8), (2, 5, 0)], ids=str)
@pytest.mark.parametrize("define", CASES, ids=lambda define: define.__name__)
def test_values_are_right(define: Callable[..., Any], sizes: Sizes) -> None:
    if define is over_rows and not sizes[1] * sizes[2] or define is weighed and sizes[1] < 2:
        pytest.skip("torch has no largest of no elements, or a row of the second operand is missing")
    x, y = (torch.randn(sizes, generator=torch.Generator().manual_seed(n + sum(sizes))) for n in range(2))
    with poisoned_outputs(), options(check="races"):
        got = defined(define, sizes).execute([x, y])
    for mine, want in zip(got, CASES[define](x.double(), y.double()), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max()) if want.numel() else 1.0))


@pytest.mark.parametrize("define, left", [(d, [1, 3] if d is over_rows else []) for d in CASES], ids=[d.__name__ for d in CASES])
def test_no_fold_has_the_axis_of_the_stack(define: Callable[..., Any], left: list[int]) -> None:
    assert folded_axes(defined(define, (2, 3, 40))) == left


def test_a_nan_is_the_largest_and_the_smallest() -> None:
    x = torch.randn(2, 3, 40)
    x[1, 2, 7] = float("nan")
    with poisoned_outputs():
        got = defined(extrema, (2, 3, 40)).execute([x, x])
    for mine, want in zip(got, _extrema(x.double(), x.double()), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)


def stored_too(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    made = stack(fd, [x, y], 1)
    return [made, fd.ops.sum(made, [1])]


def stored_behind(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    """A softmax over the terms, of which each is a result."""
    made = stack(fd, [x, y], 1)
    e = fd.ops.exp(fd.ops.sub(made, fd.ops.max(made, [1], keepdim=True)))
    return [fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True))]


def of_parts(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    """A concatenation along an axis that its parts have."""
    return [fd.ops.sum(fd.ops.cat([x, y], dim=1), [1])]


def over_another_axis(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    return [fd.ops.sum(stack(fd, [x, y], 1), [3])]


def of_many(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    return [fd.ops.sum(stack(fd, [fd.ops.add(x, float(n)) for n in range(MOST_TERMS + 1)], 1), [1])]


def in_many_instructions(fd: FusionDefinition, x: Any, y: Any, s: Sizes) -> list[Any]:
    made = stack(fd, [fd.ops.add(x, float(n)) for n in range(MOST_TERMS)], 1)
    for _ in range(20):
        made = fd.ops.erf(fd.ops.exp(fd.ops.sin(made)))
    return [fd.ops.sum(made, [1])]


KEPT: dict[Callable[..., Any], int] = {stored_too: 1, stored_behind: 2, of_parts: 1, over_another_axis: 1, of_many: 1, in_many_instructions: 1}


@pytest.mark.parametrize("define", KEPT, ids=lambda define: define.__name__)
def test_folds_that_stay(define: Callable[..., Any]) -> None:
    assert len(folded_axes(defined(define, (2, 3, 40)))) == KEPT[define]
