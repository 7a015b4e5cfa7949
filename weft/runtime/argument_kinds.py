"""Arguments of the functions for models against their annotations: looked at when a call has failed, so that one that works pays nothing.

Owns the errors that name a wrong argument. Read first: `checked`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from ..errors import UserError, WeftError, shown
from ..ir.fusion import Fusion
from .unusual import is_sharded, unusual

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class NotATensor(UserError, TypeError):
    code = "W140"
    what = "{function}: {argument} is {kind}, not a dense torch.Tensor"
    fix = "{remedy}"


class NotANumber(UserError, TypeError):
    code = "W152"
    what = "{function}: {argument} is {value}, not of type {wanted}"
    fix = "{remedy}"


class WrongKind(UserError, TypeError):
    code = "W154"
    what = "{function}: {argument} is {value}, not of type {wanted}"
    fix = "pass a value of type {wanted}"


class WrongCall(UserError, TypeError):
    code = "W157"
    what = "{function}: {problem}"
    fix = "{hint}its arguments are {signature}"


class TorchRefused(UserError):
    code = "W155"
    what = "{function}: torch refuses its arguments: {said}"
    fix = "correct the argument that the message names; the sizes of the arguments are {sizes}"


_INTEGERS, _NUMBERS = (int, torch.SymInt), (int, float, torch.SymInt, torch.SymFloat)
_PLAIN: dict[str, tuple[type, ...]] = {
    "bool": (bool, int), "str": (str,), "torch.dtype": (torch.dtype,), "None": (type(None),), "Sequence[int]": (list, tuple),
    "Iterable[str]": (list, tuple, set, frozenset, dict, str), "Fusion": (Fusion,), "Path": (Path,),
}  # fmt: skip
_ELEMENTS: dict[str, tuple[type, ...]] = {"Sequence[int]": _INTEGERS, "Iterable[str]": (str,)}



def check_tensor(function: str, argument: str, value: Any) -> None:
    """Errors: NotATensor for anything but a dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise NotATensor(function=function, argument=argument, kind=type(value).__name__, remedy="pass a torch.Tensor")
    found = None if torch._C._are_functorch_transforms_active() or is_sharded(value) else unusual(value)
    if found is not None:
        raise NotATensor(function=function, argument=argument, kind=found[0], remedy=found[1])


def check_kind(function: str, argument: str, value: Any, annotation: str) -> None:
    """Errors: NotATensor, NotANumber, WrongKind if a value does not match the annotation; unknown annotations are not checked."""
    kinds = [kind.removeprefix("torch.") if kind == "torch.Tensor" else kind for kind in annotation.split(" | ")]
    if "None" in kinds and value is None:
        return
    if "Tensor" in kinds:
        check_tensor(function, argument, value)
    elif kinds[0] in ("int", "float") and len(set(kinds) - {"None"}) == 1:
        if not isinstance(value, _INTEGERS if kinds[0] == "int" else _NUMBERS) or type(value) is int and abs(value) > 1 << 1000:
            remedy = "pass a whole number" if kinds[0] == "int" else "pass a number that a float64 can hold"
            raise NotANumber(function=function, argument=argument, value=shown(value), wanted=annotation, remedy=remedy)
    elif all(kind in _PLAIN or kind == "int" for kind in kinds):
        if not any(_is_plain(value, kind) for kind in kinds):
            is_definition = "Fusion" in kinds and hasattr(value, "define_tensor")
            raise WrongKind(function=function, argument=argument, value=shown(value), wanted="Fusion, which is fd.fusion" if is_definition else annotation)


def _is_plain(value: Any, kind: str) -> bool:
    """True for a value of a kind in `_PLAIN`, or an integer, and for sequences of these."""
    elements = value if kind in _ELEMENTS and isinstance(value, Iterable) else ()
    return isinstance(value, _PLAIN.get(kind, _INTEGERS)) and all(isinstance(v, _ELEMENTS[kind]) for v in elements)


def explain(function: Callable[..., Any], values: Mapping[str, Any], error: Exception) -> None:
    """Raise a coded error for a call that failed with `error`, if an argument does not match the signature, or torch refused it."""
    for name, parameter in inspect.signature(function).parameters.items():
        given = values.get(name)
        several = parameter.kind is parameter.VAR_POSITIONAL
        for value in given if several and isinstance(given, tuple) else (given,):
            check_kind(function.__name__, name, value, str(parameter.annotation))
    is_torchs = type(error) is RuntimeError  # subclasses explain themselves: out of memory, a graph break
    if is_torchs or type(error) is IndexError and str(error).startswith("Dimension out of range"):
        sizes = ", ".join(f"{name} {list(v.shape)}" for name, v in values.items() if isinstance(v, torch.Tensor))
        raise TorchRefused(function=function.__name__, said=str(error).splitlines()[0] if str(error) else type(error).__name__, sizes=sizes) from error


def check_call(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Errors: WrongCall if arguments do not fit the signature: too many, too few, or with unknown names, for which it says the nearest known one."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        names = list(signature.parameters)
        unknown = next((name for name in keywords if name not in names), "")
        near = difflib.get_close_matches(unknown, names, n=1, cutoff=0.5)
        hint = f"write {near[0]} instead of {unknown}; " if near else ""
        raise WrongCall(function=function.__name__, problem=str(error), hint=hint, signature=f"({', '.join(names)})") from None


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of tensors raise coded errors for wrong arguments. Errors: NotATensor, NotANumber, WrongKind, TorchRefused."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **keywords)
        try:
            return function(*args, **keywords)
        except WeftError:
            raise
        except EXPLAINED as error:
            check_call(function, args, keywords)
            explain(function, bound(signature, args, keywords) or {}, error)
            raise

    return call


def checked_init(kind: type[T]) -> type[T]:
    """Make a class raise a coded error for arguments that its constructor, which may be torch's, does not have. Errors: WrongCall."""
    init: Callable[..., None] = inspect.unwrap(kind.__init__)

    @functools.wraps(init)
    def call(self: Any, *args: Any, **keywords: Any) -> None:
        try:
            init(self, *args, **keywords)
        except TypeError as error:
            if not isinstance(error, WeftError):
                check_call(kind, args, keywords)
            raise

    kind.__init__ = call  # type: ignore[method-assign]
    return kind


EXPLAINED = (AttributeError, TypeError, ValueError, IndexError, KeyError, OverflowError, RuntimeError)
"""Exceptions that a wrong argument may cause deep inside."""


def bound(signature: inspect.Signature, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name with defaults, or None if they do not fit the signature."""
    try:
        found = signature.bind(*args, **keywords)
    except TypeError:
        return None
    found.apply_defaults()
    return dict(found.arguments)
