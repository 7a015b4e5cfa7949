"""Scratch memory of kernels that must be zero at launch: kept zeroed, one piece per device and stream.

Kernels of a stream run one after the other and leave the memory zero, so they can share it. Read first: `zeroed`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from .. import forking

_lock = forking.lock()
_pool: dict[tuple[int | None, int], tuple[torch.Tensor, int]] = {}
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
PIECE_BYTES = 256
"""Several zeroed buffers of a kernel lie in one piece at multiples of this."""


def zeroed(device: int | None, stream: int, size_bytes: int) -> tuple[torch.Tensor, int]:
    """Return memory of at least `size_bytes` that is zero when the stream's earlier work is done, and its address.

    While a CUDA graph is captured the memory is fresh, and the capture holds the command that clears it: replays may run beside other work.
    """
    if device is not None and _is_capturing():
        return _new(device, size_bytes)
    found = _pool.get((device, stream))
    if found is None or found[0].numel() < size_bytes:
        with _lock:
            found = _pool.get((device, stream))
            if found is None or found[0].numel() < size_bytes:
                found = _pool[(device, stream)] = _lasting(device, stream, max(size_bytes, 1 << 16))
    return found


def _new(device: int | None, size_bytes: int) -> tuple[torch.Tensor, int]:
    memory = torch.zeros(size_bytes, dtype=torch.uint8, device="cpu" if device is None else torch.device("cuda", device))
    return memory, memory.data_ptr()


def _lasting(device: int | None, stream: int, size_bytes: int) -> tuple[torch.Tensor, int]:
    """Return memory that outlives the call, taken on a thread of its own: the calling thread may allocate from a pool of somebody else's, such as that of
    torch's CUDA graph trees, which would give the same memory to others."""
    if device is None:
        return _new(device, size_bytes)

    def make() -> tuple[torch.Tensor, int]:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
            return _new(device, size_bytes)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def forget(device: int | None = None) -> None:
    """Drop the pieces of a device: after a kernel that failed they may not be zero."""
    for key in [key for key in _pool if key[0] == device]:
        _pool.pop(key, None)
