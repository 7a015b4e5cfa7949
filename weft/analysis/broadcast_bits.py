"""What a break position saves: the bits that tensors with broadcast axes move on each side of it.

A pointwise kernel may split its loops at position p into a left and a right group, which it tiles separately. A tensor that varies on one side only
is then fetched once for each index of that side, and its value serves all indices of the other. With L and R the numbers of left and right indices

    transferred(p) = both * L * R + right_only * R + left_only * L + neither

bits, where both, right_only, left_only and neither are sums of element sizes over inputs and outputs. Position 0 is the one-dimensional kernel: all is
right, and each tensor that varies at all is fetched for every index. The unit is bits for any number of axes. (A score that multiplies a per-side sum
into every extent is in bits to the power of the rank: it grows with the number of axes on a side, and cannot be compared with a cache.)
Read first: `BroadcastBits.transferred_bits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ir.values import TensorView
from .loop_axes import LoopAxes


@dataclass(frozen=True, slots=True)
class BroadcastBits:
    """Element sizes, summed over the inputs and outputs that depend on both sides, one side, or no side of a break position."""

    both_bits: int
    left_only_bits: int
    right_only_bits: int
    neither_bits: int

    def transferred_bits(self, left_elems: int, right_elems: int) -> int:
        """Bits fetched and stored with `left_elems` left and `right_elems` right indices."""
        return self.both_bits * left_elems * right_elems + self.left_only_bits * left_elems + self.right_only_bits * right_elems + self.neither_bits

    def left_step_bits(self, right_elems: int) -> int:
        """Bits moved between two uses of the same right-only element if blocks run along the right side first: the data of one left index."""
        return (self.both_bits + self.right_only_bits) * right_elems


def broadcast_bits(axes: LoopAxes, order: Sequence[int], tensors: Iterable[TensorView]) -> tuple[BroadcastBits, ...]:
    """Return the sums for every break position 0 .. len(order) - 1 of the loop order."""
    tensors = list(tensors)
    out = []
    for position in range(max(1, len(order))):
        sums = [0, 0, 0, 0]
        left = set(order[:position])
        for tensor in tensors:
            varies = axes.stored(tensor)
            is_left, is_right = bool(varies & left), bool(varies - left)
            sums[0 if is_left and is_right else 1 if is_left else 2 if is_right else 3] += tensor.dtype().bits
        out.append(BroadcastBits(*sums))
    return tuple(out)
