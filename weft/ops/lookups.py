"""Ops that read or write a tensor at other positions than their own: gather, take_along_axis, index_select, select, embedding, sums of bags; scatter.

Owns their shapes, and `add_lookup`, by which other ops make such nodes. An index is not wrapped: position -1 is out of range, as in torch's ops over index
tensors; only `select`, whose index is a scalar, counts from the end. Read first: `add_lookup`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import expr
from ..dtypes import DataType
from ..errors import UserError
from ..expr import ZERO, Sym
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, BagOp, Fixed, InBag, LookupOp, Position, ScatterOp, TorchOp
from ..ir.values import IterDomain, Scalar, TensorView
from .build import Operand, as_val, broadcast, cast, is_plain_broadcast, logical_axes, own_axis
from .promotion import WrongDtype
from .shapes import normalize_dim
from .whole_numbers import as_integers


SUMMED = (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16, DataType.Int, DataType.Int32)
"""Types that `bag_sum` adds, and that kernels add or compare atomically."""


class BadIndex(UserError):
    code = "W390"
    what = "{op}: {reason}"
    fix = "{remedy}"


class SelectOutside(UserError):
    code = "W378"
    what = "select: index {index} is out of range for axis {axis} of {tensor}, which has {size} elements in this call"
    fix = "use an index between {least} and {most}"


def add_lookup(
    fusion: Fusion, op: str, source: TensorView, axes: Sequence[IterDomain], positions: Sequence[Position], *, indices: Sequence[TensorView] = (),
    fill: Scalar | None = None,
) -> TensorView:  # fmt: skip
    """Return a new tensor with the logical axes `axes`: element by element, what `source` has at `positions`.

    Shapes: one position per logical axis of the source; `indices`, which `At(1)`, `At(2)` ... name, have the result's rank.
    fill: what a position outside of the source gives; without it no position may be outside.
    """
    out = fusion.new_tensor(list(axes), source.dtype())
    inputs = [source, *indices, *([] if fill is None else [fill])]
    fusion.register(LookupOp(inputs, [out], op=op, positions=tuple(positions), is_masked=fill is not None))
    return out


def leading_part(fusion: Fusion, source: TensorView, axes: Sequence[IterDomain]) -> TensorView:
    """Return what `source` has at the positions of a tensor with axes like `axes`: all of it, or the first elements along axes that are shorter there."""
    return add_lookup(fusion, "slice", source, [fusion.copy_axis(axis) for axis in axes], [Along(d) for d in range(source.ndim)])


def _index(fusion: Fusion, op: str, index: TensorView) -> TensorView:
    """Return an index of integers: the given one, or those that a `where` with a float scalar turned into floats. Errors: BadIndex."""
    whole = as_integers(fusion, index)
    if not isinstance(whole, TensorView):
        raise BadIndex(op=op, reason=f"index must have type Int or Int32, but {index} has {index.dtype()}", remedy="cast the index to DataType.Int")
    return whole


def _wider(fusion: Fusion, op: str, a: IterDomain, b: IterDomain, position: int) -> IterDomain:
    """Return a new axis for two that are broadcast to each other. Errors: BadIndex."""
    if a.logical_extent.is_const and b.logical_extent.is_const and a.logical_extent is not b.logical_extent:
        if not expr.is_int(a.logical_extent, 1) and not expr.is_int(b.logical_extent, 1):
            reason = f"axis {position} has extent {a.logical_extent} in arg and {b.logical_extent} in index"
            raise BadIndex(op=op, reason=reason, remedy="make the extents of all axes except dim equal, or 1 in one of the two")
    return own_axis(fusion, b if is_plain_broadcast(a) else a)


def _within(op: str, arg: TensorView, index: TensorView, dim: int | None, name: str = "arg") -> None:
    """Refuse an index that is larger than arg outside of dim; sizes that are no constants are checked in each call. name: that of the argument `arg`.

    Errors: BadIndex.
    """
    for d, (a, b) in enumerate(zip(logical_axes(arg), logical_axes(index))):
        if d != dim and a.logical_extent.is_const and b.logical_extent.is_const and a.logical_extent.value < b.logical_extent.value:  # type: ignore[operator]
            reason = f"axis {d} has extent {a.logical_extent} in {name} and {b.logical_extent} in index, which must not be larger"
            raise BadIndex(op=op, reason=reason, remedy="slice the index, or use take_along_axis, which broadcasts axes of extent 1")


def _same_rank(op: str, arg: TensorView, index: TensorView) -> None:
    if arg.ndim != index.ndim:
        reason = f"Tensor arguments have different dimensions: {arg.ndim} and {index.ndim}"
        raise BadIndex(op=op, reason=reason, remedy="use an index with as many axes as arg")


def gather(fusion: Fusion, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """out[i, j, k] = arg[i, index[i, j, k], k] for dim 1; the shape is the index's, which may be smaller than arg outside of dim. As torch.gather."""
    index = _index(fusion, "gather", index)
    _same_rank("gather", arg, index)
    dim = normalize_dim(dim, arg.ndim, "gather", arg)
    _within("gather", arg, index, dim)
    axes = [own_axis(fusion, a) for a in logical_axes(index)]
    positions: list[Position] = [At(1) if d == dim else Along(d) for d in range(arg.ndim)]
    return add_lookup(fusion, "gather", arg, axes, positions, indices=[index])


def take_along_axis(fusion: Fusion, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """As gather, with axes other than dim broadcast to each other (NumPy's take_along_axis)."""
    index = _index(fusion, "take_along_axis", index)
    _same_rank("take_along_axis", arg, index)
    dim = normalize_dim(dim, arg.ndim, "take_along_axis", arg)
    axes: list[IterDomain] = []
    positions: list[Position] = []
    for d, (a, b) in enumerate(zip(logical_axes(arg), logical_axes(index))):
        axes.append(own_axis(fusion, b) if d == dim else _wider(fusion, "take_along_axis", a, b, d))
        positions.append(At(1) if d == dim else Fixed(ZERO) if a.is_broadcast() else Along(d))
    return add_lookup(fusion, "take_along_axis", arg, axes, positions, indices=[index])


def index_select(fusion: Fusion, arg: TensorView, index: TensorView, dim: int) -> TensorView:
    """out[i, j, k] = arg[i, index[j], k] for dim 1. The index has one axis, or none (then dim has extent 1), or arg's rank with one axis that is not 1."""
    index = _index(fusion, "index_select", index)
    if arg.ndim == 0:
        raise BadIndex(op="index_select", reason="arg cannot be a 0-D tensor", remedy="index a tensor with axes")
    dim = normalize_dim(dim, arg.ndim, "index_select", arg)
    real = [d for d, a in enumerate(logical_axes(index)) if not a.is_broadcast()]
    if index.ndim > 1 and not (index.ndim == arg.ndim and (not real or real == [dim])):
        raise BadIndex(op="index_select", reason=f"index_tv must be a 1d or scalar tensor, not {index}", remedy="use an index with one axis")
    if index.ndim <= 1 and not (index.ndim == 1 and arg.ndim == 1):
        index = broadcast(fusion, index, [d != dim or index.ndim == 0 for d in range(arg.ndim)])
    axes = [own_axis(fusion, logical_axes(index)[dim] if d == dim else a) for d, a in enumerate(logical_axes(arg))]
    positions: list[Position] = [At(1) if d == dim else Along(d) for d in range(arg.ndim)]
    return add_lookup(fusion, "index_select", arg, axes, positions, indices=[index])


def select(fusion: Fusion, arg: TensorView, index: Sym, dim: int) -> TensorView:
    """Return arg at `index` along dim, without that axis; a negative index counts from the end."""
    if arg.ndim == 0:
        raise BadIndex(op="select", reason="select can not be applied to 0d tensor", remedy="index a tensor with axes")
    dim = normalize_dim(dim, arg.ndim, "select", arg)
    kept = [a for d, a in enumerate(logical_axes(arg)) if d != dim]
    extent = logical_axes(arg)[dim].logical_extent
    if index.is_const and extent.is_const and not -extent.value <= index.value < extent.value:  # type: ignore[operator]
        reason = f"index {index.value} is out of range for axis {dim} of {extent.value} elements"
        raise BadIndex(op="select", reason=reason, remedy=f"use an index between {-extent.value} and {extent.value - 1}")
    place = wrapped(index, extent)
    positions: list[Position] = [Fixed(place) if d == dim else Along(d - (d > dim)) for d in range(arg.ndim)]
    return add_lookup(fusion, "select", arg, [own_axis(fusion, a) for a in kept], positions)


def fixed_places(expr: LookupOp) -> Iterator[tuple[int, Sym, Sym]]:
    """Yield (axis, position, extent) of each axis of which a scalar chooses one element."""
    for dim, (place, axis) in enumerate(zip(expr.positions, logical_axes(expr.source))):
        if isinstance(place, Fixed):
            yield dim, place.position, axis.logical_extent


def check_place(expr: LookupOp, dim: int, at: int | None, size: int | None) -> None:
    """Refuse an element that an axis does not have. Errors: SelectOutside."""
    if size is not None and at is not None and not 0 <= at < size:
        raise SelectOutside(index=at - size if at < 0 else at, axis=dim, tensor=expr.source, size=size, least=-size, most=size - 1)


def wrapped(index: Sym, extent: Sym) -> Sym:
    """Return a position counted from the front: index + extent where index is negative."""
    if index.is_const:
        return index if index.value >= 0 else expr.add(extent, index)  # type: ignore[operator]
    return expr.op("where", (expr.op("lt", (index, ZERO), DataType.Bool), expr.add(index, extent), index), DataType.Int)


def unwrapped(position: Sym, extent: Sym) -> Sym:
    """Return the index of which `wrapped` made this position: what the text of a definition gives to `select`."""
    if position.op == "where" and position is wrapped(position.args[2], extent):
        return position.args[2]
    from_end = expr.sub(position, extent)
    return from_end if not position.is_const and from_end.is_const and from_end.value < 0 else position  # type: ignore[operator]


def embedding(fusion: Fusion, index: TensorView, weight: TensorView) -> TensorView:
    """out[..., e] = weight[index[...], e]."""
    index = _index(fusion, "embedding_fwd", index)
    if index.ndim < 1:
        raise BadIndex(op="embedding_fwd", reason=f"Expected input to be atleast 1D, not {index}", remedy="use an index with at least one axis")
    if weight.ndim != 2:
        raise BadIndex(op="embedding_fwd", reason=f"Expected weight to be 2D, not {weight}", remedy="use a weight of shape [entries, features]")
    axes = [*(own_axis(fusion, a) for a in logical_axes(index)), own_axis(fusion, logical_axes(weight)[1])]
    index = broadcast(fusion, index, [False] * index.ndim + [True])
    return add_lookup(fusion, "embedding_fwd", weight, axes, [At(1), Along(index.ndim - 1)], indices=[index])


def bag_sum(
    fusion: Fusion, arg: TensorView, first: TensorView, end: TensorView, order: TensorView | None = None, weights: TensorView | None = None
) -> TensorView:  # fmt: skip
    """out[v, ...] = the sum of arg[order[k], ...], or of arg[k, ...], for k from first[v] up to, not including, end[v], each times weights[k] if there are
    any; floats of 16 bits give Float. Errors: BadIndex."""
    indices = {"begins": first, "ends": end} | ({} if order is None else {"order": order})
    whole = [_index(fusion, "bag_sum", index) for index in indices.values()]
    _check_bag(arg, dict(zip(indices, whole)), weights)
    count, rest = _wider(fusion, "bag_sum", logical_axes(whole[0])[0], logical_axes(whole[1])[0], 0), logical_axes(arg)[1:]
    dtype = DataType.Float if arg.dtype().is_reduced_float else arg.dtype()
    out = fusion.new_tensor([count, *(own_axis(fusion, a) for a in rest)], dtype)
    ranges = [broadcast(fusion, t, [False] + [True] * len(rest)) if rest else t for t in whole[:2]]
    bag = InBag(1, 2, None if order is None else 3, None if weights is None else len(whole) + 1)
    positions, factors = (bag, *(Along(d) for d in range(1, arg.ndim))), [] if weights is None else [weights]
    fusion.register(BagOp([arg, *ranges, *whole[2:], *factors], [out], op="bag_sum", positions=positions, is_masked=False))
    return out


def _check_bag(arg: TensorView, indices: dict[str, TensorView], weights: TensorView | None) -> None:
    """Refuse what `bag_sum` does not take. Errors: BadIndex."""
    if arg.ndim == 0:
        raise BadIndex(op="bag_sum", reason="arg cannot be a 0-D tensor", remedy="sum rows of a tensor with axes")
    if arg.dtype() not in SUMMED:
        raise BadIndex(op="bag_sum", reason=f"{arg} has type {arg.dtype()}", remedy=f"cast it to one of {', '.join(t.name for t in SUMMED)}")
    for name, index in {**indices, **({} if weights is None else {"weights": weights})}.items():
        if index.ndim != 1:
            raise BadIndex(op="bag_sum", reason=f"{name} must have one axis, but {index} has {index.ndim}", remedy=f"reshape {name} to one axis")
    for tensor in (arg, indices.get("order"), weights):
        if tensor is not None and any(a.expanded_extent is not None for a in logical_axes(tensor)):
            raise BadIndex(op="bag_sum", reason=f"{tensor} has an expanded axis", remedy="copy it to a tensor of its own")
    if weights is not None:
        _check_weights(arg, indices.get("order", arg), weights)


def _check_weights(arg: TensorView, listed: TensorView, weights: TensorView) -> None:
    """Refuse weights of a bag's rows in another type, or of another number. Errors: BadIndex."""
    if not arg.dtype().is_float or weights.dtype() not in (arg.dtype(), DataType.Float):
        remedy = "cast them to the type of arg" if arg.dtype().is_float else "cast arg to Float, or multiply it before"
        raise BadIndex(op="bag_sum", reason=f"arg has type {arg.dtype()} and weights {weights.dtype()}", remedy=remedy)
    places, count = (logical_axes(t)[0].logical_extent for t in (listed, weights))
    if places.is_const and count.is_const and places.value != count.value:
        raise BadIndex(op="bag_sum", reason=f"there are {places} places and {count} weights", remedy="give a weight for each place")


def embedding_backward(fusion: Fusion, grad: TensorView, index: TensorView, entries: Sym) -> TensorView:
    """Return out[n, e]: the sum of grad[..., e] over all positions where index is n, for n in 0 .. entries - 1. Torch runs it, in one order."""
    index = _index(fusion, "embedding_bwd", index)
    if grad.ndim != index.ndim + 1:
        reason = f"grad has {grad.ndim} axes and index {index.ndim}"
        raise BadIndex(op="embedding_bwd", reason=reason, remedy="use a grad with one more axis than the index")
    out = fusion.new_tensor([fusion.new_axis(entries), own_axis(fusion, logical_axes(grad)[-1])], grad.dtype())
    fusion.register(TorchOp([grad, index], [out], op="embedding_bwd", entries=entries))
    return out


def renormed_embedding(fusion: Fusion, index: TensorView, weight: TensorView, **options: object) -> TensorView:
    """Return what torch's embedding with `max_norm` gives; it also changes rows of the weight in place."""
    plain = embedding(fusion, index, weight)
    out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(plain)], weight.dtype())
    fusion.register(TorchOp([index, weight], [out], op="embedding_fwd", **options))
    return out


def scatter(fusion: Fusion, arg: TensorView, index: TensorView, src: Operand, dim: int, kind: str = "set") -> TensorView:
    """Return a copy of arg with out[i, index[i, j, k], k] = src[i, j, k] for dim 1 (or combined by the monoid `kind`). As torch.scatter."""
    index = _index(fusion, "scatter", index)
    if arg.ndim == 0:
        raise BadIndex(op="scatter", reason="scatter can not be applied to 0d tensor", remedy="scatter into a tensor with axes")
    _same_rank("scatter", arg, index)
    if arg.dtype().is_packed or kind != "set" and arg.dtype().is_narrow_float:
        raise WrongDtype(op="scatter", allowed=f"numbers of {8 if kind == 'set' else 16} bits and more", dtype=arg.dtype())
    source = cast(fusion, as_val(fusion, src, "scatter"), arg.dtype())
    if isinstance(source, TensorView):
        _same_rank("scatter", arg, source)
    dim = normalize_dim(dim, arg.ndim, "scatter", arg)
    _within("scatter", arg, index, dim)
    if isinstance(source, TensorView) and not any(map(is_plain_broadcast, logical_axes(source))):
        _within("scatter", source, index, None, "src")
    out = fusion.new_tensor([own_axis(fusion, a) for a in logical_axes(arg)], arg.dtype())
    fusion.register(ScatterOp([arg, index, source], [out], op="scatter", dim=dim, kind=kind))
    return out


ROW_KINDS = ("sum", "max", "min", "set")
"""How `scatter_rows` combines rows. With "set" the rows of src replace those of arg; of several for one row any of them stays."""


def scatter_rows(
    fusion: Fusion, arg: TensorView, index: TensorView, src: TensorView, dim: int, kind: str = "sum", skip: bool = False, axes: int = 1
) -> TensorView:
    """Return a copy of arg with the rows of src combined into those that the index names: out[a, index[a, p, r], r] += src[a, p, r] for all a, p, r.

    Shapes: arg [A..., n, R...], n at dim; src [A..., P..., R...], index the same, or of one element along axes that it does not vary along. skip: nothing
    happens at positions outside. axes: of arg from dim on, over which positions are counted as if they were one. Errors: BadIndex, WrongDtype.
    """
    op = "scatter_rows"
    index = _index(fusion, op, index)
    if axes < 1 or arg.ndim < axes or src.ndim - arg.ndim + axes < 1:
        raise BadIndex(op=op, reason=f"arg has {arg.ndim} axes and src {src.ndim}", remedy="use an arg with at least one axis, and a src with at least as many")
    _same_rank(op, src, index)
    if kind not in ROW_KINDS:
        raise BadIndex(op=op, reason=f"kind is {kind!r}", remedy=f"use one of {', '.join(ROW_KINDS)}")
    if arg.dtype().is_packed if kind == "set" else arg.dtype() not in SUMMED:
        allowed = "numbers of 8 bits and more" if kind == "set" else ", ".join(t.name for t in SUMMED)
        raise WrongDtype(op=op, allowed=allowed, dtype=arg.dtype())
    dim = normalize_dim(dim, arg.ndim, op, arg)
    if dim + axes > arg.ndim:
        raise BadIndex(op=op, reason=f"arg has {arg.ndim} axes, and {axes} are to begin at {dim}", remedy="count positions over axes that there are")
    source = cast(fusion, src, arg.dtype())
    assert isinstance(source, TensorView)
    out = fusion.new_tensor([own_axis(fusion, a) for a in logical_axes(arg)], arg.dtype())
    made = ScatterOp([arg, index, source], [out], op="scatter", dim=dim, kind=kind, places=src.ndim - arg.ndim + axes)
    if axes > 1:
        made.attributes["named"] = axes
    if skip:
        made.attributes["skips"] = True
    for a, b in row_extents(made):
        if a.is_const and b.is_const and a is not b:
            raise BadIndex(op=op, reason=f"an axis has {a} elements in one tensor and {b} in another", remedy="give arg, index and src equal sizes beside dim")
    fusion.register(made)
    return out


def row_extents(expr: ScatterOp) -> list[tuple[Sym, Sym]]:
    """Return the pairs of extents of a scatter of rows that must be equal: of base and source, and of index and source where the index varies."""
    base, index, source = map(logical_axes, expr.tensor_inputs)
    pairs = [(base[t], axis) for d, axis in enumerate(source) if (t := expr.target_axis(d)) is not None]
    pairs += [(a, b) for a, b in zip(index, source) if not is_plain_broadcast(a)]
    return [(a.logical_extent, b.logical_extent) for a, b in pairs]
