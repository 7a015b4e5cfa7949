"""Iterations of long unrolled loops, kept apart by a branch that is always taken.

Why: the compiler mixes all iterations of an unrolled loop, to hide latencies, and in long ones it may then have more values than registers. In the backward
of a Jensen-Shannon divergence, about 100 instructions for each of 32 elements of a thread, it spilled 2,328 bytes per thread; with a branch around each vector
of eight elements, 56. The branch is there where a kernel spills (`weft.runtime.spills`): otherwise mixing is right, and so is what neighbours share.
Read first: `keep_iterations_apart`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from ..analysis.op_cost import cost_of
from ..analysis.precision import wide_tensors
from ..expr import evaluate_int
from ..ir.values import TensorView
from .contracts import lowering_pass
from .kernel_ir import Allocate, Kernel, Loop, Nest, Op, Statement, walk
from .state import BuildState

LONG_LOOP = 1600
"""Instructions of an unrolled loop, by the costs of its ops, from which iterations may be kept apart. Counted for sm_90a: four quotients, four logarithms and
two exponentials for each of 32 elements spill 980 bytes per thread with 48 registers, and 8 apart. Shorter loops spill less, and the kernels of norms are among
them."""
LONG_ITERATION = 100
"""Of an iteration, so that the instructions of one hide each other's latency."""


@lowering_pass(needs=["unrolled"])
def keep_iterations_apart(kernel: Kernel, state: BuildState) -> Kernel:
    """Mark long unrolled loops of what each thread does by itself.

    Before: loops are marked as unrolled.   After: `Loop.is_apart` is set where the compiler may mix too much.
    Here because: remaining predicates are Ifs, and no later pass adds ops to a loop.
    """
    _mark(kernel.body, wide_tensors(state.fusion))
    return kernel


def _mark(body: Sequence[Statement], wide: Set[TensorView]) -> None:
    for statement in body:
        if isinstance(statement, Loop) and statement.unroll and all(map(_is_alone, walk(statement.body))):
            length, count = _instructions(statement.body, wide), evaluate_int(statement.extent, {})
            statement.is_apart = count > 1 and length >= LONG_ITERATION and length * count >= LONG_LOOP
        elif isinstance(statement, Nest):
            _mark(statement.body, wide)


def _is_alone(statement: Statement) -> bool:
    """True for what a thread does without others. Iterations that check bounds are apart by that."""
    return isinstance(statement, (Op, Allocate, Loop))


def _instructions(body: Sequence[Statement], wide: Set[TensorView]) -> int:
    """Return about how many instructions statements take, loops unrolled."""
    total = 0
    for statement in body:
        if isinstance(statement, Op):
            total += cost_of([statement.expr], wide).instructions * statement.vector_elems
        elif isinstance(statement, Nest):
            times = evaluate_int(statement.extent, {}) if isinstance(statement, Loop) and statement.extent.is_const else 1
            total += times * _instructions(statement.body, wide)
    return total


__all__ = ["keep_iterations_apart"]
