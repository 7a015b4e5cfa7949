"""Blocks of neighbours along a row: what folds over them ask of vectors and lanes, and what one element per block adds to the bits that move.

Read first: `BlockNeeds`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ir.block_ops import BlockFoldOp, GroupFoldOp, sample_of
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from .loop_axes import LoopAxes

WARP_LANES = 32
BARRIERS_OF_A_GROUP = 2
"""Of a fold over groups whose threads meet in shared memory: before their partial results are written, and before they are read."""


@dataclass(frozen=True)
class BlockNeeds:
    """The quantization blocks of a fusion. Units: elements. largest, smallest: of all reductions over blocks; 0 if there is none. groups: of each whose threads
    may also meet in shared memory (`GroupFoldOp`). largest_in_warp: of the others. obstacle: why loops whose innermost class is `inner` cannot have a block in
    neighbouring threads, or "".
    """

    largest: int = 0
    smallest: int = 0
    groups: tuple[int, ...] = ()
    largest_in_warp: int = 0
    obstacle: str = ""

    @property
    def least_vector_elems(self) -> int:
        """Fewest elements of a thread with which a block fits into a warp, where it has to."""
        return max(1, self.largest_in_warp // WARP_LANES)

    @property
    def most_vector_elems(self) -> int:
        """Most elements of a thread, a power of two, of which a group has whole vectors, or which are whole groups."""
        return min((size & -size for size in self.groups if size & (size - 1)), default=1 << 30)

    def why_not(self, vector_elems: int, *, is_held_by_warps: bool = False) -> str:
        """Return why vectors of so many elements cannot be used, or "". is_held_by_warps: threads of several warps may hold a group."""
        within = [] if is_held_by_warps else [size for size in self.groups if meets_in_shared(size, vector_elems)]
        if self.obstacle or not self.largest:
            return self.obstacle
        if within:
            return f"the threads of a group of {within[0]} elements, {vector_elems} in each, are no power of two of lanes of a warp"
        lanes = self.largest_in_warp // vector_elems
        block = f"a block of {self.largest_in_warp} elements"
        return f"{block} needs {lanes} lanes of {vector_elems} elements, more than a warp has" if lanes > WARP_LANES else ""


def meets_in_shared(group_elems: int, vector_elems: int) -> bool:
    """Tell whether shuffles alone cannot fold a group: the threads that hold it, with so many elements each, are no power of two of lanes of a warp."""
    lanes = group_elems // vector_elems
    return lanes > WARP_LANES or lanes & (lanes - 1) != 0


def lanes_of_blocks(sizes: Iterable[int], vector_elems: int) -> int:
    """Return a number of neighbouring threads, with so many elements each, that hold whole blocks of all sizes."""
    return math.lcm(*(max(1, size // vector_elems) for size in sizes))


def block_needs(fusion: Fusion, axes: LoopAxes, inner: int | None, run: Sequence[int] = ()) -> BlockNeeds:
    """Return the needs of the reductions over blocks if the innermost loop is of class `inner`. run: classes of the loops of a row's innermost run, outermost
    first, among which groups of elements lie; () where no thread holds such groups.
    """
    folds = [e for e in fusion.tensor_exprs() if isinstance(e, BlockFoldOp)]
    if not folds:
        return BlockNeeds()
    obstacle = ""
    for fold in folds:
        output: TensorView = fold.outputs[0]  # type: ignore[assignment]
        last = output.get_logical_domain()[-1]
        if last.is_broadcast() or axes.of(last) != inner:
            obstacle = f"{output} is folded over blocks along an axis that is not the innermost of the loops"
        elif isinstance(fold, GroupFoldOp) and not _lies_in(output, fold, axes, tuple(run)):
            obstacle = f"{output} is folded over groups whose elements are no neighbours in the loops of a row"
    sizes = [fold.block for fold in folds]
    groups = tuple(sorted(fold.block for fold in folds if isinstance(fold, GroupFoldOp)))
    in_warp = max((fold.block for fold in folds if not isinstance(fold, GroupFoldOp)), default=0)
    return BlockNeeds(max(sizes), min(sizes), groups, in_warp, obstacle)


def _lies_in(output: TensorView, fold: GroupFoldOp, axes: LoopAxes, run: tuple[int, ...]) -> bool:
    """Tell whether the axes of groups are the innermost of a run of loops, in its order."""
    classes = [(place, axes.of(axis)) for place, axis in enumerate(output.get_logical_domain()) if axes.of(axis) is not None]
    within = [number for place, number in classes if place >= output.ndim - fold.attributes["axes"]]
    return 0 < len(within) <= len(run) and tuple(number for _, number in classes[-len(run) :]) == run


def moved_bits(tensors: Iterable[TensorView]) -> int:
    """Return the bits of the tensors per element of the loops, rounded up if one element per block is stored."""
    total = 0
    for tensor in tensors:
        sample = sample_of(tensor)
        total += tensor.dtype().bits if sample is None else -(-tensor.dtype().bits // sample.block)
    return total
