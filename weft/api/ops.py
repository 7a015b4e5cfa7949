"""The `ops` namespace: every op of the front end, bound to the fusion being defined.

Owns the binding, and what a call with wrong arguments is told; the ops are found by `weft.ops.names`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import WeftError
from ..ir.fusion import Fusion
from . import misuse, op_help
from .inputs import current_fusion
from .overloads import IncompatibleArguments


class OpNames:
    """Ops as attributes. `fusion_of(op name)` returns the fusion to which a call adds its nodes."""

    def __init__(self, fusion_of: Callable[[str], Fusion]) -> None:
        self._fusion_of = fusion_of

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        from ..ops.names import function_of

        bound = BoundOp(name, function_of(name), self._fusion_of)
        self.__dict__[name] = bound
        return bound

    def __dir__(self) -> list[str]:
        from ..ops.names import all_names

        return all_names()

    def __repr__(self) -> str:
        return f"<ops: {len(dir(self))} names>"


class BoundOp:
    """One op; calling it adds its nodes to the fusion being defined. Its `__doc__` is the op's."""

    def __init__(self, name: str, function: Callable[..., Any], fusion_of: Callable[[str], Fusion]) -> None:
        self.__name__ = self.__qualname__ = name
        self._function, self._fusion_of = function, fusion_of

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self._function)
        return op_help.described(signature.replace(parameters=list(signature.parameters.values())[1:]))

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return op_help.help_text(self.__name__, self._function, self.__signature__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._function(self._fusion_of(self.__name__), *args, **kwargs)
        except misuse.RAW as error:
            if isinstance(error, WeftError):
                raise
            if isinstance(error, TypeError):
                self._check_form(args, kwargs, error)
            raise misuse.cannot_take(self.__name__, self.__signature__, args, kwargs, error) from error

    def _check_form(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> None:
        """Say it with a code when the call does not fit the signature. Errors: IncompatibleArguments (a TypeError)."""
        signature = self.__signature__
        try:
            signature.bind(*args, **kwargs)
        except TypeError as problem:
            given = f"{len(args)} positional" + (f", {', '.join(kwargs)}" if kwargs else "")
            shown = f"    {self.__name__}{signature}"
            remedy = misuse.remedy_of_form(self.__name__, signature, args, kwargs)
            raise IncompatibleArguments(function=self.__name__, signatures=shown, given=f"{given} ({problem})", remedy=remedy) from None

    def __repr__(self) -> str:
        return f"<op {self.__name__}>"


ops = OpNames(current_fusion)
