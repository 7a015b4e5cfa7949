"""Axes of one element that are dropped and added again stay, also where pointwise ops lie between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.ir.values import BroadcastOp, SqueezeOp

LAST = [False, True]
Define = Callable[[FusionDefinition, Any, Any, Any], list[Any]]


def rounded(fd: FusionDefinition, x: Any, m: Any, v: Any) -> list[Any]:
    """The mean of a group norm's backward: kept in float32 with axes of one element, used in bfloat16, rounded without them."""
    narrow = fd.ops.squeeze(fd.ops.cast(m, DataType.BFloat16), [1])
    return [fd.ops.sub(x, fd.ops.broadcast(fd.ops.cast(narrow, DataType.Float), LAST))]


def deviation(fd: FusionDefinition, x: Any, m: Any, v: Any) -> list[Any]:
    """Two squeezed tensors, one of them read twice, and one that never had the axis."""
    mean, squares = fd.ops.squeeze(m, [1]), fd.ops.squeeze(fd.ops.mul(m, m), [1])
    scale = fd.ops.rsqrt(fd.ops.add(fd.ops.add(squares, fd.ops.mul(mean, v)), 9.0))
    return [fd.ops.mul(x, fd.ops.broadcast(scale, LAST)), fd.ops.add(x, fd.ops.broadcast(fd.ops.abs(scale), LAST))]


def returned(fd: FusionDefinition, x: Any, m: Any, v: Any) -> list[Any]:
    """What lies between is a result, too."""
    between = fd.ops.exp(fd.ops.squeeze(m, [1]))
    return [fd.ops.mul(x, fd.ops.broadcast(between, LAST)), between]


def summed(fd: FusionDefinition, x: Any, m: Any, v: Any) -> list[Any]:
    """Sums both ways of what is computed from the squeezed tensor."""
    centered = fd.ops.sub(x, fd.ops.broadcast(fd.ops.neg(fd.ops.squeeze(m, [1])), LAST))
    return [fd.ops.sum(centered, [0]), centered]


def elsewhere(fd: FusionDefinition, x: Any, m: Any, v: Any) -> list[Any]:
    """Added at another place: [n] becomes a row, so nothing is folded."""
    row = fd.ops.broadcast(fd.ops.exp(fd.ops.squeeze(m, [1])), [True, False])
    return [fd.ops.add(fd.ops.broadcast(v, LAST), row)]


CASES: dict[str, tuple[Define, Callable[..., list[torch.Tensor]], int]] = {
    "rounded": (rounded, lambda x, m, v: [x - m.bfloat16().to(x.dtype)], 0),
    "deviation": (
        deviation,
        lambda x, m, v: [x * (m * m + m * v[:, None] + 9).rsqrt(), x + (m * m + m * v[:, None] + 9).rsqrt().abs()], 0,
    ),
    "returned": (returned, lambda x, m, v: [x * m.exp(), m.exp()[:, 0]], 1),
    "summed": (summed, lambda x, m, v: [(x + m).sum(0), x + m], 0),
    "elsewhere": (elsewhere, lambda x, m, v: [v[:, None] + m[:, 0].exp()], 1),
}  # fmt: skip
"""Name -> definition, torch's results, and how many squeezes are left."""


@pytest.mark.parametrize("shape", [(37, 45), (1, 9), (9, 1), (0, 5), (64, 1031)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_squeezes(name: str, shape: tuple[int, int]) -> None:
    define, wanted, left = CASES[name]
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        m = fd.define_tensor([-1, 1], contiguity=[True, None])
        v = fd.define_tensor([-1], contiguity=True)
        for out in define(fd, x, m, v):
            fd.add_output(out)
    folded = normalize(fd.fusion).tensor_exprs()
    assert sum(isinstance(e, SqueezeOp) for e in folded) == left
    given = [torch.randn(shape), torch.randn(shape[0], 1), torch.rand(shape[0])]
    with poisoned_outputs():
        outs = fd.execute(given)
    m = given[1] if name == "rounded" else given[1].double()
    for out, want in zip(outs, wanted(given[0].double(), m, given[2].double()), strict=True):
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


def test_an_expanded_axis_is_dropped_as_written() -> None:
    with FusionDefinition() as fd:
        x, m = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, 1], contiguity=[True, None])
        wide = fd.ops.expand(m, [m.size(0), 3])
        between = fd.ops.exp(fd.ops.squeeze(wide, [1], squeeze_expanded=True))
        fd.add_output(fd.ops.mul(x, fd.ops.broadcast(between, LAST)))
    assert any(isinstance(e, BroadcastOp) for e in normalize(fd.fusion).tensor_exprs())
    given = [torch.randn(6, 5), torch.randn(6, 1)]
    torch.testing.assert_close(fd.execute(given)[0].double(), given[0].double() * given[1].double().exp())
