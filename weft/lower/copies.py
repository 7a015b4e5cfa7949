"""Copies by units that work beside the threads: bulk copies (TMA) and cp.async, and who feeds which tensor in shared memory.

Owns `Feed`, the one object that says how tensors come into shared memory: its stages, the loops that count them, its barriers; and the shape of a bulk
copy: where it starts, how many bytes, what the host must check. Placing loads, waits and releases is in `circular.py` and `roles.py`.
Read first: `Feed`, `plan_feeds`, `bulk_copy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..arch import BULK_BYTES, CP_ASYNC_BYTES
from ..errors import UserError
from ..expr import (
    ONE, TRUE, ZERO, Sym, add, ceildiv, conjunction, conjuncts, const, floordiv, minimum, mod, mul, product, recombine, sub, substitute, terms, var, variables,
)  # fmt: skip
from ..ir.enums import BLOCK_TYPES, LoadStoreOpType, MemoryType, ParallelType
from ..ir.values import Expr, IterDomain, LoadStoreOp, TensorView, no_reductions
from ..schedule.circular import CircularBuffer, WarpSpecialized
from ..schedule.inline import consumer_axis
from .indexing import Indexer
from .kernel_ir import Access, BulkCopy, Buffer
from .loops import LoopGroup
from .tiles import swizzle_bytes, tile_of

if TYPE_CHECKING:
    from .build import BuildState


class BadBulkCopy(UserError):
    code = "W540"
    what = "{tensor} cannot be copied by TMA: {reason}"
    fix = "{remedy}"


class BulkMisaligned(UserError):
    code = "W541"
    what = "{tensor} cannot be copied by TMA: {what_} is {text}, in bytes a multiple of {bytes} only; a bulk copy needs multiples of {needed}"
    fix = "choose a tile whose bytes {needed} divides, or pad the innermost size of the tensor"


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
    """How some tensors come into shared memory, together: the pipeline.

    style: "tma", "cp_async" or "plain" (loads and stores of threads). stages: 1 where each load is waited for at once. warp: the async warp, None for the
    threads that compute. nest: the loops around a load, outermost first, with unswitched ones of one iteration; `loops`: without these. groups: index of
    such a loop of the tensors -> thread index of the readers that have it bound: compute groups, each with `stages` of its own. The other loops count the
    uses of a stage; the last of them is that of the ring.
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
        """Which stage it is, by the indices of the loops: each group goes round in stages of its own, so that it sees every phase of their barriers."""
        index, count = self._group()
        return add(mul(mod(self._use(), self.stages), count), index)

    @property
    def phase(self) -> Sym:
        """How often the stage was used before, by the indices of the loops: the phase of its barriers."""
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


def plan_feeds(state: BuildState) -> dict[TensorView, Feed]:
    """Return the feed of every tensor that is circular buffered, or loaded by TMA or cp.async.

    Tensors of one kind in the same loops have one feed: a batch, with one barrier.
    Errors: BadRing, BadBulkCopy, BadAsyncCopy.
    """
    by_key: dict[tuple, Feed] = {}
    key: tuple
    out: dict[TensorView, Feed] = {}
    for expr in state.plan.exprs:
        tensor: TensorView = expr.outputs[0]  # type: ignore[assignment]
        style = _style(expr, tensor)
        if not style:
            continue
        ring = tensor.circular if isinstance(tensor.circular, CircularBuffer) else None
        nest, groups = stage_nest(state, expr, tensor)
        warp = ring.async_warp if ring is not None and isinstance(ring.kind, WarpSpecialized) else None
        stages, prefetch = (ring.stages, ring.prefetch) if ring is not None else (1, 0)
        if ring is not None and not _repeated(nest):
            if tensor.compute_at == 0:
                raise BadRing(tensor=tensor, reason="it is not inlined into any loop", remedy="inline it (inline_at) behind the loop of the stages")
            if warp is None:
                stages, prefetch = 1, 0  # the loop has one iteration
                if style == "plain":
                    continue
        key = (style, stages, prefetch, warp, tuple(id(g) for g in nest), tuple(groups.items()), id(tensor) if warp is None and style == "plain" else 0)
        if style == "plain" and warp is not None:
            key = (*key, id(tensor))  # what another role hands on has a barrier of its own
        if key not in by_key:
            by_key[key] = Feed(len(by_key), style, stages, prefetch, warp, nest, groups)
        by_key[key].tensors.append(tensor)
        out[tensor] = by_key[key]
    return out


def _style(expr: Expr, tensor: TensorView) -> str:
    """Return how `expr` loads into shared memory, "" when it is no such load."""
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


def stage_nest(state: BuildState, expr: Expr, tensor: TensorView) -> tuple[tuple[LoopGroup, ...], dict[Sym, Sym]]:
    """Return the loops around one load of `tensor`, as `Feed.nest`, and which of them its readers have bound to threads instead."""
    position = stage_position(tensor)
    inside = {id(g) for g in state.plan.groups[tensor][position:]}
    around = [g for g in state.plan.nest(expr) if not g.parallel.is_bound and id(g) not in inside]
    nest = tuple(g for g in around if g.extent is not ONE or g.is_unswitched)
    groups: dict[Sym, Sym] = {}
    for k in range(tensor.compute_at, position):
        group = state.plan.groups[tensor][k]
        if group.extent is ONE:
            continue
        kind: ParallelType = tensor.circular.kind.axis  # type: ignore[attr-defined]
        for use in tensor.uses():
            for consumer in use.outputs:
                axis = consumer_axis(state.maps, tensor, k, consumer)  # type: ignore[arg-type]
                if axis is not None and is_handed_on(consumer):  # type: ignore[arg-type]
                    continue
                if axis is None or axis.parallel is not kind:
                    raise BadRing(
                        tensor=tensor,
                        reason=f"axis {tensor.get_loop_domain()[k]} is left of the group position, and {consumer} does not have it bound to {kind.name}",
                        remedy="bind it there, or give a smaller group_position",
                    )
        if not group.extent.is_const:
            raise BadRing(tensor=tensor, reason=f"the number of its compute groups is {group.extent}", remedy="split the axis of the groups by a constant")
        groups[group.index] = var(kind.value, extent=state.launch.get(kind, ONE))
    return nest, groups


def is_handed_on(tensor: TensorView) -> bool:
    """True for what an async warp makes of what another one loads."""
    return isinstance(tensor.circular, CircularBuffer) and isinstance(tensor.circular.kind, WarpSpecialized)


def indices_in(state: BuildState, feed: Feed, reader: TensorView) -> dict[Sym, Sym]:
    """The loops of `reader`, which another async warp makes, for those of `feed` that count compute groups."""
    out: dict[Sym, Sym] = {}
    for tensor in feed.tensors:
        for k, group in enumerate(state.plan.groups[tensor]):
            axis = consumer_axis(state.maps, tensor, k, reader) if group.index in feed.groups else None
            if axis is not None:
                out[group.index] = state.plan.groups[reader][reader.get_loop_domain().index(axis)].index
    return out


# ---------------------------------------------------------------- bulk copies
def bulk_copy(state: BuildState, expr: LoadStoreOp, lanes: list[int]) -> BulkCopy:
    """Return the copy of a contiguous piece of memory that `expr` is, its axes `lanes` at once.

    A piece that runs past the end of the tensor is cut there. Errors: BadBulkCopy, BulkMisaligned.
    """
    from .build import access, op_predicate

    output, source = expr.outputs[0], expr.tensor_inputs[0]
    assert isinstance(output, TensorView)
    is_load = output.memory_type is MemoryType.shared
    groups = [state.plan.groups[output][k] for k in lanes]
    indexer = state.indexer(expr)
    far, near = (source, output) if is_load else (output, source)
    if is_load:
        _refuse_threads(state, output)
    lane: Sym = ZERO
    for group in groups:
        lane = add(mul(lane, group.extent), group.index)
    start = {g.index: ZERO for g in groups if g.index is not ZERO}
    at_far = access(state, indexer, far, expr, writing=not is_load)
    at_near = Access(state.buffer(near), add(_shared_index(state, indexer, near, expr, is_load), stage_offset(state, near)))
    assert isinstance(at_far, Access)
    extent = product(g.extent for g in groups)
    is_tile = swizzle_bytes(near) > 0
    for place, where in ((at_near, "shared"), (at_far, "global")):
        first = recombine(substitute(place.index, start))
        if sub(recombine(place.index), first) is not lane:
            if where == "global" and len(far.get_allocation_domain()) > 1:
                is_tile, place.index = True, first
                continue
            raise BadBulkCopy(
                tensor=output,
                reason=f"axis {groups[0].axis} does not run over neighbours in {where} memory, where element {lane} of it is at "
                f"{sub(recombine(place.index), first)}",
                remedy="bind only the innermost contiguous axes to ParallelType.tma, merged into one",
            )
        place.index = first
    predicate = op_predicate(state, indexer, expr, output)
    ops = [at_near, at_far] if is_load else [at_far, at_near]
    if is_tile and source.dtype().is_packed:
        raise BadBulkCopy(tensor=output, reason=f"elements of {source.dtype()} are no whole bytes", remedy="copy it with loads and stores")
    if is_tile:
        tile = tile_of(state, indexer, far, near, expr, {g.index: g.extent for g in groups if g.index is not ZERO})
        predicate = conjunction(substitute(atom, start) for atom in conjuncts(predicate))
        return BulkCopy(expr=expr, outputs=[ops[0]], operands=[ops[1]], predicate=predicate, elems=extent, tile=tile)
    predicate, elems, ends = _cut(predicate, start, lane, extent, output)
    if begins_anywhere(output):
        return BulkCopy(expr=expr, outputs=[ops[0]], operands=[ops[1]], predicate=predicate, elems=elems, skipped=skipped_elems(state, indexer, output))
    for what, text, tensor in (
        ("its tile", extent, output),
        ("its place in global memory", at_far.index, far),
        ("its place in shared memory", at_near.index, near),
    ):
        require_multiple(state, tensor, text, what)
    for end in ends:
        require_multiple(state, output, end, "what is left of it at its end")
    if near in state.feeds and state.feeds[near].all_stages > 1:
        require_multiple(state, near, per_stage(state, near), "its stage")
    return BulkCopy(expr=expr, outputs=[ops[0]], operands=[ops[1]], predicate=predicate, elems=elems)


def begins_anywhere(tensor: TensorView) -> bool:
    """True for what bulk copies bring in whole units from rows that begin anywhere in one; see `weft.schedule.circular.load_whole_units`."""
    definition = tensor.definition()
    return definition is not None and bool(definition.attributes.get("whole_units", False))


def units_extent(tensor: TensorView, extent: Sym) -> Sym:
    """Return the elements of the units that hold `extent` elements, wherever these begin."""
    per_unit = BULK_BYTES * 8 // tensor.dtype().bits
    return mul(add(ceildiv(extent, per_unit), 1), per_unit)


def skipped_elems(state: BuildState, indexer: Indexer, tensor: TensorView) -> Sym:
    """Return how many elements of its first unit stand in front of a row of `tensor`: where the row lies in its place in shared memory.

    Parts of a row begin at multiples of a unit behind its start, so that this holds for them, too.
    """
    source = tensor.definition().tensor_inputs[0]  # type: ignore[union-attr]
    along: set[IterDomain] = set()
    stack = [a for a in tensor.get_loop_domain() if a.parallel is ParallelType.tma]
    while stack:
        axis = stack.pop()
        along.add(axis)
        stack += [] if axis.definition() is None else axis.definition().inputs  # type: ignore[union-attr, arg-type]
    twins = dict(zip(no_reductions(source.get_logical_domain()), tensor.get_maybe_root_domain()))
    start: Sym = ZERO
    for axis, stride in source.strides().items():
        if twins[axis] not in along:
            start = start + mul(indexer.axis_index(axis, source), stride)
    return mod(recombine(start), BULK_BYTES * 8 // tensor.dtype().bits)


def per_stage(state: BuildState, tensor: TensorView) -> Sym:
    """Elements of one stage of a tensor in shared memory."""
    return product(state.buffer(tensor).extents)


def stage_offset(state: BuildState, tensor: TensorView) -> Sym:
    """Where the current stage of a circular buffer begins; 0 for other tensors."""
    feed = state.feeds.get(tensor)
    return ZERO if feed is None else mul(feed.stage, per_stage(state, tensor))


def _refuse_threads(state: BuildState, tensor: TensorView) -> None:
    for axis, group in zip(tensor.get_loop_domain(), state.plan.groups[tensor]):
        if group.parallel in BLOCK_TYPES and group.extent is not ONE:
            raise BadBulkCopy(
                tensor=tensor, reason=f"its axis {axis} is bound to {group.parallel.name}, and one thread issues the copy",
                remedy="leave the axis serial in the tensor that TMA loads; its readers may bind it",
            )  # fmt: skip


def _shared_index(state: BuildState, indexer: Indexer, tensor: TensorView, expr: Expr, writing: bool) -> Sym:
    """Index of `tensor` in shared memory, without the stage, with the indices of the lanes in it."""
    buffer, index = state.buffer(tensor), ZERO
    consumer: TensorView = expr.outputs[0]  # type: ignore[assignment]
    for k, extent in zip(state.positions(tensor), buffer.extents):
        group = state.plan.groups[tensor][k]
        if group.extent is ONE:
            part: Sym = ZERO
        elif writing:
            part = group.index
        else:
            axis = consumer_axis(state.maps, tensor, k, consumer)
            other = None if axis is None else state.plan.groups[consumer][consumer.get_loop_domain().index(axis)]
            part = indexer.axis_index(group.axis, tensor) if other is None else other.index
        index = add(mul(index, extent), part)
    return recombine(index)


def _cut(predicate: Sym, start: dict[Sym, Sym], lane: Sym, extent: Sym, tensor: TensorView) -> tuple[Sym, Sym, list[Sym]]:
    """Return when the first element is inside, how many are, and what bounds their number."""
    elems, kept, ends = extent, [], []
    for atom in conjuncts(predicate):
        if start.keys() & variables(atom):
            first = sub(atom.args[0], lane) if atom.op == "lt" else lane
            if start.keys() & variables(first) or start.keys() & variables(atom.args[1]):
                raise BadBulkCopy(tensor=tensor, reason=f"its end is given by {atom}", remedy="merge the axes bound to ParallelType.tma into one")
            ends.append(sub(atom.args[1], first))
            elems = minimum(elems, ends[-1])
            atom = substitute(atom, start)
        kept.append(atom)
    return conjunction(kept), elems, ends


def require_multiple(state: BuildState, tensor: TensorView, elems: Sym, what: str) -> None:
    """See to it that `elems` elements of `tensor` are whole units of a bulk copy, by a check on the host where sizes decide. Errors: BulkMisaligned."""
    for factors, coefficient in terms(elems).items():
        bits = coefficient * tensor.dtype().bits
        needed = BULK_BYTES * 8 // math.gcd(BULK_BYTES * 8, bits)
        if needed == 1:
            continue
        sizes = [f for f in factors if f.is_var and f.extent is None and str(f.payload).startswith("T")]
        size = product(sizes)  # of axes that were merged, together
        if any(state.divisors.get(f, 1) % needed == 0 for f in (*sizes, size)):
            continue
        if not sizes:
            raise BulkMisaligned(tensor=tensor, what_=what, text=elems, bytes=math.gcd(BULK_BYTES * 8, bits) // 8, needed=BULK_BYTES)
        state.divisors[size] = math.lcm(state.divisors.get(size, 1), needed)
        state.bulk_sizes.add(size)


def check_async(expr: LoadStoreOp, tensor: TensorView, vector_elems: int) -> None:
    """Check what one thread copies by cp.async. Errors: BadAsyncCopy."""
    bytes_ = tensor.dtype().bits * vector_elems // 8
    if bytes_ not in CP_ASYNC_BYTES:
        taken = ", ".join(map(str, CP_ASYNC_BYTES))
        raise BadAsyncCopy(
            tensor=tensor, reason=f"a thread copies {vector_elems} elements of {tensor.dtype()}, {bytes_} bytes; it takes {taken}",
            remedy="vectorize the innermost axis so that a thread copies 4, 8 or 16 bytes",
        )  # fmt: skip


__all__ = ["TRUE", "Feed", "ParallelType", "bulk_copy", "check_async", "per_stage", "plan_feeds", "require_multiple", "stage_offset", "stage_position"]
