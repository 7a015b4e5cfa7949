"""The launches of one call as a CUDA graph that is launched again and again, with new arguments where these have changed.

One call into the driver starts all kernels, for less than one launch by itself costs, and somewhat more for each kernel whose arguments differ from those of
the last call (docs/executors.md). The driver's C interface is called with ctypes, as in `weft.runtime.launch`.
Read first: `LaunchGraph`, `capture`.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import arch as chips
from .. import forking

_RELAXED = 2  # CUstreamCaptureMode
_NON_BLOCKING = 1  # CUstream_flags
_streams: dict[int, ctypes.c_void_p] = {}
_lock = forking.lock()


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    ]  # fmt: skip


class LaunchGraph:
    """An executable graph of kernels that run one after the other.

    launch(stream) starts it; updates[n]() updates the arguments of kernel n from its memory, for later launches. Both return the driver's status.
    """

    def __init__(self, library: ctypes.CDLL, exec_: ctypes.c_void_p, nodes: Sequence[KernelNodeParams], handles: Sequence[int]) -> None:
        self._exec, self._nodes = exec_, list(nodes)
        set_params, self._launch = library["cuGraphExecKernelNodeSetParams_v2"], library["cuGraphLaunch"]
        self.updates = [(set_params, (exec_, ctypes.c_void_p(handle), ctypes.byref(node))) for handle, node in zip(handles, self._nodes)]
        weakref.finalize(self, library.cuGraphExecDestroy, exec_).atexit = False  # the driver waits for running work

    def launcher(self, stream: int) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """Return the function and the arguments that launch on a stream."""
        return self._launch, (self._exec, ctypes.c_void_p(stream))


def capture(device: int, launches: Sequence[tuple[Callable[..., int], tuple[Any, ...]]], configs: Sequence[Any], stream_word: int) -> LaunchGraph | None:
    """Return the graph of these launches, or None if the driver cannot make one.

    launches: (cuLaunchKernelEx, its arguments: configuration, function, addresses of the kernel's arguments, None) of each kernel. configs: the same
    configurations as words, of which `stream_word` is the stream; it is written.
    """
    from .driver import allowed_while_capturing, current_context

    library = chips.driver_library()
    try:
        with current_context(device), allowed_while_capturing(), _lock:
            return _captured(library, _stream(library, device), launches, configs, stream_word)
    except (AttributeError, _Refused):  # a driver without these functions, or one that refuses: kernels are launched one by one
        return None


class _Refused(Exception):
    """The driver returned an error."""


def _check(status: int) -> None:
    if status:
        raise _Refused(status)


def _stream(library: ctypes.CDLL, device: int) -> ctypes.c_void_p:
    """Return the stream on which launches of a device are captured; nothing is executed on it."""
    if device not in _streams:
        stream = ctypes.c_void_p()
        _check(library.cuStreamCreate(ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING)))
        _streams[device] = stream
    return _streams[device]


def _captured(library: ctypes.CDLL, stream: ctypes.c_void_p, launches: Sequence[Any], configs: Sequence[Any], stream_word: int) -> LaunchGraph:
    handles: list[int] = []
    with _capturing(library, stream) as graph:
        for (call, arguments), config in zip(launches, configs):
            config[stream_word] = stream.value
            _check(call(*arguments))
            handles.append(_last_node(library, stream))
    exec_ = ctypes.c_void_p()
    try:
        _check(library.cuGraphInstantiateWithFlags(ctypes.byref(exec_), graph, ctypes.c_ulonglong(0)))
    finally:
        library.cuGraphDestroy(graph)
    return LaunchGraph(library, exec_, [_params(arguments) for _, arguments in launches], handles)


@contextlib.contextmanager
def _capturing(library: ctypes.CDLL, stream: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    """Capture the launches within the block; the graph is available after it."""
    graph = ctypes.c_void_p()
    _check(library.cuStreamBeginCapture_v2(stream, ctypes.c_int(_RELAXED)))
    try:
        yield graph
    finally:
        status = library.cuStreamEndCapture(stream, ctypes.byref(graph))
    _check(status)


def _last_node(library: ctypes.CDLL, stream: ctypes.c_void_p) -> int:
    """Return the node that was captured last."""
    status, number, count = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_size_t()
    graph, nodes, edges = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
    _check(
        library.cuStreamGetCaptureInfo_v3(
            stream, ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), ctypes.byref(nodes), ctypes.byref(edges), ctypes.byref(count)
        )
    )
    if count.value != 1:
        raise _Refused(f"{count.value} nodes are last")
    return int(nodes[0])


def _params(arguments: tuple[Any, ...]) -> KernelNodeParams:
    """Return the parameters of a node from the arguments of cuLaunchKernelEx."""
    config, function, addresses, _ = arguments
    of = config._obj
    node = KernelNodeParams(function=function, shared_bytes=of.shared_bytes, arguments=ctypes.addressof(addresses._obj))
    node.grid[:], node.block[:] = of.grid[:], of.block[:]
    return node


@forking.in_child
def _forget() -> None:
    _streams.clear()
