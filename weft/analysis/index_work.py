"""How a pointwise kernel reaches its tensors, for every break position: accesses, and divisions of an index.

Loops that are merged into one have one index. A tensor that lacks some of them, or whose memory has a gap between them, needs the indices of the parts: a
division for each place where it differs from the merged loop. A tensor whose neighbours in memory are not neighbours in the loop is read element by element.
Read first: `IndexWork`, `index_work`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..ir.graph_ops import Along
from ..ir.values import TensorView, no_reductions
from .contiguity import inner_run
from .lookups import is_part, lookup_of
from .loop_axes import LoopAxes


@dataclass(frozen=True, slots=True)
class IndexWork:
    """Counts for one break position.

    vector_accesses: once for each vector along the right side. element_accesses: for each of its elements. row_accesses: for each left index. vector_divisions,
    element_divisions, row_divisions: index divisions, as often as these; tensors that divide at the same position share one. scalar_divisions: the first two if
    a vector is one element. element_tests: ends of axes beyond which an element may be outside of what a pad or a cat reads, for elements that are read one by
    one, and only for loops on the right side: others are tested once for each left index. scalar_tests: of all elements, if a vector is one. lookup_divisions:
    for lookups whose accesses `lookup_work` counts, that no other tensor needs.
    """

    vector_accesses: int
    element_accesses: int
    row_accesses: int
    vector_divisions: int
    element_divisions: int
    scalar_divisions: int
    row_divisions: int
    element_tests: int = 0
    scalar_tests: int = 0
    lookup_divisions: int = 0


def index_work(
    axes: LoopAxes, order: Sequence[int], tensors: Iterable[TensorView], in_vectors: Iterable[TensorView], position: int,
    looked_up: Collection[TensorView] = (),
) -> IndexWork:  # fmt: skip
    """Return the counts with the loops before `position` merged, and those from there on. in_vectors: tensors that are read or written in vectors. looked_up:
    lookups whose accesses are counted elsewhere."""
    vectors = set(in_vectors)
    accesses, places, tests = [0, 0, 0], [set[int](), set[int](), set[int](), set[int]()], [0, 0, 0]
    for tensor in tensors:
        varies = [n in axes.stored(tensor) for n in order]
        gaps = _gaps(tensor, varies, order, axes)
        if any(varies[position:]):
            kind = 0 if tensor in vectors else 1
        elif any(varies):
            kind = 2
        else:
            continue
        is_counted = kind == 2 or tensor not in looked_up
        accesses[kind] += is_counted
        tests[kind] += 2 * sum(n in order[position:] for n in _tested(tensor, axes))
        if kind < 2:
            places[kind if is_counted else 3] |= {at for at in gaps if at > position}
        places[2] |= {at for at in gaps if at < position}
    of_vectors, of_elements, of_rows = accesses
    vectors_or_elements = places[0] | places[1]
    divided = len(places[0]), len(places[1]), len(vectors_or_elements | places[3]), len(places[2])
    return IndexWork(of_vectors, of_elements, of_rows, *divided, tests[1], tests[0] + tests[1], len(places[3] - vectors_or_elements))


def _tested(tensor: TensorView, axes: LoopAxes) -> list[int | None]:
    """Return the classes of the axes along which the result of a lookup may be outside of its source."""
    lookup = lookup_of(tensor)
    if lookup is None or not lookup.is_masked:
        return []
    result = no_reductions(tensor.get_logical_domain())
    pairs = [(axis, place) for axis, place in zip(no_reductions(lookup.source.get_logical_domain()), lookup.positions) if isinstance(place, Along)]
    return [axes.of(result[p.axis]) for axis, p in pairs if not is_part(p.offset, result[p.axis].logical_extent, axis.logical_extent)]


def _gaps(tensor: TensorView, varies: Sequence[bool], order: Sequence[int], axes: LoopAxes) -> set[int]:
    """Return the positions in `order` across which `tensor` is not contiguous like the merged loop."""
    whole_from = len(order) - len(inner_run(tensor, order, axes)) if all(varies) else 0
    return {at for at in range(1, len(order)) if varies[at - 1] != varies[at] or varies[at] and at <= whole_from}
