"""Reshapes scheduled by hand: the splits and merges between root and logical domain lead the indices through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import FusionDefinition, KernelExecutor, ParallelType


def scheduled(shape: tuple[int, ...], build: Callable[[Any, Any], Any], schedule: Callable[[Any, Any, Any], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(shape), contiguity=True)
        out = build(fd.ops, x)
        fd.add_output(out)
        schedule(fd, x, out)
    return fd


def run(fd: FusionDefinition, x: torch.Tensor) -> torch.Tensor:
    executor = KernelExecutor()
    executor.compile(fd.fusion, [x])
    (out,) = executor.run([x])
    return out


def flat(fd: Any, x: Any, out: Any) -> None:
    """One element per thread of the output's flattened axes."""
    while len(out.get_loop_domain()) > 1:
        out.merge(0, 1)
    out.split(0, 8)
    out.axis(0).parallelize(ParallelType.grid_x)
    out.axis(1).parallelize(ParallelType.block_x)
    fd.sched.transform_like(out)
    fd.sched.parallelize_like(out)
    fd.sched.inline_most()


CASES = {
    "regrouped": ((4, 6), [8, 3]),
    "merged": ((4, 6), [24]),
    "split": ((24,), [2, 3, 4]),
    "with ones": ((4, 1, 6), [1, 12, 2]),
    "odd": ((3, 7), [7, 3]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reshape_is_read_through(name: str) -> None:
    shape, new = CASES[name]
    fd = scheduled(shape, lambda o, x: o.exp(o.reshape(o.relu(x), new)), flat)
    x = torch.randn(shape)
    torch.testing.assert_close(run(fd, x), x.relu().reshape(new).exp())


def test_a_reshape_is_an_output() -> None:
    fd = scheduled((4, 6), lambda o, x: o.reshape(o.exp(x), [2, 12]), flat)
    x = torch.randn(4, 6)
    torch.testing.assert_close(run(fd, x), x.exp().reshape(2, 12))


def test_a_reduction_over_merged_axes() -> None:
    def schedule(fd: Any, x: Any, out: Any) -> None:
        out.split(1, 8)
        out.axis(0).parallelize(ParallelType.grid_x)
        out.axis(2).parallelize(ParallelType.block_x)
        fd.sched.transform_like(out)
        fd.sched.parallelize_like(out)
        fd.sched.inline_most()

    fd = scheduled((5, 4, 6), lambda o, x: o.sum(o.reshape(x, [5, 24]), [1]), schedule)
    x = torch.randn(5, 4, 6)
    torch.testing.assert_close(run(fd, x), x.sum((1, 2)))
