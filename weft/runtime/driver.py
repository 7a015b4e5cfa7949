"""Kernels on a device: loading, limits, occupancy, launch records.

Owns the CUDA driver calls behind a `LoadedKernel`. They work on the device's primary context, which is torch's, whatever
the calling thread's current device is. The driver's C interface is called with ctypes (see `weft.runtime.launch`).
Loaded code stays as long as a kernel or a launch record refers to it, and mostly longer (`weft.runtime.modules`).
Read first: `load_kernel`, then `LoadedKernel.record`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from weft import arch as chips
from weft import forking
from weft.arch import Arch, arch_of_device, check
from weft.errors import InternalError, UserError, WeftError
from weft.runtime.launch import TENSOR_MAP_BYTES, LaunchRecord, ParamSlot, make_config
from weft.runtime.modules import Module, unload_retired
from weft.runtime.resources import CooperativeGridTooLarge, Resources, resources_of

_MAX_THREADS_PER_BLOCK = 0  # CUfunction_attribute
_SHARED_BYTES = 1
_CONST_BYTES = 2
_LOCAL_BYTES = 3
_REGISTERS = 4
_BINARY_VERSION = 6
_MAX_DYNAMIC_SHARED_BYTES = 8
_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14

PORTABLE_CLUSTER_BLOCKS = 8
"""Larger clusters must be opted in to, and depend on the chip (CUDA C++ Programming Guide, thread block clusters)."""

_CAPTURE_MODE_RELAXED = 2  # CUstreamCaptureMode


class ForkedAfterCuda(UserError):
    code = "W764"
    what = "this process was forked from one that had used the GPU; CUDA does not work in such a child"
    fix = 'use multiprocessing with "spawn" or "forkserver", or use the GPU only after the fork'


class LaunchBeyondLimit(UserError):
    code = "W760"
    what = "kernel {kernel} wants {quantity} {value}; {chip} allows {limit}"
    fix = "{remedy}"


class CodeRejected(WeftError):
    code = "W762"
    what = "the driver (CUDA {driver}) does not load the machine code of kernel {entry} on {chip}: {reason}"
    fix = "{remedy}"


class TensorMapRejected(InternalError):
    code = "W763"
    what = "the driver refuses a tensor map of {element_bits} bit elements, extents {extents}, strides {strides_bytes} B, box {box}: error {status}"


@dataclass(frozen=True, slots=True)
class FunctionAttributes:
    """The driver's attributes of a loaded kernel. Units: registers and `local_bytes` per thread."""

    registers: int
    static_shared_bytes: int
    local_bytes: int
    const_bytes: int
    max_threads_per_block: int
    binary_version: int


# ---------------------------------------------------------------------------------------------------------------------
# Contexts

_lock = forking.recursive_lock()
_contexts: dict[int, ctypes.c_void_p] = {}


def primary_context(device: int) -> ctypes.c_void_p:
    """Return the primary context of a device, retained once for the life of the process.

    Errors: ForkedAfterCuda; those of `weft.arch.arch_of_device`.
    """
    context = _contexts.get(device)
    if context is None:
        if _is_forked:
            raise ForkedAfterCuda()
        with _lock:
            context = _contexts.get(device)
            if context is None:
                arch_of_device(device)  # a clear error for an index that does not exist
                library = chips.driver_library()
                handle, context = ctypes.c_int(), ctypes.c_void_p()
                check(library, "cuDeviceGet", library.cuDeviceGet(ctypes.byref(handle), device))
                check(library, "cuDevicePrimaryCtxRetain", library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
                _contexts[device] = context
    return context


_is_forked = False


@forking.in_child
def _note_fork() -> None:
    """Note a fork: a child of a process that used the GPU cannot use it, and CUDA's own error does not say why."""
    global _is_forked
    _is_forked = _is_forked or bool(_contexts) or chips.is_driver_initialised()
    _contexts.clear()


@contextlib.contextmanager
def current_context(device: int) -> Iterator[None]:
    """Make the device's primary context current in this thread within a `with` block."""
    library = chips.driver_library()
    check(library, "cuCtxPushCurrent", library.cuCtxPushCurrent_v2(primary_context(device)))
    try:
        yield
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@contextlib.contextmanager
def allowed_while_capturing() -> Iterator[None]:
    """Allow calls in this thread that a graph capture in any thread would forbid, such as loading code."""
    library = chips.driver_library()
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    check(library, "cuThreadExchangeStreamCaptureMode", library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
    try:
        yield
    finally:
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


# ---------------------------------------------------------------------------------------------------------------------
# Kernels


def load_kernel(cubin: bytes, entry: str, device: int, resources: Resources | None = None) -> LoadedKernel:
    """Load machine code on a device and return the kernel called `entry`.

    `resources` come from the compilation; without them they are read off the cubin, with the spills unknown.
    Errors: CodeRejected; those of `weft.arch.arch_of_device`.
    """
    library = chips.driver_library()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with current_context(device), allowed_while_capturing():
        unload_retired(device)
        status = library.cuModuleLoadData(ctypes.byref(module), cubin)
        if status:
            raise _rejected(library, status, entry, device)
        check(library, "cuModuleGetFunction", library.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()))
        loaded = Module(module, device)
        kernel = LoadedKernel(entry, device, function, resources or resources_of(cubin, entry), loaded)
        kernel.attributes  # noqa: B018 - CUDA loads code at the first use of a function; take that time now, not at the first launch
    return kernel


def _rejected(library: ctypes.CDLL, status: int, entry: str, device: int) -> CodeRejected:
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    try:
        check(library, "cuModuleLoadData", status)
        raise AssertionError("check() returned for an error")
    except chips.DriverCallFailed as error:
        values = error.values
    chip = arch_of_device(device)
    return CodeRejected(
        driver=f"{version.value // 1000}.{version.value % 1000 // 10}",
        entry=entry,
        chip=f"{chip.name} ({chip.nvrtc_target})",
        reason=f"{values['name']} ({status}), {values['text']}",
        remedy=values["remedy"],
    )


class LoadedKernel:
    """A kernel on one device. Made by `load_kernel`.

    `resources` is what the compiler used, `arch` the device's figures.
    """

    def __init__(self, name: str, device: int, function: ctypes.c_void_p, resources: Resources, module: Module | None = None) -> None:
        self.name = name
        self._module = module  # kept as long as this object, which launch records refer to
        self.device = device
        self.arch: Arch = arch_of_device(device)
        self.resources = resources
        self._function = function
        self._lock = forking.lock()
        self._allowed_dynamic_shared_bytes = chips.MAX_DYNAMIC_SHARED_WITHOUT_OPTIN_BYTES - resources.static_shared_bytes
        self._allows_large_clusters = False

    def set_pointer(self, name: str, address: int) -> None:
        """Set the pointer `name`, a global variable of the machine code in GPU memory, to `address`. Errors: DriverCallFailed."""
        library, place, size = chips.driver_library(), ctypes.c_uint64(), ctypes.c_size_t()
        assert self._module is not None
        with current_context(self.device), allowed_while_capturing():
            module = ctypes.c_void_p(self._module.handle)
            check(library, "cuModuleGetGlobal", library.cuModuleGetGlobal_v2(ctypes.byref(place), ctypes.byref(size), module, name.encode()))
            value = ctypes.c_uint64(address)
            check(library, "cuMemcpyHtoD", library.cuMemcpyHtoD_v2(place, ctypes.byref(value), ctypes.c_size_t(8)))

    @functools.cached_property
    def attributes(self) -> FunctionAttributes:
        """The driver's attributes of the kernel."""
        return FunctionAttributes(
            registers=self._attribute(_REGISTERS),
            static_shared_bytes=self._attribute(_SHARED_BYTES),
            local_bytes=self._attribute(_LOCAL_BYTES),
            const_bytes=self._attribute(_CONST_BYTES),
            max_threads_per_block=self._attribute(_MAX_THREADS_PER_BLOCK),
            binary_version=self._attribute(_BINARY_VERSION),
        )

    def blocks_per_sm(self, threads: int, shared_bytes: int = 0) -> int:
        """Blocks that the driver can keep resident on a multiprocessor. Units: `shared_bytes` is dynamic shared memory."""
        self.allow_dynamic_shared(shared_bytes)
        library, count = chips.driver_library(), ctypes.c_int()
        with current_context(self.device):
            status = library.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(count), self._function, ctypes.c_int(threads), ctypes.c_size_t(shared_bytes)
            )
        check(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", status)
        return count.value

    def resident_clusters(self, cluster: Sequence[int], block: Sequence[int], shared_bytes: int = 0) -> int:
        """Clusters of this shape that the whole device can keep resident; 0 if not even one fits."""
        self.allow_dynamic_shared(shared_bytes)
        self._allow_cluster(prod(cluster))
        config = make_config(tuple(cluster), block, shared_bytes, cluster=cluster)
        library, count = chips.driver_library(), ctypes.c_int()
        with current_context(self.device):
            status = library.cuOccupancyMaxActiveClusters(ctypes.byref(count), self._function, ctypes.byref(config))
        check(library, "cuOccupancyMaxActiveClusters", status)
        return count.value

    def largest_cluster(self, block: Sequence[int], shared_bytes: int = 0) -> int:
        """Most blocks that a cluster of this kernel may have on this device, clusters above 8 included."""
        self.allow_dynamic_shared(shared_bytes)
        self._allow_cluster(self.arch.max_cluster_blocks)
        config = make_config((self.arch.sm_count * 16,), block, shared_bytes)
        library, count = chips.driver_library(), ctypes.c_int()
        with current_context(self.device):
            status = library.cuOccupancyMaxPotentialClusterSize(ctypes.byref(count), self._function, ctypes.byref(config))
        check(library, "cuOccupancyMaxPotentialClusterSize", status)
        return count.value

    def record(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        params: Sequence[ParamSlot],
        *,
        cluster: Sequence[int] | None = None,
        cooperative: bool = False,
        overlap_previous: bool = False,
    ) -> LaunchRecord:
        """Prepare a launch: check it, set the kernel's attributes, lay out the arguments.

        Units:  grid in blocks (in steps of `cluster`), `shared_bytes` dynamic shared memory. An extent of 0 launches nothing.
        Errors: LaunchBeyondLimit; CooperativeGridTooLarge, because a grid that is not resident as a whole would deadlock.
        """
        config = make_config(grid, block, shared_bytes, cluster=cluster, cooperative=cooperative, overlap_previous=overlap_previous)
        self._check_limits(tuple(config.grid), tuple(config.block), shared_bytes, tuple(cluster or ()))
        self.allow_dynamic_shared(shared_bytes)
        if cluster is not None:
            self._allow_cluster(prod(cluster))
        if cooperative:
            self.check_residency(tuple(config.grid), tuple(config.block), shared_bytes, cluster)
        library = chips.driver_library()
        # subscripting creates a new function object, without argtypes: see weft.runtime.launch
        call = library["cuLaunchKernelEx"]
        replace_address = library["cuTensorMapReplaceAddress"] if any(slot[0] == "tensor_map" for slot in params) else None
        return LaunchRecord(self.name, call, self._function, config, params, self._retry, replace_address, self.device)

    def check_residency(self, grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int, cluster: Sequence[int] | None) -> None:
        """Check that all blocks of a cooperative launch run at once. Errors: CooperativeGridTooLarge, LaunchBeyondLimit."""
        self.allow_dynamic_shared(shared_bytes)
        if cluster is not None:
            self._allow_cluster(prod(cluster))
        if all(grid):
            self._check_residency(grid, block, shared_bytes, cluster)

    def allow_dynamic_shared(self, shared_bytes: int) -> None:
        """Raise the kernel's limit of dynamic shared memory; it is never lowered, so that older records stay valid."""
        if shared_bytes <= self._allowed_dynamic_shared_bytes:
            return
        with self._lock:
            if shared_bytes > self._allowed_dynamic_shared_bytes:
                self._check_shared(shared_bytes)
                self._set_attribute(_MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
                self._allowed_dynamic_shared_bytes = shared_bytes

    def _allow_cluster(self, blocks: int) -> None:
        if blocks > PORTABLE_CLUSTER_BLOCKS and not self._allows_large_clusters:
            self._set_attribute(_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
            self._allows_large_clusters = True

    def _check_limits(self, grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int, cluster: tuple[int, ...]) -> None:
        for axis, extent, limit in zip("xyz", grid, chips.MAX_GRID):
            self._require(extent <= limit, f"gridDim.{axis}", extent, limit, "let each block do more work, or move the axis to grid x")
        self._require(block[2] <= chips.MAX_BLOCK_Z, "blockDim.z", block[2], chips.MAX_BLOCK_Z, "use block x or y")
        threads, limit = prod(block), min(self.arch.max_threads_per_block, self.attributes.max_threads_per_block)
        self._require(
            threads <= limit, "threads per block", threads, limit, f"use fewer threads, or fewer than {self.resources.registers} registers per thread"
        )
        self._check_shared(shared_bytes)
        if cluster:
            blocks, limit = prod(cluster), self.arch.max_cluster_blocks
            self._require(blocks <= limit, "blocks per cluster", blocks, limit, "use a smaller cluster")
            for axis, extent, step in zip("xyz", grid, (*cluster, 1, 1)):
                self._require(extent % step == 0, f"gridDim.{axis}", extent, f"multiples of the cluster's {step}", "pad the grid to whole clusters")

    def _check_shared(self, shared_bytes: int) -> None:
        total, limit = shared_bytes + self.resources.static_shared_bytes, self.arch.shared_per_block_optin_bytes
        self._require(total <= limit, "bytes of shared memory per block:", total, limit, "use fewer stages or smaller tiles")

    def _check_residency(self, grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int, cluster: Sequence[int] | None) -> None:
        if cluster is None:
            per_sm = self.blocks_per_sm(prod(block), shared_bytes)
            resident, why = per_sm * self.arch.sm_count, f"{per_sm} on each of {self.arch.sm_count} multiprocessors"
        else:
            clusters = self.resident_clusters(cluster, block, shared_bytes)
            resident, why = clusters * prod(cluster), f"{clusters} clusters of {prod(cluster)}"
        if prod(grid) > resident:
            raise CooperativeGridTooLarge(kernel=self.name, blocks=prod(grid), chip=self.arch.name, resident=resident, why=why)

    def _require(self, condition: bool, quantity: str, value: int, limit: int | str, remedy: str) -> None:
        if not condition:
            raise LaunchBeyondLimit(kernel=self.name, quantity=quantity, value=value, chip=self.arch.name, limit=limit, remedy=remedy)

    def _attribute(self, number: int) -> int:
        library, value = chips.driver_library(), ctypes.c_int()
        with current_context(self.device):
            status = library.cuFuncGetAttribute(ctypes.byref(value), ctypes.c_int(number), self._function)
        check(library, f"cuFuncGetAttribute({number})", status)
        return value.value

    def _set_attribute(self, number: int, value: int) -> None:
        library = chips.driver_library()
        with current_context(self.device):
            status = library.cuFuncSetAttribute(self._function, ctypes.c_int(number), ctypes.c_int(value))
        check(library, f"cuFuncSetAttribute({number}, {value}) of kernel {self.name}", status)

    def _retry(self, status: int, again: Callable[[], int]) -> None:
        """Launch again with the device's context current if it was not: in a thread that never touched CUDA, or where
        torch's current device is another one. The warm path does not check this before: the driver refuses such a launch before it does anything, with
        INVALID_CONTEXT or INVALID_HANDLE ("invalid resource handle").
        """
        held, own = ctypes.c_void_p(), primary_context(self.device)
        chips.driver_library().cuCtxGetCurrent(ctypes.byref(held))
        if held.value != own.value:
            with current_context(self.device):
                status = again()
        check(chips.driver_library(), f"cuLaunchKernelEx of kernel {self.name} on device {self.device}", status)


# ---------------------------------------------------------------------------------------------------------------------
# Tensor maps

_MAP_TYPES = {8: 0, 16: 1, 32: 2, 64: 4}  # CUtensorMapDataType UINT8, UINT16, UINT32, UINT64: a copy sees bits only
SWIZZLES_BYTES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle


def encode_tensor_map(
    pointer: int, element_bits: int, extents: Sequence[int], strides_bytes: Sequence[int], box: Sequence[int], swizzle_bytes: int = 0
) -> bytes:
    """Encode a tiled tensor map for tensor_load and tensor_store; the 128 bytes go into a ("tensor_map", i, bytes) slot.

    Shapes: innermost axis first. `strides_bytes` has one entry less than `extents`, for the axes above the innermost.
    Errors: TensorMapRejected. Needs compute capability 9.0.
    """
    library = chips.driver_library()
    memory = ctypes.create_string_buffer(TENSOR_MAP_BYTES + 64)
    address = -(-ctypes.addressof(memory) // 64) * 64
    rank = len(extents)
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(address),
        ctypes.c_int(_MAP_TYPES[element_bits]),
        ctypes.c_uint(rank),
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * rank)(*extents),
        (ctypes.c_uint64 * max(1, rank - 1))(*strides_bytes),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*([1] * rank)),
        ctypes.c_int(0),  # no interleave
        ctypes.c_int(SWIZZLES_BYTES[swizzle_bytes]),
        ctypes.c_int(0),  # no promotion of L2 requests
        ctypes.c_int(0),  # zeros outside the tensor
    )
    if status:
        raise TensorMapRejected(element_bits=element_bits, extents=tuple(extents), strides_bytes=tuple(strides_bytes), box=tuple(box), status=status)
    return ctypes.string_at(address, TENSOR_MAP_BYTES)
