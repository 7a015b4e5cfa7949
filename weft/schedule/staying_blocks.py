"""What a schedule says of blocks that stay and go from row to row.

Owns the record that goes from a schedule to lowering. Read first: `StayingBlocks`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StayingBlocks:
    """Reductions in the loop over rows share barriers: neighbours are folded together, and workspaces alternate, so that each iteration has one barrier.

    ahead: names of tensors in registers that an iteration loads for the next one.
    """

    ahead: frozenset[int] = frozenset()
