"""Dead code elimination: drops statements whose results nothing reads. Read first: `drop_unread`."""

from __future__ import annotations

from collections.abc import Collection, Set

from .kernel_ir import Access, Allocate, Buffer, Nest, Op, Statement, walk


def drop_unread(body: list[Statement], own: Set[Buffer]) -> list[Statement]:
    """Return a body without dead ops: those that write only buffers of `own` (read by nothing outside) that nothing in the body reads."""
    while True:
        ops = [s for s in walk(body) if isinstance(s, Op)]
        unread = own - {o.buffer for s in ops for o in s.operands if isinstance(o, Access)}
        needed = {o.buffer for s in ops if any(o.buffer not in unread for o in s.outputs) for o in s.outputs}
        dead = {o.buffer for s in ops for o in s.outputs} & unread - needed
        if not dead:
            return body
        body = without_buffers(body, dead)


def without_buffers(body: list[Statement], dead: Collection[Buffer]) -> list[Statement]:
    """Return a body without the allocations of buffers, the ops that write nothing else, and nests of nothing else."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Allocate) and s.buffer in dead or isinstance(s, Op) and s.outputs and all(o.buffer in dead for o in s.outputs):
            continue
        if isinstance(s, Nest) and s.body:
            s.body = without_buffers(s.body, dead)
            if not s.body:
                continue
        out.append(s)
    return out
