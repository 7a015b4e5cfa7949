"""Backward of a group norm with the sums of a group over its elements, not over what its channels sum to.

A kernel that keeps a group's elements on chip then computes both sums of the group and those of its channels in one reading (`weft.schedulers.nested_rows`).
torch's decomposition adds up channels first, in a kernel of their own. As a decomposition and not as a rule, so that torch's partitioner sees what can be
computed again. Read first: `native_group_norm_backward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .losses import torchs_own

aten = torch.ops.aten
Tensor = torch.Tensor
MOST_ELEMS = 1 << 18
"""Of a group: what the registers of 16 blocks hold of two tensors. Larger ones are read twice anyway, and torch's decomposition then has fewer kernels."""


def native_group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: Any, channels: Any, pixels: Any, groups: int, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the input, the weight and the bias, as aten returns them.

    Large groups, images with channels last, and calls without an input's gradient are left to torch's decomposition.
    """
    if not _is_taken(x, channels, pixels, groups, mask):
        return torchs_own(aten.native_group_norm_backward.default)(grad, x, mean, rstd, weight, n, channels, pixels, groups, mask)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    shape = (n, groups, channels // groups, pixels)
    g, v = (t.reshape(shape).to(wide) for t in (grad, x))
    middle, inverse = (t.to(wide).reshape(n, groups, 1, 1) for t in (mean, rstd))
    normed = (v - middle) * inverse
    scaled = g if weight is None else g * weight.to(wide).reshape(1, groups, channels // groups, 1)
    level, tilt = (t.mean((2, 3), keepdim=True) for t in (scaled, scaled * normed))
    into = (inverse * (scaled - level - normed * tilt)).to(x.dtype).reshape(x.shape)
    of_weight, of_bias = (
        t.sum((0, 3)).reshape(channels).to(x.dtype if weight is None else weight.dtype) if is_wanted else None
        for t, is_wanted in ((g * normed, mask[1]), (g, mask[2]))
    )
    return into, of_weight, of_bias


def _is_taken(x: Tensor, channels: Any, pixels: Any, groups: int, mask: list[bool]) -> bool:
    are_known = all(isinstance(size, int) for size in (*x.shape, channels, pixels))
    is_short = are_known and 0 < channels // groups * pixels <= MOST_ELEMS and x.numel() > 0
    return mask[0] and is_short and x.is_contiguous()  # channels last: a group's elements lie in many short runs


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {aten.native_group_norm_backward.default: native_group_norm_backward}
"""Overload -> the same in ops that have rules."""
