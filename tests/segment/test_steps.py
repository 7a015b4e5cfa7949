"""Definitions that no kernel takes whole: cut into several, with the numbers of the definition, whatever lies between the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.arch import H200
from weft.reference.interpreter import evaluate
from weft.runtime.steps import PlanTable


def define(build: Callable[[FusionDefinition], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        build(fd)
    return fd


def matrix(fd: FusionDefinition, **keywords: Any) -> Any:
    return fd.define_tensor(shape=[-1, -1], contiguity=True, **keywords)


def rows_and_columns(fd: FusionDefinition) -> None:
    """A normalization by rows and one by columns, whose middle is an output too."""
    x = matrix(fd)
    centered = fd.ops.sub(x, fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True]))
    scaled = fd.ops.mul(centered, fd.ops.broadcast(fd.ops.max(centered, [0]), [True, False]))
    fd.add_output(centered)
    fd.add_output(scaled)


def check(fd: FusionDefinition, *inputs: Any, calls: int = 2) -> None:
    """The results of several calls are those of the interpreter in float64."""
    expected = evaluate(fd.fusion, [i.clone() if isinstance(i, torch.Tensor) else i for i in inputs])
    for _ in range(calls):
        for given, wanted in zip(fd.execute(inputs), expected, strict=True):
            torch.testing.assert_close(given.to(wanted.dtype), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (1, 65), (40, 1), (0, 5), (5, 0)])
def test_rows_and_columns(shape: tuple[int, int]) -> None:
    fd = define(rows_and_columns)
    x = torch.randn(shape)
    if 0 in shape:
        (a, b) = fd.execute([x])
        assert a.shape == b.shape == shape
        return
    check(fd, x)
    assert len(fd.fec.kernel_runtimes) >= 2 or shape == (40, 1)  # rows of one element are not reduced


def test_a_sum_of_squared_sums_is_two_kernels() -> None:
    def build(fd: FusionDefinition) -> None:
        of_columns = fd.ops.sum(matrix(fd), [0])
        fd.add_output(fd.ops.sum(fd.ops.mul(of_columns, of_columns), [0]))

    fd = define(build)
    check(fd, torch.randn(20, 30))
    assert len(fd.fec.kernel_runtimes) == 2


def test_readers_of_a_segment_set_run_in_another_kernel() -> None:
    def build(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.exp(fd.ops.segment_set(fd.ops.relu(matrix(fd)))))

    fd = define(build)
    check(fd, torch.randn(20, 30))
    assert len(fd.fec.kernel_runtimes) == 2


def test_every_size_after_the_first_finds_its_steps() -> None:
    fd = define(rows_and_columns)
    for rows in (3, 40, 1, 17):
        check(fd, torch.randn(rows, 33), calls=1)


def test_scalars_and_strides_reach_later_kernels() -> None:
    def build(fd: FusionDefinition) -> None:
        x, y = fd.define_tensor(shape=[-1, -1], contiguity=False), fd.define_tensor(shape=[-1, -1], contiguity=False)
        s, c = fd.define_scalar(DataType.Double), fd.define_tensor(shape=[], dtype=DataType.Float, is_cpu=True)
        sums = fd.ops.sum(fd.ops.mul(x, s), [0])
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.add(y, fd.ops.broadcast(sums, [True, False])), c), [1]))

    fd = define(build)
    for s, c in ((2.0, 3.0), (-1.5, 0.25)):
        x, y = torch.randn(40, 60)[::2, ::3], torch.randn(20, 20).t()
        check(fd, x, y, s, torch.tensor(c))


def test_an_input_is_written_after_all_have_read_it() -> None:
    """The first kernel could write its output into x at once, but another one reads x later."""

    def build(fd: FusionDefinition) -> None:
        x = matrix(fd)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        columns = fd.ops.sum(fd.ops.segment_set(y), [0])
        fd.add_output(fd.ops.add(x, fd.ops.broadcast(columns, [True, False])))

    x = torch.randn(30, 50)
    old = x.clone()
    (result,) = define(build).execute([x])
    torch.testing.assert_close(x, old + 1)
    torch.testing.assert_close(result, old + (old + 1).sum(0), rtol=1e-4, atol=1e-4)


def test_random_numbers_do_not_depend_on_the_cut() -> None:
    def build(fd: FusionDefinition, *, cut: bool) -> None:
        x = matrix(fd)
        a = fd.ops.add(fd.ops.rand_like(x), x)
        b = fd.ops.add(fd.ops.randn_like(x), fd.ops.segment_set(a) if cut else a)
        fd.add_output(a)
        fd.add_output(b)

    results = []
    x = torch.randn(9, 31)
    for cut in (False, True):
        torch.manual_seed(7)
        results.append(define(lambda fd: build(fd, cut=cut)).execute([x]))
    for one, several in zip(*results, strict=True):
        assert torch.equal(one, several)


def test_equal_steps_share_a_kernel() -> None:
    def build(fd: FusionDefinition) -> None:
        x = matrix(fd)
        for _ in range(4):
            weight = fd.define_tensor(shape=[-1], contiguity=True)
            x = fd.ops.segment_set(fd.ops.relu(fd.ops.mul(x, fd.ops.broadcast(weight, [True, False]))))
        fd.add_output(x)

    fd = define(build)
    check(fd, torch.randn(6, 40), *[torch.randn(40) for _ in range(4)])
    assert len(fd.fec.kernel_runtimes) == 1


def test_a_plan_made_for_large_sizes_is_not_the_plan_of_small_ones() -> None:
    """Columns that stay on the chip are one kernel, whether or not a call before had columns that do not."""

    def build(fd: FusionDefinition) -> None:
        x = matrix(fd)
        variance, mean = fd.ops.var_mean(x, [0], 0, True)
        fd.add_output(fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(variance)))

    fusion = define(build).fusion
    rows, columns = (axis.sym for axis in fusion.inputs()[0].get_logical_domain())
    table = PlanTable(fusion)
    counts = [len(table.plan_for({rows: n, columns: 256}, H200).kernels) for n in (300_000, 64, 400_000, 128, 64)]
    assert counts == [2, 1, 2, 1, 1]
    assert len(table._plans[H200.name, "best"]) == 2
