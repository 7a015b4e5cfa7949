"""The ends of phased rows: what the loops over whole, aligned vectors leave is done behind each of these loops, one element per thread.

Read first: `add_row_ends`.
"""

from __future__ import annotations

from ..errors import InternalError
from ..expr import ZERO, Sym, add, conjunction, conjuncts, const, floordiv, mul, sub, var, variables
from ..ir.enums import MemoryType, ParallelType
from ..schedule.phased_rows import END, PhasedRows, skipped_variable
from .state import BuildState
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Block, Buffer, Kernel, Let, LetRowEnd, Loop, Nest, Op, Reduce, Statement, copied, expressions_of, walk
from .loops import is_global_load


@lowering_pass(needs=["pipelines"], gives=["row ends"], before=["grouped predicates"])
def add_row_ends(kernel: Kernel, state: BuildState) -> Kernel:
    """Let the first threads of a row do its ends.

    Before: the loops over a phased row run over whole vectors; their ops know what they do at a row's end.   After: behind each of these loops stand
    its ops on one element, with a place for it in the arrays; the kernel begins with what is skipped and this thread's element. Vectors of inputs that
    all rows read from their start, as weights, are marked: these do not begin where an aligned vector does.
    Here because: loops over rows stand where they stay, and predicates are not grouped yet.
    """
    if state.phased is not None:
        for buffer in _arrays(kernel):
            buffer.elems = add(buffer.elems, 1)
        kernel.body = [*_head(state, state.phased), *_body(kernel.body)]
        for s in walk(kernel.body):
            if isinstance(s, Reduce):
                s.predicate = _of_all_threads(s)
            elif isinstance(s, Op) and s.vector_elems > 1 and isinstance(s.operands[0], Access):
                source = s.operands[0].buffer
                s.is_shifted = source.memory is MemoryType.global_ and source.tensor.name not in state.phased.aligned
        kernel.assumptions += [(const(state.phased.min_threads), most) for most in (state.phased.length, state.launch[ParallelType.block_x])]
    return kernel


def _arrays(kernel: Kernel) -> list[Buffer]:
    """The register arrays that hold an element at a row's end."""
    ends = [s.at_row_end for s in walk(kernel.body) if isinstance(s, Op) and s.at_row_end is not None]
    places = [o for s in ends for o in (*s.outputs, *s.operands) if isinstance(o, Access)]
    return list(dict.fromkeys(o.buffer for o in places if o.index is not ZERO and o.index is o.buffer.elems))


def _of_all_threads(reduce: Reduce) -> Sym:
    """Return the predicate of a reduction across threads with those that have no vector let in: each has the identity, or an element at an end."""
    operand = reduce.operands[0]
    partial = operand.buffer.tensor.definition() if isinstance(operand, Access) and operand.buffer.fill else None
    if partial is None or partial.attributes["kind"] != reduce.expr.attributes["kind"]:
        raise InternalError(f"{reduce.expr} across threads has no partial result that begins with its identity, and leaves out the ends of rows")
    return conjunction(a for a in conjuncts(reduce.predicate) if not (a.op == "lt" and a.args[0].payload == ParallelType.block_x.value))


def _head(state: BuildState, phased: PhasedRows) -> list[Statement]:
    """Return the statements that compute the phase."""
    skipped = skipped_variable(const(phased.vector_elems))
    row = _row_index(state, phased)
    whole = mul(floordiv(sub(phased.length, skipped), phased.vector_elems), phased.vector_elems)
    thread = var(ParallelType.block_x.value, extent=state.launch[ParallelType.block_x])
    if phased.blocks is not None:  # the ends are for the threads of the first block: the others count from beyond them
        thread = add(thread, mul(var(phased.blocks.value, extent=state.launch[phased.blocks]), phased.min_threads))
    return [
        Let(skipped, ZERO if row is None else phased.skipped(row)),
        LetRowEnd(END, thread, skipped, whole),
    ]


def _row_index(state: BuildState, phased: PhasedRows) -> Sym | None:
    """Return the index of this thread's row. Errors: InternalError where a thread has several rows."""
    if phased.rows is None:
        return None
    for expr in state.exprs:
        nest = state.plan.nest(expr)
        index = state.indexer(expr).find(phased.rows)
        if index is not None:
            if variables(index) & {g.index for g in nest if not g.parallel.is_bound}:
                raise InternalError(f"a thread has several rows, {phased.rows} = {index}, and the ends of rows are for one at a time")
            return index
    raise InternalError(f"no loops determine {phased.rows}, on which the phase of a row depends")


def _body(statements: list[Statement]) -> list[Statement]:
    """Return the statements with the ends of rows behind neighbours that run over a row; loads are neighbours of loads only, to be on their way soon."""
    out: list[Statement] = []
    ends: list[Statement] = []
    for s in statements:
        found = _ends(s)
        if ends and not isinstance(s, Allocate) and not (found and _are_loads(found) is _are_loads(ends)):
            out.append(Block(ends))
            ends = []
        if not found and isinstance(s, Nest):
            s.body = _body(s.body)
            _check_once(s)
        out.append(s)
        ends += found
    return [*out, Block(ends)] if ends else out


def _check_once(nest: Nest) -> None:
    """Raise InternalError where the ends of a row would stand in a loop over that row: they would run in each iteration, in variables that its elements use."""
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

    What has one value for a whole row, as what is repeated along it, is computed again beside them.
    """
    inner = list(walk([s]))
    ops = [x for x in inner if isinstance(x, Op)]
    loops = {x.index for x in inner if isinstance(x, Loop)}
    if not any(x.at_row_end for x in ops):
        return []
    if not all(isinstance(x, (Op, Loop, Allocate)) for x in inner) or not all(x.at_row_end or _is_of_row(x, loops) for x in ops):
        return []
    for x in ops:
        if x.at_row_end and variables(x.at_row_end.predicate) & loops:
            raise InternalError(f"the predicate of {x.expr} at the end of a row depends on the loop that it stands behind")
    return [(x.at_row_end or copied(x, {})) if isinstance(x, Op) else x for x in inner if not isinstance(x, Loop)]


def _is_of_row(op: Op, loops: set[Sym]) -> bool:
    """True for an op that does the same whichever element of the row the loops around it are at."""
    return type(op) is Op and not _variables(op) & loops
