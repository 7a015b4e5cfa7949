"""Functions of several ops beside nvFuser's names: activations, losses, statistics, normalizations, shapes; each equal to torch's of that name.

Owns their formulas, once for definitions, `weft.nn` and translations of graphs. Where an op of nvFuser leaves 16-bit floats in Float, a composite computes in
Float as well and returns the type that torch returns. Read first: `softmax`, then `COMPOSITES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..dtypes import DataType, as_dtype
from ..errors import UserError, shown
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView
from . import build, shapes
from .calls import Calls
from .gradients import with_gradient
from .arguments import WrongArgument, data_type
from .promotion import WrongDtype

COMPOSITES: dict[str, Callable[..., Any]] = {}


class WrongNormalizedShape(UserError):
    code = "W327"
    what = "{op}: normalized_shape {given} does not fit the last axes of {tensor}, whose extents are {extents}"
    fix = "write the extents of the last axes, or -1 for those known only at execution"


class WrongChoice(UserError, ValueError):
    code = "W328"
    what = "{op}: {argument} cannot be {given!r}"
    fix = "use {allowed}"


def composite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a function to the table, under its name."""
    COMPOSITES[function.__name__.rstrip("_")] = function
    return function


# ---------------------------------------------------------------- what they share
def _tensor(op: str, value: Any) -> TensorView:
    if not isinstance(value, TensorView):
        raise WrongArgument(op=op, problem=f"argument 1 must be a TensorView, not {type(value).__name__}", remedy="pass a TensorView of this definition")
    return value


def _float(op: str, x: TensorView) -> TensorView:
    """Return x in the type that it is computed in. Errors: WrongDtype for what is no float."""
    if not x.dtype().is_float:
        raise WrongDtype(op=op, allowed="floats", dtype=x.dtype())
    out: TensorView = wide(x)
    return out


def home(x: Any) -> Fusion:
    """Return the fusion that a value belongs to."""
    fusion: Fusion = x.fusion
    return fusion


def wide(x: Any) -> Any:
    """Return x with 16-bit floats as Float."""
    return build.cast(home(x), x, DataType.Float) if isinstance(x, TensorView) and x.dtype().is_reduced_float else x


def narrowed(x: TensorView, dtype: Any) -> TensorView:
    """Return x as `dtype` (a DataType or torch dtype)."""
    out: TensorView = build.cast(home(x), x, as_dtype(dtype) or dtype)  # type: ignore[assignment]
    return out


def _dims(op: str, x: TensorView, dims: Any) -> list[int]:
    if dims is None:
        return list(range(x.ndim))
    given = [dims] if isinstance(dims, int) else list(dims)
    if not all(isinstance(d, int) for d in given):
        raise WrongArgument(op=op, problem=f"dims is {shown(dims)}, which is no list of axes", remedy="number the axes: dims=[0], or -1 for the last")
    return shapes.normalize_dims(given, x.ndim, op, x) if given else list(range(x.ndim))


def count(x: TensorView, dims: Sequence[int]) -> Scalar:
    """Return the number of elements over `dims` as an Int scalar."""
    if not dims:
        return build.constant(home(x), 1, DataType.Int)
    return shapes.size_product(home(x), x, dims)


def detached(x: TensorView) -> TensorView:
    """Return x itself, marked: gradients stop here."""
    home(x).detached.add(x)
    return x


@composite
def detach(fusion: Fusion, x: Any) -> TensorView:
    """Return a copy of x through which no gradient flows."""
    return detached(build.copy(fusion, _tensor("detach", x)))  # type: ignore[arg-type]


# ---------------------------------------------------------------- functions of one and two numbers
def _of_one(name: str, meaning: str) -> None:
    def function(fusion: Fusion, x: Any) -> TensorView:
        given = _tensor(name, x)
        y: TensorView = build.pointwise(fusion, name, given)  # type: ignore[assignment]
        return narrowed(y, given.dtype()) if given.dtype().is_float else y

    function.__name__, function.__doc__ = name, f"Return {meaning}."
    composite(function)


_of_one("digamma", "the derivative of lgamma at x: torch.digamma")
_of_one("trigamma", "the second derivative of lgamma at x: torch.polygamma(1, x)")


@composite
def bitcast(fusion: Fusion, x: Any) -> TensorView:
    """Return the bits of x, in Float or Int32, as numbers of the other type: torch.Tensor.view(dtype)."""
    return build.pointwise(fusion, "bitcast", _tensor("bitcast", x))  # type: ignore[return-value]


def _of_two(name: str, meaning: str, of_torch: str = "") -> None:
    def function(fusion: Fusion, a: Any, b: Any) -> TensorView:
        types = {v.dtype() for v in (a, b) if isinstance(v, TensorView)}
        y: TensorView = build.pointwise(fusion, name, a, b)  # type: ignore[assignment]
        return narrowed(y, *types) if len(types) == 1 and all(t.is_float for t in types) else y

    function.__name__, function.__doc__ = name, f"Return {meaning}: torch.{of_torch or name}."
    composite(function)


_of_two("logaddexp", "log(exp(a) + exp(b))")
_of_two("hypot", "the square root of a * a + b * b, whose squares may overflow")
_of_two("copysign", "a with the sign of b")
_of_two("rounded_mul", "a * b, rounded before it is added to anything, so that its bits are the same in every kernel", "mul")


# ---------------------------------------------------------------- softmax
@composite
def softmax(fusion: Fusion, x: Any, dim: int = -1, dtype: Any = None) -> TensorView:
    """Return exp(x) over its sum along dim: torch.softmax. dtype: the result's, x's own unless given."""
    o, out, wide_x = Calls(fusion), dtype or _tensor("softmax", x).dtype(), _float("softmax", x)
    e = o.exp(wide_x - detached(o.max(wide_x, [dim], True)))
    y = with_gradient(e / o.sum(e, [dim], True), [wide_x], lambda o, g, y, x: y * (g - o.sum(g * y, [dim], True)))
    return narrowed(y, out)


@composite
def log_softmax(fusion: Fusion, x: Any, dim: int = -1, dtype: Any = None) -> TensorView:
    """Return log(softmax(x, dim)), computed from x - max: torch.log_softmax."""
    o, out, wide_x = Calls(fusion), dtype or _tensor("log_softmax", x).dtype(), _float("log_softmax", x)
    shifted = wide_x - detached(o.max(wide_x, [dim], True))
    y = shifted - o.log(o.sum(o.exp(shifted), [dim], True))
    return narrowed(with_gradient(y, [wide_x], lambda o, g, y, x: g - o.exp(y) * o.sum(g, [dim], True)), out)


@composite
def logsumexp(fusion: Fusion, x: Any, dims: Any, keepdim: bool = False) -> TensorView:
    """Return log(sum(exp(x))) over dims: torch.logsumexp, -inf for a row of -inf."""
    o, out, wide_x = Calls(fusion), _tensor("logsumexp", x).dtype(), _float("logsumexp", x)
    reduced = _dims("logsumexp", x, dims)
    largest = o.max(wide_x, reduced, True)
    largest = detached(o.where(o.isinf(largest), 0.0, largest))
    total = o.log(o.sum(o.exp(wide_x - largest), reduced, True)) + largest
    with_gradient(total, [wide_x], lambda o, g, y, x: g * o.exp(x - y))
    return narrowed(total if keepdim else o.squeeze(total, reduced), out)


@composite
def softmin(fusion: Fusion, x: Any, dim: int = -1, dtype: Any = None) -> TensorView:
    """Return softmax(-x, dim)."""
    out: TensorView = softmax(fusion, -x, dim, dtype or _tensor("softmin", x).dtype())
    return out


# ---------------------------------------------------------------- statistics
@composite
def mean(fusion: Fusion, x: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> TensorView:
    """Return the mean over dims, all axes unless given: torch.mean."""
    tensor = _tensor("mean", x)
    if dtype is not None:
        tensor = narrowed(tensor, data_type("mean", "dtype", dtype))
    o, reduced = Calls(fusion), _dims("mean", tensor, dims)
    out = tensor.dtype()
    total = o.sum(_float("mean", tensor), reduced, keepdim) if reduced else _float("mean", tensor)
    return narrowed(total / count(tensor, reduced), out)


@composite
def std(fusion: Fusion, x: Any, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> TensorView:
    """Return the standard deviation over dims: torch.std."""
    out = _tensor("std", x).dtype()
    return narrowed(Calls(fusion).sqrt(Calls(fusion).var(_float("std", x), _dims("std", x, dims), correction, keepdim)), out)


@composite
def amax(fusion: Fusion, x: Any, dims: Any = (), keepdim: bool = False) -> TensorView:
    """Return the largest element over dims; gradients are shared among equal ones: torch.amax."""
    return Calls(fusion).max(_tensor("amax", x), _dims("amax", x, dims), keepdim)


@composite
def amin(fusion: Fusion, x: Any, dims: Any = (), keepdim: bool = False) -> TensorView:
    """Return the smallest element over dims; gradients are shared among equal ones: torch.amin."""
    return Calls(fusion).min(_tensor("amin", x), _dims("amin", x, dims), keepdim)


@composite
def any_(fusion: Fusion, x: Any, dims: Any = None, keepdim: bool = False) -> TensorView:
    """Return whether an element over dims is not zero: torch.any, which is false of nothing."""
    return Calls(fusion).sum(narrowed(_tensor("any", x), DataType.Bool), _dims("any", x, dims), keepdim, dtype=DataType.Bool)


@composite
def all_(fusion: Fusion, x: Any, dims: Any = None, keepdim: bool = False) -> TensorView:
    """Return whether every element over dims is not zero: torch.all, which is true of nothing."""
    return Calls(fusion).prod(narrowed(_tensor("all", x), DataType.Bool), _dims("all", x, dims), keepdim, dtype=DataType.Bool)


@composite
def norm(fusion: Fusion, x: Any, p: Any = 2, dims: Any = None, keepdim: bool = False) -> TensorView:
    """Return the p-norm over dims: torch.linalg.vector_norm for p 1, 2, inf and other numbers above 0."""
    o, out, wide_x = Calls(fusion), _tensor("norm", x).dtype(), _float("norm", x)
    reduced = _dims("norm", x, dims)
    if p == math.inf:
        return narrowed(o.max(o.abs(wide_x), reduced, keepdim), out)
    if p == 1:
        return narrowed(o.sum(o.abs(wide_x), reduced, keepdim), out)
    if p == 2:
        return narrowed(o.sqrt(o.sum(wide_x * wide_x, reduced, keepdim)), out)
    if not isinstance(p, (int, float)) or p <= 0:
        raise WrongChoice(op="norm", argument="p", given=p, allowed="a number above 0, or inf")
    return narrowed(o.pow(o.sum(o.pow(o.abs(wide_x), float(p)), reduced, keepdim), 1.0 / p), out)


# ---------------------------------------------------------------- normalizations
def normalized_dims(op: str, x: TensorView, normalized_shape: Any) -> list[int]:
    """Return the last axes that `normalized_shape` (extents, -1 for any; or one extent) names. Errors: WrongNormalizedShape."""
    given = [normalized_shape] if isinstance(normalized_shape, (int, Scalar)) else list(normalized_shape)
    extents = [a.logical_extent for a in build.logical_axes(x)][x.ndim - len(given):] if 0 < len(given) <= x.ndim else []

    def fits(extent: Any, wanted: Any) -> bool:
        return not isinstance(wanted, int) or wanted == -1 or not extent.is_const or int(extent.value) == wanted

    if not extents or not all(map(fits, extents, given)):
        shown = [str(a.logical_extent) for a in build.logical_axes(x)]
        raise WrongNormalizedShape(op=op, given=[str(g) for g in given], tensor=str(x), extents=shown)
    return list(range(x.ndim - len(given), x.ndim))


def _affine(o: Calls, y: TensorView, weight: Any, bias: Any) -> TensorView:
    y = y if weight is None else y * wide(weight)
    return y if bias is None else y + wide(bias)


@composite
def layer_norm(fusion: Fusion, x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> TensorView:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last axes: torch.nn.functional.layer_norm."""
    o, dims, wide_x = Calls(fusion), normalized_dims("layer_norm", _tensor("layer_norm", x), normalized_shape), _float("layer_norm", x)
    variance, average = o.several("var_mean", wide_x, dims, 0, True)
    return narrowed(_affine(o, (wide_x - average) * o.rsqrt(variance + eps), weight, bias), x.dtype())


EPSILON = {DataType.Double: 2.0**-52}
"""torch.finfo(type computed in).eps, 2**-23 for all but Double."""


@composite
def rms_norm(fusion: Fusion, x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> TensorView:
    """Return x / sqrt(mean of squares + eps) * weight over the last axes: torch.nn.functional.rms_norm. eps None: that of the type computed in."""
    o, dims, wide_x = Calls(fusion), normalized_dims("rms_norm", _tensor("rms_norm", x), normalized_shape), _float("rms_norm", x)
    squares = o.sum(wide_x * wide_x, dims, True) / count(x, dims)
    eps = EPSILON.get(x.dtype(), 2.0**-23) if eps is None else eps
    return narrowed(_affine(o, wide_x * o.rsqrt(squares + eps), weight, None), x.dtype())


def _per_channel(o: Calls, value: Any, rank: int) -> Any:
    """Return a tensor of one value per channel (axis 1) with `rank` axes."""
    if not isinstance(value, TensorView) or value.ndim == rank:
        return value
    return o.broadcast(value, [dim != 1 for dim in range(rank)])


@composite
def instance_norm(fusion: Fusion, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> TensorView:
    """Return x normalized over all axes behind the channels (axis 1), per sample: torch.nn.functional.instance_norm with statistics of the input."""
    o, wide_x = Calls(fusion), _float("instance_norm", _tensor("instance_norm", x))
    variance, average = o.several("var_mean", wide_x, list(range(2, x.ndim)), 0, True)
    y = (wide_x - average) * o.rsqrt(variance + eps)
    return narrowed(_affine(o, y, _per_channel(o, weight, x.ndim), _per_channel(o, bias, x.ndim)), x.dtype())


@composite
def batch_norm(
    fusion: Fusion, x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None, training: bool = False, eps: float = 1e-5
) -> TensorView:
    """Return x normalized per channel (axis 1): torch.nn.functional.batch_norm; running statistics are read, not updated (`weft.nn` does that)."""
    o, wide_x = Calls(fusion), _float("batch_norm", _tensor("batch_norm", x))
    if training or running_mean is None:
        variance, average = o.several("var_mean", wide_x, [d for d in range(x.ndim) if d != 1], 0, True)
    else:
        variance, average = (wide(_per_channel(o, v, x.ndim)) for v in (running_var, running_mean))
    y = (wide_x - average) * o.rsqrt(variance + eps)
    return narrowed(_affine(o, y, _per_channel(o, weight, x.ndim), _per_channel(o, bias, x.ndim)), x.dtype())


@composite
def normalize(fusion: Fusion, x: Any, p: Any = 2, dim: Any = 1, eps: float = 1e-12) -> TensorView:
    """Return x over its p-norm along dim, the norm being at least eps: torch.nn.functional.normalize."""
    wide_x = _float("normalize", _tensor("normalize", x))
    length = norm(fusion, wide_x, p, dim, True)
    return narrowed(wide_x / Calls(fusion).maximum(length, eps), x.dtype())


# ---------------------------------------------------------------- shapes
@composite
def unsqueeze(fusion: Fusion, x: Any, dim: int) -> TensorView:
    """Return x with a new axis of extent 1 at dim: torch.unsqueeze."""
    rank = _tensor("unsqueeze", x).ndim + 1
    dim = shapes.normalize_dim(dim, rank, "unsqueeze", x)
    return build.broadcast(fusion, x, [d == dim for d in range(rank)])


@composite
def transpose(fusion: Fusion, x: Any, dim0: int, dim1: int) -> TensorView:
    """Return x with two axes exchanged: torch.transpose."""
    order = list(range(_tensor("transpose", x).ndim))
    a, b = (shapes.normalize_dim(d, len(order), "transpose", x) for d in (dim0, dim1))
    order[a], order[b] = order[b], order[a]
    return shapes.permute(fusion, x, order)


@composite
def broadcast_to(fusion: Fusion, x: Any, shape: Any) -> TensorView:
    """Return x with leading axes added and axes of extent 1 expanded to shape: torch.broadcast_to."""
    return Calls(fusion).expand(build.pad_rank(fusion, _tensor("broadcast_to", x), len(shape)), list(shape))


@composite
def flatten(fusion: Fusion, x: Any, start_dim: int = 0, end_dim: int = -1) -> TensorView:
    """Return x with the axes from start_dim to end_dim merged: torch.flatten."""
    rank = _tensor("flatten", x).ndim
    first, last = (shapes.normalize_dim(d, rank, "flatten", x) for d in (start_dim, end_dim))
    sizes = x.shape()
    return Calls(fusion).reshape(x, [*sizes[:first], count(x, range(first, last + 1)), *sizes[last + 1:]])


@composite
def view(fusion: Fusion, x: Any, shape: Any) -> TensorView:
    """Return x under another shape: torch.Tensor.view (ops.reshape)."""
    return Calls(fusion).reshape(x, list(shape))


def _like(name: str, value: float) -> None:
    def function(fusion: Fusion, x: Any, dtype: Any = None) -> TensorView:
        return Calls(fusion).full(_tensor(name, x).shape(), value, dtype or x.dtype())

    function.__name__, function.__doc__ = name, f"Return a tensor of {value:g} of the shape of x: torch.{name}."
    composite(function)


_like("zeros_like", 0.0)
_like("ones_like", 1.0)


@composite
def full_like(fusion: Fusion, x: Any, fill_value: Any, dtype: Any = None) -> TensorView:
    """Return a tensor of fill_value of the shape of x: torch.full_like."""
    return Calls(fusion).full(_tensor("full_like", x).shape(), fill_value, dtype or x.dtype())


@composite
def zeros(fusion: Fusion, shape: Any, dtype: Any = DataType.Float) -> TensorView:
    """Return a tensor of zeros: torch.zeros."""
    return Calls(fusion).full(list(shape), 0.0, dtype)


@composite
def ones(fusion: Fusion, shape: Any, dtype: Any = DataType.Float) -> TensorView:
    """Return a tensor of ones: torch.ones."""
    return Calls(fusion).full(list(shape), 1.0, dtype)


@composite
def arange(fusion: Fusion, length: Any, dtype: Any = DataType.Int) -> TensorView:
    """Return 0, 1, ... length - 1: torch.arange (ops.iota has start and step)."""
    return Calls(fusion).iota(length, None, None, dtype)


# ---------------------------------------------------------------- selection
@composite
def masked_fill(fusion: Fusion, x: Any, mask: Any, value: Any) -> TensorView:
    """Return value where mask holds, else x: torch.masked_fill."""
    return narrowed(Calls(fusion).where(mask, value, x), _tensor("masked_fill", x).dtype())


@composite
def dropout(fusion: Fusion, x: Any, p: float = 0.5, training: bool = True) -> TensorView:
    """Return x with elements set to 0 at probability p and the others divided by 1 - p: torch.nn.functional.dropout."""
    if not isinstance(p, Scalar) and not 0.0 <= p <= 1.0:
        raise WrongChoice(op="dropout", argument="p", given=p, allowed="a number from 0 to 1")
    if not training or (not isinstance(p, Scalar) and p == 0.0):
        return _tensor("dropout", x)
    o, wide_x = Calls(fusion), _float("dropout", _tensor("dropout", x))
    if not isinstance(p, Scalar) and p == 1.0:
        return narrowed(wide_x * 0.0, x.dtype())
    kept = o.ge(o.uniform(0.0, 1.0, x.shape(), dtype=DataType.Float), p)
    return narrowed(o.where(kept, wide_x, 0.0) * (1.0 / (1.0 - p)), x.dtype())


@composite
def causal_mask(fusion: Fusion, rows: Any, columns: Any) -> TensorView:
    """Return a Bool tensor [rows, columns] that is true where column <= row + columns - rows: what a query may see."""
    o = Calls(fusion)
    row, column = o.iota(rows, None, None, DataType.Int), o.iota(columns, None, None, DataType.Int)
    shift = o.sub(columns, rows) if isinstance(rows, Scalar) or isinstance(columns, Scalar) else columns - rows
    return o.le(unsqueeze(fusion, column, 0), unsqueeze(fusion, row, 1) + shift)


def known(extent: Any) -> Any:
    """Return an Int scalar's number when it is known, else the scalar."""
    return int(extent.sym.value.real) if isinstance(extent, Scalar) and extent.sym.is_const else extent


__all__ = ["COMPOSITES", "composite", "count", "detached", "known", "narrowed", "normalized_dims", "wide"]
