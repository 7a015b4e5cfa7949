"""CUDA text of vectors of rows that begin anywhere, which all lanes of a warp load together (device/row_vectors.cuh).

`writer` is the CudaWriter of the kernel. Read first: `load_row_vector`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import CUDA_NAMES
from ..expr import TRUE
from ..lower.kernel_ir import Access, RowLoad


def load_row_vector(writer: Any, s: RowLoad, cache: str, depth: int) -> None:
    """Write the load of a vector into shared memory; it passes through registers."""
    writer.blocks["row_vectors"] = None
    target, source, n = s.outputs[0], s.operands[0], s.vector_elems
    assert isinstance(source, Access)
    index = writer.scalars.index
    left = index(s.left) if s.predicate is TRUE else f"{writer.scalars.condition(s.predicate)} ? {index(s.left)} : -{n}"
    writer.emit(depth, "{")
    writer.emit(depth + 1, f"weft::Array<{CUDA_NAMES[target.buffer.dtype]}, {n}> moved;")
    writer.call(depth + 1, f"weft::load_row_vector<{n}, {s.row_lanes}, weft::Cache::{cache}>(moved, 0, {writer.address(source)}, {left});")
    writer.emit(depth + 1, f"weft::store_shared_vector<{n}>({writer.address(target)}, moved, 0);")
    writer.emit(depth, "}")


__all__ = ["load_row_vector"]
