"""Running folds along rows that are also reduced: an op of a pass of the kernel that keeps the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from channel_cases import with_params
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16, torch.float64: DataType.Double}
Define = Callable[[Any, Any, Any], list[Any]]
"""(ops, x, y) -> results. Both of [rows, row], wide."""


def reversed_(ops: Any, x: Any) -> Any:
    size = x.size(1)
    return ops.index_select(x, ops.iota(size, ops.sub(size, 1), -1), 1)


def behind(ops: Any, x: Any, y: Any) -> list[Any]:
    """The scan is in the last pass, which waits for a sum of the row."""
    return [ops.mul(ops.cumsum(ops.sub(x, ops.mean(x, [1], True)), 1), y)]


def before(ops: Any, x: Any, y: Any) -> list[Any]:
    """Mean and squares of running sums: the row that is kept is that of the sums."""
    g = ops.cumsum(ops.mul(x, y), 1)
    d = ops.sub(g, ops.mean(g, [1], True))
    return [ops.div(d, ops.sqrt(ops.add(ops.mean(ops.mul(d, d), [1], True), 1.0))), g]


def from_the_end(ops: Any, x: Any, y: Any) -> list[Any]:
    g = reversed_(ops, ops.cumsum(reversed_(ops, ops.mul(x, y)), 1))
    return [ops.sub(g, ops.max(g, [1], True)), ops.sum(g, [1])]


def several(ops: Any, x: Any, y: Any) -> list[Any]:
    """A scan of what was normalized by a scan, and one of another kind beside it."""
    first = ops.cumsum(x, 1)
    second = ops.cumsum(ops.sub(first, ops.mean(first, [1], True)), 1)
    return [ops.add(second, ops.cummax(y, 1))]


def a_softmax(ops: Any, x: Any, y: Any) -> list[Any]:
    e = ops.exp(ops.sub(x, ops.max(x, [1], True)))
    return [ops.cumsum(ops.div(e, ops.sum(e, [1], True)), 1)]


def places(ops: Any, x: Any, y: Any) -> list[Any]:
    """Where the running maximum of a centered row was."""
    return list(ops.cummax_with_indices(ops.sub(x, ops.mean(x, [1], True)), 1))


def logs(ops: Any, x: Any, y: Any) -> list[Any]:
    total = ops.logcumsumexp(x, 1)
    return [ops.sub(total, ops.max(total, [1], True))]


def _before(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    g = (x * y).cumsum(1)
    d = g - g.mean(1, True)
    return [d / (d.square().mean(1, True) + 1).sqrt(), g]


def _from_the_end(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    g = (x * y).flip(1).cumsum(1).flip(1)
    return [g - g.amax(1, True), g.sum(1)]


def _several(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    first = x.cumsum(1)
    return [(first - first.mean(1, True)).cumsum(1) + y.cummax(1).values]


CASES: dict[str, tuple[Define, Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "behind": (behind, lambda x, y: [(x - x.mean(1, True)).cumsum(1) * y]), "before": (before, _before), "from the end": (from_the_end, _from_the_end),
    "several": (several, _several), "softmax": (a_softmax, lambda x, y: [x.softmax(1).cumsum(1)]),
    "places": (places, lambda x, y: [(x - x.mean(1, True)).cummax(1).values]), "logs": (logs, lambda x, y: [x.logcumsumexp(1) - x.logcumsumexp(1).amax(1, True)]),
}  # fmt: skip


def defined(name: str, dtype: torch.dtype) -> FusionDefinition:
    wide = DataType.Double if dtype is torch.float64 else DataType.Float
    with FusionDefinition() as fd:
        x, y = (fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=TYPES[dtype]), wide) for _ in range(2))
        for out in CASES[name][0](fd.ops, x, y):
            fd.add_output(out)
    return fd


def check(fd: FusionDefinition, name: str, dtype: torch.dtype, n: int, k: int) -> None:
    made = torch.Generator().manual_seed(n + k)
    x, y = (torch.randn(n, k, generator=made).to(dtype) for _ in range(2))
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute([x, y])
    want = CASES[name][1](x.double(), y.double())
    if name == "places":
        centered = x.double() - x.double().mean(1, True)
        torch.testing.assert_close(centered.gather(1, outs[1]), want[0], rtol=1e-5, atol=1e-5)
        outs = outs[:1]
    for out, wanted in zip(outs, want, strict=True):
        torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4 * max(1.0, float(wanted.abs().max()) if wanted.numel() else 0.0))


def kernels_of(fd: FusionDefinition) -> list[str]:
    return [k.proposal.scheduler.value for k in fd.fec.kernel_runtimes]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("n", "k"), [(300, 1000), (70, 4099), (5, 33), (200, 2), (3, 7), (0, 9)])
@pytest.mark.parametrize("name", CASES)
def test_rows_in_one_kernel(name: str, n: int, k: int) -> None:
    fd = defined(name, torch.float32)
    check(fd, name, torch.float32, n, k)
    if n:
        assert kernels_of(fd) == ["inner_persistent"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["behind", "before", "from the end"])
def test_other_types(name: str, dtype: torch.dtype) -> None:
    fd = defined(name, dtype)
    check(fd, name, dtype, 151, 1501)
    assert kernels_of(fd) == ["inner_persistent"]


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize(("storage", "name"), [
    ("shared", "behind"), ("shared", "before"), ("shared", "from the end"), ("shared", "several"), ("reread", "behind"), ("reread", "softmax"), ("shared", "softmax"),
])  # fmt: skip
def test_pieces_of_rows_in_shared_memory_and_read_again(storage: str, name: str, unroll: int) -> None:
    fd = with_params(defined(name, torch.float32), storage=storage, unroll=unroll, bdimx=64, project_to_inputs=name != "before" and name != "several" and name != "from the end")
    check(fd, name, torch.float32, 40, 1203)
    assert kernels_of(fd) == ["inner_persistent"]
    params = fd.fec.kernel_runtimes[0].proposal.params  # type: ignore[attr-defined]
    assert (params.storage, params.unroll) == (storage, unroll)


@pytest.mark.parametrize("name", ["behind", "before"])
def test_few_long_rows_are_shared_among_blocks(name: str) -> None:
    """And a row of one element has no running fold."""
    fd = defined(name, torch.float32)
    check(fd, name, torch.float32, 2, 70001)
    assert len(kernels_of(fd)) > 1 and "greedy" in kernels_of(fd)
    check(fd, name, torch.float32, 9, 1)


def test_folds_along_columns_and_in_both_directions_are_apart() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.cumsum(fd.ops.sub(x, fd.ops.mean(x, [1], True)), 0))
    x = torch.randn(90, 130)
    with poisoned_outputs():
        (out,) = fd.execute([x])
    torch.testing.assert_close(out.double(), (x.double() - x.double().mean(1, True)).cumsum(0), rtol=1e-4, atol=1e-4)
    assert len(kernels_of(fd)) == 2
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        d = fd.ops.sub(x, fd.ops.mean(x, [1], True))
        fd.add_output(fd.ops.add(fd.ops.cumsum(d, 1), reversed_(fd.ops, fd.ops.cumsum(reversed_(fd.ops, d), 1))))
    x = torch.randn(300, 1301)
    with poisoned_outputs():
        (out,) = fd.execute([x])
    d = x.double() - x.double().mean(1, True)
    torch.testing.assert_close(out.double(), d.cumsum(1) + d.flip(1).cumsum(1).flip(1), rtol=1e-4, atol=1e-3)
    assert len(kernels_of(fd)) > 1
