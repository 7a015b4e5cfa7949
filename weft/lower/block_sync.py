"""Barriers between the threads of a block. Read first: `insert_block_syncs`."""

from __future__ import annotations

from ..ir.enums import MemoryType
from ..ir.values import TensorView
from .contracts import lowering_pass
from .hazards import crosses_threads, managed
from .kernel_ir import Access, Kernel, Loop, Op, Statement, walk
from .kernel_sync import Sync
from .state import BuildState


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
