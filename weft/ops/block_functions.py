"""The front end's functions of blocks and quantizers: their arguments are checked here, their nodes made in `blocks.py`.

Read first: `nv_block_quantize`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from . import arguments as given
from . import blocks
from .build import pointwise


def nv_block_quantize(
    fusion: Fusion, input: Any, global_scale: Any = None, swizzle_block_scales: Any = False, block_size: Any = 16, dtype: Any = DataType.Float4_e2m1fn
) -> tuple[TensorView, TensorView]:  # fmt: skip
    """Return (quantized, block_scales) of blocks of the last axis: NVFP4 (Float4_e2m1fn in blocks of 16) or MXFP8 (Float8_e4m3fn in blocks of 32)."""
    op = "nv_block_quantize"
    return blocks.nv_block_quantize(
        fusion, given.tensor(op, "input", input), None if global_scale is None else given.tensor(op, "global_scale", global_scale),
        given.boolean(op, "swizzle_block_scales", swizzle_block_scales), given.integer(op, "block_size", block_size), given.data_type(op, "dtype", dtype),
    )  # fmt: skip


def nv_grouped_block_quantize(
    fusion: Fusion, input: Any, input_offsets: Any, output_offsets: Any, global_scale: Any = None, block_size: Any = 16, dtype: Any = DataType.Float4_e2m1fn
) -> tuple[TensorView, TensorView]:  # fmt: skip
    """Return (quantized, block_scales) of groups of rows: NVFP4, the scales of each group in tiles of their own, from row output_offsets[group] on."""
    op = "nv_grouped_block_quantize"
    return blocks.nv_grouped_block_quantize(
        fusion, given.tensor(op, "input", input), given.tensor(op, "input_offsets", input_offsets), given.tensor(op, "output_offsets", output_offsets),
        None if global_scale is None else given.tensor(op, "global_scale", global_scale), given.integer(op, "block_size", block_size),
        given.data_type(op, "dtype", dtype),
    )  # fmt: skip


def preprocess_grouped_matmul_input_sf(fusion: Fusion, input: Any, input_offsets: Any, output_offsets: Any) -> TensorView:
    """Return scales [m, c] of groups of rows in tiles of 128 x 4, each group's from row output_offsets[group] on, padded with zeros."""
    op = "preprocess_grouped_matmul_input_sf"
    scales, begins, places = (
        given.tensor(op, name, value) for name, value in (("input", input), ("input_offsets", input_offsets), ("output_offsets", output_offsets))
    )
    return blocks.grouped_tiles(fusion, scales, begins, places)


def grouped_tiles(fusion: Fusion, arg: Any, input_offsets: Any, output_offsets: Any, block_size: Any = 1) -> TensorView:
    """Return the first element of each block of block_size neighbours as scales of groups of rows, see `preprocess_grouped_matmul_input_sf`."""
    op = "grouped_tiles"
    tensors = [given.tensor(op, name, value) for name, value in (("arg", arg), ("input_offsets", input_offsets), ("output_offsets", output_offsets))]
    return blocks.grouped_tiles(fusion, tensors[0], tensors[1], tensors[2], given.integer(op, "block_size", block_size))


def block_amax(fusion: Fusion, arg: Any, block_size: Any) -> TensorView:
    """Return, for each element, the largest magnitude of its block of block_size neighbours along the last axis, in Float. NaN does not count."""
    return blocks.block_amax(fusion, given.tensor("block_amax", "arg", arg), given.integer("block_amax", "block_size", block_size))


def block_hadamard(fusion: Fusion, arg: Any, signs: Any) -> TensorView:
    """Return, in Float, each block of 16 neighbours along the last axis times diag(signs) H / 4. signs: 16 numbers, 1 or -1."""
    op = "block_hadamard"
    return blocks.block_hadamard(fusion, given.tensor(op, "arg", arg), given.integers(op, "signs", signs))


def block_sample(fusion: Fusion, arg: Any, block_size: Any, layout: Any = "rows") -> TensorView:
    """Return the first element of each block of block_size neighbours along the last axis; layout: "rows", "128x4" or "columns"."""
    return blocks.block_sample(fusion, given.tensor("block_sample", "arg", arg), given.integer("block_sample", "block_size", block_size), layout)


def e8m0_inverse(fusion: Fusion, arg: Any) -> TensorView:
    """Return 1 / arg in Float, of scales of Float8_e8m0fnu."""
    return blocks.e8m0_inverse(fusion, given.tensor("e8m0_inverse", "arg", arg))


def e4m3_inverse(fusion: Fusion, arg: Any) -> TensorView:
    """Return 1 / arg in Float, of scales of Float8_e4m3fn; the largest finite number where a scale is 0 or NaN."""
    return blocks.e4m3_inverse(fusion, given.tensor("e4m3_inverse", "arg", arg))


def e2m1_scale(fusion: Fusion, arg: Any) -> Any:
    """Return arg / 6 in Float, of magnitudes of at most 3000: the scale with which the largest of a block becomes the largest number of Float4_e2m1fn."""
    return pointwise(fusion, "e2m1_scale", given.tensor("e2m1_scale", "arg", arg))


def magnitude(fusion: Fusion, arg: Any) -> Any:
    """Return the magnitude of arg, of type Float; 0 where it is NaN."""
    return pointwise(fusion, "magnitude", given.tensor("magnitude", "arg", arg))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nv_block_quantize": nv_block_quantize, "nv_grouped_block_quantize": nv_grouped_block_quantize,
    "preprocess_grouped_matmul_input_sf": preprocess_grouped_matmul_input_sf,
}
BLOCK_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "block_amax": block_amax, "block_hadamard": block_hadamard, "block_sample": block_sample, "e8m0_inverse": e8m0_inverse, "grouped_tiles": grouped_tiles,
    "magnitude": magnitude, "e4m3_inverse": e4m3_inverse, "e2m1_scale": e2m1_scale,
}  # fmt: skip
"""Beside nvFuser's names."""
