"""Views and factories: they move nothing, and every region that reads one has its own copy. Read first: `expand`."""

from __future__ import annotations

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
    drop = [d for d in t.dims(x, dims) if sizes[d] == 1] if dims != [] else []
    return t.ops.squeeze(x, dims=drop) if drop else x


@rule(aten.squeeze.default, cheap=True)
def squeeze_all(t: Translation, x: Operand) -> Operand:
    return squeeze(t, x, list(range(t.rank(x))))


@rule(aten.expand.default, cheap=True)
def expand(t: Translation, x: Operand, sizes: Any, **_: Any) -> Operand:
    rank, given = len(sizes), t.node.args[0].meta["val"].shape  # type: ignore[union-attr]
    lead = rank - len(given)
    shape = [x.size(i - lead) if i >= lead and (size == -1 or given[i - lead] != 1) else size for i, size in enumerate(sizes)]
    return t.ops.broadcast_in_dim(x, shape=shape, broadcast_dims=list(range(lead, rank)))


@rule(aten.permute.default, cheap=True)
def permute(t: Translation, x: Operand, dims: Any) -> Operand:
    return t.ops.permute(x, dims=list(dims))


@rule(aten.transpose.int, cheap=True)
def transpose(t: Translation, x: Operand, a: int, b: int) -> Operand:
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
    return t.ops.iota(*(t.constant(v, torch.int64) if isinstance(v, int) else v for v in (length, start, step)), dtype=t.dtype(dtype))


@rule(aten.arange.start_step, cheap=True)
def arange(t: Translation, start: Any, end: Any, step: Any = 1, **_: Any) -> Operand:
    (length,), dtype = t.node.meta["val"].shape, t.result_dtype
    if not isinstance(length, int) or dtype is not torch.int64 or length == 0:
        raise Declined("a range of symbolic length, of no elements, or not of int64")
    return t.ops.iota(*(t.constant(v, torch.int64) for v in (length, start, step)), dtype=t.dtype(dtype))
