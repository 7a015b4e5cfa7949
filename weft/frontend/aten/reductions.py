"""Sums, means, extrema and variances. Read first: `total`."""

from __future__ import annotations

from typing import Any

import torch

from .rules import Declined, Operand, Translation, rule

aten, prims = torch.ops.aten, torch.ops.prims


def _summed(t: Translation, x: Operand, dtype: torch.dtype | None) -> Operand:
    """The operand of a sum in the type it accumulates in: float32 for 16-bit floats, int64 for integers and bool."""
    if dtype is not None:
        x = t.to(x, dtype)
    elif not t.node.args[0].meta["val"].dtype.is_floating_point:  # type: ignore[union-attr]
        x = t.to(x, torch.int64)
    return t.wide(x)


@rule(aten.sum.dim_IntList, aten.sum.default)
def total(t: Translation, x: Operand, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Operand:
    x = _summed(t, x, dtype)
    return t.ops.sum(x, dims=t.dims(x, dims), keepdim=keepdim) if t.rank(x) else t.ops.set(x)


@rule(aten.prod.dim_int, aten.prod.default)
def prod(t: Translation, x: Operand, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Operand:
    x = _summed(t, x, dtype)
    return t.ops.prod(x, dims=t.dims(x, dims), keepdim=keepdim) if t.rank(x) else t.ops.set(x)


@rule(aten.mean.dim, aten.mean.default)
def mean(t: Translation, x: Operand, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Operand:
    """A sum over a count; 16-bit floats accumulate in float32."""
    x = t.wide(x if dtype is None else t.to(x, dtype))
    if not t.rank(x):
        return t.ops.set(x)
    over = t.dims(x, dims)
    return t.ops.truediv(t.ops.sum(x, dims=over, keepdim=keepdim), t.count(x, over))


@rule(aten.amax.default)
def amax(t: Translation, x: Operand, dims: Any = (), keepdim: bool = False) -> Operand:
    return t.ops.max(x, dims=t.dims(x, list(dims)), keepdim=keepdim) if t.rank(x) else t.ops.set(x)


@rule(aten.amin.default)
def amin(t: Translation, x: Operand, dims: Any = (), keepdim: bool = False) -> Operand:
    return t.ops.min(x, dims=t.dims(x, list(dims)), keepdim=keepdim) if t.rank(x) else t.ops.set(x)


@rule(aten.max.default)
def max_all(t: Translation, x: Operand) -> Operand:
    return amax(t, x)


@rule(aten.min.default)
def min_all(t: Translation, x: Operand) -> Operand:
    return amin(t, x)


def _first_place(t: Translation, x: Operand, extremum: Operand, dim: int, keepdim: bool) -> Operand:
    """The first position along an axis at which x is its extremum (with the axis kept); the first NaN, if there is any."""
    is_there = t.ops.eq(x, extremum)
    if t.node.args[0].meta["val"].dtype.is_floating_point:  # type: ignore[union-attr]
        is_there = t.ops.logical_or(is_there, t.ops.ne(x, x))
    zero, one = (t.constant(n, torch.int64) for n in (0, 1))
    place = t.ops.iota(x.size(dim), zero, one, dtype=t.dtype(torch.int64))
    place = t.ops.broadcast(place, is_broadcast_dim=[d != dim for d in range(t.rank(x))])
    return t.ops.min(t.ops.where(is_there, place, x.size(dim)), dims=[dim], keepdim=keepdim)


def _has_axes(node: torch.fx.Node) -> str:
    given: Any = node.args
    dim, keepdim = (*given[1:], None, False)[:2]
    if not given[0].meta["val"].dim():
        return "an extremum of a tensor without axes"
    return "an extremum over all axes that keeps them" if dim is None and keepdim else ""


@rule(aten.max.dim, aten.min.dim, claims=_has_axes)
def extremum_and_place(t: Translation, x: Operand, dim: int, keepdim: bool = False) -> Operand:
    """The extremum, and the first position that has it."""
    dim, fold = dim % t.rank(x), t.ops.max if t.node.target is aten.max.dim else t.ops.min
    kept = fold(x, dims=[dim], keepdim=True)
    return kept if keepdim else t.ops.squeeze(kept, dims=[dim]), _first_place(t, x, kept, dim, keepdim)


SHORT_ROW = 64
"""Elements up to which a row, such as a window of pixels, is read once for its extremum and the position: threads that have whole rows have no use for a
second pass over them."""


@rule(aten.argmax.default, aten.argmin.default, claims=_has_axes)
def place_of_extremum(t: Translation, x: Operand, dim: int | None = None, keepdim: bool = False) -> Operand:
    """The first position of an extremum; without `dim` among all elements in their order, in one reading."""
    if dim is None and not keepdim:
        return t.ops.argmax(x) if t.node.target is aten.argmax.default else t.ops.argmin(x)
    if dim is None and t.rank(x) > 1:
        x = t.ops.reshape(x, new_shape=[t.count(x, list(range(t.rank(x))))])
    dim, is_max = (dim or 0) % t.rank(x), t.node.target is aten.argmax.default
    extent = x.size(dim).sym
    if extent.is_const and extent.value <= SHORT_ROW:
        return (t.ops.argmax if is_max else t.ops.argmin)(x, dim, keepdim)
    return _first_place(t, x, (t.ops.max if is_max else t.ops.min)(x, dims=[dim], keepdim=True), dim, keepdim)


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def any_of(t: Translation, x: Operand, dims: Any = None, keepdim: bool = False) -> Operand:
    x = t.to(x, torch.bool)
    return t.ops.any(x, t.dims(x, dims), keepdim) if t.rank(x) else t.ops.set(x)


@rule(aten.all.default, aten.all.dim, aten.all.dims)
def all_of(t: Translation, x: Operand, dims: Any = None, keepdim: bool = False) -> Operand:
    x = t.to(x, torch.bool)
    return t.ops.all(x, t.dims(x, dims), keepdim) if t.rank(x) else t.ops.set(x)


def _correction(value: Any) -> Any:
    value = 1 if value is None else value
    if value != int(value):
        raise Declined(f"a variance with the correction {value}")
    return int(value)


@rule(aten.var.correction)
def var(t: Translation, x: Operand, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Operand:
    x = t.wide(x)
    return t.ops.var(x, dims=t.dims(x, dims), correction=_correction(correction), keepdim=keepdim)


@rule(aten.var_mean.correction)
def var_mean(t: Translation, x: Operand, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Operand:
    x = t.wide(x)
    return tuple(t.ops.var_mean(x, dims=t.dims(x, dims), correction=_correction(correction), keepdim=keepdim))
