"""Feeds: how tensors are loaded into shared memory (TMA, cp.async, or plain loads), with how many stages, and which loops count the loads.

Owns `Feed`, the one object that says so; the shape of a copy is in `copies.py`, placing loads, waits and releases in `circular.py` and `roles.py`.
Read first: `Feed`, `plan_feeds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import UserError
from ..expr import ONE, ZERO, Sym, add, const, floordiv, mod, mul, var
from ..ir.enums import LoadStoreOpType, MemoryType, ParallelType
from ..ir.values import Expr, LoadStoreOp, TensorView
from ..schedule.circular import CircularBuffer, WarpSpecialized
from ..schedule.inline import consumer_axis
from .kernel_ir import Buffer
from .loops import LoopGroup, LoopPlan


class BadBulkCopy(UserError):
    code = "W540"
    what = "{tensor} cannot be copied by TMA: {reason}"
    fix = "{remedy}"


class BadAsyncCopy(UserError):
    code = "W542"
    what = "{tensor} cannot be copied by cp.async: {reason}"
    fix = "{remedy}"


class BadRing(UserError):
    code = "W543"
    what = "{tensor} cannot be circular buffered: {reason}"
    fix = "{remedy}"


@dataclass(eq=False)
class Feed:
    """A set of tensors that are loaded into shared memory together: the producer of a software pipeline.

    style: "tma", "cp_async" or "plain" (loads and stores of threads). stages: 1 if each load is waited for at once. warp: the async warp, None for the threads
    that compute. nest: the loops around a load, outermost first, with unswitched ones of one iteration; `loops`: without these. groups: index of such a loop of
    the tensors -> thread index that it is bound to in the readers: compute groups, each with its own `stages`. The other loops count the uses of a stage; the
    last of them is the pipelined one.
    stage: the variable that the tensors' addresses use. full, empty: barriers, one per stage; None where there are none.
    """

    number: int
    style: str
    stages: int
    prefetch: int
    warp: int | None
    nest: tuple[LoopGroup, ...]
    groups: dict[Sym, Sym]
    tensors: list[TensorView] = field(default_factory=list)
    full: Buffer | None = None
    empty: Buffer | None = None

    @property
    def loops(self) -> tuple[LoopGroup, ...]:
        return _repeated(self.nest)

    @property
    def all_stages(self) -> int:
        """Stages of all compute groups."""
        return self.stages * self._group()[1]

    @property
    def stage(self) -> Sym:
        """The variable that says which stage it is."""
        return ZERO if self.all_stages == 1 else var(f"stage_{self.number}", extent=const(self.all_stages))

    @property
    def slot(self) -> Sym:
        """The stage number, from the loop indices. Each group has its own stages, so that it sees every phase of their barriers."""
        index, count = self._group()
        return add(mul(mod(self._use(), self.stages), count), index)

    @property
    def phase(self) -> Sym:
        """How often the stage was used before, from the loop indices: the phase of its barriers."""
        return floordiv(self._use(), self.stages)

    def _use(self) -> Sym:
        count: Sym = ZERO
        for loop in self.loops:
            if loop.index not in self.groups:
                count = add(mul(count, loop.extent), loop.index)
        return count

    def _group(self) -> tuple[Sym, int]:
        index, count = ZERO, 1
        for loop in self.loops:
            if loop.index in self.groups:
                size: int = loop.extent.value  # type: ignore[assignment]
                index, count = add(mul(index, size), loop.index), count * size
        return index, count

    @property
    def is_specialized(self) -> bool:
        return self.warp is not None

    def names(self) -> str:
        return ", ".join(f"T{t.name}" for t in self.tensors)


def _repeated(nest: tuple[LoopGroup, ...]) -> tuple[LoopGroup, ...]:
    return tuple(g for g in nest if g.extent is not ONE)


def stage_position(tensor: TensorView) -> int:
    """The loop position of `tensor` from which on its axes lie within one stage."""
    ring = tensor.circular
    group = ring.kind.group_position if isinstance(ring, CircularBuffer) and isinstance(ring.kind, WarpSpecialized) else None
    return max(tensor.compute_at, group or 0)


def plan_feeds(plan: LoopPlan, launch: dict[ParallelType, Sym]) -> dict[TensorView, Feed]:
    """Return the feed of every tensor that is circular buffered, or loaded by TMA or cp.async. Tensors of one kind in the same loops share a feed and its
    barrier.
    Errors: BadRing, BadBulkCopy, BadAsyncCopy.
    """
    by_key: dict[tuple[object, ...], Feed] = {}
    key: tuple[object, ...]
    out: dict[TensorView, Feed] = {}
    for expr in plan.exprs:
        tensor: TensorView = expr.outputs[0]  # type: ignore[assignment]
        style = _style(expr, tensor)
        if not style:
            continue
        ring = tensor.circular if isinstance(tensor.circular, CircularBuffer) else None
        nest, groups = stage_nest(plan, launch, expr, tensor)
        warp = ring.async_warp if ring is not None and isinstance(ring.kind, WarpSpecialized) else None
        stages, prefetch = (ring.stages, ring.prefetch) if ring is not None else (1, 0)
        if ring is not None and not _repeated(nest):
            if tensor.compute_at == 0:
                raise BadRing(tensor=tensor, reason="it is not inlined into any loop", remedy="inline it (inline_at) inside the loop of the stages")
            if warp is None:
                stages, prefetch = 1, 0  # the loop has one iteration
                if style == "plain":
                    continue
        key = (style, stages, prefetch, warp, tuple(id(g) for g in nest), tuple(groups.items()), id(tensor) if warp is None and style == "plain" else 0)
        if style == "plain" and warp is not None:
            key = (*key, id(tensor))  # data from another role has its own barrier
        if key not in by_key:
            by_key[key] = Feed(len(by_key), style, stages, prefetch, warp, nest, groups)
        by_key[key].tensors.append(tensor)
        out[tensor] = by_key[key]
    return out


def _style(expr: Expr, tensor: TensorView) -> str:
    """Return how `expr` loads into shared memory, "" if it is no such load."""
    if not isinstance(expr, LoadStoreOp):
        return ""
    source = expr.tensor_inputs[0].memory_type
    is_load = tensor.memory_type is MemoryType.shared and source is MemoryType.global_
    if expr.kind is LoadStoreOpType.tma:
        if is_load:
            return "tma"
        if not (tensor.memory_type is MemoryType.global_ and source is MemoryType.shared):
            reason = f"it is copied from {source.value} to {tensor.memory_type.value} memory"
            raise BadBulkCopy(tensor=tensor, reason=reason, remedy="TMA moves between global and shared memory (set_memory_type)")
        return ""
    if expr.kind is LoadStoreOpType.cp_async:
        if not is_load:
            reason = f"it is copied from {source.value} to {tensor.memory_type.value} memory"
            raise BadAsyncCopy(tensor=tensor, reason=reason, remedy="cp.async moves from global to shared memory (set_memory_type)")
        return "cp_async"
    return "plain" if tensor.circular is not None else ""


def stage_nest(plan: LoopPlan, launch: dict[ParallelType, Sym], expr: Expr, tensor: TensorView) -> tuple[tuple[LoopGroup, ...], dict[Sym, Sym]]:
    """Return the loops around one load of `tensor`, as `Feed.nest`, and those of them that are bound to threads in its readers."""
    position = stage_position(tensor)
    inside = {id(g) for g in plan.groups[tensor][position:]}
    around = [g for g in plan.nest(expr) if not g.parallel.is_bound and id(g) not in inside]
    nest = tuple(g for g in around if g.extent is not ONE or g.is_unswitched)
    groups: dict[Sym, Sym] = {}
    for k in range(tensor.compute_at, position):
        group = plan.groups[tensor][k]
        if group.extent is ONE:
            continue
        kind: ParallelType = tensor.circular.kind.axis  # type: ignore[attr-defined]
        for use in tensor.uses():
            for consumer in use.outputs:
                axis = consumer_axis(plan.maps, tensor, k, consumer)  # type: ignore[arg-type]
                if axis is not None and is_handed_on(consumer):  # type: ignore[arg-type]
                    continue
                if axis is None or axis.parallel is not kind:
                    raise BadRing(
                        tensor=tensor,
                        reason=f"axis {tensor.get_loop_domain()[k]} is left of the group position, but {consumer} does not bind it to {kind.name}",
                        remedy="bind it there, or use a smaller group_position",
                    )
        if not group.extent.is_const:
            raise BadRing(tensor=tensor, reason=f"the number of its compute groups is {group.extent}", remedy="split the axis of the groups by a constant")
        groups[group.index] = var(kind.value, extent=launch.get(kind, ONE))
    return nest, groups


def is_handed_on(tensor: TensorView) -> bool:
    """True if an async warp computes the tensor from one that another async warp loads."""
    return isinstance(tensor.circular, CircularBuffer) and isinstance(tensor.circular.kind, WarpSpecialized)


def indices_in(plan: LoopPlan, feed: Feed, reader: TensorView) -> dict[Sym, Sym]:
    """The loops of `reader`, which another async warp makes, for those of `feed` that count compute groups."""
    out: dict[Sym, Sym] = {}
    for tensor in feed.tensors:
        for k, group in enumerate(plan.groups[tensor]):
            axis = consumer_axis(plan.maps, tensor, k, reader) if group.index in feed.groups else None
            if axis is not None:
                out[group.index] = plan.groups[reader][reader.get_loop_domain().index(axis)].index
    return out
