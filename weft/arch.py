"""Figures of chips: one record per chip, with the source of each figure, and the register model.

Owns `Arch` and the few driver calls that read the figures off a real device. Importing this needs no GPU, no driver and
no torch. Schedulers get an `Arch` as an argument and never ask the device.
Read first: `Arch`.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass, replace

from weft import forking
from weft.errors import UserError, WeftError
from weft.options import nearest

WARP_THREADS = 32
SUB_PARTITIONS = 4
"""Warp schedulers of a multiprocessor; each owns a quarter of its registers."""
REGISTER_BYTES = 4
REGISTERS_PER_WARP_GRANULARITY = 256
"""Registers are allocated to a warp in multiples of this (CUDA's occupancy calculator, compute capability 7.0 and later)."""
SHARED_GRANULARITY_BYTES = 128
SHARED_RESERVED_PER_BLOCK_BYTES = 1024
"""CUDA keeps 1 KiB of shared memory per block (tuning guides of Ampere, Hopper and Blackwell)."""
SECTOR_BYTES, LINE_BYTES = 32, 128
"""The units of memory traffic, and of the accesses of a warp. Source: CUDA C++ Best Practices Guide, coalesced access to global memory."""
SHARED_BANKS, BANK_BYTES = 32, 4
"""Banks of shared memory, and their width; each is read or written once per clock (CUDA C++ Programming Guide)."""
MUFU_LANES = 16
"""Special functions that a multiprocessor computes per clock (CUDA C++ Programming Guide, throughput)."""
VECTOR_BYTES = 32
"""The widest access of a thread to global memory on any chip, and so the largest useful alignment; `Arch.max_access_bits` is that of a chip."""
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK_Z = 64
BULK_BYTES = 16
"""Granularity of the size and both addresses of a bulk copy. Source: PTX ISA, cp.async.bulk."""
CP_ASYNC_BYTES = (4, 8, 16)
"""Sizes of a cp.async copy. Source: PTX ISA, cp.async."""
MAX_DYNAMIC_SHARED_WITHOUT_OPTIN_BYTES = 48 * 1024
MOST_SPILL_BYTES = 512
"""The most bytes stored by spills per thread. Source: of 1,100 kernels without bulk copies that were timed and checked on an H200, those that spill up to 512
bytes are right; in two that spilled far more, code of ptxas (CUDA 13.0) overwrote the stack pointer. Of 300 kernels with staying blocks and bulk copies, eight
that spill 52 to 332 bytes accessed illegal addresses: such kernels must not spill at all."""


class UnknownChip(UserError):
    code = "W710"
    what = "there is no chip named {name!r}"
    fix = "{nearest}; the table has {known}"


class DriverMissing(UserError):
    code = "W711"
    what = "no CUDA driver: {library} cannot be loaded ({reason})"
    fix = "install NVIDIA's driver (nvidia-smi then lists the GPUs), or run in the emulator: WEFT_EMULATE=on"


class NoSuchDevice(UserError):
    code = "W712"
    what = "there is no CUDA device {index}: the driver sees {count}"
    fix = "use an index below {count}; CUDA_VISIBLE_DEVICES may hide devices"


class DriverCallFailed(WeftError):
    code = "W713"
    what = "{call} failed: {name} ({number}), {text}"
    fix = "{remedy}"


def ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def round_up(value: int, step: int) -> int:
    return ceil_div(value, step) * step


def _round_down(value: int, step: int) -> int:
    return value // step * step


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies and rates of a chip, for `schedulers/cost`. launch_ns, cooperative_launch_ns: of an empty kernel, from event to event. block_launch_ns: least
    time between the starts of two blocks on a multiprocessor. dram_latency_ns, l2_latency_ns: from a load to its first use, without other load.
    bulk_latency_ns: additional latency of a bulk copy. l2_bytes_per_s: of all multiprocessors together. l1_latency_clocks, shuffle_latency_clocks,
    shared_latency_clocks, arithmetic_latency_clocks: from issue to first use. atomic_sectors_per_s: sectors of 32 bytes that all multiprocessors add to
    atomically; atomic_repeat_ns: between two such additions to one element. barrier_clocks, barrier_warp_clocks: of a block barrier, and per warp of the
    block. cluster_barrier_clocks, cluster_block_clocks: the same for a cluster and its blocks. grid_meeting_ns, grid_block_ns: of a grid-wide barrier, and per
    block.
    """

    launch_ns: float
    cooperative_launch_ns: float
    block_launch_ns: float
    dram_latency_ns: float
    l2_latency_ns: float
    bulk_latency_ns: float
    l2_bytes_per_s: float
    l1_latency_clocks: float
    shared_latency_clocks: float
    shuffle_latency_clocks: float
    arithmetic_latency_clocks: float
    barrier_clocks: float
    barrier_warp_clocks: float
    cluster_barrier_clocks: float
    cluster_block_clocks: float
    grid_meeting_ns: float
    grid_block_ns: float
    atomic_sectors_per_s: float
    atomic_repeat_ns: float


HOPPER_LATENCIES = Latencies(  # measured on an H200 by bench/chip.py, driver 580, November 2026, but for what says otherwise
    launch_ns=4320,
    cooperative_launch_ns=4350,
    block_launch_ns=79,
    dram_latency_ns=343,  # 338 and 349 in two runs
    l2_latency_ns=168,  # 145 in another run
    bulk_latency_ns=26,
    l2_bytes_per_s=7.4e12,  # 7.0 and 7.8 in two runs
    l1_latency_clocks=40.7,  # of an H100 PCIe (arXiv 2402.13499)
    shared_latency_clocks=29.5,
    shuffle_latency_clocks=25,
    arithmetic_latency_clocks=4,
    barrier_clocks=12.3,
    barrier_warp_clocks=2.0,
    cluster_barrier_clocks=377,
    cluster_block_clocks=0.6,
    grid_meeting_ns=1280,
    grid_block_ns=1.1,
    atomic_sectors_per_s=1.25e11,  # what is added to is in L2; that vectors do no better is seen in times of sums of rows
    # read off times of Inductor's sums of rows in docs/torch_compile.md: 5,734, 8,192 and 16,384 additions to one row in 53, 80 and 150 us, whatever its width.
    # bench/chip.py, where each warp adds to one row in turn, says 2.4
    atomic_repeat_ns=9.4,
)
H100_LATENCIES = replace(  # measured on an H100 SXM by bench/chip.py, driver 580, 2026-11-27: the middle one of three runs; others are as on the H200
    HOPPER_LATENCIES,
    launch_ns=2980,  # 2940 to 3100
    cooperative_launch_ns=3140,  # 3100 to 3200
    dram_latency_ns=351,  # 347 to 355
    l2_latency_ns=166,  # 165 to 168
    bulk_latency_ns=28,  # 21 to 31
    l2_bytes_per_s=8.7e12,  # 8.0 to 9.2
    # the barrier of a cluster is left as on the H200: here it takes 849 clocks with 2 blocks and 1012 with 16, but exchanges between blocks go by
    # asynchronous stores and do not take longer than there (docs/cost_model.md, "The H100's record")
    grid_meeting_ns=1300,
    grid_block_ns=1.8,
)
AMPERE_LATENCIES = replace(  # published figures; what nobody publishes is taken to be as on Hopper
    HOPPER_LATENCIES,
    dram_latency_ns=330,  # 466 clocks at 1.41 GHz (arXiv 2402.13499)
    l2_latency_ns=185,  # 261 clocks at 1.41 GHz, same source
    l2_bytes_per_s=4.5e12,  # an estimate: Hopper's, by multiprocessors and clocks
    l1_latency_clocks=37.9,  # same source
    shared_latency_clocks=29,  # same source
    cluster_barrier_clocks=0,  # there are no clusters
    cluster_block_clocks=0,
    atomic_sectors_per_s=7.2e10,  # an estimate: Hopper's, by multiprocessors and clocks
    atomic_repeat_ns=13.2,  # an estimate: Hopper's, by clocks
)
BLACKWELL_LATENCIES = replace(  # published figures; what nobody publishes is taken to be as on Hopper
    HOPPER_LATENCIES,
    l2_latency_ns=150,  # chipsandcheese.com on the B200: within a partition
    l2_bytes_per_s=8.7e12,  # an estimate: Hopper's, by multiprocessors and clocks
    atomic_sectors_per_s=1.4e11,  # the same
)


@dataclass(frozen=True, slots=True)
class Arch:
    """Figures of one chip.

    Units: in the names; clocks in kHz as the driver reports them. `dram_bytes_per_s` is the vendor's figure,
    `copy_bytes_per_s` what a large device-to-device copy moves (reads plus writes) where somebody measured it. `max_access_bits`: the widest access of a
    thread to global memory.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    l2_bytes: int
    dram_bytes_per_s: float
    bus_width_bits: int
    memory_clock_khz: int
    sm_clock_khz: int
    shared_per_sm_bytes: int
    shared_per_block_optin_bytes: int
    max_cluster_blocks: int
    fp32_lanes_per_sm: int
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    max_threads_per_block: int = 1024
    registers_per_sm: int = 65536
    registers_per_block: int = 65536
    max_registers_per_thread: int = 255
    warp_threads: int = WARP_THREADS
    max_access_bits: int = 128
    copy_bytes_per_s: float | None = None
    latencies: Latencies = HOPPER_LATENCIES

    @property
    def nvrtc_target(self) -> str:
        """Target of NVRTC's -arch. From 9.0 on with the `a`, which setmaxnreg and the tensor core instructions need;
        such machine code runs on this compute capability alone.
        """
        major, minor = self.compute_capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    @property
    def has_tma(self) -> bool:
        """Bulk and tensor copies, mbarriers with transaction counts, clusters, setmaxnreg."""
        return self.compute_capability >= (9, 0)

    @property
    def atomic_vector_bits(self) -> int:
        """Of the widest vector of floats that one instruction adds atomically to global memory: `red` has vectors from 9.0 on (PTX ISA 8.1)."""
        return 128 if self.compute_capability >= (9, 0) else 32

    @property
    def roof_bytes_per_s(self) -> float:
        """The best rate of a memory-bound kernel: that of a copy, measured or estimated.

        Source: an H200's copy reaches 0.854 of the vendor's figure; other chips are assumed to do the same.
        """
        return self.copy_bytes_per_s or 0.854 * self.dram_bytes_per_s

    @property
    def clocks_per_ns(self) -> float:
        return self.sm_clock_khz * 1e-6

    @property
    def share_bytes_per_ns(self) -> float:
        """A multiprocessor's share of `roof_bytes_per_s`."""
        return self.roof_bytes_per_s / self.sm_count * 1e-9

    def registers_per_thread(self, threads_per_sm: int) -> int:
        """Most registers a thread may use when `threads_per_sm` threads are to be resident on a multiprocessor.

        Source: CUDA's occupancy calculator: each of 4 sub-partitions owns a quarter of the registers, and gives them to
        its warps in steps of 256.
        Example: H100.registers_per_thread(512) == 128, (640) == 96, (896) == 72, (1024) == 64
        """
        warps_per_partition = ceil_div(ceil_div(max(1, threads_per_sm), self.warp_threads), SUB_PARTITIONS)
        per_warp = self.registers_per_block // SUB_PARTITIONS // warps_per_partition
        per_thread = _round_down(per_warp, REGISTERS_PER_WARP_GRANULARITY) // self.warp_threads
        return min(self.max_registers_per_thread, per_thread)

    def threads_per_sm_for(self, registers: int) -> int:
        """Most threads that can be resident on a multiprocessor when each uses `registers` (inverse of the above)."""
        per_warp = round_up(max(1, registers) * self.warp_threads, REGISTERS_PER_WARP_GRANULARITY)
        warps = self.registers_per_block // SUB_PARTITIONS // per_warp * SUB_PARTITIONS
        return min(self.max_threads_per_sm, warps * self.warp_threads)

    def blocks_per_sm(self, threads: int, registers: int, shared_bytes: int = 0) -> int:
        """Blocks of one kernel that can be resident on a multiprocessor; 0 when not even one fits.

        Units:  `threads` per block, `registers` per thread, `shared_bytes` static plus dynamic per block.
        Source: CUDA's occupancy calculator (cuda_occupancy.h); the driver's own answer is `driver.Function.blocks_per_sm`.
        """
        if threads > self.max_threads_per_block or shared_bytes > self.shared_per_block_optin_bytes:
            return 0
        if registers > self.max_registers_per_thread:
            return 0
        warps = ceil_div(max(1, threads), self.warp_threads)
        registers_per_warp = round_up(max(1, registers) * self.warp_threads, REGISTERS_PER_WARP_GRANULARITY)
        if registers_per_warp * round_up(warps, SUB_PARTITIONS) > self.registers_per_block:
            return 0
        warps_by_registers = self.registers_per_sm // SUB_PARTITIONS // registers_per_warp * SUB_PARTITIONS
        shared = round_up(shared_bytes + SHARED_RESERVED_PER_BLOCK_BYTES, SHARED_GRANULARITY_BYTES)
        return min(
            self.max_blocks_per_sm,
            self.max_threads_per_sm // (warps * self.warp_threads),
            warps_by_registers // warps,
            self.shared_per_sm_bytes // shared,
        )


# ---------------------------------------------------------------------------------------------------------------------
# The table. Limits per block and per multiprocessor: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability"; shared memory: the tuning guide of each architecture.

A100 = Arch(
    name="A100",
    compute_capability=(8, 0),
    sm_count=108,  # A100 data sheet
    l2_bytes=40 * 2**20,  # A100 white paper: 40 MB
    dram_bytes_per_s=2.039e12,  # A100 80 GB SXM data sheet
    bus_width_bits=5120,  # A100 white paper: 5 HBM2e stacks
    memory_clock_khz=1_593_000,  # nvidia-smi -q -d CLOCK, 80 GB SXM; 2 * 5120 / 8 * 1.593 GHz = 2.039 TB/s
    sm_clock_khz=1_410_000,  # A100 white paper: boost clock
    shared_per_sm_bytes=164 * 1024,  # Ampere tuning guide
    shared_per_block_optin_bytes=163 * 1024,  # Ampere tuning guide
    max_cluster_blocks=1,  # clusters came with 9.0
    fp32_lanes_per_sm=64,  # A100 white paper
    latencies=AMPERE_LATENCIES,
)

H100 = Arch(
    name="H100",
    compute_capability=(9, 0),
    sm_count=132,  # H100 SXM5 white paper
    l2_bytes=50 * 2**20,  # H100 white paper: 50 MB
    dram_bytes_per_s=3.35e12,  # H100 SXM data sheet
    bus_width_bits=5120,  # H100 white paper: 5 HBM3 stacks
    memory_clock_khz=2_619_000,  # nvidia-smi -q -d CLOCK, SXM5; 2 * 5120 / 8 * 2.619 GHz = 3.352 TB/s
    sm_clock_khz=1_980_000,  # nvidia-smi -q -d CLOCK, SXM5: largest
    shared_per_sm_bytes=228 * 1024,  # Hopper tuning guide
    shared_per_block_optin_bytes=227 * 1024,  # Hopper tuning guide
    max_cluster_blocks=16,  # Hopper tuning guide: 8 portable, 16 opted in
    fp32_lanes_per_sm=128,  # H100 white paper
    copy_bytes_per_s=2.97e12,  # measured by bench/chip.py, driver 580, 2026-11-27: torch's copy of 512 MiB; 2.94e12 of 256 MiB, 2.45e12 of 32 MiB
    latencies=H100_LATENCIES,
)

H200 = replace(
    H100,  # the same processor with other memory
    name="H200",
    l2_bytes=60 * 2**20,  # read off a device
    dram_bytes_per_s=4.814e12,  # from bus and clock; the data sheet says 4.8e12
    bus_width_bits=6016,  # read off a device: 6 HBM3e stacks of 1024, part of one disabled
    memory_clock_khz=3_201_000,  # read off a device; 2 * 6016 / 8 * 3.201 GHz = 4.814 TB/s
    latencies=HOPPER_LATENCIES,
    copy_bytes_per_s=4.1e12,  # measured: torch's copy of 64 MB and more, driver 580, November 2026: 4.0 to 4.1 TB/s
)

B200 = Arch(
    name="B200",
    compute_capability=(10, 0),
    sm_count=148,  # read off a device: pytorch/ao pull request 4002
    l2_bytes=132_644_864,  # 126.5 MiB, same source; the Blackwell tuning guide says 126 MB
    dram_bytes_per_s=7.67e12,  # from bus and clock (same source); the data sheet's 8 TB/s is with all 8192 bits
    bus_width_bits=7680,  # same source
    memory_clock_khz=3_996_000,  # nvidia-smi, same source
    sm_clock_khz=1_965_000,  # nvidia-smi -q -d CLOCK: largest
    shared_per_sm_bytes=228 * 1024,  # Blackwell tuning guide
    shared_per_block_optin_bytes=227 * 1024,  # Blackwell tuning guide
    max_cluster_blocks=16,  # Blackwell tuning guide: 8 portable, 16 opted in
    fp32_lanes_per_sm=128,  # CUDA C++ Programming Guide, arithmetic throughput
    max_access_bits=256,  # PTX ISA 8.8: ld.global.v8.b32 from 10.0 on
    latencies=BLACKWELL_LATENCIES,
)

CHIPS: dict[str, Arch] = {chip.name: chip for chip in (A100, H100, H200, B200)}


def arch_by_name(name: str) -> Arch:
    """Return the record of a chip. Upper and lower case are alike.

    Errors: UnknownChip.
    """
    chip = CHIPS.get(name.strip().upper())
    if chip is None:
        raise UnknownChip(name=name, nearest=nearest(name.upper(), CHIPS), known=", ".join(CHIPS))
    return chip


# ---------------------------------------------------------------------------------------------------------------------
# Reading the figures off a device. The driver's C interface is called directly: it is stable, it comes with the driver,
# and ctypes loads in a millisecond where cuda.bindings needs 50.

_FP32_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64}  # others: 128 (CUDA C++ Programming Guide, arithmetic throughput)

_MAX_THREADS_PER_BLOCK = 1  # CUdevice_attribute
_WARP_SIZE = 10
_MAX_REGISTERS_PER_BLOCK = 12
_CLOCK_RATE = 13
_MULTIPROCESSOR_COUNT = 16
_MEMORY_CLOCK_RATE = 36
_GLOBAL_MEMORY_BUS_WIDTH = 37
_L2_CACHE_SIZE = 38
_MAX_THREADS_PER_MULTIPROCESSOR = 39
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
_MAX_REGISTERS_PER_MULTIPROCESSOR = 82
_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
_MAX_BLOCKS_PER_MULTIPROCESSOR = 106
_CLUSTER_LAUNCH = 120

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_lock = forking.lock()
_device_archs: dict[int, Arch] = {}
_is_initialised = False


@functools.cache
def driver_library() -> ctypes.CDLL:
    """Load the CUDA driver and initialise it. The result is cached; a failure is not.

    Errors: DriverMissing.
    """
    library = open_driver()
    status = library.cuInit(0)
    if status == 100:  # CUDA_ERROR_NO_DEVICE: an installed driver with nothing to drive
        raise DriverMissing(library=_DRIVER, reason="it finds no GPU")
    check(library, "cuInit", status)
    global _is_initialised
    _is_initialised = True
    return library


def is_driver_initialised() -> bool:
    """Tell whether this process, or the one that it was forked from, has initialised the CUDA driver through weft or torch."""
    torch = sys.modules.get("torch")
    return _is_initialised or (torch is not None and torch.cuda.is_initialized())


def open_driver() -> ctypes.CDLL:
    """Load the CUDA driver and leave it uninitialised: a process whose driver is initialised cannot use CUDA in its forked children.

    Errors: DriverMissing.
    """
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise DriverMissing(library=_DRIVER, reason=error) from None


def check(library: ctypes.CDLL, call: str, status: int, remedy: str = "") -> None:
    """Raise when a driver call returned an error.

    Errors: DriverCallFailed.
    """
    if status == 0:
        return
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    library.cuGetErrorString(status, ctypes.byref(text))
    raise DriverCallFailed(
        call=call,
        number=status,
        name=(name.value or b"an unknown error").decode(),
        text=(text.value or b"no description").decode(),
        remedy=remedy or _REMEDIES.get(status, "look the error up in the CUDA Driver API manual"),
    )


_REMEDIES = {
    3: 'if this process was forked from one that had used the GPU, use multiprocessing with "spawn" or "forkserver"',
    2: "free memory on the device: a kernel needs some for its code and local arrays",
    200: "the machine code is damaged or for a newer driver: clear the cache folder, or install an NVRTC of the driver's CUDA version",
    209: "the machine code is for another compute capability; compile for the device's own",
    218: "the machine code is damaged or for a newer driver: clear the cache folder, or install an NVRTC of the driver's CUDA version",
    222: "install an NVRTC of the driver's CUDA version, or a newer driver",
    700: "a kernel read or wrote outside its tensors; run it in the emulator: WEFT_EMULATE=on WEFT_CHECK=bounds",
    701: "the kernel needs more registers or shared memory than a block may have; use fewer threads per block",
    719: "a kernel failed; run it in the emulator: WEFT_EMULATE=on WEFT_CHECK=bounds,races",
    900: "this call is not allowed while a CUDA graph is captured; run the fusion once before the capture",
}


def device_count() -> int:
    """Number of CUDA devices; 0 without a driver."""
    try:
        library = driver_library()
    except DriverMissing:
        return 0
    count = ctypes.c_int()
    check(library, "cuDeviceGetCount", library.cuDeviceGetCount(ctypes.byref(count)))
    return count.value


def arch_of_device(index: int) -> Arch:
    """Return the figures of CUDA device `index`, read once and kept.

    Errors: DriverMissing, NoSuchDevice.
    """
    found = _device_archs.get(index)
    if found is None:
        with _lock:
            found = _device_archs.setdefault(index, _read_arch(driver_library(), index))
    return found


def _read_arch(library: ctypes.CDLL, index: int) -> Arch:
    count = ctypes.c_int()
    check(library, "cuDeviceGetCount", library.cuDeviceGetCount(ctypes.byref(count)))
    if not 0 <= index < count.value:
        raise NoSuchDevice(index=index, count=count.value)
    device = ctypes.c_int()
    check(library, "cuDeviceGet", library.cuDeviceGet(ctypes.byref(device), index))
    name = ctypes.create_string_buffer(256)
    check(library, "cuDeviceGetName", library.cuDeviceGetName(name, 256, device))

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        check(library, f"cuDeviceGetAttribute({number})", library.cuDeviceGetAttribute(ctypes.byref(value), number, device))
        return value.value

    capability = (attribute(_COMPUTE_CAPABILITY_MAJOR), attribute(_COMPUTE_CAPABILITY_MINOR))
    bus_width_bits, memory_clock_khz = attribute(_GLOBAL_MEMORY_BUS_WIDTH), attribute(_MEMORY_CLOCK_RATE)
    known = _known_chip(name.value.decode(errors="replace"))
    same_memory = known is not None and (known.bus_width_bits, known.memory_clock_khz) == (bus_width_bits, memory_clock_khz)
    return Arch(
        name=known.name if known else name.value.decode(errors="replace").removeprefix("NVIDIA "),
        compute_capability=capability,
        sm_count=attribute(_MULTIPROCESSOR_COUNT),
        l2_bytes=attribute(_L2_CACHE_SIZE),
        dram_bytes_per_s=known.dram_bytes_per_s if known and same_memory else 2 * bus_width_bits / 8 * memory_clock_khz * 1e3,
        bus_width_bits=bus_width_bits,
        memory_clock_khz=memory_clock_khz,
        sm_clock_khz=attribute(_CLOCK_RATE),
        shared_per_sm_bytes=attribute(_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        shared_per_block_optin_bytes=attribute(_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        max_cluster_blocks=_max_cluster_blocks(capability) if attribute(_CLUSTER_LAUNCH) else 1,
        fp32_lanes_per_sm=_FP32_LANES.get(capability, 128),
        max_threads_per_sm=attribute(_MAX_THREADS_PER_MULTIPROCESSOR),
        max_blocks_per_sm=attribute(_MAX_BLOCKS_PER_MULTIPROCESSOR),
        max_threads_per_block=attribute(_MAX_THREADS_PER_BLOCK),
        registers_per_sm=attribute(_MAX_REGISTERS_PER_MULTIPROCESSOR),
        registers_per_block=attribute(_MAX_REGISTERS_PER_BLOCK),
        warp_threads=attribute(_WARP_SIZE),
        max_access_bits=_max_access_bits(capability),
        copy_bytes_per_s=known.copy_bytes_per_s if known and same_memory else None,
        latencies=known.latencies if known else HOPPER_LATENCIES,
    )


def _known_chip(device_name: str) -> Arch | None:
    """Return the table's record for a driver's device name ("NVIDIA H100 80GB HBM3"), whole words only."""
    words = device_name.upper().replace("-", " ").split()
    return next((chip for word, chip in CHIPS.items() if word in words), None)


def _max_access_bits(capability: tuple[int, int]) -> int:
    """256 from 10.0 on (PTX ISA 8.8, ld.global.v8.b32), and 128 before."""
    return 256 if capability >= (10, 0) else 128


def _max_cluster_blocks(capability: tuple[int, int]) -> int:
    """16 (opted in) on the data centre parts 9.0 and 10.x, 8 (portable) elsewhere."""
    return 16 if capability[0] in (9, 10) else 8
