"""How the threads of a block are folded: by shuffles within a warp, by whole warps, or through shared memory."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition, KernelExecutor, LaunchParams, ParallelType
from weft.compiler import program_of_scheduled
from weft.ir.enums import BLOCK_TYPES
from weft.schedulers.base import ScheduleResult

P = ParallelType


def sums(x: int, y: int, folded: str) -> FusionDefinition:
    """Sums over the axes bound to the threads named by `folded`, of [blocks, y, x]."""
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, y, x], contiguity=True)
        out = fd.ops.sum(t, [{"y": 1, "x": 2}[name] for name in folded])
        fd.add_output(out)
        for axis, kind in enumerate((P.grid_x, P.block_y, P.block_x)):
            out.axis(axis).parallelize(kind)
    return fd


FORMS = [
    (8, 4, "yx", "reduce_lanes<weft::Sum, 32>"), (4, 4, "yx", "reduce_tree"), (16, 2, "yx", "reduce_lanes<weft::Sum, 32>"), (32, 4, "yx", "reduce_rows"),
    (16, 4, "yx", "reduce_rows"), (12, 8, "yx", "reduce_rows"), (6, 5, "yx", "reduce_tree"), (8, 4, "x", "reduce_lanes<weft::Sum, 8>"), (32, 2, "x", "reduce_lanes<weft::Sum, 32>"),
    (64, 2, "x", "reduce_rows"), (12, 8, "x", "reduce_tree"), (32, 4, "y", "reduce_tree"), (48, 2, "x", "reduce_tree"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "y", "folded", "form"), FORMS)
def test_the_form_follows_from_the_block(x: int, y: int, folded: str, form: str) -> None:
    fd = sums(x, y, folded)
    block = ((BLOCK_TYPES[0], x), (BLOCK_TYPES[1], y))
    program = program_of_scheduled(fd.fusion, DataType.Int32, name="sums", result=ScheduleResult(block))  # type: ignore[arg-type]
    assert form in program.text, program.text
    executor, given = KernelExecutor(), torch.randn(3, y, x)
    executor.compile(fd.fusion, [given], LaunchParams(bdimx=x, bdimy=y))  # type: ignore[arg-type]
    (out,) = executor.run([given])
    torch.testing.assert_close(out.double(), given.double().sum([{"y": 1, "x": 2}[name] for name in folded]), rtol=1e-5, atol=1e-5)
