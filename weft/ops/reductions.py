"""Reductions: sum, prod, max, min and Welford's, with what var and var_mean compute from it.

Owns the axis rules: a reduced axis stays in the logical domain as a reduction axis; a broadcast axis is squeezed instead; keepdim is a broadcast on top.
Read first: `reduce`, then `welford`.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import expr
from ..dtypes import DataType
from ..errors import UserError
from ..expr import product
from ..ir.enums import IterType
from ..ir.fusion import AsWritten, Fusion
from ..ir.values import FullOp, IterDomain, PointwiseOp, ReductionOp, Scalar, TensorView, Val, WelfordOp, no_reductions
from .build import broadcast, cast, constant, copy, logical_axes, pointwise
from .calls import Calls
from .gradients import Gradient, NotDifferentiable, gradient_of
from .monoids import MONOIDS, Monoid, StateMonoid
from .promotion import WrongDtype, reduction_dtype
from .shapes import normalize_dims, open_axis, size_product, squeeze


class DtypeNotTaken(UserError):
    code = "W330"
    what = "{op} takes no dtype; {dtype} was given"
    fix = "cast the operand or the result"


class UnknownMonoid(UserError):
    code = "W335"
    what = "no monoid is called {kind}; known are {known}"
    fix = "name one of these, or define it with weft.ops.monoids.define_monoid"


def reduce(fusion: Fusion, kind: str, tensor: TensorView, dims: Sequence[int] | None, keepdim: bool = False, dtype: DataType | None = None) -> TensorView:
    """Fold `dims` of `tensor` (all for None or an empty list) with the monoid `kind`: sum, prod, max, min, or one that `define_monoid` added.

    Shapes: reduced axes vanish, or have extent 1 with keepdim. dtype: the result's; the operand is cast to it first.
    An axis that is named twice is folded once. Errors: WrongDim, DtypeNotTaken (max and min).
    """
    monoid = monoid_of(kind)
    if dtype is not None and kind in ("max", "min"):
        raise DtypeNotTaken(op=kind, dtype=dtype)
    axes = logical_axes(tensor)
    reduced = _reduced_dims(dims, kind, tensor)
    fold_in = reduction_dtype(kind, tensor.dtype()) if dtype is None else DataType.Float if dtype.is_reduced_float else dtype
    out = written = _tensor(cast(fusion, tensor, fold_in))
    broadcasts = [d for d in reduced if axes[d].is_broadcast()]
    repeats = [d for d in broadcasts if axes[d].expanded_extent is not None]
    if broadcasts:
        out = squeeze(fusion, out, broadcasts, squeeze_expanded=True)
    elif not reduced and out is tensor:
        out = _tensor(copy(fusion, out))
    folded = [d - sum(b < d for b in broadcasts) for d in reduced if d not in broadcasts]
    if folded:
        out = _fold(fusion, kind, out, folded)
    if repeats:
        out = repeated(fusion, monoid, out, size_product(fusion, tensor, repeats))
        fusion.as_written[out] = AsWritten(kind, written, tuple(reduced))
    if dtype is not None:
        out = _tensor(cast(fusion, out, dtype))
    return keep_dims(fusion, out, reduced, len(axes)) if keepdim else out


def _reduced_dims(dims: Sequence[int] | None, op: str, tensor: TensorView) -> list[int]:
    """Return the axes to reduce, counted from the front: all for None or an empty list. A tensor without axes may be reduced over axis 0 or -1, as in torch.

    Errors: WrongDim.
    """
    if not dims:
        return list(range(tensor.ndim))
    found = normalize_dims(dims, max(1, tensor.ndim), op, tensor, may_repeat=True)
    return found if tensor.ndim else []


def monoid_of(kind: str) -> Monoid:
    """Return the monoid called `kind`. Errors: UnknownMonoid."""
    found = MONOIDS.get(kind)
    if found is None:
        raise UnknownMonoid(kind=kind, known=", ".join(MONOIDS))
    return found


def repeated(fusion: Fusion, monoid: Monoid, value: TensorView, count: Scalar) -> TensorView:
    """Return `value` combined with itself `count` times."""
    return value if monoid.repeat is None else _tensor(monoid.repeat(Calls(fusion), value, count))


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value


def keep_dims(fusion: Fusion, tensor: TensorView, reduced: Sequence[int], rank: int) -> TensorView:
    """Put axes of extent 1 where the reduced axes were."""
    return broadcast(fusion, tensor, [d in reduced for d in range(rank)]) if reduced else tensor


def _reduced_axes(fusion: Fusion, tensor: TensorView, dims: Sequence[int]) -> list[IterDomain]:
    return [fusion.copy_axis(a, IterType.reduction if i in dims else None) for i, a in enumerate(logical_axes(tensor))]


def _fold(fusion: Fusion, kind: str, tensor: TensorView, dims: Sequence[int]) -> TensorView:
    if tensor.dtype().is_complex and kind in ("max", "min"):
        raise WrongDtype(op=kind, allowed="real numbers", dtype=tensor.dtype())
    out = fusion.new_tensor(_reduced_axes(fusion, tensor, dims), tensor.dtype())
    fusion.register(ReductionOp([tensor], [out], op=kind, kind=kind))
    return out


def fold_state(
    fusion: Fusion, monoid: StateMonoid, operands: Sequence[TensorView], dims: Sequence[int], names: Sequence[str] | None = None
) -> list[TensorView]:
    """Fold `dims` of the operands together with a monoid of several fields; return the fields `names`, or all in order.

    Shapes: the operands have the same rank; where the first has an axis that is not broadcast, others may have a broadcast one.
    """
    kind = monoid.state(operands[0].dtype())
    state = fusion.new_tensor(_reduced_axes(fusion, operands[0], dims), kind)
    fusion.register(ReductionOp(list(operands), [state], op=monoid.kind, kind=monoid.kind))
    fields = []
    for name in monoid.fields if names is None else names:
        axes = [fusion.copy_axis(a) for d, a in enumerate(logical_axes(operands[0])) if d not in dims]
        value = fusion.new_tensor(axes, monoid.fields[name](operands[0].dtype()))
        fusion.register(PointwiseOp([state], [value], op=f"{monoid.kind}.{name}", compute=kind))
        fields.append(value)
    return fields


def _filled_count(fusion: Fusion, count: TensorView) -> TensorView:
    """Return the count of a WelfordOp as a tensor of its own: it is the same for all elements, and a kernel of the other results has no place for it."""
    axes = count.get_logical_domain()
    elements = fusion.new_scalar(product(a.logical_extent for a in axes if a.is_reduction()), DataType.Int)
    out = fusion.new_tensor([open_axis(fusion, a.logical_extent) for a in no_reductions(axes)], DataType.Int)  # as `full` makes it
    fusion.register(FullOp([elements], [out], op="full"))
    return out


def welford(fusion: Fusion, tensor: TensorView, dims: Sequence[int], has_count: bool = False) -> tuple[TensorView, TensorView, TensorView]:
    """Return (average, sum of squared deviations, count) over `dims` (all when empty); the count is Int.

    has_count: somebody reads the count, so that it is a tensor of its own.
    Of complex numbers the average is complex, and the deviations are distances: those of the real and of the imaginary parts add up.
    Errors: WrongDtype for integers, WrongDim.
    """
    dtype = tensor.dtype()
    if dtype.is_complex:
        of_real = welford(fusion, _tensor(pointwise(fusion, "real", tensor)), dims, has_count)
        of_imag = welford(fusion, _tensor(pointwise(fusion, "imag", tensor)), dims)
        average, squares = pointwise(fusion, "complex", of_real[0], of_imag[0]), pointwise(fusion, "add", of_real[1], of_imag[1])
        return _tensor(average), _tensor(squares), of_real[2]
    if not dtype.is_float:
        raise WrongDtype(op="welford", allowed="floats", dtype=dtype)
    axes = logical_axes(tensor)
    reduced = _reduced_dims(dims, "welford", tensor)
    x = source = _tensor(cast(fusion, tensor, DataType.Float if dtype.is_reduced_float else dtype))
    broadcasts = [d for d in reduced if axes[d].is_broadcast()]
    if broadcasts:
        x = squeeze(fusion, x, broadcasts, squeeze_expanded=True)
    folded = [d - sum(b < d for b in broadcasts) for d in reduced if d not in broadcasts]
    if folded:
        average, squares = (fusion.new_tensor(_reduced_axes(fusion, x, folded), x.dtype()) for _ in range(2))
        count = fusion.new_tensor(_reduced_axes(fusion, x, folded), DataType.Int)
        fusion.register(WelfordOp([x], [average, squares, count], op="welford"))
        count = _filled_count(fusion, count) if has_count else count
    else:  # one value: its own average
        average = _tensor(copy(fusion, x))
        squares = _tensor(pointwise(fusion, "sub", x, x))
        count = _tensor(cast(fusion, pointwise(fusion, "logical_or", pointwise(fusion, "isnan", x), True), DataType.Int))
    repeats = [d for d in broadcasts if axes[d].expanded_extent is not None]
    if repeats:
        times = size_product(fusion, tensor, repeats)
        squares = _tensor(pointwise(fusion, "mul", squares, times))
        count = _tensor(pointwise(fusion, "mul", count, times))
        for field, value in enumerate((squares, count), start=1):
            fusion.as_written[value] = AsWritten("welford", source, tuple(reduced), field)
    return average, squares, count


def var_mean(fusion: Fusion, tensor: TensorView, dims: Sequence[int], correction: int | float = 1, keepdim: bool = False) -> tuple[TensorView, TensorView]:
    """Return (variance, mean) over `dims` (all when empty): the sum of squared deviations over max(count - correction, 0), as torch."""
    rank = tensor.ndim
    reduced = _reduced_dims(dims, "var_mean", tensor)
    mean, squares, _ = welford(fusion, tensor, reduced)
    variance = _tensor(pointwise(fusion, "mul", squares, _reciprocal_count(fusion, tensor, reduced, correction)))
    if keepdim:
        return keep_dims(fusion, variance, reduced, rank), keep_dims(fusion, mean, reduced, rank)
    return variance, mean


def _reciprocal_count(fusion: Fusion, tensor: TensorView, reduced: Sequence[int], correction: int | float) -> Scalar:
    """Return 1 / max(count - correction, 0) as a Double scalar; one constant when the sizes are known."""
    sym = expr.product(logical_axes(tensor)[d].logical_extent for d in reduced)
    if sym.is_const:
        left = max(float(sym.value) - correction, 0.0)  # type: ignore[arg-type]
        return constant(fusion, 1 / left if left else float("inf"), DataType.Double)
    count = cast(fusion, size_product(fusion, tensor, reduced), DataType.Double)
    left_scalar = pointwise(fusion, "sub", count, float(correction)) if correction else count
    if correction > 0:
        left_scalar = pointwise(fusion, "maximum", left_scalar, 0.0)
    return pointwise(fusion, "reciprocal", left_scalar)  # type: ignore[return-value]


# ---------------------------------------------------------------- gradients
def _over_input(o: Calls, expr: ReductionOp | WelfordOp, value: TensorView) -> TensorView:
    """Return a result of the reduction, or what flows to it, with axes of extent 1 where axes were reduced."""
    axes = expr.outputs[0].get_logical_domain()  # type: ignore[attr-defined]
    return o.broadcast(value, [axis.is_reduction() for axis in axes])


@gradient_of(ReductionOp)
def _reduction_gradient(o: Calls, expr: ReductionOp, grads: list[Gradient]) -> list[Gradient]:
    x, y = expr.inputs[0], expr.outputs[0]
    assert isinstance(x, TensorView) and isinstance(y, TensorView)
    g = _over_input(o, expr, grads[0])  # type: ignore[arg-type]
    kind = expr.attributes["kind"]
    dims = [dim for dim, axis in enumerate(y.get_logical_domain()) if axis.is_reduction()]
    if kind == "sum":
        return [g]
    if kind in ("max", "min"):  # shared among equal elements, as torch.amax
        is_found = o.eq(x, _over_input(o, expr, y))
        return [o.where(is_found, g / o.sum(o.cast(is_found, g.dtype()), dims, True), 0.0)]
    if kind == "prod":  # of the others: where one element is 0, only it gets something
        is_zero = o.eq(x, 0.0)
        zeros = o.sum(o.cast(is_zero, g.dtype()), dims, True)
        others = o.prod(o.where(is_zero, 1.0, x), dims, True)
        alone = o.cast(o.eq(zeros, 1.0), g.dtype())
        return [g * others * o.where(is_zero, alone, o.where(o.eq(zeros, 0.0), 1.0 / o.where(is_zero, 1.0, x), 0.0))]
    raise NotDifferentiable(expr)


@gradient_of(WelfordOp)
def _welford_gradient(o: Calls, expr: WelfordOp, grads: list[Gradient]) -> list[Gradient]:
    x, average = expr.inputs[0], expr.outputs[0]
    assert isinstance(x, TensorView) and isinstance(average, TensorView)
    dims = [dim for dim, axis in enumerate(average.get_logical_domain()) if axis.is_reduction()]
    total: Gradient = None
    if grads[0] is not None:
        total = _over_input(o, expr, grads[0]) / size_product(o.fusion, x, dims)
    if grads[1] is not None:
        squares = (x - _over_input(o, expr, average)) * (_over_input(o, expr, grads[1]) * 2.0)
        total = squares if total is None else total + squares
    return [total]
