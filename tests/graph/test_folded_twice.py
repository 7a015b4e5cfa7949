"""A reduction of a reduction is one in what torch's frontends define, if nothing else reads what lies between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import FusionDefinition, PythonProfiler
from weft.graph.normalize import normalize
from weft.ir.values import ReductionOp
from weft.options import options

Define = Callable[[Any, Any], list[Any]]


def repeated(ops: Any, x: Any) -> list[Any]:
    """The gradient of an axis that is repeated along two axes: each sum keeps an axis of one element, which is then dropped."""
    inner = ops.squeeze(ops.sum(x, [3], True), [3])
    return [ops.broadcast(ops.squeeze(ops.sum(ops.set(inner), [1], True), [1]), [False, True, False])]


CASES: dict[str, tuple[Define, Callable[[torch.Tensor], list[torch.Tensor]], int]] = {
    "repeated": (repeated, lambda x: [x.sum((1, 3))[:, None]], 1),
    "means": (lambda ops, x: [ops.mean(ops.mean(x, [3]), [2])], lambda x: [x.mean((2, 3))], 1),
    "scaled": (lambda ops, x: [ops.sum(ops.mul(0.5, ops.sum(x, [0])), [1])], lambda x: [0.5 * x.sum((0, 2))], 1),
    "three": (lambda ops, x: [ops.max(ops.max(ops.max(x, [3]), [0]), [0])], lambda x: [x.amax((0, 1, 3))], 1),
    "products": (lambda ops, x: [ops.prod(ops.prod(x, [3]), [0])], lambda x: [x.prod(3).prod(0)], 1),
    "of other kinds": (lambda ops, x: [ops.max(ops.sum(x, [3]), [0])], lambda x: [x.sum(3).amax(0)], 2),
    "read twice": (lambda ops, x: [ops.sum(a := ops.sum(x, [3]), [0]), a], lambda x: [x.sum((0, 3)), x.sum(3)], 2),
    "an axis of one element stays": (
        lambda ops, x: [ops.sum(ops.sum(x, [3], True), [0])], lambda x: [x.sum(3, keepdim=True).sum(0)], 2,
    ),
    "squares between": (lambda ops, x: [ops.sum(ops.mul(a := ops.sum(x, [3]), a), [0])], lambda x: [x.sum(3).square().sum(0)], 2),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 5, 4, 7), (1, 2, 3, 1), (2, 1, 33, 65), (2, 3, 0, 4)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, shape: tuple[int, ...]) -> None:
    define, wanted, count = CASES[name]
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 4, contiguity=True)
        for out in define(fd.ops, x):
            fd.add_output(out)
    fd.fusion.shares_results = False
    assert sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs()) == count
    given = torch.randn(shape)
    if name in ("three", "of other kinds", "means") and 0 in shape:
        pytest.skip("there is no maximum or mean of nothing")
    with poisoned_outputs(), options(check="races"):
        outs = fd.execute([given])
    for out, want in zip(outs, wanted(given.double()), strict=True):
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)


def test_a_view_between_is_seen_through() -> None:
    """As torch repeats rows and columns of an image."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4, 10, 6], contiguity=True)
        inner = fd.ops.sum(fd.ops.reshape(x, [3, 4, 10, 3, 2]), [4])
        fd.add_output(fd.ops.sum(fd.ops.reshape(inner, [3, 4, 5, 2, 3]), [3]))
    fd.fusion.shares_results = False
    assert sum(isinstance(e, ReductionOp) for e in normalize(fd.fusion).tensor_exprs()) == 1
    given = torch.randn(3, 4, 10, 6)
    with poisoned_outputs():
        (out,) = fd.execute([given])
    torch.testing.assert_close(out.double(), given.double().view(3, 4, 5, 2, 3, 2).sum((3, 5)), rtol=1e-5, atol=1e-5)
    assert len(fd.fec.kernel_runtimes) == 1


def test_by_hand_they_stay_two() -> None:
    """As nvFuser's profile counts them: segments that the user wrote."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [0]), [0]))
    given = torch.randn(4, 9)
    with PythonProfiler() as recorded:
        (out,) = fd.execute([given])
    assert recorded.profile.segments == 2 and len(recorded.profile.kernel_profiles) == 2
    torch.testing.assert_close(out.double(), given.double().sum(), rtol=1e-5, atol=1e-5)
