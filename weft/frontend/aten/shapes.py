"""Views and factories: they move nothing, and every region that reads one has its own copy. Read first: `expand`."""

from __future__ import annotations

import math
from typing import Any

import torch

from .rules import Declined, Operand, Translation, rule

aten, prims = torch.ops.aten, torch.ops.prims


# ---------------------------------------------------------------- views
@rule(aten.unsqueeze.default, cheap=True)
def unsqueeze(t: Translation, x: Operand, dim: int) -> Operand:
    rank = t.rank(x) + 1
    return t.ops.broadcast(x, is_broadcast_dim=[i == dim % rank for i in range(rank)])


@rule(aten.squeeze.dim, aten.squeeze.dims, cheap=True)
def squeeze(t: Translation, x: Operand, dims: Any) -> Operand:
    sizes = t.node.args[0].meta["val"].shape  # type: ignore[union-attr]
    drop = [d for d in t.dims(x, dims) if d < len(sizes) and sizes[d] == 1] if dims != [] else []
    return t.ops.squeeze(x, dims=drop) if drop else x


@rule(aten.squeeze.default, cheap=True)
def squeeze_all(t: Translation, x: Operand) -> Operand:
    return squeeze(t, x, list(range(t.rank(x))))


@rule(aten.expand.default, cheap=True)
def expand(t: Translation, x: Operand, sizes: Any, **_: Any) -> Operand:
    """Axes of size 1 get a size; new axes come first."""
    rank, given = len(sizes), t.node.args[0].meta["val"].shape  # type: ignore[union-attr]
    lead = rank - len(given)
    shape = [x.size(i - lead) if i >= lead and (size == -1 or given[i - lead] != 1) else size for i, size in enumerate(sizes)]
    return t.ops.broadcast_in_dim(x, shape=shape, broadcast_dims=list(range(lead, rank)))


@rule(aten.permute.default, cheap=True)
def permute(t: Translation, x: Operand, dims: Any) -> Operand:
    return t.ops.permute(x, dims=list(dims))


@rule(aten.transpose.int, cheap=True)
def transpose(t: Translation, x: Operand, a: int, b: int) -> Operand:
    """Two axes change places."""
    order = list(range(t.rank(x)))
    if order:
        order[a], order[b] = order[b], order[a]
    return t.ops.permute(x, dims=order) if len(order) > 1 else x


@rule(aten.t.default, cheap=True)
def t_(t: Translation, x: Operand) -> Operand:
    return t.ops.permute(x, dims=[1, 0]) if t.rank(x) == 2 else x


@rule(aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.clone.default, cheap=True)
def identity(t: Translation, x: Operand, **_: Any) -> Operand:
    return x


def _static(node: torch.fx.Node) -> str:
    sizes = (*node.meta["val"].shape, *node.args[0].meta["val"].shape)  # type: ignore[union-attr]
    return "" if all(isinstance(s, int) and s > 0 for s in sizes) else "a reshape with sizes that are not static"


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, cheap=True, claims=_static)
def view(t: Translation, x: Operand, sizes: Any) -> Operand:
    return t.ops.reshape(x, new_shape=[int(s) for s in t.node.meta["val"].shape])


def _bound(value: Any, size: int, default: int) -> int:
    """Normalize one end of a slice as torch does: negative from the end, cut to the axis."""
    value = default if value is None else value
    return min(max(value + size if value < 0 else value, 0), size)


def _static_slice(node: torch.fx.Node) -> str:
    step = node.args[4] if len(node.args) > 4 else 1
    if step != 1:
        return f"a slice with the step {step}"
    return _static(node) or ("" if all(isinstance(a, int) or a is None for a in node.args[1:]) else "a slice with symbolic ends")


def cut(t: Translation, x: Operand, dim: int, start: int, end: int) -> Operand:
    """x[..., start:end, ...] along one axis."""
    sizes = [int(s) for s in _sizes(x)]
    starts, ends = [0] * len(sizes), list(sizes)
    starts[dim], ends[dim] = start, end
    return t.ops.slice(x, start_indices=starts, end_indices=ends) if (start, end) != (0, sizes[dim]) else x


def _sizes(x: Operand) -> list[int]:
    return [extent.sym.value for extent in x.shape()]


@rule(aten.slice.Tensor, cheap=True, claims=_static_slice)
def slice_(t: Translation, x: Operand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Operand:
    dim %= t.rank(x)
    size = t.node.args[0].meta["val"].shape[dim]  # type: ignore[union-attr]
    return cut(t, x, dim, _bound(start, size, 0), _bound(end, size, size))


@rule(aten.select.int, cheap=True, claims=lambda node: _static(node) if node.meta["val"].dim() else "a result without axes")
def select(t: Translation, x: Operand, dim: int, index: int) -> Operand:
    """One position along an axis, which goes."""
    dim %= t.rank(x)
    size = t.node.args[0].meta["val"].shape[dim]  # type: ignore[union-attr]
    index %= size
    return t.ops.squeeze(cut(t, x, dim, index, index + 1), dims=[dim])


def _static_parts(node: torch.fx.Node) -> str:
    sizes = [s for v in node.meta["val"] for s in v.shape]
    return "" if all(isinstance(s, int) and s > 0 for s in sizes) else "a split with sizes that are not static"


@rule(aten.split_with_sizes.default, aten.split.Tensor, aten.unbind.int, cheap=True, claims=_static_parts)
def split(t: Translation, x: Operand, size: Any = 0, dim: int = 0) -> Operand:
    """Parts along an axis; for unbind, of one position each."""
    parts = t.node.meta["val"]
    is_unbind = t.node.target is aten.unbind.int
    dim = (size if is_unbind else dim) % t.rank(x)
    out, start = [], 0
    for part in parts:
        width = 1 if is_unbind else int(part.shape[dim])
        piece = cut(t, x, dim, start, start + width)
        out.append(t.ops.squeeze(piece, dims=[dim]) if is_unbind else piece)
        start += width
    return tuple(out)


# ---------------------------------------------------------------- what moves data
def _static_all(node: torch.fx.Node) -> str:
    values = [node.meta["val"], *(n.meta.get("val") for n in node.all_input_nodes)]
    return "" if all(isinstance(s, int) and s > 0 for v in values for s in v.shape) else "sizes that are not static"


@rule(aten.cat.default, claims=_static_all)
def cat(t: Translation, tensors: list[Operand], dim: int = 0) -> Operand:
    dtype = t.result_dtype
    return t.ops.cat([t.to(x, dtype) for x in tensors], dim=dim % t.rank(tensors[0]))


@rule(aten.constant_pad_nd.default, claims=_static_all)
def constant_pad_nd(t: Translation, x: Operand, pad: list[int], value: Any = 0) -> Operand:
    dtype = t.result_dtype
    return t.ops.pad(t.to(x, dtype), pad_widths=list(pad), value=t.constant(value, dtype))


@rule(aten.slice_scatter.default, claims=lambda node: _static_all(node) or _static_slice_scatter(node))
def slice_scatter(t: Translation, base: Operand, x: Operand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Operand:
    """A part of `base` replaced: what is in front of it, the new part, what is behind."""
    dim, dtype = dim % t.rank(base), t.result_dtype
    size = t.node.args[0].meta["val"].shape[dim]  # type: ignore[union-attr]
    first, last = _bound(start, size, 0), _bound(end, size, size)
    before = [cut(t, base, dim, 0, first)] if first else []
    after = [cut(t, base, dim, last, size)] if last < size else []
    parts = [t.to(p, dtype) for p in (*before, x, *after)]
    return t.ops.cat(parts, dim=dim) if len(parts) > 1 else t.ops.set(parts[0])


def _static_slice_scatter(node: torch.fx.Node) -> str:
    return "" if (node.args[5] if len(node.args) > 5 else 1) == 1 else "a scatter with a step"


@rule(aten.embedding.default, claims=_static_all)
def embedding(t: Translation, weight: Operand, indices: Operand, padding_idx: int = -1, *_: Any) -> Operand:
    """Rows of a table."""
    sizes = [int(s) for s in t.node.args[1].meta["val"].shape]  # type: ignore[union-attr]
    if len(sizes) == 1:
        return t.ops.index_select(weight, indices, 0)
    if not sizes:
        raise Declined("a single index")
    flat = t.ops.index_select(weight, t.ops.reshape(indices, new_shape=[math.prod(sizes)]), 0)
    return t.ops.reshape(flat, new_shape=[*sizes, _sizes(weight)[1]])


# ---------------------------------------------------------------- factories
def _shape(t: Translation, sizes: Any) -> list[Any]:
    if any(isinstance(s, int) and s == 0 for s in sizes):
        raise Declined("an empty tensor")
    return list(sizes)


@rule(aten.full.default, cheap=True)
def full(t: Translation, sizes: Any, value: Any, **_: Any) -> Operand:
    dtype = t.result_dtype
    return t.ops.full(_shape(t, sizes), t.constant(value, dtype), dtype=t.dtype(dtype)) if sizes else t.constant(value, dtype)


@rule(aten.scalar_tensor.default, cheap=True)
def scalar_tensor(t: Translation, value: Any, **_: Any) -> Operand:
    return t.constant(value, t.result_dtype)


def _like(t: Translation, x: Operand, value: Any) -> Operand:
    dtype = t.result_dtype
    return t.ops.full(x.shape(), t.constant(value, dtype), dtype=t.dtype(dtype)) if t.rank(x) else t.constant(value, dtype)


@rule(aten.full_like.default, cheap=True)
def full_like(t: Translation, x: Operand, value: Any, **_: Any) -> Operand:
    return _like(t, x, value)


@rule(aten.zeros_like.default, cheap=True)
def zeros_like(t: Translation, x: Operand, **_: Any) -> Operand:
    return _like(t, x, 0)


@rule(aten.ones_like.default, cheap=True)
def ones_like(t: Translation, x: Operand, **_: Any) -> Operand:
    return _like(t, x, 1)


@rule(prims.iota.default, cheap=True)
def iota(t: Translation, length: Any, *, start: Any, step: Any, dtype: torch.dtype, **_: Any) -> Operand:
    length, start, step = (t.constant(v, torch.int64) if isinstance(v, int) else v for v in (length, start, step))
    return t.ops.iota(length, start, step, dtype=t.dtype(dtype))


@rule(aten.arange.start_step, cheap=True)
def arange(t: Translation, start: Any, end: Any, step: Any = 1, **_: Any) -> Operand:
    """Integers from `start` in steps. Errors: Declined for other types."""
    (length,), dtype = t.node.meta["val"].shape, t.result_dtype
    if not isinstance(length, int) or dtype is not torch.int64 or length == 0:
        raise Declined("a range of symbolic length, of no elements, or not of int64")
    return t.ops.iota(t.constant(length, torch.int64), t.constant(start, torch.int64), t.constant(step, torch.int64), dtype=t.dtype(dtype))
