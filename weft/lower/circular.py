"""Places asynchronous loads into shared memory for threads that also compute: when to issue a load, wait for it, and reuse its stage.

A ring of S stages with prefetch distance P over a loop of N iterations:

    for p < P: if p < N: load p                          all P + N loads count their stages alike: load u goes to stage u % S
    for i < N:  barrier (all have read load i - 1)
                if i + P < N: load i + P                 its stage was read in iteration i + P - S < i
                wait for load i;  compute i

Loads by TMA complete an mbarrier per stage; cp.async is waited for by its groups, plain loads by the barrier. Without a ring a load is issued where it
stands and waited for before its first reader. Warps that only load are in `roles.py`, which takes over from here. Read first: `run_pipelines`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dtypes import DataType
from ..errors import InternalError
from ..expr import ZERO, Sym, add, conjuncts, const, less, var
from ..ir.enums import BLOCK_TYPES, MemoryType, ParallelType
from ..ir.values import TensorView
from ..schedule.caching import RUNS_AHEAD
from ..schedule.inline import consumer_axis
from .contracts import lowering_pass
from .feeds import BadRing, Feed, stage_nest
from .hazards import bulk_stored, crosses_threads, is_reader, is_writer
from .kernel_ir import Allocate, Block, BulkCopy, Buffer, Kernel, Loop, Nest, Reduce, Statement, copied, walk
from .kernel_sync import (
    CommitCopies, Fence, FenceSync, InitBarrier, Sync, WaitCopies, WaitStores,
)  # fmt: skip
from .roles import specialize
from .stages import NO_THREADS, check_readers, first_thread, issue_bulk, let_stage, wait_full
from .state import BuildState


@lowering_pass(needs=["block syncs"], gives=["pipelines"], before=["shared memory", "grouped predicates"])
def run_pipelines(kernel: Kernel, state: BuildState) -> Kernel:
    """Place the loads of feeds and the bulk stores, with their waits and barriers, and give async warps their branches.

    Before: loads stand where their tensors are computed; block barriers are placed for other tensors only.   After: every load is issued, waited for and its
    stage released; barriers in shared memory are buffers and initialised at the top.
    Here because: predicates still hang on ops, so bodies are reached by all threads; shared memory is not placed yet, so the barriers get an offset, too.
    Errors: BadRing, and those of `roles.specialize`.
    """
    feeds = list(dict.fromkeys(state.feeds.values()))
    stores = bulk_stored(kernel)
    if not feeds and not stores:
        return kernel
    shared = _hoist_shared(kernel)
    for feed in feeds:
        _make_barriers(kernel, feed)
    waits: list[Statement] = []
    for tensor in stores:
        waits += place_bulk_store(kernel, state, tensor)
    for batch in _batches(f for f in feeds if not f.is_specialized):
        place_batch(kernel, state, batch)
    kernel.body += waits
    specialized = [f for f in feeds if f.is_specialized]
    arrivals: dict[str, int] = {}
    if specialized:
        kernel.body, arrivals = specialize(kernel, state, specialized)
    kernel.body = [*shared, *_start_barriers(kernel, feeds, arrivals), *kernel.body]
    return kernel


# ---------------------------------------------------------------- looking at statements


def find_body(body: list[Statement], path: Sequence[Sym], tensors: Iterable[TensorView]) -> tuple[list[Statement], Loop | None, list[Statement]]:
    """Return the body inside the loops `path` in which `tensors` are written, the innermost loop that iterates, and the body around that."""
    tensors, loop, around = list(tensors), None, body
    for index in path:
        found = next((s for s in body if isinstance(s, Loop) and s.index is index and is_writer(s, tensors)), None)
        if found is None:
            raise InternalError(f"no loop over {index} writes {tensors}")
        if not found.is_once:
            loop, around = found, body
        body = found.body
    return body, loop, around


def _hoist_shared(kernel: Kernel) -> list[Statement]:
    """Move the declarations of shared memory out of the body, because it lives as long as the kernel."""
    found: list[Statement] = []

    def without(body: list[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for s in body:
            if isinstance(s, Nest):
                s.body = without(s.body)
            if isinstance(s, Allocate) and s.buffer.memory is MemoryType.shared:
                found.append(s)
            else:
                out.append(s)
        return out

    kernel.body = without(kernel.body)
    return found


# ---------------------------------------------------------------- barriers
def _make_barriers(kernel: Kernel, feed: Feed) -> None:
    names = [] if feed.style != "tma" and not feed.is_specialized else ["full", "empty"] if feed.is_specialized else ["full"]
    for name in names:
        buffer = Buffer(f"{name}_{feed.number}", DataType.UInt64, MemoryType.shared, const(feed.all_stages), feed.tensors[0])
        setattr(feed, name, buffer)
        kernel.workspaces.append(buffer)


def _start_barriers(kernel: Kernel, feeds: list[Feed], arrivals: dict[str, int]) -> list[Statement]:
    """The declarations of the barriers and their initialization by one thread. arrivals: barrier -> how many complete a phase, where it is not one."""
    declared: list[Statement] = []
    inside: list[Statement] = []
    for buffer in [b for f in feeds for b in (f.full, f.empty) if b is not None]:
        declared.append(Allocate(buffer))
        inside.append(InitBarrier(buffer, arrivals.get(buffer.name, 1)))
    if not declared:
        return []
    inside.append(FenceSync(Fence.barriers))
    return [*declared, first_thread(kernel, inside), Sync("the barriers are initialised")]


# ---------------------------------------------------------------- loads by the threads that compute
def _batches(feeds: Iterable[Feed]) -> list[list[Feed]]:
    """Feeds by the loops that they are in, the innermost first."""
    by_loops: dict[tuple[int, ...], list[Feed]] = {}
    for feed in feeds:
        by_loops.setdefault(tuple(id(g) for g in feed.nest), []).append(feed)
    return sorted(by_loops.values(), key=lambda batch: -len(batch[0].nest))


def place_batch(kernel: Kernel, state: BuildState, feeds: list[Feed]) -> None:
    """Place the loads of feeds that are in the same loops."""
    path = [g.index for g in feeds[0].nest]
    body, loop, around = find_body(kernel.body, path, feeds[0].tensors)
    for feed in feeds:
        check_readers(kernel, state.feeds, feed, body)
    rings = sorted((f for f in feeds if f.prefetch), key=lambda f: -f.prefetch)
    for feed in feeds:
        if feed not in rings:
            _place_single(kernel, state, feed, body)
    if rings:
        assert loop is not None
        _place_rings(kernel, state, rings, body, loop, around)


def _loads(kernel: Kernel, state: BuildState, feed: Feed, units: list[Statement], mapping: dict[Sym, Sym]) -> list[Statement]:
    """The loads `units` of a feed, in all threads, with indices of loops replaced."""
    if feed.style != "tma":
        return [*let_stage(feed, mapping), *(copied(u, mapping) for u in units)]
    one = [copied(u, mapping, NO_THREADS) for u in units]
    return [first_thread(kernel, [*let_stage(feed, mapping), *issue_bulk(feed, one)])]


def _place_single(kernel: Kernel, state: BuildState, feed: Feed, body: list[Statement]) -> None:
    """Issue a load at its place, and wait before its first reader."""
    units = [s for s in body if is_writer(s, feed.tensors)]
    at = body.index(units[0])
    loads = _loads(kernel, state, feed, units, {})
    is_crossing = feed.style == "tma" or any(crosses_threads(state, t) for t in feed.tensors)
    if feed.loops and is_crossing:
        loads.insert(0, Sync(f"{feed.names()}: read in the iteration before", tensors=tuple(feed.tensors)))
    rest = [s for s in body[at:] if s not in units]
    first = next((n for n, s in enumerate(rest) if is_reader(s, feed.tensors)), len(rest))
    if feed.style == "tma":
        waits: list[Statement] = [wait_full(feed, {})]
    elif not is_crossing and first < len(rest) and _walk_alike(state, feed, units, rest[first]):
        loads = _run_ahead(feed, units, rest[first])  # type: ignore[arg-type]
        first, waits = first + 1, [WaitCopies(0, f"{feed.names()} loaded")]  # for later readers
    else:
        waits = [CommitCopies(), WaitCopies(0, f"{feed.names()} loaded")]
        if is_crossing:
            waits.append(Sync(f"{feed.names()}: written and read by different threads", tensors=tuple(feed.tensors)))
    body[at:] = [*loads, *rest[:first], *waits, *rest[first:]]


WALK_AHEAD = 8
"""How many iterations cp.async runs ahead of the first reader in a loop over a row. The whole row is kept, so this needs no extra memory and no registers; it
is more than enough to keep memory busy."""


def _walk_alike(state: BuildState, feed: Feed, units: Sequence[Statement], reader: Statement) -> bool:
    """True if cp.async fills tensors in loops that may run ahead, and each iteration of the first reading loop needs what one iteration of theirs filled."""
    if not all(t.definition() is not None and t.definition().attributes.get(RUNS_AHEAD) for t in feed.tensors):  # type: ignore[union-attr]
        return False
    if feed.style != "cp_async" or not isinstance(reader, Loop) or reader.is_once or reader.unroll or reader.start is not ZERO:
        return False
    if not all(isinstance(u, Loop) and u.extent is reader.extent and u.start is ZERO and not u.unroll for u in units):
        return False
    filled = {g.index: (tensor, k) for tensor in feed.tensors for k, g in enumerate(state.plan.groups[tensor])}
    return all(unit.index in filled and _is_read_along(state, *filled[unit.index], reader) for unit in units)  # type: ignore[attr-defined]


def _is_read_along(state: BuildState, tensor: TensorView, k: int, reader: Loop) -> bool:
    """True if the readers of `tensor` in the loop `reader` iterate its loop axis `k` with that loop."""
    place = state.plan.groups[tensor][k]
    for consumer in [t for use in tensor.uses() for t in use.tensor_outputs]:
        groups = state.plan.groups[consumer]
        if any(g.index is reader.index for g in groups):
            axis = consumer_axis(state.maps, tensor, k, consumer)
            group = None if axis is None else groups[consumer.get_loop_domain().index(axis)]
            if group is None or group.index is not reader.index or not state.maps.are_exact(group.axis, place.axis):
                return False
    return True


def _run_ahead(feed: Feed, units: Sequence[Loop], reader: Loop) -> list[Statement]:
    """Issue the loads of an iteration some iterations before the one of `reader` that waits for them; return the loads before the loop."""
    early = var(f"ahead_{feed.number}", extent=const(WALK_AHEAD))
    later = add(reader.index, WALK_AHEAD)

    def loads(at: Sym) -> list[Statement]:
        return _when(less(at, reader.extent), [copied(s, {unit.index: at}) for unit in units for s in unit.body])

    reader.body[:0] = [*loads(later), CommitCopies(), WaitCopies(WALK_AHEAD, f"{feed.names()}: what this iteration reads")]
    return [Loop(early, const(WALK_AHEAD), [*loads(early), CommitCopies()], label=f"{feed.names()} ahead")]


def _place_rings(kernel: Kernel, state: BuildState, rings: list[Feed], body: list[Statement], loop: Loop, around: list[Statement]) -> None:
    """Issue loads ahead in the loop (software pipelining); see the module."""
    if state.staying is not None and not (any(f.style == "plain" for f in rings)):
        _place_staying_rings(kernel, state, rings, body, loop, around)
        return
    ahead: list[Statement] = []
    prologue: list[Statement] = []
    lets: list[Statement] = []
    groups = [f.prefetch for f in rings if f.style == "cp_async"]
    rest = list(body)
    for feed in rings:
        units = [s for s in body if is_writer(s, feed.tensors)]
        rest = [s for s in rest if s not in units]
        index, distance = loop.index, feed.prefetch
        early = var(f"ahead_{feed.number}", extent=const(distance))
        commit: list[Statement] = [CommitCopies()] if feed.style == "cp_async" else []
        loads = _loads(kernel, state, feed, units, {index: early})
        inside = _when(less(early, loop.extent), loads)
        prologue.append(Loop(early, const(distance), [*inside, *commit], label=f"{feed.names()} ahead"))
        later = add(index, distance)
        ahead += _when(less(later, loop.extent), _loads(kernel, state, feed, units, {index: later}))
        lets += let_stage(feed, {})
    head: list[Statement] = [WaitCopies(min(groups) - 1)] if groups else []
    tensors = tuple(t for f in rings for t in f.tensors)
    head.append(Sync("a stage is loaded, and another is free", tensors=tensors))
    head += ahead
    head += [CommitCopies()] if groups else []
    for feed in rings:
        if feed.style == "tma":
            first = next((n for n, s in enumerate(rest) if is_reader(s, feed.tensors)), len(rest))
            rest.insert(first, wait_full(feed, {}))
    body[:] = [*head, *lets, *rest]
    at = around.index(loop)
    around[at:at] = prologue


def _place_staying_rings(kernel: Kernel, state: BuildState, rings: list[Feed], body: list[Statement], loop: Loop, around: list[Statement]) -> None:
    """The same for staying blocks, whose threads have one barrier per iteration, in a reduction.

    Loads by TMA are issued after that barrier: the stage that was read before it is free then; if a stage is also read after it, the one of the previous
    iteration is free. What a thread copies by cp.async and reads itself needs no barrier. Loops without such a reduction have a barrier at their top.
    """
    prologue: list[Statement] = []
    index = loop.index
    groups = [f.prefetch for f in rings if f.style == "cp_async"]
    units_of = {f: [s for s in body if is_writer(s, f.tensors)] for f in rings}
    rest = [s for s in body if not any(s in units for units in units_of.values())]
    head: list[Statement] = []
    for feed in rings:
        is_own = feed.style == "cp_async" and not any(crosses_threads(state, t) for t in feed.tensors)
        inner, meeting = _meeting(rest)
        readers = [n for n, s in enumerate(inner) if is_reader(s, feed.tensors)]
        is_free = meeting is not None and (not readers or readers[-1] < meeting)
        distance = feed.stages if feed.style == "tma" and is_free else feed.prefetch
        early = var(f"ahead_{feed.number}", extent=const(distance))
        commit: list[Statement] = [CommitCopies()] if feed.style == "cp_async" else []
        inside = _when(less(early, loop.extent), _loads(kernel, state, feed, units_of[feed], {index: early}))
        prologue.append(Loop(early, const(distance), [*inside, *commit], label=f"{feed.names()} ahead"))
        later = add(index, distance)
        ahead = [*_when(less(later, loop.extent), _loads(kernel, state, feed, units_of[feed], {index: later})), *commit]
        for block in (s for s in ahead if isinstance(s, Block)):
            block.keeps_bounds = True
        if feed.style == "cp_async":
            head += [] if is_own else [Sync("a stage is loaded, and another is free", tensors=tuple(feed.tensors))]
            head += ahead
        elif meeting is None:
            head += [Sync("another stage is free", tensors=tuple(feed.tensors)), *ahead]
        else:
            inner[meeting + 1 : meeting + 1] = ahead
        if feed.style == "tma":
            first = next((n for n, s in enumerate(rest) if is_reader(s, feed.tensors)), len(rest))
            rest.insert(first, wait_full(feed, {}))
    wait: list[Statement] = [WaitCopies(min(groups) - 1)] if groups else []
    body[:] = [*wait, *head, *(s for f in rings for s in let_stage(f, {})), *rest]
    at = around.index(loop)
    around[at:at] = prologue


def _meeting(body: list[Statement]) -> tuple[list[Statement], int | None]:
    """Return the reduction across all threads in a loop's body, or in its unswitched part: the list of statements, and the position in it."""
    for n, s in enumerate(body):
        if isinstance(s, Reduce) and (s.workspace is not None or s.is_fused_cluster):
            return body, n
        if isinstance(s, Loop) and s.is_once:
            inner, place = _meeting(s.body)
            if place is not None:
                return inner, place
    return body, None


def _when(condition: Sym, body: list[Statement]) -> list[Statement]:
    """`body` under `condition`, with its own variables."""
    return [Block(body, condition)]


# ---------------------------------------------------------------- bulk stores
def place_bulk_store(kernel: Kernel, state: BuildState, tensor: TensorView) -> list[Statement]:
    """Put a fence between the writes of `tensor` and its bulk store, and a wait before it is overwritten; return the wait at the kernel's end."""
    nest, _ = stage_nest(state.plan, state.launch, tensor.definition(), tensor)  # type: ignore[arg-type]
    body, loop, _ = find_body(kernel.body, [g.index for g in nest], [tensor])
    store = next(s for s in walk(body) if isinstance(s, BulkCopy) and s.operands[0].buffer.tensor is tensor)  # type: ignore[union-attr]
    issuer = _issuer(store.predicate)
    writers = [n for n, s in enumerate(body) if is_writer(s, [tensor])]
    readers = [n for n, s in enumerate(body) if is_reader(s, [tensor])]
    if not readers or readers[0] < writers[-1]:
        raise BadRing(tensor=tensor, reason="its bulk store stands outside of its loop", remedy="inline it at a smaller position")
    sync = Sync(f"T{tensor.name}: written by threads, stored in bulk", tensors=(tensor,))
    body[readers[0] : readers[0]] = [sync]
    body[writers[-1] + 1 : writers[-1] + 1] = [FenceSync(Fence.proxy)]
    if loop is not None:
        meeting = next((n for n in range(writers[0] - 1, -1, -1) if isinstance(body[n], Reduce) and body[n].workspace is not None), None)  # type: ignore[attr-defined]
        wait = WaitStores(issuer, has_read=True, why=f"the last store has read T{tensor.name}")
        if meeting is not None:  # its barrier tells the other threads
            body[meeting:meeting] = [wait]
        else:
            body[writers[0] : writers[0]] = [wait, Sync(f"T{tensor.name} is free", tensors=(tensor,))]
    return [WaitStores(issuer)]


def _issuer(predicate: Sym) -> tuple[ParallelType, ...]:
    """The thread dimensions along which the first thread issues a bulk store, none when all threads do."""
    kinds = {p.value: p for p in BLOCK_TYPES}
    equalities = [a for a in conjuncts(predicate) if a.op == "eq" and a.args[1] is ZERO and a.args[0].is_var]
    return tuple(kinds[str(a.args[0].payload)] for a in equalities if str(a.args[0].payload) in kinds)


__all__ = ["run_pipelines"]
