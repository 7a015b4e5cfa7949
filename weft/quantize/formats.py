"""How elements and scales are computed from a tensor of a definition: one frozen record per recipe.

Owns the formulas of recipes; those of NVFP4 and MX, which nvFuser's op has too, are in `weft.ops.blocks`. All are float32 with IEEE rounding, and use the
rounded scale. Read first: `Recipe`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from ..dtypes import DataType
from ..ir.block_ops import COLUMNS, PADDED_COLUMNS, SWIZZLED
from ..ir.fusion import Fusion
from ..ir.values import TensorView, Val
from ..ops import blocks
from ..ops.blocks import BlockFormat
from ..ops.build import cast, constant, pointwise
from ..ops.factories import random_like
from ..ops.reductions import reduce
from ..ops.shapes import permute, squeeze, stride_order

FLOAT, E4M3, E5M2, FP4 = DataType.Float, DataType.Float8_e4m3fn, DataType.Float8_e5m2, DataType.Float4_e2m1fn
SMALLEST_AMAX = 1e-4
"""The least amax of a block of 128, from DeepSeek; below it all elements become 0."""


LAYOUTS = {
    "blocks": {"torch": SWIZZLED, "te": "padded 128x4"},
    "columns of blocks": {"te": "padded 4x128"},
    "1x128": {"torch": COLUMNS, "deepgemm": COLUMNS, "te": PADDED_COLUMNS},
    "128x128": {"deepgemm": "rows", "te": "padded 1x4"},
}
"""The layout of scales for a consumer: torch._scaled_mm, TransformerEngine's tensors, DeepGEMM for sm_90. Other names are layouts themselves.

Sources: torch's and cuBLAS's documentation of block scaling factors; TransformerEngine's quantizers; DeepGEMM's README.
"""


def layout_for(kind: str, name: str) -> str:
    """Return the layout for a user's name, for scales of this kind."""
    return LAYOUTS[kind].get(name, name)


@dataclass(frozen=True)
class Recipe(ABC):
    """A quantization recipe. has_scale: it takes a Float tensor of rank 0 from the caller."""

    @property
    def has_scale(self) -> bool:
        return False

    @property
    def tile_rows(self) -> int:
        """Rows of a block along columns: x is then [m / tile_rows, tile_rows, k]; 0 if there are no such blocks."""
        return 0

    @abstractmethod
    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        """Return elements, scales, and further results of the recipe."""


@dataclass(frozen=True)
class PerTensor(Recipe):
    """q = saturate(x * scale), and the largest magnitude of x for the scale of the next step (delayed scaling). is_by_rows: see `tensor_amax`."""

    dtype: DataType = E4M3
    is_by_rows: bool = False

    @property
    def has_scale(self) -> bool:
        return True

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        return [cast(fusion, pointwise(fusion, "mul", x, scale), self.dtype), tensor_amax(fusion, x, self.is_by_rows)]  # type: ignore[list-item, arg-type]


def tensor_amax(fusion: Fusion, x: TensorView, is_by_rows: bool) -> TensorView:
    """Return the largest magnitude of a tensor. is_by_rows: first of each row, in the kernel that has the rows; a second kernel reduces these few numbers."""
    amax = pointwise(fusion, "abs", x)
    if is_by_rows:
        amax = reduce(fusion, "max", amax, [-1], False, None)  # type: ignore[arg-type]
    return reduce(fusion, "max", amax, None, False, None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PerTensorCurrent(Recipe):
    """scale = largest / max(amax of the tensor, eps), 1 if that is not a finite number: two kernels, because every element depends on the whole tensor."""

    dtype: DataType = E4M3
    eps: float = 0.0

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        amax = pointwise(fusion, "maximum", reduce(fusion, "max", pointwise(fusion, "abs", x), None, False, None), self.eps)  # type: ignore[arg-type]
        wanted = pointwise(fusion, "div", self.dtype.record.largest, amax)
        is_usable = pointwise(fusion, "logical_and", pointwise(fusion, "isfinite", wanted), pointwise(fusion, "gt", wanted, 0.0))
        used = pointwise(fusion, "where", is_usable, wanted, 1.0)
        return [cast(fusion, pointwise(fusion, "mul", x, used), self.dtype), pointwise(fusion, "div", 1.0, used)]  # type: ignore[list-item]


@dataclass(frozen=True)
class PerRow(Recipe):
    """s = max(amax of the row, smallest) / largest; q = saturate(x / s). Scales: Float, [..., 1]."""

    dtype: DataType = E4M3
    smallest: float = 1e-12

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        amax = reduce(fusion, "max", pointwise(fusion, "abs", x), [-1], True, None)  # type: ignore[arg-type]
        used = pointwise(fusion, "div", pointwise(fusion, "maximum", amax, self.smallest), self.dtype.record.largest)
        return [cast(fusion, pointwise(fusion, "mul", x, pointwise(fusion, "div", 1.0, used)), self.dtype), used]  # type: ignore[list-item]


@dataclass(frozen=True)
class Per1x128(Recipe):
    """s = max(amax of 128 neighbours, 1e-4) / largest; q = saturate(x * (1 / s)). Scales: Float, [..., k / 128], "rows" or "columns" (see `block_sample`)."""

    dtype: DataType = E4M3
    layout: str = "rows"
    is_power_of_two: bool = False

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        amax = pointwise(fusion, "maximum", blocks.block_amax(fusion, x, 128), SMALLEST_AMAX)
        used = pointwise(fusion, "div", amax, self.dtype.record.largest)
        if self.is_power_of_two:
            used = cast(fusion, cast(fusion, used, DataType.Float8_e8m0fnu), FLOAT)
        elements = cast(fusion, pointwise(fusion, "mul", x, pointwise(fusion, "div", 1.0, used)), self.dtype)
        return [elements, blocks.block_sample(fusion, used, 128, self.layout)]  # type: ignore[list-item, arg-type]


@dataclass(frozen=True)
class Mx(Recipe):
    """Blocks of 32 with scales of e8m0: MXFP8 (e4m3, e5m2) or MXFP4 (e2m1)."""

    dtype: DataType = E4M3
    layout: str = "rows"
    form: BlockFormat = field(default_factory=BlockFormat)

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        elements, scales = blocks.mx(fusion, x, self.dtype, self.form)
        return [elements, blocks.block_sample(fusion, scales, 32, self.layout)]


@dataclass(frozen=True)
class MxBothWays(Recipe):
    """Mx with blocks along rows and, separately, with blocks of 32 rows along columns, because training reads a tensor both ways. x is [m / 32, 32, k].

    Results: elements and scales of rows, [..., k / 32]; elements and scales of columns, [m / 32, 1, k]. Neither is quantized from the other.
    layout: of both scales; in tiles, those of columns are the tiles of [k, m / 32]; "padded 128x4": of rows, and "padded 4x128" of [m / 32, k].
    """

    dtype: DataType = E4M3
    form: BlockFormat = field(default_factory=BlockFormat)
    layout: str = "rows"

    @property
    def tile_rows(self) -> int:
        return 32

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        elements, scales = blocks.mx(fusion, x, self.dtype, self.form)
        size = pointwise(fusion, "magnitude", x)  # as in blocks: NaN does not count
        amax = reduce(fusion, "max", size, [1], True, None)  # type: ignore[arg-type]
        column_elements, column_scales = blocks.mx_of_amax(fusion, x, amax, self.dtype, self.form)
        if self.layout == "padded 128x4":
            column_scales = blocks.block_sample(fusion, squeeze(fusion, column_scales, [1]), 1, layout_for("columns of blocks", "te"))
        elif self.layout != "rows":
            column_scales = blocks.block_sample(fusion, turned(fusion, column_scales), 1, self.layout)
        return [elements, blocks.block_sample(fusion, scales, 32, self.layout), column_elements, column_scales]


def turned(fusion: Fusion, scales: TensorView) -> TensorView:
    """Return scales of columns as rows. Shapes: [m, 1, k] -> [k, m]."""
    return permute(fusion, squeeze(fusion, scales, [1]), [1, 0])


@dataclass(frozen=True)
class NvFp4(Recipe):
    """Blocks of 16 of e2m1 with scales of e4m3, and the encode scale of the tensor, if given. signs: of a Hadamard transform of each block first."""

    layout: str = "rows"
    has_global_scale: bool = False
    is_stochastic: bool = False
    form: BlockFormat = field(default_factory=BlockFormat)
    signs: tuple[int, ...] | None = None

    @property
    def has_scale(self) -> bool:
        return self.has_global_scale

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        rounding = stochastic_e2m1 if self.is_stochastic else None
        given = x if self.signs is None else blocks.block_hadamard(fusion, x, self.signs)
        elements, scales = blocks.nvfp4(fusion, given, scale, self.form, rounding=rounding)
        return [elements, blocks.block_sample(fusion, scales, 16, self.layout)]


@dataclass(frozen=True)
class NvFp4BothWays(Recipe):
    """NvFp4 with blocks along rows and, separately, with blocks of 16 rows along columns. x is [m / 16, 16, k].

    Results: elements and scales of rows, [..., k / 16]; elements of columns, with the memory layout [k, m], and their scales, [k, m / 16]. Neither is quantized
    from the other; the encode scale of the tensor is the same. layout: of both scales.
    """

    layout: str = "rows"
    has_global_scale: bool = False
    is_stochastic: bool = False
    form: BlockFormat = field(default_factory=BlockFormat)

    @property
    def has_scale(self) -> bool:
        return self.has_global_scale

    @property
    def tile_rows(self) -> int:
        return 16

    def results(self, fusion: Fusion, x: TensorView, scale: Val | None) -> list[TensorView]:
        rounding = stochastic_e2m1 if self.is_stochastic else None
        elements, scales = blocks.nvfp4(fusion, x, scale, self.form, rounding=rounding)
        size = pointwise(fusion, "magnitude", x)  # as in blocks: NaN does not count
        amax = reduce(fusion, "max", size, [1], True, None)  # type: ignore[arg-type]
        column_elements, column_scales = blocks.nvfp4_of_amax(fusion, x, amax, scale, self.form, rounding)
        column_elements = stride_order(fusion, column_elements, [1, 0, 2])
        taken = blocks.block_sample(fusion, turned(fusion, column_scales), 1, self.layout)
        return [elements, blocks.block_sample(fusion, scales, 16, self.layout), column_elements, taken]


def stochastic_e2m1(fusion: Fusion, y: Val) -> Val:
    """Return y rounded stochastically to values of e2m1, with the mean unchanged: a uniform fraction of the step at this magnitude is added, and the result
    truncated."""
    size = pointwise(fusion, "abs", y)
    half, one, two = (constant(fusion, value, FLOAT) for value in (0.5, 1.0, 2.0))  # plain Python numbers would make it double
    is_fine, is_middle = (pointwise(fusion, "lt", size, limit) for limit in (2.0, 4.0))
    step = pointwise(fusion, "where", is_fine, half, pointwise(fusion, "where", is_middle, one, two))
    inverse = pointwise(fusion, "where", is_fine, two, pointwise(fusion, "where", is_middle, one, half))
    drawn = random_like(fusion, "uniform", y)  # type: ignore[arg-type]
    steps = pointwise(fusion, "floor", pointwise(fusion, "add", pointwise(fusion, "mul", size, inverse), drawn))
    on_grid = pointwise(fusion, "minimum", pointwise(fusion, "mul", steps, step), 6.0)
    return pointwise(fusion, "where", pointwise(fusion, "lt", y, 0.0), pointwise(fusion, "neg", on_grid), on_grid)
