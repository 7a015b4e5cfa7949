"""Hazards: which tensors statements access, and which tensors in shared memory pass from thread to thread.

Read first: `touched`, `crosses_threads`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..expr import ONE
from ..ir.enums import BLOCK_TYPES, MemoryType
from ..ir.values import TensorView
from ..schedule.inline import consumer_axis
from .kernel_ir import Access, Buffer, BulkCopy, Kernel, Move, Op, Reduce, Repack, Statement, walk
from .kernel_sync import Arrive, InitBarrier, ReleaseStage, WaitStage
from .state import BuildState


def managed(kernel: Kernel, state: BuildState) -> set[TensorView]:
    """Tensors in shared memory whose barriers the pipeline places, not `insert_block_syncs`."""
    return set(state.feeds) | set(bulk_stored(kernel))


def bulk_stored(kernel: Kernel) -> list[TensorView]:
    """Tensors in shared memory that bulk copies store to global memory."""
    found: dict[TensorView, None] = {}
    for s in walk(kernel.body):
        if isinstance(s, BulkCopy) and s.outputs[0].buffer.memory is MemoryType.global_:
            found.setdefault(s.operands[0].buffer.tensor)  # type: ignore[union-attr]
    return list(found)


def touched(statement: Statement) -> tuple[set[TensorView], set[TensorView]]:
    """Return the tensors that a statement, and all inside it, reads and writes."""
    reads: set[TensorView] = set()
    writes: set[TensorView] = set()
    for inner in walk([statement]):
        if isinstance(inner, Op):
            half = inner.half if isinstance(inner, Reduce) else ""
            reads |= {o.buffer.tensor for o in inner.operands if isinstance(o, Access) and half != "take"}
            writes |= {o.buffer.tensor for o in inner.outputs if half != "hand over"}
    return reads, writes


def buffers_of(s: Statement) -> Iterator[Buffer]:
    """The buffers that a statement uses, without those of kernel parameters."""
    if isinstance(s, Op):
        places = [p for p in (*s.outputs, *s.operands) if isinstance(p, Access)]
        yield from (p.buffer for p in places if p.buffer.memory is not MemoryType.global_)
    elif isinstance(s, Move):
        yield from (s.target, s.source)
    elif isinstance(s, Repack):
        yield s.buffer
    elif isinstance(s, InitBarrier):
        yield s.barrier
    elif isinstance(s, (Arrive, WaitStage, ReleaseStage)):
        yield s.barrier.buffer


def is_writer(statement: Statement, tensors: Iterable[TensorView]) -> bool:
    return not touched(statement)[1].isdisjoint(tensors)


def is_reader(statement: Statement, tensors: Iterable[TensorView]) -> bool:
    return not touched(statement)[0].isdisjoint(tensors)


def crosses_threads(state: BuildState, tensor: TensorView) -> bool:
    """True unless every reader of `tensor` is the thread that wrote the element."""
    groups = state.plan.groups[tensor]
    bound = {g.parallel: k for k, g in enumerate(groups) if g.parallel.is_thread and not tensor.get_loop_domain()[k].is_broadcast()}
    for kind in BLOCK_TYPES:
        if kind in state.launch and state.launch[kind] is not ONE and kind not in bound:
            return True
    for use in tensor.uses():
        for consumer in use.outputs:
            for kind, k in bound.items():
                axis = consumer_axis(state.maps, tensor, k, consumer)  # type: ignore[arg-type]
                if axis is None:
                    return True
                group = state.plan.groups[consumer][consumer.get_loop_domain().index(axis)]  # type: ignore[index, attr-defined]
                if group.parallel is not kind or not state.maps.are_exact(group.axis, groups[k].axis):
                    return True
    return False
