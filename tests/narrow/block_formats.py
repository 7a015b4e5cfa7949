"""NVFP4 and MXFP8 from their definitions, in numpy's float32: an oracle that shares nothing with the package.

Every operation is one IEEE operation in float32, in the order that nvFuser's kernels have; a scale that is used is the rounded one.
"""

from __future__ import annotations

import narrow_values
import numpy as np

F32 = np.float32
FLOAT_MAX = F32(3.4028234663852886e38)


def amax_of(blocks: np.ndarray) -> np.ndarray:
    """Shapes: [..., blocks, elements] -> [..., blocks, 1]; NaN does not count."""
    return np.fmax.reduce(np.abs(blocks), axis=-1, keepdims=True, initial=0)


def nvfp4(x: np.ndarray, g: float | None = None, order: str = "nvfuser") -> tuple[np.ndarray, np.ndarray]:
    """Return (codes of elements, codes of scales). Shapes: [..., k] -> [..., k], [..., k / 16]."""
    with np.errstate(all="ignore"):
        blocks = x.astype(F32).reshape(*x.shape[:-1], x.shape[-1] // 16, 16)
        amax = amax_of(blocks)
        g32 = F32(1.0 if g is None else g)
        wanted = amax * (g32 / F32(6)) if order == "te" else np.minimum(amax / F32(6) * g32, FLOAT_MAX)
        scales = narrow_values.encoded("e4m3", wanted.astype(np.float64))
        held = narrow_values.decoded("e4m3")[scales].astype(F32)
        multiplier = np.minimum(F32(1) / (held * (F32(1) / g32)), FLOAT_MAX)
        codes = narrow_values.encoded("e2m1", (blocks * multiplier).astype(np.float64))
    return codes.reshape(x.shape), scales[..., 0]


def mx(x: np.ndarray, kind: str = "e4m3", rounding: str = "up") -> tuple[np.ndarray, np.ndarray]:
    """Return (codes of elements, codes of scales). Shapes: [..., k] -> [..., k], [..., k / 32]."""
    with np.errstate(all="ignore"):
        blocks = x.astype(F32).reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
        amax = amax_of(blocks)
        largest = narrow_values.magnitudes(kind)[-1]
        if rounding == "up":
            scales = narrow_values.encoded("e8m0", (amax * F32(1 / largest)).astype(np.float64))
        else:
            exponent = np.floor(np.log2(amax.astype(np.float64), where=amax > 0, out=np.full(amax.shape, -200.0))) - np.floor(np.log2(largest))
            scales = np.where(np.isinf(amax), 254 - np.floor(np.log2(largest)), np.clip(exponent + 127, 0, 254)).astype(np.uint8)
        multiplier = F32(1) / narrow_values.decoded("e8m0")[scales].astype(F32)
        codes = narrow_values.encoded(kind, (blocks * multiplier).astype(np.float64))
    return codes.reshape(x.shape), scales[..., 0]


def packed(codes: np.ndarray) -> np.ndarray:
    """Two codes of 4 bits to a byte, the first in the low bits."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def in_grouped_tiles(scales: np.ndarray, begins: list[int], places: list[int]) -> np.ndarray:
    """Each group of rows in tiles of its own, from row places[group] on; m + 127 * groups rows in all, zeros where there is no scale."""
    rows, columns = scales.shape
    out = np.zeros((rows + 127 * len(begins), -(-columns // 4) * 4), np.uint8)
    for group, (first, last) in enumerate(zip(begins, [*begins[1:], rows])):
        made = in_tiles(scales[first:last])
        out.reshape(-1)[places[group] * out.shape[1] :][: made.size] = made.reshape(-1)
    return out


def in_tiles(scales: np.ndarray) -> np.ndarray:
    """Scales where block-scaled matrix products look for them: offset ((r / 128) * ct + c / 4) * 512 + (r % 32) * 16 + ((r % 128) / 32) * 4 + c % 4."""
    rows, columns = scales.shape
    all_rows, column_tiles = -(-rows // 128) * 128, -(-columns // 4)
    out = np.zeros(all_rows * column_tiles * 4, np.uint8)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    out[((r // 128) * column_tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales
    return out.reshape(all_rows, column_tiles * 4)
