"""What a schedule knows of the sizes it is for: how far rows fill the batches of their threads."""

from __future__ import annotations

from dataclasses import dataclass

from ..expr import Sym


@dataclass(frozen=True)
class FullRows:
    """Rows cut into `batches` parts, of which every element of each but the last exists, or of the last too when `is_whole`.

    sizes: the variables of the row's length; bounds in these are assumed to hold, and the host checks the assumption for every new shape.
    is_ragged: the last part is never full, so that no test of a whole nest (`ParallelType.unswitch`) asks for it.
    keeps_guards: bounds of bare thread indices stay. They hold, too, but their branches keep the compiler from mixing passes over a row, and from spilling.
    """

    sizes: frozenset[Sym]
    batches: int
    is_whole: bool
    is_ragged: bool = False
    keeps_guards: bool = False


def fill_of_parts(vectors: int, batches: int, part: int, threads: int, share: int) -> str:
    """Return what is known of rows of `vectors` vectors, cut into shares of `share`, a share into `batches` parts of `part`, a part among `threads` threads.

    "whole": every vector of every thread exists; "leading": those of all parts but the last; "partial": not known.
    """
    shares = -(-vectors // share)
    if threads == part and part * batches == share and share * shares == vectors:
        return "whole"
    last_full = (batches - 2) * part + threads
    is_leading = batches > 1 and last_full <= share and (shares - 1) * share + last_full <= vectors
    return "leading" if is_leading else "partial"
