"""Back from elements and scales to numbers, in one kernel, from every layout that a recipe makes.

Read first: `dequantize`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..api.definition import FusionDefinition
from ..dtypes import DataType
from ..ir.block_ops import SWIZZLED
from ..ir.values import TensorView
from ..reference.torch_types import torch_dtype_to_nvfuser_dtype
from ..runtime.argument_kinds import checked
from .errors import WrongTensors
from .formats import FLOAT

BLOCK_OF = {DataType.Float8_e4m3fn: 16, DataType.Float8_e8m0fnu: 32}
"""Elements of a block, by the type of its scale, because the number of scales in tiles includes padding."""
KNOWN_BLOCKS = (16, 32, 64, 128)
"""Block lengths that are constants in kernels; others are symbolic sizes."""

Types = tuple[DataType, DataType, DataType, bool]
Axes = tuple[tuple[bool, int], ...]
"""Of a kernel's tensors: (goes through a block, extent, -1 where any)."""


@checked
def dequantize(
    elements: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None = None, dtype: torch.dtype = torch.bfloat16, layout: str = "rows"
) -> torch.Tensor:  # fmt: skip
    """Return elements * scales / global_scale, in one kernel.

    scales: with the rank of the elements, one per block: of neighbours ([..., k / 16]), of a row ([..., 1]), of a square ([m / 128, k / 128]), of a column ([m
    / 32, k]), with any strides; or of rank 0, one for all. layout: in which the recipe wrote the scales: "rows", or "128x4", tiles, for elements
    [m, k]. Both may have the same shape. Errors: WrongTensors if the scales do not match whole blocks.
    """
    kind = torch_dtype_to_nvfuser_dtype(elements.dtype)
    unit = 2 if kind is DataType.Float4_e2m1fn_x2 else 1
    if not elements.dim():
        raise WrongTensors(problem="the elements have no axis", remedy="pass elements as a recipe made them")
    if layout not in ("rows", SWIZZLED):
        raise WrongTensors(problem=f'layout is "{layout}"', remedy=f'use "rows", for scales with any strides, or "{SWIZZLED}"')
    shape = [*elements.shape[:-1], elements.shape[-1] * unit]
    types = kind, torch_dtype_to_nvfuser_dtype(scales.dtype), torch_dtype_to_nvfuser_dtype(dtype), global_scale is not None
    given: list[Any] = []
    if layout == SWIZZLED:
        block = _block_in_tiles(shape, scales, types[1])
        fd = _back_from_tiles(types, block, DataType.Int32 if scales.numel() < 1 << 31 else DataType.Int)
        given = [elements.reshape(-1, block // unit), scales.reshape(1, -1), shape[1] // block, scales.shape[1] // 4]
    else:
        counts = scales.shape if scales.dim() else [1] * len(shape)
        if len(counts) != len(shape) or any(n % count if count else n for n, count in zip(shape, counts)):
            raise WrongTensors(problem=f"scales of {tuple(scales.shape)} for elements of {tuple(elements.shape)}", remedy="pass one scale for each block")
    if not elements.numel():
        return torch.empty(shape, dtype=dtype, device=elements.device)
    if layout != SWIZZLED:
        axes, sizes, held = _cut(shape, scales)
        fd = _back(types, axes, _contiguity(held, axes))
        given = [elements.reshape(*sizes[:-1], sizes[-1] // unit), held]
    return fd.execute([*given, *([] if global_scale is None else [global_scale])])[0].view(shape)


def _block_in_tiles(shape: Sequence[int], scales: torch.Tensor, kind: DataType) -> int:
    """Return the elements of a block whose scales are in tiles. Errors: WrongTensors."""
    block = BLOCK_OF.get(kind, 0)
    rows, columns = (shape[0], shape[1] // block) if len(shape) == 2 and block and shape[1] % block == 0 else (0, 0)
    if scales.dim() != 2 or not columns or list(scales.shape) != [-(-rows // 128) * 128, -(-columns // 4) * 4]:
        problem = f"scales of {tuple(scales.shape)} and {kind.name} in tiles, for elements of {tuple(shape)}"
        raise WrongTensors(problem=problem, remedy="pass elements [m, k], and their scales as a recipe made them with layout 128x4")
    return block


def _cut(shape: Sequence[int], scales: torch.Tensor) -> tuple[Axes, list[int], torch.Tensor]:
    """Return the axes of the kernel's tensors, the sizes of the elements along them, and the scales, with 1 for each axis through a block."""
    axes: list[tuple[bool, int]] = []
    sizes, held, strides = [], [], []
    counts = scales.shape if scales.dim() else [1] * len(shape)
    for n, count, stride in zip(shape, counts, scales.stride() if scales.dim() else [1] * len(shape)):
        block = n // count
        if count > 1:
            axes.append((False, -1))
            sizes.append(count)
            held.append(count)
            strides.append(stride)
        if block > 1 or n == shape[-1] == 1:
            axes.append((True, block if block in KNOWN_BLOCKS else -1))
            sizes.append(block)
            held.append(1)
            strides.append(1)
    return tuple(axes), sizes, scales.as_strided(held, strides)


def _contiguity(tensor: torch.Tensor, axes: Axes) -> tuple[bool | None, ...]:
    """Return whether each axis of the scales is contiguous with the next one."""
    out: list[bool | None] = []
    expected = 1
    for (is_block, _), size, stride in reversed(list(zip(axes, tensor.shape, tensor.stride()))):
        out.append(None if is_block else stride == expected)
        expected = expected if is_block else size * stride
    return tuple(reversed(out))


@functools.lru_cache(maxsize=None)
def _back(types: Types, axes: Axes, contiguity: tuple[bool | None, ...]) -> FusionDefinition:
    with FusionDefinition() as fd:
        q = fd.define_tensor([extent for _, extent in axes], contiguity=True, dtype=_unpacked(types[0]))
        s = fd.define_tensor([1 if is_block else -1 for is_block, _ in axes], contiguity=contiguity, dtype=types[1])
        _add_product(fd, q, s, types)
    return fd


@functools.lru_cache(maxsize=None)
def _back_from_tiles(types: Types, block: int, index: DataType) -> FusionDefinition:
    """The inverse of `lower.blocks.tiled_index`: a block of elements looks up its scale. index: type of places."""
    with FusionDefinition() as fd:
        ops = fd.ops
        q = fd.define_tensor([-1, block], contiguity=True, dtype=_unpacked(types[0]))
        s = fd.define_tensor([1, -1], contiguity=[None, True], dtype=types[1])
        columns, column_tiles = fd.define_scalar(index), fd.define_scalar(index)
        at = ops.iota(q.size(0), 0, 1, index)
        r, c = ops.div(at, columns), ops.fmod(at, columns)
        tile = ops.add(ops.mul(ops.div(r, 128), column_tiles), ops.div(c, 4))
        within = ops.add(ops.add(ops.mul(ops.fmod(r, 32), 16), ops.mul(ops.div(ops.fmod(r, 128), 32), 4)), ops.fmod(c, 4))
        place = ops.broadcast(ops.add(ops.mul(tile, 512), within), [True, False])
        found = ops.broadcast(ops.squeeze(ops.gather(s, place, 1), [0]), [False, True])
        _add_product(fd, q, found, types)
    return fd


def _unpacked(kind: DataType) -> DataType:
    return DataType.Float4_e2m1fn if kind is DataType.Float4_e2m1fn_x2 else kind


def _add_product(fd: FusionDefinition, q: TensorView, s: TensorView, types: Types) -> None:
    """Add the product of elements and scales as the output."""
    value = fd.ops.mul(fd.ops.cast(q, FLOAT), fd.ops.cast(s, FLOAT))
    if types[3]:
        value = fd.ops.div(value, fd.define_tensor([], dtype=FLOAT))
    fd.add_output(fd.ops.cast(value, types[2]))
