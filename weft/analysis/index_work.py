"""How a pointwise kernel reaches its tensors, for every break position: accesses, and divisions of an index.

Loops that are merged into one have one index. A tensor that lacks some of them, or whose memory has a gap between them, needs the indices of the parts: a
division for each place where it differs from the merged loop. A tensor whose neighbours in memory are not neighbours in the loop is read element by element.
Read first: `IndexWork`, `index_work`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ir.values import TensorView
from .contiguity import inner_run
from .loop_axes import LoopAxes


@dataclass(frozen=True, slots=True)
class IndexWork:
    """Counts for one break position.

    vector_accesses: once for each vector along the right side. element_accesses: for each of its elements. row_accesses: for each left index. vector_divisions,
    element_divisions, row_divisions: index divisions, as often as these; tensors that divide at the same position share one. scalar_divisions: the first two if
    a vector is one element.
    """

    vector_accesses: int
    element_accesses: int
    row_accesses: int
    vector_divisions: int
    element_divisions: int
    scalar_divisions: int
    row_divisions: int


def index_work(axes: LoopAxes, order: Sequence[int], tensors: Iterable[TensorView], in_vectors: Iterable[TensorView], position: int) -> IndexWork:
    """Return the counts with the loops before `position` merged, and those from there on. in_vectors: tensors that are read or written in vectors."""
    vectors = set(in_vectors)
    accesses, places = [0, 0, 0], [set[int](), set[int](), set[int]()]
    for tensor in tensors:
        varies = [n in axes.stored(tensor) for n in order]
        gaps = _gaps(tensor, varies, order, axes)
        if any(varies[position:]):
            kind = 0 if tensor in vectors else 1
        elif any(varies):
            kind = 2
        else:
            continue
        accesses[kind] += 1
        if kind < 2:
            places[kind] |= {at for at in gaps if at > position}
        places[2] |= {at for at in gaps if at < position}
    of_vectors, of_elements, of_rows = accesses
    divided = len(places[0]), len(places[1]), len(places[0] | places[1]), len(places[2])
    return IndexWork(of_vectors, of_elements, of_rows, *divided)


def _gaps(tensor: TensorView, varies: Sequence[bool], order: Sequence[int], axes: LoopAxes) -> set[int]:
    """Return the positions in `order` across which `tensor` is not contiguous like the merged loop."""
    whole_from = len(order) - len(inner_run(tensor, order, axes)) if all(varies) else 0
    return {at for at in range(1, len(order)) if varies[at - 1] != varies[at] or varies[at] and at <= whole_from}
