"""Scratch memory of kernels that must be zero at launch: kept zeroed, one piece per device and stream. Before it lies memory that kernels may leave as it is.

Kernels of a stream run one after the other and leave the memory zero, so they can share it. Read first: `zeroed`.
Asking the driver whether a graph is being captured is expensive (docs/executors.md), so `statements` ask only where one can be.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from .. import forking

_lock = forking.lock()
_pool: dict[tuple[int | None, int], tuple[torch.Tensor, int]] = {}
_NOTHING: tuple[torch.Tensor | None, int, int] = (None, 0, 0)
_on_default_stream: dict[int | None, tuple[torch.Tensor | None, int, int]] = {}
"""By device: memory, address and bytes for the default stream. CUDA does not capture graphs from that stream."""
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
PIECE_BYTES = 256
"""Several buffers of a kernel share one piece, at multiples of this."""
SCRATCH_BYTES = 1 << 20
"""Bytes before the zeroed memory for buffers that need not be zero: a separate allocation would cost a fiftieth of a small launch."""


def zeroed(device: int | None, stream: int, size_bytes: int) -> tuple[torch.Tensor, int]:
    """Return memory, and the address in it, SCRATCH_BYTES after its start, from which at least `size_bytes` are zero after the stream's earlier work. During a
    CUDA graph capture the memory is new, and the capture includes the command that clears it, because replays may run concurrently with other work.
    """
    if device is not None and _is_capturing():
        return _new(device, size_bytes)
    found = _pool.get((device, stream))
    if found is None or found[0].numel() - SCRATCH_BYTES < size_bytes:
        with _lock:
            found = _pool.get((device, stream))
            if found is None or found[0].numel() - SCRATCH_BYTES < size_bytes:
                found = _pool[(device, stream)] = _lasting(device, stream, max(size_bytes, 1 << 16))
                if not stream:
                    _on_default_stream[device] = (*found, found[0].numel() - SCRATCH_BYTES)
    return found


def statements(size_bytes: int) -> list[str]:
    """Return `memory, zeroed = zeroed(gpu, queue, size_bytes)` as used in a generated call; `names` returns the names that it uses."""
    return [
        "memory, zeroed, room = nothing if queue else default_stream(gpu, nothing)",
        f"if room < {size_bytes}: memory, zeroed = zeroed_memory(gpu, queue, {size_bytes})",
    ]


def names(device: int | None) -> dict[str, Any]:
    """Return the names that `statements` use."""
    return {"zeroed_memory": zeroed, "default_stream": _on_default_stream.get, "nothing": _NOTHING, "gpu": device}


def _new(device: int | None, size_bytes: int) -> tuple[torch.Tensor, int]:
    place = torch.device("cpu") if device is None else torch.device("cuda", device)
    memory = torch.empty(SCRATCH_BYTES + size_bytes, dtype=torch.uint8, device=place)
    memory[SCRATCH_BYTES:].zero_()
    return memory, memory.data_ptr() + SCRATCH_BYTES


def _lasting(device: int | None, stream: int, size_bytes: int) -> tuple[torch.Tensor, int]:
    """Return memory that outlives the call, allocated on a separate thread: the calling thread may use a special pool, such as that of torch's CUDA graph
    trees, which would give the same memory to others."""
    if device is None:
        return _new(device, size_bytes)

    def make() -> tuple[torch.Tensor, int]:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
            return _new(device, size_bytes)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def forget(device: int | None = None) -> None:
    """Drop the pieces of a device: after a failed kernel they may not be zero."""
    for key in [key for key in _pool if key[0] == device]:
        _pool.pop(key, None)
    _on_default_stream.pop(device, None)
