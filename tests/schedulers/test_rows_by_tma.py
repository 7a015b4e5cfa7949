"""Rows that come by TMA, a row per block: right, and of a size that the chip takes. Where they do unasked is tested in test_row_ways.py."""

from __future__ import annotations

import pytest
import torch

import weft.compiler as compiler
from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.options import options
from weft.schedulers.async_rows_heuristic import AsyncRowsParams


def normalization(dtype: DataType, inputs: int = 1, contiguity: bool = True, is_softmax: bool = False) -> FusionDefinition:
    """Layer norm without weights, or softmax, of the sum of `inputs` tensors."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor(shape=[-1, -1], contiguity=[contiguity, contiguity], dtype=dtype), DataType.Float)
        for _ in range(inputs - 1):
            x = fd.ops.add(x, fd.ops.cast(fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype), DataType.Float))
        if is_softmax:
            e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
            out = fd.ops.div(e, fd.ops.sum(e, dims=[1], keepdim=True))
        else:
            var, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
            out = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, fd.define_scalar(1e-5))))
        fd.add_output(fd.ops.cast(out, dtype))
    return fd


@pytest.mark.parametrize("columns", [16388, 20000, 32768])
def test_the_result_is_right(columns):
    x = torch.randn(133, columns, dtype=torch.float64)
    fd = normalization(DataType.Float)
    with options(rows="tma"):
        (out,) = fd.execute([x.float()])
    assert isinstance(fd.fec.kernel_runtimes[-1].proposal.params, AsyncRowsParams)
    torch.testing.assert_close(out.double(), torch.nn.functional.layer_norm(x, (columns,)), rtol=1e-5, atol=1e-5)


def test_blocks_fit_the_chip_with_the_registers_that_the_compiler_may_use():
    """A block of 800 threads with 80 registers each does not: registers come in steps, to warps in fours."""
    fd = normalization(DataType.Float)
    tensor = fd.fusion.inputs()[0]
    for columns in range(16388, 32769, 148):
        env = {axis.sym: n for axis, n in zip(tensor.get_logical_domain(), (4096, columns))}
        params = compiler.propose(fd.fusion, env, {}, H200, way="tma").params
        assert isinstance(params, AsyncRowsParams) and params.max_registers is not None
        assert H200.threads_per_sm_for(params.max_registers) >= params.bdimx, (columns, params)
