"""Sums whose results are added or subtracted are one sum, if they read a tensor in common and wait for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.values import ReductionOp
from weft.options import options

Define = Callable[[Any, Any, Any, Any, list[int]], list[Any]]
Wanted = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, list[int]], list[torch.Tensor]]


def twice_used(ops: Any, x: Any, y: Any, g: Any, dims: list[int]) -> list[Any]:
    """The gradient of m in x * m + y * (1 - m), as torch writes it."""
    kept = [ops.sum(ops.mul(t, g), dims, True) for t in (x, y)]
    first, second = (ops.squeeze(t, dims) for t in kept)
    return [ops.add(ops.neg(ops.set(second)), first)]


def three(ops: Any, x: Any, y: Any, g: Any, dims: list[int]) -> list[Any]:
    a, b, c = (ops.sum(t, dims) for t in (ops.mul(x, g), g, ops.exp(g)))
    return [ops.sub(ops.add(a, b), c)]


def both_negative(ops: Any, x: Any, y: Any, g: Any, dims: list[int]) -> list[Any]:
    return [ops.sub(ops.neg(ops.sum(ops.mul(x, g), dims)), ops.sum(ops.mul(y, g), dims)), x]


CASES: dict[str, tuple[Define, Wanted, int]] = {
    "twice used": (twice_used, lambda x, y, g, dims: [((x - y) * g).sum(dims)], 1),
    "three": (three, lambda x, y, g, dims: [(x * g + g - g.exp()).sum(dims)], 1),
    "both negative": (both_negative, lambda x, y, g, dims: [-((x + y) * g).sum(dims), x], 1),
    "a result of its own": (
        lambda ops, x, y, g, dims: [ops.add(a := ops.sum(ops.mul(x, g), dims), ops.sum(g, dims)), a],
        lambda x, y, g, dims: [(x * g + g).sum(dims), (x * g).sum(dims)], 2,
    ),
    "nothing in common": (lambda ops, x, y, g, dims: [ops.add(ops.sum(x, dims), ops.sum(y, dims))], lambda x, y, g, dims: [(x + y).sum(dims)], 2),
    "the same": (lambda ops, x, y, g, dims: [ops.add(a := ops.sum(ops.exp(x), dims), a)], lambda x, y, g, dims: [2 * x.exp().sum(dims)], 1),
}  # fmt: skip


def defined(name: str, rank: int, dims: list[int]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y, g = (fd.define_tensor([-1] * rank, contiguity=True) for _ in range(3))
        for out in CASES[name][0](fd.ops, x, y, g, dims):
            fd.add_output(out)
    return fd


def sums_in(fd: FusionDefinition) -> int:
    return sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs())


@pytest.mark.parametrize(
    ("shape", "dims"), [((37, 45), [0]), ((37, 45), [1]), ((3, 5, 7), [0, 1]), ((2, 3, 41), [0, 2]), ((1, 9), [0]), ((9, 1), [1]), ((0, 4), [0])], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, shape: tuple[int, ...], dims: list[int]) -> None:
    fd = defined(name, len(shape), dims)
    assert sums_in(fd) == CASES[name][2]
    given = [torch.randn(shape) for _ in range(3)]
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute(given)
    for out, want in zip(outs, CASES[name][1](*(t.double() for t in given), dims), strict=True):
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


def test_sums_over_other_axes_stay() -> None:
    with FusionDefinition() as fd:
        x, g = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        rows, columns = fd.ops.sum(fd.ops.mul(x, g), [1], True), fd.ops.sum(g, [0], True)
        fd.add_output(fd.ops.add(rows, columns))
    assert sums_in(fd) == 2
    x, g = torch.randn(7, 7), torch.randn(7, 7)
    torch.testing.assert_close(fd.execute([x, g])[0], (x * g).sum(1, keepdim=True) + g.sum(0, keepdim=True))


def test_what_waits_for_a_reduction_stays() -> None:
    """The gradient of a weight that two norms share: the second sum is complete only after the first norm's statistics."""
    with FusionDefinition() as fd:
        x, g = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        normed = fd.ops.mul(x, fd.ops.rsqrt(fd.ops.mean(fd.ops.mul(x, x), [1], True)))
        fd.add_output(fd.ops.add(fd.ops.sum(fd.ops.mul(normed, g), [0]), fd.ops.sum(g, [0])))
    assert sums_in(fd) == 3
