"""The front end's ops: 134 functions with nvFuser's names and signatures, each taking the fusion first.

Owns argument checking (TypeError for an argument of a wrong kind, `UserError` for a wrong value) and the list of ops that this version does not have.
Nothing here knows how an op is computed. Read first: `FUNCTIONS`, then `UNSUPPORTED`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..dtypes import DataType, as_dtype
from ..errors import Unsupported, UserError
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val
from . import block_functions, build, factories, index_functions, reductions, shapes, torch_functions, view_functions
from .arguments import WrongArgument, boolean as _bool, booleans as _bools, data_type as _dtype, element_type as _element_type, extents as _shape
from .arguments import integer as _int, integers as _ints
from .arguments import number as _number, operand as _operand, optional_data_type as _optional_dtype, scalar as _scalar, tensor as _tensor, wrong as _wrong
from .registry import OPS, UnknownOp, nearest_names

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _add(function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    FUNCTIONS[name or function.__name__.rstrip("_")] = function
    return function


def lookup(name: str) -> Callable[..., Any]:
    """Return the front end's function `name`. Errors: UnknownOp, which lists the nearest names."""
    found = FUNCTIONS.get(name)
    if found is None:
        raise UnknownOp(name=name, nearest=nearest_names(name, FUNCTIONS))
    return found


# ---------------------------------------------------------------- pointwise
_BY_HAND = {
    "cast", "sign", "complex", "imag", "where", "lerp", "clamp", "threshold", "logaddexp", "hypot", "copysign", "digamma", "trigamma", "rounded_mul", "bitcast",
}  # fmt: skip
"""Their functions check more than the number of operands, or return torch's type."""


def _unary(name: str) -> None:
    def function(fusion: Fusion, x: Any, /) -> Any:
        return build.pointwise(fusion, name, _operand(name, "argument 1", x))

    function.__name__, function.__doc__ = name, f"Return {name}(x), elementwise."
    _add(function)


def _binary(name: str) -> None:
    def function(fusion: Fusion, a: Any, b: Any, /) -> Any:
        return build.pointwise(fusion, name, _operand(name, "argument 1", a), _operand(name, "argument 2", b))

    function.__name__, function.__doc__ = name, f"Return {name}(a, b), elementwise."
    _add(function)


for _op in OPS.values():
    if not _op.is_internal and _op.name not in _BY_HAND:
        (_unary if _op.arity == 1 else _binary)(_op.name)


def sign(fusion: Fusion, x: Any, /) -> Any:
    """Return -1, 0 or 1, in the type of x."""
    given = build.as_val(fusion, _operand("sign", "argument 1", x), "sign")
    return build.cast(fusion, build.pointwise(fusion, "sign", given), given.dtype())  # type: ignore[attr-defined]


def imag(fusion: Fusion, x: Any, /) -> Any:
    """Return the imaginary parts of x, which is complex."""
    operand = _operand("imag", "argument 1", x)
    if not build.as_val(fusion, operand, "imag").dtype().is_complex:  # type: ignore[attr-defined]
        raise WrongArgument(op="imag", problem="imag not supported for non-complex tensors", remedy="cast x to a complex type first")
    return build.pointwise(fusion, "imag", operand)


def set_(fusion: Fusion, x: Any, /) -> Any:
    """Return a copy of x."""
    return build.copy(fusion, build.as_val(fusion, _operand("set", "argument 1", x), "set"))


def segment_set(fusion: Fusion, x: Any, /) -> Any:
    """Return a copy of x; what reads it runs in another kernel."""
    return build.copy(fusion, build.as_val(fusion, _operand("segment_set", "argument 1", x), "segment_set"), segment=True)


def rand_like(fusion: Fusion, x: Any, /) -> TensorView:
    """Return numbers uniform in [0, 1) of the shape and type of x."""
    return factories.random_like(fusion, "uniform", _tensor("rand_like", "argument 1", x))


def randn_like(fusion: Fusion, x: Any, /) -> TensorView:
    """Return standard normal numbers of the shape and type of x."""
    return factories.random_like(fusion, "normal", _tensor("randn_like", "argument 1", x))


def complex_(fusion: Fusion, real: Any, imag: Any, /) -> Any:
    """Return real + i imag, of two tensors or two scalars."""
    for position, value in enumerate((real, imag), 1):
        if not isinstance(value, Val):
            raise _wrong("complex", f"argument {position}", "a TensorView or a scalar", value)
    if isinstance(real, TensorView) != isinstance(imag, TensorView):
        raise TypeError("complex(): both arguments must be TensorViews, or both scalars")
    return build.pointwise(fusion, "complex", real, imag)


class WrongCondition(UserError):
    code = "W375"
    what = "where: Condition should be of DataType Bool, not {dtype}"
    fix = "compare the condition with 0, or cast it to Bool"


def where(fusion: Fusion, condition: Any, a: Any, b: Any, /) -> Any:
    """Return a where condition holds, else b."""
    operands = [_operand("where", f"argument {i + 1}", v) for i, v in enumerate((condition, a, b))]
    dtype = build.as_val(fusion, operands[0], "where").dtype()  # type: ignore[attr-defined]
    if dtype is not DataType.Bool:
        raise WrongCondition(dtype=dtype.value)
    return build.pointwise(fusion, "where", *operands)


def lerp(fusion: Fusion, start: Any, end: Any, weight: Any, /) -> Any:
    """Return start + weight * (end - start)."""
    return build.pointwise(fusion, "lerp", *(_operand("lerp", f"argument {i + 1}", v) for i, v in enumerate((start, end, weight))))


def clamp(fusion: Fusion, x: Any, low: Any, high: Any, /) -> Any:
    """Return x limited to low .. high."""
    return build.pointwise(fusion, "clamp", _operand("clamp", "argument 1", x), _scalar("clamp", "argument 2", low), _scalar("clamp", "argument 3", high))


def threshold(fusion: Fusion, x: Any, limit: Any, value: Any, /) -> Any:
    """Return x where it is above limit, else value."""
    scalars = (_scalar("threshold", "argument 2", limit), _scalar("threshold", "argument 3", value))
    return build.pointwise(fusion, "threshold", _operand("threshold", "argument 1", x), *scalars)


def addcmul(fusion: Fusion, a: Any, b: Any, c: Any, value: Any, /) -> Any:
    """Return a + value * b * c."""
    scaled = build.pointwise(fusion, "mul", _operand("addcmul", "argument 2", b), _scalar("addcmul", "argument 4", value))
    return build.pointwise(fusion, "add", _operand("addcmul", "argument 1", a), build.pointwise(fusion, "mul", scaled, _operand("addcmul", "argument 3", c)))


def cast(fusion: Fusion, arg: Any, dtype: DataType) -> Any:
    """Return arg as dtype."""
    value = build.as_val(fusion, _operand("cast", "arg", arg), "cast")
    dtype = _dtype("cast", "dtype", dtype)
    if value.dtype() is dtype:  # type: ignore[attr-defined]
        return build.copy(fusion, value)
    return build.cast(fusion, value, dtype)


# ---------------------------------------------------------------- reductions
def _require_axes(op: str, tensor: TensorView, dims: Sequence[int] | None) -> None:
    """Refuse an empty list of axes, which torch reads as all of them, and nvFuser as a mistake. Errors: WrongArgument."""
    if dims is not None and not dims and tensor.ndim:
        raise WrongArgument(op=op, problem="No reduction axis specified: the list of axes is empty", remedy="name axes; without the argument all are reduced")


def reduction_function(name: str) -> Callable[..., TensorView]:
    """Return the front end's function of the reduction with the monoid `name`."""

    def function(fusion: Fusion, arg: Any, *args: Any, **kwargs: Any) -> TensorView:
        dims, keepdim, dtype = _reduction_arguments(name, args, kwargs)
        tensor = _tensor(name, "arg", arg)
        _require_axes(name, tensor, dims)
        return reductions.reduce(fusion, name, tensor, dims, keepdim, dtype)

    function.__name__, function.__doc__ = name, f"{name}(arg, dtype=Null) over all axes, or {name}(arg, dim or dims, keepdim=False, dtype=Null)."
    function.__signature__ = _REDUCTION_SIGNATURE  # type: ignore[attr-defined]
    return function


def _reduction_example(fusion: Fusion, arg: Any, dims: Any = None, keepdim: bool = False, dtype: Any = DataType.Null) -> TensorView:
    """What the signatures of reductions show."""
    raise NotImplementedError


_REDUCTION_SIGNATURE = inspect.signature(_reduction_example)


def _reduction_arguments(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[int] | None, bool, DataType | None]:
    names = ["dtype"] if args and as_dtype(args[0]) is not None else ["dims", "keepdim", "dtype"]
    if len(args) > len(names):
        raise WrongArgument(op=op, problem=f"{len(args) + 1} arguments, at most {len(names) + 1} are taken", remedy=f"write {op}(x, dims, keepdim, dtype)")
    given = dict(zip(names, args))
    for key, value in kwargs.items():
        key = "dims" if key == "dim" else key
        if key in given or key not in ("dims", "keepdim", "dtype"):
            problem = f"argument {key!r} is {'given twice' if key in given else 'unknown'}"
            raise WrongArgument(op=op, problem=problem, remedy=f"write {op}(x, dims, keepdim=False, dtype=...)")
        given[key] = value
    dims = given.get("dims")
    if "dims" not in given:
        if "keepdim" in given:
            raise WrongArgument(op=op, problem="keepdim needs dims", remedy=f"name the axes: {op}(x, [-1], keepdim=True)")
    elif isinstance(_number(dims), int):
        dims = [_int(op, "dim", dims)]
    elif not isinstance(dims, Sequence) or isinstance(dims, (str, bytes)):
        raise _wrong(op, "dims", "an int, or a list or tuple of ints", dims)
    else:
        dims = _ints(op, "dims", dims)
    return dims, _bool(op, "keepdim", given.get("keepdim", False)), _optional_dtype(op, given.get("dtype", DataType.Null))


for _name in ("max", "min", "prod", "sum"):
    _add(reduction_function(_name))


def var(fusion: Fusion, arg: Any, dims: Any, correction: Any = 1, keepdim: bool = False) -> TensorView:
    """Return the variance over dims."""
    return _var_mean("var", fusion, arg, dims, correction, keepdim)[0]


def var_mean(fusion: Fusion, arg: Any, dims: Any, correction: Any = 1, keepdim: bool = False) -> tuple[TensorView, TensorView]:
    """Return (variance, mean) over dims."""
    return _var_mean("var_mean", fusion, arg, dims, correction, keepdim)


def _var_mean(op: str, fusion: Fusion, arg: Any, dims: Any, correction: Any, keepdim: Any) -> tuple[TensorView, TensorView]:
    correction = _number(correction)
    if isinstance(correction, bool) or not isinstance(correction, (int, float)):
        raise _wrong(op, "correction", "an int", correction)
    if correction < 0:
        raise WrongArgument(op=op, problem=f"correction must be non-negative, and {correction} was given", remedy="use 0 or more; torch's default is 1")
    tensor, axes = _tensor(op, "arg", arg), _ints(op, "dims", dims)
    _require_axes(op, tensor, axes)
    if op == "var_mean" and tensor.dtype().is_reduced_float:
        problem = f"variance_mean is not supported for {tensor.dtype()}"
        raise WrongArgument(op=op, problem=problem, remedy="cast the operand to DataType.Float, which the result has in any case")
    return reductions.var_mean(fusion, tensor, axes, correction, _bool(op, "keepdim", keepdim))


def welford(fusion: Fusion, arg: Any, dims: Any) -> tuple[TensorView, TensorView, TensorView]:
    """Return (average, sum of squared deviations, count) over dims."""
    tensor, axes = _tensor("welford", "arg", arg), _ints("welford", "dims", dims)
    _require_axes("welford", tensor, axes)
    return reductions.welford(fusion, tensor, axes, has_count=True)


# ---------------------------------------------------------------- shapes
def broadcast(fusion: Fusion, arg: Any, is_broadcast_dim: Any) -> TensorView:
    """Return arg with new axes of extent 1 where is_broadcast_dim is true."""
    tensor = _tensor("broadcast", "arg", arg)
    is_broadcast_dim = _bools("broadcast", "is_broadcast_dim", is_broadcast_dim)
    own = sum(not f for f in is_broadcast_dim)
    if own != tensor.ndim:
        sentence = f"Invalid broadcast, number of false entries in is_broadcast_dim expected to be {tensor.ndim}, but is {own}"
        what = "is_broadcast_dim (without the new axes)"
        raise shapes.WrongRank(op="broadcast", what_is_given=what, given=own, expected=tensor.ndim, tensor=str(tensor), sentence=sentence)
    if not any(is_broadcast_dim):
        return tensor
    return build.broadcast(fusion, tensor, is_broadcast_dim)


def broadcast_in_dim(fusion: Fusion, arg: Any, shape: Any, broadcast_dims: Any) -> TensorView:
    """Return arg with axis i at broadcast_dims[i] of shape, expanded to shape."""
    return shapes.broadcast_in_dim(
        fusion, _tensor("broadcast_in_dim", "arg", arg), _shape(fusion, "broadcast_in_dim", "shape", shape),
        _ints("broadcast_in_dim", "broadcast_dims", broadcast_dims),
    )  # fmt: skip


def expand(fusion: Fusion, arg: Any, shape: Any) -> TensorView:
    """Return arg with its axes of extent 1 expanded to shape (-1 keeps an axis)."""
    return shapes.expand(fusion, _tensor("expand", "arg", arg), _shape(fusion, "expand", "shape", shape))


def squeeze(fusion: Fusion, arg: Any, dims: Any, squeeze_expanded: bool = False) -> TensorView:
    """Return arg without the axes dims, which have extent 1."""
    return shapes.squeeze(fusion, _tensor("squeeze", "arg", arg), _ints("squeeze", "dims", dims), _bool("squeeze", "squeeze_expanded", squeeze_expanded))


def permute(fusion: Fusion, arg: Any, dims: Any) -> TensorView:
    """Return arg with axis dims[i] of it at position i."""
    return shapes.permute(fusion, _tensor("permute", "arg", arg), _ints("permute", "dims", dims))


def stride_order(fusion: Fusion, arg: Any, stride_order: Any) -> TensorView:
    """Return arg with a memory layout: stride_order[i] counts axis i's place from the innermost (0)."""
    return shapes.stride_order(fusion, _tensor("stride_order", "arg", arg), _ints("stride_order", "stride_order", stride_order))


def size(fusion: Fusion, arg: Any, dim: Any) -> Scalar:
    """Return the extent of axis dim."""
    tensor = _tensor("size", "arg", arg)
    return tensor.size(shapes.normalize_dim(_int("size", "dim", dim), tensor.ndim, "size", tensor))


def shape(fusion: Fusion, arg: Any) -> list[Scalar]:
    """Return the extents of all axes."""
    return _tensor("shape", "arg", arg).shape()


# ---------------------------------------------------------------- factories
def full(fusion: Fusion, shape: Any, fill_value: Any, dtype: Any) -> TensorView:
    """Return a tensor of shape filled with fill_value."""
    return factories.full(fusion, _shape(fusion, "full", "shape", shape), _scalar("full", "fill_value", fill_value), _element_type("full", "dtype", dtype))


def iota(fusion: Fusion, length: Any, start: Any = None, step: Any = None, dtype: Any = DataType.Int) -> TensorView:
    """Return start + step * i for i below length."""
    extent = _shape(fusion, "iota", "length", [length])[0]
    start = None if start is None else _scalar("iota", "start", start)
    step = None if step is None else _scalar("iota", "step", step)
    return factories.iota(fusion, extent, start, step, _dtype("iota", "dtype", dtype))


def _random(op: str, fusion: Fusion, a: Any, b: Any, shape: Any, seed: Any, offset: Any, dtype: Any) -> TensorView:
    given = (("rng_seed", seed), ("rng_offset", offset))
    seed, offset = (value if value is None or isinstance(value, TensorView) else _scalar(op, name, value) for name, value in given)
    return factories.random_of_shape(fusion, op, a, b, _shape(fusion, op, "shape", shape), _dtype(op, "dtype", dtype), seed, offset)


def uniform(fusion: Fusion, minval: Any, maxval: Any, shape: Any, *, rng_seed: Any = None, rng_offset: Any = None, dtype: Any = DataType.Float) -> TensorView:
    """Return numbers uniform in [minval, maxval)."""
    return _random("uniform", fusion, _scalar("uniform", "minval", minval), _scalar("uniform", "maxval", maxval), shape, rng_seed, rng_offset, dtype)


def normal(fusion: Fusion, mean: Any, std: Any, shape: Any, *, rng_seed: Any = None, rng_offset: Any = None, dtype: Any = DataType.Float) -> TensorView:
    """Return normal numbers of this mean and standard deviation."""
    return _random("normal", fusion, _scalar("normal", "mean", mean), _scalar("normal", "std", std), shape, rng_seed, rng_offset, dtype)


for _function in (
    sign, imag, set_, segment_set, rand_like, randn_like, complex_, where, lerp, clamp, threshold, addcmul, cast, var, var_mean, welford, broadcast,
    broadcast_in_dim, expand, squeeze, permute, stride_order, size, shape, full, iota, uniform, normal,
):  # fmt: skip
    _add(_function)
FUNCTIONS.update(view_functions.FUNCTIONS)
FUNCTIONS.update(index_functions.FUNCTIONS)
FUNCTIONS.update((function.__name__, function) for function in torch_functions.TORCH_FUNCTIONS)
FUNCTIONS.update(block_functions.FUNCTIONS)


# ---------------------------------------------------------------- valid, not done here
_BF16 = DataType.BFloat16
_NO_VALUE = object()  # marks an argument without a default

# name -> (argument, default) pairs; those called arg, input, mat1 ... are tensors. A keyword-only part does not occur.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cutlass_nvfp4_grouped_mm": ("mat1", "mat2", "scale1", "scale2", "alpha", "problem_sizes", "expert_offsets", "sf_offsets", ("dtype", _BF16)),
}  # fmt: skip
UNSUPPORTED: dict[str, tuple[tuple[str, Any], ...]] = {
    name: tuple((a, _NO_VALUE) if isinstance(a, str) else a for a in arguments) for name, arguments in _SIGNATURES.items()
}
_TENSOR_ARGUMENTS = {"arg", "arg1", "arg2", "mat1", "mat2", "input", "weight", "query", "key"}
_INT_ARGUMENTS = {"dim"}


def _unsupported(name: str, arguments: tuple[tuple[str, Any], ...]) -> None:
    def function(fusion: Fusion, *args: Any, **kwargs: Any) -> Any:
        given = _bind(name, arguments, args, kwargs)
        for key, value in given.items():
            if key in _TENSOR_ARGUMENTS:
                _tensor(name, key, value)
            elif key in _INT_ARGUMENTS:
                _int(name, key, value)
        raise Unsupported(name)

    text = ", ".join(a if default is _NO_VALUE else f"{a}={default}" for a, default in arguments)
    function.__name__, function.__doc__ = name, f"{name}({text}) is not supported yet."
    _add(function)


def _bind(name: str, arguments: tuple[tuple[str, Any], ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the given arguments by name. Errors: TypeError as Python's own call would raise."""
    shown = ", ".join(a if default is _NO_VALUE else f"{a}={default}" for a, default in arguments)
    if len(args) > len(arguments):
        raise WrongArgument(op=name, problem=f"{len(args)} arguments were given, it takes {len(arguments)}", remedy=f"write {name}({shown})")
    given = {a: value for (a, _), value in zip(arguments, args)}
    known = dict(arguments)
    for key, value in kwargs.items():
        if key not in known or key in given:
            problem = f"argument {key!r} is {'given twice' if key in given else 'unknown'}"
            raise WrongArgument(op=name, problem=problem, remedy=f"write {name}({shown})")
        given[key] = value
    missing = [a for a, default in arguments if default is _NO_VALUE and a not in given]
    if missing:
        raise WrongArgument(op=name, problem=f"missing {', '.join(missing)}", remedy=f"write {name}({shown})")
    return given


for _name, _arguments in UNSUPPORTED.items():
    _unsupported(_name, _arguments)
