"""What a launch may be: exactly at each limit of the chip it is allowed, and one beyond it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition, KernelExecutor, LaunchParams, ParallelType, compiler
from weft.arch import MAX_BLOCK_Z, MAX_GRID, arch_by_name
from weft.errors import UserError
from weft.expr import const
from weft.ir.values import TensorView
from weft.lower.program import HostCheck, KernelProgram
from weft.runtime.limits import BlockTooSmall, GridTooLarge, NotDivisible, TooManyThreads, TooMuchShared, WrongAssumption, check_limits

H200 = arch_by_name("H200")
PLAN: dict[str, Any] = {"grid": (1, 1, 1), "block": (32, 1, 1), "shared_bytes": 0}


@pytest.fixture(scope="module")
def program() -> KernelProgram:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([8], contiguity=True, dtype=DataType.Float)))
    assert fd.fusion is not None and isinstance(fd.fusion.inputs()[0], TensorView)
    made = compiler.program_of_scheduled(fd.fusion, DataType.Int32, name="small")
    return replace(made, checks=(), block_limits=(), assumptions=())


AT_THE_LIMIT = [
    (dict(block=(H200.max_threads_per_block, 1, 1)), dict(block=(H200.max_threads_per_block + 32, 1, 1)), TooManyThreads),
    (dict(block=(8, 2, MAX_BLOCK_Z)), dict(block=(8, 1, MAX_BLOCK_Z + 1)), TooManyThreads),
    (dict(shared_bytes=H200.shared_per_block_optin_bytes), dict(shared_bytes=H200.shared_per_block_optin_bytes + 1), TooMuchShared),
    *((dict(grid=tuple(limit if k == axis else 1 for k in range(3))), dict(grid=tuple(limit + 1 if k == axis else 1 for k in range(3))), GridTooLarge)
      for axis, limit in enumerate(MAX_GRID)),
]  # fmt: skip


@pytest.mark.parametrize(("allowed", "beyond", "error"), AT_THE_LIMIT)
def test_a_launch_at_the_limit_is_allowed(allowed: dict[str, Any], beyond: dict[str, Any], error: type[UserError], program: KernelProgram) -> None:
    check_limits(program, {}, PLAN | allowed, H200)
    with pytest.raises(error):
        check_limits(program, {}, PLAN | beyond, H200)


def test_what_a_kernel_was_made_for_is_checked_as_it_says(program: KernelProgram) -> None:
    fits = replace(program, checks=(HostCheck(const(12), 4, "size"),), block_limits=(("threadIdx.x", const(64), 64),), assumptions=((const(3), const(3)),))
    check_limits(fits, {}, PLAN, H200)
    with pytest.raises(NotDivisible):
        check_limits(replace(program, checks=(HostCheck(const(13), 4, "size"),)), {}, PLAN, H200)
    with pytest.raises(BlockTooSmall):
        check_limits(replace(program, block_limits=(("threadIdx.x", const(65), 64),)), {}, PLAN, H200)
    with pytest.raises(WrongAssumption):
        check_limits(replace(program, assumptions=((const(4), const(3)),)), {}, PLAN, H200)


def test_a_kernel_for_fewer_threads_than_the_sizes_want_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.sum(x, [1])
        fd.add_output(y)
        y.axis(0).parallelize(ParallelType.grid_x)
        y.axis(1).parallelize(ParallelType.block_x)
    executor = KernelExecutor()
    executor.compile(fd.fusion, [torch.ones(3, 50)], LaunchParams(bdimx=64))  # type: ignore[arg-type]
    assert executor.run([torch.ones(3, 64)])[0].tolist() == [64.0] * 3
    with pytest.raises(BlockTooSmall, match="was compiled for 64 threads along threadIdx.x; these sizes need"):
        executor.run([torch.ones(3, 65)])
