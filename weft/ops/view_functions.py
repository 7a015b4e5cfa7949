"""The front end's functions for views: reshape, slice, pad, cat, triu.

Owns the checks of their arguments' kinds. Read first: `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir.fusion import Fusion
from ..ir.values import TensorView
from . import arguments as given
from . import reshape as reshaping
from . import resize


def reshape(fusion: Fusion, arg: Any, new_shape: Any) -> TensorView:
    """Return arg under new_shape, in row-major order; one size may be -1."""
    return reshaping.reshape(fusion, given.tensor("reshape", "arg", arg), given.extents(fusion, "reshape", "new_shape", new_shape))


def slice_(fusion: Fusion, arg: Any, start_indices: Any, end_indices: Any, strides: Any = None, manual_normalization: Any = False) -> TensorView:
    """Return arg from start_indices to end_indices; strides are all 1. manual_normalization: 0 <= start <= end <= size is promised."""
    tensor = given.tensor("slice", "arg", arg)
    starts, ends = given.extents(fusion, "slice", "start_indices", start_indices), given.extents(fusion, "slice", "end_indices", end_indices)
    steps = None if strides is None else given.extents(fusion, "slice", "strides", strides)
    return resize.slice_(fusion, tensor, starts, ends, steps, given.boolean("slice", "manual_normalization", manual_normalization))


def pad(fusion: Fusion, arg: Any, pad_widths: Any, value: Any = None) -> TensorView:
    """Return arg with new elements around it: pad_widths has two widths per axis, innermost axis first; negative ones crop."""
    fill = None if value is None else given.scalar("pad", "value", value)
    return resize.pad(fusion, given.tensor("pad", "arg", arg), given.extents(fusion, "pad", "pad_widths", pad_widths), fill)


def cat(fusion: Fusion, tensors: Any, dim: Any = 0, manual_padding: Any = False) -> TensorView:
    """Return the tensors one behind the other along dim. manual_padding: they are results of pad that have the result's shape."""
    if isinstance(tensors, TensorView) or not isinstance(tensors, Sequence):
        raise given.wrong("cat", "tensors", "a list or tuple of TensorViews", tensors)
    members = [given.tensor("cat", f"tensors[{i}]", t) for i, t in enumerate(tensors)]
    return resize.cat(fusion, members, given.integer("cat", "dim", dim), given.boolean("cat", "manual_padding", manual_padding))


def triu(fusion: Fusion, arg: Any, diagonal: Any = 0) -> TensorView:
    """Return arg with zeros where column - row < diagonal."""
    return resize.triu(fusion, given.tensor("triu", "arg", arg), given.extents(fusion, "triu", "diagonal", [diagonal])[0])


FUNCTIONS: dict[str, Callable[..., TensorView]] = {"reshape": reshape, "slice": slice_, "pad": pad, "cat": cat, "triu": triu}
