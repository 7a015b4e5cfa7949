"""A region at run time: one call of its definition, or of torch's ops where weft has no kernel. Read first: `RegionCall.__call__`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import profiler
from torch.fx import Node

from ..errors import UserError, WeftError
from ..runtime.call_records import RecordedCalls
from ..runtime.warm_path import Warm
from .ahead import likenesses
from .origins import bytes_of, origin_of
from .regions import Region
from .translate import Translated

log = logging.getLogger(__name__)


class WrongLayout(UserError):
    code = "W881"
    what = "output {index} of a region is {given}, and was traced as {wanted}"
    fix = "this is a defect of weft; please report it with the program (debug=True found it)"


class RegionCalls(RecordedCalls):
    """Calls of regions of one structure. pending: the background compilation of their kernels, until it has ended."""

    pending: Future[None] | None = None


Source = Callable[[], tuple[Region, Translated]]
"""Returns a region and its definition; not called if all calls are found on disk."""


@dataclass(frozen=True)
class RegionPlan:
    """What a region's calls need when the region itself is not loaded. key: a digest of its structure. place: its number among the regions of the graph.
    weight: compute nodes. device: where it runs if no input decides that. inputs: likenesses of the traced values, for `ahead`; None if there are others than
    tensors and sizes. reuses: (output, input) of `Region.reuses`, by their places. told: what a profile shows besides its name: module and source line, and
    the bytes that it reads and writes at the traced sizes."""

    name: str
    key: str
    place: int
    weight: int
    device: torch.device | None
    inputs: tuple[Any, ...] | None
    reuses: tuple[tuple[int, int], ...] = ()
    told: dict[str, Any] = field(default_factory=dict)


def plan_of(region: Region, key: str, place: int, weight: int, *, is_emulated: bool) -> RegionPlan:
    """Return what the calls of a region need."""
    names = dict.fromkeys(getattr(getattr(n.target, "overloadpacket", n.target), "__name__", "") for n in region.nodes)
    name = "weft_" + "_".join([n.strip("_") for n in names if n and n != "getitem"][:6])
    told = {"kernel_backend": "weft", "origin": origin_of(region), "bytes": bytes_of(region.inputs) + bytes_of(region.outputs)}
    inputs = likenesses([n.meta.get("val") for n in region.inputs])
    return RegionPlan(name, key, place, weight, _device_without_inputs(region, is_emulated), inputs, region.reused_places, told)


class RegionCall:
    """Callable with the region's inputs; returns its outputs. fallback_reason: why torch runs it, once a call has fallen back; otherwise ""."""

    def __init__(self, plan: RegionPlan, source: Source, calls: RegionCalls, *, is_debug: bool, is_strict: bool) -> None:
        self.plan, self.calls, self.is_debug, self.is_strict = plan, calls, is_debug, is_strict
        self.fallback_reason = ""
        self.device = plan.device
        self._source = source
        self._eager: torch.fx.GraphModule | None = None
        self.__name__ = plan.name
        self.__module__ = __name__
        self.__qualname__ = self.__name__

    @property
    def region(self) -> Region:
        return self._source()[0]

    @property
    def translated(self) -> Translated:
        return self._source()[1]

    def __call__(self, *inputs: Any) -> Any:
        if profiler._is_profiler_enabled:
            with torch._C._profiler._RecordFunctionFast(self.__name__, (), self.plan.told):
                return self._run(inputs)
        return self._run(inputs)

    def _run(self, inputs: tuple[Any, ...]) -> Any:
        if self.fallback_reason:
            return self.eager(*inputs)
        calls = self.calls
        if calls.pending is not None:
            calls.pending.result()
            calls.pending = None
        try:
            outputs = calls.execute(inputs) if self.device is None else calls.execute(inputs, device=self.device)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if self.is_strict:
                raise
            self._fall_back(error)
            return self.eager(*inputs)
        if self.is_debug:
            self._check(outputs, inputs)
        return outputs

    def warm(self, inputs: Sequence[Any]) -> Warm | None:
        """Return the prepared call for inputs like these, to be inlined in another function; None if the call does more."""
        is_plain = not (self.is_debug or self.fallback_reason or self.device is not None) and all(isinstance(v, torch.Tensor) for v in inputs)
        return self.calls.warm(inputs) if is_plain and inputs else None

    def prepare(self, values: Sequence[Any]) -> None:
        """Compile the kernels for values like these, without a launch. Errors: those of a call."""
        self.calls.prepare(values, self.device)

    def _fall_back(self, error: Exception) -> None:
        """Let torch run this region from now on, and log it. An error that is not a WeftError is a defect of weft."""
        lines = str(error).splitlines() or [""]
        self.fallback_reason = lines[0] if isinstance(error, WeftError) else f"a defect of weft, please report it: {type(error).__name__}: {lines[0]}"
        log.warning("%s runs in torch: %s", self.__name__, self.fallback_reason)
        log.debug("the error in full", exc_info=error)

    def kernels(self) -> tuple[Any, ...]:
        """The kernels that calls of this region's definition have used; none before the first call, or if torch runs it."""
        return self.calls.kernels

    def eager(self, *inputs: Any) -> Any:
        """Run the region's ops in torch."""
        if self._eager is None:
            self._eager = eager_module(self.region)
        return self._eager(*inputs)

    def _check(self, outputs: Any, inputs: tuple[Any, ...]) -> None:
        updated = [self.region.inputs.index(argument) for argument in self.region.updates.values()]
        wanted = self.eager(*[value.clone() if place in updated else value for place, value in enumerate(inputs)])
        for index, (out, want) in enumerate(zip(outputs, wanted, strict=True)):
            same = out.dtype is want.dtype and out.shape == want.shape and (out.stride() == want.stride() or out.numel() <= 1 or not _differs(out, want))
            if not same:
                raise WrongLayout(index=index, given=_described(out), wanted=_described(want))


def _device_without_inputs(region: Region, is_emulated: bool) -> torch.device | None:
    """The device of a region that no input tensor decides; None where one does."""
    given = [n.meta.get("val") for n in region.inputs]
    if any(isinstance(v, torch.Tensor) and (v.dim() or v.is_cuda) for v in given):
        return None
    return torch.device("cpu") if is_emulated else region.outputs[0].meta["val"].device


def _differs(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if strides differ in an axis of more than one element."""
    return any(x != y for x, y, size in zip(a.stride(), b.stride(), a.shape) if size > 1)


def _described(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"


def eager_module(region: Region) -> torch.fx.GraphModule:
    """Return a region as a module of torch's ops."""
    graph = torch.fx.Graph()
    placed: dict[Node, Node] = {n: graph.placeholder(n.name) for n in region.inputs}
    for node in region.nodes:
        placed[node] = graph.node_copy(node, lambda n: placed[n])
    for value, argument in region.updates.items():
        graph.call_function(torch.ops.aten.copy_.default, (placed[argument], placed[value]))
    graph.output(tuple(placed[n] for n in region.returned))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


__all__ = ["RegionCall", "RegionCalls", "RegionPlan", "eager_module", "plan_of"]
