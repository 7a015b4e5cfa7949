"""slice, pad, cat and triu: results whose elements are those of a tensor at shifted positions.

Owns their rules and checks. slice and pad are lookups (`weft.ir.graph_ops.LookupOp`); triu is a selection by position.
Read first: `slice_`, then `pad`.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import expr
from ..dtypes import DataType
from ..errors import UserError
from ..expr import Sym
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, CatOp, LookupOp, Position
from ..ir.values import IterDomain, Scalar, TensorView
from .build import Operand, as_val, broadcast, cast, constant, copy, is_plain_broadcast, logical_axes, pointwise
from .calls import Calls
from .factories import iota
from .gradients import Gradient, filled, gradient_of
from .registry import lookup
from .shapes import Extent, extent_sym, open_axis


class WrongSlice(UserError):
    code = "W367"
    what = "slice of {tensor}: {problem}"
    fix = (
        "pass one start, one stop and stride 1 per axis, with 0 <= start <= stop; only run-time scalars may be negative and count from the end; "
        "for every second element use ops.index_select(x, ops.iota(count, 0, 2), dim)"
    )


class WrongPadWidths(UserError):
    code = "W368"
    what = "pad of {tensor}: {problem}"
    fix = "pass two widths per axis, innermost axis first: (left, right, left of the next outer axis, ...)"


class WrongPadValue(UserError):
    code = "W369"
    what = "pad: Tensor arg and pad value must have the same dtype. The tensor is {tensor_dtype}, the value {value_dtype}"
    fix = "pass a value of the tensor's kind (bool, int, float or complex)"


class NegativeResult(UserError):
    code = "W370"
    what = "{op}: Invalid resized domain extent {extent} of axis {axis} of {tensor}"
    fix = "crop fewer elements than the axis has"


class WrongCat(UserError):
    code = "W371"
    what = "cat: {problem}"
    fix = "pass tensors of one dtype and one rank whose sizes agree except along dim"


class WrongTriu(UserError):
    code = "W372"
    what = "input tensor for triu must have 2 or more dims, but got {rank} dims"
    fix = "add an axis with broadcast"


# ---------------------------------------------------------------- slice
def slice_(
    fusion: Fusion, tensor: TensorView, starts: Sequence[Extent], stops: Sequence[Extent], strides: Sequence[Extent] | None = None, is_normal: bool = False
) -> TensorView:
    """Return the elements from starts[i] to stops[i] along each axis i.

    Run-time starts and stops are clamped as torch does (negative: from the end; beyond the end: the end). is_normal: the caller promises
    0 <= start <= stop <= extent, and nothing is clamped. Errors: WrongSlice.
    """
    axes = logical_axes(tensor)
    first, last = [extent_sym(s) for s in starts], [extent_sym(s) for s in stops]
    _check_slice(tensor, len(axes), first, last, None if strides is None else [extent_sym(s) for s in strides])
    positions: list[Position] = []
    results: list[IterDomain] = []
    for dim, (axis, start, stop) in enumerate(zip(axes, first, last)):
        start, stop = _bounds(axis.logical_extent, start, stop, is_normal)
        if start is expr.ZERO and stop is axis.logical_extent:
            positions.append(Along(dim))
            results.append(fusion.copy_axis(axis))
        else:
            positions.append(Along(dim, start))
            results.append(open_axis(fusion, expr.sub(stop, start), is_view=True))
    if all(position == Along(dim) and r.logical_extent is a.logical_extent for dim, (position, r, a) in enumerate(zip(positions, results, axes))):
        return copy(fusion, tensor)  # type: ignore[return-value]
    return _lookup(fusion, "slice", [tensor], results, positions, is_masked=False)


def _check_slice(tensor: TensorView, rank: int, starts: Sequence[Sym], stops: Sequence[Sym], strides: Sequence[Sym] | None) -> None:
    problem = None
    if strides is not None and len(strides) != len(starts):
        problem = f"Slice start_indices and strides don't match! (Start Indices: {len(starts)} Strides: {len(strides)})"
    elif len(starts) != rank:
        problem = f"Number of tensor dimensions does not match slice dimensions! (Tensor-dims: {rank} Slice-dims: {len(starts)})"
    elif len(starts) != len(stops):
        problem = f"Slice indexing attribute dimensions don't match! (Start Indices: {len(starts)} End Indices: {len(stops)})"
    for dim, (start, stop) in enumerate(zip(starts, stops) if problem is None else ()):
        stride = expr.ONE if strides is None else strides[dim]
        if problem is not None:
            break
        if start.is_const and start.value < 0:  # type: ignore[operator]
            problem = f"Slice operation start_indices must be greater than or equal to 0. Start Indices: {list(starts)}"
        elif start.is_const and stop.is_const and stop.value < start.value:  # type: ignore[operator]
            problem = f"Slice operation end_indices must be greater than or equal to start_indices. Start Indices: {list(starts)} End Indices: {list(stops)}"
        elif not expr.is_int(stride, 1):
            problem = f"All slice operation strides must be of const size 1. Strides: {list(strides or ())}"
    if problem is not None:
        raise WrongSlice(tensor=tensor, problem=problem)


def _bounds(extent: Sym, start: Sym, stop: Sym, is_normal: bool) -> tuple[Sym, Sym]:
    """Return start and stop within 0 .. extent."""
    if start is expr.ZERO and stop.is_const:
        return start, expr.minimum(extent, stop)
    if is_normal or start is expr.ZERO and stop is extent:
        return start, stop
    start = expr.maximum(0, _from_front(extent, start))
    if start.is_const and extent.is_const:
        start = expr.minimum(start, extent)
    return start, expr.maximum(start, expr.minimum(extent, _from_front(extent, stop)))


def _from_front(extent: Sym, place: Sym) -> Sym:
    """Return `place`, counted from the end where it is negative, from the front."""
    if expr.lower_bound(place) >= 0:
        return place
    if place.is_const:
        return expr.add(place, extent)
    return expr.op(lookup("where").sym_name, (expr.less(place, 0), expr.add(place, extent), place), DataType.Int)


def _lookup(
    fusion: Fusion, op: str, inputs: Sequence[TensorView | Scalar], axes: Sequence[IterDomain], positions: Sequence[Position], *, is_masked: bool
) -> TensorView:
    out = fusion.new_tensor(axes, inputs[0].dtype())
    fusion.register(LookupOp(inputs, [out], op=op, positions=tuple(positions), is_masked=is_masked))
    return out


# ---------------------------------------------------------------- pad
def pad(fusion: Fusion, tensor: TensorView, widths: Sequence[Extent], value: Operand | None = None) -> TensorView:
    """Return `tensor` with widths[2k] elements in front of axis -1-k and widths[2k + 1] behind it; negative widths crop.

    value: what new elements are (0, False). Errors: WrongPadWidths, WrongPadValue, NegativeResult.
    """
    axes = logical_axes(tensor)
    if len(widths) % 2:
        raise WrongPadWidths(tensor=tensor, problem=f"Invalid number of padding widths: {len(widths)}")
    if len(widths) > 2 * len(axes):
        problem = f"Number of pad widths must be at most twice the input dimension; there are {len(widths)} widths for {len(axes)} axes"
        raise WrongPadWidths(tensor=tensor, problem=problem)
    syms = [extent_sym(w) for w in widths]
    fill = fill_of(fusion, tensor.dtype(), value)
    if all(s is expr.ZERO for s in syms):
        return copy(fusion, tensor)  # type: ignore[return-value]
    positions: list[Position] = []
    results: list[IterDomain] = []
    for dim, axis in enumerate(axes):
        k = 2 * (len(axes) - 1 - dim)
        left, right = (syms[k], syms[k + 1]) if k < len(syms) else (expr.ZERO, expr.ZERO)
        positions.append(Along(dim, expr.mul(left, -1)))
        results.append(fusion.copy_axis(axis) if left is right is expr.ZERO else _padded_axis(fusion, tensor, dim, axis, left, right))
    return _lookup(fusion, "pad", [tensor, fill], results, positions, is_masked=True)


def _padded_axis(fusion: Fusion, tensor: TensorView, dim: int, axis: IterDomain, left: Sym, right: Sym) -> IterDomain:
    more = expr.add(left, right)
    extent = expr.add(axis.logical_extent, more)
    if extent.is_const and extent.value < 0:  # type: ignore[operator]
        raise NegativeResult(op="pad", extent=extent.value, axis=dim, tensor=tensor)
    return open_axis(fusion, extent, more.is_const and more.value > 1, is_view=True)  # type: ignore[operator]


def _category(dtype: DataType) -> str:
    return "bool" if dtype.is_bool else "int" if dtype.is_integer else "float" if dtype.is_float else "complex"


def fill_of(fusion: Fusion, dtype: DataType, value: Operand | None) -> Scalar:
    """Return the scalar that fills new elements, of the tensor's type."""
    if value is None:
        return constant(fusion, False if dtype.is_bool else 0 if dtype.is_integer else 0j if dtype.is_complex else 0.0, dtype)
    scalar = as_val(fusion, value, "pad")
    assert isinstance(scalar, Scalar)
    if _category(scalar.dtype()) != _category(dtype):
        raise WrongPadValue(tensor_dtype=dtype, value_dtype=scalar.dtype())
    if scalar.sym.is_const:
        return constant(fusion, scalar.sym.value, dtype)
    return cast(fusion, scalar, dtype)  # type: ignore[return-value]


# ---------------------------------------------------------------- cat
def cat(fusion: Fusion, tensors: Sequence[TensorView], dim: int, is_padded: bool = False) -> TensorView:
    """Return the tensors one behind the other along `dim`, bit by bit; those that are known to be empty drop out.

    is_padded: the tensors are results of `pad` that have the result's shape; the result is what each has in its own place. Errors: WrongCat.
    """
    if not tensors:
        raise WrongCat(problem="No input tensor given")
    first = tensors[0]
    rank = first.ndim
    for tensor in tensors[1:]:
        if tensor.dtype() is not first.dtype():
            raise WrongCat(problem=f"Can't concatenate tensors with different data types: {first.dtype()} and {tensor.dtype()}")
        if tensor.ndim != rank:
            raise WrongCat(problem=f"Unexpected number of dimensions: {first} has {rank}, {tensor} has {tensor.ndim}")
    if not -rank <= dim < rank:
        raise WrongCat(problem=f"Invalid dimension to cat: {dim}, of {rank}")
    dim %= rank
    _check_others(tensors, dim)
    if is_padded:
        return _cat_padded(fusion, tensors, dim)
    kept = [t for t in tensors if not expr.is_int(logical_axes(t)[dim].logical_extent, 0)] or [first]
    if len(kept) == 1:
        return copy(fusion, kept[0])  # type: ignore[return-value]
    columns = list(zip(*(logical_axes(t) for t in kept)))
    total = expr.ZERO
    for axis in columns[dim]:
        total = expr.add(total, axis.logical_extent)
    is_long = any(a.is_iteration() for a in columns[dim]) or sum(not a.is_open() for a in columns[dim]) > 1
    axes = [open_axis(fusion, total, is_long) if d == dim else _common_axis(fusion, column) for d, column in enumerate(columns)]
    out = fusion.new_tensor(axes, first.dtype())
    fusion.register(CatOp(kept, [out], op="cat", dim=dim))
    return out


def _check_others(tensors: Sequence[TensorView], dim: int) -> None:
    for d, column in enumerate(zip(*(logical_axes(t) for t in tensors))):
        known = {a.logical_extent.payload: t for a, t in zip(column, tensors) if a.logical_extent.is_const}
        if d != dim and len(known) > 1:
            (a, ta), (b, tb) = list(known.items())[:2]
            raise WrongCat(problem=f"axis {d} has size {a} in {ta} and {b} in {tb}")


def _common_axis(fusion: Fusion, column: Sequence[IterDomain]) -> IterDomain:
    """Return the axis of the result for axes of one extent: a constant extent is preferred."""
    chosen = next((a for a in column if a.logical_extent.is_const), column[0])
    if all(is_plain_broadcast(a) for a in column):
        return fusion.copy_axis(chosen)
    return open_axis(fusion, chosen.logical_extent, any(a.is_iteration() for a in column))


def _cat_padded(fusion: Fusion, tensors: Sequence[TensorView], dim: int) -> TensorView:
    """Return the sources of pads one behind the other where they fill the result without a gap, else the sum of the pads."""
    sources: list[TensorView] = []
    end = expr.ZERO
    for tensor in tensors:
        pad_op = tensor.definition()
        if not isinstance(pad_op, LookupOp) or pad_op.op_name != "pad":
            raise WrongCat(problem=f"Expected all inputs to be padded when manual_padding is True. {tensor} is the result of {pad_op}")
        place = pad_op.positions[dim]
        assert isinstance(place, Along)
        if expr.add(place.offset, end) is not expr.ZERO:
            break
        end = expr.add(end, logical_axes(pad_op.source)[dim].logical_extent)
        sources.append(pad_op.source)
    if len(sources) == len(tensors) and end is logical_axes(tensors[0])[dim].logical_extent:
        return cat(fusion, sources, dim)
    out = tensors[0]
    for tensor in tensors[1:]:
        out = cast(fusion, pointwise(fusion, "add", out, tensor), tensors[0].dtype())  # type: ignore[assignment]
    return out


# ---------------------------------------------------------------- triu
def triu(fusion: Fusion, tensor: TensorView, diagonal: Operand = 0) -> TensorView:
    """Return the elements of the last two axes where column - row >= diagonal, 0 elsewhere. Errors: WrongTriu."""
    rank = tensor.ndim
    if rank < 2:
        raise WrongTriu(rank=rank)
    row_count, column_count = (fusion.size_scalar(tensor, dim) for dim in (rank - 2, rank - 1))
    columns = iota(fusion, column_count, None, None, DataType.Int)
    shift = pointwise(fusion, "mul", as_val(fusion, diagonal, "triu"), -1)
    shifted = pointwise(fusion, "add", columns, shift)
    rows = broadcast(fusion, iota(fusion, row_count, None, None, DataType.Int), [False, True])
    is_kept = pointwise(fusion, "ge", shifted, rows)
    dtype = tensor.dtype()
    zero = constant(fusion, False if dtype.is_bool else 0 if dtype.is_integer else 0j if dtype.is_complex else 0.0, dtype)
    return pointwise(fusion, "where", is_kept, tensor, zero)  # type: ignore[return-value]


# ---------------------------------------------------------------- gradients
@gradient_of(CatOp)
def _cat_gradient(o: Calls, node: CatOp, grads: list[Gradient]) -> list[Gradient]:
    """Each part gets its slice."""
    g = filled(o, grads[0], node.outputs[0])  # type: ignore[arg-type]
    dim, start, parts = node.attributes["dim"], expr.ZERO, []
    for part in node.inputs:
        assert isinstance(part, TensorView)
        axes = logical_axes(part)
        positions = [Along(d, start) if d == dim else Along(d) for d in range(part.ndim)]
        parts.append(_lookup(o.fusion, "slice", [g], [o.fusion.copy_axis(axis) for axis in axes], positions, is_masked=False))
        start = expr.add(start, axes[dim].logical_extent)
    return parts  # type: ignore[return-value]
