"""What a thread does that has a whole row of a short innermost loop: what elements of the row share is loaded and computed once.

Elements of a row are known numbers, so positions and conditions along it are, too: of the parts of a cat each element has one, and outside of a pad nothing is
loaded. Read first: `RowWork`, `row_work`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..arch import LINE_BYTES, WARP_THREADS
from ..expr import Sym, add, terms
from ..ir.graph_ops import Along, LookupOp
from ..ir.values import TensorView, no_reductions
from .loop_axes import LoopAxes
from .lookups import elements_of, in_memory, lookup_of
from .thread_values import ThreadValues, without_constant


@dataclass(frozen=True, slots=True)
class RowWork:
    """Of a row, or of an element of it by itself.

    operations, mufu: as in `OpCost`. divisions: of positions. accesses: to memory, those of neighbours in a vector are one. addresses: number of those that
    do not differ by a constant. lines: of memory that a warp touches in all of its accesses. words: of 32 bits that are loaded. moved_bytes: of all rows.
    """

    operations: int
    mufu: int
    divisions: int
    accesses: int
    addresses: int
    lines: float
    words: float
    moved_bytes: float


def operations_of_elements(axes: LoopAxes, order: Sequence[int], env: Mapping[Sym, int], results: Sequence[TensorView]) -> int:
    """Return the cost of the ops of an element that shares nothing, as `OpCost.instructions`. results: what is computed."""
    return sum(_values(axes, order, env, 1, results).operations)


def row_work(
    axes: LoopAxes, order: Sequence[int], env: Mapping[Sym, int], position: int, results: Sequence[TensorView], tensors: Sequence[TensorView],
    vectors: Mapping[TensorView, int], *, is_column: bool = False,
) -> RowWork:  # fmt: skip
    """Return the work for a row of all loops from `position` on. results: what is computed: outputs, and what is reduced. tensors: loads and outputs. vectors:
    those accessed in vectors, and their elements. is_column: the loop before these is the innermost in memory."""
    extents = axes.extents_elems(env)
    elems, rows = math.prod(extents[n] for n in order[position:]), math.prod(extents[n] for n in order[:position])
    thread = _values(axes, order, env, elems, results)
    found = _Accesses(rows)
    for (source, address), (lookup, element) in thread.loads.items():
        if not _is_outside(lookup, element, thread):
            found.add(lookup.source, source, address, _stride(address, order[position - 1]), env)
    for tensor in tensors:
        made = lookup_of(tensor)
        if made is not None and thread.address(made, 0) is not None:
            continue
        stored = axes.stored(tensor)
        count = math.prod(extents[n] for n in order[position:] if n in stored)
        lane_elems = (1 if is_column else count) if order[position - 1] in stored else 0
        if made is not None:  # an index in memory tells where
            lane_elems = LINE_BYTES
        found.add_all(tensor, count, lane_elems, vectors.get(tensor, 1), env)
    seen = found.accesses, len(found.addresses), found.lines, found.words, sum(found.moved.values())
    return RowWork(sum(thread.operations), thread.mufu, sum(thread.divisions), *seen)


def _values(axes: LoopAxes, order: Sequence[int], env: Mapping[Sym, int], elems: int, results: Sequence[TensorView]) -> ThreadValues:
    thread = ThreadValues(axes, order, env, elems)
    for result in results:
        for element in range(elems):
            thread.value(result, element)
    return thread


class _Accesses:
    """Sums over accesses. moved: bytes of each tensor in memory."""

    def __init__(self, rows: int) -> None:
        self.rows, self.accesses, self.lines, self.words = rows, 0, 0.0, 0.0
        self.addresses: set[tuple[object, ...]] = set()
        self.moved: dict[TensorView, float] = {}

    def add(self, source: TensorView, name: int, address: Sym, stride: int, env: Mapping[Sym, int]) -> None:
        """Add a load of an element; neighbouring lanes are `stride` elements apart."""
        self.addresses.add((name, without_constant(address)))
        self._count(source, 1, stride, 1, env)

    def add_all(self, tensor: TensorView, count: int, stride: int, vector: int, env: Mapping[Sym, int]) -> None:
        """Add accesses of vectors to `count` elements of a row."""
        self.addresses.add((tensor,))
        self._count(tensor, count, stride, vector, env)

    def _count(self, tensor: TensorView, count: int, stride: int, vector: int, env: Mapping[Sym, int]) -> None:
        memory, elem_bytes = in_memory(tensor), tensor.dtype().bits / 8
        self.accesses += -(-count // vector)
        self.lines += -(-count // vector) * min(WARP_THREADS, math.ceil(max(1.0, WARP_THREADS * stride * elem_bytes / LINE_BYTES)))
        self.words += 0 if tensor.is_fusion_output else count * max(1.0, elem_bytes / 4 if vector > 1 else elem_bytes // 4)
        whole = elements_of(memory, env) * elem_bytes
        self.moved[memory] = min(whole, self.moved.get(memory, 0.0) + (self.rows if stride else 1) * count * elem_bytes)


def _stride(address: Sym, row: int) -> int:
    """Return how many elements further the next row reads: 0 if the same ones, many if that is not known."""
    found, name = 0, f"i{row}"
    for factors, count in terms(address).items():
        if [str(f) for f in factors] == [name]:
            found += count
        elif any(name in str(f) for f in factors):
            return LINE_BYTES
    return abs(found)


def _is_outside(lookup: LookupOp, element: int, thread: ThreadValues) -> bool:
    """True if it is known that an element of a pad or a cat is none of the source's."""
    if not lookup.is_masked:
        return False
    axes = no_reductions(lookup.outputs[0].get_logical_domain())  # type: ignore[attr-defined]
    for axis, position in zip(no_reductions(lookup.source.get_logical_domain()), lookup.positions):
        if isinstance(position, Along):
            index = thread.indices[element].get(thread.axes.of(axes[position.axis]))  # type: ignore[arg-type]
            place = None if index is None else add(index, position.offset)
            if place is not None and place.is_const and axis.sym.is_const and not 0 <= place.value < axis.sym.value:  # type: ignore[operator]
                return True
    return False


__all__ = ["RowWork", "operations_of_elements", "row_work"]
