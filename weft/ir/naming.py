"""Scalar expressions and constants as nvFuser writes them: `i0`, `( ceilDiv(i0, 128) )`, `double(2)`.

Owns the text of a scalar beside its fusion, where a size is called by its number. `weft.expr.to_text` writes it alone, by the tensor and the axis.
Read first: `inline_text`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..dtypes import DataType
from ..expr import Number, Sym

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "/", "div": "/", "truediv": "/",
    "mod": "%", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "&&", "logical_and": "&&", "logical_or": "||", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_CALLS = {"ceildiv": "ceilDiv", "min": "fmin", "max": "fmax", "minimum": "fmin", "maximum": "fmax"}


def number_text(value: Number) -> str:
    """Return a number in C++ syntax, without redundant zeros: 2, 0.5, inf, true."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, complex):
        return f"({number_text(value.real)},{number_text(value.imag)})"
    if isinstance(value, float):
        return f"{int(value)}" if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(value)
    return str(value)


def constant_text(value: Number, dtype: DataType) -> str:
    """Return a constant operand: `double(2)`; integers of 64 bits and Bools alone."""
    if dtype in (DataType.Int, DataType.Index, DataType.Bool):
        return number_text(value)
    return f"{dtype.value}({number_text(value)})"


def inline_text(sym: Sym, names: Mapping[str, str]) -> str:
    """Return the whole expression, operations in parentheses. names: names of variables; others keep their own."""
    if sym.is_const:
        return number_text(sym.value)
    if sym.is_var:
        return names.get(str(sym.payload), str(sym.payload))
    return f"( {_operation_text(sym, lambda s: inline_text(s, names))} )"


def _operation_text(sym: Sym, text: Callable[[Sym], str]) -> str:
    first, *others = map(text, sym.args) if sym.args else ("",)
    sign = _INFIX.get(sym.op)
    if sign is None:
        return f"{_CALLS.get(sym.op, sym.op)}({', '.join([first, *others])})"
    for position, other in enumerate(others):
        inner = f"{first} {sign} {other}"
        first = inner if position == len(others) - 1 else f"( {inner} )"
    return first
