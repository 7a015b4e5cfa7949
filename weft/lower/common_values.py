"""Registers that some threads of a warp load one value into, the same in all of them, are zero in the others.

Why: such a register (a scale, loaded where a thread's column is inside the tensor) is undefined in the threads outside. The C++ compiler takes an undefined
value for any, so for that of the other threads, and moves what is computed of it out of its condition; the assembler then takes it for the same in all threads.
A division has a branch for very large and very small quotients. Where whatever a register held before takes that branch, the warp divides, and is not joined
again, because the branch is believed to be taken by all or none: shuffles behind it miss half of the warp. Seen on an H200 with nvcc 13.0 to 13.5: a column of
a sum was the sum of two of 16 parts. With a value in all threads the compiler sees that they differ.
Read first: `fill_common_values`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..expr import Sym, variables
from ..ir.enums import MemoryType
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Buffer, If, Kernel, Let, Move, Nest, Op, Statement, depends_on_threads, expressions_of, is_collective, walk
from .state import BuildState

Condition = tuple[If, ...]


@lowering_pass(needs=["grouped predicates"])
def fill_common_values(kernel: Kernel, state: BuildState) -> Kernel:
    """Where threads exchange values, let a register begin as zero if a condition on threads decides where it is written, its value does not depend on the
    thread, and it is read elsewhere.

    Before: predicates are Ifs.   After: the compiler can take no such register for the same in all threads of a warp.
    Here because: no later pass puts what reads a register behind another If than what writes it.
    """
    if not any(map(is_collective, walk(kernel.body))):
        return kernel
    written, read = _places(kernel.body)
    apart = {b for b, places in written.items() if any(place and r[: len(place)] != place for place in places for r in read.get(b, ()))}
    found = {b for b in apart if b.fill is None and b.memory is MemoryType.local}
    if found:
        for buffer in found - _thread_values(kernel.body):
            buffer.fill = "sum"  # zeros
    return kernel


def _places(body: list[Statement]) -> tuple[dict[Buffer, list[Condition]], dict[Buffer, list[Condition]]]:
    """Return the conditions on threads under which registers are written, and read."""
    written: dict[Buffer, list[Condition]] = {}
    read: dict[Buffer, list[Condition]] = {}
    for op, place in _ops(body, ()):
        for to, accesses in ((written, op.outputs), (read, op.operands)):
            for access in accesses:
                if isinstance(access, Access):
                    to.setdefault(access.buffer, []).append(place)
    return written, read


def _ops(body: list[Statement], place: Condition) -> Iterator[tuple[Op, Condition]]:
    for s in body:
        if isinstance(s, Op):
            yield s, place
        elif isinstance(s, Nest):
            yield from _ops(s.body, (*place, s) if isinstance(s, If) and depends_on_threads([s.predicate]) else place)


def _thread_values(body: list[Statement]) -> set[Buffer]:
    """The registers whose values depend on the thread: of indices, other registers, and what threads do together. What memory holds at one place does not."""
    found: set[Buffer] = set()
    names: set[Sym] = set()
    statements = [s for s in walk(body) if not isinstance(s, (Nest, Allocate))]
    before = (-1, -1)
    while before != (before := (len(found), len(names))):  # a loop carries values from its end to its beginning
        for s in statements:
            if isinstance(s, Op):
                own = type(s) is not Op or _varies(list(expressions_of(s)), names)
                if own or any(isinstance(o, Access) and o.buffer in found for o in s.operands):
                    found.update(o.buffer for o in s.outputs if o.buffer.memory is MemoryType.local)
            elif isinstance(s, Let):
                if _varies([s.value], names):
                    names.add(s.variable)
            elif isinstance(s, Move):
                found.update([s.target] if s.source in found else [])
            elif isinstance(variable := getattr(s, "variable", None), Sym):
                names.add(variable)
    return found


def _varies(values: list[Sym], names: set[Sym]) -> bool:
    return depends_on_threads(values) or any(not names.isdisjoint(variables(value)) for value in values)
