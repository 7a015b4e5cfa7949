"""Bulk copies of unaligned rows: the whole 16-byte units that contain a row, their number of elements, and the row's offset in them.

Read first: `begins_anywhere`, `skipped_elems`.
"""

from __future__ import annotations

from ..arch import BULK_BYTES
from ..expr import ZERO, Sym, add, ceildiv, mod, mul, recombine
from ..ir.enums import ParallelType
from ..ir.values import IterDomain, TensorView, no_reductions
from ..schedule.peel import skipped_variable
from .indexing import Indexer, place_along


def begins_anywhere(tensor: TensorView) -> bool:
    """True for a tensor that bulk copies load in whole 16-byte units from rows that begin anywhere within one; see
    `weft.schedule.circular.load_whole_units`."""
    definition = tensor.definition()
    return definition is not None and bool(definition.attributes.get("whole_units", False))


def elems_beyond(tensor: TensorView) -> Sym:
    """Return how many elements the vectors of a block's part of a row extend beyond it: as many as the row skips before its first vector."""
    elems = tensor.definition().attributes.get("phased_elems", 0)  # type: ignore[union-attr]
    return skipped_variable(elems) if elems else ZERO


def lanes_of_row(tensor: TensorView) -> int:
    """Return how many neighbouring lanes load vectors of one row that begins anywhere; 0 for other tensors. See `load_rows_by_lanes`."""
    definition = tensor.definition()
    return 0 if definition is None else definition.attributes.get("row_lanes", 0)


def units_extent(tensor: TensorView, extent: Sym) -> Sym:
    """Return the number of elements in the units that hold `extent` elements, for any start."""
    per_unit = BULK_BYTES * 8 // tensor.dtype().bits
    return mul(add(ceildiv(extent, per_unit), 1), per_unit)


def skipped_elems(indexer: Indexer, tensor: TensorView) -> Sym:
    """Return how many elements of its first unit precede a row of `tensor`: the row's offset in shared memory.

    Parts of a row begin at multiples of a unit after its start, so they have the same offset.
    """
    source = tensor.definition().tensor_inputs[0]  # type: ignore[union-attr]
    along: set[IterDomain] = set()
    stack = [a for a in tensor.get_loop_domain() if a.parallel is ParallelType.tma]
    while stack:
        axis = stack.pop()
        along.add(axis)
        stack += [] if axis.definition() is None else axis.definition().inputs  # type: ignore[union-attr, arg-type]
    twins = dict(zip(no_reductions(source.get_logical_domain()), tensor.get_maybe_root_domain()))
    start: Sym = ZERO
    for axis, stride in source.strides().items():
        if twins[axis] not in along:
            start = start + mul(place_along(indexer, axis, source), stride)
    return mod(recombine(start), BULK_BYTES * 8 // tensor.dtype().bits)
