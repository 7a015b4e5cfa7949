"""mode="reduce-overhead": graphs are recorded into CUDA graphs by torch's cudagraph trees, which also share memory between forward and backward.

Owns which graphs are recorded, and which inputs keep their addresses. A call of a region can be recorded: it takes torch's stream, its memory from torch's
allocator, and the random state from where a recording reads it; compiling happens in the trees' first run, which is not recorded.
Read first: `CudaGraphs.recorded`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)

Boxed = Callable[[list[Any]], Any]


@dataclass
class CudaGraphs:
    """The graphs of one compiled function. device: of the recorded forward, None while there is none."""

    device: int | None = None

    def recorded(self, run: Boxed, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], kind: str) -> Boxed:
        """Return a function that records `run` and replays it; `run` itself, with a word in the log, where that cannot be."""
        from torch._dynamo.backends.cudagraphs import check_for_skip, find_input_mutations, get_device_index, get_stack_traces
        from torch._inductor.cudagraph_trees import cudagraphify_impl
        from torch._inductor.cudagraph_utils import get_placeholder_info

        is_backward = kind == "backward"
        static = _static_inputs(gm, is_backward)
        why = check_for_skip(gm, len(static))
        if why or is_backward and self.device is None:
            log.warning("the %s graph is not recorded: %s", kind, why or "its forward is not")
            return self._after_forward(run) if is_backward and self.device is not None else run
        self.device = get_device_index(gm)
        made: Any = cudagraphify_impl(
            run, list(example_inputs), static, device_index=self.device, is_backward=is_backward, is_inference=kind == "inference",
            stack_traces=get_stack_traces(gm), placeholders=get_placeholder_info(gm.graph), mutated_input_idxs=find_input_mutations(gm.graph),
        )  # fmt: skip
        made._boxed_call = True
        return made

    def _after_forward(self, run: Boxed) -> Boxed:
        """A backward that is not recorded tells the trees that the forward's memory is in use."""
        from torch._inductor.cudagraph_trees import get_manager

        def told(arguments: list[Any]) -> Any:
            manager = get_manager(self.device or 0, create_if_none_exists=False)
            if manager is not None:
                manager.set_to_running_backward()
            return run(arguments)

        told._boxed_call = True  # type: ignore[attr-defined]
        return told


def _static_inputs(gm: torch.fx.GraphModule, is_backward: bool) -> Sequence[int]:
    """Return the places of inputs whose memory stays where it is: parameters and buffers; in a backward what the forward saved."""
    from torch._inductor.utils import count_tangents

    if is_backward:
        return range(count_tangents(gm))
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return [] if metadata is None else list(metadata.static_input_indices)


__all__ = ["CudaGraphs"]
