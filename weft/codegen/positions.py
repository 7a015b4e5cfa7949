"""CUDA text of lookups, running folds and comparisons of positions.

Owns what they print; `writer` is the CudaWriter of the kernel. Read first: `look_up`, `scan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..analysis.compared import COMPARISONS
from ..dtypes import CUDA_NAMES, DataType
from ..errors import InternalError
from ..expr import ONE, TRUE, ZERO, Sym, add, const, maximum, minimum, product
from ..ir.enums import MemoryType
from ..ir.graph_ops import At, LookupOp, ScatterStoreOp, named_axes
from ..ir.values import IotaOp, no_reductions
from ..lower.kernel_ir import Access, Buffer, Op, Scan
from ..lower.kernel_sync import HandOverTotal, ScanFold, TakeTotals
from ..lower.lookups import checked_positions, inside_positions, position_variable, scatter_variable
from ..lower.scans import accumulator
from .scalars import is_host

MAX_ACCESS_BITS = 128
"""The widest access on every chip; a schedule may use wider ones to global memory (`ScheduleResult.access_bits`)."""

INDEX_BITS = 32
"""Of the narrower index type: positions of so many bits are compared as they are, also where a masked lookup has some outside of its source."""


def lane_of(place: Access, lane: int) -> Access:
    return Access(place.buffer, add(place.index, lane)) if lane else place


def is_scalar(buffer: Buffer) -> bool:
    return buffer.elems is ONE


def linear(kinds: list, dims: str) -> tuple[str, str]:
    """Return (linear index, count) over block or grid dimensions, as unsigned text."""
    index, count = "0u", "1u"
    for p in reversed(kinds):
        axis = p.value[-1]
        index = p.value if index == "0u" else f"({index} * {dims}.{axis} + {p.value})"
        count = f"{dims}.{axis}" if count == "1u" else f"{count} * {dims}.{axis}"
    return index, count


def look_up(writer: Any, s: Op, expr: LookupOp, depth: int) -> None:
    """Write the load of an element, or a vector, at computed positions; outside of a masked source the fill value."""
    checked, inside = checked_positions(expr), inside_positions(expr)
    operands = dict.fromkeys(p.operand for p in expr.positions if isinstance(p, At))
    inner = depth + bool(operands)
    if checked:
        writer.blocks["lookup"] = None
    if operands:
        writer.emit(depth, "{")
    for operand in operands:
        place = s.operands[operand]
        text = writer.read(place, place.buffer.dtype)  # type: ignore[union-attr]
        is_narrow = operand in checked or operand in inside or place.buffer.dtype.bits <= INDEX_BITS  # type: ignore[union-attr]
        ctype = writer.scalars.index_ctype if is_narrow else "long long"
        value = f"weft::position<{ctype}>({text}, {writer.scalars.index(checked[operand])})" if operand in checked else f"({ctype})({text})"
        writer.emit(inner, f"const {ctype} {position_variable(expr, operand).payload} = {value};")
    load_inside(writer, s, expr, inner)
    if operands:
        writer.emit(depth, "}")


def load_inside(writer: Any, s: Op, expr: LookupOp, depth: int) -> None:
    """Write the load of a lookup with known positions, and the fill value if they are outside."""
    target, source, n = s.outputs[0], s.operands[0], s.vector_elems
    assert isinstance(source, Access)
    inside = None if s.inside is TRUE else writer.scalars.condition(s.inside)
    load = writer.load_global(source, "unspecified") if source.buffer.dtype.is_packed else f"weft::load_global({writer.address(source, sums_offsets=True)})"
    if n == 1:
        fill = writer.read(s.operands[-1], target.buffer.dtype) if inside else ""
        writer.write(target, f"{inside} ? {load} : {fill}" if inside else load, depth)
        return
    if target.buffer.memory is not MemoryType.local:
        raise InternalError(f"{expr} is vectorized, and its result is not in registers")
    width = math.gcd(n, writer.access_bits // max(target.buffer.dtype.bits, 1))
    writer.require_alignment(source.buffer, width * source.buffer.dtype.bits // 8)
    if inside:
        writer.emit(depth, f"if ({inside}) {{")
    for lane in range(0, n, width):
        place, address = writer.scalars.index(lane_of(target, lane).index), writer.address(lane_of(source, lane), sums_offsets=True)
        writer.emit(depth + bool(inside), f"weft::load_global_vector<{width}>({target.buffer.name}, {place}, {address});")
    if inside:
        rest = s.operands[-1]
        is_array = isinstance(rest, Access) and not is_scalar(rest.buffer)
        text = f"{rest.buffer.name}[{at_lane(writer, rest)}]" if is_array else writer.read(rest, target.buffer.dtype)  # type: ignore[union-attr, arg-type]
        writer.emit(depth, "} else {")
        writer.emit(depth + 1, f"for (int lane = 0; lane < {n}; ++lane) {target.buffer.name}[{at_lane(writer, target)}] = {text};")
        writer.emit(depth, "}")


def scatter_store(writer: Any, s: Op, expr: ScatterStoreOp, depth: int) -> None:
    """Write a value, or a vector, at the position that an index gives, unless that is out of range."""
    writer.blocks["scatter"] = None
    target, value, index = s.outputs[0], s.operands[0], s.operands[1]
    at, ctype = writer.read(index, expr.tensor_inputs[1].dtype()), writer.scalars.index_ctype
    extent = product(a.logical_extent for a in named_axes(expr, no_reductions(expr.memory.get_logical_domain())))
    test = "is_inside" if expr.attributes.get("skips") else "is_position"
    writer.emit(depth, f"if (weft::{test}({at}, {writer.scalars.index(extent)})) {{")
    writer.emit(depth + 1, f"const {ctype} {scatter_variable(expr).payload} = ({ctype})({at});")
    name = f"scatter_{SCATTERED[expr.attributes['kind']]}"
    if s.vector_elems > 1:
        assert isinstance(value, Access)
        writer.require_alignment(target.buffer, s.vector_elems * target.buffer.dtype.bits // 8)
        place = f"{value.buffer.name}, {writer.scalars.index(value.index)}"
        writer.emit(depth + 1, f"weft::{name}_vector<{s.vector_elems}>({writer.address(target)}, {place});")
    else:
        writer.emit(depth + 1, f"weft::{name}({writer.address(target)}, {writer.read(value, target.buffer.dtype)});")
    writer.emit(depth, "}")


SCATTERED = {"sum": "add", "max": "max", "min": "min", "set": "set"}
"""By how values are combined: the functions of device/scatter.cuh."""


def counted_text(writer: Any, s: Op) -> str | None:
    """Return the result of integer arithmetic on positions where less than the op itself does: see `weft.lower.counted_positions`."""
    dtype = s.outputs[0].buffer.dtype
    if s.position is not None:
        return str(writer.scalars.value(s.position, dtype)) if s.position.is_const else f"({CUDA_NAMES[dtype]})({writer.scalars.index(s.position)})"
    if s.kept is not None:
        return str(writer.read(s.operands[s.kept], dtype))
    if not s.is_natural:
        return None
    a, b = (writer.read(o, dtype) for o in s.operands)
    unsigned = "unsigned" if dtype is DataType.Int32 else "unsigned long long"
    return f"({CUDA_NAMES[dtype]})(({unsigned}){a} {'%' if s.expr.op_name in ('fmod', 'remainder') else '/'} ({unsigned}){b})"


def tell_bounds(writer: Any, s: Op, depth: int) -> None:
    """Tell the compiler what the index of a position is below, if it depends on threads: it then sees which clamps have no effect."""
    if s.bounded and not s.bounded[0].is_const:
        writer.blocks["lookup"] = None
        index, count = map(writer.scalars.index, s.bounded)
        writer.emit(depth, f"WEFT_ASSUME_BELOW({index}, {count});")


def compared_positions(writer: Any, s: Op) -> list[str] | None:
    """Return the operands of a comparison of an element's position with a host value, in the index type if that is narrower. The position is an index; a limit
    outside of the index range is replaced by the largest or smallest index, with the same result.
    """
    if s.expr.op_name not in COMPARISONS or s.expr.attributes["compute"] is not DataType.Int or writer.kernel.index_type is not DataType.Int32:
        return None
    is_position = [isinstance(o, Access) and is_scalar(o.buffer) and o.buffer.memory is MemoryType.local and _counts(o.buffer) for o in s.operands]
    limits = [o for o in s.operands if isinstance(o, Sym) and (o.is_const or is_host(o))]
    if sum(is_position) != 1 or len(limits) != 1:
        return None
    least, most = (const(n) for n in (-(1 << 31), (1 << 31) - 1))
    limit = writer.scalars.value(minimum(maximum(limits[0], least), most), DataType.Int32)
    return [f"(int){writer.read(o, DataType.Int)}" if isinstance(o, Access) else limit for o in s.operands]


def _counts(buffer: Buffer) -> bool:
    """True if a tensor contains the positions of its elements, from 0 on."""
    made = buffer.tensor.definition()
    return isinstance(made, IotaOp) and buffer.dtype is DataType.Int and made.inputs[1].sym is ZERO and made.inputs[2].sym is ONE  # type: ignore[attr-defined]


def at_lane(writer: Any, place: Access) -> str:
    """The index of element `lane` of a vector in registers."""
    return "lane" if place.index is ZERO else f"{writer.scalars.index(place.index)} + lane"


def start_scan(writer: Any, s: Scan, depth: int) -> None:
    """Declare the carry from piece to piece: the start value, or the identity; if blocks share a row, also a thread's part of its block's totals, or of states
    that have an order the whole totals so far."""
    dtype = accumulator(s.outputs[0].buffer.dtype)
    monoid = writer.monoid(s.expr, dtype)
    given: Any = s.expr.inputs[-1]  # the start value, where there is one
    start = monoid.identity(dtype) if s.start is None else monoid.lift([writer.read(s.start, accumulator(given.dtype()))], dtype)
    writer.emit(depth, f"weft::Carry<{CUDA_NAMES[dtype]}, {s.rows}> {s.carry} = {{{{{', '.join([start] * s.rows)}}}, false}};")
    if s.blocks is not None:
        nothing = ", ".join([monoid.identity(dtype)] * s.rows)
        if monoid.is_ordered:
            writer.emit(depth, f"weft::Carry<{CUDA_NAMES[dtype]}, {s.rows}> {_total(s)} = {{{{{nothing}}}, false}};")
        else:
            writer.emit(depth, f"{CUDA_NAMES[dtype]} {_total(s)}[{s.rows}] = {{{nothing}}};")


def _total(s: Scan) -> str:
    return f"total_T{s.outputs[0].buffer.tensor.name}"


def scanned_values(writer: Any, s: Scan, elements: Sequence[Access | Sym], guards: tuple[Sym, ...], depth: int) -> None:
    """Write the values of one piece into an array: the identity outside of the row."""
    dtype = s.outputs[0].buffer.dtype
    wide = accumulator(dtype)
    ctype, monoid = CUDA_NAMES[wide], writer.monoid(s.expr, wide)
    identity = monoid.identity(wide)
    writer.emit(depth, f"{ctype} value[{len(guards)}];")
    for number, lane in enumerate(s.order):
        guard = guards[lane]
        lanes = [lane // s.rows if is_repeated else lane for is_repeated in s.repeated or [False] * len(elements)]
        texts = [
            writer.read(lane_of(element, at) if isinstance(element, Access) else element, tensor.dtype() if wide is dtype else wide)
            for element, at, tensor in zip(elements, lanes, s.expr.tensor_inputs)
        ]
        text = monoid.lift(texts, wide) if wide is dtype else f"weft::convert<{ctype}>({texts[0]})"
        writer.emit(depth, f"value[{number}] = {text if guard is TRUE else f'{writer.scalars.condition(guard)} ? {text} : {identity}'};")


def fold_piece(writer: Any, s: ScanFold, depth: int) -> None:
    """Write the reduction of one piece into a thread's part of its block's total."""
    writer.blocks["scan"] = None
    wide = accumulator(s.scan.outputs[0].buffer.dtype)
    monoid = writer.monoid(s.scan.expr, wide)
    writer.emit(depth, "{")
    scanned_values(writer, s.scan, s.elements, s.guards, depth + 1)
    counts = f"{s.scan.group_elems}, {s.scan.rows}"
    if monoid.is_ordered:
        given = f"{monoid.functor_for(wide)}, {counts}, {s.scan.stride}, {s.scan.threads}"
        writer.emit(depth + 1, f"weft::fold_piece_in_order<{given}>(value, {_total(s.scan)}, {writer.in_shared(s.scan.workspace, CUDA_NAMES[wide])});")
    else:
        writer.emit(depth + 1, f"weft::fold_piece<{monoid.functor_for(wide)}, {counts}>(value, {_total(s.scan)});")
    writer.emit(depth, "}")


def pass_total(writer: Any, s: HandOverTotal | TakeTotals, depth: int) -> None:
    """Write the exchange of totals between blocks that share a row."""
    writer.blocks["scan"] = None
    scan = s.scan
    wide = accumulator(scan.outputs[0].buffer.dtype)
    ctype, monoid = CUDA_NAMES[wide], writer.monoid(scan.expr, wide)
    given = f"{monoid.functor_for(wide)}, {scan.rows}, {scan.stride}, {scan.threads}"
    workspace = writer.in_shared(scan.workspace, ctype)
    if isinstance(s, HandOverTotal):
        writer.emit(depth, f"weft::hand_over_totals<{given}>({_total(scan)}, {s.totals.name}, {workspace});")
    else:
        writer.emit(depth, f"weft::take_totals<{given}>({scan.carry}, {s.totals.name}, {workspace}, {monoid.identity(wide)});")


def scan(writer: Any, s: Scan, depth: int) -> None:
    """Write the scan of one piece: values into an array, scanned, and out of it."""
    writer.blocks["scan"] = None
    dtype = s.outputs[0].buffer.dtype
    wide = accumulator(dtype)
    ctype, monoid = CUDA_NAMES[wide], writer.monoid(s.expr, wide)
    writer.emit(depth, "{")
    scanned_values(writer, s, s.elements, s.guards, depth + 1)
    given = f"{monoid.functor_for(wide)}, {s.group_elems}, {s.rows}"
    if s.workspace is None:
        writer.emit(depth + 1, f"weft::scan_lanes_of_rows<{given}, {s.lanes}>(value, {s.carry});")
    else:
        writer.emit(depth + 1, f"weft::scan_piece<{given}, {s.stride}, {s.threads}>(value, {s.carry}, {writer.in_shared(s.workspace, ctype)});")
    for number, lane in enumerate(s.order):
        text = f"value[{number}]" if wide is dtype else f"weft::convert<{CUDA_NAMES[dtype]}>(value[{number}])"
        writer.write(lane_of(s.outputs[0], lane), text, depth + 1)
    writer.emit(depth, "}")
