"""Tile copies by TMA tensor maps, which the host encodes, for tiles that are not contiguous in memory.

A map names every axis of the tensor in global memory: its extent and stride, how much of it a tile has (its box), and where the tile begins. What of a tile
lies outside of the tensor is read as zero and never written, so that no tile is cut. With a swizzle, 16-byte chunks of shared memory change places:
chunk c of the tile lies at c ^ (c / 8 % n), n = 2, 4 or 8 for 32, 64 or 128 bytes, and every other access to the tile does the same.
Read first: `tile_of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arch import BULK_BYTES
from ..errors import UserError
from ..expr import ONE, Sym, add, floordiv, mod, mul, op, product, sub, terms, variables
from ..ir.enums import LoadStoreOpType, MemoryType
from ..ir.values import IterDomain, LoadStoreOp, SharedSwizzle, TensorView
from .indexing import Indexer
from .kernel_ir import TensorTile
from .program import TensorMapParam
from .state import BuildState


MOST_RANK, MOST_BOX_ELEMS, CHUNK_BYTES = 5, 256, 16
"""Source: CUDA driver API, cuTensorMapEncodeTiled."""
STAGE_BYTES = 128
"""Alignment of a tile in shared memory. Source: PTX ISA, cp.async.bulk.tensor."""
SWIZZLE_ROWS = 8
"""Rows of 128 bytes after which a swizzle repeats."""


class BadTile(UserError):
    code = "W544"
    what = "{tensor} cannot be copied as a tile by TMA: {reason}"
    fix = "{remedy}"


def swizzle_bytes(tensor: TensorView) -> int:
    """The swizzle of a tensor in shared memory that its load or store requires; 0 for none."""
    if tensor.memory_type is not MemoryType.shared:
        return 0
    exprs = [tensor.definition(), *tensor.uses()]
    asked = [e.attributes.get("swizzle_bytes", 0) for e in exprs if isinstance(e, LoadStoreOp) and e.kind is LoadStoreOpType.tma]
    return max(asked, default=0)


def swizzled(tensor: TensorView, index: Sym) -> Sym:
    """Return the swizzled address of element `index` of a tensor in shared memory."""
    found = tensor.shared_swizzle
    bytes_ = swizzle_bytes(tensor)
    if bytes_:
        found = SharedSwizzle(CHUNK_BYTES * 8 // tensor.dtype().bits, bytes_ // CHUNK_BYTES, SWIZZLE_ROWS)
    if found is None or found.ways == 1:
        return index
    chunk = floordiv(index, found.chunk_elems)
    moved = op("bitwise_xor", (chunk, mod(floordiv(chunk, found.period), found.ways)), index.dtype)
    return add(mul(moved, found.chunk_elems), mod(index, found.chunk_elems))


@dataclass(frozen=True)
class Dim:
    """A dimension of a tensor map: an axis of the tensor in global memory, or neighbours that are indexed as one. Units: elements."""

    axis: IterDomain
    index: Sym
    extent: Sym
    stride: Sym


def _dims(indexer: Indexer, far: TensorView, lanes: dict[Sym, Sym]) -> list[Dim]:
    """Return the dimensions of `far`, outermost first.

    Axes a and b are one dimension if the loops merge them, so that their indices are p / n and p % n with lanes in p, and if they are contiguous: the tile
    runs over p.
    """
    strides = far.strides()
    out: list[Dim] = []
    for axis in far.get_allocation_domain():
        if axis.is_reduction() or axis.is_broadcast():
            continue
        dim = Dim(axis, indexer.axis_index(axis, far), axis.sym, strides[axis])
        whole = dim.index.args[0] if dim.index.op == "mod" and dim.index.args[1] is axis.sym else None
        outer = out[-1] if out and whole is not None and not lanes.keys().isdisjoint(variables(whole)) else None
        if whole is not None and outer is not None and floordiv(whole, axis.sym) is outer.index and outer.stride is mul(dim.stride, axis.sym):
            out[-1] = Dim(axis, whole, mul(outer.extent, axis.sym), dim.stride)
        else:
            out.append(dim)
    return out


def tile_of(state: BuildState, indexer: Indexer, far: TensorView, near: TensorView, expr: LoadStoreOp, lanes: dict[Sym, Sym]) -> TensorTile:
    """Return the tile of `far` that `expr` copies; lanes: index of each axis bound to ParallelType.tma -> its extent, outermost first.

    Errors: BadTile, and BulkMisaligned for strides.
    """
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    dims = _dims(indexer, far, lanes)
    if len(dims) > MOST_RANK:
        raise BadTile(tensor=output, reason=f"{far} has {len(dims)} axes; a tensor map has up to {MOST_RANK}", remedy="merge axes before the fusion (reshape)")
    boxes: list[int] = []
    places: list[Sym] = []
    order: list[Sym] = []
    for dim in dims:
        inside = [lane for lane in lanes if lane in variables(dim.index)]
        place = dim.index
        for lane in inside:
            place = sub(place, lane)
        if len(inside) > 1 or lanes.keys() & variables(place):
            reason = f"the tile does not run over neighbours of axis {dim.axis}, whose index is {dim.index}"
            raise BadTile(tensor=output, reason=reason, remedy="split the axis once, and bind the inner part")
        boxes.append(_box(output, dim.axis, lanes[inside[0]]) if inside else 1)
        places.append(place)
        order += inside
    if order != [lane for lane in lanes if lane in order] or len(order) < len(lanes):
        reason = f"its axes bound to ParallelType.tma are not in the order of {far} in memory"
        raise BadTile(tensor=output, reason=reason, remedy="reorder the loop axes of the copy")
    _check_rows(output, far, dims, boxes)
    elem_bytes = far.dtype().bits // 8
    for dim in dims[:-1]:
        require_multiple(state, far, dim.stride, f"the stride of axis {dim.axis}")
    _check_place(state, near, boxes, elem_bytes, swizzle_bytes(near), output)
    extents = tuple(d.extent for d in reversed(dims))
    strides_bytes = tuple(mul(d.stride, elem_bytes) for d in reversed(dims[:-1]))
    boxes_inward = tuple(reversed(boxes))
    param = TensorMapParam(f"map_T{output.name}", f"T{far.name}", far.dtype().bits, extents, strides_bytes, boxes_inward, swizzle_bytes(near))
    return TensorTile(param, tuple(reversed(places)))


def _box(output: TensorView, axis: IterDomain, extent: Sym) -> int:
    if not extent.is_const:
        raise BadTile(tensor=output, reason=f"the tile's extent {extent} along {axis} is symbolic", remedy="split the axis by a constant")
    if extent.value > MOST_BOX_ELEMS:  # type: ignore[operator]
        reason = f"the tile has {extent} elements along {axis}; one copy takes at most {MOST_BOX_ELEMS}"
        raise BadTile(tensor=output, reason=reason, remedy="split the axis again")
    return int(extent.value)  # type: ignore[arg-type]


def _check_rows(output: TensorView, far: TensorView, dims: list[Dim], boxes: list[int]) -> None:
    if not dims or dims[-1].stride is not ONE:
        raise BadTile(tensor=output, reason=f"the innermost axis of {far} is not contiguous", remedy="copy it with loads and stores")
    row = boxes[-1] * far.dtype().bits // 8
    if row % CHUNK_BYTES:
        raise BadTile(tensor=output, reason=f"a row of the tile has {row} bytes, which is not a multiple of {CHUNK_BYTES}", remedy="use a wider tile")


def _check_place(state: BuildState, near: TensorView, boxes: list[int], elem_bytes: int, swizzle: int, output: TensorView) -> None:
    row = boxes[-1] * elem_bytes
    if swizzle and row != swizzle:
        raise BadTile(tensor=output, reason=f"a row of the tile has {row} bytes, but the swizzle has {swizzle}", remedy="make the two equal")
    feed = state.feeds.get(near)
    tile = elem_bytes
    for n in boxes:
        tile *= n
    unit = STAGE_BYTES * (SWIZZLE_ROWS if swizzle else 1)
    buffer = state.buffer(near)
    is_single = buffer.elems.is_const and buffer.elems.value * elem_bytes == tile
    has_many = feed is not None and feed.all_stages > 1 or not is_single
    if has_many and tile % unit:
        reason = f"consecutive tiles of {tile} bytes in shared memory must each begin at a multiple of {unit} bytes"
        raise BadTile(tensor=output, reason=reason, remedy="use larger tiles")
    buffer.align_bytes = max(buffer.align_bytes, unit)


class BulkMisaligned(UserError):
    code = "W541"
    what = "{tensor} cannot be copied by TMA: {what_} is {text}, in bytes a multiple of {bytes} only; a bulk copy needs multiples of {needed}"
    fix = "choose a tile whose bytes {needed} divides, or pad the innermost size of the tensor"


def require_multiple(state: BuildState, tensor: TensorView, elems: Sym, what: str) -> None:
    """Ensure that `elems` elements of `tensor` are whole units of a bulk copy; if this depends on sizes, add a check on the host. Errors: BulkMisaligned."""
    for factors, coefficient in terms(elems).items():
        bits = coefficient * tensor.dtype().bits
        needed = BULK_BYTES * 8 // math.gcd(BULK_BYTES * 8, bits)
        if needed == 1:
            continue
        sizes = [f for f in factors if f.is_var and f.extent is None and str(f.payload).startswith("T")]
        size = product(sizes)  # the product of merged axes
        if any(state.divisors.get(f, 1) % needed == 0 for f in (*sizes, size)):
            continue
        if not sizes:
            raise BulkMisaligned(tensor=tensor, what_=what, text=elems, bytes=math.gcd(BULK_BYTES * 8, bits) // 8, needed=BULK_BYTES)
        state.divisors[size] = math.lcm(state.divisors.get(size, 1), needed)
        state.bulk_sizes.add(size)
