"""CUDA text of accesses to whole vectors, and of copies by other units: cp.async, bulk copies, tiles of tensor maps.

Owns what they print; `writer` is the CudaWriter of the kernel. Read first: `write_vector`, `copy_in_bulk`.
"""

from __future__ import annotations

import math
from typing import Any

from ..analysis.vectorization import SHIFTED_WORD_BITS
from ..arch import BULK_BYTES
from ..dtypes import CUDA_NAMES
from ..errors import InternalError, UserError
from ..expr import mod
from ..ir.enums import CacheOp, MemoryType
from ..ir.values import LoadStoreOp, PointwiseOp
from ..lower.kernel_ir import Access, BulkCopy, Op, TensorTile, bytes_of
from ..lower.program import Need
from .positions import MAX_ACCESS_BITS, lane_of

CACHES = {CacheOp.unspecified: "unspecified", CacheOp.all_levels: "all_levels", CacheOp.streaming: "streaming", CacheOp.global_: "global"}


class SplitUnit(UserError):
    code = "W861"
    what = "Tried to vectorize a dim resulting in a word size of {bits} bits: an access to {tensor} would cover part of a byte that another thread writes, too"
    fix = "vectorize the axis along which {dtype} is packed by a multiple of {elems}"


def write_vector(writer: Any, s: Op, depth: int) -> None:
    """Write a vector access, or a conversion of a vector."""
    expr, n = s.expr, s.vector_elems
    target, source = s.outputs[0], s.operands[0]
    if not isinstance(source, Access):
        raise InternalError(f"{expr} is vectorized and reads a scalar")
    out, src = target.buffer, source.buffer
    if isinstance(expr, PointwiseOp):
        convert = "convert_narrow_vector" if out.dtype.is_narrow_float or src.dtype.is_narrow_float else "convert_vector"
        writer.emit(depth, f"weft::{convert}<{n}>({out.name}, {writer.scalars.index(target.index)}, {src.name}, {writer.scalars.index(source.index)});")
        return
    if s.is_shifted:
        load_shifted(writer, s, depth)
        return
    is_far = {src.memory, out.memory} == {MemoryType.global_, MemoryType.local}
    widest = (writer.access_bits if is_far else MAX_ACCESS_BITS) // max(out.dtype.bits, 1)
    if n > widest:  # wider than one instruction: split into several of one width
        width = math.gcd(n, widest)
        for lane in range(0, n, width):
            write_vector(writer, Op(expr, [lane_of(target, lane)], [lane_of(source, lane)], vector_elems=width), depth)
        return
    for buffer in (out, src):
        if n % buffer.dtype.elems_per_unit and buffer.memory is not MemoryType.local:
            raise SplitUnit(tensor=buffer.tensor, bits=n * buffer.dtype.bits, dtype=buffer.dtype.value, elems=buffer.dtype.elems_per_unit)
        if buffer.memory is MemoryType.global_:
            writer.require_alignment(buffer, n * buffer.dtype.bits // 8)
    cache = f"weft::Cache::{CACHES[expr.cache_op]}" if isinstance(expr, LoadStoreOp) else "weft::Cache::unspecified"
    memories = (src.memory, out.memory)
    register_offset = writer.scalars.index((target if out.memory is MemoryType.local else source).index)
    if memories == (MemoryType.global_, MemoryType.local):
        writer.emit(depth, f"weft::load_global_vector<{n}, {cache}>({out.name}, {register_offset}, {writer.address(source)});")
    elif memories == (MemoryType.local, MemoryType.global_):
        writer.emit(depth, f"weft::store_global_vector<{n}, {cache}>({writer.address(target)}, {src.name}, {register_offset});")
    elif memories == (MemoryType.shared, MemoryType.local):
        writer.emit(depth, f"weft::load_shared_vector<{n}>({out.name}, {register_offset}, {writer.address(source)});")
    elif memories == (MemoryType.local, MemoryType.shared):
        writer.emit(depth, f"weft::store_shared_vector<{n}>({writer.address(target)}, {src.name}, {register_offset});")
    elif memories == (MemoryType.local, MemoryType.local):
        to, from_ = (f"{place.buffer.name}[{writer.scalars.index(place.index)} + lane]" for place in (target, source))
        writer.emit(depth, f"for (int lane = 0; lane < {n}; ++lane) {to} = {from_};")
    else:
        copy_through_registers(writer, s, depth, cache)


def load_shifted(writer: Any, s: Op, depth: int) -> None:
    """Write the load of a vector that begins at any element."""
    writer.blocks["shifted"] = None
    target, source = s.outputs[0], s.operands[0]
    writer.start_bytes[source.buffer.name] = SHIFTED_WORD_BITS // 8  # type: ignore[union-attr]
    cache = f"weft::Cache::{CACHES[s.expr.cache_op]}"  # type: ignore[attr-defined]
    odd = writer.scalars.index(mod(source.index, 2))  # type: ignore[union-attr]
    place = f"{target.buffer.name}, {writer.scalars.index(target.index)}, {writer.address(source)}, {odd}"
    writer.emit(depth, f"weft::load_global_shifted<{s.vector_elems}, {cache}>({place});")


def copy_in_bulk(writer: Any, s: BulkCopy, depth: int) -> None:
    """Write a bulk copy, issued by one thread."""
    writer.needs.add(Need.bulk_copies)
    target, source = s.outputs[0], s.operands[0]
    far = source if target.buffer.memory is MemoryType.shared else target
    writer.require_alignment(far.buffer, BULK_BYTES)  # type: ignore[union-attr]
    if s.tile is not None:
        copy_tile(writer, s, s.tile, depth)
        return
    bytes_ = writer.scalars.index(bytes_of(s.elems, target.buffer.dtype))
    if far is target:
        writer.emit(depth, f"weft::bulk_store({writer.address(target)}, {writer.address(source)}, {bytes_});")
        writer.emit(depth, "weft::bulk_commit();")
        return
    if s.counts_itself:
        writer.emit(depth, f"weft::mbarrier_expect_tx({writer.address(s.barrier)}, {writer.scalars.index(s.moved_bytes)});")
    load = "bulk_load" if s.skipped is None else "bulk_load_units"
    writer.emit(depth, f"weft::{load}({writer.address(target)}, {writer.address(source)}, {bytes_}, {writer.address(s.barrier)});")


def copy_tile(writer: Any, s: BulkCopy, tile: TensorTile, depth: int) -> None:
    """Write the copy of a tile of a tensor map, issued by one thread."""
    writer.maps[tile.map.name] = tile.map
    writer.needs.add(Need.tensor_maps)
    target, source = s.outputs[0], s.operands[0]
    places = ", ".join(f"(int)({writer.scalars.index(p)})" for p in tile.places)
    rank, map_ = len(tile.places), f"&{tile.map.name}"
    if target.buffer.memory is not MemoryType.shared:
        writer.emit(depth, f"weft::tensor_store<{rank}>({map_}, {writer.address(source)}, {places});")
        writer.emit(depth, "weft::bulk_commit();")
        return
    if s.counts_itself:
        bytes_ = writer.scalars.index(bytes_of(s.elems, target.buffer.dtype))
        writer.emit(depth, f"weft::mbarrier_expect_tx({writer.address(s.barrier)}, {bytes_});")
    writer.emit(depth, f"weft::tensor_load<{rank}>({writer.address(target)}, {map_}, {places}, {writer.address(s.barrier)});")


def copy_async(writer: Any, s: Op, depth: int) -> None:
    """Write the cp.async copies of one thread."""
    target, source = s.outputs[0], s.operands[0]
    bytes_ = s.vector_elems * target.buffer.dtype.bits // 8
    writer.require_alignment(source.buffer, bytes_)  # type: ignore[union-attr]
    writer.emit(depth, f"weft::cp_async<{bytes_}>({writer.address(target)}, {writer.address(source)}, true);")


def copy_through_registers(writer: Any, s: Op, depth: int, cache: str) -> None:
    """A vector copy between global and shared (or global and global) memory passes through an array."""
    n, target, source = s.vector_elems, s.outputs[0], s.operands[0]
    ctype = CUDA_NAMES[target.buffer.dtype]
    load = f"load_global_vector<{n}, {cache}>" if source.buffer.memory is MemoryType.global_ else f"load_shared_vector<{n}>"  # type: ignore[union-attr]
    store = f"store_global_vector<{n}, {cache}>" if target.buffer.memory is MemoryType.global_ else f"store_shared_vector<{n}>"
    moves = f"weft::{load}(moved, 0, {writer.address(source)}); weft::{store}({writer.address(target)}, moved, 0);"
    writer.emit(depth, f"{{ weft::Array<{ctype}, {n}> moved; {moves} }}")
