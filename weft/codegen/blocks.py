"""CUDA text of folds over blocks of neighbours, and of one element stored per block.

Read first: `fold_block`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import CUDA_NAMES, DataType
from ..expr import TRUE, add
from ..ir.block_ops import BlockHadamardOp, BlockSampleOp
from ..lower.blocks import row_variable
from ..lower.kernel_ir import Access, BlockFold, GroupFold, KeepScale, MagnitudeFold, Op, ScaledCast, StoreScales

SCALES_BYTES = 4
"""Bytes of a scale tile that a lane stores at once."""


def fold_block(writer: Any, s: BlockFold, depth: int) -> None:
    """Write the reduction over the quantization blocks of a vector, and over the lanes that share a block. writer: the CudaWriter."""
    writer.blocks["blocks"] = None
    target, source, n, block = s.outputs[0], s.operands[0], s.vector_elems, s.expr.attributes["block"]
    assert isinstance(source, Access)
    is_there = "true" if s.predicate is TRUE else writer.scalars.condition(s.predicate)
    if n == 1:
        value = writer.read(source, DataType.Float)
        if source.buffer.dtype is not DataType.Float:
            value = f"weft::convert<float>({value})"
        fold = f"lanes_hadamard<{s.lanes}, {s.expr.signs}>" if isinstance(s.expr, BlockHadamardOp) else f"lanes_amax<{s.lanes}>"
        writer.write(target, f"weft::{fold}({value if s.predicate is TRUE else f'{is_there} ? {value} : 0.f'})", depth)
        return
    places = f"{target.buffer.name}, {writer.scalars.index(target.index)}, {source.buffer.name}, {writer.scalars.index(source.index)}"
    fold = f"block_hadamard<{n}, {s.lanes}, {s.expr.signs}>" if isinstance(s.expr, BlockHadamardOp) else f"block_amax<{n}, {block}, {s.lanes}>"
    writer.emit(depth, f"weft::{fold}({places}, {is_there});")


def fold_group(writer: Any, s: GroupFold, depth: int) -> None:
    """Write the fold over the groups of a vector, over the lanes that share a group, and over the warps. writer: the CudaWriter."""
    writer.blocks["groups"] = None
    target, source, n = s.outputs[0], s.operands[0], s.vector_elems
    assert isinstance(source, Access)
    dtype = target.buffer.dtype
    monoid, ctype = writer.monoid(s.expr, dtype), CUDA_NAMES[dtype]
    is_there = "true" if s.predicate is TRUE else writer.scalars.condition(s.predicate)
    workspace = f"({ctype}*)nullptr" if s.workspace is None else writer.in_shared(s.workspace, ctype)
    if n == 1:
        value = writer.read(source, dtype)
        given = value if s.predicate is TRUE else f"{is_there} ? {value} : {monoid.identity(dtype)}"
        writer.write(target, f"weft::fold_threads<{monoid.functor_for(dtype)}, {s.lanes}, {s.near}, {ctype}>({given}, {is_there}, {workspace})", depth)
        return
    places = f"{target.buffer.name}, {writer.scalars.index(target.index)}, {source.buffer.name}, {writer.scalars.index(source.index)}"
    fold = f"fold_group<{monoid.functor_for(dtype)}, {n}, {s.expr.attributes['block']}, {s.lanes}, {s.near}>"
    writer.emit(depth, f"weft::{fold}({places}, {is_there}, {monoid.identity(dtype)}, {workspace});")


def fold_magnitude(writer: Any, s: MagnitudeFold, depth: int) -> None:
    """Write the fold of one magnitude, or of a vector of them, each into its own maximum."""
    writer.blocks["blocks"] = None
    target, source = s.outputs[0], s.operands[0]
    assert isinstance(source, Access)
    if s.vector_elems == 1:
        value = f"weft::magnitude({writer.read(source, DataType.Float)})"
        writer.write(target, f"weft::larger({writer.read(target, DataType.Float)}, {value})", depth)
        return
    places = f"{target.buffer.name}, {writer.scalars.index(target.index)}, {source.buffer.name}, {writer.scalars.index(source.index)}"
    writer.emit(depth, f"weft::larger_magnitudes<{s.vector_elems}>({places});")


def cast_scaled(writer: Any, s: ScaledCast, depth: int) -> None:
    """Write the cast of a vector to 4 bits, with its factor."""
    target, (source, factor) = s.outputs[0], s.operands
    assert isinstance(source, Access)
    places = f"{target.buffer.name}, {writer.scalars.index(target.index)}, {source.buffer.name}, {writer.scalars.index(source.index)}"
    count = f"{s.vector_elems}, {s.step}" if s.step > 1 else str(s.vector_elems)
    writer.emit(depth, f"weft::convert_scaled_vector<{count}>({places}, {writer.read(factor, DataType.Float)});")


def tile_scales(writer: Any, s: KeepScale | StoreScales, depth: int) -> None:
    """Write the statements for the scales of four rows of a tile."""
    writer.blocks["blocks"] = None
    target, source = s.outputs[0], s.operands[0]
    assert isinstance(source, Access)
    if isinstance(s, KeepScale):
        scale = writer.read(source, source.buffer.dtype)
        writer.write(target, f"weft::with_scale({writer.read(target, DataType.Int32)}, {scale}, (int)({writer.scalars.index(s.row)}))", depth)
        return
    writer.require_alignment(target.buffer, SCALES_BYTES)
    is_there = "true" if s.predicate is TRUE else writer.scalars.condition(s.predicate)
    writer.emit(depth, f"weft::store_scales({writer.address(target)}, {writer.read(source, DataType.Int32)}, {is_there});")


def sample_blocks(writer: Any, s: Op, depth: int) -> None:
    """Write the store of the first element of each block in a vector.

    Its condition is nested in the common condition of the loop's ops, so that the compiler sees one region in which scales are computed once.
    """
    target, source, block = s.outputs[0], s.operands[0], s.expr.attributes["block"]
    assert isinstance(source, Access)
    if s.inside is not TRUE:
        writer.emit(depth, f"if ({writer.scalars.condition(s.inside)})")
        depth += 1
    if len(s.operands) > 1:
        writer.emit(depth, "{")
        depth += 1
        row, ctype = row_variable(s.expr.outputs[0]).payload, writer.scalars.index_ctype  # type: ignore[arg-type]
        call = f"weft::grouped_row<{ctype}>({writer.scalars.index(s.element)}, {groups_text(writer, s.expr)})"  # type: ignore[arg-type]
        writer.emit(depth, f"const {ctype} {row} = {call};")
    for n in range(max(1, s.vector_elems // block)):
        taken = Access(source.buffer, add(source.index, n * block))
        writer.write(Access(target.buffer, add(target.index, n)), writer.read(taken, target.buffer.dtype), depth)
    if len(s.operands) > 1:
        writer.emit(depth - 1, "}")


def groups_text(writer: Any, sample: BlockSampleOp) -> str:
    """Return the arguments with the first rows of the groups, the first rows of their tiles, and the number of groups."""
    writer.blocks["blocks"] = None
    begins, places = sample.read_whole
    return f"T{begins.name}, T{places.name}, {writer.scalars.index(places.get_logical_domain()[0].sym)}"
