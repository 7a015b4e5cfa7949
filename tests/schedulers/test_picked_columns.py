"""Normalizations of columns whose first pass sums what is computed from positions alone: it reads nothing along the columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from channel_cases import with_params
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options

SHAPES = [(2, 5, 12), (2, 700, 15), (1, 64, 66), (3, 1, 16), (2, 33, 1), (4, 300, 49), (2, 40, 1031), (1, 5000, 9), (2, 6, 0), (0, 6, 8)]


def gradient(dtype: DataType = DataType.Float) -> FusionDefinition:
    """p - exp(x) * sum(p) of x [n, classes, pixels], t [n, pixels] (positions) and g [n, pixels], where p is g from class t on, else 0."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = ops.cast(fd.define_tensor([-1] * 3, contiguity=True, dtype=dtype), DataType.Float)
        t = ops.broadcast(fd.define_tensor([-1] * 2, contiguity=True, dtype=DataType.Int), [False, True, False])
        g = ops.broadcast(fd.define_tensor([-1] * 2, contiguity=True), [False, True, False])
        place = ops.iota(x.size(1), fd.define_scalar(0), fd.define_scalar(1), dtype=DataType.Int)
        picked = ops.where(ops.ge(ops.broadcast(place, [True, False, True]), t), g, 0.0)
        total = ops.broadcast(ops.sum(picked, [1]), [False, True, False])
        fd.add_output(ops.cast(ops.sub(picked, ops.mul(ops.exp(x), total)), dtype))
    return fd


def run(fd: FusionDefinition, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> None:
    n, classes, pixels = shape
    x, t, g = torch.randn(shape).to(dtype), torch.randint(0, classes, (n, pixels)), torch.randn(n, pixels)
    if t.numel():
        t[0, 0], t[-1, -1] = -100, classes  # all classes, none
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute([x, t, g])
    picked = torch.where(torch.arange(classes)[:, None] >= t[:, None], g[:, None].double(), 0.0)
    want = picked - x.double().exp() * picked.sum(1, keepdim=True)
    rounding = torch.finfo(dtype).eps * 4 + classes * 2**-24  # of the result, and of a sum in any order
    torch.testing.assert_close(out.double(), want, rtol=rounding, atol=classes * 1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16], ids=str)
def test_as_chosen(dtype: DataType, shape: tuple[int, int, int]) -> None:
    fd = gradient(dtype)
    run(fd, shape, torch.float32 if dtype is DataType.Float else torch.bfloat16)
    if 0 not in shape and shape[1] > 1 and shape[2] > 1:
        assert [r.scheduler for r in fd.fec.kernel_runtimes] == ["outer_persistent"]


FORCED: list[dict[str, Any]] = [
    {"storage": "reread", "vector_elems": 1, "bdimx": 8, "bdimy": 16, "batches": 0, "max_registers": 64},
    {"storage": "reread", "vector_elems": 1, "bdimx": 4, "bdimy": 8, "batches": 0, "cluster_blocks": 4, "max_registers": 64},
    {"storage": "register", "vector_elems": 1, "bdimx": 8, "bdimy": 16, "batches": 50, "max_registers": 128},
]  # fmt: skip


@pytest.mark.parametrize("fields", FORCED, ids=lambda fields: f"{fields['storage']} {fields.get('cluster_blocks', 1)}")
@pytest.mark.parametrize("shape", [(2, 700, 15), (1, 37, 66)], ids=str)
def test_forced(fields: dict[str, Any], shape: tuple[int, int, int]) -> None:
    run(with_params(gradient(), **fields), shape)
