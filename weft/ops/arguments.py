"""Checks of the front end's arguments: a TypeError for one of a wrong kind, Python's number for NumPy's and other registered ones.

Owns kinds only; what values an op takes is checked where the op is built. Read first: `tensor`, `extents`.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from ..dtypes import DataType, as_dtype
from ..errors import UserError
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val


class WrongArgument(UserError, TypeError):
    code = "W304"
    what = "{op}(): {problem}"
    fix = "{remedy}"


class ForeignValue(UserError):
    code = "W311"
    what = "{op}: {value} belongs to another fusion"
    fix = "use values of the fusion that is being defined"


class NoElementType(UserError):
    code = "W308"
    what = "{op}: elements cannot have type {dtype}"
    fix = "use a DataType of elements, such as DataType.Float, or DataType.Int for indices"


def wrong(op: str, argument: str, wanted: str, given: object) -> TypeError:
    """Return the error for an argument of a wrong kind."""
    kind = type(given).__name__
    remedy = f"pass a list: [{given}]" if wanted.startswith("a list or tuple of ints") and type(given) is int else f"pass {wanted}"
    if kind in ("Tensor", "Parameter") and type(given).__module__.partition(".")[0] == "torch":
        remedy = "a definition contains no torch tensors: add an input with fd.from_pytorch(tensor) or fd.define_tensor(...), and pass the tensor to execute"
    return WrongArgument(op=op, problem=f"{argument} must be {wanted}, not {kind}", remedy=remedy)


def number(value: object) -> object:
    """Return Python's number for NumPy's and other registered ones, anything else unchanged."""
    if isinstance(value, (bool, int, float, complex, Val)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, numbers.Complex):
        return complex(value)
    return value


def operand(op: str, argument: str, value: object) -> Any:
    """Check a tensor, a scalar or a number."""
    value = number(value)
    if not isinstance(value, (TensorView, Scalar, bool, int, float, complex)):
        raise wrong(op, argument, "a TensorView, a scalar or a number", value)
    return value


def tensor(op: str, argument: str, value: object) -> TensorView:
    """Check a tensor."""
    if not isinstance(value, TensorView):
        raise wrong(op, argument, "a TensorView", value)
    return value


def scalar(op: str, argument: str, value: object) -> Any:
    """Check a scalar or a number."""
    value = number(value)
    if not isinstance(value, (Scalar, bool, int, float, complex)):
        raise wrong(op, argument, "a scalar or a number", value)
    return value


def integer(op: str, argument: str, value: object) -> int:
    """Check an int."""
    value = number(value)
    if not isinstance(value, int):
        raise wrong(op, argument, "an int", value)
    return int(value)


def boolean(op: str, argument: str, value: object) -> bool:
    """Check a bool; an int stands for its truth, as in nvFuser's binding."""
    value = number(value)
    if not isinstance(value, int):
        raise wrong(op, argument, "a bool", value)
    return bool(value)


def booleans(op: str, argument: str, value: object) -> list[bool]:
    """Check a list or tuple of bools."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not all(isinstance(number(v), int) for v in value):
        raise wrong(op, argument, "a list of bools", value)
    return [bool(v) for v in value]


def integers(op: str, argument: str, value: object) -> list[int]:
    """Check a list or tuple of ints."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise wrong(op, argument, "a list or tuple of ints", value)
    return [integer(op, f"{argument}[{i}]", v) for i, v in enumerate(value)]


def extents(fusion: Fusion, op: str, argument: str, value: object) -> list[Any]:
    """Check a shape: a list or tuple (torch.Size too) of ints and integer scalars of `fusion`, mixed. Errors: WrongArgument, ForeignValue."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise wrong(op, argument, "a list or tuple of ints and scalars", value)
    out = []
    for i, item in enumerate(value):
        item = number(item)
        if isinstance(item, bool) or not isinstance(item, (int, Scalar)):
            raise wrong(op, f"{argument}[{i}]", "an int or an integer scalar", item)
        if isinstance(item, Scalar) and not item.dtype().is_integer:
            problem = f"{argument}[{i}] must be an integer scalar, not one of {item.dtype()}"
            raise WrongArgument(op=op, problem=problem, remedy="cast it to DataType.Int")
        if isinstance(item, Scalar) and item.fusion is not None and item.fusion is not fusion:
            raise ForeignValue(op=op, value=str(item))
        out.append(item)
    return out


def data_type(op: str, argument: str, value: object) -> DataType:
    """Check a DataType."""
    found = as_dtype(value)
    if found is None:
        raise wrong(op, argument, "a DataType or a torch dtype", value)
    return found


def element_type(op: str, argument: str, value: object) -> DataType:
    """Check a DataType that elements can have."""
    dtype = data_type(op, argument, value)
    if dtype in (DataType.Null, DataType.Index):
        raise NoElementType(op=op, dtype=dtype)
    return dtype


def optional_data_type(op: str, value: object) -> DataType | None:
    """Check a DataType; Null is None."""
    dtype = data_type(op, "dtype", value)
    return None if dtype is DataType.Null else element_type(op, "dtype", dtype)
