"""Front-end functions called with wrong values raise an error with a code that shows the call; the original error is its cause.

Owns the wrapper for functions whose arguments have too many forms to test each beforehand. It costs a right call nothing. Read first: `explained`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import UserError, WeftError, shown

Function = TypeVar("Function", bound=Callable[..., Any])

RAW = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError, NotImplementedError)
"""What Python and torch raise for values of the wrong kind, and weft for none."""


class NoListOfArguments(UserError, TypeError):
    code = "W160"
    what = "{function} takes one list and was given {count} separate values"
    fix = "pass one list: fd.execute([a, b])"


KEYWORDS = {
    "stream": "kernels run on torch's current stream: with torch.cuda.stream(s): fd.execute(inputs)",
    **dict.fromkeys(
        ("_enable_options", "_disable_options", "save_repro_inputs"), "execute under torch.no_grad(): a call that records gradients takes check, seed and tune"
    ),
    "profile": "measure with `with PythonProfiler() as p: fd.execute(inputs)`, and read p.profile",
}
"""What to write in place of a keyword that other libraries have."""


class NoSuchKeyword(UserError, TypeError):
    code = "W199"
    what = "execute has no argument {name}"
    fix = "{remedy}"

    def __init__(self, name: str) -> None:
        known = "omit it; execute takes device, save_repro_inputs, _enable_options, _disable_options, check, seed, tune"
        super().__init__(name=name, remedy=KEYWORDS.get(name, known))


class CannotTake(UserError, TypeError):
    code = "W111"
    what = "{function}({given}) cannot be done: {problem}"
    fix = "pass what the signature asks for: {function}{signature}; if these values fit it, this is a defect of weft: please report it with the traceback above"


def remedy_of_form(function: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return what to write instead of a call that does not fit the signature: numbers one by one are one list."""
    parameters = list(signature.parameters.values())
    numbers = args[1:]
    if not kwargs and len(parameters) > 1 and len(args) > 2 and "Sequence[int" in str(parameters[1].annotation) and all(type(n) is int for n in numbers):
        return f"pass one list: {function}({parameters[0].name}, {list(numbers)})"
    return "use the signature above"


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
