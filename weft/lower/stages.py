"""Statements for one stage of a feed: its number, barriers, wait, and loads of one thread.

Read first: `let_stage`, `wait_full`, `issue_bulk`.
"""

from __future__ import annotations

from ..expr import ONE, ZERO, Sym, mul, substitute, variables
from ..ir.enums import BLOCK_TYPES
from ..ir.values import TensorView
from .feeds import BadRing, Feed
from .hazards import is_reader, touched
from .kernel_ir import Access, BulkCopy, Kernel, Let, Loop, Op, Statement, walk
from .kernel_sync import Arrive, Fence, FenceSync, OneThread, WaitStage


def first_thread(kernel: Kernel, body: list[Statement]) -> OneThread:
    """Statements of one thread of the block."""
    return OneThread(tuple(p for p, size in zip(BLOCK_TYPES, kernel.block) if size is not ONE), body)


def full(feed: Feed) -> Access:
    """The barrier of "the current stage is loaded"."""
    assert feed.full is not None
    return Access(feed.full, feed.stage)


def empty(feed: Feed) -> Access:
    """The barrier of "the current stage has been read"."""
    assert feed.empty is not None
    return Access(feed.empty, feed.stage)


def let_stage(feed: Feed, mapping: dict[Sym, Sym]) -> list[Statement]:
    """The declaration of the variable with the stage number; `mapping` replaces loop indices."""
    return [] if feed.all_stages == 1 else [Let(feed.stage, substitute(feed.slot, mapping))]


def wait_full(feed: Feed, mapping: dict[Sym, Sym]) -> WaitStage:
    return WaitStage(full(feed), substitute(feed.phase, mapping), f"{feed.names()} loaded")


def issue_bulk(feed: Feed, units: list[Statement]) -> list[Statement]:
    """One thread's loads of a stage: announce the bytes to the barrier, then start the copies.

    Threads have read a reused stage through the generic proxy, and a barrier alone does not order these reads before writes of the async proxy. The issuing
    thread has waited for the readers, so its fence covers all of them, and they need none.
    """
    fence = [FenceSync(Fence.proxy, "after what has been read there")] if feed.loops else []
    return [*fence, *_issue(feed, units)]


def _issue(feed: Feed, units: list[Statement]) -> list[Statement]:
    totals = [_bytes_of(u) for u in units]
    for unit in units:
        for copy in walk([unit]):
            if isinstance(copy, BulkCopy):
                copy.barrier, copy.counts_itself = full(feed), None in totals
    if None in totals:
        return [*units, Arrive(full(feed))]
    conditions, bytes_ = zip(*(t for t in totals if t is not None))
    return [Arrive(full(feed), conditions, bytes_), *units]


def _bytes_of(unit: Statement) -> tuple[Sym, Sym] | None:
    """Return (condition, bytes) of a load, None if the iterations of a loop differ."""
    if isinstance(unit, BulkCopy):
        return unit.predicate, unit.moved_bytes
    if isinstance(unit, Loop) and len(unit.body) == 1:
        inner = _bytes_of(unit.body[0])
        if inner is not None and unit.index not in variables(inner[0]) | variables(inner[1]):
            return inner[0], mul(inner[1], unit.extent)
    return None


NO_THREADS: dict[str, Sym] = {p.value: ZERO for p in BLOCK_TYPES}
"""All thread indices 0, the thread that issues: conditions that select a thread hold."""


def check_readers(kernel: Kernel, feeds: dict[TensorView, Feed], feed: Feed, body: list[Statement]) -> None:
    """Check that the tensors of a feed are read in the body where they are loaded, and not by other loads of that body. Errors: BadRing."""
    here = sum(1 for s in walk(body) if isinstance(s, Op) and is_reader(s, feed.tensors))
    everywhere = sum(1 for s in walk(kernel.body) if isinstance(s, Op) and is_reader(s, feed.tensors))
    if here != everywhere:
        reason, remedy = "it is read outside of the loop that loads it", "inline it at a smaller position, or its readers at the same one"
        raise BadRing(tensor=feed.tensors[0], reason=reason, remedy=remedy)
    if not feed.is_specialized and feed.prefetch:
        for s in body:
            other = next((t for t in touched(s)[1] if t in feeds and feeds[t].prefetch and t not in feed.tensors), None)
            if other is not None and is_reader(s, feed.tensors) and feeds[other].loops == feed.loops:
                raise BadRing(
                    tensor=other, reason=f"it is loaded ahead from T{feed.tensors[0].name}, which runs in the same loop",
                    remedy="specialize warps (WarpSpecialized), where one role may feed another, or run the second ring in an inner loop",
                )  # fmt: skip
