"""Loads lookups of one element per row, such as the logit of a label, before the row's reduction barrier, so that the load overlaps with the barrier.

An index is loaded with the row, but what is at it not before the row's own loads are under way: a thread waits for the index where it asks for the element.

Read first: `advance_lookups`.
"""

from __future__ import annotations

from ..expr import ONE, Sym, variables
from ..ir.enums import MemoryType
from ..ir.graph_ops import At, LookupOp
from ..ir.values import ReductionOp
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Buffer, Kernel, Let, Nest, Op, Reduce, Statement, expressions_of, values_of, walk
from .state import BuildState


@lowering_pass(before=["pipelines", "peeled rows", "unswitched", "grouped predicates"])
def advance_lookups(kernel: Kernel, state: BuildState) -> Kernel:
    """Move lookups of one element, whose position an index tensor gives, before the reductions across threads that separate them from the index.

    Before: ops stand where their results are needed.   After: such a lookup stands before the first of these reductions; without one, right after its index.
    Here because: each op occurs once, loops over rows are as scheduled, and no load has a pipeline stage yet.
    """
    written = {out.buffer for s in walk(kernel.body) if isinstance(s, Op) for out in s.outputs}
    _advance(kernel.body, written)
    return kernel


def _advance(body: list[Statement], written: set[Buffer]) -> None:
    for s in body:
        if isinstance(s, Nest):
            _advance(s.body, written)
    for s in list(body):
        if isinstance(s, Op) and _is_movable(s, written):
            _move(body, s)


def _is_movable(s: Op, written: set[Buffer]) -> bool:
    expr = s.expr
    if type(s) is not Op or not isinstance(expr, LookupOp) or s.vector_elems > 1 or s.at_row_end is not None:
        return False
    if not any(isinstance(place, At) for place in expr.positions):
        return False
    source, target = s.operands[0], s.outputs[0].buffer
    in_memory = isinstance(source, Access) and source.buffer.memory is MemoryType.global_ and source.buffer not in written
    return in_memory and target.memory is MemoryType.local and target.elems is ONE


def _move(body: list[Statement], s: Op) -> None:
    """Move a lookup directly after the last statement that it depends on, if a reduction is between them."""
    at = body.index(s)
    needed = {o.buffer for o in s.operands[1:] if isinstance(o, Access)}
    names = {v for value in expressions_of(s) for sym in values_of(value) for v in variables(sym)}
    place = next((n + 1 for n in reversed(range(at)) if _gives(body[n], needed, names)), 0)
    if any(_folds(other) for other in body[place:at]):
        place = next((n for n in range(place, at) if isinstance(met := body[n], Reduce) and met.thread_types), place)
        moved = [other for other in body[place:at] if isinstance(other, Allocate) and other.buffer is s.outputs[0].buffer] + [s]
        for other in moved:
            body.remove(other)
        body[place:place] = moved


def _gives(statement: Statement, buffers: set[Buffer], names: set[Sym]) -> bool:
    """Tell whether a statement, or one inside it, computes something that a lookup needs."""
    for s in walk([statement]):
        if isinstance(s, Op) and any(out.buffer in buffers for out in s.outputs):
            return True
        if isinstance(s, Let) and s.variable in names or isinstance(s, Allocate) and s.buffer in buffers:
            return True
    return False


def _folds(statement: Statement) -> bool:
    return any(isinstance(s, Reduce) or isinstance(s, Op) and isinstance(s.expr, ReductionOp) for s in walk([statement]))


__all__ = ["advance_lookups"]
