"""The part of a schedule that describes persistent blocks, which go from row to row.

Owns the record that goes from a schedule to lowering. Read first: `StayingBlocks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..expr import Sym


@dataclass(frozen=True)
class StayingBlocks:
    """Reductions in the loop over rows share barriers: neighbouring ones are combined, and workspaces alternate, so that each iteration has one barrier.

    ahead: names of tensors in registers that an iteration loads for the next one.
    is_behind: the second pass of a row runs an iteration later, while the next reduction is in progress. rows_of_step: rows per thread at once, which exist all
    or not at all: the host checks that they divide the number of rows. sizes: sizes that equal params fix, with their values, which the host checks; addresses
    contain the constants. sums_offsets: offsets are added as integers before the tensor's address.
    """

    ahead: frozenset[int] = frozenset()
    is_behind: bool = False
    sizes: tuple[tuple[Sym, int], ...] = ()
    sums_offsets: bool = False
    rows_of_step: int = 1
