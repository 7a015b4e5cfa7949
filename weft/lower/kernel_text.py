"""Readable text of Kernel IR, for dumps and messages. What is compiled is printed by `weft.codegen.cuda`.

Read first: `body_text`.
"""

from __future__ import annotations

from ..expr import TRUE, ZERO
from .kernel_ir import Access, Allocate, Block, BulkCopy, If, Let, LetRowEnd, Loop, Move, Nest, Op, Reduce, Repack, Statement, Unswitched
from .kernel_sync import (
    Arrive, ClusterArrive, ClusterWait, CommitCopies, DeclareFlag, ElectedThread, FenceSync, GridSync, HandOverTotal, InitBarrier, LetNextStart,
    OneThread, ReleaseStage, Role, Roles, ScanFold, StartExchanges, StartScan, Sync, TakeTotals, WaitCopies, WaitForPrevious, WaitStage, WaitStores,
    ZeroPadding,
)  # fmt: skip


def body_text(body: list[Statement], indent: int = 0) -> str:
    """Return a line per statement, with nested statements indented below it."""
    lines: list[str] = []
    pad = "  " * indent
    for s in body:
        if isinstance(s, Unswitched):
            fast, slow = s.body
            lines += [f"{pad}if {s.test}:", body_text([fast], indent + 1), f"{pad}else:", body_text([slow], indent + 1)]
            continue
        if isinstance(s, Block) and s.condition is TRUE:
            lines.append(body_text(s.body, indent))
            continue
        why = f"  # {found}" if (found := getattr(s, "why", "")) else ""
        lines.append(f"{pad}{_line(s)}{why}")
        if isinstance(s, Nest):
            lines.append(body_text(s.body, indent + 1))
    return "\n".join(line for line in lines if line)


def _line(s: Statement) -> str:
    if isinstance(s, Loop):
        kind = f"{' unroll' if s.unroll else ''}{' unswitch' if s.is_unswitched else ''}"
        return f"for {s.index} in {'' if s.start is ZERO else f'{s.start} to '}{s.extent}{kind}:  # {s.label}"
    if isinstance(s, If):
        return f"if {s.predicate}:"
    if isinstance(s, Block):
        return f"if {s.condition}:"
    if isinstance(s, Let):
        return f"{s.variable} = {s.value}"
    if isinstance(s, LetRowEnd):
        return f"{s.variable} = {s.thread} < {s.skipped} ? {s.thread} : {s.thread} + {s.whole}"
    if isinstance(s, Allocate):
        return f"alloc {s.buffer.name}: {s.buffer.dtype.name}[{s.buffer.elems}] {s.buffer.memory.value}"
    if isinstance(s, Op):
        return _op(s)
    if isinstance(s, Move):
        return f"{s.target.name} = {s.source.name}"
    if isinstance(s, Repack):
        return f"repack {s.buffer.name}"
    return _sync(s)


def _op(s: Op) -> str:
    sources = ", ".join(_place(o) if isinstance(o, Access) else str(o) for o in s.operands)
    kind = f"reduce{[t.value for t in (*s.thread_types, *s.grid_types)]} " if isinstance(s, Reduce) else ""
    vector = f" x{s.vector_elems}" if s.vector_elems > 1 else f" bulk {s.elems}" if isinstance(s, BulkCopy) else ""
    guard = "" if s.predicate is TRUE else f"  if {s.predicate}"
    return f"{', '.join(map(_place, s.outputs))} = {kind}{s.expr.op_name}({sources}){vector}{guard}"


def _place(place: Access) -> str:
    return f"{place.buffer.name}[{place.index}]"


def _sync(s: Statement) -> str:
    """The line of a synchronization statement."""
    if isinstance(s, Sync):
        return "sync" if s.group is None else f"sync {s.group.threads} threads at barrier {s.group.barrier} + {s.group.index}"
    if isinstance(s, OneThread):
        return f"one thread{[p.value for p in s.kinds]}:"
    if isinstance(s, ElectedThread):
        return "one thread of the warp:"
    if isinstance(s, FenceSync):
        return f"fence {s.kind.name}"
    if isinstance(s, InitBarrier):
        return f"barrier {s.barrier.name}[{s.barrier.elems}] of {s.arrivals} arrivals"
    if isinstance(s, Arrive):
        parts = [f"{b}" if c is TRUE else f"({b} if {c})" for c, b in zip(s.conditions, s.bytes_)]
        return f"arrive {_place(s.barrier)}{' for bytes ' + ' + '.join(parts) if parts else ''}"
    if isinstance(s, WaitStage):
        return f"wait {_place(s.barrier)} phase {s.phase}"
    if isinstance(s, ReleaseStage):
        return f"release {_place(s.barrier)}"
    if isinstance(s, CommitCopies):
        return "commit copies"
    if isinstance(s, WaitCopies):
        return f"wait for copies, all but {s.pending} groups"
    if isinstance(s, WaitStores):
        return f"wait for stores {'to have read' if s.has_read else 'to be done'}"
    if isinstance(s, Roles):
        return f"roles, async from {s.shape.axis.value} {s.shape.compute[s.shape.axis]}:"
    if isinstance(s, Role):
        return f"role {s.name}:"
    if isinstance(s, GridSync):
        return f"meet the grid at {s.counter.name}"
    if isinstance(s, StartExchanges):
        return f"start exchanges {[r.exchange.name for r in s.reductions if r.exchange]}"
    if isinstance(s, (ClusterArrive, ClusterWait)):
        return "arrive at the cluster" if isinstance(s, ClusterArrive) else "wait for the cluster"
    if isinstance(s, DeclareFlag):
        return f"{s.name} = false"
    if isinstance(s, StartScan):
        return f"{s.scan.carry} = start"
    if isinstance(s, ScanFold):
        return f"{s.scan.carry}: fold a piece"
    if isinstance(s, (HandOverTotal, TakeTotals)):
        return f"{s.scan.carry}: {'hand over the total' if isinstance(s, HandOverTotal) else 'take the totals before'} ({s.totals.name})"
    if isinstance(s, (WaitForPrevious, LetNextStart)):
        return "wait for the kernel before" if isinstance(s, WaitForPrevious) else "let the next kernel start"
    if isinstance(s, ZeroPadding):
        return f"zero padding of {s.buffer.name}"
    return type(s).__name__
