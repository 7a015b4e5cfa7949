"""Reductions that share a barrier, and loads for the next iteration of persistent blocks.

Owns three rewrites: independent reductions become one, in the loop over rows of persistent blocks statements between them move out of the way, and loads into
registers are issued an iteration ahead. Read first: `merge_reductions`, `load_ahead`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from ..expr import add, less, sub, variables
from ..ir.enums import MemoryType
from ..ir.values import LoadStoreOp, TensorView
from .state import BuildState
from .contracts import lowering_pass
from .hazards import touched
from .kernel_ir import Access, Allocate, Block, Buffer, Kernel, Loop, Move, Nest, Op, Reduce, Statement, copied, walk
from .kernel_sync import OneThread, Sync


@lowering_pass(gives=["reductions"], before=["workspaces", "block syncs"])
def merge_reductions(kernel: Kernel, state: BuildState) -> Kernel:
    """Fold reductions across threads, or blocks, that do not need each other together, so that they share barriers, and blocks arrive once for all.

    Before: reductions stand where their results are first needed, without workspaces.   After: statements are in the order of how many reductions they
    depend on; reductions that became neighbours and fold alike are one Reduce with several outputs. Without blocks that stay, only reductions move, up to
    the first that folds alike: loads stand where the schedule put them.
    Here because: workspaces and barriers are placed by what is left.
    """
    kernel.body = _joined(kernel.body) if state.staying is None else _merged(kernel.body)
    return kernel


def _joined(body: list[Statement]) -> list[Statement]:
    """Return statements in their order, each reduction folded with the first one in front that folds alike and behind which nothing writes what it reads. Of
    reductions across blocks, one in front moves down instead, with what reads it until then, where loops of their own fold them: blocks cannot meet twice."""
    out: list[Statement] = []
    written: dict[TensorView, int] = {}  # place in `out` of the last statement that writes a tensor
    read: dict[TensorView, int] = {}  # of the last statement that reads it
    alike: dict[object, list[int]] = {}  # places of reductions, by what has to be the same for them to be one
    declared: dict[Buffer, int] = {}
    early: dict[int, list[Statement]] = {}  # declarations that go in front of the reduction at a place
    late: dict[int, list[Statement]] = {}  # what reads a reduction that has moved to a place
    met = -1  # place of the last statement where threads meet: no reduction moves across
    gone: set[int] = set()
    for s in body:
        if isinstance(s, Nest):
            s.body = _joined(s.body)
        reads, writes = touched(s)
        place = len(out)
        if isinstance(s, Reduce) and len(s.operands) == len(s.outputs) == 1:
            places = alike.setdefault(_fold_key(s), [])
            first = bisect_right(places, max((met, *(written.get(t, -1) for t in reads))))
            if first == len(places):
                for waiting in [p for p in places if p > met and s.grid_types]:
                    behind = [t for q in range(waiting, place) for t in ([out[q]] if id(out[q]) not in gone else []) + late.get(q, [])]
                    readers = _readers(behind, s)
                    if readers is None:
                        continue
                    places.remove(waiting)
                    gone.update(map(id, (out[waiting], *readers)))
                    late = {q: [t for t in each if id(t) not in gone] for q, each in late.items()} | {place: late.get(place, []) + readers}
                    early.setdefault(place, []).extend(early.pop(waiting, []))
                    _fold_into(s, out[waiting])
                    writes = writes | set().union(*(touched(t)[1] for t in (out[waiting], *readers)))
                    reads = reads | set().union(*(touched(t)[0] for t in readers))
                places.append(place)
            else:
                place = places[first]
                _fold_into(out[place], s)
                early.setdefault(place, []).extend(out[declared.pop(o.buffer)] for o in s.outputs if declared.get(o.buffer, -1) > place)
        if place == len(out):
            out.append(s)
        met = place if isinstance(s, (Sync, OneThread)) else met
        if isinstance(s, Allocate):
            declared[s.buffer] = place
        written.update((t, max(place, written.get(t, -1))) for t in writes)
        read.update((t, max(place, read.get(t, -1))) for t in reads)
    moved = gone | {id(s) for statements in early.values() for s in statements}
    return [each for place, s in enumerate(out) if id(s) not in moved for each in (*early.get(place, ()), s, *late.get(place, ()))]


def _readers(body: list[Statement], s: Reduce) -> list[Statement] | None:
    """Return the statements that read the reduction `body[0]`, also through others, if both can stand behind `s`, which follows `body`; else None."""
    results, found, needed = set(touched(body[0])[1]), list[Statement](), set[TensorView]()
    for each in body[1:]:
        reads, writes = touched(each)
        if not results.isdisjoint(reads):
            if any(isinstance(inner, (Reduce, Sync, OneThread)) for inner in walk([each])):
                return None
            found.append(each)
            results |= writes
            needed |= reads
        elif not (needed | results).isdisjoint(writes):
            return None
    return found if results.isdisjoint(touched(s)[0]) else None


def _merged(body: list[Statement]) -> list[Statement]:
    for s in body:
        if isinstance(s, Nest):
            s.body = _merged(s.body)
    out: list[Statement] = []
    between: list[Statement] = []
    for s in body:
        if isinstance(s, (Sync, OneThread)):  # nothing passes where threads meet
            out += [*_regrouped(between), s]
            between = []
        else:
            between.append(s)
    return [*out, *_regrouped(between)]


def _regrouped(body: list[Statement]) -> list[Statement]:
    """Return statements by the number of reductions that they depend on, those that fold alike as one."""
    if sum(isinstance(s, Reduce) for s in body) < 2:
        return body
    level_of: dict[TensorView, int] = {}
    keys: list[tuple[int, bool, bool]] = []
    for s in body:
        reads, writes = touched(s)
        level = max((level_of.get(t, 0) for t in reads), default=0)
        is_reduce = isinstance(s, Reduce)
        keys.append((level, is_reduce, not _only_loads(s)))
        for t in writes:
            level_of[t] = max(level_of.get(t, 0), level + is_reduce)
    out: list[Statement] = []
    last_level = -1
    for n in sorted(range(len(body)), key=lambda n: (not isinstance(body[n], Allocate), keys[n], n)):
        s, last, level = body[n], out[-1] if out else None, keys[n][0]
        if isinstance(s, Reduce) and isinstance(last, Reduce) and level == last_level and _fold_key(last) == _fold_key(s):
            _fold_into(last, s)
        else:
            out.append(s)
            last_level = level
    return out


def _only_loads(s: Statement) -> bool:
    """True for a statement that brings elements from global memory and does nothing else."""
    ops = [inner for inner in walk([s]) if isinstance(inner, Op)]
    return bool(ops) and all(
        isinstance(o.expr, LoadStoreOp) and isinstance(o.operands[0], Access) and o.operands[0].buffer.memory is MemoryType.global_
        and o.outputs[0].buffer.memory is MemoryType.local for o in ops
    )  # fmt: skip


def _fold_key(s: Reduce) -> object:
    """Return what two reductions have in common when they can be one."""
    return s.expr.attributes["kind"], s.outputs[0].buffer.dtype, s.grid_types, s.thread_types, id(s.predicate), s.group_elems


def _fold_into(earlier: Statement, s: Statement) -> None:
    assert isinstance(earlier, Reduce) and isinstance(s, Reduce)
    earlier.outputs, earlier.operands = [*earlier.outputs, *s.outputs], [*earlier.operands, *s.operands]


@lowering_pass(needs=["pipelines", "unswitched"], before=["grouped predicates"])
def load_ahead(kernel: Kernel, state: BuildState) -> Kernel:
    """Issue the loads that `StayingBlocks.ahead` names for the next iteration of the loop around them.

    Before: each stands at the top of the loop over rows.   After: their first loads stand before the loop; an iteration takes what was loaded for it and
    loads what comes next.
    Here because: predicates still hang on ops, and waits and barriers have their places.
    """
    if state.staying is not None and state.staying.ahead:
        kernel.body = _ahead(kernel.body, state.staying.ahead)
    return kernel


def _ahead(body: list[Statement], names: frozenset[int]) -> list[Statement]:
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Nest) and not isinstance(s, Loop):
            s.body = _ahead(s.body, names)
        if isinstance(s, Loop) and not s.unroll:
            loads = _of_loaded(s, [inner for inner in s.body if _is_load_of(inner, names) and not _counts_elements(s, inner)])
            if loads:
                out += _one_ahead(s, loads)
        out.append(s)
    return out


def _is_load_of(s: Statement, names: frozenset[int]) -> bool:
    writes = touched(s)[1]
    return isinstance(s, (Op, Loop)) and bool(writes) and all(t.name in names for t in writes)


def _of_loaded(loop: Loop, loads: list[Statement]) -> list[Statement]:
    """Return the loads whose other operands, such as what stands where a lookup finds nothing, are not computed in the loop, or are among the loads, too."""
    computed = set(_buffers_of(loop.body, "outputs"))
    kept: list[Statement] = []
    for s in loads:
        if not computed.intersection(_buffers_of([s], "operands")).difference(_buffers_of([*kept, s], "outputs")):
            kept.append(s)
    return kept


def _buffers_of(body: list[Statement], places: str) -> list[Buffer]:
    """Return the buffers of the accesses of ops. places: "outputs" or "operands"."""
    return list(dict.fromkeys(o.buffer for s in walk(body) if isinstance(s, Op) for o in getattr(s, places) if isinstance(o, Access)))


def _counts_elements(loop: Loop, s: Statement) -> bool:
    """True when the loop runs over elements of the buffer that `s` fills: part of a row, around which the loop over rows is gone where there is one step."""
    return any(loop.index in variables(o.index) for inner in walk([s]) if isinstance(inner, Op) for o in inner.outputs)


def _one_ahead(loop: Loop, loads: list[Statement]) -> list[Statement]:
    """Change the loop; return what stands before it."""
    buffers = _buffers_of(loads, "outputs")
    twins = {b: replace(b, name=f"{b.name}_ahead") for b in buffers}
    for buffer in buffers:
        buffer.fill = None  # what is not loaded is filled in its twin
    is_waited_for = sum(_is_of_elements(s) for s in loads) >= LOADS_WAITED_FOR
    begin, following = (sub(loop.extent, 1), sub(loop.index, 1)) if loop.descends else (loop.start, add(loop.index, 1))
    is_there = less(loop.start, loop.index) if loop.descends else less(following, loop.extent)
    first = [_into(copied(s, {loop.index: begin}), twins, is_waited_for) for s in loads]
    later = [_into(copied(s, {loop.index: following}), twins, is_waited_for) for s in loads]
    takes: list[Statement] = [Move(b, twin) for b, twin in twins.items()]
    rest = [s for s in loop.body if s not in loads]
    allocated = [s for s in rest if isinstance(s, Allocate)]
    rest = [s for s in rest if not isinstance(s, Allocate)]
    loop.body = [*allocated, *takes, Block(later, is_there), *rest]
    return [*(Allocate(twin) for twin in twins.values()), *first]


LOADS_WAITED_FOR = 2
"""Loads of a value per row, from which the compiler's waiting for them at once costs more than the register and the addition that keep it from doing so.
Measured: docs/constants.md."""


def _is_of_elements(s: Statement) -> bool:
    """True for a load that brings single elements: values of rows, not vectors of them."""
    return all(inner.vector_elems == 1 for inner in walk([s]) if isinstance(inner, Op))


def _into(s: Statement, twins: dict[Buffer, Buffer], is_ahead: bool) -> Statement:
    """Let a copy of a load write the twins of its buffers, and read those of other loads."""
    for inner in walk([s]):
        if isinstance(inner, Op):
            inner.operands = [Access(twins[o.buffer], o.index) if isinstance(o, Access) and o.buffer in twins else o for o in inner.operands]
            inner.outputs = [Access(twins[o.buffer], o.index) for o in inner.outputs]
            inner.is_ahead = is_ahead
    return s
