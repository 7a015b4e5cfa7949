"""Tiles by tensor maps on a GPU: the cases of `test_tiles.py`, with maps that the driver encodes and addresses that change."""

from __future__ import annotations

import pytest
import torch
from test_tiles import BOXES, SHAPES, STORED, by_async_warp, ring, swizzled, tiled

from weft import DataType, FusionDefinition, KernelExecutor

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def check(fd: FusionDefinition, *inputs: torch.Tensor) -> None:
    """Run one kernel on several tensors; outputs lie where NaN was."""
    executor = KernelExecutor()
    executor.compile(fd.fusion, [inputs[0].cuda()])
    for x in inputs:
        given = x.cuda()
        torch.full_like(given, float("nan"))  # freed at once: the output takes its place
        (out,) = executor.run([given])
        torch.testing.assert_close(out, given + given, rtol=0, atol=0)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("rank", BOXES)
def test_tiles_of_every_rank(rank: int, store: bool) -> None:
    shape = (STORED if store else SHAPES)[rank]
    more = (shape[0] * 7, *shape[1:])
    check(tiled(rank, BOXES[rank], store=store), torch.randn(shape), torch.randn(more), torch.randn(shape))


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16], ids=["float", "bf16"])
def test_swizzles(swizzle: int, store: bool, dtype: DataType) -> None:
    x = torch.randn(1333, 4 * swizzle)
    check(swizzled(swizzle, dtype, store), x if dtype is DataType.Float else x.bfloat16())


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_rings_of_tiles(stages: int) -> None:
    check(ring(stages), torch.randn(16 * (2 * stages + 1) - 3, 48), torch.randn(3000, 48))


@pytest.mark.parametrize("swizzle", [0, 128])
def test_tiles_loaded_by_an_async_warp(swizzle: int) -> None:
    check(by_async_warp(swizzle), torch.randn(32 * 7 - 5, 64), torch.randn(2000, 64))


def test_rows_may_be_strided() -> None:
    fd = tiled(2, (8, 16), contiguity=[False, True])
    executor, x = KernelExecutor(), torch.randn(37, 64, device="cuda")[:, :52]
    executor.compile(fd.fusion, [x])
    (out,) = executor.run([x])
    torch.testing.assert_close(out, x + x, rtol=0, atol=0)
