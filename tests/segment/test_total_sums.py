"""Sums of all elements of normalized rows: a sum of each row in the kernel that normalizes it, then one over rows. Compared with torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.check.records import programs

Define = Callable[[FusionDefinition, Any, Any], Any]


def distillation(fd: FusionDefinition, x: Any, y: Any) -> Any:
    """KL divergence of two rows of logits, summed over everything."""
    p = fd.ops.softmax(y, -1)
    return fd.ops.sum(fd.ops.mul(p, fd.ops.sub(fd.ops.log_softmax(y, -1), fd.ops.log_softmax(x, -1))), [0, 1])


def norm_error(fd: FusionDefinition, x: Any, y: Any) -> Any:
    variance, mean = fd.ops.var_mean(x, [1], correction=0, keepdim=True)
    far = fd.ops.sub(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))), y)
    return fd.ops.sum(fd.ops.mul(far, far), [0, 1])


CASES: list[tuple[Define, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = [
    (distillation, lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="sum")),
    (norm_error, lambda x, y: (F.layer_norm(x, x.shape[1:]) - y).square().sum()),
]


def defined(define: Define) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y = (fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float) for _ in range(2))
        fd.add_output(define(fd, x, y))
    return fd


@pytest.mark.parametrize("define, wanted", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(64, 1000), (37, 2049), (1, 300), (300, 1), (513, 8)], ids=str)
def test_inputs_are_read_once(define: Define, wanted: Callable, shape: tuple[int, int]) -> None:
    x, y = (torch.randn(shape).bfloat16() for _ in range(2))
    fd = defined(define)
    with poisoned_outputs():
        (made,) = fd.execute([x, y])
    want = wanted(x.double(), y.double())
    assert abs(made.double() - want) <= 1e-4 * max(1.0, abs(want))


@pytest.mark.parametrize("define", [define for define, _ in CASES], ids=lambda f: f.__name__)
def test_rows_are_summed_where_they_are_normalized(define: Define) -> None:
    first, second = programs(defined(define), [(2048, 4096)] * 2)
    assert (first.scheduler, second.scheduler) == ("inner_persistent", "reduction")


def test_a_plain_total_is_one_reduction() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, x), [0, 1]))
    assert [made.scheduler for made in programs(fd, [(2048, 4096)])] == ["reduction"]
