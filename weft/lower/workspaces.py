"""How each reduction across threads or blocks is carried out, the workspaces that this takes, and the rules for blocks that share one.

Owns the errors of reductions that blocks cannot share. Read first: `plan_reductions`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..dtypes import DataType
from ..errors import UserError
from ..expr import ONE, add, ceildiv, conjunction, conjuncts, equal, mod, mul, product, var
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType, ParallelType
from ..ir.values import TensorView
from .contracts import lowering_pass
from .kernel_ir import Access, Buffer, GroupFold, Kernel, Loop, Nest, Op, Reduce, Statement, WorkBuffer
from .reduction_form import reduction_form
from .state import BuildState

CLUSTER_HEADER_BYTES = 16
"""The mbarrier before the values that the blocks of a cluster exchange. See device/reduce.cuh."""


class MixedGridReductions(UserError):
    code = "W530"
    what = "{a} and {b} are both reduced across blocks, and {where} uses both"
    fix = "reduce across blocks in one of them only, or compute them in separate fusions"


class ReadOutsideLoop(UserError):
    code = "W531"
    what = "{tensor} is reduced across blocks inside the loop {loop}, and {reader} reads it after that loop, when another block may hold each result"
    fix = "inline the reduction's result (inline_most) so that it is used in the same loop, or bind the loop's axis to blocks or threads"


class SpreadOverBlocks(UserError):
    code = "W532"
    what = "{tensor} is reduced over {kind}, and the blocks of {kind} all need it: {reader} has its axis {axis} bound to {kind}"
    fix = "reduce within a block, or use the result in another kernel: only the last block has the result"


@lowering_pass(needs=["grid sync", "reductions"], gives=["workspaces"], before=["shared memory"])
def plan_reductions(kernel: Kernel, state: BuildState) -> Kernel:
    """Give every reduction across threads, and every fold over groups that meets in shared memory, its workspace; those across blocks theirs in global memory.

    Before: Reduce ops have no workspace.  After: `workspace`, `global_workspace`, `semaphores` and `last_flag` are set where needed, and writes of global
    memory that depend on a result which only the last block holds are predicated by that block's flag.
    Here because: later passes place the workspaces and must see them.
    """
    launch = state.launch
    threads = product(launch.get(p, ONE) for p in BLOCK_TYPES)
    for statement, loops in _with_loops(kernel.body):
        if isinstance(statement, GroupFold) and statement.lanes > statement.near:
            tensor = statement.outputs[0].buffer.tensor
            statement.workspace = Buffer(f"workspace_T{tensor.name}", tensor.dtype(), MemoryType.shared, ceildiv(threads, statement.near), tensor)
            kernel.workspaces.append(statement.workspace)
        if not isinstance(statement, Reduce):
            continue
        tensor = statement.outputs[0].buffer.tensor
        dtype = tensor.dtype()
        statement.is_cluster = kernel.cluster[0] > 1 and statement.grid_types == (ParallelType.grid_x,)
        across_grid = bool(statement.grid_types) and not statement.is_cluster
        form = reduction_form(statement, launch)
        used = [p for p in BLOCK_TYPES if p in launch and launch[p] is not ONE]
        statement.is_fused_cluster = statement.is_cluster and form == "rows" and set(used) <= set(statement.thread_types)
        if (statement.thread_types and form != "warp" or across_grid) and not statement.is_fused_cluster:
            per_group = ceildiv(threads, 32) if form == "rows" else threads
            elems = mul(per_group, statement.values if form == "rows" else statement.values + 2)  # reduce_tree pads rows and stores partial results
            if state.staying is not None and form == "rows" and len(loops) == 1 and not statement.is_cluster:
                statement.turn, elems = mod(loops[0].index, 2), mul(elems, 2)
            statement.workspace = Buffer(f"workspace_T{tensor.name}", dtype, MemoryType.shared, elems, tensor)
            kernel.workspaces.append(statement.workspace)
        if statement.is_cluster:
            kept = product(launch[p] for p in BLOCK_TYPES if p in launch and p not in statement.thread_types)
            senders = ceildiv(threads, 32) if statement.is_fused_cluster else kept
            elems = mul(senders, kernel.cluster[0] * statement.values)
            elems = add(elems, CLUSTER_HEADER_BYTES * 8 // dtype.bits)
            if state.staying is not None and statement.is_fused_cluster and len(loops) == 1:
                statement.turn, elems = loops[0].index, mul(mul(ceildiv(elems, 4), 4), 2)
            statement.exchange = Buffer(f"exchange_T{tensor.name}", dtype, MemoryType.shared, elems, tensor)
            kernel.workspaces.append(statement.exchange)
        if across_grid:
            _plan_grid(kernel, state, statement, loops)
    if kernel.work_buffers:
        _predicate_last_block(kernel, state)
    return kernel


def _with_loops(body: list[Statement], loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Statement, tuple[Loop, ...]]]:
    """Yield every statement with the loops around it, outermost first."""
    for statement in body:
        yield statement, loops
        if isinstance(statement, Nest):
            yield from _with_loops(statement.body, (*loops, statement) if isinstance(statement, Loop) and not statement.is_once else loops)


def _plan_grid(kernel: Kernel, state: BuildState, reduce: Reduce, loops: tuple[Loop, ...]) -> None:
    """Allocate partial results and semaphores of a reduction across blocks: one set per iteration of the enclosing loops, so that blocks may be in different
    iterations."""
    tensor = reduce.outputs[0].buffer.tensor
    grid = [p for p in GRID_TYPES if p in state.launch]
    iterations = product(loop.extent for loop in loops)
    blocks = product(state.launch[p] for p in grid)
    segments = product(state.launch[p] for p in grid if p not in reduce.grid_types)
    keep = product(state.launch[p] for p in BLOCK_TYPES if p in state.launch and p not in reduce.thread_types)
    for loop in loops:
        reduce.iteration = add(mul(reduce.iteration, loop.extent), loop.index)
    dtype = tensor.dtype()
    reduce.global_workspace = WorkBuffer(f"partials_T{tensor.name}", dtype, product([iterations, blocks, keep, reduce.values]))
    reduce.semaphores = WorkBuffer(f"semaphores_T{tensor.name}", DataType.Int32, mul(iterations, segments), zeroed=True)
    reduce.last_flag = f"last_T{tensor.name}"
    kernel.work_buffers += [reduce.global_workspace, reduce.semaphores]


def _predicate_last_block(kernel: Kernel, state: BuildState) -> None:
    """Predicate writes that depend on a reduction across blocks, so that only the block with its result does them.

    Errors: MixedGridReductions, ReadOutsideLoop, SpreadOverBlocks.
    """
    first_block = {p: equal(var(p.value, extent=d), 0) for p, d in zip(GRID_TYPES, kernel.grid)}
    flag_of: dict[TensorView, str] = {}
    loops_of: dict[str, tuple[Loop, ...]] = {}
    types_of: dict[str, tuple[ParallelType, ...]] = {}
    for statement, loops in _with_loops(kernel.body):
        if not isinstance(statement, Op):
            continue
        flags = {flag_of[o.buffer.tensor] for o in statement.operands if isinstance(o, Access) and o.buffer.tensor in flag_of}
        if isinstance(statement, Reduce) and statement.last_flag:
            if flags:
                a, *_ = sorted(flags)
                raise MixedGridReductions(a=a[5:], b=statement.outputs[0].buffer.name, where=statement.outputs[0].buffer.name)
            flags = {statement.last_flag}
            loops_of[statement.last_flag], types_of[statement.last_flag] = loops, statement.grid_types
        if not flags:
            continue
        if len(flags) > 1:
            a, b, *_ = sorted(flags)
            raise MixedGridReductions(a=a[5:], b=b[5:], where=statement.outputs[0].buffer.name)
        flag = next(iter(flags))
        around = loops_of[flag]
        if loops[: len(around)] != around:
            raise ReadOutsideLoop(tensor=flag[5:], reader=statement.outputs[0].buffer.name, loop=around[-1].label)
        for out in statement.outputs:
            if not isinstance(statement, Reduce):
                _check_not_spread(state, out.buffer.tensor, flag[5:], types_of[flag])
            flag_of[out.buffer.tensor] = flag
            if out.buffer.memory is MemoryType.global_:
                repeated = {first_block[p] for p in types_of[flag]}  # the flag already selects one block of those that share a reduction
                statement.predicate = conjunction([*(a for a in conjuncts(statement.predicate) if a not in repeated), var(flag, DataType.Bool)])


def _check_not_spread(state: BuildState, reader: TensorView, reduced: str, kinds: tuple[ParallelType, ...]) -> None:
    for axis, group in zip(reader.get_loop_domain(), state.plan.groups[reader]):
        if group.parallel in kinds and not axis.is_broadcast() and group.extent is not ONE:
            raise SpreadOverBlocks(tensor=reduced, kind=group.parallel.value, reader=reader, axis=axis)
