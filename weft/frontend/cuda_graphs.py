"""mode="reduce-overhead": graphs are recorded into CUDA graphs by torch's cudagraph trees, which also share memory between forward and backward.

Owns which graphs are recorded, and which inputs keep their addresses. A call of a region can be recorded: it takes torch's stream, its memory from torch's
allocator, and the random state from where a recording reads it; compiling happens in the trees' first run, which is not recorded.
Read first: `CudaGraphs.recording_of`, `recorded`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)

Function = Callable[[list[Any]], Any]
"""A function of one list of arguments, which it empties."""


@dataclass(frozen=True)
class Recording:
    """The properties of an aten graph that recording needs, so that a process with the graph from a cache can record it, too.

    kind: forward, backward or inference. why: it is not recorded, "" if it is. device: of its forward, or its own; None if neither is recorded. numbers: which
    inputs are integers. static, mutated: positions of inputs with fixed addresses, and of those that are written. stack_traces, placeholders: for torch's
    messages.
    """

    kind: str
    why: str
    device: int | None
    numbers: tuple[bool, ...] = ()
    static: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    stack_traces: tuple[str | None, ...] = ()
    placeholders: tuple[Any, ...] = ()


@dataclass
class CudaGraphs:
    """The graphs of one compiled function. device: of the recorded forward, None as long as there is none."""

    device: int | None = None

    def recording_of(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], kind: str) -> Recording:
        """Return how a graph is recorded, or why it is not."""
        from torch._dynamo.backends.cudagraphs import check_for_skip, find_input_mutations, get_device_index, get_stack_traces
        from torch._inductor.cudagraph_utils import get_placeholder_info

        is_backward = kind == "backward"
        static = _static_inputs(gm, is_backward)
        why = check_for_skip(gm, len(static)) or ("its forward is not" if is_backward and self.device is None else "")
        if why:
            return Recording(kind, why, self.device if is_backward else None)
        self.device = get_device_index(gm)
        numbers = tuple(isinstance(v, (int, torch.SymInt)) for v in example_inputs)
        mutated = tuple(sorted(find_input_mutations(gm.graph)))
        return Recording(kind, "", self.device, numbers, tuple(static), mutated, tuple(get_stack_traces(gm)), tuple(get_placeholder_info(gm.graph)))


def recorded(run: Function, recording: Recording) -> Function:
    """Return a function that records `run` and replays it; `run` itself, with a log message, if that is not possible."""
    from torch._inductor.cudagraph_trees import cudagraphify_impl

    is_backward = recording.kind == "backward"
    if recording.why:
        log.warning("the %s graph is not recorded: %s", recording.kind, recording.why)
        return _after_forward(run, recording.device) if is_backward and recording.device is not None else run
    made: Any = cudagraphify_impl(
        run, [0 if is_number else None for is_number in recording.numbers], recording.static, device_index=recording.device, is_backward=is_backward,
        is_inference=recording.kind == "inference", stack_traces=list(recording.stack_traces), placeholders=list(recording.placeholders),
        mutated_input_idxs=set(recording.mutated),
    )  # fmt: skip
    made._boxed_call = True
    return made


def _after_forward(run: Function, device: int) -> Function:
    """Return a backward that is not recorded, and tells the graph trees that the forward's memory is in use."""
    from torch._inductor.cudagraph_trees import get_manager

    def told(arguments: list[Any]) -> Any:
        manager = get_manager(device, create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return run(arguments)

    told._boxed_call = True  # type: ignore[attr-defined]
    return told


def _static_inputs(gm: torch.fx.GraphModule, is_backward: bool) -> Sequence[int]:
    """Return the positions of inputs with fixed addresses: parameters and buffers; in a backward also saved tensors."""
    from torch._inductor.utils import count_tangents

    if is_backward:
        return range(count_tangents(gm))
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return [] if metadata is None else list(metadata.static_input_indices)


__all__ = ["CudaGraphs", "Recording", "recorded"]
