"""Copies by TMA as nvFuser's schedules write them, in the form that lowering has.

nvFuser lets every index of a thread axis issue a copy of its own, splits a tile's row into pieces that lie one behind the other, and writes a swizzle as
transforms of the tile's axes. Here one thread issues all copies in loops, and a swizzle is a property of the copy. Owns that rewriting.
Read first: `settle_bulk_copies`.
"""

from __future__ import annotations

from ..ir.enums import BLOCK_TYPES, LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, LoadStoreOp, Split, Swizzle, TensorView
from .primitives import shared_positions

SWIZZLES_BYTES = (32, 64, 128)
CHUNK_BITS = 128


def settle_bulk_copies(fusion: Fusion) -> None:
    """Rewrite the loops of tensors that TMA copies, in place; loops that lowering supports directly are not changed.

    Before: axes of a load by TMA may be bound to threads; axes bound to `tma` may come from one axis that was split several times, or through a swizzle.
    After: such axes are loops of the thread that issues copies, outer parts of a split first; a swizzle is the attribute `swizzle_bytes` of the copy.
    """
    for expr in fusion.tensor_exprs():
        if isinstance(expr, LoadStoreOp) and expr.kind is LoadStoreOpType.tma:
            output, source = expr.tensor_outputs[0], expr.tensor_inputs[0]
            near = output if output.memory_type is MemoryType.shared else source
            _settle_swizzle(expr, near)
            if near is output:
                _let_one_thread_issue(output)
            _leave_one_part_of_a_row(output)


def _let_one_thread_issue(tensor: TensorView) -> None:
    shared = shared_positions(tensor)
    for position, axis in enumerate(tensor.get_loop_domain()):
        if axis.parallel in BLOCK_TYPES and position not in shared:
            axis.parallelize(ParallelType.serial)


def _leave_one_part_of_a_row(tensor: TensorView) -> None:
    """Of several axes bound to `tma` that come from one logical axis, only the innermost part is copied at once."""
    parts: dict[IterDomain, list[IterDomain]] = {}
    for axis in tensor.get_loop_domain():
        if axis.parallel is ParallelType.tma:
            parts.setdefault(_split_from(axis), []).append(axis)
    for _, *rest in (list(reversed(found)) for found in parts.values()):
        for axis in rest:
            axis.parallelize(ParallelType.serial)


def _split_from(axis: IterDomain) -> IterDomain:
    transform = axis.definition()
    while isinstance(transform, Split):
        axis = transform.source()
        transform = axis.definition()
    return axis


# ---------------------------------------------------------------- swizzles
def _settle_swizzle(copy: LoadStoreOp, near: TensorView) -> None:
    """Turn a swizzle of the chunks of a tile's rows, given as transforms of the tensor in shared memory, into an attribute of the copy."""
    domain = near.domain()
    found = [s for axis in (*domain.loop, *(domain.allocation or ())) if isinstance(s := axis.definition(), Swizzle)]
    if not found:
        return
    swizzle = found[0]
    chunks: IterDomain = swizzle.inputs[1]  # type: ignore[assignment]
    row = chunks.definition()
    if not isinstance(row, Split) or chunks is not row.outer() or not row.source().sym.is_const:
        return
    bits = near.dtype().bits
    row_bytes = int(row.source().sym.value) * bits // 8  # type: ignore[arg-type]
    inner = row.inner().sym
    if row_bytes not in SWIZZLES_BYTES or not inner.is_const or inner.value * bits != CHUNK_BITS:
        return
    copy.attributes["swizzle_bytes"] = row_bytes
    domain.allocation = None
    _undo(domain.loop, swizzle)
    _join(domain.loop, row)
    of_rows = swizzle.inputs[0].definition()
    if isinstance(of_rows, Split):
        _join(domain.loop, of_rows)


def _undo(loop: list[IterDomain], swizzle: Swizzle) -> None:
    """Replace the output axes of a swizzle by its inputs, with their bindings."""
    for before, after in zip(swizzle.inputs, swizzle.outputs):
        if after in loop:
            before.parallel = after.parallel  # type: ignore[attr-defined]
            loop[loop.index(after)] = before  # type: ignore[call-overload]
        before._uses = [use for use in before._uses if use is not swizzle]


def _join(loop: list[IterDomain], split: Split) -> None:
    """Replace the parts of a split by its source, if they are neighbours with the same binding."""
    outer, inner, source = split.outer(), split.inner(), split.source()
    if outer in loop and inner in loop and loop.index(inner) == loop.index(outer) + 1 and outer.parallel is inner.parallel:
        source.parallel = inner.parallel
        place = loop.index(outer)
        loop[place : place + 2] = [source]
        source._uses = [use for use in source._uses if use is not split]
