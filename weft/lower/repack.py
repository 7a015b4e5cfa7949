"""Values of 16 bits that a thread keeps until a later pass over its row, two in a register. Read first: `repack_kept`."""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import ONE
from ..ir.enums import MemoryType
from .contracts import lowering_pass
from .kernel_ir import Access, Buffer, Kernel, Nest, Op, Reduce, Repack, Statement, walk
from .state import BuildState

PACKED = (DataType.BFloat16, DataType.Half)  # weft::Array packs two in a register


@lowering_pass(needs=["reductions", "pipelines"])
def repack_kept(kernel: Kernel, state: BuildState) -> Kernel:
    """After a reduction across threads, repack the arrays of 16-bit floats that are read before and after it, and those of narrower floats that are loaded one
    by one.

    Before: reductions are statements among others.   After: each such array has a Repack after the reduction. Here because: reductions are in their final
    places. Without it the compiler converts once and keeps the wide values: twice the registers, and spills.
    Bytes that are loaded one by one would take a register each. Measured: docs/constants.md.
    """
    kernel.body = _repack_body(kernel.body, _loaded_singly(kernel.body))
    return kernel


def _loaded_singly(body: list[Statement]) -> set[Buffer]:
    """Arrays of floats of 8 and 4 bits in registers that are loaded from memory element by element."""
    return {
        out.buffer
        for inner in walk(body) if isinstance(inner, Op) and inner.vector_elems == 1
        for out, source in zip(inner.outputs, inner.operands)
        if isinstance(source, Access) and source.buffer.memory is MemoryType.global_ and out.buffer.memory is MemoryType.local
        and out.buffer.dtype.is_narrow_float
    }  # fmt: skip


def _repack_body(body: list[Statement], singly: set[Buffer]) -> list[Statement]:
    reads = [_packed_reads(s, singly) for s in body]
    last = {buffer: position for position, buffers in enumerate(reads) for buffer in buffers}
    out: list[Statement] = []
    seen: dict[Buffer, None] = {}
    for position, statement in enumerate(body):
        if isinstance(statement, Nest):
            statement.body = _repack_body(statement.body, singly)
        out.append(statement)
        seen.update(dict.fromkeys(reads[position]))
        if isinstance(statement, Reduce) and statement.thread_types:
            seen = {b: None for b in seen if last[b] > position}
            out += [Repack(b) for b in seen]
    return out


def _packed_reads(statement: Statement, singly: set[Buffer]) -> list[Buffer]:
    """Arrays in registers that `statement` reads: of 16-bit floats, and those of `singly`, which it may also load."""
    return [
        o.buffer
        for inner in walk([statement]) if isinstance(inner, Op)
        for o in (*inner.operands, *(out for out in inner.outputs if out.buffer in singly))
        if isinstance(o, Access) and o.buffer.memory is MemoryType.local and (o.buffer.dtype in PACKED or o.buffer in singly) and o.buffer.elems is not ONE
    ]  # fmt: skip
