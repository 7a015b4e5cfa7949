"""Ops along an axis in its order: cumsum, cumprod, cummin and cummax (also with positions), logcumsumexp, linear recurrences; argsort and topk, which
torch runs.

Owns their shapes and types. Read first: `scan`.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import expr
from ..dtypes import DataType
from ..errors import UserError
from ..expr import Sym
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp, TorchOp
from ..ir.values import FullOp, TensorView, Val
from .build import Operand, as_val, cast, constant, copy, is_plain_broadcast, logical_axes, new_axes, own_axis, pad_rank, pointwise
from .promotion import WrongDtype, common_dtype
from .shapes import normalize_dim, open_axis


class NegativeCount(UserError, ValueError):
    code = "W393"
    what = "topk: k is {k}"
    fix = "pass the number of values to keep, 0 or more"


class NoAxisToScan(UserError):
    code = "W391"
    what = "{op}: {tensor} has no axes"
    fix = "pass a tensor with at least one axis"


_OF_TRUTHS = {"sum": "max", "prod": "min"}
"""Monoids that fold truth values: a sum that stays one tells whether any was true, a product whether all were."""


def scan(fusion: Fusion, op: str, kind: str, arg: TensorView, dim: int, init: Operand | None) -> TensorView:
    """Return the running fold of arg along `dim` with the monoid `kind`, from `init` on, in arg's own type.

    Errors: NoAxisToScan, WrongDim; WrongDtype for extrema of complex numbers, logarithms of other numbers than floats, and for floats of 8 and 4 bits.
    """
    arg, dim = _scanned(fusion, op, kind, arg, dim)
    kind = _OF_TRUTHS.get(kind, kind) if arg.dtype().is_bool else kind
    if logical_axes(arg)[dim].is_broadcast() and init is None:
        return copy(fusion, arg)  # type: ignore[return-value]
    out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(arg)], arg.dtype())
    inputs: list[Val] = [arg] if init is None else [arg, cast(fusion, as_val(fusion, init, op), arg.dtype())]
    fusion.register(ScanOp(inputs, [out], op=op, dim=dim, kind=kind))
    return out


def scan_with_positions(fusion: Fusion, op: str, kind: str, arg: TensorView, dim: int) -> tuple[TensorView, TensorView]:
    """Return the running maximum or minimum (`kind` max or min) along `dim`, and where it is: Int, the last position of equal values, and of those that are no
    number, which come before all others. As torch.cummax.

    Errors: NoAxisToScan, WrongDim, WrongDtype.
    """
    arg, dim = _scanned(fusion, op, kind, arg, dim)
    axes = logical_axes(arg)
    if axes[dim].is_broadcast():
        return copy(fusion, arg), _first_positions(fusion, arg)  # type: ignore[return-value]
    values, positions = (fusion.new_tensor([fusion.copy_axis(a) for a in axes], dtype) for dtype in (arg.dtype(), DataType.Int))
    fusion.register(ScanOp([arg], [values, positions], op=op, dim=dim, kind=kind, positions=True))
    return values, positions


def _first_positions(fusion: Fusion, arg: TensorView) -> TensorView:
    """Return position 0 for each element of arg."""
    out = fusion.new_tensor([fusion.copy_axis(a) for a in logical_axes(arg)], DataType.Int)
    fusion.register(FullOp([constant(fusion, 0, DataType.Int)], [out], op="full"))
    return out


def _scanned(fusion: Fusion, op: str, kind: str, arg: TensorView, dim: int) -> tuple[TensorView, int]:
    """Return what is scanned, with an axis of elements along dim or a plain broadcast one, and the axis from the front. Errors: those of `scan`."""
    if arg.ndim == 0:
        raise NoAxisToScan(op=op, tensor=arg)
    dim = normalize_dim(dim, arg.ndim, op, arg)
    if arg.dtype().is_complex and kind in ("max", "min"):
        raise WrongDtype(op=op, allowed="real numbers", dtype=arg.dtype())
    if kind == "logsumexp" and not arg.dtype().is_float:
        raise WrongDtype(op=op, allowed="real floating-point numbers", dtype=arg.dtype())
    _need_arithmetic(op, arg)
    if logical_axes(arg)[dim].expanded_extent is not None:
        arg = with_elements_along(fusion, arg, dim, is_decided=False)
    return arg, dim


def _need_arithmetic(op: str, arg: TensorView) -> None:
    """Refuse types that have no arithmetic, and that torch does not sort either. Errors: WrongDtype."""
    if arg.dtype().is_narrow_float:
        raise WrongDtype(op=op, allowed="numbers of 16 bits and more", dtype=arg.dtype())


def linear_recurrence(fusion: Fusion, gate: TensorView, x: TensorView, dim: int, reverse: bool) -> TensorView:
    """Return y[k] = gate[k] * y[k-1] + x[k] along `dim`, y[k] = gate[k] * y[k+1] + x[k] with `reverse`, where y is 0 before its first element.

    Shapes: those of gate and x broadcast to each other. Type: the common one; 16-bit floats are computed in Float. What is 0 stays 0 whatever its gate is, and
    the first gate does not matter. Errors: NoAxisToScan, WrongDim, WrongDtype, ExtentMismatch.
    """
    op, operands = "linear_recurrence", (gate, x)
    for arg in operands:
        if not arg.dtype().is_float or arg.dtype().is_narrow_float:
            raise WrongDtype(op=op, allowed="real floating-point numbers of 16 bits and more", dtype=arg.dtype())
    rank = max(gate.ndim, x.ndim)
    if rank == 0:
        raise NoAxisToScan(op=op, tensor=x)
    dim = normalize_dim(dim, rank, op, x if x.ndim == rank else gate)
    dtype = common_dtype([gate, x])
    gate, x = _of_one_shape(fusion, [pad_rank(fusion, arg, rank) for arg in operands], op)
    if logical_axes(x)[dim].is_broadcast():
        return copy(fusion, cast(fusion, x, dtype))  # type: ignore[return-value]
    out = fusion.new_tensor(new_axes(fusion, [gate, x], op), dtype)
    fusion.register(ScanOp([gate, x], [out], op=op, dim=dim, kind=op, **({"reverse": True} if reverse else {})))
    return out


def filled_like(fusion: Fusion, op: str, value: Operand, like: TensorView) -> TensorView:
    """Return a tensor of the shape and type of another one, filled with a number."""
    axes = [open_axis(fusion, axis.logical_extent, False) for axis in logical_axes(like)]
    out = fusion.new_tensor(axes, like.dtype())
    fusion.register(FullOp([cast(fusion, as_val(fusion, value, op), like.dtype())], [out], op="full"))
    return out


def _of_one_shape(fusion: Fusion, args: Sequence[TensorView], op: str) -> list[TensorView]:
    """Return tensors of one rank broadcast to each other, with elements along every axis that one of them has some along. Errors: ExtentMismatch."""
    sizes: list[Sym | None] = []
    for axes in zip(*map(logical_axes, args)):
        sizes.append(next((a.logical_extent for a in axes if not is_plain_broadcast(a)), None))
    out = []
    for arg in args:
        missing = [size if axis.is_broadcast() else None for axis, size in zip(logical_axes(arg), sizes)]
        out.append(_with_sizes(fusion, arg, missing, is_decided=False) if any(size is not None for size in missing) else arg)
    return out


def with_elements_along(fusion: Fusion, arg: TensorView, dim: int, is_decided: bool = True) -> TensorView:
    """Return the values of arg, expanded along `dim`, with an axis of elements there: a scan gives each of them another value.

    is_decided: the axis is of this kind in every call; if not, it is as the axes of `full` in a definition.
    """
    return _with_sizes(fusion, arg, [axis.expanded_extent if d == dim else None for d, axis in enumerate(logical_axes(arg))], is_decided)


def _with_sizes(fusion: Fusion, arg: TensorView, sizes: Sequence[Sym | None], is_decided: bool) -> TensorView:
    """Return the values of arg with axes of elements, of these sizes, where one is given and arg is broadcast."""
    axes = [open_axis(fusion, size or expr.ONE, is_decided) for size in sizes]
    everywhere = fusion.new_tensor(axes, DataType.Bool)
    fusion.register(FullOp([constant(fusion, True, DataType.Bool)], [everywhere], op="full"))
    return pointwise(fusion, "where", everywhere, arg, arg)  # type: ignore[return-value]


def _need_order(op: str, arg: TensorView) -> None:
    _need_arithmetic(op, arg)
    if arg.dtype().is_complex:
        raise WrongDtype(op=op, allowed="real numbers", dtype=arg.dtype())


def argsort(fusion: Fusion, arg: TensorView, dim: int, descending: bool, stable: bool) -> TensorView:
    """Return the positions along `dim` in ascending (or descending) order of arg. Errors: WrongDim, WrongDtype."""
    dim = normalize_dim(dim, max(1, arg.ndim), "argsort", arg)
    _need_order("argsort", arg)
    out = fusion.new_tensor([own_axis(fusion, a) for a in logical_axes(arg)], DataType.Int)
    fusion.register(TorchOp([arg], [out], op="argsort", dim=dim, descending=descending, stable=stable))
    return out


def topk(fusion: Fusion, arg: TensorView, k: Sym, dim: int, largest: bool, sorted: bool) -> tuple[TensorView, TensorView]:
    """Return the `k` largest (or smallest) values along `dim`, and their positions. Errors: WrongDim, WrongDtype, NegativeCount."""
    dim = normalize_dim(dim, max(1, arg.ndim), "topk", arg)
    _need_order("topk", arg)
    if k.is_const and k.value < 0:  # type: ignore[operator]
        raise NegativeCount(k=k.value)
    values, indices = (
        fusion.new_tensor([open_axis(fusion, k) if d == dim else own_axis(fusion, a) for d, a in enumerate(logical_axes(arg))], dtype)
        for dtype in (arg.dtype(), DataType.Int)
    )
    fusion.register(TorchOp([arg], [values, indices], op="topk", k=k, dim=dim, largest=largest, sorted=sorted))
    return values, indices
