"""A compiled graph in torch's caches (AOTAutogradCache, mega-cache artifacts, files of `aot_compile`): the text of its function, and the aten graph.
Calls of regions and kernels are in weft's own cache (docs/cache.md), so that a second process neither traces nor compiles, and reads no graph.

torch's key of an entry does not say which backend made it; `caching` adds weft's version and options, so that no other backend is given such an entry.
Read first: `StoredGraph`, `caching`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor.output_code import OutputCode

from .cuda_graphs import Recording, recorded
from .direct_call import tell, with_direct_calls
from .graph_file import graph_of, written
from .graph_key import keys_without_inductor
from .graph_plan import Boxed, GraphPlan
from .origins import MODULE, module_of

log = logging.getLogger(__name__)

REBUILD: dict[str, Callable[..., Any]] = {}
""""compile" -> function(StoredGraph) that returns a boxed function; set by the backend, which imports this file."""

KEPT_META = ("val", "stack_trace")
"""Metadata of nodes that regions and `weft.explain` need. The rest takes time to write, or contains modules and code, which cannot be written; the module's
name is kept as `MODULE`."""


@dataclass
class StoredGraph(OutputCode):
    """One aten graph and the function that runs it. kind: forward, backward or inference. options: fields of BackendOptions. recording: how CUDA graphs record
    it, if they are to. plan: the function as text; payload: the graph as bytes, if the plan is not enough. plain: the function; run: the same, recorded if CUDA
    graphs are on."""

    kind: str
    options: dict[str, Any]
    gm: torch.fx.GraphModule | None = None
    recording: Recording | None = None
    plain: Any = None
    run: Any = None
    plan: GraphPlan | None = None
    payload: bytes = field(default=b"")
    _boxed_call: bool = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self.run is not None, "post_compile has not run"
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Write the graph; the running function is not changed."""
        if self.payload or self.gm is None:
            return
        self.plan = self.plain.plan() if isinstance(self.plain, Boxed) else None
        self.payload = (self.plan and written(self.gm.graph, self.plan.constants)) or self._pickled()

    def _pickled(self) -> bytes:
        """The graph in torch's serialization."""
        from torch.fx._graph_pickler import GraphPickler, Options

        assert self.gm is not None
        copied = torch.fx.GraphModule(self.gm, _without_origins(self.gm.graph))
        for name in () if self.plan is None else self.plan.constants:
            setattr(copied, name, torch.empty(0))  # the plan contains it
        return GraphPickler.dumps(copied, Options(ops_filter=None))

    def graph(self) -> torch.fx.GraphModule:
        """Return the graph."""
        from torch.utils._python_dispatch import _disable_current_modes

        if self.gm is None:
            constants = {} if self.plan is None else self.plan.constants
            with _disable_current_modes():
                self.gm = graph_of(self.payload, constants) if self.payload.startswith(b"{") else _unpickled(self.payload, constants)
        return self.gm

    def post_compile(self, *args: Any, **keywords: Any) -> None:
        """Make the function of a graph that this process has compiled, or that another one has written."""
        from torch.utils._python_dispatch import _disable_current_modes

        if self.run is not None:
            return
        if not REBUILD:  # a file of aot_compile, loaded by a program that did not import the backend
            importlib.import_module(".backend", __package__)
        if self.plain is None:
            with _disable_current_modes():
                self.plain = REBUILD["compile"](self)
        self.run = self.plain if self.recording is None else recorded(self.plain, self.recording)
        tell(self.kind, self.run)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """weft has no Triton kernels."""

    def __copy__(self) -> StoredGraph:
        """A copy with the graph, because torch copies objects before it writes them."""
        return dataclasses.replace(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "gm": None, "plain": None, "run": None}


def _unpickled(payload: bytes, constants: dict[str, torch.Tensor]) -> torch.fx.GraphModule:
    from torch._subclasses import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    found: Any = GraphPickler.loads(payload, FakeTensorMode(shape_env=ShapeEnv()))
    for name, tensor in constants.items():
        setattr(found, name, tensor)
    return found


def _without_origins(graph: torch.fx.Graph) -> torch.fx.Graph:
    new = torch.fx.Graph()
    placed: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        placed[node] = new.node_copy(node, lambda n: placed[n])
        placed[node].meta = {k: node.meta[k] for k in KEPT_META if k in node.meta} | {MODULE: module_of(node)}
    return new


@functools.cache
def can_be_cached() -> bool:
    """True if this version of torch writes graphs of backends other than its own into its caches: 2.10 and later."""
    settings = ("torch._functorch.config", "force_non_lazy_backward_lowering"), ("torch.compiler.config", "cache_key_tag")
    schemas = "torch._functorch._aot_autograd.schemas", "SerializableAOTDispatchCompiler"
    can: bool = all(hasattr(importlib.import_module(module), name) for module, name in (*settings, schemas))
    if not can:
        log.info("graphs are compiled anew in each process: torch %s caches those of Inductor only, 2.10 and later those of weft, too", torch.__version__)
    return can


@contextlib.contextmanager
def caching(tag: str) -> Iterator[None]:
    """Make AOTAutograd write and read entries under weft's own key; an entry also contains the backward, which is therefore compiled at once."""
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    compiler_config: Any = importlib.import_module("torch.compiler.config")
    with functorch_config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True), compiler_config.patch(cache_key_tag=tag), \
            keys_without_inductor():  # fmt: skip
        yield


def for_a_file(compiled: Callable[..., Any], graphs: Sequence[tuple[str, Any]]) -> Callable[..., Any]:
    """Return a compiled graph in the form that `aot_compile` requires, if it is the caller: torch 2.11 accepts only Inductor's unchanged. Otherwise with direct
    calls of its only graph in `graphs`, by kind."""
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    if not getattr(functorch_config, "bypass_autograd_cache_key", False) or not hasattr(compiled, "serialize"):
        return with_direct_calls(compiled, graphs)
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable

    return BundledAOTAutogradSerializableCallable(compiled)


__all__ = ["REBUILD", "StoredGraph", "caching", "for_a_file"]
