"""Rules of Kernel IR: each finds the mistake that is planted behind a pass, and names the pass. That none cries without need, all other tests show."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from scheduled import Rows, flat, program

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.check import kernels
from weft.cli.demo import softmax
from weft.compiler import compile_program, program_of_scheduled, propose
from weft.expr import TRUE, add, const, less, mul, sub, substitute, var, variables
from weft.ir.enums import LoadStoreOpType, MemoryType, ParallelType, SchedulerType
from weft.lower import pipeline
from weft.lower.block_sync import insert_block_syncs
from weft.lower.branches import branch_selections
from weft.lower.circular import run_pipelines
from weft.lower.contracts import PassOutOfOrder, UnknownProperty, check_order, lowering_pass
from weft.lower.kernel_head import begin_kernel
from weft.lower.kernel_ir import Access, Allocate, Block, Branch, If, Kernel, Let, Loop, Nest, Op, Reduce, Statement, walk
from weft.lower.kernel_sync import InitBarrier, ReleaseStage, Sync, WaitCopies, WaitStage
from weft.lower.predicates import group_predicates
from weft.lower.shared_memory import place_shared_memory
from weft.lower.verify import BrokenKernel
from weft.options import options


# ---------------------------------------------------------------- kernels
def rows_in_shared_memory() -> None:
    program_of_scheduled(kernels.softmax_shared()[0], DataType.Int32, name="k")


def rows_in_registers() -> None:
    with FusionDefinition() as fd:
        softmax(fd)
    sizes = {axis.logical_extent: size for axis, size in zip(fd.fusion.inputs()[0].get_logical_domain(), (96, 2000))}
    compile_program(fd.fusion, propose(fd.fusion, sizes, {}, arch_by_name("H100")), DataType.Int32, name="k")


def shared_by_threads() -> None:
    """A copy through shared memory that threads read in another order than they write it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        y = fd.ops.neg(x)
        fd.add_output(y)
        s = x.cache_after()
        s.set_memory_type(MemoryType.shared)
        for tensor in (s, y):
            tensor.split(0, 128)
            tensor.axis(0).parallelize(ParallelType.grid_x)
        y.split(1, 32)
        y.reorder({1: 2, 2: 1})
        y.merge(1, 2)
        for tensor in (s, y):
            tensor.axis(1).parallelize(ParallelType.block_x)
    program(fd)


def tiles() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.permute(fd.ops.neg(x), [1, 0]))
    sizes = {axis.logical_extent: 2048 for axis in fd.fusion.inputs()[0].get_logical_domain()}
    proposal = propose(fd.fusion, sizes, {}, arch_by_name("H100"))
    assert proposal.scheduler is SchedulerType.transpose
    compile_program(fd.fusion, proposal, DataType.Int32, name="k")


def roles() -> None:
    program(Rows(own=True, registers=(40, 232), store=True).define(), (128,))


def parts() -> None:
    """Each vector computes what it selects by its position only."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([64, 512], contiguity=True) for _ in range(2))
        column = fd.ops.broadcast_in_dim(fd.ops.iota(x.size(1), dtype=DataType.Int), shape=x.shape(), broadcast_dims=[1])
        fd.add_output(fd.ops.where(fd.ops.lt(column, 256), fd.ops.exp(fd.ops.neg(x)), fd.ops.neg(fd.ops.exp(y))))
    compile_program(fd.fusion, propose(fd.fusion, {}, {}, arch_by_name("H100")), DataType.Int32, name="k")


def ring() -> None:
    program(flat(stages=3, prefetch=2))


def async_copies() -> None:
    program(flat(LoadStoreOpType.cp_async, vector=4, stages=3, prefetch=2))


# ---------------------------------------------------------------- mistakes
def each(kernel: Kernel, kind: type[Statement], is_it: Callable[..., bool] = lambda s: True) -> list[Statement]:
    found = [s for s in walk(kernel.body) if isinstance(s, kind) and is_it(s)]
    assert found, "the kernel has none to change"
    return found


def without(kernel: Kernel, kind: type[Statement], is_it: Callable[..., bool] = lambda s: True) -> None:
    """Take the first such statement out."""
    victim = each(kernel, kind, is_it)[0]

    def left(body: list[Statement]) -> list[Statement]:
        for s in body:
            if isinstance(s, Nest):
                s.body = left(s.body)
        return [s for s in body if s is not victim]

    kernel.body = left(kernel.body)


def is_register(s: Allocate) -> bool:
    return s.buffer.memory is MemoryType.local


def use_an_index_outside(kernel: Kernel) -> None:
    op = next(s for s in each(kernel, Op) if isinstance(s.operands[0], Access))
    op.operands[0] = Access(op.operands[0].buffer, add(op.operands[0].index, var("i999", extent=const(4))))


def lengthen_a_loop(kernel: Kernel) -> None:
    loop = next(s for s in each(kernel, Loop) if s.extent.is_const)
    loop.extent = add(loop.extent, 1)


def backwards(kernel: Kernel) -> None:
    """The loop reads its registers from the last one on."""
    (loop, op), *_ = (
        (loop, op) for loop in each(kernel, Loop, lambda s: s.extent.is_const) for op in walk(loop.body)
        if isinstance(op, Op) and isinstance(op.operands[0], Access) and op.operands[0].buffer.memory is MemoryType.local and loop.index in variables(op.operands[0].index)
    )  # fmt: skip
    op.operands[0] = Access(op.operands[0].buffer, substitute(op.operands[0].index, {loop.index: sub(sub(loop.extent, 1), loop.index)}))


def beyond_an_array(kernel: Kernel) -> None:
    op = next(s for s in each(kernel, Op) if isinstance(s.operands[0], Access) and s.operands[0].buffer.memory is MemoryType.local and s.vector_elems > 1)
    op.operands[0] = Access(op.operands[0].buffer, add(op.operands[0].index, op.operands[0].buffer.elems))


def drop_conditions(kernel: Kernel) -> None:
    for s in each(kernel, If):
        s.predicate = TRUE


def barrier_under_a_condition(kernel: Kernel) -> None:
    kernel.body.append(If(less(var("threadIdx.x", extent=const(256)), 7), [Sync("planted")]))


def reduction_under_a_condition(kernel: Kernel) -> None:
    reduce = each(kernel, Reduce)[0]

    def changed(body: list[Statement]) -> list[Statement]:
        for s in body:
            if isinstance(s, Nest):
                s.body = changed(s.body)
        return [If(less(var("threadIdx.x", extent=const(256)), 7), [s]) if s is reduce else s for s in body]

    kernel.body = changed(kernel.body)


def block_that_threads_differ_in(kernel: Kernel) -> None:
    each(kernel, Block)[0].condition = less(var("threadIdx.x", extent=const(256)), 7)


def later_phase(kernel: Kernel) -> None:
    wait = each(kernel, WaitStage)[0]
    wait.phase = add(wait.phase, 1)


def stages_twice_as_far(kernel: Kernel) -> None:
    let = each(kernel, Let, lambda s: str(s.variable).startswith("stage_"))[0]
    let.value = mul(let.value, 2)


def half_of_a_branch(kernel: Kernel) -> None:
    each(kernel, Branch)[0].branches[1].body = []


MISTAKES = {
    "an array is not declared": (rows_in_registers, begin_kernel, lambda k: without(k, Allocate, is_register), "is used before it is declared"),
    "an index of no loop": (rows_in_registers, begin_kernel, use_an_index_outside, "i999 is used where it is not defined"),
    "a loop longer than its index": (rows_in_registers, begin_kernel, lengthen_a_loop, "iterations, and its index stands for"),
    "an access behind an array": (rows_in_registers, begin_kernel, beyond_an_array, "is element"),
    "registers from the last one on": (rows_in_registers, begin_kernel, backwards, "by a negative multiple of a loop's index"),
    "bounds left out": (rows_in_shared_memory, begin_kernel, drop_conditions, "is element"),
    "a barrier left out": (shared_by_threads, insert_block_syncs, lambda k: without(k, Sync), "no barrier stands between"),
    "a barrier that some threads miss": (rows_in_registers, group_predicates, barrier_under_a_condition, "stands under the condition"),
    "a reduction that some threads miss": (rows_in_registers, group_predicates, reduction_under_a_condition, "stands under the condition"),
    "a part that nobody computes": (parts, branch_selections, half_of_a_branch, "only one block of the branch"),
    "a block that is not for all threads": (ring, run_pipelines, block_that_threads_differ_in, "is to be the same in all threads"),
    "a wait left out": (ring, run_pipelines, lambda k: without(k, WaitStage), "nothing waits for the load"),
    "a wait for cp.async left out": (async_copies, run_pipelines, lambda k: without(k, WaitCopies), "nothing waits for the load"),
    "a wait for the wrong phase": (ring, run_pipelines, later_phase, "waits for phase 1, and not for 0"),
    "a role waits for the wrong phase": (roles, run_pipelines, later_phase, "waits for phase 0, and not for -1"),
    "stages beyond the last": (roles, run_pipelines, stages_twice_as_far, "of stage"),
    "a stage without a number": (ring, run_pipelines, lambda k: without(k, Let), "stage_0 is used where it is not defined"),
    "a barrier that is not initialised": (roles, run_pipelines, lambda k: without(k, InitBarrier), "is initialised 0 times"),
    "a stage that nobody releases": (roles, run_pipelines, lambda k: without(k, ReleaseStage), "is waited for, and nobody arrives there"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str) -> None:
    make, behind, plant, reason = MISTAKES[name]

    @lowering_pass()
    def planted(kernel: Kernel, state: object) -> Kernel:
        plant(kernel)
        return kernel

    at = pipeline.PIPELINE.index(behind) + 1
    with options(verify=True), patch.object(pipeline, "PIPELINE", (*pipeline.PIPELINE[:at], planted, *pipeline.PIPELINE[at:])):
        with pytest.raises(BrokenKernel) as found:
            make()
    assert "after the pass planted" in str(found.value) and reason in str(found.value), found.value


@pytest.mark.parametrize("make", [rows_in_shared_memory, rows_in_registers, shared_by_threads, tiles, parts, roles, ring, async_copies])
def test_nothing_is_found_without_one(make: Callable[[], None]) -> None:
    with options(verify=True):
        make()


def test_passes_in_another_order_are_refused() -> None:
    with pytest.raises(PassOutOfOrder, match="needs pipelines, which no pass before it gives"):
        check_order(p for p in pipeline.PIPELINE if p is not run_pipelines)
    late = [p for p in pipeline.PIPELINE if p is not run_pipelines]
    with pytest.raises(PassOutOfOrder):
        check_order([*late[:5], place_shared_memory, run_pipelines, *late[5:]])


def test_a_misspelt_property_is_refused() -> None:
    @lowering_pass(before=["unroled"])
    def add_something(kernel: Kernel, state: object) -> Kernel:
        return kernel

    with pytest.raises(UnknownProperty, match="add_something must come before unroled, which no pass gives; given are .*unrolled"):
        check_order([*pipeline.PIPELINE, add_something])
