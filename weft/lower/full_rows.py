"""Predicates that a row's length makes superfluous are left out; the last batch of a row that is not whole gets a loop of its own.

Why: without vectors every element asks whether it exists. Softmax of 4093 bf16 columns: 65 instructions per element with the questions, and as many
branches as elements.
Read first: `drop_row_bounds`.
"""

from __future__ import annotations

from ..expr import Sym, add, conjunction, conjuncts, const, largest, substitute, variables
from ..schedule.full_rows import FullRows
from .state import BuildState
from .contracts import lowering_pass
from .kernel_ir import Allocate, Kernel, Loop, Nest, Op, Statement, copied, is_collective, walk
from .kernel_sync import GridSync


@lowering_pass(needs=["pipelines"], before=["grouped predicates"])
def drop_row_bounds(kernel: Kernel, state: BuildState) -> Kernel:
    """Leave out the bounds of rows that the schedule knows to hold.

    Before: predicates hang on ops.   After: `kernel.assumptions` says what the sizes must satisfy; a loop over batches whose last part is not full is two.
    Here because: predicates are not grouped yet, and barriers and pipelines have their places.
    """
    if state.full_rows is not None:
        meets = (n for n, s in enumerate(kernel.body) if any(isinstance(inner, GridSync) for inner in walk([s])))
        end = next(meets, len(kernel.body))  # behind the meeting of all blocks columns are shared out in another way
        kernel.body[:end] = without_row_bounds(kernel, kernel.body[:end], state.full_rows)
    return kernel


def without_row_bounds(kernel: Kernel, body: list[Statement], full: FullRows) -> list[Statement]:
    """Return statements of a kernel without the bounds that hold where rows are as `full` says."""
    return _Dropper(kernel, full).body(body)


class _Dropper:
    def __init__(self, kernel: Kernel, full: FullRows) -> None:
        self.kernel, self.full = kernel, full

    def body(self, statements: list[Statement]) -> list[Statement]:
        return [out for s in statements for out in self.statement(s)]

    def statement(self, s: Statement) -> list[Statement]:
        """Return what replaces a statement outside any loop over batches."""
        if isinstance(s, Loop):
            if not self.full.is_whole and self.is_over_batches(s):
                return self.two_loops(s)
            s.body = self.body(s.body)
        elif isinstance(s, Nest):
            s.body = self.body(s.body)
        elif isinstance(s, Op) and self.full.is_whole:
            s.predicate = self.without(s.predicate, None)
        return [s]

    def is_over_batches(self, loop: Loop) -> bool:
        inner = list(walk(loop.body))
        if not loop.extent.is_const or loop.extent.value != self.full.batches or self.full.batches < 2:
            return False
        if not all(isinstance(s, (Op, Loop, Allocate)) and not is_collective(s) for s in inner):
            return False
        return any(loop.index in variables(a) for s in inner if isinstance(s, Op) for a in self.bounds(s.predicate))

    def two_loops(self, loop: Loop) -> list[Statement]:
        """Return the loop over the full batches, and that over the last one with every bound."""
        last = const(self.full.batches - 1)
        first = Loop(loop.index, last, [copied(s, {}) for s in loop.body], label=loop.label)
        for s in walk(first.body):
            if isinstance(s, Op):
                s.predicate = self.without(s.predicate, loop)
        return [first, Loop(loop.index, loop.extent, loop.body, label=f"{loop.label}, the last", start=last)]

    def bounds(self, predicate: Sym) -> list[Sym]:
        """The parts of a predicate that bound a position in the row by its length."""
        return [a for a in conjuncts(predicate) if a.op == "lt" and variables(a.args[1]) and variables(a.args[1]) <= self.full.sizes]

    def without(self, predicate: Sym, loop: Loop | None) -> Sym:
        """Return the predicate less the bounds that hold: all, or those in which `loop` runs over full batches."""
        dropped = set()
        for atom in self.bounds(predicate):
            position, bound = atom.args
            if self.full.keeps_guards and position.is_var:
                continue
            if loop is not None:
                if loop.index not in variables(position):
                    continue
                position = substitute(position, {loop.index: const(self.full.batches - 2)})
            last = largest(position)
            if last is None:
                continue
            assumed = (add(last, 1), bound)
            if assumed not in self.kernel.assumptions:
                self.kernel.assumptions.append(assumed)
            dropped.add(atom)
        return conjunction(a for a in conjuncts(predicate) if a not in dropped)
