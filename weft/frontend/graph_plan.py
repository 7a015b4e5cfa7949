"""A compiled graph as text: Python code with one call per region and per op of torch's, and what the code names.

Another process runs it without torch's graph, which takes 5 ms per hundred nodes to unpickle where torch wrote it. Read first: `GraphPlan`, `boxed`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import linecache
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodDescriptorType, SimpleNamespace
from typing import Any

import torch

from ..runtime import kept_code
from .graph_text import Code
from .record import CompiledGraph
from .region_call import RegionCall, RegionPlan
from .warm_graph import WarmGraph

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GraphPlan:
    """kind: forward, backward or inference. source: the text of a function forward(self, arguments). names: its global names: ("region", its number), ("part",
    a module and the path of an object in it) or ("value", a number, a torch dtype, None). constants: tensors, by their
    attribute of `self`. torch_ops, compute_nodes: as in `CompiledGraph`. code: of the source (`kept_code`)."""

    kind: str
    source: str
    names: dict[str, tuple[str, Any]]
    regions: tuple[RegionPlan, ...]
    compute_nodes: int
    torch_ops: dict[str, tuple[int, str]] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    code: bytes = b""

    def function(self, calls: Sequence[RegionCall]) -> "Boxed":
        """Return the function, with these calls of regions."""
        kept_code.unpack(self.code)
        found: dict[str, Callable[[Any], Any]] = {
            "region": lambda number: calls[number], "part": lambda at: part(*at), "value": lambda value: value,
        }
        names = {name: found[kind](value) for name, (kind, value) in self.names.items()}
        constants = {name: value.clone() if value.data_ptr() % ALIGNED_BYTES else value for name, value in self.constants.items()}
        return Boxed(self.source, names, SimpleNamespace(**constants), self.kind, lambda: self)


def part(module: str, path: str) -> Any:
    """Return the object of a module at a path of names."""
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


ALIGNED_BYTES = 64
"""The alignment of torch's own tensors; a tensor from a file may have less, and its calls would need other kernels."""


def _file(source: str, kind: str) -> str:
    """The file name of a graph in tracebacks."""
    return f"<weft {kind} graph {hashlib.sha256(source.encode()).hexdigest()[:12]}>"


CALLS_BEFORE_WARM = 2
"""After so many calls a graph is rewritten with the prepared calls of its regions inlined."""


class Boxed:
    """A function of one list of arguments, which it empties. plan: returns its plan, or None if it refers to objects that cannot be written to a file. run: the
    present implementation.
    """

    def __init__(self, source: str, names: dict[str, Any], owner: Any, kind: str, plan: Callable[[], GraphPlan | None]) -> None:
        file = _file(source, kind)
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)  # so that tracebacks show its lines
        namespace = dict(names)
        exec(kept_code.code_of(source, file), namespace)  # noqa: S102  (text of this package and of torch.fx)
        self._forward, self._owner, self.plan = namespace["forward"], owner, plan
        self._source, self._names, self._calls = source, names, 0
        self._boxed_call = True  # torch copies the attributes of the object, not of its class
        self.run: Callable[[list[Any]], Any] = self._first

    def __call__(self, arguments: list[Any]) -> Any:
        return self.run(arguments)

    def plain(self, arguments: list[Any]) -> Any:
        """Call the function in its first form, in which regions are calls."""
        return self._forward(self._owner, arguments)

    def _first(self, arguments: list[Any]) -> Any:
        """The calls before the graph is rewritten; the last of them rewrites it."""
        self._calls += 1
        if self._calls <= CALLS_BEFORE_WARM:
            return self._forward(self._owner, arguments)
        self.run = self.plain
        warm = WarmGraph(self._source, self._names, self.plain)
        if not warm.is_wanted:
            return self._forward(self._owner, arguments)
        made = warm.note(self._forward, self._owner, arguments)
        try:
            self.run = warm.function(self._owner) or self.plain
        except Exception as error:  # noqa: BLE001  (another form is an offer: the function as it is serves all calls)
            log.debug("a graph is not written anew: %s: %s", type(error).__name__, error)
        return made


def boxed(code: Code, gm: torch.fx.GraphModule, record: CompiledGraph, owner: Any) -> Boxed:
    """Return the function of a graph. owner: what its code reads attributes from, those of `gm`."""
    place = {id(call): number for number, call in enumerate(record.calls)}
    regions = tuple(call.plan for call in record.calls)

    def plan() -> GraphPlan | None:
        names = {name: _named(value, place) for name, value in code.names.items()}
        constants = {name: getattr(gm, name, None) for name in code.attributes}
        strange = [name for name, found in names.items() if found is None]
        strange += [name for name, value in constants.items() if type(value) is not torch.Tensor]
        if strange or not all(region.key for region in regions):
            why = f"it names {', '.join(strange)}" if strange else "it is not to be kept"
            log.info("%s graph: another process will cut it into regions again: %s", record.kind, why)
            return None
        with kept_code.noting() as codes:
            kept_code.code_of(code.source, _file(code.source, record.kind))
        made = kept_code.packed(codes)
        return GraphPlan(record.kind, code.source, names, regions, record.compute_nodes, record.torch_ops, constants, made)  # type: ignore[arg-type]

    return Boxed(code.source, code.names, owner, record.kind, plan)


def _named(value: Any, place: dict[int, int]) -> tuple[str, Any] | None:
    if isinstance(value, RegionCall):
        return "region", place[id(value)]
    if value is None or isinstance(value, _PLAIN):
        return "value", value
    at = named_part(value)
    return None if at is None else ("part", at)


def named_part(value: Any) -> tuple[str, str] | None:
    """Return the module and the path of a function or an op, by which `part` finds it; None if it cannot."""
    if isinstance(value, torch._ops.OpOverload):
        at: Any = "torch", f"ops.{value}"
    elif isinstance(value, torch._ops.HigherOrderOperator):
        at = "torch", f"ops.higher_order.{value.name()}"
    else:
        at = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if at[0] in (None, "torch"):  # torch.mm and similar functions are methods of a hidden class
            name = getattr(value, "__name__", None)
            at = "torch", f"Tensor.{name}" if isinstance(value, MethodDescriptorType) else name
    try:
        return at if part(*at) is value else None
    except (AttributeError, ImportError, TypeError, ValueError):
        return None


_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


__all__ = ["Boxed", "GraphPlan", "boxed", "named_part", "part"]
