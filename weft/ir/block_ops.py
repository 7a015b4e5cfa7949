"""Expressions over blocks of neighbours along the last axis: what quantizers with a scale per block are made of.

A fold over blocks keeps the shape: each element gets the result of its block, so that what follows (scales, multiplication, casts) are pointwise ops at full
resolution, and schedulers of rows and pointwise fusions carry it as one of these. A block is within a thread or few neighbouring lanes. `BlockSampleOp` then
stores one element per block. The extent of the last axis is a multiple of the block, which is checked at definition or at binding.
Read first: `BlockFoldOp`.
"""

from __future__ import annotations

import functools

from ..expr import Sym, mul
from .values import Expr, IterDomain, LoadStoreOp, PointwiseOp, Split, TensorView

SWIZZLED = "128x4"
"""The layout of scales for block-scaled matrix products: tiles of 128 rows by 4 columns, padded with zeros; see `ops.blocks.swizzled_offset`."""


COLUMNS = "columns"
"""Rows innermost, each column beginning at a multiple of four elements (TMA-aligned): the layout for products with scales of 1 x 128 blocks."""

PADDED = {"padded 128x4": (128, 4), "padded 4x128": (4, 128), "padded 1x4": (1, 4)}
"""Rows, padded with zeros to multiples of so many rows and columns: the layout of TransformerEngine."""


PADDED_COLUMNS = "padded columns"
"""COLUMNS as rows of the transposed scales, padded with zeros, also after the last one: [columns, rows to a multiple of four]. The layout of
TransformerEngine."""


GROUPED = "grouped"
"""Tiles as in SWIZZLED, for each group of rows: inputs give the first row of each group, and the first row of its tiles, a multiple of 128."""


class BlockFoldOp(PointwiseOp):
    """Each element of the output is the largest magnitude among the `block` neighbours that its own position belongs to; NaN does not count.

    The input is Float, Half or BFloat16. attributes: op = "block_amax"; block: elements, a power of two; compute: Float.
    """

    @property
    def block(self) -> int:
        block: int = self.attributes["block"]
        return block


class BlockHadamardOp(BlockFoldOp):
    """Each block of 16 neighbours as a row times diag(signs) H / 4: a block operation with a different result per element. attributes: op = "block_hadamard";
    block: 16; signs: 16 bits, 1 if the element with this number is negated first; compute: Float.
    """

    @property
    def signs(self) -> int:
        signs: int = self.attributes["signs"]
        return signs


class GroupFoldOp(BlockFoldOp):
    """Each element of the output is the fold, by a monoid, of all elements along the innermost axes of the input, which together are a group of `block`
    neighbours. A reduction over these axes whose result every element gets.

    attributes: op = "group_fold"; kind: the monoid's; axes: number of innermost axes; block: elements, any number; compute: the type of both tensors.
    """

    @property
    def kind(self) -> str:
        kind: str = self.attributes["kind"]
        return kind


def is_pointwise(expr: Expr | None) -> bool:
    """True for ops that compute each element from those at the same position: not for folds over blocks of neighbours."""
    return isinstance(expr, PointwiseOp) and not isinstance(expr, BlockFoldOp)


class BlockSampleOp(LoadStoreOp):
    """One element per block of the first input: the first.

    The output's root axes are the input's; its last logical axis is the outer part of the last root axis, split by `block`. Its loops are over the root axes.
    attributes: op = "block_sample"; block; layout: "rows", or one of the layouts above. inputs after the first: those of GROUPED.
    """

    @property
    def whole_places(self) -> frozenset[int]:
        return frozenset(range(1, len(self.inputs)))

    @property
    def block(self) -> int:
        block: int = self.attributes["block"]
        return block

    @property
    def layout(self) -> str:
        layout: str = self.attributes["layout"]
        return layout

    @property
    def within(self) -> IterDomain:
        """The axis over the elements of a block; the op takes the first one."""
        output: TensorView = self.outputs[0]  # type: ignore[assignment]
        split = output.get_logical_domain()[-1].definition()
        assert isinstance(split, Split)
        return split.inner()


class GroupResultOp(BlockSampleOp):
    """One element per group of the input, of which all are equal. The output lacks the axes of a group; its root axes are the input's, and its loops, too.

    attributes: op = "group_result"; block: elements of a group; layout = "rows", though the output may have any strides. Kernels have it where a reduction's
    result would be stored.
    """


def sample_of(tensor: TensorView) -> BlockSampleOp | None:
    """Return the expression that computes `tensor` if it takes one element per block."""
    definition = tensor.definition()
    return definition if isinstance(definition, BlockSampleOp) else None


def sample_shape(tensor: TensorView) -> list[Sym]:
    """Return the numbers of rows and columns of scales: all axes except the last together are the rows."""
    *outer, last = tensor.get_logical_domain()
    return [functools.reduce(mul, (axis.sym for axis in outer)), last.sym]


def loop_sources(tensor: TensorView) -> list[IterDomain]:
    """Return the axes whose loops compute `tensor`: the logical ones; for one element per block, those of the input."""
    return tensor.get_logical_domain() if sample_of(tensor) is None else tensor.get_root_domain()
