"""The bodies of torch's control flow: the graphs that `torch.cond`, `while_loop`, `scan`, `map` and a nested compiled region call are compiled as any graph is.

torch calls them in Python, with tensors of the sizes that were traced, so regions of weft run in them. Owns which ops call their bodies as they are; a body
that is traced again with other values (a score function of attention, which torch vectorizes) stays as it is. Read first: `owner_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

CALLERS = ("cond", "while_loop", "scan", "map_impl", "invoke_subgraph")
"""Higher-order ops that call their bodies with plain tensors."""

CALLED = "torch calls its bodies, which are graphs of their own"

Compile = Callable[[GraphModule], Callable[[list[Any]], Any] | None]


class _Owner:
    """The attributes that the code of a graph reads: those of its module, with compiled bodies in place of graphs."""

    def __init__(self, module: GraphModule, bodies: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(bodies)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def owner_of(module: GraphModule, compile_body: Compile) -> Any:
    """Return what the code of a graph is to read its attributes from. compile_body: returns the boxed function of a body, or None for one that stays."""
    bodies = _compiled(module, compile_body)
    return _Owner(module, bodies) if bodies else module


def _compiled(module: GraphModule, compile_body: Compile) -> dict[str, Callable[..., Any]]:
    """Return the functions of the bodies that a graph's ops call, by attribute."""
    names = dict.fromkeys(str(source.target) for source in _called(module.graph))
    bodies = {name: getattr(module, name, None) for name in names}
    made = {name: compile_body(body) for name, body in bodies.items() if isinstance(body, GraphModule) and _is_traced(body)}
    return {name: _unboxed(run) for name, run in made.items() if run is not None}


def _called(graph: torch.fx.Graph) -> Iterator[Node]:
    """The bodies that ops in CALLERS call, unless something else reads them, too."""
    for node in graph.nodes:
        if node.op == "get_attr" and node.users and all(calls_bodies(user) for user in node.users):
            yield node


def calls_bodies(node: Node) -> bool:
    """Tell whether a node calls graphs with plain tensors."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in CALLERS


def _is_traced(body: GraphModule) -> bool:
    """True for a graph of aten ops whose results' sizes and types are known."""
    return all("val" in node.meta for node in body.graph.nodes if node.op in ("placeholder", "call_function"))


def _unboxed(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def body(*arguments: Any) -> Any:
        return run(list(arguments))

    return body


__all__ = ["CALLED", "calls_bodies", "owner_of"]
