"""Programmatic dependent launch: a kernel that may start while the one before it in the stream still runs, and lets the next one start early.

Owns where a kernel waits and where it lets the next one go. Before the wait it touches no global memory: what the kernel before writes is not there yet,
and what it reads may not be overwritten. The wait is for the whole kernel before, whose own wait was for the one before that, so every kernel may rely on
all work of the stream in front of it, as without this. Read first: `overlap_launches`.
"""

from __future__ import annotations

from ..ir.enums import MemoryType
from ..ir.values import RandomOp
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, BulkCopy, Kernel, Let, LetRowEnd, Move, Nest, Op, Reduce, Repack, Scan, Statement, walk
from .kernel_sync import (
    ClusterArrive, ClusterWait, DeclareFlag, ElectedThread, FenceSync, InitBarrier, LetNextStart, OneThread, StartExchanges, StartScan, Sync, WaitForPrevious,
)  # fmt: skip
from .state import BuildState

_SET_UP = (
    Allocate, Let, LetRowEnd, Move, Repack, DeclareFlag, StartExchanges, StartScan, ClusterArrive, ClusterWait, InitBarrier, FenceSync, Sync, OneThread,
    ElectedThread,
)  # fmt: skip
"""Kinds of statements that never access global memory; for nests their bodies decide."""


@lowering_pass(needs=["kernel head"], gives=["launch order"])
def overlap_launches(kernel: Kernel, state: BuildState) -> Kernel:
    """Insert the wait for the previous kernel before the first access to global memory, and the start of the next kernel before the last stores.

    Before: the body is final.   After: in a kernel that overlaps, both stand at the top level, where all threads execute them.
    Here because: the previous pass inserts what a kernel does first.
    A kernel with a grid-wide barrier needs a cooperative launch, and one that draws random numbers first reads the seed from global memory: both are launched
    as usual.
    """
    if kernel.cooperative or any(isinstance(s, Op) and isinstance(s.expr, RandomOp) for s in walk(kernel.body)):
        kernel.overlaps = False
    if not kernel.overlaps:
        return kernel
    body = kernel.body
    first = next((n for n, s in enumerate(body) if not _is_set_up(s)), len(body))
    last = max((n for n, s in enumerate(body) if n >= first and not _is_set_up(s)), default=len(body))
    kernel.body = [*body[:first], WaitForPrevious(), *body[first:last], LetNextStart(), *body[last:]]
    return kernel


def _is_set_up(statement: Statement) -> bool:
    """True for a statement that does not access global memory."""
    if isinstance(statement, (Reduce, Scan, BulkCopy)):
        return isinstance(statement, Reduce) and not statement.grid_types and not _touches_global(statement)
    if isinstance(statement, Op):
        return not _touches_global(statement)
    if isinstance(statement, Nest):
        return all(map(_is_set_up, statement.body))
    return isinstance(statement, _SET_UP)


def _touches_global(op: Op) -> bool:
    return any(isinstance(p, Access) and p.buffer.memory is MemoryType.global_ for p in (*op.outputs, *op.operands))
