"""Copy propagation: readers of a plain register copy read its source instead.

Read first: `forward_copies`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..expr import ONE
from ..ir.enums import LoadStoreOpType, MemoryType
from ..ir.values import BroadcastOp, ExpandOp, LoadStoreOp, SqueezeOp
from .contracts import lowering_pass
from .dead_code import without_buffers
from .kernel_ir import Access, Allocate, Buffer, Kernel, Move, Nest, Op, Repack, Statement
from .state import BuildState

Path = tuple[int, ...]
"""The place of a statement: its index in each enclosing body, outermost first."""


@dataclass
class _Uses:
    """Where a buffer is allocated, written and read; other: it is used in another way."""

    allocated: list[Path] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)
    read: list[tuple[Path, Op]] = field(default_factory=list)
    other: bool = False


@lowering_pass(before=["pipelines", "peeled rows", "unswitched", "grouped predicates"])
def forward_copies(kernel: Kernel, state: BuildState) -> Kernel:
    """Drop copies of one register to another: repeated, expanded and squeezed values.

    Before: each expression has a buffer of its own.   After: a value that is equal for all elements of an axis is read from the register where it was computed.
    Here because: each op occurs once, and its work at the end of a row is no separate statement yet.
    """
    uses = _uses(kernel.body)
    gone: set[Buffer] = set()
    for path, op in _statements(kernel.body, ()):
        if not isinstance(op, Op) or not _is_copy(op):
            continue
        source, target = op.operands[0], op.outputs[0].buffer
        if isinstance(source, Access) and _may_go(uses[source.buffer], uses[target], path):
            for place, reader in uses[target].read:
                for form in (reader, reader.at_row_end):
                    if form is not None:
                        form.operands = [source if isinstance(o, Access) and o.buffer is target else o for o in form.operands]
                uses[source.buffer].read.append((place, reader))
            gone.add(target)
    kernel.body = without_buffers(kernel.body, gone)
    return kernel


def _is_copy(op: Op) -> bool:
    """True for an op that copies one register unchanged."""
    if type(op) is not Op or op.vector_elems != 1 or not isinstance(op.operands[0], Access):
        return False
    if isinstance(op.expr, LoadStoreOp):
        if op.expr.kind is not LoadStoreOpType.set:
            return False
    elif not isinstance(op.expr, (BroadcastOp, ExpandOp, SqueezeOp)):
        return False
    buffers = (op.operands[0].buffer, op.outputs[0].buffer)
    return all(b.memory is MemoryType.local and b.elems is ONE for b in buffers) and buffers[0].dtype is buffers[1].dtype and buffers[1].fill is None


def _may_go(source: _Uses, target: _Uses, copy: Path) -> bool:
    """True where the source still holds the value, and is in scope, wherever the copy is read."""
    if source.other or target.other or len(source.written) != 1 or len(source.allocated) != 1 or len(target.written) != 1:
        return False
    scope = source.allocated[0][:-1]
    places = [place for place, _ in target.read]
    return source.written[0] < copy and all(copy < place and place[: len(copy) - 1] == copy[:-1] and place[: len(scope)] == scope for place in places)


def _uses(body: list[Statement]) -> dict[Buffer, _Uses]:
    found: dict[Buffer, _Uses] = {}
    for path, s in _statements(body, ()):
        if isinstance(s, Allocate):
            found.setdefault(s.buffer, _Uses()).allocated.append(path)
        elif isinstance(s, Op):
            for place in s.outputs:
                found.setdefault(place.buffer, _Uses()).written.append(path)
            for operand in s.operands:
                if isinstance(operand, Access):
                    found.setdefault(operand.buffer, _Uses()).read.append((path, s))
        elif isinstance(s, (Move, Repack)):
            for buffer in (s.target, s.source) if isinstance(s, Move) else (s.buffer,):
                found.setdefault(buffer, _Uses()).other = True
    return found


def _statements(body: list[Statement], around: Path) -> Iterator[tuple[Path, Statement]]:
    for number, s in enumerate(body):
        yield (*around, number), s
        if isinstance(s, Nest):
            yield from _statements(s.body, (*around, number))
