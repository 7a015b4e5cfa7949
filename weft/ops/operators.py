"""Operators and methods of TensorView and Scalar: `x * y`, `x > 0`, `x.sum(-1)`, `x.to(torch.bfloat16)`, and any op of the front end as a method.

Owns which op each of them is. Importing this module puts them into `weft.ir.surface`. `==` and `!=` compare identities, as values are keys of
dictionaries everywhere: `ops.eq` and `ops.ne` compare elements. Read first: `BINARY`, then `get_attribute`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import EllipsisType
from typing import Any

from ..dtypes import DataType, as_dtype
from ..errors import UserError
from ..ir.fusion import Fusion
from ..ir.surface import ScalarSurface, TensorSurface
from ..ir.values import Scalar, TensorView, Val
from . import build


class ClosedFusion(UserError):
    code = "W129"
    what = "{action}: the definition of {value} already has an executor and cannot change"
    fix = "define another FusionDefinition"


class NoTruthValue(UserError, TypeError):
    code = "W132"
    what = "{value} has no truth value while it is being defined: its elements are known when the definition is executed"
    fix = "choose per element with ops.where(condition, a, b); `and`, `or`, `not` are &, |, ~"


class NoNumber(UserError, TypeError):
    code = "W149"
    what = "{value} is not a number while it is being defined: its elements are known when the definition is executed"
    fix = "add it as an output, or take a scalar input: fd.define_scalar(dtype=...); ops.cast changes the type of elements"


class NotIterable(UserError, TypeError):
    code = "W133"
    what = "{value} cannot be iterated: its sizes are known when the definition is executed"
    fix = "take parts by index, x[0], or work on the whole tensor"


class NoLength(UserError, TypeError):
    code = "W198"
    what = "{value} has no len(): its sizes are known when the definition is executed"
    fix = "write x.size(0) for the size of an axis, which is a scalar of the definition, and x.ndim for the number of axes"


class NoItemAssignment(UserError, TypeError):
    code = "W158"
    what = "{value}[...] = ...: values of a definition do not change"
    fix = "make a new one with ops.where, ops.scatter or ops.cat; add_output(y, alias_input=x) writes y into the input x"


class NotForTorch(UserError, TypeError):
    code = "W159"
    what = "torch's {function} was given {value}, which has no elements while it is being defined"
    fix = "{remedy}"


class WrongIndex(UserError, TypeError):
    code = "W134"
    what = "{value}[{index}]: {problem}"
    fix = "{remedy}"


def fusion_of(value: Any, action: str) -> Fusion:
    """Return the fusion of a value, if it can still change. Errors: ClosedFusion."""
    fusion: Fusion = value.fusion
    if fusion.is_closed:
        raise ClosedFusion(action=action, value=value)
    return fusion


def _home(a: Any, b: Any) -> Any:
    """Return the operand whose fusion takes the node: an extent of an axis has none."""
    return a if a.fusion is not None or not isinstance(b, Val) else b


BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
"""Python's name of an operator -> the op."""
COMPARISONS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
UNARY = {"neg": "neg", "abs": "abs", "invert": "bitwise_not"}
_PYTHON_NUMBERS = (bool, int, float, complex)


def _binary(name: str, op: str, *, reflected: bool = False) -> Callable[..., Any]:
    def operator(self: Any, other: Any) -> Any:
        if not isinstance(other, (TensorView, Scalar, *_PYTHON_NUMBERS)):
            return _foreign(other, op)
        a, b = (other, self) if reflected else (self, other)
        return build.pointwise(fusion_of(_home(self, other), op), op, a, b)

    operator.__name__, operator.__doc__ = f"__{'r' if reflected else ''}{name}__", f"{'reflected ' if reflected else ''}ops.{op}"
    return operator


def _foreign(other: Any, op: str) -> Any:
    """Say what to do with an operand that is a tensor of torch, or of one of Python's own types; others may know what to do with a TensorView."""
    if type(other).__module__.partition(".")[0] == "torch" and hasattr(other, "data_ptr") or other is None or isinstance(other, (str, list, tuple, dict, set)):
        from .arguments import wrong

        raise wrong(op, "the other operand", "a TensorView, a scalar or a number", other)
    return NotImplemented


def _unary(name: str, op: str) -> Callable[..., Any]:
    def operator(self: Any) -> Any:
        return build.pointwise(fusion_of(self, op), op, self)

    operator.__name__, operator.__doc__ = f"__{name}__", f"ops.{op}"
    return operator


def floor_divide(self: Any, other: Any) -> Any:
    """x // y: floor of the quotient, of integers an integer."""
    if not isinstance(other, (TensorView, Scalar, *_PYTHON_NUMBERS)):
        return _foreign(other, "floor")
    fusion = fusion_of(_home(self, other), "floor")
    kinds = [v.dtype().is_integer if isinstance(v, (TensorView, Scalar)) else isinstance(v, int) for v in (self, other)]
    if isinstance(self, Scalar) and all(kinds):
        return build.pointwise(fusion, "div", self, other)
    return floor_of_quotient(fusion, self, other, is_integer=all(kinds))


def floor_of_quotient(fusion: Fusion, a: Any, b: Any, *, is_integer: bool) -> Any:
    """Return the floor of the exact quotient, by the remainder, as torch and Python have it: 1.0 // 0.1 is 9, where the rounded quotient is 10."""

    def o(name: str, *operands: Any) -> Any:
        return build.pointwise(fusion, name, *operands)

    if is_integer:  # `div` of integers truncates
        quotient = o("div", a, b)
        rest = o("sub", a, o("mul", quotient, b))
        is_below = o("bitwise_and", o("ne", rest, 0), o("ne", o("lt", rest, 0), o("lt", b, 0)))
        return o("sub", quotient, build.cast(fusion, is_below, quotient.dtype()))
    quotient, rest = o("truediv", a, b), o("fmod", a, b)
    whole = o("truediv", o("sub", a, rest), b)
    is_below = o("bitwise_and", o("ne", rest, 0.0), o("ne", o("lt", rest, 0.0), o("lt", b, 0.0)))
    whole = o("where", is_below, o("sub", whole, 1.0), whole)
    low = o("floor", whole)
    low = o("where", o("gt", o("sub", whole, low), 0.5), o("add", low, 1.0), low)
    low = o("where", o("eq", whole, 0.0), o("mul", quotient, 0.0), low)  # zeros have the sign of the quotient
    return o("where", o("eq", b, 0.0), quotient, low)


def matmul(self: Any, other: Any) -> Any:
    """x @ y: ops.matmul."""
    if isinstance(other, (Scalar, *_PYTHON_NUMBERS)):
        from .arguments import WrongArgument

        raise WrongArgument(op="matmul", problem="the other operand is a number", remedy="write x * number, or pass a tensor")
    if not isinstance(other, TensorView):
        return _foreign(other, "matmul")
    return get_attribute(self, "matmul")(other)


def no_truth_value(self: Any) -> bool:
    raise NoTruthValue(value=self)


def no_number(self: Any) -> Any:
    """float(x), int(x), complex(x)."""
    raise NoNumber(value=self)


def no_iteration(self: Any) -> Any:
    raise NotIterable(value=self)


def no_length(self: Any) -> int:
    raise NoLength(value=self)


def no_item_assignment(self: Any, index: Any, value: Any) -> None:
    raise NoItemAssignment(value=self)


def no_torch_function(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """What torch calls where one of its functions gets a value of a definition."""
    from .names import all_names

    name = getattr(function, "__name__", "function")
    value = next((v for v in (*args, *(kwargs or {}).values()) if isinstance(v, TensorView)), "a value of a definition")
    remedy = f"write fd.ops.{name}(...)" if name in all_names() else "write it with fd.ops, or call it on what execute returns; dir(fd.ops) lists the ops"
    raise NotForTorch(function=name, value=value, remedy=remedy)


# ---------------------------------------------------------------- methods
def to(self: Any, dtype: Any) -> Any:
    """Return x as dtype: x.to(torch.bfloat16), x.to(DataType.Half), x.to(other) for the type of another value."""
    wanted = dtype.dtype() if isinstance(dtype, (TensorView, Scalar)) else as_dtype(dtype)
    if wanted is None:
        from .arguments import WrongArgument

        remedy = "pass a torch dtype or a DataType; a definition runs on the device of its inputs"
        raise WrongArgument(op="to", problem=f"{dtype!r} is not a dtype", remedy=remedy)
    return build.cast(fusion_of(self, "to"), self, wanted)


def _to(name: str, dtype: DataType) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return to(self, dtype)

    method.__name__, method.__doc__ = name, f"Return x as {dtype}."
    return method


TYPES = {
    "double": DataType.Double, "float": DataType.Float, "half": DataType.Half, "bfloat16": DataType.BFloat16, "long": DataType.Int, "int": DataType.Int32,
    "bool": DataType.Bool,
}  # fmt: skip


def dim(self: TensorView) -> int:
    """Return the number of axes."""
    return self.ndim


def type_as(self: TensorView, other: TensorView) -> Any:
    """Return x in the type of other."""
    if not isinstance(other, (TensorView, Scalar)):
        from .arguments import WrongArgument

        raise WrongArgument(op="type_as", problem=f"other must be a TensorView or a scalar, not {type(other).__name__}", remedy="write x.to(dtype)")
    return to(self, other.dtype())


def _flat(values: tuple[Any, ...]) -> list[Any]:
    """Return the numbers of `f(1, 2)`, `f([1, 2])` and `f((1, 2))`."""
    return list(values[0]) if len(values) == 1 and isinstance(values[0], (list, tuple)) else list(values)


def permute(self: TensorView, *dims: Any) -> Any:
    """Return x with axis dims[i] of it at position i: x.permute(1, 0) or x.permute([1, 0])."""
    return get_op(self, "permute")(_flat(dims))


def expand(self: TensorView, *shape: Any) -> Any:
    """Return x with axes added in front and axes of extent 1 expanded (-1 keeps an axis): x.expand(n, -1)."""
    sizes = _flat(shape)
    return get_op(build.pad_rank(fusion_of(self, "expand"), self, len(sizes)), "expand")(sizes)


def reshape(self: TensorView, *shape: Any) -> Any:
    """Return x under another shape: x.reshape(2, -1) or x.reshape([2, -1])."""
    return get_op(self, "reshape")(_flat(shape))


def squeeze(self: TensorView, dims: Any) -> Any:
    """Return x without the axes dims (a number or a list), which have extent 1."""
    return get_op(self, "squeeze")([dims] if isinstance(dims, int) else list(dims))


def transposed(self: TensorView) -> Any:
    """The last two axes exchanged (x.mT); for two axes also x.T."""
    return get_op(self, "transpose")(-2, -1)


def get_op(self: Any, name: str) -> Callable[..., Any]:
    """Return the op or composite `name` with this value as its first operand. Errors: UnknownName, ClosedFusion."""
    from .names import function_of

    function, fusion = function_of(name), fusion_of(self, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(fusion, self, *args, **kwargs)
        except TypeError as error:
            if not isinstance(error, UserError):
                _check_form(name, function, (fusion, self, *args), kwargs)
            raise

    method.__name__, method.__doc__ = name, function.__doc__
    return method


def _check_form(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say it with a code when a call does not fit the op's signature. Errors: WrongArgument."""
    from .arguments import WrongArgument

    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        shown = ", ".join(str(p).partition(":")[0] + ("" if p.default is p.empty else f"={p.default}") for p in list(signature.parameters.values())[2:])
        raise WrongArgument(op=name, problem=str(problem), remedy=f"write x.{name}({shown})") from None


def get_attribute(self: Any, name: str) -> Any:
    """What an attribute is that no class defines: an op of the front end as a method."""
    if name.startswith("_"):
        raise AttributeError(name)
    return get_op(self, name)


# ---------------------------------------------------------------- indexing
def getitem(self: TensorView, index: Any) -> Any:
    """x[1], x[..., :64], x[:, None]: slices, whole numbers, None and `...`, as torch. Errors: WrongIndex."""
    entries = list(index) if isinstance(index, tuple) else [index]
    taken = sum(e is not None and not isinstance(e, EllipsisType) for e in entries)
    if sum(isinstance(e, EllipsisType) for e in entries) > 1:
        raise WrongIndex(value=self, index=index, problem="`...` appears twice", remedy="write one `...`")
    if taken > self.ndim:
        raise WrongIndex(value=self, index=index, problem=f"{taken} indices for {self.ndim} axes", remedy="use at most one index per axis")
    if not any(isinstance(e, EllipsisType) for e in entries):
        entries.append(...)
    place = next(i for i, e in enumerate(entries) if isinstance(e, EllipsisType))
    entries[place : place + 1] = [slice(None)] * (self.ndim - taken)
    return _indexed(self, entries)


def _indexed(x: Any, entries: list[Any]) -> Any:
    """Apply one entry per axis (and None for new ones), slices first."""
    axes = [e for e in entries if e is not None]
    for e in axes:
        if isinstance(e, slice) or (isinstance(e, int) and not isinstance(e, bool)) or isinstance(e, Scalar):
            continue
        problem = f"a {type(e).__name__} cannot be an index here"
        raise WrongIndex(value=x, index="...", problem=problem, remedy="use ops.index_select, ops.take_along_axis or ops.where")
    out = x
    if any(isinstance(e, slice) and e != slice(None) for e in axes):
        sizes = x.shape()
        bounds = [_bounds(e, size) if isinstance(e, slice) else (0, size, 1) for e, size in zip(axes, sizes)]
        out = get_op(out, "slice")([b[0] for b in bounds], [b[1] for b in bounds], [b[2] for b in bounds])
    position = 0
    for e in entries:
        if e is None:
            out = get_op(out, "unsqueeze")(position)
            position += 1
        elif isinstance(e, slice):
            position += 1
        else:
            out = get_op(out, "select")(e, position)
    return out


def _bounds(entry: slice, size: Scalar) -> tuple[Any, Any, Any]:
    """Return (start, end, step) of a slice; ends that count from the back become sizes less a number."""
    from .composites import known

    extent = known(size)
    start = 0 if entry.start is None else entry.start
    end = extent if entry.stop is None else entry.stop
    if isinstance(start, int) and start < 0:
        start = max(extent + start, 0) if isinstance(extent, int) else extent + start
    if isinstance(end, int) and end < 0:
        end = max(extent + end, 0) if isinstance(extent, int) else extent + end
    return start, end, 1 if entry.step is None else entry.step


# ---------------------------------------------------------------- putting them in
def _install() -> None:
    for surface in (TensorSurface, ScalarSurface):
        for name, op in BINARY.items():
            setattr(surface, f"__{name}__", _binary(name, op))
            setattr(surface, f"__r{name}__", _binary(name, op, reflected=True))
        for name, op in COMPARISONS.items():
            setattr(surface, f"__{name}__", _binary(name, op))
        for name, op in UNARY.items():
            setattr(surface, f"__{name}__", _unary(name, op))
        refusals = {"__bool__": no_truth_value, "__float__": no_number, "__int__": no_number, "__complex__": no_number}
        for name, function in {"__floordiv__": floor_divide, "to": to, **refusals, "__getattr__": get_attribute}.items():
            setattr(surface, name, function)
    for name, dtype in TYPES.items():
        setattr(TensorSurface, name, _to(name, dtype))
    methods: dict[str, Any] = {
        "__matmul__": matmul, "__getitem__": getitem, "__iter__": no_iteration, "__len__": no_length, "__setitem__": no_item_assignment,
        "__torch_function__": classmethod(no_torch_function), "dim": dim, "type_as": type_as, "permute": permute, "expand": expand,
        "reshape": reshape, "view": reshape, "squeeze": squeeze, "T": property(transposed), "mT": property(transposed),
    }  # fmt: skip
    for name, method in methods.items():
        setattr(TensorSurface, name, method)


_install()
