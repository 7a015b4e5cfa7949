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
"""Of an access, up to which rows that begin anywhere are rather read in aligned vectors: accesses of 64 bits are nearly as fast as those of 128."""
PHASED_ROW_VECTORS = 8
"""Of a row that begins anywhere, from which aligned vectors with ends of their own are better than narrow accesses. An estimate."""


@dataclass(frozen=True)
class Phase:
    """Rows whose length is no multiple of the vector, in vectors that are aligned in memory.

    rows: the axis that counts the rows in memory order; None when there is one row. length: elements of a row. vector_elems: factor of the phased splits.
    aligned: names of the inputs whose vectors are aligned. blocks: the parallel type of the blocks that share a row, if any. is_tailed: every row begins with
    an aligned vector, because rows lie further apart than they are long; there is no head. of_threads: the parallel types of the threads of a row, innermost
    first. piece: elements of a block's piece of a row, where each block does the ends that are in its piece; else the first does both.
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
        """Threads of a row that its ends need, and elements that it must have."""
        return self.vector_elems if self.is_tailed else 2 * self.vector_elems

    def skipped(self, row: Sym) -> Sym:
        """Return how many elements of a row precede its first aligned vector."""
        return ZERO if self.is_tailed else skipped_elems_of(row, self.length, self.vector_elems)


def skipped_elems_of(row: Sym, length: Sym, vector_elems: int) -> Sym:
    """Return how many elements of a row precede its first aligned vector. Remainders are taken first, so that nothing overflows."""
    phase = mod(mul(mod(row, vector_elems), mod(length, vector_elems)), vector_elems)
    return mod(sub(vector_elems, phase), vector_elems)


@dataclass(frozen=True)
class Peel:
    """What a schedule says of the loops over rows.

    sizes: the variables of a row's length. parts: into how many parts a thread's vectors are cut. full_parts: of these, from the first on, all elements of
    all threads exist, so that bounds in `sizes` are left out; those of other parts stay with their ops, and no test of a whole nest
    (`ParallelType.unswitch`) asks for them. keeps_guards: bounds of bare thread indices stay. They hold, too, but their branches keep the compiler from mixing
    passes over a row, and from spilling. phase: where rows begin anywhere.
    """

    sizes: frozenset[Sym] = frozenset()
    parts: int = 1
    full_parts: int = 0
    keeps_guards: bool = False
    phase: Phase | None = None

    @staticmethod
    def filled(sizes: frozenset[Sym], parts: int, fill: str, *, keeps_guards: bool = False, phase: Phase | None = None) -> "Peel":
        """Return the peeling of rows whose parts are full as `fill` says; see `fill_of_parts`."""
        full = {"whole": parts, "leading": parts - 1, "partial": 0}[fill]
        return Peel(sizes, parts, full, keeps_guards, phase)

    @property
    def is_whole(self) -> bool:
        """True where every element of every part exists."""
        return self.full_parts == self.parts

    @property
    def ragged(self) -> frozenset[Sym]:
        """The sizes whose bounds do not hold in all parts."""
        return frozenset() if self.is_whole else self.sizes


def fill_of_parts(vectors: int, parts: int, part: int, threads: int, share: int) -> str:
    """Return what is known of rows of `vectors` vectors, cut into shares of `share`, a share into `parts` parts of `part`, a part among `threads` threads.

    "whole": every vector of every thread exists; "leading": those of all parts but the last; "partial": not known.
    """
    shares = -(-vectors // share)
    if threads == part and part * parts == share and share * shares == vectors:
        return "whole"
    last_full = (parts - 2) * part + threads
    is_leading = parts > 1 and last_full <= share and (shares - 1) * share + last_full <= vectors
    return "leading" if is_leading else "partial"


def gains_by_phase(row_elems: int, limit_elems: int, phased_limit_elems: int, max_dtype_bits: int, narrow_bits: int = PHASED_ACCESS_BITS) -> bool:
    """True when the length of rows is all that forbids wide vectors, and makes accesses narrow; not for rows of a few vectors.

    limit_elems, phased_limit_elems: of the widest vectors that begin with a row, and that begin anywhere. narrow_bits: of the widest access that is narrow.
    """
    is_narrow = limit_elems * max_dtype_bits <= narrow_bits
    is_long = row_elems >= PHASED_ROW_VECTORS * phased_limit_elems
    is_cut = row_elems % phased_limit_elems != 0  # else something other than the length of rows forbids them
    return is_narrow and is_long and is_cut and phased_limit_elems > limit_elems


def row_vectors(row_elems: int, vector_elems: int, is_phased: bool) -> int:
    """Return the vectors of a row for which loops are made: all, or with a phase those that may be whole."""
    return row_elems // vector_elems if is_phased else ceil_div(row_elems, vector_elems)


def skipped_variable(factor: Sym | int) -> Sym:
    """The variable of a kernel that holds how many elements of this thread's row are skipped."""
    return var("skipped", extent=const(factor) if isinstance(factor, int) else factor)


def write_partials_by_phase(tensor: TensorView, vector_elems: int) -> None:
    """Let partial results in global memory, of blocks whose rows have one phase each, be written in aligned vectors (`weft.lower.phased_partials`)."""
    tensor.definition().attributes["partial_vector"] = vector_elems  # type: ignore[union-attr]


def partial_vector(tensor: TensorView) -> int:
    """Return the elements of such vectors; 0 for other tensors."""
    definition = tensor.definition()
    return 0 if definition is None else definition.attributes.get("partial_vector", 0)


END = var("row_end")
"""The variable of a kernel that holds the position in its row of the one element at the ends that this thread does; beyond the row when there is none."""
