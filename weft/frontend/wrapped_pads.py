"""Images padded with the pixels of their other end (`F.pad(x, ..., mode="circular")`): one operator, with a gradient of its own.

torch decomposes them into copies between slices of an empty tensor, forward and backward, before AOTAutograd asks for a rule. Read first: `pad_wrapped`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .aten.pads import Wrapped, padded, padded_backward


@torch.library.custom_op("weft::pad_wrapped", mutates_args=())
def pad_wrapped(x: Tensor, widths: Sequence[int]) -> Tensor:
    """Return a dense image [N, C, ...]. widths: pixels in front of the last axis and behind it, of the one before that, and so on."""
    return _padded(x, widths)


@torch.library.custom_op("weft::pad_wrapped_backward", mutates_args=())
def pad_wrapped_backward(grad: Tensor, sizes: Sequence[int], widths: Sequence[int]) -> Tensor:
    """Return the gradient of the image. sizes: of its padded axes."""
    return _padded_backward(grad, sizes, widths)


def _padded(x: Tensor, widths: Sequence[int]) -> Tensor:
    return padded(x, _axes(x.shape[2:], widths, x.device), False)


def _padded_backward(grad: Tensor, sizes: Sequence[int], widths: Sequence[int]) -> Tensor:
    found: Tensor = padded_backward(grad, _axes(sizes, widths, grad.device), False)  # at most three places along each of three axes
    return found


def _axes(sizes: Sequence[int], widths: Sequence[int], device: torch.device) -> list[Wrapped]:
    return [Wrapped(n, front, back, device) for n, front, back in zip(sizes, widths[-2::-2], widths[::-2])]


pad_wrapped.register_fake(_padded)
pad_wrapped_backward.register_fake(_padded_backward)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given = list(inputs[0].shape[2:]), list(inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.weft.pad_wrapped_backward(grad, *ctx.given), None


pad_wrapped.register_autograd(_backward, setup_context=_save)

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.weft.pad_wrapped.default: _padded, torch.ops.weft.pad_wrapped_backward.default: _padded_backward,
}  # fmt: skip
"""For AOTAutograd."""
