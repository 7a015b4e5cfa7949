"""Scalar expressions that are computed again at every call, as Python functions.

Read first: `expression`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..dtypes import DataType
from ..expr import EVALUATORS, Number, Sym, coerced, inner_first

DEEPEST_TEXT = 8
"""Nesting depth of operations in one expression of the text; Python's parser allows some 50."""
_INFIX = {"add": " + ", "mul": " * ", "floordiv": " // ", "mod": " % ", "lt": " < ", "eq": " == ", "and": " and "}
_INTEGERS = frozenset({"signed char", "unsigned char", "short", "unsigned short", "int", "unsigned", "unsigned int", "long long", "unsigned long long"})


def expression(sym: Sym, names: dict[Sym, str], constants: dict[str, Any], prefix: str = "value") -> str:
    """Return Python text that computes `sym` from variables called `names`; other names in the text are put into `constants`. A deep expression becomes a
    sequence of assignments, `(v1 := ..., v2 := ...)[-1]`, and their variables are added to `names` for later texts. prefix: of the names of these variables.
    """
    if sym.depth <= DEEPEST_TEXT or sym in names:
        return _nested(sym, names, constants)
    steps = []
    for inner in inner_first(sym, lambda s: s in names or not s.args):
        if inner.args:
            step = _nested(inner, names, constants)
            names[inner] = f"{prefix}_{len(names)}"
            steps.append(f"{names[inner]} := {step}")
    return f"({', '.join(steps)},)[-1]"


def _nested(sym: Sym, names: Mapping[Sym, str], constants: dict[str, Any]) -> str:
    if sym in names:
        return names[sym]
    if sym.is_const:
        return _constant(sym.value, constants)
    args = [_nested(arg, names, constants) for arg in sym.args]
    if sym.op in _INFIX:
        text = f"({_INFIX[sym.op].join(args)})"
    elif sym.op == "ceildiv":
        text = f"(-(-{args[0]} // {args[1]}))"
    elif sym.op in ("min", "max"):
        text = f"{sym.op}({', '.join(args)})"
    else:
        name = f"op_{sym.op}"
        constants[name] = EVALUATORS[sym.op]
        text = f"{name}({', '.join(args)})"
    convert = _converter(sym)
    if not convert:
        return f"{_python_type(sym.dtype)}({text})"
    constants[f"op_{convert}"] = EVALUATORS[convert]
    return f"op_{convert}({text})"


def _real_part(value: Number) -> Number:
    return value.real


def _converter(sym: Sym) -> str:
    """Return the name in EVALUATORS of what a value of the operation `sym` needs to be one of its type; "" where Python's own conversion does."""
    given = sym.args[0].dtype
    if sym.dtype.is_integer and (sym.dtype.bits < 64 or sym.op == "cast" and not given.is_integer and not given.is_bool):
        return f"as_{sym.dtype.name}"
    return "as_real" if sym.op == "cast" and given.is_complex and sym.dtype.is_float else ""


EVALUATORS["as_real"] = _real_part
EVALUATORS.update({f"as_{dtype.name}": functools.partial(coerced, dtype=dtype) for dtype in DataType if dtype.is_integer})


def _constant(value: Any, constants: dict[str, Any]) -> str:
    if isinstance(value, (bool, int)):
        return f"({value})"
    name = f"number_{len(constants)}"
    constants[name] = value
    return name


def _python_type(dtype: DataType) -> str:
    if dtype.is_bool:
        return "bool"
    return "int" if dtype.is_integer else "complex" if dtype.is_complex else "float"


def parameter_type(ctype: str) -> type:
    """Return the Python type of the values of a kernel's scalar parameter."""
    return int if ctype in _INTEGERS else bool if ctype == "bool" else float
