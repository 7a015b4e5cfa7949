"""Which loops the compiler unrolls. Read first: `mark_unrolled`."""

from __future__ import annotations

from ..expr import variables
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType
from ..ir.values import LoadStoreOp
from .contracts import lowering_pass
from .kernel_ir import Access, Kernel, Loop, Op, walk
from .state import BuildState


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
