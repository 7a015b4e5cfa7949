"""Warp specialization: async warps that only load, compute warps that only compute, and the barriers between them.

    if async:  setmaxnreg.dec;  per role: for each load u: wait until its stage is empty (phase u / S - 1), load, arrive at full
    else:      setmaxnreg.inc;  the kernel; before the first reader of a load: wait until it is full (phase u / S); after the last: arrive at empty

A fresh barrier counts as having completed phase -1, so the first loads find their stages empty without preparation. Both sides count loads by the same loops,
and no iteration is skipped: a load outside of the tensor waits and arrives like others, with 0 bytes. A role may read what another role loads (a chain).
Compute threads synchronize at named barriers 1 to 15, each for a fixed set of threads. Read first: `specialize`.
"""

from __future__ import annotations

from collections.abc import Iterator
from ..arch import H100, WARP_THREADS
from ..errors import UserError
from ..expr import ONE, ZERO, Sym, add, const, is_divisible, mod, mul, var
from ..ir.enums import BLOCK_TYPES, ParallelType
from ..ir.values import TensorView
from ..schedule.circular import WarpSpecialized, split_registers
from .feeds import BadRing, Feed, indices_in
from .hazards import is_reader, is_writer, touched
from .kernel_ir import Allocate, Block, Kernel, Loop, Nest, Reduce, Statement, ThreadGroup, copied, walk
from .kernel_sync import BlockShape, ElectedThread, ReleaseStage, Role, Roles, Sync, WaitStage
from .reduction_form import reduction_form
from .stages import NO_THREADS, check_readers, empty, full, issue_bulk, let_stage, wait_full
from .state import BuildState

ASYNC_THREADS = 128
"""Threads added to a block for async warps: a warpgroup, the unit of setmaxnreg."""
WARP, WARPGROUP = WARP_THREADS, 128
CHIP = H100
"""The limits used here (threads of a block, registers of a thread) are the same on all chips that support warp specialization."""
LANE = var("async_lane", extent=const(WARP))
"""The lane of a thread in an async warp in which all threads load."""
NAMED_BARRIERS = 16
"""Per block; number 0 is the barrier of the whole block. Source: PTX ISA, bar."""


class DynamicBlock(UserError):
    code = "W550"
    what = "warps cannot be specialized: the block's dimension {axis} is {extent}, which is not known when the kernel is compiled"
    fix = "bind {axis} to an axis of constant extent, or pass compute_bdim{letter} (CompileParams) or bdim{letter}"


class BadBlock(UserError):
    code = "W551"
    what = "warps cannot be specialized along {axis}: a compute block of {block} threads {reason}"
    fix = "{remedy}"


class MixedSpecialization(UserError):
    code = "W552"
    what = "{a} and {b} specialize warps differently: {first} and {second}"
    fix = "a kernel is specialized along one axis, with one pair of register counts"


class RegistersNotConserved(UserError):
    code = "W553"
    what = "registers {registers} of {async_} async and {compute} compute threads: {reason}"
    fix = "the async threads must release as many registers as the others gain: split_registers({each}, {compute}, {async_}) returns {good}"


class TooManyBarriers(UserError):
    code = "W554"
    what = "the kernel needs {count} named barriers ({who}); a block has 15 besides the barrier of all threads"
    fix = "use fewer compute groups, or reduce over the whole block"


def async_threads(shape: BlockShape) -> Iterator[bool]:
    """For each thread of the block, in order, whether it is async."""
    x, y, z = shape.block
    for k in range(z):
        for j in range(y):
            for i in range(x):
                yield (i, j, k)[BLOCK_TYPES.index(shape.axis)] >= shape.compute[shape.axis]


def specialize(kernel: Kernel, state: BuildState, feeds: list[Feed]) -> tuple[list[Statement], dict[str, int]]:
    """Return the kernel's body as roles (one per async warp, with the loads of `feeds`, and one that computes), and the number of arrivals at each barrier.

    Before: a body for all threads with the loads in it.   After: kernel.block has the async warps; barriers of the compute branch are named.
    Errors: DynamicBlock, BadBlock, MixedSpecialization, RegistersNotConserved, TooManyBarriers, BadRing.
    """
    shape = plan_block(state, feeds)
    for feed in feeds:
        check_readers(kernel, state.feeds, feed, _body_of(kernel.body, feed))
    warps = sorted({f.warp for f in feeds})  # type: ignore[type-var]
    roles = [(w, [f for f in feeds if f.warp == w]) for w in warps]
    arrivals = _count_arrivals(kernel, feeds, shape)
    branches = [_role(kernel, state, w, own, feeds) for w, own in roles]  # type: ignore[arg-type]
    compute = _consume(kernel.body, (), feeds)
    compute = [s for s in compute if not _is_empty(s)]
    name_barriers(kernel, compute, shape)
    kernel.block = tuple(const(n) for n in shape.block)  # type: ignore[assignment]
    kernel.compute_block = tuple(const(shape.compute[p]) for p in BLOCK_TYPES)  # type: ignore[assignment]
    if shape.registers is not None:  # the block starts with all registers of a multiprocessor
        kernel.exact_threads = shape.block[0] * shape.block[1] * shape.block[2]
    return [Roles(shape, [*branches, Role("compute", compute)])], arrivals


# ---------------------------------------------------------------- the block
def plan_block(state: BuildState, feeds: list[Feed]) -> BlockShape:
    """Return the shape of the block. Errors: DynamicBlock, BadBlock, MixedSpecialization, RegistersNotConserved."""
    first = feeds[0].tensors[0]
    kind: WarpSpecialized = first.circular.kind  # type: ignore[attr-defined]
    for tensor in (t for f in feeds for t in f.tensors):
        other: WarpSpecialized = tensor.circular.kind  # type: ignore[attr-defined]
        if (other.axis, other.registers) != (kind.axis, kind.registers):
            raise MixedSpecialization(
                a=f"T{first.name}", b=f"T{tensor.name}", first=(kind.axis.name, kind.registers), second=(other.axis.name, other.registers)
            )
    compute: dict[ParallelType, int] = {}
    for p in BLOCK_TYPES:
        size = state.launch.get(p, ONE)
        if not size.is_const:
            raise DynamicBlock(axis=p.value, extent=size, letter=p.value[-1])
        compute[p] = int(size.value)  # type: ignore[arg-type]
    others = 1
    for p in BLOCK_TYPES:
        others *= 1 if p is kind.axis else compute[p]
    block = " x ".join(str(compute[p]) for p in BLOCK_TYPES)

    def refuse(reason: str, remedy: str) -> BadBlock:
        return BadBlock(axis=kind.axis.value, block=block, reason=reason, remedy=remedy)

    if ASYNC_THREADS % others and others % ASYNC_THREADS:
        reason = f"has {others} threads across that axis, which neither divides the {ASYNC_THREADS} async threads nor is a multiple of them"
        raise refuse(reason, "choose 1, 2, 4, ... 128, 256, 384 ... of them")
    shape = BlockShape(kind.axis, max(1, ASYNC_THREADS // others), compute, kind.registers)
    x, y, z = shape.block
    if shape.compute_threads % WARP:
        raise refuse(f"is {shape.compute_threads} threads, which is not a whole number of warps", "make it a multiple of 32 threads")
    if x * y * z > CHIP.max_threads_per_block:
        raise refuse(f"has {x * y * z} threads with the async ones; {CHIP.max_threads_per_block} are allowed", "use fewer compute threads")
    members = list(async_threads(shape))
    unit = WARPGROUP if kind.registers is not None else WARP
    for start in range(0, len(members), unit):
        part = members[start : start + unit]
        if len(set(part)) > 1:
            what = "warpgroup (the unit of setmaxnreg)" if unit == WARPGROUP else "warp"
            raise refuse(f"puts async and compute threads into one {what}", "specialize along the outermost dimension, or use more threads along it")
    if kind.registers is not None:
        _check_registers(kind.registers, shape)
    return shape


def _check_registers(registers: tuple[int, int], shape: BlockShape) -> None:
    x, y, z = shape.block
    threads = x * y * z
    async_count = threads - shape.compute_threads
    each = CHIP.registers_per_thread(threads) // 8 * 8
    wanted = registers[0] * async_count + registers[1] * shape.compute_threads
    reason = ""
    if wanted > each * threads:
        reason = f"together they need {wanted}, but the block starts with {each * threads} ({each} per thread)"
    elif not registers[0] <= each <= registers[1]:
        reason = f"every thread of the block starts with {each}, which is not between them"
    if reason:
        good = split_registers(each, shape.compute_threads, async_count)
        raise RegistersNotConserved(registers=registers, async_=async_count, compute=shape.compute_threads, reason=reason, each=each, good=good)


# ---------------------------------------------------------------- roles
def _compute_path(feed: Feed) -> tuple[Sym, ...]:
    """The loops of a feed that are also loops of its readers, including unswitched ones of one iteration."""
    return tuple(g.index for g in feed.nest if g.index not in feed.groups)


def _body_of(body: list[Statement], feed: Feed) -> list[Statement]:
    """The body that contains the readers of a feed."""
    for index in _compute_path(feed):
        loop = next((s for s in body if isinstance(s, Loop) and s.index is index and is_writer(s, feed.tensors)), None)
        if loop is None:
            raise BadRing(tensor=feed.tensors[0], reason=f"its loop {index} is not there", remedy="inline it at a smaller position")
        body = loop.body
    return body


def _count_arrivals(kernel: Kernel, feeds: list[Feed], shape: BlockShape) -> dict[str, int]:
    """Return the number of arrivals at each barrier: every thread of the warps that release a stage, and the thread that announces a role's bytes."""
    arrivals: dict[str, int] = {}
    for feed in feeds:
        body = _body_of(kernel.body, feed)
        produced = {t for f in feeds for t in f.tensors}
        warps = shape.compute_threads // WARP
        if feed.groups:
            if warps % shape.compute[shape.axis]:
                text = " x ".join(str(shape.compute[p]) for p in BLOCK_TYPES)
                remedy = "make each group whole warps, or omit group_position"
                raise BadBlock(axis=shape.axis.value, block=text, reason=f"has {shape.compute[shape.axis]} groups, each smaller than a warp", remedy=remedy)
            warps //= shape.compute[shape.axis]
        count = 0
        if any(is_reader(s, feed.tensors) and not touched(s)[1] & produced for s in body):
            count += warps
        chained = {f.number for f in feeds if f is not feed and any(is_reader(s, feed.tensors) and is_writer(s, f.tensors) for s in body)}
        arrivals[f"full_{feed.number}"] = 1 if feed.style == "tma" else WARP
        arrivals[f"empty_{feed.number}"] = WARP * (count + len(chained))
    return arrivals


def _role(kernel: Kernel, state: BuildState, warp: int, own: list[Feed], feeds: list[Feed]) -> Role:
    """Return the statements of one async warp."""
    loads = _project(state, kernel.body, own, feeds)
    name = f"load {', '.join(f.names() for f in own)}"
    if all(f.style == "tma" for f in own):
        return Role(name, [ElectedThread(loads)], warp)
    return Role(name, loads, warp, LANE)


def _project(state: BuildState, body: list[Statement], own: list[Feed], feeds: list[Feed]) -> list[Statement]:
    """The loads of `own` in the loops that count them."""
    out: list[Statement] = []
    units: dict[Feed, list[Statement]] = {}
    places: dict[Feed, Block] = {}
    for s in body:
        here = [f for f in own if is_writer(s, f.tensors)]
        if here and isinstance(s, Loop) and any(s.index is g.index for f in here for g in f.nest):
            inside = _project(state, s.body, own, feeds)
            out += inside if s.is_once else [Loop(s.index, s.extent, inside, label=s.label)]
            continue
        for feed in here:
            if feed not in units:
                units[feed], places[feed] = [], Block([])
                out.append(places[feed])
            units[feed].append(s)
    for feed, statements in units.items():
        places[feed].body = _produce(state, feed, statements, feeds)
    return out


def _produce(state: BuildState, feed: Feed, units: list[Statement], feeds: list[Feed]) -> list[Statement]:
    """Fill one stage: wait until it is empty, load, signal that it is full."""
    out: list[Statement] = []
    sources = [f for f in feeds if f is not feed and any(is_reader(u, f.tensors) for u in units)]
    for source in sources:
        mapping = indices_in(state.plan, source, next(t for t in feed.tensors if any(is_reader(e, source.tensors) and is_writer(e, [t]) for e in units)))
        if not {mapping.get(v) for v in source.groups} <= {g.index for g in feed.loops}:
            raise BadRing(
                tensor=feed.tensors[0],
                reason=f"T{source.tensors[0].name}, which it is copied from, has stages per compute group, but this ring does not",
                remedy="use the same group_position for both",
            )
        out += [*let_stage(source, mapping), wait_full(source, mapping)]
    out += [*let_stage(feed, {}), WaitStage(empty(feed), add(feed.phase, -1), f"a stage for {feed.names()}")]
    if feed.style == "tma":
        return [*out, *issue_bulk(feed, [copied(u, {}, NO_THREADS) for u in units])]
    rename = dict(NO_THREADS)
    kind = _lane_axis(feed, units)
    if kind is not None:
        rename[kind.value] = LANE
    out += [copied(u, {}, rename) for u in units]
    out.append(ReleaseStage(full(feed), f"{feed.names()} written"))
    out += [ReleaseStage(empty(source), f"{source.names()} read") for source in sources]
    return out


def _lane_axis(feed: Feed, units: list[Statement]) -> ParallelType | None:
    """The thread axis that the lanes of a role stand for. Errors: BadRing."""
    kinds: dict[ParallelType, None] = {}
    for tensor in feed.tensors:
        for axis in tensor.get_loop_domain():
            if axis.parallel in BLOCK_TYPES and axis.sym is not ONE:
                kinds.setdefault(axis.parallel)
                if not axis.sym.is_const or axis.sym.value > WARP:  # type: ignore[operator]
                    raise BadRing(tensor=tensor, reason=f"its axis {axis} is longer than the 32 lanes of its async warp", remedy="split it by 32")
    if len(kinds) > 1:
        raise BadRing(tensor=feed.tensors[0], reason="an async warp computes it, but two of its axes are bound to threads", remedy="bind one axis of up to 32")
    return next(iter(kinds), None)


# ---------------------------------------------------------------- compute
def _consume(body: list[Statement], path: tuple[Sym, ...], feeds: list[Feed]) -> list[Statement]:
    """The body without loads, with waits before first readers and releases after last ones."""
    here = [f for f in feeds if _compute_path(f) == path and any(is_writer(s, f.tensors) for s in body)]
    produced = [t for f in feeds for t in f.tensors]
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Loop) and any(is_writer(s, f.tensors) for f in feeds) and not any(is_writer(s, f.tensors) for f in here):
            s.body = _consume(s.body, (*path, s.index), feeds)
            out.append(s)
        elif not is_writer(s, produced):
            out.append(s)
    for feed in here:
        readers = [n for n, s in enumerate(out) if is_reader(s, feed.tensors)]
        if readers:
            last, first = readers[-1], readers[0]
            out.insert(last + 1, ReleaseStage(empty(feed), f"{feed.names()} read"))
            out[first:first] = [*let_stage(feed, feed.groups), wait_full(feed, feed.groups)]
    return out


def _is_empty(s: Statement) -> bool:
    return isinstance(s, Loop) and not any(not isinstance(inner, (Loop, Allocate)) for inner in walk([s]))


# ---------------------------------------------------------------- named barriers
def name_barriers(kernel: Kernel, body: list[Statement], shape: BlockShape) -> None:
    """Make the compute threads synchronize at named barriers, each for one set of threads. Errors: TooManyBarriers, BadBlock."""
    registry = _Barriers(shape)
    launch = {p: const(n) for p, n in shape.compute.items() if n > 1}
    for s, loops in _statements(body):
        if isinstance(s, Sync) and s.group is None:
            per_group = shape.axis is not BLOCK_TYPES[0] and bool(s.tensors) and all(_stays_in_group(t, shape.axis) for t in s.tensors)
            s.group = registry.group([p for p in BLOCK_TYPES if not (per_group and p is shape.axis)])
        elif isinstance(s, Reduce):
            if s.grid_types:
                raise BadRing(tensor=s.outputs[0].buffer.tensor, reason="it is reduced across blocks, beside async warps", remedy="reduce it within a block")
            if s.workspace is None:
                continue
            folded = list(s.thread_types) if reduction_form(s, launch) == "rows" else list(BLOCK_TYPES)
            s.group = registry.group(folded)
            turns: Sym = ZERO
            for loop in loops:
                turns = add(mul(turns, loop.extent), loop.index)
            s.group.turn = mod(turns, 2) if loops else ZERO
            if loops:
                s.workspace.elems = mul(s.workspace.elems, 2)
    registry.check()


def _statements(body: list[Statement], loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Statement, tuple[Loop, ...]]]:
    for s in body:
        yield s, loops
        if isinstance(s, Nest):
            yield from _statements(s.body, (*loops, s) if isinstance(s, Loop) and not s.is_once else loops)


def _stays_in_group(tensor: TensorView, kind: ParallelType) -> bool:
    """True if the threads of each index of `kind` write and read only their own part of the tensor."""
    readers = [out for use in tensor.uses() for out in use.outputs]
    return all(any(a.parallel is kind and not a.is_broadcast() for a in t.get_loop_domain()) for t in (tensor, *readers))  # type: ignore[attr-defined]


class _Barriers:
    """Assigns numbers to named barriers: one per group of threads that synchronizes; the same threads get the same number."""

    def __init__(self, shape: BlockShape) -> None:
        self.shape, self.next = shape, 1
        self.first: dict[tuple[ParallelType, ...], int] = {}

    def group(self, folded: list[ParallelType]) -> ThreadGroup:
        """The groups of threads that differ in `folded` only."""
        compute = self.shape.compute
        kept = [p for p in BLOCK_TYPES if p not in folded and compute[p] > 1]
        index: Sym = ZERO
        count = 1
        for p in reversed(kept):
            index = add(mul(index, compute[p]), var(p.value, extent=const(compute[p])))
            count *= compute[p]
        threads = self.shape.compute_threads // count
        if threads % WARP or not is_divisible(const(threads), WARP):
            text = " x ".join(str(compute[p]) for p in BLOCK_TYPES)
            raise BadBlock(axis=self.shape.axis.value, block=text, reason=f"has groups of {threads} threads that meet", remedy="use whole warps along x")
        key = tuple(kept)
        if key not in self.first:
            self.first[key] = self.next
            self.next += count
        return ThreadGroup(index, threads, self.first[key])

    def check(self) -> None:
        if self.next > NAMED_BARRIERS:
            who = "; ".join(f"from {n}: {'one for all' if not key else 'one for each ' + ', '.join(p.value for p in key)}" for key, n in self.first.items())
            raise TooManyBarriers(count=self.next - 1, who=who)


__all__ = ["plan_block", "specialize"]
