"""Machine code that is loaded on a GPU: unloaded when nothing refers to it and there is too much of it.

A module whose kernels are gone stays loaded while there are at most `kept_kernels` such modules. Beyond that they are unloaded together, after
the device has ended all work, and only while no CUDA graph of torch is alive: a graph keeps launches that it captured, and Python cannot see which.
Read first: `Module`, `unload_retired`.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import sys
import weakref

from weft import arch as chips
from weft.options import current

_retired: collections.defaultdict[int, collections.deque[tuple[ctypes.CDLL, int]]] = collections.defaultdict(collections.deque)
"""Unreferenced modules, by device, the oldest first: the driver that loaded them, and the handle."""


class Module:
    """A loaded module. It is retired when this object is collected; kernels and launch records refer to it."""

    def __init__(self, handle: ctypes.c_void_p, device: int) -> None:
        self.handle = handle.value or 0
        self._retire = weakref.finalize(self, _retired[device].append, (chips.driver_library(), self.handle))
        self._retire.atexit = False


def unload_retired(device: int) -> int:
    """Unload unreferenced modules if there are more than the setting `kept_kernels`; return how many were unloaded. The device's context must be current."""
    limit, retired = current().kept_kernels, _retired[device]
    if not limit or len(retired) <= limit or _has_graphs():
        return 0
    count = len(retired)
    if chips.driver_library().cuCtxSynchronize():  # a capture is in progress, or the context has failed, which is reported elsewhere
        return 0
    for _ in range(count):
        library, handle = retired.popleft()
        library.cuModuleUnload(ctypes.c_void_p(handle))
    return count


def _has_graphs() -> bool:
    """Tell whether a CUDA graph of torch exists: only its replay could run an otherwise unreferenced kernel."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    return any(issubclass(type(o), torch.cuda.CUDAGraph) for o in gc.get_objects())
