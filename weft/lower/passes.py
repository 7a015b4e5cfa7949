"""Passes over the Kernel, each with its contract. `weft.lower.pipeline` gives their order."""

from __future__ import annotations

from collections.abc import Iterator

from ..dtypes import DataType
from ..errors import UserError
from ..expr import FALSE, ONE, TRUE, ZERO, Sym, add, ceildiv, conjunction, conjuncts, equal, mod, mul, product, var, variables
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, LoadStoreOpType, MemoryType, ParallelType
from ..ir.values import LoadStoreOp, TensorView
from .contracts import lowering_pass
from .hazards import buffers_of, crosses_threads, managed
from .kernel_ir import Access, Allocate, Buffer, If, Kernel, Loop, Nest, Op, Reduce, Repack, Statement, WorkBuffer, is_collective, walk
from .kernel_sync import Sync
from .reduction_form import reduction_form
from .state import BuildState

SHARED_ALIGNMENT_BYTES = 128
CLUSTER_HEADER_BYTES = 16
"""The mbarrier before the values that the blocks of a cluster exchange. See device/reduce.cuh."""
PACKED = (DataType.BFloat16, DataType.Half)  # weft::Array packs two in a register


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
    """Give every reduction across threads its workspace in shared memory, and those across blocks theirs in global memory.

    Before: Reduce ops have no workspace.  After: `workspace`, `global_workspace`, `semaphores` and `last_flag` are set where needed, and writes of global
    memory that depend on a result which only the last block holds are predicated by that block's flag.
    Here because: later passes place the workspaces and must see them.
    """
    launch = state.launch
    threads = product(launch.get(p, ONE) for p in BLOCK_TYPES)
    for statement, loops in _with_loops(kernel.body):
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


@lowering_pass(needs=["grid sync", "workspaces", "scan workspaces"], gives=["block syncs"], before=["grouped predicates"])
def insert_block_syncs(kernel: Kernel, state: BuildState) -> Kernel:
    """Put a block barrier between a write of shared memory and its reads by other threads, and at the end of loops that write it again.

    Before: no Sync exists.  After: every pair of conflicting accesses of different threads has a Sync between.
    Here because: predicates are not grouped yet, so all threads reach every place in a body.
    """
    crossing = {b.tensor for b in kernel.buffers.values() if b.memory is MemoryType.shared and crosses_threads(state, b.tensor)}
    crossing -= managed(kernel, state)
    if crossing:
        kernel.body = _sync_body(kernel.body, crossing, set(), in_loop=False)
    return kernel


def _touches(statement: Statement, crossing: set[TensorView]) -> tuple[set[TensorView], set[TensorView]]:
    reads: set[TensorView] = set()
    writes: set[TensorView] = set()
    for inner in walk([statement]):
        if isinstance(inner, Op):
            reads |= {o.buffer.tensor for o in inner.operands if isinstance(o, Access)} & crossing
            writes |= {o.buffer.tensor for o in inner.outputs} & crossing
    return reads, writes


def _sync_body(body: list[Statement], crossing: set[TensorView], pending: set[TensorView], *, in_loop: bool) -> list[Statement]:
    written_here: set[TensorView] = set()
    read_since: set[TensorView] = set()

    def placed(body: list[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop) and statement.is_once:
                statement.body = placed(statement.body)
                out.append(statement)
                continue
            reads, writes = _touches(statement, crossing)
            if reads & pending or writes & read_since:
                names = ", ".join(f"T{t.name}" for t in reads & pending | writes & read_since)
                out.append(Sync(f"{names}: written and read by different threads"))
                pending.clear()
                read_since.clear()
            if isinstance(statement, Loop):
                statement.body = _sync_body(statement.body, crossing, set(pending), in_loop=True)
            out.append(statement)
            pending.update(writes)
            written_here.update(writes)
            read_since.update(reads)
        return out

    out = placed(body)
    if in_loop and read_since & written_here:
        out.append(Sync("the next iteration writes what this one read"))
    return out


@lowering_pass(needs=["workspaces", "scan workspaces", "pipelines"], gives=["shared memory"])
def place_shared_memory(kernel: Kernel, state: BuildState) -> Kernel:
    """Give every shared buffer and workspace an offset, and the kernel its dynamic shared memory.

    Before: buffers are final.  After: `offset_bytes` of each is set, 128-byte aligned; `shared_bytes` is their sum.
    """
    offset: Sym = ZERO
    buffers = [b for b in kernel.buffers.values() if b.memory is MemoryType.shared] + kernel.workspaces
    for buffer in buffers:
        if buffer.align_bytes > SHARED_ALIGNMENT_BYTES:
            offset = mul(ceildiv(offset, buffer.align_bytes), buffer.align_bytes)
        buffer.offset_bytes = offset
        bytes_ = ceildiv(mul(buffer.elems, buffer.dtype.bits), 8)
        aligned = mul(ceildiv(bytes_, SHARED_ALIGNMENT_BYTES), SHARED_ALIGNMENT_BYTES)
        offset = add(offset, aligned)
    kernel.shared_bytes = offset
    return kernel


@lowering_pass(needs=["block syncs", "pipelines", "unswitched"], gives=["grouped predicates"])
def group_predicates(kernel: Kernel, state: BuildState) -> Kernel:
    """Turn predicates of ops into `If`s, each around all neighbouring statements with that predicate; drop statements that never run.

    Before: predicates hang on ops.  After: only collective ops carry one (they run in all threads); an If stands outside every loop that it does not depend on,
    and an op whose result is needed in one If only is in that If.
    Here because: collectives and barriers are placed, and must stay outside of any If.
    """
    kernel.body = _group(kernel.body)
    return kernel


def _group(body: list[Statement]) -> list[Statement]:
    out: list[Statement] = []
    _predicate_like_readers(body)
    for statement in body:
        for piece in _guarded(statement):
            _append(out, piece)
    return _pull_allocations(out)


def _predicate_like_readers(body: list[Statement]) -> None:
    """Give an op in registers the predicate of its readers where that is one and implies the op's own: otherwise two Ifs stand where one is enough.

        if (c) b = f(a);  if (r && c) d = g(b);      if (r && c) { b = f(a);  d = g(b); }

    Only ops stand between it and its readers, so that no name of their predicate is defined there.
    """
    readers: dict[Buffer, list[Op]] = {s.buffer: [] for s in body if isinstance(s, Allocate)}
    run_of: dict[Op, int] = {}  # number of other statements before
    others = 0
    for s in body:
        if type(s) is Op:
            run_of[s] = others
            for buffer in {o.buffer for o in s.operands if isinstance(o, Access)} & readers.keys():
                readers[buffer].append(s)
        elif not isinstance(s, Allocate):
            others += 1
            for inner in walk([s]):
                for buffer in buffers_of(inner):
                    readers.pop(buffer, None)
    for s in reversed(run_of):
        if not all(o.buffer in readers for o in s.outputs) or s.predicate is TRUE and not _is_in_registers(s):
            continue
        found = [reader for o in s.outputs for reader in readers[o.buffer]]
        wanted = {reader.predicate for reader in found}
        if len(wanted) == 1 and {run_of[reader] for reader in found} == {run_of[s]} and {*conjuncts(s.predicate)} - {TRUE} <= set(conjuncts(*wanted)):
            (s.predicate,) = wanted


def _is_in_registers(op: Op) -> bool:
    """True for arithmetic: nothing is loaded, which should begin early, and no other thread takes part."""
    return not is_collective(op) and all(o.buffer.memory is MemoryType.local for o in op.operands if isinstance(o, Access))


def _guarded(statement: Statement) -> list[Statement]:
    if isinstance(statement, Loop):
        statement.body = _group(statement.body)
        if statement.extent.is_const and statement.extent.value == 0:
            return []
        return _hoist(statement)
    if isinstance(statement, Nest):
        statement.body = _group(statement.body)
        return [statement]
    if isinstance(statement, Op) and not is_collective(statement):
        predicate, statement.predicate = statement.predicate, TRUE
        if predicate is FALSE:
            return []
        return [statement] if predicate is TRUE else [If(predicate, [statement])]
    return [statement]


def _hoist(loop: Loop) -> list[Statement]:
    """Swap a loop with the only If inside it when the predicate does not depend on the loop."""
    inner = [s for s in loop.body if not isinstance(s, Allocate)]
    if len(inner) == 1 and isinstance(inner[0], If) and loop.index not in variables(inner[0].predicate):
        condition = inner[0]
        loop.body = [s for s in loop.body if isinstance(s, Allocate)] + condition.body
        return [If(condition.predicate, [loop])]
    return [loop]


def _pull_allocations(body: list[Statement]) -> list[Statement]:
    """Move an allocation before the Ifs around it, so that neighbouring equal Ifs can be joined."""
    allocations = [s for s in body if isinstance(s, Allocate)]
    if not allocations or not any(isinstance(s, If) for s in body):
        return body
    rest: list[Statement] = []
    for s in body:
        if not isinstance(s, Allocate):
            _append(rest, s)
    return [*allocations, *rest]


def _append(body: list[Statement], statement: Statement) -> None:
    """Append a statement; an If whose predicate is that of the last one is joined with it."""
    last = body[-1] if body else None
    if isinstance(statement, If) and isinstance(last, If) and last.predicate is statement.predicate:
        last.body.extend(statement.body)
    else:
        body.append(statement)


@lowering_pass(needs=["reductions", "pipelines"])
def repack_kept(kernel: Kernel, state: BuildState) -> Kernel:
    """After a reduction across threads, repack the arrays of 16-bit floats that are read before and after it, and those of narrower floats that are loaded one
    by one.

    Before: reductions are statements among others.   After: each such array has a Repack after the reduction. Here because: reductions are in their final
    places. Without it the compiler converts once and keeps the wide values: twice the registers, and spills.
    Bytes that are loaded one by one would take a register each. Measured: docs/constants.md.
    """
    kernel.body = _repack_body(kernel.body, _loaded_singly(kernel.body))
    return kernel


def _loaded_singly(body: list[Statement]) -> set[Buffer]:
    """Arrays of floats of 8 and 4 bits in registers that are loaded from memory element by element."""
    return {
        out.buffer
        for inner in walk(body) if isinstance(inner, Op) and inner.vector_elems == 1
        for out, source in zip(inner.outputs, inner.operands)
        if isinstance(source, Access) and source.buffer.memory is MemoryType.global_ and out.buffer.memory is MemoryType.local
        and out.buffer.dtype.is_narrow_float
    }  # fmt: skip


def _repack_body(body: list[Statement], singly: set[Buffer]) -> list[Statement]:
    reads = [_packed_reads(s, singly) for s in body]
    last = {buffer: position for position, buffers in enumerate(reads) for buffer in buffers}
    out: list[Statement] = []
    seen: dict[Buffer, None] = {}
    for position, statement in enumerate(body):
        if isinstance(statement, Nest):
            statement.body = _repack_body(statement.body, singly)
        out.append(statement)
        seen.update(dict.fromkeys(reads[position]))
        if isinstance(statement, Reduce) and statement.thread_types:
            seen = {b: None for b in seen if last[b] > position}
            out += [Repack(b) for b in seen]
    return out


def _packed_reads(statement: Statement, singly: set[Buffer]) -> list[Buffer]:
    """Arrays in registers that `statement` reads: of 16-bit floats, and those of `singly`, which it may also load."""
    return [
        o.buffer
        for inner in walk([statement]) if isinstance(inner, Op)
        for o in (*inner.operands, *(out for out in inner.outputs if out.buffer in singly))
        if isinstance(o, Access) and o.buffer.memory is MemoryType.local and (o.buffer.dtype in PACKED or o.buffer in singly) and o.buffer.elems is not ONE
    ]  # fmt: skip


@lowering_pass(needs=["grouped predicates"], gives=["unrolled"])
def mark_unrolled(kernel: Kernel, state: BuildState) -> Kernel:
    """Mark the loops to unroll: those whose index addresses registers, those that the schedule unrolls, and those that only issue cp.async.

    Before: addresses are final.  After: `Loop.unroll` is set; such a loop has a constant extent.
    """
    unroll_axes = {
        g.index for tensor, groups in state.plan.groups.items() for axis, g in zip(tensor.get_loop_domain(), groups) if axis.parallel is ParallelType.unroll
    }
    for statement in walk(kernel.body):
        if isinstance(statement, Loop):
            used = statement.index in unroll_axes or _only_issues(statement)
            for inner in walk(statement.body):
                if isinstance(inner, Op):
                    for place in (*inner.outputs, *inner.operands):
                        if isinstance(place, Access) and place.buffer.memory is MemoryType.local and statement.index in variables(place.index):
                            used = True
            statement.unroll = used and statement.extent.is_const
    return kernel


def _only_issues(loop: Loop) -> bool:
    """True for a loop of nothing but copies by cp.async."""
    ops = [s for s in walk(loop.body) if isinstance(s, Op)]
    return bool(ops) and all(isinstance(s.expr, LoadStoreOp) and s.expr.kind is LoadStoreOpType.cp_async for s in ops)

