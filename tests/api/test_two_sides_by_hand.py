"""Rows and columns reduced in one kernel that is scheduled by hand: one reference per side; an error names the axis that fits neither."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition, KernelExecutor, ParallelType, SchedulerType
from weft.errors import UserError


def rows_and_columns(fd: FusionDefinition) -> tuple:
    """y = x times the sums of x's rows, and the sums of y's columns."""
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
    total = fd.ops.sum(x, [1])
    spread = fd.ops.broadcast(total, [False, True])
    y = fd.ops.mul(x, spread)
    columns = fd.ops.sum(y, [0])
    fd.add_output(y)
    fd.add_output(columns)
    return total, spread, y, columns


def bind(*tensors) -> None:  # noqa: ANN002
    """A block for each row, a thread for each column."""
    for tensor in tensors:
        tensor.axis(0).parallelize(ParallelType.grid_x)
        tensor.axis(1).parallelize(ParallelType.block_x)


def check(fd: FusionDefinition) -> None:
    x = torch.randn(37, 136, generator=torch.Generator().manual_seed(0))
    executor = KernelExecutor()
    executor.compile(fd.fusion, [x])
    wanted = x.double() * x.double().sum(1, keepdim=True)
    for got, want in zip(executor.run([x]), [wanted, wanted.sum(0)], strict=True):
        assert float((got - want).abs().max() / want.abs().max()) < 64 * 2.0**-23


def test_one_reference_per_side():
    """Rows are reduced by the threads of a block, columns by the blocks."""
    with FusionDefinition() as fd:
        total, spread, y, columns = rows_and_columns(fd)
        bind(total, spread, y, columns)
        fd.sched.inline_most()
    check(fd)


def test_the_schedule_of_the_scheduler_by_its_name():
    with FusionDefinition() as fd:
        rows_and_columns(fd)
    x = torch.randn(37, 136)
    assert fd.sched.can_schedule(fd.fusion, SchedulerType.inner_outer_persistent, [x]) == (True, "")
    fd.sched.schedule(fd.fusion, SchedulerType.inner_outer_persistent, [x])
    check(fd)


def test_an_axis_that_fits_neither_side_is_named():
    with FusionDefinition() as fd:
        total, spread, y, columns = rows_and_columns(fd)
        bind(total, spread, columns)
        y.merge(0, 1)
        y.split(0, 48)
        y.axis(1).parallelize(ParallelType.block_x)
        with pytest.raises(UserError, match=r"since iS\d+\{\( ceilDiv\(\( i0 \* i1 \), 48\) \)\} corresponds to no loop axis of its consumer"):
            fd.sched.inline_at(y, 1)
    with pytest.raises(UserError, match=r"axis iblockIdx\.x\d+\{i0\} of T2_l_float\[.*\] is bound to blockIdx\.x, and its reader T3_g_float\[.*\] is not"):
        KernelExecutor().compile(fd.fusion, [torch.randn(37, 136)])
