"""CUDA text of a kernel: statements in, one `__global__` function out (the contract is docs/kernel_text.md).

Owns names and layout of the text. What an op computes is said by the op itself (`weft.ops`). Read first: `generate`.
"""

from __future__ import annotations

from dataclasses import replace

from ..analysis.precision import wide_tensors
from ..dtypes import CUDA_NAMES, DataType
from ..errors import InternalError
from ..expr import TRUE, ZERO, Sym, floordiv
from ..ir.block_ops import BlockSampleOp
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, LoadStoreOpType, MemoryType
from ..ir.fusion import Fusion
from ..ir.graph_ops import BagOp, LookupOp, ReshapeOp, ScatterStoreOp
from ..ir.values import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, SqueezeOp, TensorView
from ..lower.kernel_ir import (
    Access, Allocate, Block, BlockFold, Buffer, BulkCopy, GroupFold, If, KeepScale, Kernel, Let, LetRowEnd, Loop, MagnitudeFold, Move, Op, Reduce, Repack,
    RowLoad, Scan, ScaledCast, Statement, StoreScales, ThreadGroup, TurnTile, Unswitched, bytes_of, walk,
)  # fmt: skip
from ..lower.kernel_sync import Sync
from ..lower.state import absorbs_lanes
from ..lower.program import HostCheck, KernelProgram, LineOrigin, Need, Param, RandomParam, TensorMapParam, TensorParam, WorkParam
from ..ops.monoids import MONOIDS, Monoid
from ..ops.registry import lookup
from .bags import sum_bag
from .blocks import cast_scaled, fold_block, fold_group, fold_magnitude, sample_blocks, tile_scales
from .copies import CACHES, SplitUnit, copy_async, copy_in_bulk, write_vector
from .parameters import signature_lines
from .places import Places
from .positions import MAX_ACCESS_BITS, compared_positions, counted_text, is_scalar, lane_of, look_up, scan, scatter_store, tell_bounds
from .protocol import write_protocol
from .random_numbers import random_text, write_random_vector
from .row_vectors import load_row_vector
from .scalars import ScalarPrinter
from .thread_folds import fold_across_threads, is_of
from .turned import write_turned_tile

_COPIES = (LoadStoreOp, BroadcastOp, SqueezeOp, ExpandOp, ReshapeOp)


class CudaWriter:
    """Writes one kernel. `lines` is the body so far; `blocks` the parts of the device library that it needs.

    access_bits: of the widest access to global memory.
    """

    def __init__(self, fusion: Fusion, kernel: Kernel, access_bits: int = MAX_ACCESS_BITS) -> None:
        self.fusion, self.kernel, self.access_bits = fusion, kernel, access_bits
        self.wide = wide_tensors(fusion)
        self.scalars = ScalarPrinter(kernel.index_type)
        self.blocks: dict[str, None] = {"cast": None, "math": None}  # of types and constants that any op may have
        if any(buffer.dtype.is_complex for buffer in kernel.buffers.values()):
            self.blocks["complex"] = None
        if any(buffer.dtype.is_narrow_float for buffer in kernel.buffers.values()):
            self.blocks["narrow"] = None
        self.places = Places()
        self.lines: list[str] = []
        self.origins: list[LineOrigin] = []  # of `lines`, counted from 1
        self.needs: set[Need] = set()
        self.launch = {p: d for p, d in zip(GRID_TYPES + BLOCK_TYPES, (*kernel.grid, *(kernel.compute_block or kernel.block)))}
        self.alignment_bytes: dict[str, int] = {}
        self.start_bytes: dict[str, int] = {}
        self.texts: dict[str, None] = {}  # texts of monoids outside of the device library; they are put before the kernel
        self.random_ops: set[int] = set()
        self.shared_tensors: dict[str, Sym] = {}
        self.maps: dict[str, TensorMapParam] = {}
        self._moved = {s.source for s in walk(kernel.body) if isinstance(s, Move)}  # moved whether it was written or not
        self._written = {o.buffer.tensor for s in walk(kernel.body) if isinstance(s, Op) for o in s.outputs}
        self._used = {o.buffer.tensor for s in walk(kernel.body) if isinstance(s, Op) for o in (*s.outputs, *s.operands) if isinstance(o, Access)}

    # -- layout
    def emit(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def call(self, depth: int, text: str) -> None:
        """Write a library call that accesses memory or synchronizes."""
        self.emit(depth, text)
        self.mark("call", text)

    def mark(self, kind: str, text: str = "", tensors: tuple[str, ...] = (), *, lines: int = 1) -> None:
        """Record the origin of the last lines; see LineOrigin."""
        self.origins.append(LineOrigin(len(self.lines) - lines + 1, len(self.lines), kind, tensors, text))

    def body(self, statements: list[Statement], depth: int) -> None:
        """Write statements, one after the other, and record the lines of each op and barrier."""
        for statement in statements:
            first = len(self.lines)
            self.statement(statement, depth)
            if isinstance(statement, (Op, Sync)):
                self.origins.append(_origin(first + 1, len(self.lines), statement))

    def statement(self, s: Statement, depth: int) -> None:
        """Write one statement with what is inside it."""
        if isinstance(s, Loop):
            self.loop(s, depth)
        elif isinstance(s, (If, Block)):
            condition = s.predicate if isinstance(s, If) else s.condition
            self.emit(depth, "{" if condition is TRUE else f"if ({self.scalars.condition(condition)}) {{")
            self.body(s.body, depth + 1)
            self.emit(depth, "}")
        elif isinstance(s, Unswitched):
            fast, slow = s.branches
            for head, branch in ((f"if ({self.scalars.condition(s.test)})", fast), ("else", slow)):
                self.emit(depth, f"{head} {{")
                self.body(branch.body, depth + 1)
                self.emit(depth, "}")
        elif isinstance(s, Allocate):
            self.allocate(s.buffer, depth)
        elif isinstance(s, Let):
            self.emit(depth, f"const int {s.variable.payload} = {self.scalars.index(s.value)};")
        elif isinstance(s, LetRowEnd):
            thread, skipped, whole = map(self.scalars.index, (s.thread, s.skipped, s.whole))
            comment = "this thread's element at the ends of the row, if any"
            self.emit(depth, f"const int {s.variable.payload} = {thread} < {skipped} ? {thread} : {thread} + {whole};  // {comment}")
        elif isinstance(s, Move):
            self.emit(depth, f"{s.target.name} = {s.source.name};")
        elif isinstance(s, Repack):
            self.blocks["repack"] = None
            self.emit(depth, f"weft::repack({s.buffer.name});")
        elif isinstance(s, Reduce):
            fold_across_threads(self, s, depth)
        elif isinstance(s, GroupFold):
            fold_group(self, s, depth)
        elif isinstance(s, BlockFold):
            fold_block(self, s, depth)
        elif isinstance(s, MagnitudeFold):
            fold_magnitude(self, s, depth)
        elif isinstance(s, ScaledCast):
            cast_scaled(self, s, depth)
        elif isinstance(s, (KeepScale, StoreScales)):
            tile_scales(self, s, depth)
        elif isinstance(s, Scan):
            scan(self, s, depth)
        elif isinstance(s, Op):
            self.op(s, depth)
        else:
            write_protocol(self, s, depth)

    def loop(self, s: Loop, depth: int) -> None:
        """Write a loop with what is inside it: in a branch, if the compiler must not mix its iterations."""
        index, start, extent = s.index.payload, self.scalars.index(s.start), self.scalars.index(s.extent)
        steps = f"{extent} - 1; {index} >= {start}; --{index}" if s.descends else f"{start}; {index} < {extent}; ++{index}"
        with self.places.around(self, s, depth):
            self.emit(depth, "#pragma unroll" if s.unroll else "#pragma unroll 1")
            self.emit(depth, f"for ({self.scalars.index_ctype} {index} = {steps}) {{  // {s.label}")
            if s.is_apart:
                self.blocks["apart"] = None
                self.emit(depth + 1, "if (weft::is_running()) {")
            self.body(s.body, depth + 1 + s.is_apart)
            if s.is_apart:
                self.emit(depth + 1, "}")
            self.emit(depth, "}")

    def ctype(self, dtype: DataType) -> str:
        return CUDA_NAMES[dtype]

    def in_shared(self, buffer: Buffer, ctype: str) -> str:
        """A pointer to the buffer in the block's shared memory."""
        return f"reinterpret_cast<{ctype}*>(shared + {self.scalars.index(buffer.offset_bytes)})"  # type: ignore[arg-type]

    def allocate(self, buffer: Buffer, depth: int) -> None:
        """Declare a register, a register array, or a pointer into shared memory."""
        ctype = CUDA_NAMES[buffer.dtype]
        if buffer.memory is MemoryType.shared:
            unit = buffer.dtype.record.pointer
            self.shared_tensors[buffer.name] = bytes_of(buffer.elems, buffer.dtype)
            self.emit(depth, f"{unit}* const {buffer.name} = {self.in_shared(buffer, unit)};")
        elif is_scalar(buffer):
            self.emit(depth, f"{ctype} {buffer.name}{' = ' + fill_text(buffer) if buffer.fill else ''};{_label(buffer)}")
            if buffer not in self._moved:
                self.mark("scalar", ctype, (buffer.name,))
        else:
            self.emit(depth, f"weft::Array<{ctype}, {buffer.elems.value}> {buffer.name};{_label(buffer)}")
            if buffer.fill:
                self.emit(depth, f"{buffer.name}.fill({fill_text(buffer)});")

    # -- operands
    def read(self, place: Access | Sym, dtype: DataType) -> str:
        """Return the text of an operand's value; `dtype` is the type to which a scalar is converted."""
        if not isinstance(place, Access):
            return self.scalars.value(place, dtype)
        buffer = place.buffer
        if buffer.memory is MemoryType.global_:
            return self.load_global(place, "unspecified")
        if buffer.memory is MemoryType.shared:
            if buffer.dtype.is_packed:
                return f"weft::load_shared_packed({buffer.name}, {self.scalars.index(place.index)})"
            return f"weft::load_shared({self.address(place)})"
        return buffer.name if is_scalar(buffer) else f"{buffer.name}[{self.scalars.index(place.index)}]"

    def load_global(self, place: Access, cache: str, is_ahead: bool = False) -> str:
        """Return the load of one element; is_ahead: it is used in a later iteration, and the compiler must not treat it as uniform."""
        if place.buffer.dtype.is_packed:
            return f"weft::load_global_packed<weft::Cache::{cache}>({place.buffer.name}, {self.scalars.index(place.index)})"
        address = f"weft::of_thread({self.address(place)})" if is_ahead else self.address(place)
        return f"weft::load_global<weft::Cache::{cache}>({address})"

    def address(self, place: Access, sums_offsets: bool = False) -> str:
        """Return the pointer to an element, or, for packed types, to the memory unit that begins with it. sums_offsets: see `Kernel`; for addresses of several
        parts that differ between a thread's elements."""
        if (kept := self.places.address(self, place)) is not None:
            return kept
        index = place.index if not place.buffer.dtype.is_packed else floordiv(place.index, place.buffer.dtype.elems_per_unit)
        text = self.scalars.index(index)
        if index is ZERO:
            return place.buffer.name
        return f"{place.buffer.name} + ({text})" if sums_offsets or self.kernel.sums_offsets else f"{place.buffer.name} + {text}"

    def write(self, place: Access, text: str, depth: int) -> None:
        """Store the value `text` in its buffer."""
        buffer = place.buffer
        if buffer.dtype.is_packed and buffer.memory is not MemoryType.local:
            raise SplitUnit(tensor=buffer.tensor, bits=buffer.dtype.bits, dtype=buffer.dtype.value, elems=buffer.dtype.elems_per_unit)
        if buffer.memory is MemoryType.global_:
            self.emit(depth, f"weft::store_global<weft::Cache::unspecified>({self.address(place)}, {text});")
        elif buffer.memory is MemoryType.shared:
            self.emit(depth, f"weft::store_shared({self.address(place)}, {text});")
        else:
            target = buffer.name if is_scalar(buffer) else f"{buffer.name}[{self.scalars.index(place.index)}]"
            self.emit(depth, f"{target} = {text};")

    # -- ops
    def op(self, s: Op, depth: int) -> None:
        """Write one expression of the fusion on one element, or on one vector."""
        expr, output = s.expr, s.outputs[0]
        if isinstance(s, BulkCopy):
            copy_in_bulk(self, s, depth)
        elif isinstance(s, TurnTile):
            write_turned_tile(self, s, depth)
        elif isinstance(s, RowLoad):
            load_row_vector(self, s, CACHES[s.expr.cache_op], depth)  # type: ignore[attr-defined]
        elif isinstance(expr, LoadStoreOp) and expr.kind is LoadStoreOpType.cp_async:
            copy_async(self, s, depth)
        elif isinstance(expr, BagOp):
            sum_bag(self, s, expr, depth)
        elif isinstance(expr, LookupOp):
            look_up(self, s, expr, depth)
        elif isinstance(expr, BlockSampleOp):
            sample_blocks(self, s, depth)
        elif isinstance(expr, ScatterStoreOp) and output.buffer.memory is MemoryType.global_:
            scatter_store(self, s, expr, depth)
        elif isinstance(expr, ReductionOp):
            self.fold(s, depth)
        elif s.vector_elems > 1 and isinstance(expr, RandomOp):
            write_random_vector(self, s, depth)
        elif s.vector_elems > 1:
            write_vector(self, s, depth)
        elif isinstance(expr, _COPIES):
            self.write(output, self.copy_text(s), depth)
        elif isinstance(expr, PointwiseOp):
            self.write(output, self.pointwise_text(s), depth)
        elif isinstance(expr, FullOp):
            self.write(output, self.read(s.operands[0], output.buffer.dtype), depth)
        elif isinstance(expr, IotaOp):
            self.write(output, self.iota_text(s), depth)
            tell_bounds(self, s, depth)
        elif isinstance(expr, RandomOp):
            self.write(output, random_text(self, s), depth)
        else:
            raise InternalError(f"{type(expr).__name__} has no CUDA text")

    def monoid(self, expr: Expr, dtype: DataType) -> Monoid:
        """Return the monoid of a reduction, and include the device functions for its identity and combination."""
        monoid = MONOIDS[expr.attributes["kind"]]
        self.blocks.update(dict.fromkeys(monoid.blocks_for(dtype)))
        self.texts[monoid.text_for(dtype)] = None
        return monoid

    def fold(self, s: Op, depth: int) -> None:
        """Write the fold of one element, or of one vector, into this thread's partial result."""
        output, dtype = s.outputs[0], s.outputs[0].buffer.dtype
        monoid = self.monoid(s.expr, dtype)
        if s.vector_elems > 1 and not absorbs_lanes(output.buffer.tensor):  # each lane has its own result
            for lane in range(s.vector_elems):
                lanes = [lane_of(o, lane) if isinstance(o, Access) else o for o in (output, *s.operands)]
                self.fold(replace(s, outputs=[lanes[0]], operands=lanes[1:], vector_elems=1), depth)  # type: ignore[list-item]
            return
        folded = self.read(output, dtype)
        if s.vector_elems > 1 and len(s.operands) == 1:
            source: Access = s.operands[0]  # type: ignore[assignment]
            first = self.scalars.index(source.index)
            self.blocks["reduce"] = None
            self.write(output, f"{monoid.functor_for(dtype)}::absorb_vector<{s.vector_elems}>({folded}, {source.buffer.name}, {first})", depth)
            return
        elements = [[self.read(lane_of(o, lane) if isinstance(o, Access) else o, dtype) for o in s.operands] for lane in range(s.vector_elems)]
        is_state = is_of(s.operands[0], dtype)
        if s.run is not None:
            self.write(output, monoid.absorb_run(folded, elements[0], dtype, self.scalars.index(s.run[0]), s.run[1]), depth)  # type: ignore[attr-defined]
            return
        self.write(output, monoid.combine(folded, elements[0][0], dtype) if is_state else monoid.absorb(folded, elements, dtype), depth)

    def copy_text(self, s: Op) -> str:
        """Return the value that a copy moves; loads from global memory have a cache hint."""
        source = s.operands[0]
        if isinstance(source, Access) and source.buffer.memory is MemoryType.global_ and isinstance(s.expr, LoadStoreOp):
            return self.load_global(source, CACHES[s.expr.cache_op], s.is_ahead)
        return self.read(source, s.outputs[0].buffer.dtype)

    def pointwise_text(self, s: Op) -> str:
        """Return the value of a pointwise op, by the text of its definition."""
        expr = s.expr
        definition = lookup(expr.op_name)
        compute: DataType = expr.attributes["compute"]
        out = s.outputs[0].buffer.dtype
        if (counted := counted_text(self, s)) is not None:
            return counted
        self.blocks.update(dict.fromkeys(definition.blocks_for(compute)))
        if (narrow := compared_positions(self, s)) is not None:
            return definition.cuda(narrow, DataType.Int32, out)
        args = [self.read(o, definition.fixed.get(n, compute)) for n, o in enumerate(s.operands)]
        return definition.cuda(args, compute, out, is_narrow=s.outputs[0].buffer.tensor not in self.wide)

    def iota_text(self, s: Op) -> str:
        dtype = s.outputs[0].buffer.dtype
        start, step = (self.read(o, dtype) for o in s.operands[1:3])
        return f"{start} + {step} * ({CUDA_NAMES[dtype]})({self.scalars.index(s.element)})"

    # -- what other files ask
    def require_alignment(self, buffer: Buffer, bytes_: int) -> None:
        self.alignment_bytes[buffer.name] = max(bytes_, self.alignment_bytes.get(buffer.name, 1))

    def barrier(self, group: ThreadGroup) -> str:
        """The number of the named barrier of this thread's group."""
        return str(group.barrier) if group.index is ZERO else f"{group.barrier} + {self.scalars.index(group.index)}"

def fill_text(buffer: Buffer) -> str:
    """Return the initial value of every element of a buffer, in C++."""
    kind, dtype = str(buffer.fill), buffer.dtype
    return f"{CUDA_NAMES[dtype]}{{}}" if kind == "sum" and dtype.is_reduced_float else MONOIDS[kind].identity(dtype)


def _label(buffer: Buffer) -> str:
    """The content of a register, for a comment: the op that computes it, or the input that is loaded."""
    expr = buffer.tensor.definition()
    if expr is None:
        return ""
    source = expr.tensor_inputs[0] if isinstance(expr, LoadStoreOp) and expr.tensor_inputs else None
    return f"  // {expr.op_name}" if source is None else f"  // of T{source.name}"


def _origin(first: int, last: int, s: Statement) -> LineOrigin:
    if not isinstance(s, Op):
        return LineOrigin(first, last, "barrier", (), s.why if isinstance(s, Sync) else "")
    tensors = tuple(dict.fromkeys(f"T{o.buffer.tensor.name}" for o in s.outputs))
    operands = ", ".join(f"T{o.buffer.tensor.name}" if isinstance(o, Access) else str(o) for o in s.operands)
    return LineOrigin(first, last, "reduction" if isinstance(s, Reduce) else "op", tensors, f"{', '.join(tensors)} = {s.expr.op_name}({operands})")


def generate(fusion: Fusion, kernel: Kernel, max_registers: int | None, access_bits: int = MAX_ACCESS_BITS) -> KernelProgram:
    """Return the program of a lowered kernel. access_bits: of the widest access of a thread to global memory."""
    writer = CudaWriter(fusion, kernel, access_bits)
    writer.body(kernel.body, 1)
    params = _parameters(writer)
    if writer.scalars.divides:
        writer.blocks["divide"] = None
    needs = writer.needs
    needs |= {need for need, is_there in (
        (Need.cluster, kernel.cluster != (1, 1, 1)), (Need.cooperative, kernel.cooperative), (Need.random, bool(writer.random_ops)),
        (Need.dynamic_shared, kernel.shared_bytes is not ZERO),
    ) if is_there}  # fmt: skip
    first = ["  unsigned char* const shared = weft::dynamic_shared();"] if Need.dynamic_shared in needs else []
    signature = signature_lines(params, overlaps=Need.dependent_launch in needs)
    if Need.random in needs:
        first.append("  if (philox_seed_at) philox_seed = weft::load_global(philox_seed_at);  // drawn anew at each replay of a CUDA graph")
    first += [f"  const {writer.scalars.index_ctype} {name} = {text};" for name, text in writer.scalars.block_values.values()]
    bounds = f"__launch_bounds__({kernel.exact_threads}, 1) " if kernel.exact_threads is not None else ""
    above = "".join(writer.texts)
    head = above + "\n".join([f'extern "C" __global__ void {bounds}{kernel.name}(', *signature, *first])
    text = "\n".join([head, *writer.lines, "}"]) + "\n"
    lines_above = head.count("\n") + 1
    checks = tuple(
        HostCheck(extent, divisor, "size of bulk copies (16 bytes and multiples)" if extent in kernel.bulk_sizes else "vectorized axis")
        for extent, divisor in kernel.facts.items()
    )
    return KernelProgram(
        kernel.name, text, tuple(writer.blocks), params, kernel.grid, kernel.block, kernel.shared_bytes, kernel.index_type, checks,
        writer.alignment_bytes, len(writer.random_ops), max_registers, frozenset(needs), kernel.cluster,
        tuple(str(v).split("_")[0] for v in fusion.outputs()),
        origins=tuple(replace(o, first_line=lines_above + o.first_line, last_line=lines_above + o.last_line) for o in writer.origins),
        assumptions=tuple(kernel.assumptions), block_limits=tuple(kernel.block_limits), in_place=kernel.in_place,
        shared_tensors=tuple(writer.shared_tensors.items()), start_bytes=writer.start_bytes,
    )  # fmt: skip


def _parameters(writer: CudaWriter) -> tuple[Param, ...]:
    fusion, kernel = writer.fusion, writer.kernel
    out: list[Param] = []
    listed: dict[TensorView, None] = {}
    scratch = {w.name for w in kernel.work_buffers}
    for value in (*fusion.inputs(), *fusion.outputs()):
        if isinstance(value, TensorView) and value in writer._used:
            listed.setdefault(value)
    for tensor, buffer in kernel.buffers.items():
        if buffer.memory is MemoryType.global_ and tensor in writer._used and buffer.name not in scratch:
            listed.setdefault(tensor)
    for tensor in listed:
        out.append(TensorParam(f"T{tensor.name}", tensor.dtype(), tensor in writer._written))
    out += [WorkParam(w.name, w.dtype, w.elems, w.zeroed) for w in kernel.work_buffers]
    if writer.random_ops:
        out += [RandomParam("philox_seed", "seed"), RandomParam("philox_offset", "offset"), RandomParam("philox_seed_at", "seed_at")]
    out += list(writer.maps.values())
    out += list(writer.scalars.params.values())
    return tuple(out)
