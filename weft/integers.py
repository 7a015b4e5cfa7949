"""Integers of a type, from any real number, and whole quotients. Owns how a scalar on the host becomes an integer; kernels do the same (`device/cast.cuh`)."""

from __future__ import annotations

import math

from .dtypes import DataType
from .errors import UserError


class UndecidedSize(UserError, ZeroDivisionError):
    code = "W399"
    what = "Cannot infer a size that is {elems} elements over 0 of them: the other sizes of a reshape to -1 have the product 0"
    fix = "give all sizes of a reshape in which one may be 0"


def whole_number(value: float, dtype: DataType) -> int:
    """Return a real number as an integer of `dtype`, as a kernel converts a double: the nearest of 32 or 64 bits that is no larger in size; of NaN, the top
    bit alone. Integers of less than 64 bits keep their low bits."""
    bits, is_signed = max(32, dtype.bits), dtype is not DataType.UInt64
    if isinstance(value, float):
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
        if math.isfinite(value):
            value = max(least, min(most, int(value)))
        else:
            value = (least if is_signed else 1 << bits - 1) if math.isnan(value) else least if value < 0 else most
    if dtype.bits == 64:
        return int(value)
    half = 1 << dtype.bits - 1 if dtype is not DataType.Byte else 0
    return (int(value) + half) % (1 << dtype.bits) - half


def whole_quotient(a: int, b: int) -> int:
    """a / b rounded down. Errors: UndecidedSize."""
    if b == 0:
        raise UndecidedSize(elems=a)
    return a // b
