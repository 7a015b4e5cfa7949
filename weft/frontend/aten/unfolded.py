"""Windows of an axis that may overlap (`Tensor.unfold`): frames of audio, patches of series and images.

A window's elements are looked up where they are read. torch adds the gradient up by a sorted index; here each element of the axis adds what the windows over
it have, in float32 or wider. Read first: `unfold`, `unfold_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...ops.build import logical_axes
from ..windows import MOST_APART, before, counted, integers_below, wide_type
from .rules import Operand, Translation, meta_of, rule

aten = torch.ops.aten


@rule(aten.unfold.default, cheap=True, claims=lambda node: "" if meta_of(node.args[0]).dim() else "a tensor without axes")
def unfold(t: Translation, x: Operand, dim: int, size: int, step: int) -> Operand:
    """Windows of `size` elements, `step` apart, along an axis: it becomes that of the windows, and their elements are the last axis."""
    dim %= t.rank(x)
    value = t.node.meta["val"]
    count, of_input = value.shape[dim], meta_of(t.node.args[0]).shape[dim]
    kind = t.dtype(integers_below(of_input) if isinstance(of_input, int) else torch.int64)
    first = t.ops.mul(t.ops.iota(_number(t, count), dtype=kind), step)
    places = t.ops.add(t.ops.broadcast(first, is_broadcast_dim=[False, True]), t.ops.broadcast(t.ops.iota(size, dtype=kind), is_broadcast_dim=[True, False]))
    windows, elements = (places.size(d) for d in range(2))
    found = t.ops.index_select(x, t.ops.reshape(places, new_shape=[t.ops.mul(windows, elements)]), dim)
    around = [x.size(d) for d in range(len(logical_axes(x)))]
    found = t.ops.reshape(found, new_shape=[*around[:dim], windows, elements, *around[dim + 1 :]])
    order = [d for d in range(value.dim()) if d != dim + 1]
    return t.ops.permute(found, dims=[*order, dim + 1])


def _number(t: Translation, count: Any) -> Operand:
    given = t.extent(count)
    return t.constant(given, torch.int64) if isinstance(given, int) else given


def unfold_backward(grad: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Any:
    """Return the gradient of a tensor of `sizes` whose windows have the gradient `grad`."""
    if not sizes or not all(isinstance(n, int) for n in (*sizes, *grad.shape)) or not grad.numel():
        return NotImplemented
    dim %= len(sizes)
    values = grad.movedim(-1, dim + 1)
    terms = -(-size // step)
    if terms <= MOST_APART:
        found = [_term(values, dim, sizes[dim], size, step, j) for j in range(terms)]
        total = found[0]
        for term in found[1:]:
            total = total + term
    else:
        total = _term(values, dim, sizes[dim], size, step, counted(terms, grad.device, integers_below(size))).sum(dim + 1)
    return total.to(grad.dtype)


def _term(values: Tensor, dim: int, n: int, size: int, step: int, j: Any) -> Tensor:
    """Return, for each element of an axis, what the window j in front of the last one that begins there or before has for it; with all j in an axis of their
    own."""
    count, place = values.shape[dim], counted(n, values.device, integers_below(n))
    place = place[:, None] if isinstance(j, Tensor) else place
    window = place // step - j
    element = place - window * step
    is_inside = (window >= 0) & (window < count) & (element < size)
    everything: list[Any] = [slice(None)] * dim
    found = values[tuple([*everything, window.clamp(0, count - 1), element.clamp(0, size - 1)])].to(wide_type(values))
    return torch.where(before(is_inside, values.dim() - dim - 2), found, 0)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {aten.unfold_backward.default: unfold_backward}
"""For AOTAutograd."""
