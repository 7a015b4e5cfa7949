"""Tensors passed between blocks through global memory, and the grid barriers that this needs.

Owns which tensors these are, their memory, and the barrier of the grid. The launch is cooperative: the driver refuses it unless all blocks run at once.
Read first: `insert_grid_sync`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..errors import UserError
from ..expr import const
from ..ir.values import TensorView
from .state import BuildState
from .contracts import lowering_pass
from .hazards import touched
from .stages import first_thread
from .kernel_ir import Allocate, Kernel, Loop, Statement, WorkBuffer, copied
from .kernel_sync import GridSync, Sync


class MeetingInLoop(UserError):
    code = "W533"
    what = "{tensor} is passed between blocks through global memory inside a loop, so that all blocks would have to synchronize in every iteration"
    fix = "inline it at position 0, so that it is complete before its readers start"


BARRIER = WorkBuffer("grid_barrier", DataType.Int32, const(2), zeroed=True)


@lowering_pass(gives=["grid sync"], before=["workspaces", "block syncs"])
def insert_grid_sync(kernel: Kernel, state: BuildState) -> Kernel:
    """Insert a grid-wide barrier between the writes of tensors in global memory and their reads by other threads.

    Before: the body has no barrier.   After: statements that read what was written stand after one grid-wide barrier, in their order; the tensors are scratch
    memory.
    Here because: the order of statements at the top is final afterwards, and block barriers are placed by it.
    Errors: MeetingInLoop.
    """
    tensors = state.handed_over
    if not tensors:
        return kernel
    for tensor in tensors:
        kernel.work_buffers.append(WorkBuffer(f"T{tensor.name}", tensor.dtype(), state.buffers[tensor].elems))
    behind: set[TensorView] = set(tensors)
    first: list[Statement] = []
    later: list[Statement] = []
    for statement in kernel.body:
        if isinstance(statement, Allocate):
            first.append(statement)
            continue
        reads, writes = touched(statement)
        if reads & behind:
            if writes & set(tensors):
                raise MeetingInLoop(tensor=next(iter(writes & set(tensors))))
            behind |= writes
            later.append(statement)
        else:
            first.append(statement)
    names = ", ".join(f"T{t.name}" for t in tensors)
    kernel.body = [*first, *all_blocks_meet(kernel, f"{names}: written for other blocks", f"{names}: written by all blocks"), *_joined(later)]
    return kernel


def all_blocks_meet(kernel: Kernel, before: str, after: str) -> list[Statement]:
    """Return the statements of a grid-wide barrier, with comments on its two block syncs. The kernel gets the memory and the launch that it needs."""
    kernel.work_buffers.append(BARRIER)
    kernel.cooperative = True
    return [Sync(before), first_thread(kernel, [GridSync(BARRIER, "all blocks")]), Sync(after)]


def _joined(statements: list[Statement]) -> list[Statement]:
    """Fuse neighbouring independent loops of the same length, so that they read the blocks' partial results together."""
    out: list[Statement] = []
    for s in statements:
        last = out[-1] if out else None
        if isinstance(s, Loop) and isinstance(last, Loop) and s.extent is last.extent and s.start is last.start and not touched(s)[0] & touched(last)[1]:
            last.body += [copied(inner, {s.index: last.index}) for inner in s.body]
        else:
            out.append(s)
    return out
