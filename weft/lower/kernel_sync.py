"""Synchronization statements of the kernel IR: barriers, pipeline stages, roles of warps, cluster exchanges.

Owns these nodes; `weft.codegen.protocol` prints them. A barrier in shared memory is an `Access`: the buffer of its stages, and which of them.
Read first: `Sync`, `WaitStage`, `Roles`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from ..expr import Sym
from ..ir.enums import BLOCK_TYPES, ParallelType
from ..ir.values import TensorView
from .kernel_ir import Access, Buffer, Nest, Reduce, Scan, Statement, ThreadGroup, WorkBuffer


# ---------------------------------------------------------------- threads of a block
@dataclass(eq=False)
class Sync(Statement):
    """A barrier of all threads of the block, or of those of `group`."""

    why: str = ""
    group: ThreadGroup | None = None
    tensors: tuple[TensorView, ...] = ()  # the tensors that threads exchange


@dataclass(eq=False)
class OneThread(Nest):
    """Statements of the thread with index 0 along `kinds`: one thread of the block, if these are all dimensions with more than one thread."""

    kinds: tuple[ParallelType, ...]
    body: list[Statement]


@dataclass(eq=False)
class ElectedThread(Nest):
    """Statements of one thread of a warp, whichever it is."""

    body: list[Statement]


# ---------------------------------------------------------------- stages of a pipeline
class Fence(enum.Enum):
    """Kinds of fences: which accesses become visible to whom."""

    barriers = "initialised barriers, to other units and blocks"
    proxy = "what threads did in shared memory, to bulk copies"


@dataclass(eq=False)
class FenceSync(Statement):
    kind: Fence
    why: str = ""


@dataclass(eq=False)
class InitBarrier(Statement):
    """Initialise the mbarriers of all stages of `barrier` with the number of arrivals that completes a phase."""

    barrier: Buffer
    arrivals: int


@dataclass(eq=False)
class Arrive(Statement):
    """Arrive at a barrier, and announce the bytes that copies will bring: bytes[n] if conditions[n] holds. Without bytes, the copies announce their own."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("barrier", "conditions", "bytes_")

    barrier: Access
    conditions: tuple[Sym, ...] = ()
    bytes_: tuple[Sym, ...] = ()


@dataclass(eq=False)
class WaitStage(Statement):
    """Wait until `phase` of a barrier is complete; a fresh barrier counts as having completed phase -1."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("barrier", "phase")

    barrier: Access
    phase: Sym
    why: str = ""


@dataclass(eq=False)
class ReleaseStage(Statement):
    """Each thread of this warp arrives at a barrier: it has written, or read, the stage."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("barrier",)

    barrier: Access
    why: str = ""


@dataclass(eq=False)
class CommitCopies(Statement):
    """Commit the cp.async copies that this thread has issued as a group."""


@dataclass(eq=False)
class WaitCopies(Statement):
    """Wait until at most `pending` groups of this thread's cp.async copies are in flight."""

    pending: int = 0
    why: str = ""


@dataclass(eq=False)
class WaitStores(Statement):
    """The thread with index 0 along `issuer` waits for its bulk stores: until they have read shared memory, or are complete."""

    issuer: tuple[ParallelType, ...]
    has_read: bool = False
    why: str = ""


# ---------------------------------------------------------------- roles of warps
@dataclass(eq=False)
class Role(Nest):
    """The statements of an async warp, or (`warp` None) of the compute threads. name: for reports. lane: the variable that holds the thread's lane, if used."""

    name: str
    body: list[Statement]
    warp: int | None = None
    lane: Sym | None = None


@dataclass(frozen=True)
class BlockShape:
    """The block of a kernel with async warps. compute: the threads that compute, by dimension; pad: those added along `axis` for async warps.

    registers: of an async thread and of a compute thread, None if both have the same number.
    """

    axis: ParallelType
    pad: int
    compute: dict[ParallelType, int]
    registers: tuple[int, int] | None

    @property
    def compute_threads(self) -> int:
        return self.compute[BLOCK_TYPES[0]] * self.compute[BLOCK_TYPES[1]] * self.compute[BLOCK_TYPES[2]]

    @property
    def block(self) -> tuple[int, int, int]:
        x, y, z = (self.compute[p] + (self.pad if p is self.axis else 0) for p in BLOCK_TYPES)
        return x, y, z


@dataclass(eq=False)
class Roles(Nest):
    """The branches of a kernel with async warps, in `body`: a Role for each of these warps, and last that of the compute threads."""

    shape: BlockShape
    body: list[Statement]


# ---------------------------------------------------------------- blocks of a cluster and of the grid
@dataclass(eq=False)
class GridSync(Statement):
    """A barrier of the whole grid: one thread of each block arrives, between two barriers of its block."""

    counter: WorkBuffer
    why: str = ""


@dataclass(eq=False)
class StartExchanges(Statement):
    """One thread of the block initialises the mbarriers of exchanges between the blocks of a cluster."""

    reductions: list[Reduce]


@dataclass(eq=False)
class ClusterArrive(Statement):
    """Tell the other blocks of the cluster that this one has initialised its barriers."""

    why: str = ""


@dataclass(eq=False)
class ClusterWait(Statement):
    """Wait for the arrival of all blocks of the cluster."""

    why: str = ""


# ---------------------------------------------------------------- kernels of a stream
@dataclass(eq=False)
class WaitForPrevious(Statement):
    """Wait until the previous kernels of the stream have ended and their writes are visible (griddepcontrol.wait)."""


@dataclass(eq=False)
class LetNextStart(Statement):
    """Let the next kernel of the stream start when all blocks have arrived here; it waits for this kernel's end itself (launch_dependents)."""


# ---------------------------------------------------------------- the head of a kernel
@dataclass(eq=False)
class DeclareFlag(Statement):
    """A bool, false at first: whether this block holds the result of a reduction across blocks."""

    name: str


@dataclass(eq=False)
class StartScan(Statement):
    """The value that a scan carries from piece to piece: at first its start value, or the identity."""

    scan: Scan


@dataclass(eq=False)
class ScanFold(Statement):
    """Reduce the elements of one piece into this thread's part of the scan's total (`Scan.total`)."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("elements", "guards")

    scan: Scan
    elements: list[Access | Sym]
    guards: tuple[Sym, ...]


@dataclass(eq=False)
class HandOverTotal(Statement):
    """Reduce the totals of a block's threads and store the result for the blocks after it. Executed by all threads, which synchronize."""

    scan: Scan
    totals: WorkBuffer


@dataclass(eq=False)
class TakeTotals(Statement):
    """Start a block's scan from the totals of the blocks before it."""

    scan: Scan
    totals: WorkBuffer


@dataclass(eq=False)
class ZeroPadding(Statement):
    """Writes zeros where rows and columns of block scales do not fill the memory of their layout."""

    buffer: Buffer


