"""Loops of persistent blocks: delays the second pass over a row until after the first pass over the next row.

    before:  for i: wait for row i;  first pass;  reduce;  second pass          after:  row 0: wait;  first pass;  reduce
                                                                                        for i from 1: wait for row i;  first pass;  hand over
                                                                                                      second pass over row i - 1;  take the results
                                                                                        second pass over the last row

Why: between the passes all warps of a block, or of a cluster, wait for each other. Here they have a pass of another row to do meanwhile.
Read first: `run_behind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InternalError
from ..expr import ONE, ZERO, Sym, add, conjunction, conjuncts, is_int, largest, less, mod, sub, substitute, terms, var, variables
from ..ir.enums import GRID_TYPES, MemoryType
from .bounds import first_iterations
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Block, Buffer, Kernel, Let, Loop, Move, Op, Reduce, Repack, Statement, copied, is_host_variable, walk
from .kernel_sync import Sync
from .state import BuildState

GRID_NAMES = {p.value for p in GRID_TYPES}


class NothingToPutBehind(InternalError):
    code = "W913"
    what = "the schedule delays the second pass over a row until after the first pass over the next row, but {found}"
    fix = "this is a defect of the schedule: it needs a loop over rows with exactly one reduction across the threads of a block"


@lowering_pass(needs=["pipelines"], before=["unswitched", "grouped predicates"])
def run_behind(kernel: Kernel, state: BuildState) -> Kernel:
    """Run the second pass of a row (the statements after its reduction) one iteration later, between the two halves of the next row's reduction.

    Before: a nest in the loop has one reduction with a block barrier; loads of the next rows are issued after it.   After: the first pass of the first row
    stands before the loop, the second pass of the last row after it; the loop count is the block's number of rows, so no statement in it checks that its row
    exists.
    Here because: loads, waits and barriers have their places, and predicates still hang on ops; the rest of these loops' passes sees one loop.
    Errors: NothingToPutBehind.
    """
    if state.staying is not None and state.staying.is_behind:
        found = [n for n, s in enumerate(kernel.body) if isinstance(s, Loop) and _nest_of(s) is not None]
        if len(found) != 1:
            raise NothingToPutBehind(found=f"{len(found)} loops have a reduction of the threads of a block")
        loop = kernel.body[found[0]]
        assert isinstance(loop, Loop)
        kernel.body[found[0] : found[0] + 1] = _Rows(kernel, loop, state.staying.rows_of_step).written()
    return kernel


def _nest_of(loop: Loop) -> list[Statement] | None:
    """Return the body in a loop over rows that contains its only reduction across threads; None if there is none."""
    for body in (loop.body, *(s.body for s in loop.body if isinstance(s, Loop) and s.is_once)):
        if sum(_meets(s) for s in body) == 1:
            return body
    return None


def _meets(s: Statement) -> bool:
    """True for a reduction across threads in the loop over rows."""
    return isinstance(s, Reduce) and s.turn is not None


class _Rows:
    """The parts of a loop over rows.

    around: the unswitched loop of one iteration that contains the nest. head: the statements before it: values of the row, the wait for its stage. first,
    second: the passes. loads: those of later rows, after the reduction. rows_of_step: rows of a step, which exist all or not at all.
    """

    def __init__(self, kernel: Kernel, loop: Loop, rows_of_step: int) -> None:
        self.kernel, self.loop, self.index, self.rows_of_step = kernel, loop, loop.index, rows_of_step
        nest = _nest_of(loop)
        assert nest is not None
        self.around = next((s for s in loop.body if isinstance(s, Loop) and s.body is nest), None)
        self.head = [s for s in loop.body if s is not self.around] if self.around is not None else []
        at = next(n for n, s in enumerate(nest) if _meets(s))
        reduce = nest[at]
        assert isinstance(reduce, Reduce)
        self.reduce = reduce
        behind = nest[at + 1 :]
        self.loads = [s for s in behind if isinstance(s, Block) and s.keeps_bounds]
        self.repacks = [s for s in behind if isinstance(s, Repack)]
        self.results = list(dict.fromkeys(o.buffer for o in reduce.outputs))
        own = [s for s in nest if isinstance(s, Allocate)]
        self.declared = [s for s in own if s.buffer not in self.results]
        self.first = [s for s in nest[:at] if not isinstance(s, Allocate)]
        self.second = [s for s in behind if s not in self.loads and not isinstance(s, (Repack, Allocate))]
        self.carried = self._carried({s.buffer for s in (*self.head, *own) if isinstance(s, Allocate)})
        self.count = self._without_row_bounds()

    def _carried(self, inside: set[Buffer]) -> dict[Buffer, Buffer]:
        """Return buffer -> copy, for the registers of the head and the first pass that the second pass reads."""
        made = {o.buffer for s in walk([*self.head, *self.first]) if isinstance(s, Op) for o in s.outputs} & inside
        used = [o.buffer for s in walk(self.second) if isinstance(s, Op) for o in s.operands if isinstance(o, Access)]
        return {b: replace(b, name=f"{b.name}_before") for b in dict.fromkeys(used) if b in made and b.memory is MemoryType.local}

    def _without_row_bounds(self) -> Sym:
        """Remove the bounds of the row's position from the nest; return the block's number of rows, at least one."""
        bounds: dict[Sym, None] = {}
        for s in walk([*self.first, self.reduce, *self.second]):
            if isinstance(s, Op):
                found = {a: self._of_step(a) for a in conjuncts(s.predicate)}
                found = {a: of_step for a, of_step in found.items() if self._is_row_bound(of_step)}
                s.predicate = conjunction(a for a in conjuncts(s.predicate) if a not in found)
                bounds.update(dict.fromkeys(found.values()))
        for position, end in (a.args for a in bounds):
            first = substitute(position, {self.index: ZERO})
            whole = [(mod(end, self.rows_of_step), ZERO)] if self.rows_of_step > 1 else []
            for assumed in [(add(largest(first) or first, 1), end), *whole]:
                if assumed not in self.kernel.assumptions:
                    self.kernel.assumptions.append(assumed)
        count = first_iterations(self.index, self.loop.extent, bounds)
        if count is None:
            raise NothingToPutBehind(found=f"the bounds {', '.join(map(str, bounds))} do not say how many rows a block has")
        return count

    def _of_step(self, atom: Sym) -> Sym:
        """Replace the bound of any row of a step by that of its first row: m * i + j < m * n holds if m * i < m * n, for j below m."""
        if self.rows_of_step == 1 or atom.op != "lt":
            return atom
        position = terms(atom.args[0])
        inner = [v for (v, *more), count in ((factors, n) for factors, n in position.items() if factors) if not more and count == 1 and self._counts_rows(v)]
        if len(inner) != 1 or any(n % self.rows_of_step for factors, n in position.items() if factors != (inner[0],)):
            return atom
        return less(substitute(atom.args[0], {inner[0]: ZERO}), atom.args[1])

    def _counts_rows(self, v: Sym) -> bool:
        """True for the index of a loop over the rows of a step."""
        return v.extent is not None and is_int(v.extent, self.rows_of_step) and str(v.payload) not in GRID_NAMES and not is_host_variable(v)

    def _is_row_bound(self, atom: Sym) -> bool:
        """True for i * n + block < rows."""
        if atom.op != "lt" or terms(atom.args[0]).get((self.index,), 0) <= 0:
            return False
        others = variables(atom.args[0]) - {self.index} | variables(atom.args[1])
        return all(str(v.payload) in GRID_NAMES or is_host_variable(v) for v in others)

    # ---- parts
    def written(self) -> list[Statement]:
        """Return what replaces the loop."""
        count = var(f"rows_{self.index.payload}")
        kept = [Allocate(b) for b in (*self.results, *self.carried.values())]
        row_0 = {self.index: ZERO}
        whole = copied(self.reduce, row_0)
        assert isinstance(whole, Reduce) and self.reduce.turn is not None
        whole.turn = substitute(self.reduce.turn, row_0)
        begin = [*self._copies([*self.head, *self._declared(self.first), *self.first]), whole, *self.repacks, *self._moves(), *self._copies(self.loads)]
        hand_over, take = replace(self.reduce, half="hand over"), replace(self.reduce, half="take")
        body = [*self.declared, *self.first, hand_over, *self.repacks, *self._second(sub(self.index, 1)), take, *self.repacks, *self._moves()]
        if self.reduce.is_fused_cluster:  # the reduction waits for warps of other blocks; warps of this block may still be reading their stage
            body.append(Sync("the stage of the row before has been read"))
        body += self.loads
        if self.around is not None:  # some of the rows of a step may not exist
            body = [*self.head, replace(self.around, body=body)]
        loop = Loop(self.index, count, body, label=self.loop.label, start=ONE)
        last = Block([*self._declared(self.second), *self._second(sub(count, 1))])
        return [Let(count, self.count), *kept, Block(begin), loop, last]

    def _copies(self, statements: Sequence[Statement]) -> list[Statement]:
        return [copied(s, {self.index: ZERO}) for s in statements]

    def _declared(self, users: list[Statement]) -> list[Statement]:
        """Return the declarations of the buffers that a pass writes."""
        written = {o.buffer for s in walk(users) if isinstance(s, Op) for o in s.outputs}
        return [s for s in self.declared if s.buffer in written]

    def _moves(self) -> list[Statement]:
        return [Move(kept, b) for b, kept in self.carried.items()]

    def _second(self, row: Sym) -> list[Statement]:
        """Return the second pass over a row, with separate variables for its stages."""
        mapping, lets = {self.index: row}, []
        for s in self.head:
            if isinstance(s, Let):
                mapping[s.variable] = var(f"{s.variable.payload}_before", extent=s.variable.extent)
                lets.append(Let(mapping[s.variable], substitute(s.value, {self.index: row})))
        out = [copied(s, mapping) for s in self.second]
        for inner in walk(out):
            if isinstance(inner, Op):
                inner.operands = [Access(self.carried.get(o.buffer, o.buffer), o.index) if isinstance(o, Access) else o for o in inner.operands]
        return [*lets, *out]
