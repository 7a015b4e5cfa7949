"""Lookups of several channels at positions that they share, behind which channels are summed: the loop over channels is around all of them."""

from __future__ import annotations

import pytest
import torch
from compared_images import compare
from torch import Tensor


def _deformed(pixels: Tensor, offset: Tensor) -> Tensor:
    """Three taps of each pixel, moved by offsets: bilinear, zeros outside."""
    n, c, h, w = pixels.shape
    i, j = torch.arange(h)[:, None], torch.arange(w)
    tap = torch.arange(3)[:, None, None]
    y, z = offset[:, 0::2] + i + tap // 2 - 1, offset[:, 1::2] + j + tap % 2 - 1
    y0, z0, out = y.floor(), z.floor(), 0.0
    for dy in range(2):
        for dz in range(2):
            a, b = y0 + dy, z0 + dz
            weight = (1 - (y - a).abs()) * (1 - (z - b).abs()) * ((a >= 0) & (a < h) & (b >= 0) & (b < w))
            place = a.clamp(0, h - 1).long() * w + b.clamp(0, w - 1).long()
            out = out + pixels.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, c, -1)).view(n, c, 3, h, w) * weight[:, None]
    return out


@pytest.mark.parametrize(("n", "c", "h", "w"), [(1, 32, 16, 16), (1, 5, 9, 12), (2, 33, 5, 7), (1, 1, 1, 1), (2, 8, 8, 16), (2, 4, 3, 1)])
def test_samples_at_positions_that_channels_share(n: int, c: int, h: int, w: int) -> None:
    """The gradient of the offsets sums over channels what four lookups at shared positions give."""
    pixels = torch.randn(n, c, h, w)
    torch._dynamo.reset()  # fixed sizes
    compare(lambda offset: _deformed(pixels, offset), torch.randn(n, 6, h, w), atol=1e-5, gradient_atol=1e-4, gradient_rtol=1e-4)
