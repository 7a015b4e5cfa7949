"""Reductions of a few elements across memory, as of heads that share keys: a thread reduces its columns alone, without a barrier."""

from __future__ import annotations

import pytest
import torch
from channel_cases import with_params
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition, compiler
from weft.arch import H200
from weft.options import options

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}


def sums(dtype: torch.dtype) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 3, contiguity=True, dtype=TYPES[dtype])
        wide = fd.ops.cast(x, DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.sum(wide, [1]), TYPES[dtype]))
        fd.add_output(fd.ops.max(wide, [1]))
    return fd


def check(fd: FusionDefinition, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    with poisoned_outputs(), options(check="races"):
        total, largest = fd.execute([x])
    torch.testing.assert_close(total.double(), x.double().sum(1), rtol=torch.finfo(dtype).eps, atol=1e-5)
    assert torch.equal(largest, x.float().amax(1))


@pytest.mark.parametrize("shape", [(3, 4, 64), (5, 2, 1), (1, 8, 1024), (2, 31, 77), (7, 3, 4099), (1, 1, 9), (4, 5, 128)], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_as_chosen(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    check(sums(dtype), shape, dtype)


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize("shape", [(3, 4, 640), (2, 31, 72), (5, 3, 8)], ids=str)
def test_one_thread_for_each_column(shape: tuple[int, int, int], unroll: int) -> None:
    fd = with_params(sums(torch.bfloat16), kind="outer", vector_elems=8, unroll=unroll, bdimx=64, bdimy=1, grid_split=1, is_cluster=False)
    check(fd, shape, torch.bfloat16)
    text = fd.fec.kernel_runtimes[0].program.text
    assert "syncthreads" not in text and "weft::reduce" not in text


def test_heads_that_share_keys_are_added_without_a_barrier() -> None:
    """The gradient of 8 heads of keys that 32 heads read, 4 x 2048 x 128."""
    fd = sums(torch.bfloat16)
    sizes = dict(zip((a.sym for a in fd.fusion.inputs()[0].get_logical_domain()), (32, 4, 2048 * 128)))
    params = compiler.propose(fd.fusion, sizes, {}, H200).params
    assert params.kind == "outer" and params.bdimy == 1
