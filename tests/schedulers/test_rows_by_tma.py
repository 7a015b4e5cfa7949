"""When rows come by TMA without being asked to: long rows of one input, on chips that have it."""

from __future__ import annotations

import pytest
import torch

import weft.compiler as compiler
from weft import DataType, FusionDefinition
from weft.arch import A100, H200
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


def comes_by_tma(fd: FusionDefinition, rows: int, columns: int, arch=H200, variant: str = "auto") -> bool:
    env = {}
    for tensor in fd.fusion.inputs():
        env |= {axis.sym: n for axis, n in zip(tensor.get_logical_domain(), (rows, columns))}
    return isinstance(compiler.propose(fd.fusion, env, {}, arch, variant=variant).params, AsyncRowsParams)


@pytest.mark.parametrize(
    ("fd", "columns", "expected"),
    [
        (normalization(DataType.Float), 16384, False),  # one block holds it in registers
        (normalization(DataType.Float), 16388, True),
        (normalization(DataType.Float), 16390, False),  # no multiple of 16 bytes
        (normalization(DataType.Float), 32768, True),
        (normalization(DataType.Float), 32772, False),
        (normalization(DataType.Float, inputs=2), 20000, False),
        (normalization(DataType.BFloat16), 65536, True),
        (normalization(DataType.BFloat16, is_softmax=True), 65536, False),
        (normalization(DataType.Float, is_softmax=True), 32768, True),
    ],
)
def test_which_rows_come_by_tma(fd, columns, expected):
    assert comes_by_tma(fd, 4096, columns) == expected


def test_not_where_it_is_missing_or_excluded():
    fd = normalization(DataType.Float)
    assert comes_by_tma(fd, 4096, 32768)
    assert not comes_by_tma(fd, 4096, 32768, arch=A100)
    assert not comes_by_tma(fd, 4096, 32768, variant="register")
    assert not comes_by_tma(fd, 8, 32768)  # so few rows leave chips idle that a cluster would use
    assert not comes_by_tma(normalization(DataType.Float, contiguity=False), 4096, 32768)


@pytest.mark.parametrize("columns", [16388, 20000, 32768])
def test_the_result_is_right(columns):
    x = torch.randn(133, columns, dtype=torch.float64)
    fd = normalization(DataType.Float)
    (out,) = fd.execute([x.float()])
    assert isinstance(fd.fec.kernel_runtimes[-1].proposal.params, AsyncRowsParams)
    torch.testing.assert_close(out.double(), torch.nn.functional.layer_norm(x, (columns,)), rtol=1e-5, atol=1e-5)


def test_blocks_fit_the_chip_with_the_registers_that_the_compiler_may_use():
    """A block of 800 threads with 80 registers each does not: registers come in steps, to warps in fours."""
    fd = normalization(DataType.Float)
    tensor = fd.fusion.inputs()[0]
    for columns in range(16388, 32769, 148):
        env = {axis.sym: n for axis, n in zip(tensor.get_logical_domain(), (4096, columns))}
        params = compiler.propose(fd.fusion, env, {}, H200).params
        assert isinstance(params, AsyncRowsParams) and params.max_registers is not None
        assert H200.threads_per_sm_for(params.max_registers) >= params.bdimx, (columns, params)
