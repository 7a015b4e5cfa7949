"""Folds over blocks of the last axis, and quantizers with a scale per block.

Owns `block_amax`, `block_sample`, nvFuser's `nv_block_quantize` and the order of operations that its bytes come from.
Sources of the formulas: nvFuser's runtime helper for block quantization; TransformerEngine's quantizers; OCP Microscaling Formats 1.0 for the floor rule.
Read first: `nv_block_quantize`, `BlockFormat`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..dtypes import RECORDS, DataType
from ..errors import UserError
from ..expr import ceildiv, const, evaluate_int, is_divisible
from ..ir.block_ops import COLUMNS, GROUPED, PADDED, PADDED_COLUMNS, SWIZZLED, BlockFoldOp, BlockHadamardOp, BlockSampleOp
from ..ir.fusion import Fusion
from ..ir.values import IterDomain, PointwiseOp, Split, TensorView, Val
from .build import cast, logical_axes, pointwise

FLOAT_MAX = 3.4028234663852886e38
MOST_BLOCK = 1024
E4M3, E8M0, FP4 = DataType.Float8_e4m3fn, DataType.Float8_e8m0fnu, DataType.Float4_e2m1fn
MX_ELEMENTS = tuple(dtype for dtype in RECORDS if dtype.is_narrow_float and dtype is not E8M0)


class BadBlock(UserError):
    code = "W864"
    what = "{problem}"
    fix = "{remedy}"


@dataclass(frozen=True)
class BlockFormat:
    """How the elements of a block and its scale are computed from the block's largest magnitude.

    scale_order: "nvfuser": (amax / 6) * g, "te": amax * (g / 6), for scales of e4m3. rounding: of scales of e8m0, "up" so that nothing saturates, or "floor"
    as OCP says. smallest_scale: of scales of e8m0, the multiplier where a scale is the smallest: "te" 2^127, as its value says; "nvfuser" 1.
    """

    scale_order: str = "nvfuser"
    rounding: str = "up"
    smallest_scale: str = "te"


def block_amax(fusion: Fusion, arg: TensorView, block_size: int) -> TensorView:
    """Return, for each element, the largest magnitude of its block of `block_size` neighbours along the last axis, in Float. NaN does not count."""
    _check_block("block_amax", arg, block_size)
    value = _read_as(fusion, arg)
    out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(value)], DataType.Float)
    fusion.register(BlockFoldOp([value], [out], op="block_amax", compute=DataType.Float, block=block_size))
    return out


HADAMARD_BLOCK = 16
LAYOUTS = ("rows", SWIZZLED, COLUMNS, *PADDED, PADDED_COLUMNS)


def block_hadamard(fusion: Fusion, arg: TensorView, signs: Sequence[int]) -> TensorView:
    """Return, in Float, each block of 16 neighbours along the last axis as a row times diag(signs) H / 4; H: Sylvester's matrix of 1 and -1.

    signs: 16 numbers, 1 or -1. The inverse is the transpose. Source: randomized Hadamard transforms of NVFP4 training recipes.
    """
    _check_block("block_hadamard", arg, HADAMARD_BLOCK)
    if len(signs) != HADAMARD_BLOCK or not all(sign in (1, -1) for sign in signs):
        raise BadBlock(problem=f"block_hadamard: signs are {list(signs)}", remedy="pass 16 numbers, each 1 or -1")
    value = _read_as(fusion, arg)
    out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(value)], DataType.Float)
    mask = sum((sign < 0) << place for place, sign in enumerate(signs))
    fusion.register(BlockHadamardOp([value], [out], op="block_hadamard", compute=DataType.Float, block=HADAMARD_BLOCK, signs=mask))
    return out


def _read_as(fusion: Fusion, arg: TensorView) -> TensorView:
    """Return what a fold reads: floats of 16 bits as they are, two to an instruction, also where `arg` is their cast to Float; else Float."""
    made_by = arg.definition()
    if arg.dtype() is DataType.Float and made_by is not None and made_by.op_name == "cast" and isinstance(made_by.inputs[0], TensorView):
        source = made_by.inputs[0]
        if source.dtype() in (DataType.Half, DataType.BFloat16):
            return source
    return arg if arg.dtype() in (DataType.Half, DataType.BFloat16) else cast(fusion, arg, DataType.Float)  # type: ignore[return-value]


def e8m0_inverse(fusion: Fusion, scale: TensorView) -> TensorView:
    """Return 1 / scale in Float, of scales of e8m0: exact, since their values are powers of two."""
    return _inverse(fusion, scale, "e8m0_inverse", E8M0)


def e4m3_inverse(fusion: Fusion, scale: TensorView) -> TensorView:
    """Return 1 / scale in Float, of scales of e4m3 without a sign: to nearest, and the largest finite float where the scale is 0 or NaN."""
    return _inverse(fusion, scale, "e4m3_inverse", E4M3)


def _inverse(fusion: Fusion, scale: TensorView, op: str, dtype: DataType) -> TensorView:
    if scale.dtype() is not dtype:
        raise BadBlock(problem=f"{op}: {scale} is of {scale.dtype().name}", remedy=f"pass scales of type {dtype.name}")
    out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(scale)], DataType.Float)
    fusion.register(PointwiseOp([scale], [out], op=op, compute=dtype))
    return out


def block_sample(fusion: Fusion, arg: TensorView, block_size: int, layout: str = "rows") -> TensorView:
    """Return the first element of each block of `block_size` neighbours along the last axis. Shapes: [..., k] -> [..., k / block_size].

    layout "128x4": in tiles of 128 rows by 4 columns, padded with zeros to whole tiles; "columns": rows innermost, columns begin at multiples of four elements;
    "padded 128x4", "padded 4x128", "padded 1x4", "padded columns": see `ir.block_ops`. With these it must be an output, which has rank 2: all axes but the last
    are rows together.
    """
    _check_block("block_sample", arg, block_size)
    if layout not in LAYOUTS:
        raise BadBlock(problem=f'layout is "{layout}"', remedy=f"use one of {', '.join(LAYOUTS)}")
    if layout != "rows" and arg.ndim < 2:
        raise BadBlock(problem=f"scales in the layout {layout} have rows, and {arg} has rank {arg.ndim}", remedy="add an axis of rows to it")
    return _sampled(fusion, arg, block_size, layout)


def _sampled(fusion: Fusion, arg: TensorView, block: int, layout: str, groups: Sequence[TensorView] = ()) -> TensorView:
    """Return one element per block. groups: where groups of rows begin, and where their tiles do."""
    root = [fusion.copy_axis(a) for a in logical_axes(arg)]
    out = fusion.new_tensor([*root[:-1], _blocks_of(fusion, root[-1], block)], arg.dtype(), root=root)
    out.domain().loop = list(root)
    node = BlockSampleOp([arg, *groups], [out])
    node.attributes.update(op="block_sample", block=block, layout=layout)
    fusion.register(node)
    return out


def _blocks_of(fusion: Fusion, axis: IterDomain, block: int) -> IterDomain:
    """Return the axis over the blocks of `axis`."""
    outer, inner = fusion.new_axis(ceildiv(axis.sym, block)), fusion.new_axis(block)
    transform = Split(axis, outer, inner, const(block), True)
    outer._definition = inner._definition = transform
    axis._uses.append(transform)
    return outer


def _check_block(op: str, arg: TensorView, block: int) -> None:
    if block < 1 or block > MOST_BLOCK or block & (block - 1):
        raise BadBlock(problem=f"{op}: a block has {block} elements", remedy=f"use a power of two up to {MOST_BLOCK}")
    axes = logical_axes(arg)
    if not axes or axes[-1].is_broadcast():
        raise BadBlock(problem=f"{op}: {arg} has no last axis of elements", remedy="pass a tensor whose last axis is not a broadcast axis")
    extent = axes[-1].sym
    if extent.is_const and not is_divisible(extent, block):
        raise BadBlock(
            problem=f"{op}: the last axis of {arg} has {evaluate_int(extent, {})} elements, which is not a multiple of the block of {block}",
            remedy=f"pad it to a multiple of {block}",
        )


# ---------------------------------------------------------------- formats
def nvfp4(
    fusion: Fusion, arg: TensorView, global_scale: Val | None, form: BlockFormat, block: int = 16, rounding: Callable[[Fusion, Val], Val] | None = None
) -> tuple[TensorView, TensorView]:  # fmt: skip
    """Return (elements of e2m1, scales of e4m3 at full resolution). global_scale: the encode scale, 2688 / largest magnitude of the tensor.

    rounding: to the values of e2m1, where not to nearest.
    """
    x: TensorView = cast(fusion, arg, DataType.Float)  # type: ignore[assignment]
    return nvfp4_of_amax(fusion, x, block_amax(fusion, x, block), global_scale, form, rounding)


def nvfp4_of_amax(
    fusion: Fusion, x: TensorView, amax: Val, global_scale: Val | None, form: BlockFormat, rounding: Callable[[Fusion, Val], Val] | None = None
) -> tuple[TensorView, TensorView]:
    """Return (elements of e2m1, scales of e4m3) of Float numbers, where the largest magnitude of each element's block is given."""
    if form.scale_order == "te":
        factor = pointwise(fusion, "div", global_scale, 6.0) if global_scale is not None else 1.0 / 6.0
        wanted = pointwise(fusion, "mul", amax, factor)
    elif global_scale is not None:
        wanted = _at_most(fusion, pointwise(fusion, "mul", pointwise(fusion, "div", amax, 6.0), global_scale), FLOAT_MAX)
    else:
        wanted = pointwise(fusion, "e2m1_scale", amax)
    scale: TensorView = cast(fusion, wanted, E4M3)  # type: ignore[assignment]
    if global_scale is not None:
        held = pointwise(fusion, "mul", cast(fusion, scale, DataType.Float), pointwise(fusion, "div", 1.0, global_scale))
        multiplier = _at_most(fusion, pointwise(fusion, "div", 1.0, held), FLOAT_MAX)
    else:
        multiplier = e4m3_inverse(fusion, scale)
    scaled = pointwise(fusion, "mul", x, multiplier)
    return cast(fusion, scaled if rounding is None else rounding(fusion, scaled), FP4), scale  # type: ignore[return-value]


def _at_most(fusion: Fusion, x: Val, limit: float) -> Val:
    """Return the smaller of x and a limit, the limit where x is NaN, as fmin does."""
    return pointwise(fusion, "where", pointwise(fusion, "lt", x, limit), x, limit)


def mx(fusion: Fusion, arg: TensorView, element: DataType, form: BlockFormat, block: int = 32) -> tuple[TensorView, TensorView]:
    """Return (elements of type `element`, scales of e8m0 at full resolution)."""
    if element not in MX_ELEMENTS:
        raise BadBlock(problem=f"MX blocks have no elements of type {element}", remedy=f"use one of {', '.join(map(str, MX_ELEMENTS))}")
    return mx_of_amax(fusion, arg, block_amax(fusion, arg, block), element, form)


def mx_of_amax(fusion: Fusion, arg: TensorView, amax: Val, element: DataType, form: BlockFormat) -> tuple[TensorView, TensorView]:
    """Return (elements of type `element`, scales of e8m0), where the largest magnitude of each element's block is given."""
    x: TensorView = cast(fusion, arg, DataType.Float)  # type: ignore[assignment]
    largest = element.record.largest
    if form.rounding == "floor":
        up = cast(fusion, cast(fusion, amax, E8M0), DataType.Float)  # the power of two from the largest magnitude on
        down = pointwise(fusion, "where", pointwise(fusion, "gt", up, amax), pointwise(fusion, "mul", up, 0.5), up)
        wanted = pointwise(fusion, "mul", down, 2.0 ** -math.floor(math.log2(largest)))
    else:
        (reciprocal,) = struct.unpack("f", struct.pack("f", 1.0 / largest))  # rounded to float: 1 / 448 is 0x3b124925
        wanted = pointwise(fusion, "mul", amax, reciprocal)
    scale: TensorView = cast(fusion, wanted, E8M0)  # type: ignore[assignment]
    multiplier: Val = e8m0_inverse(fusion, scale)
    if form.smallest_scale == "nvfuser":
        multiplier = pointwise(fusion, "where", pointwise(fusion, "gt", cast(fusion, scale, DataType.Float), 2.0**-127), multiplier, 1.0)
    return cast(fusion, pointwise(fusion, "mul", x, multiplier), element), scale  # type: ignore[return-value]


# ---------------------------------------------------------------- nvFuser's op
def nv_block_quantize(
    fusion: Fusion, input: TensorView, global_scale: Val | None = None, swizzle_block_scales: bool = False, block_size: int = 16, dtype: DataType = FP4
) -> tuple[TensorView, TensorView]:  # fmt: skip
    """Return (elements, scales of blocks of the last axis): NVFP4 (e2m1 in blocks of 16, scales of e4m3) or MXFP8 (e4m3 in blocks of 32, scales of e8m0).

    Shapes: [..., k] -> [..., k], [..., k / block_size]; swizzled scales of rank 2 lie in tiles of 128 x 4, padded with zeros.
    global_scale: of NVFP4, a Float tensor of rank 0: the encode scale. Errors: BadBlock, in nvFuser's words.
    """
    _check_quantize(input, global_scale, swizzle_block_scales, block_size, dtype)
    if dtype is FP4:
        elements, scales = nvfp4(fusion, input, global_scale, BlockFormat())
    else:
        elements, scales = mx(fusion, input, dtype, BlockFormat())
    return elements, block_sample(fusion, scales, block_size, SWIZZLED if swizzle_block_scales else "rows")


def nv_grouped_block_quantize(
    fusion: Fusion, input: TensorView, input_offsets: TensorView, output_offsets: TensorView, global_scale: Val | None = None, block_size: int = 16,
    dtype: DataType = FP4,
) -> tuple[TensorView, TensorView]:  # fmt: skip
    """NVFP4 of the rows of groups, one expert's each; the scales of a group lie in tiles of their own, see `grouped_tiles`.

    Errors: BadBlock, in nvFuser's words.
    """
    if dtype is not FP4:
        raise BadBlock(problem="only nvfp4 output is implemented", remedy="omit dtype")
    if input.ndim != 2:
        raise BadBlock(problem=f"nv_grouped_block_quantize: the input has rank {input.ndim}, not 2", remedy="flatten its outer axes")
    _check_quantize(input, global_scale, False, block_size, dtype)
    elements, scales = nvfp4(fusion, input, global_scale, BlockFormat())
    return elements, grouped_tiles(fusion, scales, input_offsets, output_offsets, block_size)


def grouped_tiles(fusion: Fusion, scales: TensorView, input_offsets: TensorView, output_offsets: TensorView, block: int = 1) -> TensorView:
    """Return scales of groups of rows as grouped products take them: tiles of 128 x 4 for each group, padded with zeros. It must be an output.

    Shapes: [m, c * block] -> [m + 127 * groups, c to a multiple of 4]. input_offsets, output_offsets: Int32 or Int, in order: where each group's rows begin,
    and where its tiles do, a multiple of 128.
    """
    if scales.ndim != 2:
        raise BadBlock(problem=f"scales of groups have rank 2, and {scales} has rank {scales.ndim}", remedy="flatten the outer axes")
    for name, offsets in (("input_offsets", input_offsets), ("output_offsets", output_offsets)):
        if offsets.ndim != 1 or offsets.dtype() not in (DataType.Int, DataType.Int32):
            raise BadBlock(problem=f"{name} is {offsets}", remedy="pass a tensor with one axis and dtype Int32")
    return _sampled(fusion, scales, block, GROUPED, [input_offsets, output_offsets])


def _check_quantize(input: TensorView, global_scale: Val | None, swizzle: bool, block_size: int, dtype: DataType) -> None:
    problem = remedy = ""
    wanted = {FP4: 16, E4M3: 32}
    if dtype not in wanted:
        problem = "Currently only output data type of Float4_e2m1fn or Float8_e4m3fn is supported"
        remedy = "weft.quantize has other formats"
    elif block_size != wanted[dtype]:
        problem, remedy = f"Block size must be {wanted[dtype]} for {dtype.name}, got {block_size}", "weft.quantize has other blocks"
    elif dtype is E4M3 and swizzle:
        problem, remedy = "swizzle_scales must be false for Float8_e4m3fn", "weft.quantize.mxfp8 has swizzled scales"
    elif dtype is E4M3 and global_scale is not None:
        problem, remedy = "global_scaling_factor must be nullptr for Float8_e4m3fn", "omit global_scale"
    elif input.ndim == 0:
        problem, remedy = "Block quantization does not support zero-dimensional tensors", "use a tensor with at least one axis"
    elif input.dtype() not in (DataType.Float, DataType.Half, DataType.BFloat16):
        problem, remedy = f"Block quantization expects floating point input but got {input.dtype().value}", "cast it to Float"
    elif isinstance(global_scale, TensorView) and global_scale.ndim:
        problem, remedy = "Global scaling factor for block quantization must be a scalar tensor", "pass a tensor of rank 0"
    elif global_scale is not None and global_scale.dtype() is not DataType.Float:  # type: ignore[attr-defined]
        problem, remedy = "Global scaling factor for block quantization must be of float data type", "cast it to Float"
    if problem:
        raise BadBlock(problem=problem, remedy=remedy)
