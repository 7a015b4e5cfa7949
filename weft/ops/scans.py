"""Ops along an axis in its order: cumsum, cumprod, cummin and cummax (also with positions), logcumsumexp; argsort and topk, which torch runs.

Owns their shapes and types. Read first: `scan`.
"""

from __future__ import annotations

from .. import expr
from ..dtypes import DataType
from ..errors import UserError
from ..expr import Sym
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp, TorchOp
from ..ir.values import FullOp, TensorView, Val
from .build import Operand, as_val, cast, constant, copy, logical_axes, own_axis, pointwise
from .promotion import WrongDtype
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


def with_elements_along(fusion: Fusion, arg: TensorView, dim: int, is_decided: bool = True) -> TensorView:
    """Return the values of arg, expanded along `dim`, with an axis of elements there: a scan gives each of them another value.

    is_decided: the axis is of this kind in every call; if not, it is as the axes of `full` in a definition.
    """
    sizes = [axis.expanded_extent if d == dim else None for d, axis in enumerate(logical_axes(arg))]
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
