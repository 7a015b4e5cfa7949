"""KernelExecutor: fusions scheduled by hand, with the limits of the chip named before anything is launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from calls_on_cpu import assert_same, define, tensor

from weft import CompileParams, DataType, FusionDefinition, FusionGuard, KernelExecutor, LaunchParams, MemoryType, ParallelType
from weft.options import options
from weft.runtime.limits import Misaligned, NotDivisible, TooManyThreads, TooMuchShared
from weft.schedule.inline import inline_to

X = torch.randn(6, 32)


def flat(threads: int = 128, vector: int = 0) -> FusionDefinition:
    """relu over all elements in order: one per thread, or a vector of them through registers."""

    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        y = fd.ops.relu(x)
        fd.add_output(y)
        tensors = [y]
        if vector:
            tensors = [x.cache_after(), y.cache_before(), y]
        for t in tensors:
            t.merge(0, 1)
            if vector:
                t.split(0, vector)
            t.split(0, threads)
            t.axis(0).parallelize(ParallelType.grid_x)
            t.axis(1).parallelize(ParallelType.block_x)
        if vector:
            for t in (tensors[0], y):
                t.axis(2).parallelize(ParallelType.vectorize)
            fd.sched.inline_at(y, 2)

    return define(build)


def rows_by_threads() -> FusionDefinition:
    """A block per row, a thread per column."""

    def build(fd: FusionDefinition) -> None:
        y = fd.ops.relu(tensor(fd, 2))
        fd.add_output(y)
        y.axis(0).parallelize(ParallelType.grid_x)
        y.axis(1).parallelize(ParallelType.block_x)

    return define(build)


def compiled(fd: FusionDefinition, *arguments: Any, **keywords: Any) -> KernelExecutor:
    executor = KernelExecutor()
    executor.compile(fd.fusion, *arguments, **keywords)  # type: ignore[arg-type]
    return executor


def test_a_scheduled_fusion_runs_at_other_sizes_too() -> None:
    executor = compiled(flat(), [X])
    for shape in ((6, 32), (1, 1), (70, 130)):
        x = torch.randn(shape)
        assert_same(executor.run([x]), [x.relu()])
    assert len(executor.kernel_runtimes) == 1


def test_without_args_the_kernel_is_compiled_at_the_first_run() -> None:
    executor = KernelExecutor()
    assert not executor.is_compiled()
    with pytest.raises(RuntimeError, match="no fusion was compiled"):
        executor.run([X])
    executor.compile(flat().fusion)  # type: ignore[arg-type]
    assert executor.is_compiled() and executor.kernel_runtimes == ()
    assert_same(executor.run([X]), [X.relu()])
    assert executor.timings.nvrtc_s > 0


def test_the_index_type_can_be_chosen() -> None:
    executor = compiled(flat(), [X], compile_params=CompileParams(index_type=DataType.Int))
    assert_same(executor.run([X]), [X.relu()])
    assert [r.program.index_type for r in executor.kernel_runtimes] == [DataType.Int]


def test_the_register_limit_reaches_the_program() -> None:
    executor = compiled(flat(), [X], compile_params=CompileParams(maxrregcount=40))
    assert executor.kernel_runtimes[0].program.max_registers == 40


def test_too_many_threads_are_refused_with_the_axis_and_the_limit() -> None:
    executor = compiled(rows_by_threads(), [X])
    with pytest.raises(TooManyThreads, match=r"wants 3000 threads per block \(threadIdx\.x: T0\.size\[1\] = 3000\); H100 allows 1024"):
        executor.run([torch.randn(2, 3000)])
    with pytest.raises(RuntimeError, match="3000 threads"):
        compiled(rows_by_threads(), [torch.randn(2, 3000)])
    assert_same(executor.run([X]), [X.relu()])


def test_the_limit_of_threads_along_z_is_told() -> None:
    def build(fd: FusionDefinition) -> None:
        y = fd.ops.relu(tensor(fd, 1))
        fd.add_output(y)
        y.axis(0).parallelize(ParallelType.block_z)

    executor = compiled(define(build))
    with pytest.raises(TooManyThreads, match=r"100 threads per block \(threadIdx\.z: .* = 100\); H100 allows 1024, and 64 along threadIdx\.z"):
        executor.run([torch.randn(100)])


def test_too_much_shared_memory_is_refused() -> None:
    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 2)
        y = fd.ops.relu(x)
        fd.add_output(y)
        tile = x.cache_after()
        tile.set_memory_type(MemoryType.shared)
        for t in (tile, y):
            t.axis(0).parallelize(ParallelType.grid_x)
            t.split(1, 128)
            t.axis(2).parallelize(ParallelType.block_x)
        fd.sched.inline_at(y, 1)

    executor = compiled(define(build))
    assert_same(executor.run([torch.ones(2, 600)]), [torch.ones(2, 600)])
    with pytest.raises(TooMuchShared, match=r"wants \d+ bytes of shared memory per block \(.*T0\.size\[1\].*\); H100 allows 232448"):
        executor.run([torch.randn(2, 100_000)])


def test_a_vector_that_does_not_divide_the_size_is_refused() -> None:
    executor = compiled(flat(vector=4), [X])
    assert_same(executor.run([X]), [X.relu()])
    with pytest.raises(NotDivisible, match=r"vectorized axis .* is 35, which 4 does not divide"):
        executor.run([torch.randn(5, 7)])


def test_a_misaligned_tensor_is_refused() -> None:
    executor = compiled(flat(vector=4), [X])
    with pytest.raises(Misaligned, match="in vectors of 16 bytes, and its address is a multiple of 4 only"):
        executor.run([torch.randn(33)[1:].view(4, 8)])


def test_strides_of_an_axis_of_two_elements_must_fit_the_vectors() -> None:
    """Two rows are one step apart, and that step is enough to leave the vectors' alignment; the only row of one has no step."""

    def build(fd: FusionDefinition) -> None:
        x = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=DataType.Float)
        y = fd.ops.relu(x)
        fd.add_output(y)
        copy = x.cache_after()
        for t in (copy, y):
            t.axis(0).parallelize(ParallelType.grid_x)
            t.split(1, 4)
        copy.axis(-1).parallelize(ParallelType.vectorize)
        inline_to(fd.fusion, {copy: 2})

    wide = torch.randn(2, 9)
    executor = compiled(define(build), [torch.randn(2, 8)])
    with pytest.raises(Misaligned, match="the stride of dimension 0 is 9 elements"):
        executor.run([wide[:, :8]])
    assert_same(executor.run([wide[:1, :8]]), [wide[:1, :8].relu()])


def test_an_input_that_is_loaded_again_behind_the_store_into_it_is_not_updated_in_place() -> None:
    """One thread makes both loads of an element, so no race shows that the second would see what was stored."""

    def build(fd: FusionDefinition) -> None:
        x = tensor(fd, 1)
        updated, doubled = fd.ops.add(x, 1.0), fd.ops.mul(x, 2.0)
        fd.add_output(updated, x)
        fd.add_output(doubled)
        for t in (updated, doubled):
            t.split(0, 32)
            t.axis(0).parallelize(ParallelType.grid_x)
            t.axis(1).parallelize(ParallelType.block_x)

    x = torch.randn(100)
    before = x.clone()
    assert_same(compiled(define(build)).run([x]), [before * 2])
    assert_same([x], [before + 1])


def test_outputs_may_be_inputs_and_may_come_twice() -> None:
    """Neither is a result of the kernel: the results behind them still have their own memory, and are updated in place only where that is right."""

    def build(fd: FusionDefinition) -> None:
        z, x = tensor(fd, 1), tensor(fd, 1)
        opposite, updated, doubled = fd.ops.neg(z), fd.ops.add(x, 1.0), fd.ops.mul(x, 2.0)
        for value in (z, opposite, opposite, z):
            fd.add_output(value)
        fd.add_output(updated, x)
        fd.add_output(doubled)
        for t in (opposite, updated, doubled):
            t.split(0, 32)
            t.axis(0).parallelize(ParallelType.grid_x)
            t.axis(1).parallelize(ParallelType.block_x)

    x, z = torch.randn(100), torch.randn(100)
    before = x.clone()
    outputs = compiled(define(build)).run([z, x])
    assert_same(outputs, [z, -z, -z, z, before * 2])
    assert outputs[0] is z and outputs[3] is z
    assert_same([x], [before + 1])


def test_a_schedule_may_have_no_result_but_an_input() -> None:
    def build(fd: FusionDefinition) -> None:
        fd.add_output(tensor(fd, 2))

    assert compiled(define(build)).run([X])[0] is X


def test_launch_constraints_fix_the_block() -> None:
    def build(fd: FusionDefinition) -> None:
        total = fd.ops.sum(tensor(fd, 2), [1])
        fd.add_output(fd.ops.neg(total))
        for t in (total, fd.fusion.outputs()[0]):
            t.axis(0).parallelize(ParallelType.grid_x)
        total.axis(1).parallelize(ParallelType.block_x)

    fd = define(build)
    executor = compiled(fd, [X], LaunchParams(bdimx=64))
    assert_same(executor.run([X]), [-X.sum(1)])
    (prepared,) = executor._current._prepared.values()  # type: ignore[union-attr]
    assert prepared.plans[0].block == (64, 1, 1)
    assert_same(executor.run([X], LaunchParams(bdimx=32)), [-X.sum(1)])


@pytest.mark.parametrize("unused", ["bdimy", "bdimz", "gdimx", "gdimy"])
def test_launch_constraints_along_what_no_axis_is_bound_to_change_nothing(unused: str) -> None:
    """More threads than the kernel expects would each add their part once more."""

    def build(fd: FusionDefinition) -> None:
        total = fd.ops.sum(tensor(fd, 2), [0, 1])
        fd.add_output(total)
        total.axis(1).parallelize(ParallelType.block_x)

    constraints = LaunchParams(bdimx=32, **{unused: 4})
    executor = compiled(define(build), [X], constraints)
    assert_same(executor.run([X], constraints), [X.sum()])
    (prepared,) = executor._current._prepared.values()  # type: ignore[union-attr]
    assert (prepared.plans[0].grid, prepared.plans[0].block) == ((1, 1, 1), (32, 1, 1))


def test_an_empty_output_launches_nothing() -> None:
    executor = compiled(flat(), [X])
    (out,) = executor.run([torch.zeros(0, 8)])
    assert out.shape == (0, 8)


def test_wrong_inputs_are_refused_at_compile_and_at_run() -> None:
    with pytest.raises(RuntimeError, match="but got a tensor of dtype double"):
        compiled(flat(), [X.double()])
    with pytest.raises(RuntimeError, match="Expected 1 inputs"):
        compiled(flat(), [X]).run([X, X])


@pytest.mark.parametrize("setting, chip, wanted", [("on", "H200", True), ("off", "H200", False), ("on", "A100", False)])
def test_whether_a_kernel_may_start_early_is_told(setting: str, chip: str, wanted: bool) -> None:
    assert not KernelExecutor().is_programmatic_dependent_launch_enabled()
    with options(dependent_launch=setting, chip=chip):
        executor = compiled(flat(), [X])
        assert executor.is_programmatic_dependent_launch_enabled() == wanted
        assert_same(executor.run([X]), [X.relu()])
    assert not compiled(flat()).is_programmatic_dependent_launch_enabled(), "nothing is lowered for a device yet"


@pytest.mark.parametrize("build", [flat, rows_by_threads])
def test_manual_execute_runs_through_it(build: Callable[[], FusionDefinition]) -> None:
    fd = build()
    assert_same(fd.manual_execute([X]), [X.relu()])
    assert_same(fd.manual_execute([X * 2]), [(X * 2).relu()])
    assert [r.scheduler for r in fd.ke.kernel_runtimes] == ["user"]


@pytest.mark.parametrize("is_static", [False, True])
def test_a_cat_runs_in_the_loops_of_its_result(is_static: bool) -> None:
    """Without a schedule, and with copies around it and one loop over all elements, cut into blocks."""
    x, y = torch.randn(5, 7), torch.randn(5, 30)

    def defined() -> tuple[FusionDefinition, Any, Any]:
        with FusionDefinition() as fd:
            first, second = (fd.from_pytorch(t, static_sizes=is_static) for t in (x, y))
            joined = fd.ops.cat([first, second, first], 1)
            fd.add_output(joined)
        return fd, first, joined

    wanted = torch.cat([x, y, x], 1)
    fd, _, _ = defined()
    assert torch.equal(fd.manual_execute([x, y])[0], wanted)
    fd, first, joined = defined()
    with FusionGuard(fd.fusion):
        first.cache_after()
        joined.cache_before()
        joined.merge(0, 1)
        joined.split(0, 32)
        joined.axis(0).parallelize(ParallelType.grid_x)
        joined.axis(1).parallelize(ParallelType.block_x)
        fd.sched.transform_like(joined)
        fd.sched.parallelize_like(joined)
        fd.sched.inline_most()
    assert torch.equal(fd.manual_execute([x, y])[0], wanted)


@pytest.mark.parametrize(
    ("op", "make"),
    [
        ("cat", lambda o, t: o.cat([o.exp(t), t], 0)),
        ("slice", lambda o, t: o.slice(o.exp(t), [0, 1], [4, 4])),
        ("pad", lambda o, t: o.pad(o.exp(t), [1, 1])),
        ("reshape", lambda o, t: o.reshape(t, [24])),
        ("scatter", lambda o, t: o.scatter(t, o.cast(t, DataType.Int), 1.0, 0)),
    ],
)
def test_what_no_kernel_computes_is_told(op: str, make: Callable[[Any, Any], Any]) -> None:
    x = torch.zeros(4, 6)
    with FusionDefinition() as fd:
        fd.add_output(make(fd.ops, fd.from_pytorch(x)))
    with pytest.raises(RuntimeError, match="W783: KernelExecutor does not support the Fusion provided"):
        fd.manual_execute([x])
