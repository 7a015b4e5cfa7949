"""Inputs that an output overwrites: who loads them, and whether the kernel may write there while it runs.

Owns the pass `restrict_aliased_loads` and its proof. Whether the layouts agree, and whether ops read elements at other places, is the runtime's question.
Read first: `restrict_aliased_loads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..dtypes import DataType
from ..expr import ONE, Sym, conjunction, conjuncts, equal, var, variables
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType, ParallelType
from ..ir.values import LoadStoreOp, PointwiseOp, TensorView
from .state import BuildState
from .contracts import lowering_pass
from .kernel_ir import Access, Kernel, Loop, Nest, Op, Reduce, Statement


@dataclass(eq=False)
class Placed:
    """An op, its place in program order, and the loops around it, outermost first."""

    op: Op
    position: int
    loops: tuple[Loop, ...]

    @property
    def choices(self) -> list[Sym]:
        """The conditions of the predicate that select one of several threads that would do the same."""
        return [c for c in conjuncts(self.op.predicate) if c.op == "eq" or c.op == "var" and c.dtype is DataType.Bool]

    def reads(self, tensor: TensorView) -> bool:
        return any(isinstance(o, Access) and o.buffer.tensor is tensor for o in self.op.operands)

    def writes(self, tensor: TensorView) -> bool:
        return any(o.buffer.tensor is tensor for o in self.op.outputs)


@lowering_pass(needs=["workspaces"], before=["pipelines", "grouped predicates"])
def restrict_aliased_loads(kernel: Kernel, state: BuildState) -> Kernel:
    """Let only the storing thread load and compute a value that comes from an input that an output is written into.

    Before: T7 = T1[row] in all threads of a row;  if threadIdx.x == 0: T1[row] = f(T7), which races with the loads of the other threads.
    After: if threadIdx.x == 0: T7 = T1[row]. `kernel.in_place` has the positions of the aliased outputs that may be written in place: of each element
    of the input, one thread makes the only load, or all loads come before the block that stores is known to be the last.
    Here because: the flags of last blocks are part of the predicates, and prefetching has not duplicated loads yet.
    """
    fusion = state.fusion
    outputs = [(n, out, fusion.aliases[out]) for n, out in enumerate(fusion.outputs()) if out in fusion.aliases]
    if not outputs:
        return kernel
    ops = [Placed(op, n, loops) for n, (op, loops) in enumerate(_ops(kernel.body))]
    flags = {p.op.last_flag: p for p in ops if isinstance(p.op, Reduce) and p.op.last_flag}
    for _, _, source in outputs:
        _restrict(ops, source, flags)  # type: ignore[arg-type]
    kernel.in_place = tuple(n for n, out, source in outputs if _is_loaded_once(state, ops, source, out, flags))  # type: ignore[arg-type]
    return kernel


def _ops(body: list[Statement], loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Op, tuple[Loop, ...]]]:
    for statement in body:
        if isinstance(statement, Op):
            yield statement, loops
        elif isinstance(statement, Nest):
            yield from _ops(statement.body, (*loops, statement) if isinstance(statement, Loop) else loops)


def _restrict(ops: list[Placed], source: TensorView, flags: dict[str, Placed]) -> None:
    """Add to the ops that compute in registers from `source` the conditions that all their readers share, last ops first."""
    chain = {source}
    for placed in ops:
        if isinstance(placed.op.expr, (LoadStoreOp, PointwiseOp)) and any(placed.reads(t) for t in chain):
            chain |= {o.buffer.tensor for o in placed.op.outputs}
    indices = {loop.index for placed in ops for loop in placed.loops}
    for placed in reversed(ops):
        tensors = [o.buffer.tensor for o in placed.op.outputs]
        if chain.issuperset(tensors) and all(t.memory_type is MemoryType.local for t in tensors):
            readers = [r for r in ops if any(r.reads(t) for t in tensors)]
            shared = [c for c in readers[0].choices if all(c in r.choices for r in readers)] if readers else []
            known = [c for c in shared if _is_known(c, placed, readers, indices, flags)]
            for op in (placed.op, placed.op.at_row_end):
                if op is not None:
                    op.predicate = conjunction([op.predicate, *known])


def _is_known(choice: Sym, placed: Placed, readers: list[Placed], indices: set[Sym], flags: dict[str, Placed]) -> bool:
    """True if a condition of the readers is valid at the op, too: the op is after the flag, and inside the same loops."""
    if choice.op == "var":
        return flags[str(choice.payload)].position < placed.position
    needed = variables(choice) & indices
    around = [loop for loop in placed.loops if loop.index in needed]
    return {loop.index for loop in around} == needed and all(loop in r.loops for loop in around for r in readers)


def _is_loaded_once(state: BuildState, ops: list[Placed], source: TensorView, output: TensorView, flags: dict[str, Placed]) -> bool:
    """True if no thread can load an element of `source` after another one, or an earlier op, has overwritten it with `output`."""
    loads = [p for p in ops if p.reads(source)]
    stores = [p for p in ops if p.writes(output)]
    if len(loads) > 1:
        return False
    choices = dict.fromkeys(c for store in stores for c in store.choices)
    single = {_first(state, kind) for kind in state.launch}  # of the store: the single issuer of a bulk copy does not say which threads load
    for load in loads:
        awaited = [flags[str(c.payload)] for c in choices if c.op == "var" and load.position < flags[str(c.payload)].position]
        last = {reduce.op.last_flag for reduce in awaited}  # type: ignore[attr-defined]
        ordered = {kind for reduce in awaited for kind in reduce.op.grid_types}  # type: ignore[attr-defined]  # blocks that have loaded when they arrive
        wanted = _choices_of_a_single_load(state, load.op.outputs[0].buffer.tensor, ordered)
        wanted += [c for c in choices if c not in single and not (c.op == "var" and c.payload in last)]
        if not set(wanted) <= set(conjuncts(load.op.predicate)):
            return False
    return True


def _choices_of_a_single_load(state: BuildState, output: TensorView, ordered: set[ParallelType]) -> list[Sym]:
    """Conditions that leave one thread of those that load the same element into `output`, except for the blocks of `ordered`.

    In shared memory, an element has one writer in a block anyway.
    """
    kinds = [k for k in (GRID_TYPES if output.memory_type is MemoryType.shared else BLOCK_TYPES + GRID_TYPES) if k not in ordered]
    pairs = zip(output.get_loop_domain(), state.plan.groups[output])
    used = {g.parallel for axis, g in pairs if not axis.is_broadcast()}
    return [_first(state, p) for p in kinds if p in state.launch and p not in used and state.launch[p] is not ONE]


def _first(state: BuildState, kind: ParallelType) -> Sym:
    return equal(var(kind.value, extent=state.launch[kind]), 0)
