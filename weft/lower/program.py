"""The result of lowering and code generation: the text of one kernel and everything that the runtime needs to launch it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from ..dtypes import DataType
from ..expr import Sym


@dataclass(frozen=True, eq=False)
class TensorParam:
    """A pointer parameter. name: "T3"; written: the kernel stores to it."""

    name: str
    dtype: DataType
    written: bool


@dataclass(frozen=True, eq=False)
class WorkParam:
    """Global scratch memory: `elems` elements; zeroed ones are zero at launch and left zero."""

    name: str
    dtype: DataType
    elems: Sym
    zeroed: bool

    @property
    def elem_bytes(self) -> int:
        return max(1, self.dtype.bits // 8)


@dataclass(frozen=True, eq=False)
class ScalarParam:
    """A value that the host computes from sizes, strides and scalar inputs. ctype: CUDA's name of the parameter's type."""

    name: str
    sym: Sym
    ctype: str


@dataclass(frozen=True, eq=False)
class RandomParam:
    """The Philox seed or offset of torch's generator, as unsigned long long. what: "seed" or "offset"; "seed_at": where a CUDA graph draws the seed, or 0."""

    name: str
    what: str


@dataclass(frozen=True, eq=False)
class TensorMapParam:
    """A tensor map of the tensor parameter `tensor`, encoded on the host. Shapes: innermost axis first; strides of all other axes."""

    name: str
    tensor: str
    element_bits: int
    extents_elems: tuple[Sym, ...]
    strides_bytes: tuple[Sym, ...]
    box_elems: tuple[int, ...]
    swizzle_bytes: int = 0


Param = TensorParam | WorkParam | ScalarParam | RandomParam | TensorMapParam


@dataclass(frozen=True, eq=False)
class HostCheck:
    """`divisor` must divide `extent`, a `what` (of vector accesses or bulk copies); the host checks it for every new shape."""

    extent: Sym
    divisor: int
    what: str


class Need(enum.Enum):
    """Requirements of a kernel on the chip, the launch or the host, besides blocks of the device library."""

    cluster = "blocks of a cluster exchange values in shared memory"
    cooperative = "all blocks run at once, and meet"
    random = "the state of torch's generator"
    tensor_maps = "tensor maps, encoded by the host"
    bulk_copies = "copies by TMA"
    dynamic_shared = "dynamic shared memory"
    async_warps = "warps that only load, beside those that compute: the text knows the whole block"
    dependent_launch = "it may start before the kernel in front of it has ended"


@dataclass(frozen=True)
class LineOrigin:
    """The origin of the lines first_line to last_line (from 1) of a kernel's text. kind: what they were written for, "op", "reduction" (across threads or
    blocks) or "barrier"; tensors: names of the computed tensors; text: "T5 = sum(T4)", or the barrier's reason. Or a mark on them: "call" (of a library
    function that accesses memory or synchronizes), "scalar" (declares the variable `tensors[0]` of C++ type `text`), "role" (the branch of an async warp or of
    the others; text: its name), "arrival" (at the barrier `tensors[0]`).
    """

    first_line: int
    last_line: int
    kind: str
    tensors: tuple[str, ...]
    text: str

    @property
    def is_statement(self) -> bool:
        return self.kind in ("op", "reduction", "barrier")


@dataclass(eq=False)
class KernelProgram:
    """One kernel.

    text: the kernel function (docs/kernel_text.md), without the device library. needs: requirements on chip, launch or host; blocks: parts of the device
    library. grid, block, shared_bytes: launch sizes as expressions over the fusion's sizes. alignment_bytes: tensor name -> what its address and its strides
    must be multiples of; start_bytes: the same of the address alone, where vectors begin at any element. random_ops: Philox calls per element (torch's offset
    advances by 4 each). max_registers: limit for the compiler, or None.
    """

    name: str
    text: str
    blocks: tuple[str, ...]
    params: tuple[Param, ...]
    grid: tuple[Sym, Sym, Sym]
    block: tuple[Sym, Sym, Sym]
    shared_bytes: Sym
    index_type: DataType
    checks: tuple[HostCheck, ...] = ()
    alignment_bytes: dict[str, int] = field(default_factory=dict)
    random_ops: int = 0
    max_registers: int | None = None
    needs: frozenset[Need] = frozenset()
    cluster: tuple[int, int, int] = (1, 1, 1)
    outputs: tuple[str, ...] = ()  # names of the fusion's outputs, in order; an output that is also read has another name than in the definition
    seconds: dict[str, float] = field(default_factory=dict)  # time of each stage of the compiler
    scheduled_text: str = ""  # the scheduled fusion, when dumps are on
    origins: tuple[LineOrigin, ...] = ()  # of the lines of `text`
    most_spill_bytes: int | None = None  # spilled bytes per thread that are accepted; None: as many as are safe
    most_threads: int | None = None  # of a block, where its extents depend on sizes; None: as many as the chip allows
    fewest_warps: int | None = None  # per multiprocessor, down to which more registers may keep the kernel from spilling; None: its limit stands
    block_limits: tuple[tuple[str, Sym, int], ...] = ()  # (thread index, threads needed for these sizes, threads of the kernel)
    in_place: tuple[int, ...] = ()  # positions of the outputs that may be written into the inputs they alias, judged by the kernel's loads
    shared_tensors: tuple[tuple[str, Sym], ...] = ()  # (name, bytes) of the named arrays in shared memory
    assumptions: tuple[tuple[Sym, Sym], ...] = ()  # (a, b): a <= b, checked on the host for every new shape
    start_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def cooperative(self) -> bool:
        return Need.cooperative in self.needs

    def renamed(self, name: str) -> KernelProgram:
        """Return the program with its function called `name`."""
        signature = f" {self.name}("
        before, found, after = self.text.partition(signature)
        return replace(self, name=name, text=f"{before} {name}({after}") if found else self
