"""The cases of `narrow.py` in torch, to be compiled by torch.compile: the same results, elements of 4 bits as bytes of two. Read first: `reference`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

E2M1_THRESHOLDS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""A magnitude beyond so many of them has that code; True: from the threshold on."""
Made = tuple[torch.Tensor, ...]


def fp8(x: torch.Tensor) -> torch.Tensor:
    """Cast to e4m3, saturating."""
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def fp4(x: torch.Tensor) -> torch.Tensor:
    """Encode e2m1, two elements to a byte. Shapes: [..., k] -> [..., k / 2], uint8."""
    size = x.abs()
    codes = sum(((size >= t) if is_from else (size > t)).to(torch.uint8) for t, is_from in E2M1_THRESHOLDS) | (torch.signbit(x).to(torch.uint8) << 3)
    pairs = codes.unflatten(-1, (-1, 2))  # type: ignore[union-attr]
    return pairs[..., 0] | pairs[..., 1] << 4


def tiles(scales: torch.Tensor) -> torch.Tensor:
    """Return scales of whole tiles in tiles of 128 x 4."""
    rows, columns = scales.shape
    return scales.view(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, columns)


def mxfp8(x: torch.Tensor) -> Made:
    """Return elements and scales as `quantize.mxfp8` does."""
    blocks = x.unflatten(-1, (-1, 32))
    wanted = blocks.abs().amax(-1) * (1.0 / 448.0)
    codes = ((wanted.view(torch.int32) + 0x7FFFFF) >> 23).clamp(max=254)
    inverse = ((254 - codes) << 23).view(torch.float32)
    return fp8(blocks * inverse[..., None]).flatten(-2), codes.to(torch.uint8)


def nvfp4(x: torch.Tensor) -> Made:
    """Return elements and scales as `quantize.nvfp4` does."""
    blocks = x.unflatten(-1, (-1, 16))
    scales = fp8(blocks.abs().amax(-1) / 6.0)
    inverse = (1.0 / scales.float()).clamp(max=3.4028234663852886e38)
    return fp4((blocks * inverse[..., None]).flatten(-2)), scales.view(torch.uint8)


def per_row(x: torch.Tensor) -> Made:
    """Return elements and scales as `quantize.per_row` does."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
    return fp8(x * (1.0 / scale)), scale


def per_1x128(x: torch.Tensor) -> Made:
    """Return elements and scales as `quantize.per_1x128` does."""
    blocks = x.unflatten(-1, (-1, 128))
    scale = blocks.abs().amax(-1).clamp(min=1e-4) / 448.0
    return fp8(blocks * (1.0 / scale)[..., None]).flatten(-2), scale


def columns_innermost(made: Made) -> Made:
    """Turn the scales."""
    return made[0], made[1].t().contiguous()


def in_tiles(made: Made) -> Made:
    """Put the scales in tiles."""
    return made[0], tiles(made[1])


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMS norm of rows."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w


def both_sides(x: torch.Tensor) -> Made:
    """Return what `quantize.mxfp8_both_ways` does."""
    rows, (elements, scales) = mxfp8(x), mxfp8(x.t())
    return *rows, elements.t(), scales.t()


def nvfp4_both_ways(x: torch.Tensor, after: Callable[[Made], Made] = lambda made: made) -> Made:
    """Return what `quantize.nvfp4_both_ways` does."""
    return *after(nvfp4(x)), *after(nvfp4(x.t()))


SIGNS = (1.0, -1.0) * 8


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Transform blocks of 16 as `quantize.hadamard_transform` does with SIGNS: four sums of halves, which fuse better than a product."""
    blocks = x.unflatten(-1, (-1, 16)) * torch.tensor(SIGNS, device=x.device)
    for half in (1, 2, 4, 8):
        pairs = blocks.unflatten(-1, (-1, 2, half))
        blocks = torch.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2).flatten(-3)
    return (blocks * 0.25).flatten(-2)


def nvfp4_stochastic(x: torch.Tensor) -> Made:
    """Return elements and scales as `quantize.nvfp4` does with stochastic rounding."""
    blocks = x.unflatten(-1, (-1, 16))
    scales = fp8(blocks.abs().amax(-1) / 6.0)
    y = blocks * (1.0 / scales.float()).clamp(max=3.4028234663852886e38)[..., None]
    size = y.abs()
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    on_grid = (torch.floor(size / step + torch.rand_like(size)) * step).clamp(max=6.0)
    return fp4(torch.copysign(on_grid, y).flatten(-2)), scales.view(torch.uint8)


def fp4_values(packed: torch.Tensor) -> torch.Tensor:
    """Decode e2m1. Shapes: [..., k / 2] of uint8 -> [..., k]."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).int()
    size = codes & 7
    value = torch.where(size < 2, size * 0.5, torch.exp2((size >> 1).float() - 1) * (1 + 0.5 * (size & 1)))
    return torch.where(codes > 7, -value, value)


_RECIPES: dict[str, Callable[[torch.Tensor], Made]] = {"nvfp4": nvfp4, "mxfp8": mxfp8, "per row": per_row, "1x128": per_1x128}


def reference(name: str) -> Callable[..., Any] | None:
    """Return the torch function of a case of `narrow.cases`, or None where there is none."""
    if name in _PLAIN:
        return _PLAIN[name]
    before = next((b for b in ("add rms", "rms", "silu mul") if name.startswith(b)), "")
    recipe = next((r for r in _RECIPES if r in name), None)
    if recipe is None:
        return None
    after: Callable[[Made], Made] = in_tiles if "swizzled" in name else columns_innermost if "columns" in name else lambda made: made

    def run(*inputs: torch.Tensor) -> Made:
        wide = [t.float() for t in inputs]
        if before == "add rms":
            total = wide[0] + wide[1]
            return *after(_RECIPES[recipe](rms(total, wide[2]))), total.to(inputs[0].dtype)
        made = rms(*wide) if before == "rms" else F.silu(wide[0]) * wide[1] if before == "silu mul" else wide[0]
        return after(_RECIPES[recipe](made))

    return run


_PLAIN: dict[str, Callable[..., Any] | None] = {
    "fp4 to bf16": lambda x: fp4_values(x.view(torch.uint8)).bfloat16(), "fp4 to float": lambda x: fp4_values(x.view(torch.uint8)),
    "fp8 to bf16": lambda x: x.bfloat16(), "row sums of fp4": lambda x: fp4_values(x.view(torch.uint8)).sum(1),
    "mxfp8 rows and columns": lambda x: both_sides(x.float()),
    "silu mul mxfp8 rows and columns": lambda x, y: both_sides(F.silu(x.float()) * y.float()),
    "nvfp4 rows and columns": lambda x: nvfp4_both_ways(x.float()), "nvfp4 rows and columns swizzled": lambda x: nvfp4_both_ways(x.float(), in_tiles),
    "silu mul nvfp4 rows and columns": lambda x, y: nvfp4_both_ways(F.silu(x.float()) * y.float()),
    "nvfp4 hadamard": lambda x: in_tiles(nvfp4(hadamard(x.float()))), "nvfp4 stochastic": lambda x: in_tiles(nvfp4_stochastic(x.float())),
    "nvfp4 hadamard stochastic": lambda x: in_tiles(nvfp4_stochastic(hadamard(x.float()))), "nvfp4 in groups": None,  # rows of a tile depend on offsets
}  # fmt: skip
