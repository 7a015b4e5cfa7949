"""Rows that begin anywhere, in vectors that are aligned in memory.

A row of a contiguous tensor begins at a multiple of its length. When that is no multiple of the vector, the loops over the row skip the elements in
front of its first aligned vector: up to factor - 1, as many in all contiguous tensors of the shape. These, and what is left behind the last whole vector,
are the ends of the row: fewer than two vectors, of which each of the first threads of the row does one element.
Read first: `PhasedRows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..expr import Sym, mod, mul, sub, var
from ..ir.enums import ParallelType
from ..ir.values import IterDomain


@dataclass(frozen=True)
class PhasedRows:
    """What the phased splits of a schedule depend on.

    rows: the axis that counts the rows in memory order; None when there is one row. length: elements of a row. vector_elems: factor of the splits.
    aligned: names of the inputs whose vectors are aligned. blocks: the parallel type of the blocks that share a row, if any.
    """

    rows: IterDomain | None
    length: Sym
    vector_elems: int
    aligned: frozenset[int] = frozenset()
    blocks: ParallelType | None = None

    @property
    def min_threads(self) -> int:
        """Threads of a row that its ends need, and elements that it must have."""
        return 2 * self.vector_elems

    def skipped(self, row: Sym) -> Sym:
        """Return how many elements of a row stand in front of its first aligned vector. Remainders are taken first, so that nothing overflows."""
        phase = mod(mul(mod(row, self.vector_elems), mod(self.length, self.vector_elems)), self.vector_elems)
        return mod(sub(self.vector_elems, phase), self.vector_elems)


def skipped_variable(factor: Sym) -> Sym:
    """The variable of a kernel that holds how many elements of this thread's row are skipped."""
    return var("skipped", extent=factor)


END = var("row_end")
"""The variable of a kernel that holds the position in its row of the one element at the ends that this thread does; beyond the row when there is none."""

__all__ = ["END", "PhasedRows", "skipped_variable"]
