"""Elements at positions that another tensor holds: embedding, index, gather, scatters that compare; running sums. Read first: `index`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...analysis.ranges import range_of
from ...analysis.op_cost import INSTRUCTIONS_PER_BYTE, LAUNCH_BYTES
from ...ir.values import PointwiseOp, TensorView
from ...ops.build import logical_axes
from ...ops.lookups import SUMMED
from ...options import current, must_be_in_order
from ...reference.torch_types import torch_dtype, torch_dtype_to_nvfuser_dtype
from ..rewrites import equal_sizes
from .rules import Declined, Operand, Translation, meta_of, rule
from .shapes import cut

aten = torch.ops.aten


@rule(aten.embedding.default)
def embedding(t: Translation, weight: Operand, indices: Operand, padding_idx: int = -1, *_: Any) -> Operand:
    """Rows of a table."""
    if t.rank(indices) == 0:
        raise Declined("an index given as a single number")
    return _selected(t, weight, indices, 0)


def _selected(t: Translation, x: Operand, indices: Operand, dim: int) -> Operand:
    """x with the axis `dim` replaced by those of `indices`, which are not negative."""
    rank = t.rank(indices)
    if rank == 1:
        return t.ops.index_select(x, indices, dim)
    shape = [indices.size(d) for d in range(rank)]
    flat = t.ops.index_select(x, t.ops.reshape(indices, new_shape=[_count(t, shape)]), dim)
    before, after = ([x.size(d) for d in places] for places in (range(dim), range(dim + 1, t.rank(x))))
    return t.ops.reshape(flat, new_shape=[*before, *shape, *after])


@rule(aten.index_select.default)
def index_select(t: Translation, x: Operand, dim: int, indices: Operand) -> Operand:
    if t.rank(x) == 0 or t.rank(indices) == 0:
        raise Declined("an index given as a single number")
    return t.ops.index_select(x, indices, dim % t.rank(x))


@rule(aten.gather.default)
def gather(t: Translation, x: Operand, dim: int, indices: Operand, **_: Any) -> Operand:
    """A tensor without axes gives its element."""
    if t.rank(x) == 0 or t.rank(indices) == 0:
        if t.rank(x) == t.rank(indices):
            return t.ops.set(x)
        raise Declined("an index given as a single number")
    return t.ops.gather(x, t.to(indices, torch.int64), dim % t.rank(x))


def why_not_adjacent(node: torch.fx.Node) -> str:
    """Why the index tensors of an `index` or `index_put` do not name places of neighbouring axes, or ""."""
    given: Any = node.args[1]
    places = [i for i, index in enumerate(given) if index is not None]
    values = [given[i].meta["val"] for i in places]
    if any(v.dtype is torch.bool for v in values):
        return "a mask as index"
    if places != list(range(places[0], places[0] + len(places))):
        return "index tensors that are not adjacent"
    return ""


@rule(aten.index.Tensor, aten._unsafe_index.Tensor, claims=why_not_adjacent)
def index(t: Translation, x: Operand, indices: list[Operand]) -> Operand:
    """Adjacent index tensors become one index into their merged axes, or one for each axis; a negative position counts from the end."""
    first = next(i for i, given in enumerate(indices) if given is not None)
    given = indices[first:]
    given = given[: next((i for i, v in enumerate(given) if v is None), len(given))]
    if all(t.rank(v) == 0 for v in given):
        raise Declined("an index given as a single number")
    dtype = type_of_positions(t.node, first, len(given))
    if len(given) > 1 and _is_computed(x) and _have_own_axes(t.node):
        return _selected_one_by_one(t, x, [_from_front(t, v, x.size(d), dtype) for d, v in enumerate(given, first)], first)
    place = counted_over(t, x, given, first, dtype)
    if len(given) > 1:
        x = _merged(t, x, first, len(given), functools.reduce(t.ops.mul, (x.size(d) for d in range(first, first + len(given)))))
    return _selected(t, x, place, first)


def counted_over(t: Translation, x: Operand, given: list[Operand], first: int, dtype: torch.dtype) -> Operand:
    """Return the places that index tensors name along axes of x from `first` on, counted over these axes as if they were one."""
    place = _from_front(t, given[0], x.size(first), dtype)
    for number, other in enumerate(given[1:], first + 1):
        place = t.ops.add(t.ops.mul(place, x.size(number)), _from_front(t, other, x.size(number), dtype))
    return place


def _is_computed(x: TensorView) -> bool:
    """True for a tensor that is not in memory, which merged axes may force it to be. One that is there is read at one position."""
    while isinstance(made := x.definition(), PointwiseOp) and made.op_name == "cast":
        x = made.tensor_inputs[0]
    return made is not None


def _have_own_axes(node: torch.fx.Node) -> bool:
    """True if each of several index tensors varies along axes of its own, those of the first one in front, as in `x[rows[:, None], columns]`."""
    shapes = [tuple(meta_of(index).shape) for index in node.args[1] if index is not None]  # type: ignore[union-attr]
    rank, last = max(map(len, shapes)), -1
    for shape in shapes:
        real = [d + rank - len(shape) for d, extent in enumerate(shape) if not statically_known_true(extent == 1)]
        if not real or real[0] <= last:
            return False
        last = real[-1]
    return True


def _selected_one_by_one(t: Translation, x: Operand, places: list[Operand], first: int) -> Operand:
    """Return x with adjacent axes from `first` on replaced by those of their positions: axis by axis, so that no axes of x are merged."""
    rank = max(map(t.rank, places))
    shape: list[Any] = [1] * rank
    before, after = ([x.size(d) for d in dims] for dims in (range(first), range(first + len(places), t.rank(x))))
    for dim, place in enumerate(places, first):
        axes = logical_axes(place)
        real = [d for d, axis in enumerate(axes) if not axis.is_broadcast()]
        for d in real:
            shape[d + rank - len(axes)] = place.size(d)
        x = t.ops.index_select(x, t.ops.reshape(place, new_shape=[_count(t, [place.size(d) for d in real])]), dim)
    return t.ops.reshape(x, new_shape=[*before, *shape, *after])


def _count(t: Translation, sizes: list[Operand]) -> Operand:
    count: Operand = 1
    for size in sizes:
        count = t.ops.mul(count, size)
    return count


def _merged(t: Translation, x: TensorView, first: int, count: int, extent: Operand) -> Operand:
    """Return x with `count` axes as one. A cast to a wider type is done behind that, at the positions that are looked up: it need not be in memory."""
    made = x.definition()
    if isinstance(made, PointwiseOp) and made.op_name == "cast" and made.tensor_inputs[0].dtype().bits <= x.dtype().bits:
        return t.ops.cast(_merged(t, made.tensor_inputs[0], first, count, extent), dtype=x.dtype())
    if (x, first, count) not in t.merged:
        before, after = ([x.size(d) for d in places] for places in (range(first), range(first + count, t.rank(x))))
        t.merged[x, first, count] = t.ops.reshape(x, new_shape=[*before, extent, *after])
    return t.merged[x, first, count]


def type_of_positions(node: torch.fx.Node, first: int, count: int) -> torch.dtype:
    """Return the type in which positions along `count` axes are computed: 64 bits cost several instructions each, and 32 do for given positions of 32 bits in
    axes that are known to be short."""
    source: Any = meta_of(node.args[0])
    extents = source.shape[first : first + count]
    given: Any = [index for index in node.args[1] if index is not None]  # type: ignore[union-attr]
    is_short = all(isinstance(n, int) for n in extents) and 2 * math.prod(extents) < 2**31  # a negative position may be added to
    return torch.int32 if is_short and all(meta_of(index).dtype in SHORT_POSITIONS for index in given) else torch.int64


SHORT_POSITIONS = (torch.int32, torch.int16, torch.int8, torch.uint8)


def _from_front(t: Translation, place: Operand, extent: Operand, dtype: torch.dtype) -> Operand:
    """Return places along an axis as numbers of a type, those that are negative counted from the end."""
    place = t.to(place, dtype)
    found = range_of(place)
    if found is not None and found[0] >= 0:
        return place
    return t.ops.where(t.ops.lt(place, 0), t.ops.add(place, extent), place)


def _is_known(x: torch.Tensor, shifts: Any, dims: Any) -> bool:
    return bool(dims) and all(isinstance(n, int) for n in (*shifts, *(x.shape[d] for d in dims)))


def _known_roll(node: torch.fx.Node) -> str:
    given: Any = node.args
    return "" if len(given) > 2 and _is_known(given[0].meta["val"], *given[1:]) else "a rotation of a flattened tensor, or by or along unknown sizes"


def _roll_of_open_sizes(x: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
    """torch's decomposition into an index, of rotations that have no rule."""
    from torch._decomp import get_decompositions

    return NotImplemented if _is_known(x, shifts, dims) else get_decompositions([aten.roll.default])[aten.roll.default](x, shifts, dims)


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """torch's decomposition for what is contiguous; that of torch 2.11 gives others their strides by an assignment, which AOTAutograd refuses."""
    from torch._decomp import get_decompositions

    target = aten.index_fill.int_Tensor if isinstance(value, torch.Tensor) else aten.index_fill.int_Scalar
    filled = get_decompositions([target])[target](x.contiguous(), dim, index, value)
    return filled if filled.stride() == x.stride() else aten.copy.default(torch.empty_like(x), filled)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.roll.default: _roll_of_open_sizes, aten.index_fill.int_Scalar: _index_fill, aten.index_fill.int_Tensor: _index_fill,
}  # fmt: skip
"""Overload -> the same in ops that have rules."""


@rule(aten.roll.default, claims=_known_roll)
def roll(t: Translation, x: Operand, shifts: Any, dims: Any) -> Operand:
    """A lookup that normalization finds (`weft.graph.rolls`)."""
    for shift, dim in zip(shifts, dims):
        extent = meta_of(t.node.args[0]).shape[dim]
        if extent and shift % extent:
            place = t.ops.add(t.ops.iota(extent, dtype=t.dtype(torch.int64)), -shift % extent)
            place = t.ops.where(t.ops.lt(place, extent), place, t.ops.sub(place, extent))
            x = t.ops.index_select(x, place, dim % t.rank(x))
    return x if x.definition() is not None else t.ops.set(x)


def _real_numbers(node: torch.fx.Node) -> str:
    """Why torch finds running extrema, or ""."""
    dtype = meta_of(node.args[0]).dtype
    return f"running extrema of {dtype}" if torch_dtype_to_nvfuser_dtype(dtype) is None or dtype.is_complex else ""


@rule(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def scan(t: Translation, x: Operand, dim: int, *, dtype: torch.dtype | None = None) -> Operand:
    """16-bit floats are folded in float32, integers in int64."""
    if t.rank(x) == 0:
        raise Declined("a tensor without axes")
    if t.node.target is aten.logcumsumexp.default and not t.result_dtype.is_floating_point:
        raise Declined("the logarithm of running sums of complex numbers")
    target: Any = t.node.target
    run = getattr(t.ops, target.overloadpacket.__name__)
    return run(t.wide(t.to(x, t.result_dtype)), dim % t.rank(x))


@rule(aten.cummax.default, aten.cummin.default, claims=_real_numbers)
def scan_with_positions(t: Translation, x: Operand, dim: int) -> Any:
    """A tensor without axes has one element, whose position is 0."""
    name = "cummax_with_indices" if t.node.target is aten.cummax.default else "cummin_with_indices"
    if t.rank(x) == 0:
        return t.ops.set(x), t.ops.full([], t.constant(0, torch.int64), t.dtype(torch.int64))
    return getattr(t.ops, name)(x, dim % t.rank(x))


MOST_PLACES = 8
"""Elements that a scatter writes along its axis, up to which a kernel compares each position with all of them. Routers of experts have 1 to 8."""
COMPARED_INSTRUCTIONS = 2.5
"""Of a comparison of a position with one place, and of what follows. Counted in machine code (sm_90a): 21 for eight places, with the store."""


def few_places(node: torch.fx.Node) -> str:
    """Why the positions of a scatter are not compared with each of its target, or ""."""
    given: Any = node.args
    base, dim, index = given[0].meta["val"], given[1], given[2].meta["val"]
    source = meta_of(given[3])
    if index.dim() != base.dim():
        return "a scatter whose index has a different rank than its target"
    if base.dim() == 0:
        return ""
    dim %= base.dim()
    if not isinstance(index.shape[dim], int) or not 0 < index.shape[dim] <= MOST_PLACES:
        return f"a scatter whose number of elements along its axis is unknown or not 1 to {MOST_PLACES}"
    if all(isinstance(n, int) for n in base.shape) and _takes_longer(base, index.shape[dim], adds=node.target is aten.scatter_add.default):
        return f"a scatter of {index.shape[dim]} elements along its axis, which would be compared with each of {base.numel()} positions"
    others = [*(zip(index.shape, source.shape) if isinstance(source, torch.Tensor) and source.dim() else ())]
    others += [(a, b) for d, (a, b) in enumerate(zip(index.shape, base.shape)) if d != dim]
    is_known = all(isinstance(n, int) for pair in others for n in pair) and 0 not in index.shape
    return "" if is_known or all(statically_known_true(a == b) for a, b in others) else "a scatter from or into a part of a tensor of open sizes"


def _takes_longer(base: torch.Tensor, places: int, *, adds: bool) -> bool:
    """Tell whether to compare each position with all places takes longer than to write the base, and then elements: in bytes that move meanwhile. Elements of
    16 bits are added to a base in float32, which is read again."""
    elem_bytes = base.dtype.itemsize
    alone = base.numel() * (elem_bytes + 8 * (adds and base.dtype in (torch.bfloat16, torch.float16)))
    return base.numel() * max(elem_bytes, COMPARED_INSTRUCTIONS * places / INSTRUCTIONS_PER_BYTE) > alone + LAUNCH_BYTES


def scattered_few(t: Translation, base: Operand, dim: int, index: Operand, source: Operand, put: Callable[[Operand, Operand, Operand], Operand]) -> Operand:
    """Apply put(is this its position, the element, the present value) for the elements along the axis in order; of equal positions the last one wins."""
    if t.rank(base) == 0:
        return put(t.ops.eq(t.to(index, torch.int64), 0), source, base)
    dim %= t.rank(base)
    value: Any = t.node.args[2]
    index, source = _of_sizes_of(t, base, dim, index, source)
    extent = meta_of(t.node).shape[dim]
    short = torch.int32 if isinstance(extent, int) and extent < 2**31 else torch.int64
    index = t.to(index, short)
    place = t.ops.iota(base.size(dim), t.constant(0, torch.int64), t.constant(1, torch.int64), dtype=t.dtype(short))
    place = t.ops.broadcast(place, is_broadcast_dim=[d != dim for d in range(t.rank(base))])
    for at in range(value.meta["val"].shape[dim]):
        wanted, element = (_one(t, x, dim, at) if t.rank(x) else x for x in (index, source))
        base = put(t.ops.eq(place, wanted), element, base)
    return base


def _of_sizes_of(t: Translation, base: Operand, dim: int, index: Operand, source: Operand) -> tuple[Operand, Operand]:
    """Positions and elements of a scatter into a part of `base`, with the sizes of `base` along the other axes: positions beyond the part are invalid ones. Of
    a source that is larger than the index, only the part with the index's sizes is used."""
    given: Any = t.node.args
    whole, part = (tuple(n.meta["val"].shape) for n in (given[0], given[2]))
    if t.rank(source):
        for d, (extent, wanted) in enumerate(zip(given[3].meta["val"].shape, part)):
            if isinstance(extent, int) and extent != wanted:
                source = cut(t, source, d, 0, wanted)
    missing = [a - b if d != dim and isinstance(a, int) and isinstance(b, int) else 0 for d, (a, b) in enumerate(zip(whole, part))]
    if not any(missing):
        return index, source
    widths = [w for m in reversed(missing) for w in (0, m)]
    index = t.ops.pad(index, pad_widths=widths, value=t.constant(-1, torch.int64))
    return index, t.ops.pad(source, pad_widths=widths, value=t.constant(0, t.result_dtype)) if t.rank(source) else source


def _one(t: Translation, x: Operand, dim: int, at: int) -> Operand:
    """x[..., at : at + 1, ...], repeated along the axis."""
    return t.ops.broadcast(t.ops.squeeze(cut(t, x, dim, at, at + 1), dims=[dim]), is_broadcast_dim=[d == dim for d in range(t.rank(x))])


def _adds(node: torch.fx.Node) -> str:
    """Few places are compared with all positions. More are added atomically, where the order of sums is free."""
    base: Any = node.args[0]
    dtype = meta_of(base).dtype
    return "" if dtype in ADDED and may_add_atomically(dtype) and has_whole_rows(node) and may_be_added_to(base) else few_places(node)


def has_whole_rows(node: torch.fx.Node) -> bool:
    """True if index and source of a scatter are of one shape, which is that of the base but for the size along the axis."""
    operands: tuple[Any, ...] = node.args
    base, index, source = (meta_of(operands[n]) for n in (0, 2, 3))
    if not base.dim() or not base.dim() == index.dim() == source.dim():
        return False
    dim = operands[1] % base.dim()
    return equal_sizes(index.shape, source.shape) and equal_sizes(*([n for d, n in enumerate(value.shape) if d != dim] for value in (base, source)))


def may_be_added_to(base: Any) -> bool:
    """True for what a graph computes, and for its arguments unless they have 16 bits: those are added in float32, for which torch does not copy them."""
    return isinstance(base, torch.fx.Node) and (base.op == "call_function" or base.op == "placeholder" and base.meta["val"].dtype.itemsize > 2)


def may_add_atomically(dtype: torch.dtype) -> bool:
    """Tell whether the order of sums is free, by the settings `row_sums` and `deterministic`, and by torch's own."""
    return current().row_sums != "sort" and not (dtype.is_floating_point and must_be_in_order())


ADDED = tuple(map(torch_dtype, SUMMED))
"""Types that are added atomically; those of 16 bits in float32."""


@rule(aten.scatter_add.default, claims=_adds)
def scatter_add(t: Translation, base: Operand, dim: int, index: Operand, source: Operand) -> Operand:
    """An index of few elements along its axis is compared with each position of the result; of others, each element is added atomically."""
    if few_places(t.node):
        return t.to(t.ops.scatter_rows(t.wide(base), index, t.wide(source), dim % t.rank(base)), t.result_dtype)
    return scattered_few(t, t.wide(base), dim, index, source, lambda here, element, there: t.ops.where(here, t.ops.add(there, element), there))
