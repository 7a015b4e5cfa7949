"""CUDA text of sums of bags: rows of a tensor in memory, one after the other. `writer` is the CudaWriter of the kernel.

A thread loads several rows before it adds the first, because each load takes as long as hundreds of additions. Read first: `sum_bag`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from ..dtypes import CUDA_NAMES
from ..expr import Sym, minimum
from ..ir.graph_ops import BagOp
from ..ir.values import TensorView, no_reductions
from ..lower.kernel_ir import Access, Op
from ..lower.lookups import bag_variable, position_variable
from .positions import lane_of

FULL_BATCH, LAST_BATCH = 128, 64
"""Bytes that a thread loads before it adds: of long bags; of what is left, and of short bags, where some rows may not exist."""
MOST_ROWS = 8


def sum_bag(writer: Any, s: Op, expr: BagOp, depth: int) -> None:
    """Write the loops over the rows of a bag: an element, or a vector, of each row is loaded and added."""
    writer.blocks["lookup"] = None
    target, first, end = s.outputs[0], s.operands[1], s.operands[2]
    assert isinstance(first, Access) and isinstance(end, Access)
    index = writer.scalars.index_ctype
    length = writer.scalars.index(functools.reduce(minimum, (_extent(expr.tensor_inputs[n], axis) for n, axis in expr.counted_axes)))
    limits = [f"weft::bag_limit<{index}>({writer.read(place, place.buffer.dtype)}, {length})" for place in (first, end)]
    sums = [target] if s.vector_elems == 1 else [lane_of(target, lane) for lane in range(s.vector_elems)]
    writer.emit(depth, "{")
    writer.emit(depth + 1, f"{CUDA_NAMES[target.buffer.dtype]} sum[{len(sums)}] = {{}};")
    writer.emit(depth + 1, f"{index} batch = {limits[0]};  // rows of the bag")
    writer.emit(depth + 1, f"const {index} end = {limits[1]};")
    row_bytes = s.vector_elems * expr.source.dtype().bits // 8
    for batch, is_full in ((FULL_BATCH, True), (LAST_BATCH, False)):
        rows = min(MOST_ROWS, batch // row_bytes)
        writer.emit(depth + 1, "#pragma unroll 1")
        test = f"batch + {rows} <= end" if is_full else "batch < end"
        writer.emit(depth + 1, f"for (; {test}; batch += {rows}) {{")
        _add_batch(writer, s, expr, rows, is_full, depth + 2)
        writer.emit(depth + 1, "}")
    for lane, place in enumerate(sums):
        writer.write(place, f"sum[{lane}]", depth + 1)
    writer.emit(depth, "}")


def _extent(tensor: TensorView, axis: int) -> Sym:
    return no_reductions(tensor.get_logical_domain())[axis].logical_extent


def _add_batch(writer: Any, s: Op, expr: BagOp, rows: int, is_full: bool, depth: int) -> None:
    """Write the loads of some rows, and then their additions. is_full: all of them are in the bag."""
    source, order, bag = s.operands[0], expr.bag.order, expr.bag
    assert isinstance(source, Access)
    index, k, at = writer.scalars.index_ctype, bag_variable(expr).payload, position_variable(expr, bag.operand).payload
    wide, narrow = (CUDA_NAMES[access.buffer.dtype] for access in (s.outputs[0], source))
    extent = writer.scalars.index(_extent(expr.source, expr.bag_axis))
    row = k if order is None else f"weft::position<{index}>(weft::load_global({writer.address(s.operands[order])}), {extent})"
    writer.emit(depth, f"weft::Array<{narrow}, {s.vector_elems}> row[{rows}];")
    if bag.weights is not None:
        writer.emit(depth, f"{wide} weight[{rows}];")
    _for_each(writer, rows, depth)
    writer.emit(depth + 1, f"const {index} {k} = batch + j;")
    inner = depth + 1 + (not is_full)
    if not is_full:
        writer.emit(depth + 1, f"if ({k} < end) {{")
    writer.emit(inner, f"const {index} {at} = {row};")
    for lane, width in _accesses(writer, s):
        address = writer.address(lane_of(source, lane))
        writer.emit(inner, f"weft::load_global_vector<{width}>(row[j], {lane}, {address});" if width > 1 else f"row[j][{lane}] = weft::load_global({address});")
    if bag.weights is not None:
        writer.emit(inner, f"weight[j] = {_wide_weight(writer, s.operands[bag.weights], wide)};")
    if not is_full:
        writer.emit(depth + 1, "}")
    writer.emit(depth, "}")
    _for_each(writer, rows, depth)
    value = "row[j][lane]" if narrow == wide else f"weft::convert<{wide}>(row[j][lane])"
    value += " * weight[j]" * (bag.weights is not None)
    test = "" if is_full else "if (batch + j < end) "
    writer.emit(depth + 1, f"for (int lane = 0; lane < {s.vector_elems}; ++lane) {test}sum[lane] += {value};")
    writer.emit(depth, "}")


def _wide_weight(writer: Any, weight: Any, wide: str) -> str:
    loaded = f"weft::load_global({writer.address(weight)})"
    return loaded if CUDA_NAMES[weight.buffer.dtype] == wide else f"weft::convert<{wide}>({loaded})"


def _for_each(writer: Any, rows: int, depth: int) -> None:
    writer.emit(depth, "#pragma unroll")
    writer.emit(depth, f"for (int j = 0; j < {rows}; ++j) {{")


def _accesses(writer: Any, s: Op) -> list[tuple[int, int]]:
    """Return the first element and the width of each access to a row."""
    source = s.operands[0]
    assert isinstance(source, Access)
    bits = source.buffer.dtype.bits
    width = math.gcd(s.vector_elems, writer.access_bits // bits)
    if width > 1:
        writer.require_alignment(source.buffer, width * bits // 8)
    return [(lane, width) for lane in range(0, s.vector_elems, width)]


__all__ = ["sum_bag"]
