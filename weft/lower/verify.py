"""Verifies that the kernel IR is well formed. Tests run it after every pass (the setting `verify`).

Nothing here decides what a kernel is; a rule that fails is a defect of the pass before. The rules follow program order, loops around and conditions around;
bounds of accesses are tried with sizes that the host's checks allow, at the ends of every loop.
Read first: `verify`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..errors import InternalError
from ..expr import ZERO, Number, Sym, evaluate_int, sub, terms, variables
from ..ir.block_ops import BlockSampleOp
from ..ir.enums import GRID_TYPES, MemoryType
from ..ir.graph_ops import At, BagOp, LookupOp, ScatterStoreOp
from ..ir.values import TensorView
from .blocks import row_variable
from .state import BuildState
from .hazards import buffers_of, crosses_threads
from .feeds import Feed
from .kernel_ir import (
    Access, Allocate, Block, Branch, Buffer, BulkCopy, GroupFold, If, Kernel, Let, LetRowEnd, Loop, Masked, Nest, Op, Reduce, Scan, Statement,
    THREADS, Unswitched, depends_on_threads, expressions_of, is_collective, is_host_variable, walk,
)  # fmt: skip
from .kernel_sync import Arrive, DeclareFlag, ElectedThread, InitBarrier, OneThread, ReleaseStage, Role, Roles, Sync, WaitCopies, WaitStage
from .lookups import bag_variable, position_variable, scatter_variable
from .verify_bounds import RuleBroken, check_bounds

MANY = 1 << 20
"""A size large enough that every loop has several iterations."""
BLOCKS = {p.value for p in GRID_TYPES}


class BrokenKernel(InternalError):
    code = "W911"
    what = "after the pass {after}, the kernel {kernel} is not well formed: {reason}"
    fix = "correct that pass; WEFT_DUMP=passes shows the kernel before and after it"


def verify(kernel: Kernel, state: BuildState, after: str, given: frozenset[str]) -> None:
    """Check the kernel after a pass. given: properties that the passes so far established (`weft.lower.contracts`).

    Errors: BrokenKernel with the pass and the rule.
    """
    try:
        _names(kernel, state, given)
        _uniform(kernel.body, None)
        _branches(kernel)
        if "block syncs" in given:
            _Hazards(kernel, state, has_pipelines="pipelines" in given).body(kernel.body)
        if "pipelines" in given:
            for feed in dict.fromkeys(state.feeds.values()):
                _stages(kernel, feed)
        if "kernel head" in given:
            _registers_go_up(kernel)
            check_bounds(kernel)
    except RuleBroken as found:
        raise BrokenKernel(after=after, kernel=kernel.name, reason=found) from None


def _registers_go_up(kernel: Kernel) -> None:
    """Check that no array in registers is indexed by a negative multiple of a loop's index: NVRTC 13.0 makes wrong code of `T[i * -4 + 7]` in an unrolled
    loop, as if nothing had been written to these elements. Such a loop descends instead."""
    loops = {s.index for s in walk(kernel.body) if isinstance(s, Loop) and not s.is_once}
    for s in walk(kernel.body):
        for place in (*s.outputs, *s.operands) if isinstance(s, Op) else ():
            if isinstance(place, Access) and place.buffer.memory is MemoryType.local:
                if any(coefficient < 0 and not loops.isdisjoint(factors) for factors, coefficient in terms(place.index).items()):
                    raise RuleBroken(f"{place.buffer.name}[{place.index}], in registers, is indexed by a negative multiple of a loop's index")


# ---------------------------------------------------------------- names
@dataclass(frozen=True)
class _Scope:
    """The names that are defined at a statement."""

    variables: frozenset[Sym]
    buffers: frozenset[Buffer]
    flags: frozenset[str]


def _names(kernel: Kernel, state: BuildState, given: frozenset[str]) -> None:
    """Check that every variable and buffer is defined before its first use, in the same body or an enclosing one."""
    free: set[str] = set()  # names that a later pass defines
    if "pipelines" not in given:
        free |= {str(f.stage.payload) for f in state.feeds.values() if f.stage.is_var}
    if "peeled rows" not in given:
        free |= {"skipped", "row_end"}
    params = {b for b in kernel.buffers.values() if b.memory is MemoryType.global_}
    _names_of(kernel.body, _Scope(frozenset(), frozenset([*params, *kernel.workspaces]), frozenset()), free)


def _names_of(body: list[Statement], scope: _Scope, free: set[str]) -> _Scope:
    """Check a body; return the names that are defined after it."""
    for s in body:
        known = scope
        if isinstance(s, Op) and isinstance(s.expr, LookupOp):
            own = {position_variable(s.expr, p.operand) for p in s.expr.positions if isinstance(p, At)}
            own |= {bag_variable(s.expr)} if isinstance(s.expr, BagOp) else set()
            known = replace(scope, variables=scope.variables | own)
        elif isinstance(s, Op) and isinstance(s.expr, ScatterStoreOp):
            known = replace(scope, variables=scope.variables | {scatter_variable(s.expr)})
        elif isinstance(s, Op) and isinstance(s.expr, BlockSampleOp):
            known = replace(scope, variables=scope.variables | {row_variable(s.expr.outputs[0])})  # type: ignore[arg-type]
        for value in expressions_of(s):
            _check_variables(value, s, known, free)
        for buffer in buffers_of(s):
            if buffer not in scope.buffers:
                raise RuleBroken(f"{buffer.name} is used before it is declared, by {_shown(s)}")
        if isinstance(s, Allocate):
            scope = replace(scope, buffers=scope.buffers | {s.buffer})
        elif isinstance(s, (Let, LetRowEnd)):
            scope = replace(scope, variables=scope.variables | {s.variable})
        elif isinstance(s, DeclareFlag):
            scope = replace(scope, flags=scope.flags | {s.name})
        elif isinstance(s, Loop):
            if not s.is_once and s.index.extent is not None and not s.start.is_var and _is_longer(s.extent, s.index.extent):
                raise RuleBroken(f"the loop over {s.index} has {s.extent} iterations, and its index stands for {s.index.extent}")
            inside = scope if s.is_once else replace(scope, variables=scope.variables | {s.index})
            scope = replace(scope, flags=_names_of(s.body, inside, free).flags)
        elif isinstance(s, Nest):
            inside = replace(scope, variables=scope.variables | {s.lane}) if isinstance(s, Role) and s.lane is not None else scope
            scope = replace(scope, flags=_names_of(s.body, inside, free).flags)
        if isinstance(s, Reduce) and s.last_flag:
            scope = replace(scope, flags=scope.flags | {s.last_flag})
    return scope


def _is_longer(a: Sym, b: Sym) -> bool:
    difference = sub(a, b)
    return difference.is_const and difference.value > 0  # type: ignore[operator]


def _check_variables(value: Sym, s: Statement, scope: _Scope, free: set[str]) -> None:
    for v in variables(value):
        name = str(v.payload)
        if v in scope.variables or name in THREADS | BLOCKS or is_host_variable(v) or name in free:
            continue
        if v.dtype.is_bool and name in scope.flags or any(str(d.payload) == name for d in scope.variables):
            continue
        raise RuleBroken(f"{name} is used where it is not defined, by {_shown(s)}")


def _shown(s: Statement) -> str:
    if isinstance(s, Op):
        return f"{', '.join(o.buffer.name for o in s.outputs)} = {s.expr.op_name}(...)"
    return type(s).__name__


# ---------------------------------------------------------------- divergence
def _uniform(body: list[Statement], divergent: str | None) -> None:
    """Check that no barrier or collective statement is in a divergent branch."""
    for s in body:
        if divergent is not None and (isinstance(s, (Sync, Roles)) or is_collective(s) and not _is_alone(s)):
            raise RuleBroken(f"{_shown(s)} is executed by all threads of a block, and stands under {divergent}")
        inside = divergent
        if isinstance(s, (OneThread, ElectedThread)):
            inside = "one thread" if not isinstance(s, OneThread) or s.kinds else divergent
        elif isinstance(s, Role):
            inside = f"the role {s.name!r}" if s.warp is not None else divergent
        elif isinstance(s, If):
            inside = f"the condition {s.predicate}" if depends_on_threads([s.predicate]) else divergent
        elif isinstance(s, Loop):
            inside = f"a loop of {s.extent} iterations" if depends_on_threads([s.start, s.extent]) else divergent
        elif isinstance(s, (Branch, Masked)):
            inside = f"the condition {s.test}" if depends_on_threads([s.test]) else divergent
        elif isinstance(s, (Block, Unswitched)):
            condition = s.condition if isinstance(s, Block) else s.test
            if depends_on_threads([condition]):
                raise RuleBroken(f"the condition {condition} is to be the same in all threads of a block")
        if isinstance(s, Nest):
            _uniform(s.body, inside)


def _branches(kernel: Kernel) -> None:
    """Check that both blocks of a branch write the same outer variables."""
    for s in walk(kernel.body):
        if isinstance(s, Branch):
            first, second = ({o.buffer for t in walk(b.body) if isinstance(t, Op) for o in t.outputs} - _declared(b) for b in s.branches)
            if first != second:
                names = ", ".join(sorted(b.name for b in first ^ second))
                raise RuleBroken(f"only one block of the branch on {s.test} writes {names}")


def _declared(nest: Nest) -> set[Buffer]:
    return {s.buffer for s in walk(nest.body) if isinstance(s, Allocate)}


def _is_alone(s: Statement) -> bool:
    """True for a reduction across one thread only."""
    return isinstance(s, Reduce) and not s.thread_types and not s.grid_types


# ---------------------------------------------------------------- hazards
@dataclass
class _Hazards:
    """Walks a kernel in program order, each loop twice, and tracks the accesses to shared memory since the last barrier."""

    kernel: Kernel
    state: BuildState
    has_pipelines: bool
    written: set[TensorView] = field(default_factory=set)  # since the last barrier
    read: set[TensorView] = field(default_factory=set)
    waited: set[int] = field(default_factory=set)  # feeds whose stage was waited for

    def __post_init__(self) -> None:
        shared = {b.tensor for b in self.kernel.buffers.values() if b.memory is MemoryType.shared}
        feeds = self.state.feeds
        stored = {
            p.buffer.tensor for s in walk(self.kernel.body) if isinstance(s, BulkCopy) and s.outputs[0].buffer.memory is MemoryType.global_
            for p in s.operands if isinstance(p, Access)
        }  # fmt: skip
        ruled = shared - feeds.keys() - (set() if self.has_pipelines else stored)
        self.crossing = {t for t in ruled if crosses_threads(self.state, t)}
        self.feeds: dict[TensorView, Feed] = feeds if self.has_pipelines else {}

    def body(self, body: list[Statement]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: Statement) -> None:
        is_meeting = isinstance(s, (GroupFold, Reduce, Scan)) and (s.workspace is not None or isinstance(s, Reduce) and s.is_fused_cluster)
        if isinstance(s, (Sync, Roles)) or is_meeting and not (isinstance(s, Reduce) and s.half == "hand over"):
            self.operands(s)
            self.written.clear()
            self.read.clear()
        elif isinstance(s, WaitStage):
            self.waited |= {f.number for f in self.feeds.values() if f.full is s.barrier.buffer}
        elif isinstance(s, WaitCopies):
            self.waited |= {f.number for f in self.feeds.values() if f.style == "cp_async"}
        elif isinstance(s, Op):
            self.operands(s)
            self.outputs(s)
        if isinstance(s, Unswitched):
            seen = set(self.written), set(self.read), set(self.waited)
            self.body(s.branches[0].body)
            first = self.written, self.read, self.waited
            self.written, self.read, self.waited = seen
            self.body(s.branches[1].body)
            self.written, self.read, self.waited = self.written | first[0], self.read | first[1], self.waited & first[2]
        elif isinstance(s, Nest):
            for _ in range(2 if isinstance(s, Loop) and not s.is_once else 1):
                before = set(self.waited)
                self.body(s.body)
                if isinstance(s, (Role, Loop)):
                    self.waited = before

    def operands(self, s: Statement) -> None:
        """Record what a statement reads."""
        if not isinstance(s, Op):
            return
        for tensor in (o.buffer.tensor for o in s.operands if isinstance(o, Access) and o.buffer.memory is MemoryType.shared):
            if tensor in self.written:
                raise RuleBroken(f"no barrier stands between what threads write of T{tensor.name} and what others read of it, for {_shown(s)}")
            if tensor in self.crossing:
                self.read.add(tensor)
            feed = self.feeds.get(tensor)
            if feed is not None and feed.style in ("tma", "cp_async") and feed.number not in self.waited:
                raise RuleBroken(f"nothing waits for the load of T{tensor.name} in front of {_shown(s)}, which reads it")

    def outputs(self, s: Op) -> None:
        for tensor in (o.buffer.tensor for o in s.outputs if o.buffer.tensor in self.crossing):
            if tensor in self.read:
                raise RuleBroken(f"no barrier stands between what threads read of T{tensor.name} and what {_shown(s)} writes there next")
            self.written.add(tensor)


# ---------------------------------------------------------------- stages
def _stages(kernel: Kernel, feed: Feed) -> None:
    """Check that the barriers of a feed are initialised, that each one waited for has an arrival, and that the n-th wait for a stage waits for its n-th
    phase."""
    for barrier in (feed.full, feed.empty):
        if barrier is None:
            continue
        inits = [s for s in walk(kernel.body) if isinstance(s, InitBarrier) and s.barrier is barrier]
        if len(inits) != 1:
            raise RuleBroken(f"the barrier {barrier.name} is initialised {len(inits)} times")
        waits = any(isinstance(s, WaitStage) and s.barrier.buffer is barrier for s in walk(kernel.body))
        arrives = any(isinstance(s, (Arrive, ReleaseStage)) and s.barrier.buffer is barrier for s in walk(kernel.body))
        if waits and not arrives:
            raise RuleBroken(f"the barrier {barrier.name} is waited for, and nobody arrives there")
    _waits(kernel.body, (), {}, feed)


def _waits(body: list[Statement], loops: tuple[Loop, ...], lets: dict[Sym, Sym], feed: Feed) -> None:
    for s in body:
        if isinstance(s, Let):
            lets = {**lets, s.variable: s.value}
        if isinstance(s, WaitStage) and s.barrier.buffer in (feed.full, feed.empty):
            _phases(s, loops, lets, feed)
        if isinstance(s, Nest):
            _waits(s.body, (*loops, s) if isinstance(s, Loop) and not s.is_once else loops, lets, feed)


def _phases(wait: WaitStage, loops: tuple[Loop, ...], lets: dict[Sym, Sym], feed: Feed) -> None:
    """Evaluate a wait in the first iterations of the loops around it, with everything else fixed."""
    stage = lets.get(wait.barrier.index, wait.barrier.index)
    around = [loop for loop in loops if loop.start is ZERO and loop.index in variables(stage) | variables(wait.phase)]
    values = (stage, wait.phase, *(loop.extent for loop in around))
    env: dict[Sym, Number] = {v: MANY if is_host_variable(v) else 0 for value in values for v in variables(value)}
    counts = [evaluate_int(loop.extent, env) for loop in around]
    is_counted = {loop.index for loop in feed.loops if loop.index not in feed.groups} <= {loop.index for loop in around}
    used: dict[int, int] = {}
    first = -1 if wait.barrier.buffer is feed.empty else 0
    for number in range(min(3 * feed.all_stages + 1, _product(counts))):
        for loop, count in zip(reversed(around), reversed(counts)):
            env[loop.index], number = number % count, number // count
        slot, phase = evaluate_int(stage, env), evaluate_int(wait.phase, env)
        wanted = first + used.get(slot, 0)
        if not 0 <= slot < feed.all_stages or is_counted and phase != wanted:
            raise RuleBroken(f"{feed.names()}: use {used.get(slot, 0)} of stage {slot} waits for phase {phase}, and not for {wanted}")
        used[slot] = used.get(slot, 0) + 1


def _product(counts: Iterable[int]) -> int:
    out = 1
    for n in counts:
        out *= n
    return out


__all__ = ["BrokenKernel", "verify"]
