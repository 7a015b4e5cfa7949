"""The part of a schedule that describes persistent blocks, which go from row to row.

Owns the record that goes from a schedule to lowering. Read first: `StayingBlocks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..expr import Sym


@dataclass(frozen=True)
class StayingBlocks:
    """Reductions in the loop over rows share barriers: neighbours are folded together, and workspaces alternate, so that each iteration has one barrier.

    ahead: names of tensors in registers that an iteration loads for the next one.
    is_behind: what an iteration does with the results of its reduction is done an iteration later, while the next reduction is under way.
    rows_of_step: rows of a thread at once, of which all exist or none: the host checks that they divide all rows.
    sizes: sizes that equal params fix, with their values, which the host checks: addresses are written with the numbers.
    sums_offsets: offsets are added up as integers before they meet a tensor's address.
    """

    ahead: frozenset[int] = frozenset()
    is_behind: bool = False
    sizes: tuple[tuple[Sym, int], ...] = ()
    sums_offsets: bool = False
    rows_of_step: int = 1
