"""Asynchronous copies (TMA and cp.async): where each starts, how many bytes it moves, and what the host must check.

Who feeds which tensor is in `feeds.py`; placing loads, waits and releases in `circular.py` and `roles.py`. Read first: `bulk_copy`.
"""

from __future__ import annotations

from ..arch import CP_ASYNC_BYTES
from ..expr import (
    ONE, ZERO, Sym, add, conjunction, conjuncts, minimum, mul, product, recombine, sub, substitute, variables,
)  # fmt: skip
from ..ir.enums import BLOCK_TYPES, MemoryType
from ..ir.values import Expr, IterDomain, LoadStoreOp, TensorView
from ..schedule.inline import consumer_axis
from .access import access, op_predicate
from .feeds import BadAsyncCopy, BadBulkCopy, BadRing
from .indexing import Indexer
from .kernel_ir import Access, BulkCopy
from .state import BuildState, per_stage, stage_offset
from .tiles import BulkMisaligned, require_multiple, swizzle_bytes, tile_of
from .units import begins_anywhere, elems_beyond, skipped_elems


# ---------------------------------------------------------------- bulk copies
def bulk_copy(state: BuildState, expr: LoadStoreOp, lanes: list[int]) -> BulkCopy:
    """Return `expr` as a bulk copy of a contiguous piece of memory, all of its axes `lanes` at once. A piece that crosses the end of the tensor is cut there.
    Errors: BadBulkCopy, BulkMisaligned.
    """
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
    is_tile = _move_to_start(output, far, near, (at_near, at_far), start, lane, groups[0].axis)
    predicate = op_predicate(state, indexer, expr, output)
    ops = [at_near, at_far] if is_load else [at_far, at_near]
    if is_tile and source.dtype().is_packed:
        raise BadBulkCopy(tensor=output, reason=f"elements of {source.dtype()} are not whole bytes", remedy="copy it with loads and stores")
    if is_tile:
        tile = tile_of(state, indexer, far, near, expr, {g.index: g.extent for g in groups if g.index is not ZERO})
        predicate = conjunction(substitute(atom, start) for atom in conjuncts(predicate))
        return BulkCopy(expr=expr, outputs=[ops[0]], operands=[ops[1]], predicate=predicate, elems=extent, tile=tile)
    if begins_anywhere(output):
        extent = add(extent, elems_beyond(output))
    predicate, elems, ends = _cut(predicate, start, lane, extent, output)
    if begins_anywhere(output):
        return BulkCopy(expr=expr, outputs=[ops[0]], operands=[ops[1]], predicate=predicate, elems=elems, skipped=skipped_elems(indexer, output))
    for what, text, tensor in (
        ("its tile", extent, output),
        ("its place in global memory", at_far.index, far),
        ("its place in shared memory", at_near.index, near),
        *(("what is left of it at its end", end, output) for end in ends),
    ):
        require_multiple(state, tensor, text, what)
    if near in state.feeds and state.feeds[near].all_stages > 1:
        require_multiple(state, near, per_stage(state, near), "its stage")
    return BulkCopy(expr=expr, outputs=[ops[0]], operands=[ops[1]], predicate=predicate, elems=elems)


def _move_to_start(
    output: TensorView, far: TensorView, near: TensorView, places: tuple[Access, Access], start: dict[Sym, Sym], lane: Sym, axis: IterDomain
) -> bool:  # fmt: skip
    """Let the places of an element in shared (`near`) and in global memory (`far`) be those of the first element of the piece, in place, and return True if the
    piece is a tile: other elements lie between its own in global memory, or in another order in shared memory.

    start: the indices of the first element; lane: the number of the element in the piece, along `axis`. Errors: BadBulkCopy.
    """
    is_tile = swizzle_bytes(near) > 0
    for place, where in zip(places, ("shared", "global")):
        first = recombine(substitute(place.index, start))
        distance = sub(recombine(place.index), first)
        place.index = first
        if distance is lane:
            continue
        if where == "shared" or len(far.get_allocation_domain()) < 2 or far.domain().rolled:
            raise BadBulkCopy(
                tensor=output,
                reason=f"axis {axis} does not run over neighbours in {where} memory, where element {lane} of it is at {distance}",
                remedy="bind only the innermost contiguous axes to ParallelType.tma, merged into one",
            )
        is_tile = True
    return is_tile


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
    """Return the condition that the first element is inside, the number of elements inside, and the bounds on this number."""
    elems, kept, ends = extent, [], []
    for atom in conjuncts(predicate):
        if start.keys() & variables(atom):
            first = sub(atom.args[0], lane) if atom.op == "lt" else lane
            if start.keys() & variables(first) or start.keys() & variables(atom.args[1]):
                raise BadBulkCopy(tensor=tensor, reason=f"where the tensor ends depends on {atom}", remedy="merge the axes bound to ParallelType.tma into one")
            ends.append(sub(atom.args[1], first))
            elems = minimum(elems, ends[-1])
            atom = substitute(atom, start)
        kept.append(atom)
    return conjunction(kept), elems, ends


def check_async(expr: LoadStoreOp, tensor: TensorView, vector_elems: int) -> None:
    """Check what one thread copies by cp.async. Errors: BadAsyncCopy."""
    bytes_ = tensor.dtype().bits * vector_elems // 8
    if bytes_ not in CP_ASYNC_BYTES:
        taken = ", ".join(map(str, CP_ASYNC_BYTES))
        raise BadAsyncCopy(
            tensor=tensor, reason=f"a thread copies {vector_elems} elements of {tensor.dtype()}, {bytes_} bytes; cp.async can copy {taken}",
            remedy="vectorize the innermost axis so that a thread copies 4, 8 or 16 bytes",
        )  # fmt: skip


__all__ = ["BadAsyncCopy", "BadBulkCopy", "BadRing", "BulkMisaligned", "bulk_copy", "check_async"]
