"""Maxima over windows of pixels: torch's max_pool2d for AOTAutograd, as selections of looked up pixels, or reductions of large windows.

The gradient of a pixel is the sum over the results whose largest element it is. Read first: `largest`, `largest_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..windows import (
    MOST_APART, before, channels_behind, channels_in_front, counted, integers_below, is_channels_last, looked_up, pays_by_axes, wide_type,
)  # fmt: skip
from .pools import Axis, axes_of, in_format_of, per_axis

aten = torch.ops.aten


def largest(x: Tensor, size: Any, step: Any = (), pad: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False) -> Any:
    """torch's max_pool2d_with_indices: the first of the largest elements of a window, and its position in the image."""
    axes = axes_of(x, size, step, pad, ceil_mode, True) if _is_dense(dilation) else None
    if axes is None or x.dim() != 4:
        return NotImplemented
    is_last = is_channels_last(x)
    values, height = (channels_behind(x), 1) if is_last else (x, 2)
    if axes[0].size * axes[1].size <= MOST_APART:
        found = _compared
    else:
        pays = max(axis.size for axis in axes) <= MOST_APART and pays_by_axes([(axis.n, axis.count, axis.size) for axis in axes])
        found = _by_axes if pays else _reduced
    best, in_window = found(values, height, axes)
    dtype = integers_below(axes[0].n * axes[1].n)
    rows, columns = (counted(axis.count, x.device, dtype) * axis.step - axis.pad for axis in axes)
    place = (before(rows, 1 + is_last) * axes[1].n + before(columns, int(is_last)) + in_window).to(torch.int64)
    return tuple(channels_in_front(t) for t in (best, place)) if is_last else (best, place)


def _compared(values: Tensor, height: int, axes: Sequence[Axis]) -> tuple[Tensor, Tensor]:
    """Return the largest elements, and their positions in the image less that of the window's corner, by comparing the elements one by one."""
    windows = [[axis.windows(values.device, k) for k in range(axis.size)] for axis in axes]
    rows = [_inside(values, height, row, axes[0]) for row in windows[0]]
    best = _largest_of([_inside(_largest_of(rows), height + 1, column, axes[1]) for column in windows[1]])
    behind = values.dim() - height - 2
    which = _corner_places(axes, behind, values.device)
    so_far = torch.full((), float("-inf"), dtype=values.dtype, device=values.device)
    for k, row in enumerate(rows):
        for other, column in enumerate(windows[1]):
            which, so_far = _better(_inside(row, height + 1, column, axes[1]), k * axes[1].n + other, so_far, which)
    return best, which


def _corners_of(axis: Axis, device: torch.device) -> Tensor:
    """Return the first pixel inside of each window, which is the position where all are -inf."""
    return (axis.pad - counted(axis.count, device) * axis.step).clamp_min(0)


def _corner_places(axes: Sequence[Axis], behind: int, device: torch.device) -> Tensor:
    """Return the positions of these pixels in the image less those of the windows' corners, in front of `behind` axes of one element."""
    return before(_corners_of(axes[0], device), 1 + behind) * axes[1].n + before(_corners_of(axes[1], device), behind)


def _better(value: Tensor, place: Any, so_far: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place and the value of the larger one, or of what is no number."""
    is_larger = (value > so_far) | value.isnan()
    return torch.where(is_larger, place, which), torch.where(is_larger, value, so_far)


def _by_axes(values: Tensor, height: int, axes: Sequence[Axis]) -> tuple[Tensor, Tensor]:
    """Return the same as `_compared`, of the largest of each window along the rows, and their columns: windows below each other share them."""
    behind, lowest = values.dim() - height - 2, torch.full((), float("-inf"), dtype=values.dtype, device=values.device)
    columns = [_inside(values, height + 1, axes[1].windows(values.device, k), axes[1]) for k in range(axes[1].size)]
    of_rows, so_far, column = _largest_of(columns), lowest, before(_corners_of(axes[1], values.device), behind)
    for k, value in enumerate(columns):
        column, so_far = _better(value, k, so_far, column)
    places = [axes[0].windows(values.device, k) for k in range(axes[0].size)]
    rows = [_inside(of_rows, height, place, axes[0]) for place in places]
    which = _corner_places(axes, behind, values.device)
    so_far = lowest
    for k, (value, (place, _)) in enumerate(zip(rows, places)):
        which, so_far = _better(value, k * axes[1].n + column.index_select(height, place), so_far, which)
    return _largest_of(rows), which


def _inside(values: Tensor, dim: int, pixels: tuple[Tensor, Tensor], axis: Axis) -> Tensor:
    """Return the elements at these places of an axis, -inf outside of it."""
    place, is_inside = pixels
    found = values.index_select(dim, place)
    return found if axis.is_inside else torch.where(before(is_inside, values.dim() - dim - 1), found, float("-inf"))


def _largest_of(values: Sequence[Tensor]) -> Tensor:
    best = values[0]
    for value in values[1:]:
        best = torch.maximum(best, value)
    return best


def _reduced(values: Tensor, height: int, axes: Sequence[Axis]) -> tuple[Tensor, Tensor]:
    """Return the same by a reduction of each window."""
    behind = values.dim() - height - 2
    (rows, in_rows), (columns, in_columns) = (axis.windows(values.device, counted(axis.size, values.device)) for axis in axes)
    found = looked_up(values, height, [rows, columns])
    if not all(axis.is_inside for axis in axes):
        found = torch.where(before(before(in_rows, 2) & in_columns, behind), found, float("-inf"))
    order = [n for n in range(found.dim()) if n not in (height + 1, height + 3)] + [height + 1, height + 3]
    found = found.permute(order).flatten(-2)
    which, width = found.argmax(-1).to(torch.int32), axes[1].size
    row = torch.div(which, width, rounding_mode="trunc")
    return found.amax(-1), row * axes[1].n + (which - row * width)


def largest_backward(grad: Tensor, x: Tensor, size: Any, step: Any, pad: Any, dilation: Any, ceil_mode: bool, indices: Tensor) -> Any:
    """The gradient of `largest`: each pixel takes the results of the windows whose largest element it is."""
    axes = axes_of(x, size, step, pad, ceil_mode, True) if _is_dense(dilation) else None
    if axes is None or x.dim() != 4:
        return NotImplemented
    is_last = is_channels_last(x)
    values, places = (channels_behind(t) if is_last else t for t in (in_format_of(x, grad), in_format_of(x, indices)))
    is_small = axes[0].results_of_a_pixel * axes[1].results_of_a_pixel <= MOST_APART
    total = (_gathered if is_small else _summed)(values, places, 1 if is_last else 2, axes).to(x.dtype)
    return channels_in_front(total) if is_last else total


def _pixels(axes: Sequence[Axis], behind: int, device: torch.device) -> Tensor:
    """Return the positions of pixels in the image, in front of `behind` axes of one element."""
    dtype = integers_below(axes[0].n * axes[1].n)
    rows, columns = (counted(axis.n, device, dtype) for axis in axes)
    return before(rows[:, None] * axes[1].n + columns, behind)


def _gathered(grad: Tensor, places: Tensor, first: int, axes: Sequence[Axis]) -> Tensor:
    """Return the sums over the results that may have each pixel, one by one."""
    behind, wide = grad.dim() - first - 2, wide_type(grad)
    pixels, total = _pixels(axes, behind, grad.device), torch.zeros((), dtype=wide, device=grad.device)
    for k in range(axes[0].results_of_a_pixel):
        row, in_rows = axes[0].results(grad.device, k)
        of_row = [t.index_select(first, row) for t in (grad, places)]
        for other in range(axes[1].results_of_a_pixel):
            column, in_columns = axes[1].results(grad.device, other)
            value, place = (t.index_select(first + 1, column) for t in of_row)
            is_mine = (place.to(pixels.dtype) == pixels) & before(in_rows[:, None] & in_columns, behind)
            total = total + torch.where(is_mine, value.to(wide), 0.0)
    return total


def _summed(grad: Tensor, places: Tensor, first: int, axes: Sequence[Axis]) -> Tensor:
    """Return the same by a reduction."""
    behind = grad.dim() - first - 2
    (rows, in_rows), (columns, in_columns) = (axis.results(grad.device, counted(axis.results_of_a_pixel, grad.device)) for axis in axes)
    values, at = (looked_up(t, first, [rows, columns]) for t in (grad, places))
    pixels = _pixels(axes, 0, grad.device)[:, None, :, None]
    is_mine = (at.to(pixels.dtype) == before(pixels, behind)) & before(before(in_rows, 2) & in_columns, behind)
    return torch.where(is_mine, values.to(wide_type(grad)), 0.0).sum([first + 1, first + 3])


def _is_dense(dilation: Any) -> bool:
    return all(n == 1 for n in ([dilation] if isinstance(dilation, int) else dilation))


# ---------------------------------------------------------------- volumes, plane by plane
def _each_plane(x: Tensor, size: Any, step: Any, pad: Any, dilation: Any) -> tuple[list[int], list[int], list[int]] | None:
    """Return the windows within planes of a volume [N, C, D, H, W]; None if windows have several planes, as torch's can."""
    size, step, pad = (per_axis(given, 3) for given in (size, step or size, pad))
    is_flat = (size[0], step[0], pad[0]) == (1, 1, 0) and x.dim() == 5 and _is_dense(dilation) and all(isinstance(n, int) for n in x.shape)
    return (size[1:], step[1:], pad[1:]) if is_flat else None


def _corners(x: Tensor) -> Tensor:
    """Return the position in its volume of the first pixel of each plane, [D, 1, 1]."""
    return before(counted(x.shape[2], x.device, torch.int64) * (x.shape[3] * x.shape[4]), 2)


def _planes(volume: Tensor, is_last: bool) -> Tensor:
    """Return a volume [N, C, D, H, W] as images, in its memory: [N, C * D, H, W], or channels last [N * D, C, H, W]."""
    if is_last:
        return volume.contiguous(memory_format=torch.channels_last_3d).transpose(1, 2).flatten(0, 1)
    return volume.contiguous().flatten(1, 2)


def _volume(planes: Tensor, x: Tensor, is_last: bool) -> Tensor:
    """Return such images as a volume, of which x has the first axes."""
    return planes.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2) if is_last else planes.unflatten(1, x.shape[1:3])


def largest_of_planes(x: Tensor, size: Any, step: Any = (), pad: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False) -> Any:
    """torch's max_pool3d_with_indices, of windows that have one plane each."""
    windows, is_last = _each_plane(x, size, step, pad, dilation), is_channels_last(x)
    found = NotImplemented if windows is None else largest(_planes(x, is_last), *windows, (1,), ceil_mode)
    if found is NotImplemented:
        return NotImplemented
    best, place = (_volume(t, x, is_last) for t in found)
    return best, place + _corners(x)


def largest_of_planes_backward(grad: Tensor, x: Tensor, size: Any, step: Any, pad: Any, dilation: Any, ceil_mode: bool, indices: Tensor) -> Any:
    """The gradient of `largest_of_planes`."""
    windows, is_last = _each_plane(x, size, step, pad, dilation), is_channels_last(x)
    if windows is None:
        return NotImplemented
    plain, shares, places = (_planes(t, is_last) for t in (x, grad, indices - _corners(x)))
    out = largest_backward(shares, plain, *windows, (1,), ceil_mode, places)
    return out if out is NotImplemented else _volume(out, x, is_last)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.max_pool2d_with_indices.default: largest, aten.max_pool2d_with_indices_backward.default: largest_backward,
    aten.max_pool3d_with_indices.default: largest_of_planes, aten.max_pool3d_with_indices_backward.default: largest_of_planes_backward,
}  # fmt: skip
"""For AOTAutograd."""
