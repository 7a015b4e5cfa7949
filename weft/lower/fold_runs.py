"""Folds several consecutive elements into one state at once: the check of the state is done once for all of them.

Why: a thread that reads columns folds each element of a column by itself, and five of ten instructions asked whether it was the thread's first.
Read first: `fold_runs`.
"""

from __future__ import annotations

from ..expr import TRUE, ZERO, Sym, add, mul, variables
from ..ir.enums import MemoryType
from ..ir.values import ReductionOp
from ..ops.monoids import MONOIDS, StateMonoid
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Kernel, Loop, Nest, Op, Statement, walk
from .state import BuildState


@lowering_pass(needs=["unrolled"])
def fold_runs(kernel: Kernel, state: BuildState) -> Kernel:
    """Number the reductions in unrolled loops that fold into the same state, if the state can fold a run of elements at once.

    Before: each element is folded by itself.   After: `Op.run` has the number and the length of the run.
    Here because: remaining predicates are Ifs around ops, and loops are marked as unrolled.
    """
    _runs(kernel.body, [])
    return kernel


def _runs(body: list[Statement], loops: list[Loop]) -> None:
    """loops: the unrolled loops around `body` with nothing between them, outermost first."""
    for s in body:
        if isinstance(s, Loop) and s.unroll and s.start is ZERO:
            _runs(s.body, [*loops, s])
        elif isinstance(s, Nest):
            _runs(s.body, [])
        elif isinstance(s, Op) and _takes_runs(s):
            _give_run(s, loops)


def _takes_runs(s: Op) -> bool:
    """True for an unpredicated fold of a single element into a state in registers."""
    if type(s) is not Op or not isinstance(s.expr, ReductionOp) or s.predicate is not TRUE or s.vector_elems != 1 or s.at_row_end is not None:
        return False
    monoid, output = MONOIDS[s.expr.attributes["kind"]], s.outputs[0].buffer
    if not isinstance(monoid, StateMonoid) or not monoid.takes_runs:
        return False
    return output.memory is MemoryType.local and all(o.buffer.dtype is not output.dtype for o in s.operands if isinstance(o, Access))


def _give_run(s: Op, loops: list[Loop]) -> None:
    """Number `s` within the outermost loop in which only `s` folds into its state, and in whose iterations the state goes on."""
    number: Sym = ZERO
    count = 1
    state = s.outputs[0].buffer
    for loop in loops:
        inside = list(walk(loop.body))
        folds = [inner for inner in inside if isinstance(inner, Op) and any(o.buffer is state for o in inner.outputs)]
        begins_again = any(isinstance(inner, Allocate) and inner.buffer is state for inner in inside)
        if folds != [s] or begins_again:
            number, count = ZERO, 1
        elif loop.index not in variables(s.outputs[0].index):
            number, count = add(mul(number, loop.extent), loop.index), count * loop.extent.value  # type: ignore[assignment]  # of an unrolled loop: a count
    s.run = (number, count) if count > 1 else None
