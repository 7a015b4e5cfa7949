"""Which type an op computes in, and which type it returns.

Owns the rules: torch's promotion over three priorities (tensors with axes, tensors without, scalars), with nvFuser's deviations: floats of 16 bits and
fewer become Float and the result is not cast back. Read first: `common_dtype`, `Rule.compute`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ..dtypes import DataType
from ..errors import UserError
from ..ir.values import Scalar, TensorView, Val

_D = DataType
_INTEGER_RANK = {_D.Byte: -2, _D.Char: -1, _D.Int32: 0, _D.Index: 1, _D.Int: 2, _D.UInt64: 3}


class WrongDtype(UserError):
    code = "W303"
    what = "{op} takes {allowed}, not {dtype}"
    fix = "cast the operand first"


def promote(a: DataType, b: DataType) -> DataType:
    """Return torch's promotion of two types of equal priority."""
    if a is b:
        return a
    if a.is_complex or b.is_complex:
        double = _D.ComplexDouble in (a, b) or _D.Double in (a, b)
        return _D.ComplexDouble if double else _D.ComplexFloat
    if a.is_float or b.is_float:
        if not (a.is_float and b.is_float):
            return a if a.is_float else b
        if _D.Double in (a, b):
            return _D.Double
        return _D.Float  # two different floats of up to 32 bits: Float holds both
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if {a, b} == {_D.Byte, _D.Char}:
        return _D.Int32  # torch takes int16, which is no type of a fusion
    return a if _INTEGER_RANK[a] >= _INTEGER_RANK[b] else b


def _category(dtype: DataType) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_float else 0 if dtype.is_bool else 1


def _complex_of(dtype: DataType) -> DataType:
    return _D.ComplexDouble if dtype is _D.Double else _D.ComplexFloat


def _combine(higher: DataType | None, lower: DataType | None) -> DataType | None:
    """Let `lower` change `higher` only when it is of a higher category: bool, integer, float, complex."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if _category(lower) <= _category(higher):
        return higher
    return _complex_of(higher) if lower.is_complex and higher.is_float else lower


def common_dtype(operands: Iterable[Val]) -> DataType:
    """Return the type that torch would promote `operands` to.

    A scalar beside a tensor counts with its category only (Float, ComplexFloat, Int, Bool); scalars among themselves keep their width, so that
    `where(condition, 1.0, 2.0)` is Double.
    """
    operands = list(operands)
    has_tensor = any(isinstance(operand, TensorView) for operand in operands)
    dtypes: set[DataType] = {operand.dtype() for operand in operands}  # type: ignore[attr-defined]
    if len(dtypes) == 1 and has_tensor:
        return dtypes.pop()
    groups: list[DataType | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, TensorView):
            group, dtype = (0 if operand.ndim else 1), operand.dtype()
        else:
            assert isinstance(operand, Scalar)
            group, dtype = 2, operand.dtype()
            if has_tensor:
                dtype = _D.ComplexFloat if dtype.is_complex else _D.Float if dtype.is_float else _D.Int if dtype.is_integer else dtype
        known = groups[group]
        groups[group] = dtype if known is None else promote(known, dtype)
    out = _combine(groups[0], _combine(groups[1], groups[2]))
    assert out is not None
    return out


class Rule(Enum):
    """What an op makes of the promoted type of its operands, before it computes."""

    number = "numbers"  # reduced floats become Float
    arithmetic = "numbers; bool counts as Int"
    floating = "floats; integers and bool become Float"
    full_float = "Float or Double"  # nothing is cast
    bits = "Float or Int32"  # the same
    integer = "integers"
    bitwise = "integers or Bool"
    logical = "anything; it is cast to Bool"
    keep = "anything, unchanged"

    def compute(self, common: DataType, op: str) -> DataType:
        """Return the type to compute in. Errors: WrongDtype."""
        if self is Rule.keep:
            return common
        if self is Rule.logical:
            return _D.Bool
        if self in (Rule.integer, Rule.bitwise):
            if common.is_integer or (common.is_bool and self is Rule.bitwise):
                return common
            if common.is_bool:
                return _D.Int
            raise WrongDtype(op=op, allowed=self.value, dtype=common)
        if self is Rule.full_float:
            if common not in (_D.Float, _D.Double):
                raise WrongDtype(op=op, allowed=self.value, dtype=common)
            return common
        if self is Rule.bits:
            if common not in (_D.Float, _D.Int32):
                raise WrongDtype(op=op, allowed=self.value, dtype=common)
            return common
        if common.is_reduced_float:
            return _D.Float
        if self is Rule.arithmetic and common.is_bool:
            return _D.Int
        if self is Rule.floating and (common.is_integer or common.is_bool):
            return _D.Float
        return common


class Result(Enum):
    """The type of the result, given the type computed in."""

    same = "same"
    boolean = "bool"
    real = "real"  # the real type of a complex one
    complex_of = "complex"  # the complex type of a real one
    bits = "bits"  # the type of as many bits

    def dtype(self, compute: DataType) -> DataType:
        """Return the type of the result of an op that computes in `compute`."""
        if self is Result.boolean:
            return _D.Bool
        if self is Result.bits:
            return _D.Int32 if compute is _D.Float else _D.Float
        if self is Result.real and compute.is_complex:
            return _D.Double if compute is _D.ComplexDouble else _D.Float
        return _complex_of(compute) if self is Result.complex_of else compute


def reduction_dtype(kind: str, dtype: DataType) -> DataType:
    """Return the type in which a reduction folds when the caller names none: integers and bool are summed as Int, reduced floats as Float."""
    if dtype.is_reduced_float:
        return _D.Float
    if kind in ("sum", "prod") and (dtype.is_integer or dtype.is_bool):
        return _D.Int
    return dtype
