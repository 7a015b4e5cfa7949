"""Partial results of unaligned rows: each block stores those of its threads in whole aligned vectors.

A thread's columns begin with an aligned vector of the row, not with a multiple of a vector's elements. So a block puts its row of partial results as much
further ahead as it skips elements of a row; between the rows is room for that. Who reads them knows the block, and with it how much it skips.
Read first: `partial_index`.
"""

from __future__ import annotations

from ..expr import Sym, add, ceildiv, mul, product, sub
from ..ir.values import TensorView, no_reductions
from ..schedule.peel import partial_vector, skipped_elems_of, skipped_variable
from .indexing import Indexer


def partial_pitch(tensor: TensorView) -> Sym:
    """Return the distance in elements between the partial results of two neighbouring blocks."""
    vector = partial_vector(tensor)
    return mul(add(ceildiv(_columns(tensor), vector), 1), vector)


def partial_elems(tensor: TensorView) -> Sym:
    """Return the elements of the partial results of all blocks."""
    return mul(tensor.get_allocation_domain()[0].sym, partial_pitch(tensor))


def partial_index(tensor: TensorView, indexer: Indexer, place: Sym, *, writing: bool) -> Sym:
    """Return the address of the element that would be at `place` if the rows of partial results had no padding between them."""
    vector, columns = partial_vector(tensor), _columns(tensor)
    slot = indexer.axis_index(tensor.get_allocation_domain()[0], tensor)
    skipped = skipped_variable(vector) if writing else skipped_elems_of(slot, columns, vector)
    return add(place, add(mul(slot, sub(partial_pitch(tensor), columns)), sub(vector, skipped)))


def _columns(tensor: TensorView) -> Sym:
    return product(a.sym for a in no_reductions(tensor.get_allocation_domain())[1:])


__all__ = ["partial_elems", "partial_index", "partial_pitch"]
