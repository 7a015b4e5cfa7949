"""Blocks of neighbours along a row: what folds over them ask of vectors and lanes, and what one element per block adds to the bits that move.

Read first: `BlockNeeds`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.block_ops import BlockFoldOp, sample_of
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from .loop_axes import LoopAxes

WARP_LANES = 32


@dataclass(frozen=True)
class BlockNeeds:
    """The quantization blocks of a fusion. Units: elements. largest, smallest: of all reductions over blocks; 0 if there is none. obstacle: why loops whose
    innermost class is `inner` cannot have a block in one thread or warp, or "".
    """

    largest: int = 0
    smallest: int = 0
    obstacle: str = ""

    @property
    def least_vector_elems(self) -> int:
        """Fewest elements of a thread with which a block fits into a warp."""
        return max(1, self.largest // WARP_LANES)

    def lanes(self, vector_elems: int) -> int:
        """Number of neighbouring lanes per block, with vectors of so many elements."""
        return max(1, self.largest // vector_elems) if self.largest else 1

    def why_not(self, vector_elems: int) -> str:
        """Return why vectors of so many elements cannot be used, or ""."""
        if self.obstacle or not self.largest:
            return self.obstacle
        lanes = self.lanes(vector_elems)
        return f"a block of {self.largest} elements needs {lanes} lanes of {vector_elems} elements, more than a warp has" if lanes > WARP_LANES else ""


def block_needs(fusion: Fusion, axes: LoopAxes, inner: int | None) -> BlockNeeds:
    """Return the needs of the reductions over blocks if the innermost loop is of class `inner`."""
    folds = [e for e in fusion.tensor_exprs() if isinstance(e, BlockFoldOp)]
    if not folds:
        return BlockNeeds()
    obstacle = ""
    for fold in folds:
        output: TensorView = fold.outputs[0]  # type: ignore[assignment]
        last = output.get_logical_domain()[-1]
        if last.is_broadcast() or axes.of(last) != inner:
            obstacle = f"{output} is folded over blocks along an axis that is not the innermost of the loops"
    sizes = [fold.block for fold in folds]
    return BlockNeeds(max(sizes), min(sizes), obstacle)


def moved_bits(tensors: Iterable[TensorView]) -> int:
    """Return the bits of the tensors per element of the loops, rounded up if one element per block is stored."""
    total = 0
    for tensor in tensors:
        sample = sample_of(tensor)
        total += tensor.dtype().bits if sample is None else -(-tensor.dtype().bits // sample.block)
    return total
