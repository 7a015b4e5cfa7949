"""Argument types of overloaded front-end functions: which overload a call means, and TypeError when none does.

Owns the type tests and the error; the overloads themselves are beside the functions that have them.
Read first: `choose`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtypes import as_dtype
from ..errors import UserError, shown

REQUIRED = object()
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class IncompatibleArguments(UserError, TypeError):
    code = "W101"
    what = "{function}(): incompatible function arguments. The following argument types are supported:\n{signatures}\n  Invoked with: {given}"
    fix = "{remedy}"

    def __init__(self, *, remedy: str = "use one of the signatures above", **values: object) -> None:
        super().__init__(None, remedy=remedy, **values)


@dataclass(frozen=True)
class Parameter:
    """One parameter of an overload: `accepts` tells whether a value has its type, `kind` is that type in words."""

    name: str
    accepts: Callable[[object], bool]
    kind: str
    default: Any = REQUIRED

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}" + ("" if self.default is REQUIRED else f" = {self.default}")


@dataclass(frozen=True)
class Overload:
    name: str
    parameters: tuple[Parameter, ...]

    def bind(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the value of each parameter, or None when the call does not fit this overload."""
        if len(args) > len(self.parameters):
            return None
        values: dict[str, Any] = {}
        left = dict(kwargs)
        for position, parameter in enumerate(self.parameters):
            if position < len(args):
                if parameter.name in left:
                    return None
                value = args[position]
            elif parameter.name in left:
                value = left.pop(parameter.name)
            elif parameter.default is REQUIRED:
                return None
            else:
                values[parameter.name] = parameter.default
                continue
            if not parameter.accepts(value):
                return None
            values[parameter.name] = as_dtype(value) or value
        return None if left else values


def choose(function: str, overloads: tuple[Overload, ...], args: tuple, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the first overload that the call fits, and its arguments by name.

    Errors: IncompatibleArguments (a TypeError) when none fits.
    """
    for overload in overloads:
        values = overload.bind(args, kwargs)
        if values is not None:
            return overload.name, values
    signatures = "\n".join(f"    {i}. ({', '.join(map(str, o.parameters))})" for i, o in enumerate(overloads, 1))
    given = ", ".join([*map(shown, args), *(f"{k}={shown(v)}" for k, v in kwargs.items())])
    raise IncompatibleArguments(function=function, signatures=signatures, given=given or "no arguments", remedy=_misfit(overloads, args, kwargs))


def _misfit(overloads: tuple[Overload, ...], args: tuple, kwargs: dict[str, Any]) -> str:
    """Return what to change so that a call fits the overload that it fits in most: the first argument that has not the type it should have."""
    best, remedy = -1, "use one of the signatures above"
    for number, overload in enumerate(overloads, 1):
        by_name = dict(zip([p.name for p in overload.parameters], args)) | kwargs
        right = 0
        for parameter in overload.parameters:
            if parameter.name in by_name and not parameter.accepts(by_name[parameter.name]):
                if right > best:
                    wrong = shown(by_name[parameter.name])
                    best, remedy = right, f"use signature {number}: pass a value of type {parameter.kind} for {parameter.name}, not {wrong}"
                break
            right += parameter.name in by_name
    return remedy



# ---------------------------------------------------------------- type tests
def is_int(value: object) -> bool:
    """An integer of 64 bits: int, bool, or anything with __index__ (numpy's integers)."""
    if isinstance(value, int):
        return INT64_MIN <= value <= INT64_MAX
    if isinstance(value, (float, complex, str, bytes)) or not hasattr(value, "__index__"):
        return False
    try:
        return INT64_MIN <= operator.index(value) <= INT64_MAX
    except TypeError:
        return False


def is_bool(value: object) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool") and type(value).__module__ == "numpy"


def is_truth(value: object) -> bool:
    """A bool, or an int that stands for one."""
    return is_bool(value) or isinstance(value, int)


def is_sequence(value: object) -> bool:
    """A list, a tuple, or another sequence that is no text (torch.Size)."""
    return isinstance(value, (list, tuple)) or hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict))


def is_int_sequence(value: object) -> bool:
    return is_sequence(value) and all(map(is_int, value))  # type: ignore[call-overload]


def is_optional_bool_sequence(value: object) -> bool:
    return is_sequence(value) and all(v is None or is_bool(v) for v in value)  # type: ignore[attr-defined]


def is_dtype(value: object) -> bool:
    return as_dtype(value) is not None


def is_optional_dtype(value: object) -> bool:
    return value is None or as_dtype(value) is not None


def is_number_or_none(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, complex)) or is_int(value) or hasattr(value, "__float__") and not hasattr(value, "dim")
