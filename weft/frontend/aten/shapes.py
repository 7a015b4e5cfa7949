"""Views and factories: they move nothing, and every region that reads one has its own copy. Read first: `expand`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...ir.values import TensorView
from ...ops.build import logical_axes
from .rules import Declined, Operand, Translation, hint, meta_of, rule

aten, prims = torch.ops.aten, torch.ops.prims


# ---------------------------------------------------------------- views
@rule(aten.unsqueeze.default, cheap=True, takes_narrow=True)
def unsqueeze(t: Translation, x: Operand, dim: int) -> Operand:
    """An axis of size 1; a number becomes a tensor."""
    if not isinstance(x, TensorView):
        return _filled(t, x)
    rank = t.rank(x) + 1
    return t.ops.broadcast(x, is_broadcast_dim=[i == dim % rank for i in range(rank)])


def _filled(t: Translation, number: Operand) -> Operand:
    """A tensor of the node's sizes filled with one number."""
    value = t.node.meta["val"]
    return t.ops.full(t.extents(value.shape), t.constant(number, value.dtype) if isinstance(number, (bool, int, float)) else number, dtype=t.dtype(value.dtype))


@rule(aten.squeeze.dim, aten.squeeze.dims, cheap=True, takes_narrow=True)
def squeeze(t: Translation, x: Operand, dims: Any) -> Operand:
    sizes = t.node.args[0].meta["val"].shape  # type: ignore[union-attr]
    drop = [d for d in t.dims(x, dims) if d < len(sizes) and sizes[d] == 1] if dims != [] else []
    return t.ops.squeeze(x, dims=drop) if drop else x


@rule(aten.squeeze.default, cheap=True, takes_narrow=True)
def squeeze_all(t: Translation, x: Operand) -> Operand:
    return squeeze(t, x, list(range(t.rank(x))))


@rule(aten.expand.default, cheap=True, takes_narrow=True)
def expand(t: Translation, x: Operand, sizes: Any, **_: Any) -> Operand:
    """Axes of size 1 get a size; new axes come first."""
    if not isinstance(x, TensorView):
        return _filled(t, x) if sizes else x
    rank, given = len(sizes), t.node.args[0].meta["val"].shape  # type: ignore[union-attr]
    lead, wanted = rank - len(given), t.node.meta["val"].shape
    shape = [x.size(i - lead) if i >= lead and not statically_known_true(given[i - lead] == 1) else t.extent(wanted[i]) for i in range(rank)]
    return t.ops.broadcast_in_dim(x, shape=shape, broadcast_dims=list(range(lead, rank)))


@rule(aten.permute.default, cheap=True, takes_narrow=True)
def permute(t: Translation, x: Operand, dims: Any) -> Operand:
    t.is_reordered = True
    return t.ops.permute(x, dims=list(dims))


@rule(aten.transpose.int, cheap=True, takes_narrow=True)
def transpose(t: Translation, x: Operand, a: int, b: int) -> Operand:
    """Exchange two axes."""
    order = list(range(t.rank(x)))
    if order:
        order[a], order[b] = order[b], order[a]
    t.is_reordered = True
    return t.ops.permute(x, dims=order) if len(order) > 1 else x


@rule(aten.t.default, cheap=True, takes_narrow=True)
def t_(t: Translation, x: Operand) -> Operand:
    t.is_reordered = True
    return t.ops.permute(x, dims=[1, 0]) if t.rank(x) == 2 else x


@rule(
    aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.clone.default, aten.detach_copy.default, aten.alias_copy.default,
    cheap=True, takes_narrow=True,
)  # fmt: skip
def identity(t: Translation, x: Operand, **_: Any) -> Operand:
    return x


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, cheap=True, takes_narrow=True)
def view(t: Translation, x: Operand, sizes: Any) -> Operand:
    if not isinstance(x, TensorView):
        return _filled(t, x) if t.node.meta["val"].dim() else x
    return t.ops.reshape(x, new_shape=t.extents(t.node.meta["val"].shape))


def _bound(value: Any, size: Any, default: Any) -> Any:
    """Normalize one end of a slice as torch does: negative from the end, cut to the axis. Sizes and ends may be symbols of torch: torch's own guards then
    ensure on which side of 0 and of the size the end is, because the size of its result depends on it."""
    value = default if value is None else value
    if not isinstance(value, int) or not isinstance(size, int):
        known = hint(value)
        return 0 if known < -hint(size) else size if known >= hint(size) else value + size if known < 0 else value
    return min(max(value + size if value < 0 else value, 0), size)


def cut(t: Translation, x: Operand, dim: int, start: Any, end: Any) -> Operand:
    """x[..., start:end, ...] along one axis; ends are numbers or symbols of torch's."""
    starts: list[Any] = [0] * t.rank(x)
    ends = [x.size(d) for d in range(t.rank(x))]
    starts[dim], ends[dim] = t.extent(start), t.extent(end)
    is_symbolic = not (isinstance(start, int) and isinstance(end, int))
    return t.ops.slice(x, start_indices=starts, end_indices=ends, manual_normalization=is_symbolic)


def _size(node: torch.fx.Node, dim: int) -> Any:
    """The size of a node's first argument."""
    source: Any = node.args[0]
    return source.meta["val"].shape[dim]


def _range(node: torch.fx.Node, dim: int, place: int) -> tuple[Any, Any, Any]:
    """First position, end and step of a slice, whose arguments begin at `place`."""
    given = list(node.args[place:])
    start, end, step = given + [None, None, 1][len(given) :]
    size = _size(node, dim)
    return _bound(meta_of(start), size, 0), _bound(meta_of(end), size, size), step


@rule(aten.slice.Tensor, cheap=True, takes_narrow=True)
def slice_(t: Translation, x: Operand, dim: int = 0, *_: Any) -> Operand:
    """Steps above 1: a range whose length is a multiple of the step, reshaped into two axes, of which one position of the second is selected: of the whole axis
    where that is such a range, so that an input stays a view. A lookup if sizes are symbolic."""
    dim %= t.rank(x)
    first, last, step = _range(t.node, dim, 2)
    size, count = _size(t.node, dim), t.node.meta["val"].shape[dim]
    if step == 1:
        return x if isinstance(first, int) and (first, last) == (0, size) else cut(t, x, dim, first, last)
    if not all(isinstance(v, int) for v in (first, last, size)):
        return t.ops.index_select(x, _positions(t, count, first, step), dim)
    place = first % step if first - first % step + count * step <= size else 0
    begin, end = first - place, first - place + count * step
    if end > size:
        x = t.ops.pad(x, pad_widths=[0] * (2 * (t.rank(x) - dim - 1)) + [0, end - size])
    ranges = x if (begin, end) == (0, size) else cut(t, x, dim, begin, end)
    shape = t.extents(t.node.meta["val"].shape)
    folded = t.ops.reshape(ranges, new_shape=[*shape[: dim + 1], step, *shape[dim + 1 :]])
    return t.ops.squeeze(cut(t, folded, dim + 1, place, place + 1), dims=[dim + 1])


@rule(aten.select.int, cheap=True, takes_narrow=True, claims=lambda node: "" if node.meta["val"].dim() else "a result without axes")
def select(t: Translation, x: Operand, dim: int, index: Any) -> Operand:
    """One position along an axis, which is removed."""
    dim %= t.rank(x)
    size, index = t.node.args[0].meta["val"].shape[dim], meta_of(t.node.args[2])  # type: ignore[union-attr]
    index = _bound(index, size, 0)
    return t.ops.squeeze(cut(t, x, dim, index, index + 1), dims=[dim])


@rule(aten.split_with_sizes.default, aten.split.Tensor, aten.unbind.int, cheap=True, takes_narrow=True)
def split(t: Translation, x: Operand, size: Any = 0, dim: int = 0) -> Operand:
    """Parts along an axis; for unbind, of one position each."""
    parts = t.node.meta["val"]
    is_unbind = t.node.target is aten.unbind.int
    dim = (size if is_unbind else dim) % t.rank(x)
    out: list[Any] = []
    start: Any = 0
    for part in parts:
        width = 1 if is_unbind else part.shape[dim]
        piece = cut(t, x, dim, start, start + width)
        out.append(t.ops.squeeze(piece, dims=[dim]) if is_unbind else piece)
        start += width
    return tuple(out)


# ---------------------------------------------------------------- what moves data
@rule(aten.cat.default, takes_narrow=True)
def cat(t: Translation, tensors: list[Operand], dim: int = 0) -> Operand:
    """An axis that is expanded in all parts becomes a real one, as in torch's result."""
    dtype, dim = t.result_dtype, dim % t.rank(tensors[0])
    first, *others = (t.to(x, dtype) for x in tensors)
    for other, axes in enumerate(zip(*(logical_axes(x) for x in (first, *others)))):
        if other != dim and all(axis.expanded_extent is not None for axis in axes):
            first = t.with_elements(first, other)
    return t.ops.cat([first, *others], dim=dim)


@rule(aten.constant_pad_nd.default)
def constant_pad_nd(t: Translation, x: Operand, pad: list[int], value: Any = 0) -> Operand:
    dtype = t.result_dtype
    widths = [t.extent(meta_of(w)) for w in t.node.args[1]]  # type: ignore[union-attr]
    return t.ops.pad(t.to(x, dtype), pad_widths=widths, value=t.constant(value, dtype))


@rule(aten.slice_scatter.default)
def slice_scatter(t: Translation, base: Operand, x: Operand, dim: int = 0, *_: Any) -> Operand:
    """`base` with a part replaced: the part before it, the new part, the part after it. With a step, each new element is followed by step - 1 old ones."""
    dim, dtype = dim % t.rank(base), t.result_dtype
    first, last, step = _range(t.node, dim, 3)
    size = _size(t.node, dim)
    x, base = t.to(x, dtype), t.to(base, dtype)
    if step != 1:
        return _every_few(t, base, x, dim, size, first, step)
    before = [] if isinstance(first, int) and first == 0 else [cut(t, base, dim, 0, first)]
    after = [] if statically_known_true(last == size) else [cut(t, base, dim, last, size)]
    parts = [*before, x, *after]
    return t.ops.cat(parts, dim=dim) if len(parts) > 1 else t.ops.set(parts[0])


def _every_few(t: Translation, base: Operand, x: Operand, dim: int, size: Any, first: Any, step: Any) -> Operand:
    count = t.node.args[1].meta["val"].shape[dim]  # type: ignore[union-attr]
    if isinstance(count, int) and count == 0:
        return t.ops.set(base)
    if not all(isinstance(v, int) for v in (size, first, count, step)) or first >= step or count * step != size:
        return _every_few_of_any(t, base, x, dim, size, first, count, step)
    shape = [x.size(d) for d in range(t.rank(x))]  # one of each few, over the whole axis: two axes, and views of what comes in and goes out
    wide = t.ops.broadcast(x, is_broadcast_dim=[d == dim + 1 for d in range(len(shape) + 1)])
    folded = t.ops.reshape(base, new_shape=[*shape[: dim + 1], step, *shape[dim + 1 :]])
    is_new = t.ops.broadcast(t.ops.eq(_positions(t, step, 0, 1), first), is_broadcast_dim=[d != dim + 1 for d in range(len(shape) + 1)])
    return t.ops.reshape(t.ops.where(is_new, wide, folded), new_shape=[*shape[:dim], size, *shape[dim + 1 :]])


def _positions(t: Translation, count: Any, first: Any, step: Any) -> Operand:
    """first, first + step, ...: `count` integers."""
    length, start, by = (t.constant(v, torch.int64) if isinstance(v, int) else v for v in t.extents((count, first, step)))
    return t.ops.iota(length, start, by, dtype=t.dtype(torch.int64))


def _every_few_of_any(t: Translation, base: Operand, x: Operand, dim: int, size: Any, first: Any, count: Any, step: int) -> Operand:
    """As `_every_few`, by lookups: sizes may be symbols."""
    far = t.ops.sub(_positions(t, size, 0, 1), t.extent(first))
    is_inside = t.ops.bitwise_and(t.ops.ge(far, 0), t.ops.lt(far, t.ops.mul(t.constant(step, torch.int64), t.extent(count))))
    is_new = t.ops.bitwise_and(t.ops.eq(t.ops.remainder(far, step), 0), is_inside)
    spread = t.ops.index_select(x, t.ops.where(is_new, t.ops.div(far, step), 0), dim)
    return t.ops.where(t.ops.broadcast(is_new, is_broadcast_dim=[d != dim for d in range(t.rank(x))]), spread, base)


@rule(aten.copy.default)
def copy(t: Translation, into: Operand, x: Operand, *_: Any) -> Operand:
    """The values of x with the type and sizes of `into`."""
    value = t.node.meta["val"]
    x = t.to(x, value.dtype)
    if not isinstance(x, TensorView):
        raise Declined("a copy of a number")
    if value.dim() == 0:
        return t.ops.set(x)
    lead = value.dim() - t.rank(x)
    return t.ops.set(t.ops.broadcast_in_dim(x, shape=t.extents(value.shape), broadcast_dims=list(range(lead, value.dim()))))


@rule(aten.repeat.default)
def repeat(t: Translation, x: Operand, counts: Any) -> Operand:
    """Each axis becomes two: the repetitions, and its elements."""
    shape = [1] * (len(counts) - t.rank(x)) + [x.size(d) for d in range(t.rank(x))]
    x = t.ops.broadcast(x, is_broadcast_dim=[i % 2 == 0 or i // 2 < len(counts) - t.rank(x) for i in range(2 * len(counts))])
    wide = [extent for count, size in zip(t.node.args[1], shape) for extent in (t.extent(meta_of(count)), size)]  # type: ignore[arg-type]
    wide = [t.constant(e, torch.int64) if isinstance(e, int) else e for e in wide]
    return t.ops.set(t.ops.reshape(t.ops.expand(x, wide), new_shape=t.extents(t.node.meta["val"].shape)))


@rule(aten.flip.default)
def flip(t: Translation, x: Operand, dims: Any) -> Operand:
    """Reverse axes, by lookups."""
    for dim in (d % t.rank(x) for d in dims):
        count = x.size(dim)
        index = t.ops.iota(count, t.ops.sub(count, 1), t.constant(-1, torch.int64), dtype=t.dtype(torch.int64))
        x = t.ops.take_along_axis(x, t.ops.broadcast(index, is_broadcast_dim=[d != dim for d in range(t.rank(x))]), dim)
    return x if dims else t.ops.set(x)


# ---------------------------------------------------------------- factories
def _shape(t: Translation, sizes: Any) -> list[Any]:
    return t.extents(t.node.meta["val"].shape)


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


@rule(aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default, aten.new_empty.default, aten.new_empty_strided.default, cheap=True)
def empty(t: Translation, *_: Any, **__: Any) -> Operand:
    """Memory that nothing has written: zeros, most of which what is assigned to it replaces."""
    value = t.node.meta["val"]
    return _filled(t, 0) if value.dim() else t.constant(0, value.dtype)


@rule(prims.iota.default, cheap=True)
def iota(t: Translation, length: Any, *, start: Any, step: Any, dtype: torch.dtype, **_: Any) -> Operand:
    (count,) = t.node.meta["val"].shape
    length, start, step = (t.constant(v, torch.int64) if isinstance(v, int) else v for v in (t.extent(count), start, step))
    return t.ops.iota(length, start, step, dtype=t.dtype(dtype))


@rule(aten.arange.start_step, cheap=True)
def arange(t: Translation, start: Any, end: Any, step: Any = 1, **_: Any) -> Operand:
    """Numbers from `start` in steps, in any type. Floats are start + i * step in float32, or in float64 for results in float64, as torch's kernel computes
    them on a GPU. Errors: Declined for floats whose value is open, and for integers in steps that are not whole."""
    (length,) = t.node.meta["val"].shape
    first, by = (meta_of(v) for v in (t.node.args[0], t.node.args[2] if len(t.node.args) > 2 else step))
    if any(isinstance(v, torch.SymFloat) for v in (first, by)):
        raise Declined("a range whose start or step is an open float")
    if isinstance(first, float) or isinstance(by, float):
        if not t.result_dtype.is_floating_point:
            raise Declined("a range of integers in steps that are floats")
        (count,) = t.extents((length,))
        places = t.ops.iota(t.constant(count, torch.int64) if isinstance(count, int) else count, dtype=t.dtype(torch.int64))
        computed = torch.float64 if t.result_dtype is torch.float64 else torch.float32
        first, by = (float(v) if isinstance(v, (int, float)) else t.extent(v) for v in (first, by))
        return t.to(t.ops.add(t.ops.mul(t.to(places, computed), by), first), t.result_dtype)
    count, first, by = (t.constant(v, torch.int64) if isinstance(v, int) else v for v in t.extents((length, first, by)))
    return t.to(t.ops.iota(count, first, by, dtype=t.dtype(torch.int64)), t.result_dtype)


def eye(rows: Any, columns: Any = None, *, dtype: Any = None, layout: Any = None, device: Any = None, **_: Any) -> Any:
    """Ones where both positions are equal. torch would not compute the op again: a backward would read all of it from memory. Its decomposition counts in 16
    bits without a sign, unlike its own `arange`."""
    if layout not in (None, torch.strided):
        return NotImplemented
    here, there = (torch.arange(n, device=device) for n in (rows, rows if columns is None else columns))
    return (here[:, None] == there).to(dtype or torch.get_default_dtype())


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {aten.eye.default: eye, aten.eye.m: eye}
"""For AOTAutograd."""
