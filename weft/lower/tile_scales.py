"""Stores the scales of four rows of a tile together.

Why: of rows that lie in tiles of 128 rows by 4 columns, a row's scales are pieces of four bytes, and each piece takes a whole sector on its way to memory.
Measured: docs/constants.md, async_rows_heuristic.py.
Read first: `join_tile_scales`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..dtypes import DataType
from ..expr import ONE, TRUE, ZERO, Sym, add, conjunction, const, floordiv, is_divisible, mod, mul, sub, substitute, variables
from ..ir.block_ops import SWIZZLED, BlockSampleOp
from ..ir.enums import MemoryType, ParallelType
from .contracts import lowering_pass
from .kernel_ir import Access, Allocate, Buffer, If, KeepScale, Kernel, Loop, Op, Statement, StoreScales, depends_on_threads
from .state import BuildState

TILE_STEPS, TILE_COLUMNS = 4, 4
"""Rows of a tile whose scales are neighbours, and columns of a tile."""
TILE_BYTES = 512
SCALE_BITS = 8


@lowering_pass(needs=["grouped predicates"])
def join_tile_scales(kernel: Kernel, state: BuildState) -> Kernel:
    """Collect the scales of a loop over four rows of a tile, and store them together after it.

    Before: each row stores a one-byte scale per block, and the addresses of the rows are four bytes apart.   After: `KeepScale` in the loop, `StoreScales`
    after it; a row that does not exist gives zeros, as in the padding.   Here because: conditions that differ between threads are Ifs around their statements.
    """
    if any(extent is not ONE for extent in kernel.block[1:]):
        return kernel
    body: list[Statement] = []
    for s in kernel.body:
        joined = _joined(s) if isinstance(s, Loop) and s.extent.is_const and s.extent.value == TILE_STEPS and s.start is ZERO else None
        body += joined or [s]
    kernel.body = body
    return kernel


def _joined(loop: Loop) -> list[Statement] | None:
    """Return the loop, with the statements before and after it; None if it stores no such scales. Changes the loop."""
    found = list(_stores(loop.body, (), TRUE))
    if len(found) != 1:
        return None
    body, store, batches, condition = found[0]
    target = store.outputs[0]
    if len(batches) > 1 or not _are_neighbours(target.index, loop.index):
        return None
    batch = batches[0] if batches else None
    index, count = (batch.index, batch.extent) if batch is not None else (ZERO, const(1))
    words = Buffer(f"T{target.buffer.tensor.name}_rows", DataType.Int32, MemoryType.local, count, target.buffer.tensor, fill="sum")
    body[body.index(store)] = KeepScale(store.expr, [Access(words, index)], store.operands[:1], row=loop.index)
    first = Access(target.buffer, substitute(target.index, {loop.index: ZERO}))
    is_there = substitute(condition, {loop.index: mod(_thread(target.index), TILE_STEPS)})  # type: ignore[arg-type]  # a lane stores the row of its number
    behind: Statement = StoreScales(store.expr, [first], [Access(words, index)], is_there)
    if batch is not None:
        behind = Loop(index, count, [behind], label=batch.label)
    return [Allocate(words), loop, behind]


def _stores(body: list[Statement], batches: tuple[Loop, ...], condition: Sym) -> Iterator[tuple[list[Statement], Op, tuple[Loop, ...], Sym]]:
    """Yield (body, op, loops around it, condition) of stores of single scales to tiles that all threads of a block execute, or none."""
    for s in body:
        if isinstance(s, Op) and _is_store(s):
            yield body, s, batches, condition
        elif isinstance(s, Loop):
            yield from _stores(s.body, (*batches, s), condition)
        elif isinstance(s, If) and not _is_of_thread(s.predicate):
            yield from _stores(s.body, batches, conjunction([condition, s.predicate]))


def _is_store(s: Op) -> bool:
    """True for a store of one scale of a byte to tiles."""
    target = s.outputs[0].buffer
    is_one = s.vector_elems == 1 and s.inside is TRUE and len(s.operands) == 1
    is_byte = target.memory is MemoryType.global_ and target.dtype.bits == SCALE_BITS
    return isinstance(s.expr, BlockSampleOp) and s.expr.layout == SWIZZLED and is_one and is_byte


def _is_of_thread(condition: Sym) -> bool:
    return depends_on_threads([condition])


def _thread(index: Sym) -> Sym | None:
    """Return the thread along x that an index depends on."""
    return next((v for v in variables(index) if v.payload == ParallelType.block_x.value), None)


def _are_neighbours(index: Sym, row: Sym) -> bool:
    """True if four rows are four bytes apart, and four neighbouring threads have the four columns of a tile."""
    thread = _thread(index)
    if thread is None or sub(substitute(index, {row: add(row, 1)}), index) is not const(TILE_COLUMNS):
        return False
    others = sub(index, mod(thread, TILE_COLUMNS))
    tile = sub(others, mul(floordiv(thread, TILE_COLUMNS), TILE_BYTES))
    return is_divisible(others, TILE_COLUMNS) and not depends_on_threads([tile])
