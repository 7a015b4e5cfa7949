"""Where the buffers and workspaces in shared memory lie. Read first: `place_shared_memory`."""

from __future__ import annotations

from ..expr import ZERO, Sym, add, ceildiv, mul
from ..ir.enums import MemoryType
from .contracts import lowering_pass
from .kernel_ir import Kernel
from .state import BuildState

SHARED_ALIGNMENT_BYTES = 128


@lowering_pass(needs=["workspaces", "scan workspaces", "pipelines"], gives=["shared memory"])
def place_shared_memory(kernel: Kernel, state: BuildState) -> Kernel:
    """Give every shared buffer and workspace an offset, and the kernel its dynamic shared memory.

    Before: buffers are final.  After: `offset_bytes` of each is set, 128-byte aligned; `shared_bytes` is their sum.
    """
    offset: Sym = ZERO
    buffers = [b for b in kernel.buffers.values() if b.memory is MemoryType.shared] + kernel.workspaces
    for buffer in buffers:
        if buffer.align_bytes > SHARED_ALIGNMENT_BYTES:
            offset = mul(ceildiv(offset, buffer.align_bytes), buffer.align_bytes)
        buffer.offset_bytes = offset
        bytes_ = ceildiv(mul(buffer.elems, buffer.dtype.bits), 8)
        aligned = mul(ceildiv(bytes_, SHARED_ALIGNMENT_BYTES), SHARED_ALIGNMENT_BYTES)
        offset = add(offset, aligned)
    kernel.shared_bytes = offset
    return kernel
