"""Predicates of single ops become conditions around bodies: one test for all ops that share it. Read first: `group_predicates`."""

from __future__ import annotations

from ..expr import FALSE, TRUE, conjuncts, variables
from ..ir.enums import MemoryType
from .contracts import lowering_pass
from .hazards import buffers_of
from .kernel_ir import Access, Allocate, Buffer, If, Kernel, Loop, Nest, Op, Statement, is_collective, walk
from .state import BuildState


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
