"""Images of another size by (bi-, tri-)linear or bicubic interpolation: one operator, whose gradient gathers what each pixel went into.

torch's decomposition computes positions and weights of each result in floating point; its gradient adds to pixels that indices name: a tensor of the result's
size in float32 for each pixel that a result lies between, which torch sorts by its index. Here each result is a sum over a window of pixels, and each pixel of
the gradient a sum over the window of results that it is part of, with the same weights (`resampling.py`). Where sizes are open, or positions follow from a
scale, images are torch's, and their gradient is torch's own kernel.
Read first: `resize`, `resize_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .resampling import Axis
from .windows import sum_of_windows, wide_type


@torch.library.custom_op("weft::resize", mutates_args=())
def resize_image(x: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool, pixels: int) -> Tensor:
    """Return an image [N, C, ...] of another size. factors: how many times as many pixels each spatial axis gets; 0: as many as `sizes` says, where 0 stands
    for the others. is_aligned: the centers of the pixels in corners stay corners. pixels: between how many of an axis a result lies, 2 or 4."""
    return resize(x, sizes, factors, is_aligned, pixels)


@torch.library.custom_op("weft::resize_backward", mutates_args=())
def resize_image_backward(grad: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool, pixels: int) -> Tensor:
    """Return the gradient of the image. sizes: of its spatial axes."""
    return resize_backward(grad, sizes, factors, is_aligned, pixels)


def resize(x: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool, pixels: int) -> Tensor:
    """Return the image, in the memory format of `x`: each result takes its share of the pixels that it lies between."""
    wide = wide_type(x)
    axes = [Axis(n, m or n * f, f if f == 1 or not is_aligned else 0, is_aligned, pixels) for n, m, f in zip(x.shape[2:], sizes, factors)]
    return sum_of_windows(x, [axis.forward(wide, x.device) for axis in axes]).to(x.dtype)


def resize_backward(grad: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool, pixels: int) -> Tensor:
    """Return the gradient of the image, in the memory format of `grad`: each pixel takes the results that it is part of, times its weights."""
    wide = wide_type(grad)
    axes = [Axis(n, m, f if f == 1 or not is_aligned else 0, is_aligned, pixels) for n, m, f in zip(sizes, grad.shape[2:], factors)]
    return sum_of_windows(grad, [axis.backward(wide, grad.device) for axis in axes]).to(grad.dtype)


@resize_image.register_fake
def _(x: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool, pixels: int) -> Tensor:
    return resize(x, sizes, factors, is_aligned, pixels)


@resize_image_backward.register_fake
def _(grad: Tensor, sizes: Sequence[int], factors: Sequence[int], is_aligned: bool, pixels: int) -> Tensor:
    return resize_backward(grad, sizes, factors, is_aligned, pixels)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given = list(inputs[0].shape[2:]), list(inputs[2]), inputs[3], inputs[4]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    return torch.ops.weft.resize_backward(grad, *ctx.given), None, None, None, None


resize_image.register_autograd(_backward, setup_context=_save)


# ---------------------------------------------------------------- torch's own gradient
@torch.library.custom_op("weft::resize_by_torch", mutates_args=())
def resize_by_torch(x: Tensor, sizes: Sequence[int], scales: Sequence[float], is_aligned: bool, pixels: int) -> Tensor:
    """Return torch's image, to `sizes` or by `scales`, whose gradient is torch's kernel."""
    given = _torchs(x.shape, sizes, scales)
    out: Tensor = _torchs_op(x.dim(), pixels).default(x, given[0], is_aligned, *given[1])
    return out


def _torchs(shape: Sequence[Any], sizes: Sequence[Any], scales: Sequence[float]) -> tuple[list[Any], list[float | None]]:
    """Return the sizes of the result, and the scales as torch's ops take them."""
    from torch._decomp.decompositions import upsample_compute_output_size

    return list(upsample_compute_output_size(shape, sizes or None, scales or None)), list(scales) or [None] * (len(shape) - 2)


def _torchs_op(dims: int, pixels: int, suffix: str = "") -> Any:
    name = "upsample_bicubic2d" if pixels == 4 else {3: "upsample_linear1d", 4: "upsample_bilinear2d", 5: "upsample_trilinear3d"}[dims]
    return getattr(torch.ops.aten, name + suffix)


def _decomposed(x: Tensor, sizes: Sequence[int], scales: Sequence[float], is_aligned: bool, pixels: int) -> Tensor:
    """Return torch's image by its decomposition, which joins the ops around it."""
    from torch._decomp import decompositions

    size, each = _torchs(x.shape, sizes, scales)
    if pixels == 4:
        return decompositions.upsample_bicubic2d_default(x, size, is_aligned, *each)
    return decompositions._upsample_linear(x, size, is_aligned, each)


resize_by_torch.register_fake(_decomposed)


@torch.library.custom_op("weft::resize_by_torch_backward", mutates_args=())
def resize_by_torch_backward(grad: Tensor, shape: Sequence[int], scales: Sequence[float], is_aligned: bool, pixels: int) -> Tensor:
    """Return the gradient of an image of this shape by torch's kernel, whose own fake takes no open sizes."""
    each: list[float | None] = [*scales] or [None] * (len(shape) - 2)
    out: Tensor = _torchs_op(len(shape), pixels, "_backward").default(grad, list(grad.shape[2:]), list(shape), is_aligned, *each)
    return out.contiguous(memory_format=suggest_memory_format(grad))


@resize_by_torch_backward.register_fake
def _(grad: Tensor, shape: Sequence[int], scales: Sequence[float], is_aligned: bool, pixels: int) -> Tensor:
    return grad.new_empty(list(shape)).contiguous(memory_format=suggest_memory_format(grad))


def _save_shape(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given = list(inputs[0].shape), list(inputs[2]), *inputs[3:]


def _torchs_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    return torch.ops.weft.resize_by_torch_backward(grad, *ctx.given), None, None, None, None


resize_by_torch.register_autograd(_torchs_backward, setup_context=_save_shape)

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.weft.resize.default: resize, torch.ops.weft.resize_backward.default: resize_backward, torch.ops.weft.resize_by_torch.default: _decomposed,
}  # fmt: skip
"""For AOTAutograd."""
