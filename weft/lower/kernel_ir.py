"""Kernel IR: nested statements over buffers and indices. Passes read and write it; `weft.codegen.cuda` prints it as CUDA.

Statements that synchronize are in `weft.lower.kernel_sync`, the readable text of statements is in `weft.lower.kernel_text`. No statement contains C++.
Read first: `Kernel`, `Loop`, `Op`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..arch import BULK_BYTES, WARP_THREADS
from ..dtypes import DataType
from ..expr import TRUE, ZERO, Sym, add, ceildiv, floordiv, mul, substitute, variables
from ..ir.enums import BLOCK_TYPES, MemoryType, ParallelType
from ..ir.values import Expr, IterDomain, TensorView
from .program import TensorMapParam


@dataclass(eq=False)
class Buffer:
    """Storage of one tensor inside the kernel, or a global tensor argument.

    elems: number of elements (Sym; constant for registers). end_elems: elements for the ends of phased rows, which `peel_rows` adds. offset_bytes: offset in
    shared memory. align_elems: required vector alignment.
    """

    name: str
    dtype: DataType
    memory: MemoryType
    elems: Sym
    tensor: TensorView
    axes: tuple[IterDomain, ...] = ()
    extents: tuple[Sym, ...] = ()
    offset_bytes: Sym | None = None
    fill: str | None = None  # kind of the monoid whose identity every element starts with; "sum" for zeros
    align_bytes: int = 128  # of a buffer in shared memory
    end_elems: Sym = ZERO


@dataclass(eq=False)
class Access:
    """Element `index` of `buffer` (first of `vector_elems` when an op moves a vector)."""

    buffer: Buffer
    index: Sym


def bytes_of(elems: Sym, dtype: DataType) -> Sym:
    """Return the number of bytes of `elems` elements, rounded up where several elements share a byte."""
    return mul(elems, dtype.bits // 8) if not dtype.is_packed else mul(floordiv(elems, dtype.elems_per_unit), dtype.bits * dtype.elems_per_unit // 8)


@dataclass(eq=False)
class Statement:
    """EXPRESSIONS: the fields with scalar expressions or accesses that refer to outer variables; a copy with other indices replaces them."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ()


class Nest(Statement):
    """A statement with statements inside, `body`."""

    body: list[Statement]


@dataclass(eq=False)
class Loop(Nest):
    """for index in [start, extent): body. `unroll`: the count is constant and the body indexes registers with it.

    is_unswitched: the nest from here on may be generated twice, with and without bounds checks (`unswitch_loops`); only such a loop may have one iteration.
    is_apart: the compiler must not mix the iterations (`keep_iterations_apart`). descends: the last index comes first.
    """

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("extent",)

    index: Sym
    extent: Sym
    body: list[Statement]
    unroll: bool = False
    label: str = ""
    start: Sym = ZERO
    is_unswitched: bool = False
    is_apart: bool = False
    descends: bool = False

    @property
    def is_once(self) -> bool:
        """True if no loop is generated for it: it has no index, and only marks an unswitched nest."""
        return self.index is ZERO


@dataclass(eq=False)
class If(Nest):
    """Statements that run if a predicate holds; neighbours with the same predicate are joined (`group_predicates`)."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("predicate",)

    predicate: Sym
    body: list[Statement]


@dataclass(eq=False)
class Block(Nest):
    """A part of the kernel with its own variables, which runs if `condition` holds; the condition is the same in all threads.

    keeps_bounds: it belongs to another iteration than the enclosing one, so bounds that hold there do not hold here.
    """

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("condition",)

    body: list[Statement]
    condition: Sym = TRUE
    keeps_bounds: bool = False


@dataclass(eq=False)
class Unswitched(Nest):
    """A nest that is generated twice: if `test` (the same in all threads of a block), the first block of `body`, without bounds checks; else the second."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("test",)

    test: Sym
    body: list[Statement]

    @property
    def branches(self) -> tuple[Block, Block]:
        """The nest without bounds checks, and the original one."""
        fast, slow = self.body
        assert isinstance(fast, Block) and isinstance(slow, Block)
        return fast, slow

    @staticmethod
    def of(test: Sym, fast: list[Statement], slow: list[Statement]) -> "Unswitched":
        return Unswitched(test, [Block(fast), Block(slow)])


@dataclass(eq=False)
class Masked(Unswitched):
    """A loop that is generated twice: if `test` holds (per thread), unchanged; else for a vector that a mask removes entirely."""

    @staticmethod
    def of(test: Sym, fast: list[Statement], slow: list[Statement]) -> "Masked":
        return Masked(test, [Block(fast), Block(slow)])


@dataclass(eq=False)
class Branch(Unswitched):
    """The two sides of a selection by position: if `test` holds (per thread), the first block, else the second.

    Both blocks write the same outer variables, and neither uses what the other declares.
    """

    @staticmethod
    def of(test: Sym, fast: list[Statement], slow: list[Statement]) -> "Branch":
        return Branch(test, [Block(fast), Block(slow)])


@dataclass(eq=False)
class Allocate(Statement):
    buffer: Buffer


@dataclass(eq=False)
class Repack(Statement):
    """Make the compiler keep an array of narrow elements packed from here on, instead of the converted wide values."""

    buffer: Buffer


@dataclass(eq=False)
class Op(Statement):
    """One expression of the fusion on one element (or `vector_elems` elements for a copy or a vector conversion).

    operands: an Access or a Sym (scalars), in the order of expr.inputs. predicate: when false the op must not run.
    """

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("outputs", "operands", "predicate", "element", "inside", "mask", "taken", "run", "position", "bounded")

    expr: Expr
    outputs: list[Access]
    operands: list[Access | Sym]
    predicate: Sym = TRUE
    vector_elems: int = 1
    element: Sym = ZERO  # random ops and iota: the linear logical index of the element
    at_row_end: "Op | None" = None  # the same op on this thread's element at the ends of a phased row
    is_shifted: bool = False  # a load of a vector that begins at any element
    inside: Sym = TRUE  # a masked lookup: whether its position is in the source; one element per block: whether this is the one
    mask: Sym = TRUE  # a `where`: holds wherever it takes its second operand
    taken: tuple[Sym, ...] = ()  # a `where` on positions: when some lane of a vector may take its second operand, and when all lanes do
    is_ahead: bool = False  # a load of an element that is used an iteration later
    run: tuple[Sym, int] | None = None  # of a fold: its number in a run of folds into one state, and the length of the run
    position: Sym | None = None  # the result of integer arithmetic on positions: a constant, or of a division, an index expression
    kept: int | None = None  # the operand that the result always is
    is_natural: bool = False  # a division of integers that are not negative
    bounded: tuple[Sym, ...] = ()  # an iota: the part of its element that is the same in all iterations of loops, and what it is below


@dataclass(eq=False)
class RowLoad(Op):
    """Loads a vector per lane from unaligned rows into a tile in shared memory. Executed by all threads.

    left: elements of the row from the vector's first on, where the predicate holds. row_lanes: neighbouring lanes that have neighbouring vectors of a row.
    """

    EXPRESSIONS: ClassVar[tuple[str, ...]] = (*Op.EXPRESSIONS, "left")

    left: Sym = ZERO
    row_lanes: int = 1


@dataclass(eq=False)
class TurnTile(Op):
    """Copies a tile of `tile_elems` rows and columns from memory to memory, transposed, by all threads. Accesses are of its first element.

    to_step: elements from a column to the next in the output. from_step: from a row to the next in the source. rows, columns: remaining, from the tile's first
    one. first_row: index of the first row. lanes: number of lanes of a warp that write neighbouring vectors. workspace: shared memory.
    """

    EXPRESSIONS: ClassVar[tuple[str, ...]] = (*Op.EXPRESSIONS, "to_step", "from_step", "rows", "columns", "first_row")

    to_step: Sym = ZERO
    from_step: Sym = ZERO
    rows: Sym = ZERO
    columns: Sym = ZERO
    first_row: Sym = ZERO
    tile_elems: int = 0
    threads: int = 0
    lanes: int = 0
    workspace: Buffer | None = None


@dataclass(eq=False)
class ThreadGroup:
    """A group of threads that reduces or synchronizes separately from the rest of the block, in a kernel with async warps.

    index: which of the groups this thread is in. threads: of one group. barrier: the named barrier of the first group; each has one.
    turn: counts the reductions of a loop modulo 2, which have a workspace each.
    """

    index: Sym
    threads: int
    barrier: int
    turn: Sym = ZERO


@dataclass(eq=False)
class BlockFold(Op):
    """A reduction over blocks of neighbouring elements, each of `lanes` neighbouring lanes has a part of a block; with several lanes, all threads execute
    it."""

    lanes: int = 1


@dataclass(eq=False)
class GroupFold(BlockFold):
    """A fold over groups of any size. If the lanes of a group are not all lanes of one warp, next to each other and a power of two, those that are fold first,
    and the rest meets in `workspace`, in shared memory, with two barriers."""

    workspace: Buffer | None = None

    @property
    def near(self) -> int:
        """Lanes of a group that shuffles fold."""
        return math.gcd(self.lanes, WARP_THREADS)


@dataclass(eq=False)
class MagnitudeFold(Op):
    """Updates maxima in registers with the operand's magnitude, ignoring NaN: of one element, or of neighbours, each with its own maximum."""


@dataclass(eq=False)
class ScaledCast(Op):
    """Casts elements in registers (the first operand, `step` places apart) to 4-bit floats, each times the second operand, a common Float."""

    step: int = 1


@dataclass(eq=False)
class KeepScale(Op):
    """Puts the scale of one of four rows of a tile into a byte of a word, which a `StoreScales` stores. row: which of the four."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = (*Op.EXPRESSIONS, "row")

    row: Sym = ZERO


@dataclass(eq=False)
class StoreScales(Op):
    """Stores a word with the scales of four rows of a tile, 32 apart, by neighbouring lanes together; executed by all threads. The output is the first."""


@dataclass(eq=False)
class Reduce(Op):
    """A reduction across threads, and across blocks when `grid_types`: executed by all threads, the predicate selects the contributing ones.

    thread_types, grid_types: the parallel types of the reduction axes. group_elems: values reduced together (an array).
    is_cluster: the blocks are one cluster and exchange results through `exchange` in shared memory;
    is_fused_cluster: their warps do so directly. workspace: shared-memory buffer. last_flag: name of the bool that is true in the block that holds the grid's
    result. Several outputs: as many reductions, done together.
    turn: counts the iterations, modulo 2 within a block: they alternate between two workspaces (exchanges), so that no barrier is needed at their end. half: if
    other statements stand between its halves (`run_behind`): "hand over", which reads the operands, or "take", which returns the results.
    """

    thread_types: tuple[ParallelType, ...] = ()
    grid_types: tuple[ParallelType, ...] = ()
    group_elems: int = 1
    workspace: Buffer | None = None
    group: "ThreadGroup | None" = None
    global_workspace: "WorkBuffer | None" = None
    semaphores: "WorkBuffer | None" = None
    last_flag: str = ""
    is_cluster: bool = False
    is_fused_cluster: bool = False
    awaits_cluster: bool = False  # the first write into other blocks: waits until they have started
    exchange: Buffer | None = None
    in_loop: bool = False
    turn: "Sym | None" = None
    half: str = ""
    iteration: Sym = ZERO  # of the loops around a reduction across blocks, linear

    @property
    def values(self) -> int:
        """Values of a thread: those of all outputs."""
        return self.group_elems * len(self.outputs)


@dataclass(eq=False)
class Scan(Op):
    """A scan across threads of one piece of a row, with `group_elems` neighbours per thread, or of pieces of `rows` rows in each thread, which are innermost.
    Executed by all threads.

    thread_type: the threads along the scan; those that follow each other are `stride` apart, of `threads` in a block. guards: for each element of a thread,
    whether it is inside the row. repeated: whether each of `elements` is the same in all rows of a thread; () if none is. is_reversed: the last element is
    the first that is folded. carry: the variable that holds the scan of the pieces before; the loop over the pieces is serial, and is the only enclosing loop.
    workspace: shared memory; lanes: where there is none, the threads of a row, neighbours in one warp. Where several blocks share a row, each folds its pieces
    first (`share_scans`).
    """

    EXPRESSIONS: ClassVar[tuple[str, ...]] = (*Op.EXPRESSIONS, "guards")

    thread_type: ParallelType = ParallelType.block_x
    group_elems: int = 1
    rows: int = 1
    stride: int = 1
    threads: int = 1
    guards: tuple[Sym, ...] = ()
    repeated: tuple[bool, ...] = ()
    is_reversed: bool = False
    workspace: Buffer | None = None
    lanes: int = 0
    blocks: Sym | None = None  # the number of blocks that share the pieces of a row, along y: the outermost part of its axis

    @property
    def order(self) -> list[int]:
        """The elements of a thread (lanes of its vector), in the order in which they are folded: all rows of one neighbour, then those of the next."""
        neighbours = range(self.group_elems)
        return [n * self.rows + row for n in (reversed(neighbours) if self.is_reversed else neighbours) for row in range(self.rows)]

    @property
    def elements(self) -> list[Access | Sym]:
        """What is folded: one operand, or those that a state is lifted from."""
        return self.operands[: len(self.expr.tensor_inputs)]

    @property
    def start(self) -> Access | Sym | None:
        """The start value, if there is one."""
        return self.operands[-1] if len(self.operands) > len(self.elements) else None

    @property
    def carry(self) -> str:
        return f"carry_{self.outputs[0].buffer.name}"


@dataclass(frozen=True, eq=False)
class TensorTile:
    """A tile of a tensor map. places: where it begins, innermost axis first."""

    map: TensorMapParam
    places: tuple[Sym, ...]


@dataclass(eq=False)
class BulkCopy(Op):
    """A copy of `elems` elements between global and shared memory, issued by one thread. barrier: the mbarrier that a load completes on.

    tile: for a piece that is not contiguous. counts_itself: the load announces its bytes to the barrier. skipped: elements between the start of a 16-byte unit
    and the start of the piece, if whole units around it are loaded; None if the piece consists of whole units.
    """

    EXPRESSIONS: ClassVar[tuple[str, ...]] = (*Op.EXPRESSIONS, "elems", "tile", "skipped")

    elems: Sym = ZERO
    barrier: Access | None = None
    counts_itself: bool = True
    tile: TensorTile | None = None
    skipped: Sym | None = None

    @property
    def moved_bytes(self) -> Sym:
        """The number of bytes that the copy moves."""
        dtype = self.outputs[0].buffer.dtype
        if self.skipped is None:
            return bytes_of(self.elems, dtype)
        return mul(ceildiv(bytes_of(add(self.skipped, self.elems), dtype), BULK_BYTES), BULK_BYTES)


@dataclass(eq=False)
class Let(Statement):
    """Declares a variable for the statements that follow in the same body."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("value",)

    variable: Sym
    value: Sym


@dataclass(eq=False)
class LetRowEnd(Statement):
    """`variable` is this thread's element at the ends of a row: one of the `skipped` before the first aligned vector, else one after the `whole` ones."""

    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("thread", "skipped", "whole")

    variable: Sym
    thread: Sym
    skipped: Sym
    whole: Sym


@dataclass(eq=False)
class Move(Statement):
    """Copies all elements of an array in registers, or a register, from another one of the same type."""

    target: Buffer
    source: Buffer


@dataclass(eq=False)
class WorkBuffer:
    """Global scratch memory that the host provides. zeroed: all bits 0 at launch; the kernel leaves it so."""

    name: str
    dtype: DataType
    elems: Sym
    zeroed: bool = False


@dataclass
class Kernel:
    """A kernel between two passes.

    assumptions: (a, b): the kernel assumes a <= b, and the host checks it. in_place: positions of outputs that may overwrite the input they alias.
    """

    name: str
    body: list[Statement]
    buffers: dict[TensorView, Buffer]
    grid: tuple[Sym, Sym, Sym]
    block: tuple[Sym, Sym, Sym]
    index_type: DataType
    shared_bytes: Sym = ZERO
    workspaces: list[Buffer] = field(default_factory=list)  # shared memory of reductions and barriers, besides that of tensors
    work_buffers: list[WorkBuffer] = field(default_factory=list)
    facts: dict[Sym, int] = field(default_factory=dict)  # extent -> a number that divides it, checked on the host
    bulk_sizes: set[Sym] = field(default_factory=set)  # those of `facts` that bulk copies need
    assumptions: list[tuple[Sym, Sym]] = field(default_factory=list)
    block_limits: list[tuple[str, Sym, int]] = field(default_factory=list)  # (thread index, threads wanted, threads fixed)
    in_place: tuple[int, ...] = ()
    cooperative: bool = False
    keeps_places: bool = False  # address terms that a loop over registers does not change are added before it, see `codegen.places`
    sums_offsets: bool = False  # offsets are added as integers first; otherwise the compiler adds each to the 64-bit address
    overlaps: bool = False  # dependent launch: it may start before the previous kernel has ended
    cluster: tuple[int, int, int] = (1, 1, 1)
    compute_block: tuple[Sym, Sym, Sym] | None = None  # the block without async warps, in a kernel with async warps
    exact_threads: int | None = None  # the exact block size, for the compiler: setmaxnreg distributes all registers of a multiprocessor


def is_collective(statement: Statement) -> bool:
    """True for statements that all threads execute regardless of the predicate."""
    return isinstance(statement, (Reduce, RowLoad, Scan, StoreScales, TurnTile)) or isinstance(statement, BlockFold) and statement.lanes > 1


THREADS = frozenset(p.value for p in BLOCK_TYPES)
"""The names of thread indices."""


def depends_on_threads(values: Iterable[Sym]) -> bool:
    """True if an expression may differ between the threads of a block by their indices."""
    return any(str(v.payload) in THREADS for value in values for v in variables(value))


def is_host_variable(v: Sym) -> bool:
    """True for variables that the host knows at launch: sizes, strides and scalars of inputs."""
    return v.extent is None and str(v.payload).startswith(("T", "S"))


def walk(body: list[Statement]) -> Iterator[Statement]:
    """Yield every statement in program order, parents first."""
    for statement in body:
        yield statement
        if isinstance(statement, Nest):
            yield from walk(statement.body)


def values_of(value: object) -> Iterator[Sym]:
    """The scalar expressions in a field of a statement."""
    if isinstance(value, Sym):
        yield value
    elif isinstance(value, Access):
        yield value.index
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from values_of(part)


def expressions_of(s: Statement) -> Iterator[Sym]:
    """The scalar expressions of a statement that refer to outer variables."""
    for name in s.EXPRESSIONS:
        yield from values_of(getattr(s, name))


def copied(statement: Statement, mapping: dict[Sym, Sym], rename: dict[str, Sym] | None = None) -> Statement:
    """Return a copy of a statement with variables replaced: those of `mapping`, and by name those of `rename`."""

    def sym(value: Sym) -> Sym:
        if not mapping and not rename:
            return value
        more = {v: rename[str(v.payload)] for v in variables(value) if str(v.payload) in rename} if rename else {}
        return substitute(value, {**mapping, **more})

    def changed(value: Any) -> Any:
        if isinstance(value, Sym):
            return sym(value)
        if isinstance(value, Access):
            return Access(value.buffer, sym(value.index))
        if isinstance(value, (list, tuple)):
            return type(value)(map(changed, value))
        return replace(value, places=changed(value.places)) if isinstance(value, TensorTile) else value

    fields = {name: changed(getattr(statement, name)) for name in statement.EXPRESSIONS}
    if isinstance(statement, Nest):
        fields["body"] = [copied(s, mapping, rename) for s in statement.body]
    return replace(statement, **fields) if fields else statement
