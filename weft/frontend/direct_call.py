"""Calls an inference graph without AOTAutograd's wrappers where these do nothing.

Whether they do is seen, not guessed: the first call goes their way, and later ones go straight to the graph's function if that was given the very arguments of
the call, in their order, and the call returned the very results of the function. A wrapper that writes into inputs, makes views anew, leaves out equal
arguments, adds some, or takes tensors apart shows in one of these. Read first: `with_direct_calls`.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .graph_plan import Boxed

_here = threading.local()


@contextlib.contextmanager
def collected() -> Iterator[list[tuple[str, Any]]]:
    """Collect the graphs that are made in this block, each with its kind."""
    before, _here.graphs = getattr(_here, "graphs", None), []
    try:
        yield _here.graphs
    finally:
        _here.graphs = before


def tell(kind: str, run: Any) -> None:
    """Report that a graph is ready."""
    graphs = getattr(_here, "graphs", None)
    if graphs is not None:
        graphs.append((kind, run))


def with_direct_calls(compiled: Callable[..., Any], graphs: Sequence[tuple[str, Any]]) -> Callable[..., Any]:
    """Return `compiled`, replaced by direct calls of its graph as soon as one call has shown that both do the same. graphs: those that were made for it."""
    is_one = len(graphs) == 1 and graphs[0][0] == "inference" and type(graphs[0][1]) is Boxed
    if not is_one or torch._C._is_any_autocast_enabled() or _is_for_a_file():  # the wrappers disable autocast
        return compiled
    graph: Boxed = graphs[0][1]
    gradients = torch.is_grad_enabled
    is_direct: bool | None = None

    def call(*arguments: Any) -> Any:
        nonlocal is_direct
        if is_direct and not gradients():
            return graph.run(list(arguments))
        if is_direct is not None or gradients():  # the wrappers also disable gradients
            return compiled(*arguments)
        results, is_direct = _watched(compiled, graph, arguments)
        return results

    for name in ("zero_grad", "named_parameters", "named_buffers", "serialize"):
        if hasattr(compiled, name):
            setattr(call, name, getattr(compiled, name))
    return call


def _watched(compiled: Callable[..., Any], graph: Boxed, arguments: tuple[Any, ...]) -> tuple[Any, bool]:
    """Call, and tell whether only the graph was called."""
    seen: list[tuple[list[Any], Any]] = []
    run = graph.run

    def watched(given: list[Any]) -> Any:
        kept = list(given)
        made = run(given)
        seen.append((kept, made))
        return made

    graph.run = watched
    try:
        results = compiled(*arguments)
    finally:
        graph.run = run
    return results, len(seen) == 1 and _are_same(seen[0][0], arguments) and _are_same(seen[0][1], results)


def _are_same(some: Any, others: Any) -> bool:
    """True if two lists have the same objects in the same order."""
    return all(isinstance(values, (list, tuple)) for values in (some, others)) and len(some) == len(others) and all(a is b for a, b in zip(some, others))


def _is_for_a_file() -> bool:
    """True if torch writes the backend's result into a file."""
    dynamo_config: Any = importlib.import_module("torch._dynamo.config")
    return bool(getattr(dynamo_config, "caching_precompile", False))


__all__ = ["collected", "tell", "with_direct_calls"]
