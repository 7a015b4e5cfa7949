"""Front-end functions called with values that they cannot take: an error with a code that shows the call, and the original error as its cause.

Owns the wrapper for functions whose arguments have too many forms to test each beforehand. It costs a right call nothing. Read first: `explained`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import UserError, WeftError

Function = TypeVar("Function", bound=Callable[..., Any])

RAW = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError, NotImplementedError)
"""What Python and torch raise for values of the wrong kind, and weft for none."""

LONGEST_SHOWN = 60


class CannotTake(UserError, TypeError):
    code = "W111"
    what = "{function}({given}) cannot be done: {problem}"
    fix = "pass what the signature asks for: {function}{signature}; if these values fit it, this is a defect of weft: please report it with the traceback above"


def shown(value: object) -> str:
    """A value in a few words, without asking it for much: it may be what is wrong."""
    if hasattr(value, "data_ptr"):
        return f"<{type(value).__name__}>"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a repr that fails is part of the report
        text = f"<{type(value).__name__}, whose repr fails: {type(error).__name__}>"
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def cannot_take(function: str, signature: object, args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException) -> CannotTake:
    """Return the error for a call that failed with a raw one."""
    given = ", ".join([*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())])
    problem = (str(error).splitlines() or [""])[0][:200]
    return CannotTake(function=function, signature=signature, given=given, problem=f"{type(error).__name__}: {problem}")


def explained(function: Function) -> Function:
    """Return a function that says with a code when it is called with values that it cannot take. Errors: CannotTake; those of the function."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RAW as error:
            if isinstance(error, WeftError):
                raise
            raise cannot_take(function.__name__, signature, args, kwargs, error) from error

    return call  # type: ignore[return-value]
