"""Ops as calls that need no fusion named: `o = Calls(fusion); o.exp(x)`.

Owns the binding for code inside of the package that writes definitions: composites and rules of gradients. Users have `fd.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import require
from ..ir.fusion import Fusion
from ..ir.values import TensorView


_find: list[Callable[[str], Callable[..., Any]]] = []
"""The function that finds an op by its name, once `weft.ops.names` has handed it in: ops call each other by name, so this file cannot import them."""


def finds_ops(function: Callable[[str], Callable[..., Any]]) -> Callable[[str], Callable[..., Any]]:
    """Let calls find ops by `function`, which takes a name. A decorator."""
    _find[:] = [function]
    return function


class Calls:
    """Every op and composite as an attribute, bound to `fusion`."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion

    def __getattr__(self, name: str) -> Callable[..., TensorView]:
        if name.startswith("__"):
            raise AttributeError(name)
        require(_find, "ops were called by name before weft.ops.names was imported")
        function, fusion = _find[0](name), self.fusion

        def call(*args: Any, **kwargs: Any) -> TensorView:
            result: TensorView = function(fusion, *args, **kwargs)
            return result

        self.__dict__[name] = call
        return call

    def several(self, name: str, *args: Any, **kwargs: Any) -> Sequence[TensorView]:
        """Call an op that has several results."""
        results: Any = getattr(self, name)(*args, **kwargs)
        return tuple(results)
