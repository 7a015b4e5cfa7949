"""How the loops over a row are peeled: a prologue, a body in which every element exists, and an epilogue.

    row in memory   | head | vector | vector | ...... | vector | ... | vector | tail |
                           |      body: the full parts         |      rest    |

parts       A thread does its vectors in parts (batches). Those of the first parts exist in all threads, so that the loop over them asks for no bounds; the
            loop over the rest has all bounds. `fill_of_parts` says how many parts are full; the host checks it for every new shape.
head, tail  A row of a contiguous tensor begins at a multiple of its length. When that is no multiple of the vector, the loops skip the elements in front of
            the first aligned vector: up to a vector less one, as many in all contiguous tensors of the shape. These, and what is left behind the last whole
            vector, are the ends of the row: fewer than two vectors, of which each of the first threads of the row does one element. The splits that
            make such vectors are phased (`Split.is_phased`). Where the strides of rows are multiples of the vector in all tensors, as those of a part of a
            wider matrix, a row has a tail only.

Both may be asked of a row. `weft.lower.peel` makes the text. Read first: `Peel`; for choices: `gains_by_phase`, `fill_of_parts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arch import ceil_div
from ..expr import ZERO, Sym, const, mod, mul, sub, var
from ..ir.enums import ParallelType
from ..ir.values import IterDomain, TensorView

PHASED_ACCESS_BITS = 32
"""Bits of an access up to which rows that begin anywhere are read in aligned vectors instead; accesses of 64 bits are nearly as fast as those of 128."""
PHASED_ROW_VECTORS = 8
"""Vectors of a row that begins anywhere from which aligned vectors with separate ends are better than narrow accesses. An estimate."""


@dataclass(frozen=True)
class Phase:
    """Rows whose length is no multiple of the vector, in vectors that are aligned in memory.

    rows: the axis that counts the rows in memory order; None when there is one row. length: elements of a row. vector_elems: factor of the phased splits.
    aligned: names of the inputs whose vectors are aligned. blocks: the parallel type of the blocks that share a row, if any. is_tailed: every row begins with
    an aligned vector, because there are gaps between rows; there is no head. of_threads: the parallel types of the threads of a row, innermost first. piece:
    elements of a block's piece of a row, if each block does the ends in its piece; otherwise the first does both.
    """

    rows: IterDomain | None
    length: Sym
    vector_elems: int
    aligned: frozenset[int] = frozenset()
    blocks: ParallelType | None = None
    is_tailed: bool = False
    of_threads: tuple[ParallelType, ...] = (ParallelType.block_x,)
    piece: Sym | None = None

    @property
    def min_threads(self) -> int:
        """The least threads of a row, for its ends, and the least elements of a row."""
        return self.vector_elems if self.is_tailed else 2 * self.vector_elems

    def skipped(self, row: Sym) -> Sym:
        """Return how many elements of a row precede its first aligned vector."""
        return ZERO if self.is_tailed else skipped_elems_of(row, self.length, self.vector_elems)


def skipped_elems_of(row: Sym, length: Sym, vector_elems: int) -> Sym:
    """Return how many elements of a row precede its first aligned vector. Remainders are computed first, so that nothing overflows."""
    phase = mod(mul(mod(row, vector_elems), mod(length, vector_elems)), vector_elems)
    return mod(sub(vector_elems, phase), vector_elems)


@dataclass(frozen=True)
class Peel:
    """How the loops over rows are peeled. sizes: the variables of a row's length. parts: number of parts of a thread's vectors. full_parts: number of leading
    parts in which all elements of all threads exist, so that bounds in `sizes` are removed; those of other parts stay with their ops, and are not part of tests
    of a whole nest (`ParallelType.unswitch`). keeps_guards: bounds of thread indices alone stay. They hold, too, but their branches keep the compiler from
    interleaving passes over a row, and from spilling. phase: for rows that begin anywhere.
    """

    sizes: frozenset[Sym] = frozenset()
    parts: int = 1
    full_parts: int = 0
    keeps_guards: bool = False
    phase: Phase | None = None

    @staticmethod
    def filled(sizes: frozenset[Sym], parts: int, fill: str, *, keeps_guards: bool = False, phase: Phase | None = None) -> "Peel":
        """Return the peeling of rows with full parts as in `fill`; see `fill_of_parts`."""
        full = {"whole": parts, "leading": parts - 1, "partial": 0}[fill]
        return Peel(sizes, parts, full, keeps_guards, phase)

    @property
    def is_whole(self) -> bool:
        """True if every element of every part exists."""
        return self.full_parts == self.parts

    @property
    def ragged(self) -> frozenset[Sym]:
        """The sizes whose bounds do not hold in all parts."""
        return frozenset() if self.is_whole else self.sizes


def fill_of_parts(vectors: int, parts: int, part: int, threads: int, share: int) -> str:
    """Return `fill` for rows of `vectors` vectors, divided into shares of `share`, a share into `parts` parts of `part`, a part among `threads` threads.
    "whole": every vector of every thread exists; "leading": those of all parts except the last; "partial": not known.
    """
    shares = -(-vectors // share)
    if threads == part and part * parts == share and share * shares == vectors:
        return "whole"
    last_full = (parts - 2) * part + threads
    is_leading = parts > 1 and last_full <= share and (shares - 1) * share + last_full <= vectors
    return "leading" if is_leading else "partial"


def gains_by_phase(row_elems: int, limit_elems: int, phased_limit_elems: int, max_dtype_bits: int, narrow_bits: int = PHASED_ACCESS_BITS) -> bool:
    """True if only the length of rows prevents wide vectors, and accesses would be narrow; not for rows of a few vectors. limit_elems, phased_limit_elems: the
    widest vectors that begin with a row, and that begin anywhere. narrow_bits: the widest access that counts as narrow.
    """
    is_narrow = limit_elems * max_dtype_bits <= narrow_bits
    is_long = row_elems >= PHASED_ROW_VECTORS * phased_limit_elems
    is_cut = row_elems % phased_limit_elems != 0  # otherwise something other than the length of rows prevents them
    return is_narrow and is_long and is_cut and phased_limit_elems > limit_elems


def row_vectors(row_elems: int, vector_elems: int, is_phased: bool) -> int:
    """Return the number of vectors of a row in its loops: all, or with a phase those that may be whole."""
    return row_elems // vector_elems if is_phased else ceil_div(row_elems, vector_elems)


def skipped_variable(factor: Sym | int) -> Sym:
    """The variable of a kernel that holds how many elements of this thread's row are skipped."""
    return var("skipped", extent=const(factor) if isinstance(factor, int) else factor)


def write_partials_by_phase(tensor: TensorView, vector_elems: int) -> None:
    """Write the partial results in global memory of blocks with rows of one phase in aligned vectors (`weft.lower.phased_partials`)."""
    tensor.definition().attributes["partial_vector"] = vector_elems  # type: ignore[union-attr]


def partial_vector(tensor: TensorView) -> int:
    """Return the elements of such vectors; 0 for other tensors."""
    definition = tensor.definition()
    return 0 if definition is None else definition.attributes.get("partial_vector", 0)


END = var("row_end")
"""The variable of a kernel with the position in its row of the one element at the ends that this thread does; beyond the row if there is none."""
