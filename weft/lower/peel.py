"""Loop peeling for rows: the elements before the first aligned vector and after the last whole one, parts that need no bounds checks, and the rest.

    for i in parts:  if (position(i) < n) op(i)      becomes      for i in [0, full):      op(i)
                                                                  for i in [full, parts):  if (position(i) < n) op(i)
                                                                  if (row_end < n) op on this thread's element at the ends

`weft.schedule.peel` says which of these a row has. Why parts: without vectors every element asks whether it exists, by instructions and a branch of its own
(docs/constants.md, persistent_params.py).
Read first: `peel_rows`.
"""

from __future__ import annotations

from ..errors import InternalError
from ..expr import ONE, ZERO, Sym, add, conjunction, conjuncts, const, floordiv, maximum, minimum, mul, product, sub, var, variables
from ..ir.enums import MemoryType
from ..schedule.peel import END, Peel, Phase, skipped_variable
from .bounds import Freed, Ranges, in_two, is_bound_in
from .contracts import lowering_pass
from .kernel_ir import (
    Access, Allocate, Block, Buffer, Kernel, Let, LetRowEnd, Loop, Nest, Op, Reduce, Statement, copied, expressions_of, is_collective, walk,
)  # fmt: skip
from .kernel_sync import GridSync
from .loops import is_global_load
from .state import BuildState


@lowering_pass(needs=["pipelines"], gives=["peeled rows"], before=["grouped predicates"])
def peel_rows(kernel: Kernel, state: BuildState) -> Kernel:
    """Peel the loops over rows as the schedule says.

    Before: loops run over all parts of a row, with all bounds in the predicates of their ops; `at_row_end` says what an op does at a row's end.   After: full
    parts have no bounds checks of the row, and the others have separate loops; `kernel.assumptions` has the conditions on sizes. With a phase, each of these
    loops is followed by its ops on one element, which has an extra place in the arrays; the kernel begins with the number of skipped elements and this thread's
    element. Vectors of inputs that all rows read from the start, such as weights, are marked as shifted, because they are not aligned.
    Here because: loops over rows, barriers and pipelines are in their final places, and predicates are not grouped yet.
    """
    peel = state.peel
    if peel is not None and peel.phase is not None:
        _add_ends(kernel, state, peel.phase)
    if peel is not None and peel.full_parts:
        end = _end_of_rows(kernel)
        full = _FullParts(peel)
        kernel.body[:end] = full.body(kernel.body[:end])
        kernel.assumptions += [a for a in full.assumptions if a not in kernel.assumptions]
    return kernel


def _end_of_rows(kernel: Kernel) -> int:
    """Return the index in the body after the last statement about rows: after the grid-wide barrier columns are divided among threads in another way."""
    meets = (n for n, s in enumerate(kernel.body) if any(isinstance(inner, GridSync) for inner in walk([s])))
    return next(meets, len(kernel.body))


# ---- parts that are full
class _FullParts:
    """Removes the bounds checks of rows in full parts."""

    def __init__(self, peel: Peel) -> None:
        self.peel = peel
        self.assumptions: dict[tuple[Sym, Sym], None] = {}

    def freed(self, statements: list[Statement], index: Sym | None = None) -> list[Statement]:
        """Return statements without the bounds of positions in a row; with `index`, of those that depend on it."""

        def goes(atom: Sym) -> bool:
            is_kept = not is_bound_in(atom, self.peel.sizes) or self.peel.keeps_guards and atom.args[0].is_var
            return not is_kept and (index is None or index in variables(atom.args[0]))

        freed = Freed(goes, enters_ahead=True)
        freed.body(statements, Ranges(frozenset(), {}, {}, is_of_block=False))
        self.assumptions.update(((add(test.args[0], 1), test.args[1]), None) for test in freed.tests)
        return statements

    def body(self, statements: list[Statement]) -> list[Statement]:
        if self.peel.is_whole:
            return self.freed(statements)
        out: list[Statement] = []
        for s in statements:
            if isinstance(s, Loop) and self.is_over_parts(s):
                out += self.two_loops(s)
                continue
            if isinstance(s, Nest):
                s.body = self.body(s.body)
            out.append(s)
        return out

    def is_over_parts(self, loop: Loop) -> bool:
        inner = list(walk(loop.body))
        if not loop.extent.is_const or loop.extent.value != self.peel.parts:
            return False
        if not all(isinstance(s, (Op, Loop, Allocate)) and not is_collective(s) for s in inner):
            return False
        bounds = (a for s in inner if isinstance(s, Op) for a in conjuncts(s.predicate) if is_bound_in(a, self.peel.sizes))
        return any(loop.index in variables(a) for a in bounds)

    def two_loops(self, loop: Loop) -> list[Statement]:
        """Return the loop over the full parts, and that over the rest with every bound."""
        full = const(self.peel.full_parts)
        piece = Loop(loop.index, full, [copied(s, {}) for s in loop.body])
        self.freed([piece], loop.index)
        return in_two(loop, full, piece.body, loop.body)


# ---- the ends of rows
def _add_ends(kernel: Kernel, state: BuildState, phase: Phase) -> None:
    """Let the first threads of a row compute the elements at its ends."""
    for buffer in _arrays(kernel):
        buffer.elems = add(buffer.elems, buffer.end_elems)
    kernel.body = [*_head(state, phase), *_with_ends(kernel.body)]
    for s in walk(kernel.body[: _end_of_rows(kernel)]):
        if isinstance(s, Reduce) and set(phase.of_threads) & set(s.thread_types):
            s.predicate = _of_all_threads(s, phase)
        elif isinstance(s, Op) and s.vector_elems > 1 and isinstance(s.operands[0], Access):
            source = s.operands[0].buffer
            s.is_shifted = source.memory is MemoryType.global_ and source.tensor.name not in phase.aligned
    kernel.assumptions += [(const(phase.min_threads), most) for most in (phase.length, product(state.launch[kind] for kind in phase.of_threads))]


def _arrays(kernel: Kernel) -> list[Buffer]:
    """The register arrays that hold an element at a row's end."""
    ends = [s.at_row_end for s in walk(kernel.body) if isinstance(s, Op) and s.at_row_end is not None]
    places = [o for s in ends for o in (*s.outputs, *s.operands) if isinstance(o, Access)]
    return list(dict.fromkeys(o.buffer for o in places if o.buffer.end_elems is not ZERO))


def _of_all_threads(reduce: Reduce, phase: Phase) -> Sym:
    """Return the predicate of a reduction across threads, extended to threads without a vector: each has the identity, or an element at a row's end."""
    operand = reduce.operands[0]
    partial = operand.buffer.tensor.definition() if isinstance(operand, Access) and operand.buffer.fill else None
    if partial is None or partial.attributes["kind"] != reduce.expr.attributes["kind"]:
        raise InternalError(f"{reduce.expr} across threads has no partial result that begins with its identity, and leaves out the ends of rows")
    threads = {kind.value for kind in phase.of_threads}
    return conjunction(a for a in conjuncts(reduce.predicate) if not (a.op == "lt" and a.args[0].payload in threads))


def _head(state: BuildState, phase: Phase) -> list[Statement]:
    """Return the statements that compute the phase."""
    skipped = skipped_variable(const(phase.vector_elems))
    row = None if phase.is_tailed else _row_index(state, phase)
    whole = mul(floordiv(sub(phase.length, skipped), phase.vector_elems), phase.vector_elems)
    thread, others = ZERO, ONE
    for kind in phase.of_threads:
        thread = add(thread, mul(var(kind.value, extent=state.launch[kind]), others))
        others = mul(others, state.launch[kind])
    if phase.blocks is not None:  # threads of the first block do the ends: in other blocks the element's number is out of range
        block = var(phase.blocks.value, extent=state.launch[phase.blocks])
        thread = add(thread, mul(block, phase.min_threads))
        if phase.piece is not None:  # elements after the last whole vector belong to the block with that position; in others they are beyond the row
            last = floordiv(whole, phase.piece)
            is_other = minimum(maximum(sub(block, last), sub(last, block)), 1)
            in_front = mul(minimum(block, 1), skipped)  # no thread of this block does the elements before the first vector
            whole = add(add(sub(whole, mul(block, phase.min_threads)), in_front), mul(is_other, phase.length))
    return [
        Let(skipped, ZERO if row is None else phase.skipped(row)),
        LetRowEnd(END, thread, skipped, whole),
    ]


def _row_index(state: BuildState, phase: Phase) -> Sym | None:
    """Return the index of this thread's row. Errors: InternalError if a thread has several rows."""
    if phase.rows is None:
        return None
    for expr in state.exprs:
        nest = state.plan.nest(expr)
        index = state.indexer(expr).find(phase.rows)
        if index is not None:
            if variables(index) & {g.index for g in nest if not g.parallel.is_bound}:
                raise InternalError(f"a thread has several rows, {phase.rows} = {index}, and the ends of rows are for one at a time")
            return index
    raise InternalError(f"no loops determine {phase.rows}, on which the phase of a row depends")


def _with_ends(statements: list[Statement]) -> list[Statement]:
    """Return the statements with the ends of rows after neighbours that run over a row; loads are grouped only with loads, so that they are issued early."""
    out: list[Statement] = []
    ends: list[Statement] = []
    for s in statements:
        found = _ends(s)
        if ends and not isinstance(s, Allocate) and not (found and _are_loads(found) is _are_loads(ends)):
            out.append(Block(ends))
            ends = []
        if not found and isinstance(s, Nest):
            s.body = _with_ends(s.body)
            _check_once(s)
        out.append(s)
        ends += found
    return [*out, Block(ends)] if ends else out


def _check_once(nest: Nest) -> None:
    """Raise InternalError if the ops for a row's ends would be inside a loop over that row: they would run in each iteration, on variables that its elements
    use."""
    if not isinstance(nest, Loop) or nest.is_once:
        return
    ops = [(s, s.at_row_end) for s in walk(nest.body) if isinstance(s, Op) and s.at_row_end is not None]
    for op, end in ops:
        if nest.index in _variables(op) and nest.index not in _variables(end):
            raise InternalError(f"{op.expr} is in a loop over a row with ops that the end of the row does not have")


def _variables(op: Op) -> set[Sym]:
    return {v for value in expressions_of(op) for v in variables(value)}


def _are_loads(ends: list[Statement]) -> bool:
    return all(is_global_load(s.expr) for s in ends if isinstance(s, Op))


def _ends(s: Statement) -> list[Statement]:
    """Return the statements for a row's end of a loop over the row, or of an op on one vector; none for others.

    A value that is equal for the whole row (repeated along it) is computed again with them. A loop over rows contains the ends of each row.
    """
    inner = list(walk([s]))
    ops = [x for x in inner if isinstance(x, Op)]
    loops = {x.index for x in inner if isinstance(x, Loop)}
    if not any(x.at_row_end for x in ops):
        return []
    if not all(isinstance(x, (Op, Loop, Allocate)) for x in inner) or not all(x.at_row_end or _is_of_row(x, loops) for x in ops):
        return []
    if any(x.at_row_end and _variables(x.at_row_end) & loops for x in ops):
        return []
    return [(x.at_row_end or copied(x, {})) if isinstance(x, Op) else x for x in inner if not isinstance(x, Loop)]


def _is_of_row(op: Op, loops: set[Sym]) -> bool:
    """True for an op that does the same for every element of the row."""
    return type(op) is Op and not _variables(op) & loops
