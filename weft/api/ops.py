"""The `ops` namespace: every op of the front end, bound to the fusion being defined.

Owns the binding only; the ops are `weft.ops.functions.FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..ir.fusion import Fusion
from ..options import nearest
from .inputs import current_fusion


class UnknownOp(UserError, AttributeError):
    code = "W120"
    what = "there is no op {name!r}"
    fix = "{nearest}; dir(fd.ops) lists all of them"


class OpNames:
    """Ops as attributes. `fusion_of(op name)` gives the fusion in which a call adds its nodes."""

    def __init__(self, fusion_of: Callable[[str], Fusion]) -> None:
        self._fusion_of = fusion_of

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        from ..ops.functions import FUNCTIONS

        function = FUNCTIONS.get(name)
        if function is None:
            raise UnknownOp(name=name, nearest=nearest(name, FUNCTIONS))
        bound = BoundOp(name, function, self._fusion_of)
        self.__dict__[name] = bound
        return bound

    def __dir__(self) -> list[str]:
        from ..ops.functions import FUNCTIONS

        return sorted(FUNCTIONS)

    def __repr__(self) -> str:
        return f"<ops: {len(dir(self))} names>"


class BoundOp:
    """One op; calling it adds its nodes to the fusion being defined."""

    def __init__(self, name: str, function: Callable[..., Any], fusion_of: Callable[[str], Fusion]) -> None:
        self.__name__, self.__doc__ = name, function.__doc__
        self._function, self._fusion_of = function, fusion_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self._fusion_of(self.__name__), *args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self.__name__}>"


ops = OpNames(current_fusion)
