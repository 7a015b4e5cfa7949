"""Ops that change axes and move no data by themselves: broadcast, expand, squeeze, permute, stride_order.

Owns their rules. reshape is in `reshape.py`; slice, pad and cat are in `resize.py`. Read first: `expand`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from .. import expr
from ..dtypes import DataType
from ..errors import UserError, axes_to_give
from ..expr import Sym
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, ExpandOp, IterDomain, LoadStoreOp, Scalar, SqueezeOp, TensorView
from .build import broadcast, constant, copy, is_plain_broadcast, logical_axes, pointwise
from .calls import Calls
from .gradients import Gradient, filled, gradient_of

Extent = Union[int, Scalar]


class WrongRank(UserError):
    code = "W320"
    what = "{op}: {what_is_given} has {given} entries; {expected} are needed for {tensor}{sentence}"
    fix = "pass one entry per axis"

    def __init__(self, *, sentence: str = "", **values: object) -> None:
        super().__init__(None, sentence=f". {sentence}" if sentence else "", **values)


class WrongDim(UserError):
    code = "W321"
    what = "{op}: Tried to access out of boundary index {dim}: there is no axis {dim} in {tensor}, which has {rank}"
    fix = "{remedy}"


class RepeatedDim(UserError):
    code = "W322"
    what = "{op}: axis {dim} is specified more than once. The axes given are {dims}"
    fix = "name each axis once"


class CannotExpand(UserError):
    code = "W323"
    what = "{op}: Invalid expand size, axis {axis} of {tensor} has extent {extent} and cannot become {wanted}"
    fix = "only axes of extent 1 (broadcast axes) can be expanded"


class CannotSqueeze(UserError):
    code = "W324"
    what = "squeeze: {problem} axis {axis} of {tensor} has extent {extent}"
    fix = "squeeze only axes of extent 1; squeeze_expanded=True drops expanded ones"


class NegativeExtent(UserError):
    code = "W325"
    what = "{op}: extent {extent} of axis {axis} is negative"
    fix = "use an extent of at least 0"


class NotAPermutation(UserError):
    code = "W326"
    what = "{op}: {problem} {dims} is not a permutation of the {rank} axes of {tensor}"
    fix = "name each of the {rank} axes once, counting from 0"


class NotAscending(NotAPermutation):
    what = "broadcast_in_dim: broadcast_dims {dims} must be in ascending order"
    fix = "permute the operand first, and list the axes in ascending order"


def normalize_dim(dim: int, rank: int, op: str, tensor: TensorView) -> int:
    """Return `dim` counted from the front. Errors: WrongDim."""
    if not -rank <= dim < rank:
        raise WrongDim(op=op, dim=dim, tensor=str(tensor), rank=rank, remedy=axes_to_give(rank))
    return dim % rank


def normalize_dims(dims: Sequence[int], rank: int, op: str, tensor: TensorView, *, may_repeat: bool = False) -> list[int]:
    """Return `dims` counted from the front, sorted, each once. Errors: WrongDim, RepeatedDim."""
    out = [normalize_dim(d, rank, op, tensor) for d in dims]
    for i, dim in enumerate(out):
        if dim in out[:i] and not may_repeat:
            raise RepeatedDim(op=op, dim=dim, dims=list(dims))
    return sorted(set(out))


def extent_sym(extent: Extent) -> Sym:
    """Return the expression of an extent; a constant of any integer type is an Int."""
    if isinstance(extent, int):
        return expr.const(extent)
    return expr.const(int(extent.sym.value)) if extent.sym.is_const else extent.sym  # type: ignore[arg-type]


def new_shape_axes(fusion: Fusion, shape: Sequence[Extent], op: str) -> list[IterDomain]:
    """Return new axes for a tensor that is made from nothing: 1 is a broadcast axis, a symbolic size is decided per call. Errors: NegativeExtent."""
    axes = []
    for position, extent in enumerate(shape):
        sym = extent_sym(extent)
        if sym.is_const and sym.value < 0:  # type: ignore[operator]
            raise NegativeExtent(op=op, axis=position, extent=sym.value)
        axes.append(open_axis(fusion, sym))
    return axes


def open_axis(fusion: Fusion, sym: Sym, is_iteration: bool = False, is_view: bool = False) -> IterDomain:
    """Return a new axis whose kind follows from its extent: 1 is broadcast, another constant is not; else it is open, unless known not to be 1."""
    if expr.is_int(sym, 1):
        return fusion.new_axis(1, IterType.broadcast, is_view=is_view)
    return fusion.new_axis(sym, IterType.iteration if sym.is_const or is_iteration else IterType.symbolic, is_view=is_view)


def expand(fusion: Fusion, tensor: TensorView, shape: Sequence[Extent], op: str = "expand") -> TensorView:
    """Return `tensor` with its broadcast axes expanded to `shape` (-1 keeps an axis); the tensor itself when nothing changes.

    A shape of more axes adds leading ones. A size of an axis that is no broadcast must be what the axis has; a call checks what is symbolic.
    Errors: WrongRank, CannotExpand, NegativeExtent.
    """
    missing = len(shape) - tensor.ndim
    if missing < 0:
        raise WrongRank(op=op, what_is_given="the shape", given=len(shape), expected=tensor.ndim, tensor=str(tensor))
    if missing:
        tensor = broadcast(fusion, tensor, [True] * missing + [False] * tensor.ndim)
    axes = logical_axes(tensor)
    new: list[IterDomain] = []
    changed = False
    for position, (axis, extent) in enumerate(zip(axes, shape)):
        sym = extent_sym(extent)
        keep = expr.is_int(sym, -1)
        if sym.is_const and sym.value < 0 and not keep:  # type: ignore[operator]
            raise NegativeExtent(op=op, axis=position, extent=sym.value)
        if keep or (is_plain_broadcast(axis) and expr.is_int(sym, 1)) or sym is axis.logical_extent:
            new.append(fusion.copy_axis(axis))
        elif is_plain_broadcast(axis):
            changed = True
            new.append(fusion.new_axis(1, IterType.broadcast, expanded_extent=sym))
        else:
            new.append(_resized(fusion, tensor, position, axis, sym, op))
            changed |= new[-1].logical_extent is not axis.logical_extent
    if not changed:
        return tensor
    out = fusion.new_tensor(new, tensor.dtype())
    fusion.register(ExpandOp([tensor], [out], op="expand"))
    return out


def _resized(fusion: Fusion, tensor: TensorView, position: int, axis: IterDomain, sym: Sym, op: str) -> IterDomain:
    """Return the axis for one that must have the size `sym` already, or, where it is open, may have 1 in a call."""
    old = axis.logical_extent
    if axis.is_open():
        return fusion.new_axis(sym, IterType.symbolic)
    if old.is_const and sym.is_const and old.value != sym.value:
        raise CannotExpand(op=op, axis=position, tensor=str(tensor), extent=old.value, wanted=sym.value)
    if axis.is_broadcast():
        return fusion.new_axis(1, IterType.broadcast, expanded_extent=sym)
    return fusion.new_axis(sym)


def broadcast_in_dim(fusion: Fusion, tensor: TensorView, shape: Sequence[Extent], broadcast_dims: Sequence[int]) -> TensorView:
    """Return `tensor` with its axis i at `broadcast_dims[i]` of `shape`, the other axes new; then expanded to `shape`."""
    rank = len(shape)
    if len(broadcast_dims) != tensor.ndim:
        raise WrongRank(op="broadcast_in_dim", what_is_given="broadcast_dims", given=len(broadcast_dims), expected=tensor.ndim, tensor=str(tensor))
    dims = [normalize_dim(d, rank, "broadcast_in_dim", tensor) for d in broadcast_dims]
    for i, dim in enumerate(dims):
        if dim in dims[:i]:
            raise RepeatedDim(op="broadcast_in_dim", dim=dim, dims=list(broadcast_dims))
    if dims != sorted(dims):
        raise NotAscending(dims=list(broadcast_dims))
    flags = [i not in dims for i in range(rank)]
    if any(flags):
        tensor = broadcast(fusion, tensor, flags)
    return expand(fusion, tensor, shape, "broadcast_in_dim")


def squeeze(fusion: Fusion, tensor: TensorView, dims: Sequence[int], squeeze_expanded: bool = False) -> TensorView:
    """Return `tensor` without the axes `dims`, which must be of extent 1. Errors: CannotSqueeze, WrongDim, RepeatedDim."""
    axes = logical_axes(tensor)
    if len(dims) > len(axes):
        problem = f"The dims to squeeze must be <= the number of dims: {list(dims)}."
        raise WrongRank(op="squeeze", what_is_given="dims", given=len(dims), expected=f"at most {len(axes)}", tensor=str(tensor), sentence=problem)
    outside = next((dim for dim in dims if not -len(axes) <= dim < len(axes)), None)
    if outside is not None:
        raise CannotSqueeze(problem="Squeeze dim is outside of Tensor size!", axis=outside, tensor=str(tensor), extent="nothing: there is no such axis")
    drop = normalize_dims(dims, len(axes), "squeeze", tensor)
    for dim in drop:
        axis = axes[dim]
        if not axis.is_broadcast() and not axis.is_open():
            reason = "which is not 1" if axis.sym.is_const else "which is known only at run time"
            problem, text = "Can not squeeze non-broadcasting dimension(s).", f"{axis.logical_extent}, {reason}"
            raise CannotSqueeze(problem=problem, axis=dim, tensor=str(tensor), extent=text)
        if axis.expanded_extent is not None and not squeeze_expanded:
            text = f"{axis.expanded_extent}, an expanded broadcast"
            raise CannotSqueeze(problem="Refusing to squeeze expanded IterDomain.", axis=dim, tensor=str(tensor), extent=text)
    if not drop:
        return copy(fusion, tensor)  # type: ignore[return-value]
    out = fusion.new_tensor([fusion.copy_axis(a) for i, a in enumerate(axes) if i not in drop], tensor.dtype())
    fusion.register(SqueezeOp([tensor], [out], op="squeeze", flags=tuple(i in drop for i in range(len(axes)))))
    return out


def permute(fusion: Fusion, tensor: TensorView, dims: Sequence[int]) -> TensorView:
    """Return `tensor` with axis `dims[i]` of it at position i. Errors: NotAPermutation, WrongDim."""
    rank = tensor.ndim
    if len(dims) != rank:
        sentence = "The transformation map is expected to be an argument to have the same length as input!"
        raise WrongRank(op="permute", what_is_given="dims", given=len(dims), expected=rank, tensor=str(tensor), sentence=sentence)
    if any(not -rank <= d < rank for d in dims):
        problem = "New2Old axes are not within the number of dimensions."
        raise NotAPermutation(op="permute", problem=problem, dims=list(dims), rank=rank, tensor=str(tensor))
    order = [d % rank for d in dims]
    if sorted(order) != list(range(rank)):
        raise NotAPermutation(op="permute", problem="Duplicate entries in transformation map.", dims=list(dims), rank=rank, tensor=str(tensor))
    if order == list(range(rank)):
        return copy(fusion, tensor)  # type: ignore[return-value]
    root = [fusion.copy_axis(a) for a in logical_axes(tensor)]
    out = fusion.new_tensor([root[d] for d in order], tensor.dtype(), root=root)
    node = LoadStoreOp([tensor], [out])
    node.attributes["op"] = "permute"
    fusion.register(node)
    return out


def stride_order(fusion: Fusion, tensor: TensorView, order: Sequence[int]) -> TensorView:
    """Return a copy of `tensor` that lies in memory by `order`: axis i has the `order[i]`-th smallest stride (0: innermost)."""
    rank = tensor.ndim
    if not order:
        return copy(fusion, tensor)  # type: ignore[return-value]
    if len(order) != rank:
        raise WrongRank(op="stride_order", what_is_given="stride_order", given=len(order), expected=rank, tensor=str(tensor))
    if any(not -rank <= d < rank for d in order) or len({d % rank for d in order}) != rank:
        raise NotAPermutation(op="stride_order", problem="Stride order is not valid:", dims=list(order), rank=rank, tensor=str(tensor))
    ranks = [d % rank for d in order]
    out = copy(fusion, tensor)
    assert isinstance(out, TensorView)
    set_stride_order(out, ranks)
    return out


def set_stride_order(tensor: TensorView, ranks: Sequence[int]) -> None:
    """Make the allocation domain of `tensor` its logical axes, the largest stride first."""
    domain = tensor.domain()
    logical = domain.logical
    by_stride = sorted(range(len(logical)), key=lambda i: -ranks[i])
    domain.allocation = [logical[i] for i in by_stride]
    domain.contiguity = [None if a.is_broadcast() else True for a in domain.allocation]


def size_product(fusion: Fusion, tensor: TensorView, dims: Sequence[int]) -> Scalar:
    """Return the number of elements over `dims` as an Int scalar."""
    sym = expr.product(logical_axes(tensor)[d].logical_extent for d in dims)
    if sym.is_const:
        return constant(fusion, sym.value, DataType.Int)
    out = fusion.size_scalar(tensor, dims[0])
    for dim in dims[1:]:
        out = pointwise(fusion, "mul", out, fusion.size_scalar(tensor, dim))  # type: ignore[assignment]
    return out


# ---------------------------------------------------------------- gradients
@gradient_of(BroadcastOp)
def _broadcast_gradient(o: Calls, expr: BroadcastOp, grads: list[Gradient]) -> list[Gradient]:
    return [o.sum(grads[0], [dim for dim, is_new in enumerate(expr.attributes["flags"]) if is_new])]


@gradient_of(SqueezeOp)
def _squeeze_gradient(o: Calls, expr: SqueezeOp, grads: list[Gradient]) -> list[Gradient]:
    """A dropped axis that was expanded is n equal elements, each of which gets an n-th."""
    source: TensorView = expr.inputs[0]  # type: ignore[assignment]
    flags = expr.attributes["flags"]
    g = o.broadcast(grads[0], list(flags))
    repeated = [dim for dim, axis in enumerate(logical_axes(source)) if flags[dim] and axis.expanded_extent is not None]
    return [g if not repeated else filled(o, g / size_product(o.fusion, source, repeated), source)]


@gradient_of(ExpandOp)
def _expand_gradient(o: Calls, expr: ExpandOp, grads: list[Gradient]) -> list[Gradient]:
    out: TensorView = expr.outputs[0]  # type: ignore[assignment]
    pairs = zip(logical_axes(expr.inputs[0]), logical_axes(out))  # type: ignore[arg-type]
    dims = [d for d, (old, new) in enumerate(pairs) if old.expanded_extent is None and new.expanded_extent is not None]
    return [o.sum(filled(o, grads[0], out), dims, True)]  # type: ignore[arg-type]
