"""What lies before and after a running fold is computed in its kernel, where a scheduler takes it: casts, arithmetic, lookups, reductions of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}
SHAPES = [(5, 40), (3, 4099), (1, 9), (9, 1), (0, 4), (33, 513)]


def flipped(fd: FusionDefinition, x: Any, n: int) -> Any:
    places = fd.ops.iota(
        fd.define_scalar(n, dtype=DataType.Int), fd.define_scalar(n - 1, dtype=DataType.Int), fd.define_scalar(-1, dtype=DataType.Int), DataType.Int
    )
    return fd.ops.index_select(x, places, 1)


def of_shares(fd: FusionDefinition, x: Any, n: int) -> Any:
    """Running sums of a softmax."""
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    return fd.ops.cumsum(fd.ops.div(e, fd.ops.sum(e, [1], True)), 1)


def from_the_end(fd: FusionDefinition, x: Any, n: int) -> Any:
    """The gradient of running sums."""
    return flipped(fd, fd.ops.cumsum(flipped(fd, x, n), 1), n)


def between(fd: FusionDefinition, x: Any, n: int) -> Any:
    """Arithmetic on both sides, and a mean of what comes out."""
    scanned = fd.ops.mul(fd.ops.exp(fd.ops.cumsum(fd.ops.mul(fd.ops.sin(x), 0.25), 1)), 2.0)
    return fd.ops.sub(scanned, fd.ops.mean(scanned, [1], True))


CASES: dict[str, tuple[Callable[[FusionDefinition, Any, int], Any], Callable[[torch.Tensor], torch.Tensor], set[str], int]] = {
    "of shares": (of_shares, lambda x: x.softmax(1).cumsum(1), {"inner_persistent"}, 1),
    "from the end": (from_the_end, lambda x: x.flip(1).cumsum(1).flip(1), {"greedy", "pointwise"}, 2),
    "between": (between, lambda x: (s := 2 * (x.sin() * 0.25).cumsum(1).exp()) - s.mean(1, keepdim=True), {"inner_persistent"}, 1),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_and_results(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    define, wanted, schedulers, count = CASES[name]
    if name == "between" and 0 in shape:
        pytest.skip("a mean of nothing")
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=TYPES[dtype])
        fd.add_output(fd.ops.cast(define(fd, fd.ops.cast(x, DataType.Float), shape[1]), TYPES[dtype]))
    given = torch.randn(shape).to(dtype)
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute([given])
    want = wanted(given.double())
    scale = want.abs().max().item() if want.numel() else 1.0
    torch.testing.assert_close(out.double(), want, rtol=torch.finfo(dtype).eps * 2, atol=2e-5 * max(1.0, scale))
    if min(shape) > 1:
        assert {r.scheduler for r in fd.fec.kernel_runtimes} == schedulers and len(fd.fec.kernel_runtimes) == count
