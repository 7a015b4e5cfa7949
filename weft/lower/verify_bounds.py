"""Verifies that accesses stay within their buffers, by evaluating them for some threads and for sizes that the host's checks allow.

A kernel is gone through with the first and the last index of each loop, by the first, the last and some other thread. So a bound that is missing shows where
sizes leave a remainder; sizes for which the host refuses the launch are not tried. Read first: `check_bounds`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from ..expr import Number, Sym, conjuncts, evaluate, evaluate_int, variables
from ..ir.block_ops import BlockSampleOp, sample_of
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType
from ..ir.graph_ops import LookupOp
from ..ir.values import ReductionOp, no_reductions
from ..schedule.peel import partial_vector
from .kernel_ir import (
    Access, Block, Buffer, If, Kernel, Let, LetRowEnd, Loop, Nest, Op, Statement, Unswitched, expressions_of, is_host_variable, walk,
)  # fmt: skip
from .kernel_sync import Role
from .state import absorbs_lanes

SIZES = (1, 2, 3, 7, 8, 31, 64, 100, 129, 256, 1000, 1024, 4096)
TRIES, KEPT = 40, 2
"""How many sets of sizes are drawn, and with how many of those that the host allows a kernel is evaluated."""
MOST_THREADS = 1024
Env = dict[Sym, Number]


class RuleBroken(Exception):
    """A rule of `weft.lower.verify` that a kernel breaks."""


def check_bounds(kernel: Kernel) -> None:
    """Raise RuleBroken for an access that is executed and outside of its buffer."""
    draw = random.Random(1)
    values = [value for s in walk(kernel.body) for value in (*expressions_of(s), *([s.start] if isinstance(s, Loop) else []))]
    sizes = [v for v in dict.fromkeys(v for value in (*values, *_of_launch(kernel)) for v in variables(value)) if is_host_variable(v)]
    kept = 0
    for _ in range(TRIES):
        env: Env = {v: max(v.lower, draw.choice(SIZES)) for v in sizes}
        try:
            if not _is_allowed(kernel, env):
                continue
            for thread in _threads(kernel, env, draw):
                _Thread(kernel, {**env, **thread}).body(kernel.body, {**env, **thread})
        except ZeroDivisionError:  # a reshape divides by a size of 0, which the host refuses
            continue
        kept += 1
        if kept == KEPT:
            return


def _of_launch(kernel: Kernel) -> Iterator[Sym]:
    yield from (*kernel.grid, *kernel.block, *kernel.facts, *(v for pair in kernel.assumptions for v in pair))
    yield from (wanted for _, wanted, _ in kernel.block_limits)
    for buffer in kernel.buffers.values():
        yield buffer.elems
        if buffer.memory is MemoryType.global_:
            yield from (v for axis, stride in buffer.tensor.strides().items() for v in (axis.sym, stride))


def _is_allowed(kernel: Kernel, env: Env) -> bool:
    """Whether the host would launch the kernel for these sizes."""
    threads = math.prod(evaluate_int(n, env) for n in kernel.block)
    return (
        threads <= MOST_THREADS and all(evaluate_int(extent, env) % divisor == 0 for extent, divisor in kernel.facts.items())
        and all(evaluate_int(wanted, env) <= limit for _, wanted, limit in kernel.block_limits)
        and all(evaluate_int(a, env) <= evaluate_int(b, env) for a, b in kernel.assumptions)
    )  # fmt: skip


def _threads(kernel: Kernel, env: Env, draw: random.Random) -> list[Env]:
    """The first thread, the last and two others, as values of the index variables."""
    launch = zip((*GRID_TYPES, *BLOCK_TYPES), (*kernel.grid, *(kernel.compute_block or kernel.block)))
    counts = {p.value: max(1, evaluate_int(n, env)) for p, n in launch}
    found = [dict.fromkeys(counts, 0), {name: n - 1 for name, n in counts.items()}]
    found += [{name: draw.randrange(n) for name, n in counts.items()} for _ in range(2)]
    used = {v for s in walk(kernel.body) for value in expressions_of(s) for v in variables(value) if str(v.payload) in counts}
    return [{v: thread[str(v.payload)] for v in used} for thread in found]


class _Thread:
    """Evaluates a kernel as one thread, with the first and the last index of each loop."""

    def __init__(self, kernel: Kernel, env: Env) -> None:
        self.reach = {buffer: _reach(buffer, env) for buffer in kernel.buffers.values()}

    def body(self, body: list[Statement], env: Env) -> None:
        for s in body:
            if isinstance(s, Let):
                if _is_known(s.value, env):
                    env = {**env, s.variable: evaluate(s.value, env)}
            elif isinstance(s, LetRowEnd):
                thread = evaluate_int(s.thread, env)
                env = {**env, s.variable: thread if thread < evaluate_int(s.skipped, env) else thread + evaluate_int(s.whole, env)}
            elif isinstance(s, Loop) and not s.is_once:
                if _is_known(s.extent, env) and _is_known(s.start, env):
                    start, end = evaluate_int(s.start, env), evaluate_int(s.extent, env)
                    for index in sorted({start, end - 1}) if end > start else ():
                        self.body(s.body, {**env, s.index: index})
            elif isinstance(s, Unswitched):
                self.body(s.branches[0 if _holds(s.test, env) else 1].body, env)
            elif isinstance(s, (If, Block)):
                if _holds(s.predicate if isinstance(s, If) else s.condition, env):
                    self.body(s.body, env)
            elif isinstance(s, Role) and s.warp is not None:
                continue
            elif isinstance(s, Nest):
                self.body(s.body, env)
            elif type(s) is Op and _holds(s.predicate, env):
                self.op(s, env)

    def op(self, s: Op, env: Env) -> None:
        """Check the accesses of an op; the source index of a lookup depends on values that are not known here."""
        places = [(out, 1 if isinstance(s.expr, ReductionOp) and absorbs_lanes(out.buffer.tensor) else s.vector_elems) for out in s.outputs]
        places += [(place, s.vector_elems) for place in s.operands[:1] if isinstance(place, Access) and not isinstance(s.expr, LookupOp)]
        places += [(place, 1) for place in s.operands[1:] if isinstance(place, Access)]  # a fill value, positions
        for place, elems in places:
            if isinstance(s.expr, BlockSampleOp) or not _is_known(place.index, env):
                continue
            if elems > 1 and any(evaluate_int(d, env) % elems for d in _divisors(place.index)):
                continue  # vectors across the ends of rows: schedulers choose none for such sizes, and the host has no check for it
            first, reach = evaluate_int(place.index, env), self.reach.get(place.buffer, evaluate_int(place.buffer.elems, env))
            if first < 0 or first + elems > reach:
                sizes = ", ".join(f"{v.payload} = {n}" for v, n in env.items())
                raise RuleBroken(f"{place.buffer.name}[{place.index}] x{elems} is element {first} of {reach} for {sizes}")


def _reach(buffer: Buffer, env: Env) -> int:
    """The number of elements of a buffer; for a tensor of the caller, up to its last element in memory."""
    has_room = bool(partial_vector(buffer.tensor))  # padding between rows of partial results
    strides = buffer.tensor.strides() if buffer.memory is MemoryType.global_ and not has_room else {}
    if buffer.memory is not MemoryType.global_ or sample_of(buffer.tensor) is not None or not strides:
        return evaluate_int(buffer.elems, env) if sample_of(buffer.tensor) is None or buffer.memory is not MemoryType.global_ else 1 << 62
    extents = {axis: evaluate_int(axis.sym, env) for axis in strides}
    if any(axis not in strides for axis in no_reductions(buffer.tensor.get_logical_domain()) if not axis.is_broadcast()):
        return 1 << 62
    return 1 + sum((n - 1) * evaluate_int(strides[axis], env) for axis, n in extents.items())


def _divisors(index: Sym) -> Iterator[Sym]:
    """The divisors of remainders in an index."""
    for arg in index.args:
        yield from _divisors(arg)
    if index.op == "mod":
        yield index.args[1]


def _is_known(value: Sym, env: Env) -> bool:
    return variables(value) <= env.keys()


def _holds(condition: Sym, env: Env) -> bool:
    """Whether a condition holds; unknown ones (whether this block is the last) count as true."""
    return all(not _is_known(part, env) or bool(evaluate(part, env)) for part in conjuncts(condition))


__all__ = ["RuleBroken", "check_bounds"]
