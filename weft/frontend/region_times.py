"""How long the kernels of a region take on the GPU, for `weft.explain`. Read first: `microseconds`."""

from __future__ import annotations

from typing import Any

import torch

from .ahead import Likeness
from .region_call import RegionCall

CALLS, REPLAYS = 10, 5


def microseconds(call: RegionCall) -> float | None:
    """Return the time of one call of a region at the traced sizes, its inputs in L2 as far as they fit; None if it did not run in kernels on a GPU. The calls
    are recorded into a CUDA graph, so that host time does not count.
    """
    likes = call.plan.inputs
    device = next((like.device for like in likes or () if isinstance(like, Likeness) and like.device.type == "cuda"), None)
    if likes is None or device is None or call.fallback_reason or not call.kernels():
        return None
    with torch.no_grad(), torch.cuda.device(device):
        inputs = [_filled(like) for like in likes]
        call(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                call(*inputs)
        graph.replay()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(REPLAYS):
            graph.replay()
        after.record()
        after.synchronize()
        return 1e3 * before.elapsed_time(after) / (CALLS * REPLAYS)


def _filled(like: Any) -> Any:
    """A tensor like a traced one: random numbers; 0 for integers, which may be positions."""
    if not isinstance(like, Likeness):
        return like
    memory = torch.zeros(like.span, dtype=like.dtype, device=like.device)
    if like.dtype.is_floating_point:
        memory.normal_()
    return memory.as_strided(like.sizes, like.strides)


__all__ = ["microseconds"]
