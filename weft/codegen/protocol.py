"""CUDA text of barriers, waits, stages, roles and exchanges, and of what a kernel does first.

Owns what the nodes of `weft.lower.kernel_sync` print; `writer` is the CudaWriter of the kernel. Read first: `write_protocol`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InternalError
from ..expr import FALSE, ONE, TRUE, ceildiv, evaluate_int, floordiv, less, mul, sub
from ..ir.block_ops import COLUMNS, GROUPED, PADDED, PADDED_COLUMNS, SWIZZLED, sample_of, sample_shape
from ..ir.enums import BLOCK_TYPES, ParallelType
from ..lower.kernel_ir import Reduce, Statement
from ..lower.kernel_sync import (
    Arrive, BlockShape, ClusterArrive, ClusterWait, CommitCopies, DeclareFlag, ElectedThread, Fence, FenceSync, GridSync, HandOverTotal, InitBarrier,
    LetNextStart, OneThread, ReleaseStage, Role, Roles, ScanFold, StartExchanges, StartScan, Sync, TakeTotals, WaitCopies, WaitStage, WaitForPrevious,
    WaitStores, ZeroPadding,
)  # fmt: skip
from ..lower.program import Need
from .blocks import groups_text
from .positions import fold_piece, linear, pass_total, start_scan

_PADDING = {
    SWIZZLED: "zero_tile_padding", COLUMNS: "zero_column_padding", PADDED_COLUMNS: "zero_column_padding", **dict.fromkeys(PADDED, "zero_row_padding"),
}  # fmt: skip
ASYNC_THREAD = "async_thread"
"""The variable that counts the threads of async warps from 0."""


def write_protocol(writer: Any, s: Statement, depth: int) -> None:
    """Write one of these statements."""
    write = _WRITE.get(type(s))
    if write is None:
        raise InternalError(f"statement {type(s).__name__} has no CUDA text")
    write(writer, s, depth)


def _call(writer: Any, depth: int, text: str, why: str = "") -> None:
    writer.emit(depth, f"{text};  // {why}" if why else f"{text};")


def _nest(writer: Any, depth: int, head: str, body: list[Statement], first: tuple[str, ...] = (), role: str = "") -> None:
    """Write a body in braces. first: lines before it; role: what its threads do, for reports."""
    above = len(writer.lines)
    writer.emit(depth, f"{head} {{".lstrip())
    for line in first:
        writer.emit(depth + 1, line)
    writer.body(body, depth + 1)
    writer.emit(depth, "}")
    if role:
        writer.mark("role", role, lines=len(writer.lines) - above)


# ---------------------------------------------------------------- threads of a block
def _sync(writer: Any, s: Sync, depth: int) -> None:
    meet = "weft::block_sync()" if s.group is None else f"weft::named_sync({writer.barrier(s.group)}, {s.group.threads})"
    writer.emit(depth, f"{meet};  // {s.why}")


def first_along(kinds: tuple[ParallelType, ...]) -> str:
    """The condition that selects the threads with index 0 along `kinds`."""
    return f"if ({' && '.join(f'{p.value} == 0' for p in kinds)})" if kinds else ""


def _one_thread(writer: Any, s: OneThread, depth: int) -> None:
    _nest(writer, depth, first_along(s.kinds), s.body)


def _elected(writer: Any, s: ElectedThread, depth: int) -> None:
    _nest(writer, depth, "if (weft::elect())", s.body)


# ---------------------------------------------------------------- stages
def _fence(writer: Any, s: FenceSync, depth: int) -> None:
    _call(writer, depth, {Fence.barriers: "weft::fence_mbarrier_init()", Fence.proxy: "weft::fence_proxy_async_shared()"}[s.kind], s.why)


def _init_barrier(writer: Any, s: InitBarrier, depth: int) -> None:
    name, stages = s.barrier.name, evaluate_int(s.barrier.elems, {})
    writer.emit(depth, f"for (int stage = 0; stage < {stages}; ++stage) weft::mbarrier_init({name} + stage, {s.arrivals});")
    writer.emit(depth, f'WEFT_NAME({name}, {8 * stages}, "{name}");')


def _arrive(writer: Any, s: Arrive, depth: int) -> None:
    if not s.bytes_:
        _call(writer, depth, f"weft::mbarrier_arrive({writer.address(s.barrier)})")
        writer.mark("arrival", "", (s.barrier.buffer.name,))
        return
    parts = [
        writer.scalars.index(b) if c is TRUE else f"({writer.scalars.condition(c)} ? {writer.scalars.index(b)} : 0)" for c, b in zip(s.conditions, s.bytes_)
    ]
    _call(writer, depth, f"weft::mbarrier_arrive_expect_tx({writer.address(s.barrier)}, {' + '.join(parts)})")
    writer.mark("arrival", "", (s.barrier.buffer.name,))


def _wait_stage(writer: Any, s: WaitStage, depth: int) -> None:
    _call(writer, depth, f"weft::mbarrier_wait_phase({writer.address(s.barrier)}, {writer.scalars.index(s.phase)})", s.why)


def _release_stage(writer: Any, s: ReleaseStage, depth: int) -> None:
    writer.blocks["pipeline"] = None
    _call(writer, depth, f"weft::release_stage({writer.address(s.barrier)})", s.why)
    writer.mark("call", writer.lines[-1].strip())


def _commit_copies(writer: Any, s: CommitCopies, depth: int) -> None:
    _call(writer, depth, "weft::cp_async_commit()")


def _wait_copies(writer: Any, s: WaitCopies, depth: int) -> None:
    _call(writer, depth, f"weft::cp_async_wait<{s.pending}>()", s.why)


def _wait_stores(writer: Any, s: WaitStores, depth: int) -> None:
    issuer = f"{first_along(s.issuer)} " if s.issuer else ""
    _call(writer, depth, f"{issuer}weft::bulk_wait{'_read' if s.has_read else ''}<0>()", s.why)


# ---------------------------------------------------------------- roles
def _roles(writer: Any, s: Roles, depth: int) -> None:
    writer.needs.add(Need.async_warps)
    *loading, computing = s.body
    shape = s.shape
    head = [f"const unsigned {ASYNC_THREAD} = {_async_thread(shape)};"]
    if shape.registers is not None:
        head.insert(0, f"weft::setmaxnreg_dec<{shape.registers[0]}>();")
    writer.emit(depth, f"if ({shape.axis.value} >= {shape.compute[shape.axis]}) {{")
    for line in head:
        writer.emit(depth + 1, line)
    for number, role in enumerate(loading):
        assert isinstance(role, Role)
        first = [f'WEFT_ROLE("{role.name}");']
        if role.lane is not None:
            first.append(f"const int {role.lane.payload} = (int)weft::lane();")
        _nest(writer, depth + 1, f"{'else ' if number else ''}if ({ASYNC_THREAD} / 32 == {role.warp})", role.body, tuple(first), role.name)
    writer.emit(depth, "}")
    assert isinstance(computing, Role)
    first = [f'WEFT_ROLE("{computing.name}");']
    if shape.registers is not None:
        first.append(f"weft::setmaxnreg_inc<{shape.registers[1]}>();")
    _nest(writer, depth, "else", computing.body, tuple(first), computing.name)


def _async_thread(shape: BlockShape) -> str:
    """The expression that counts the async threads from 0."""
    parts, running = [], 1
    for p in BLOCK_TYPES:
        extent = shape.pad if p is shape.axis else shape.compute[p]
        if extent > 1:
            index = f"(threadIdx.{p.value[-1]} - {shape.compute[p]})" if p is shape.axis else p.value
            parts.append(index if running == 1 else f"{index} * {running}")
        running *= extent
    return " + ".join(parts) or "0"


# ---------------------------------------------------------------- blocks of a cluster and of the grid
def _grid_sync(writer: Any, s: GridSync, depth: int) -> None:
    writer.blocks["grid"] = None
    _call(writer, depth, f"weft::meet_grid({s.counter.name})", s.why)


def exchange_text(writer: Any, s: Reduce) -> str:
    """The pointer to the exchange buffer of the blocks of a cluster."""
    assert s.exchange is not None
    return str(writer.in_shared(s.exchange, writer.ctype(s.outputs[0].buffer.dtype)))


def _start_exchanges(writer: Any, start: StartExchanges, depth: int) -> None:
    threads = "blockDim.x * blockDim.y * blockDim.z"
    writer.emit(depth, "if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {")
    for s in start.reductions:
        place = exchange_text(writer, s)
        if s.turn is not None:
            assert s.exchange is not None
            _call(writer, depth + 1, f"weft::start_cluster_turns({place}, {writer.scalars.index(floordiv(s.exchange.elems, 2))})")
            continue
        kept = [p for p in BLOCK_TYPES if writer.launch[p] is not ONE and p not in s.thread_types]
        senders = f"{threads} / 32" if s.is_fused_cluster else linear(kept, "blockDim")[1]
        _call(writer, depth + 1, f"weft::expect_cluster({place}, {senders} * {s.values})")
    _call(writer, depth + 1, "weft::fence_mbarrier_init()")
    writer.emit(depth, "}")


def _cluster_arrive(writer: Any, s: ClusterArrive, depth: int) -> None:
    _call(writer, depth, "weft::cluster_arrive_relaxed()", s.why)


def _cluster_wait(writer: Any, s: ClusterWait, depth: int) -> None:
    _call(writer, depth, "weft::cluster_wait()", s.why)


# ---------------------------------------------------------------- kernels of a stream
def _wait_for_previous(writer: Any, s: WaitForPrevious, depth: int) -> None:
    writer.needs.add(Need.dependent_launch)
    _call(writer, depth, "weft::griddep_wait()", "the kernels before have ended")


def _let_next_start(writer: Any, s: LetNextStart, depth: int) -> None:
    _call(writer, depth, "weft::griddep_launch()", "the next kernel may start, and waits by itself")


# ---------------------------------------------------------------- the head of a kernel
def _declare_flag(writer: Any, s: DeclareFlag, depth: int) -> None:
    writer.emit(depth, f"bool {s.name} = false;")


def _start_scan(writer: Any, s: StartScan, depth: int) -> None:
    start_scan(writer, s.scan, depth)


def _zero_padding(writer: Any, s: ZeroPadding, depth: int) -> None:
    tensor = s.buffer.tensor
    sample = sample_of(tensor)
    assert sample is not None
    writer.blocks["blocks"] = None
    rows, columns = sample_shape(tensor)
    places = [writer.scalars.index(extent) for extent in (rows, columns)]
    if sample.layout == GROUPED:
        places.append(groups_text(writer, sample))
        _call(writer, depth, f"weft::zero_grouped_padding<{writer.scalars.index_ctype}>({s.buffer.name}, {', '.join(places)})")
        return
    units = {SWIZZLED: (128, 4), COLUMNS: (4, 1), PADDED_COLUMNS: (4, 1), **PADDED}[sample.layout]
    whole = mul(*(mul(ceildiv(extent, unit), unit) for extent, unit in zip((rows, columns), units)))
    is_padded = less(0, sub(whole, mul(rows, columns)))  # evaluated on the host: without padding, threads do not loop over it
    if sample.layout in PADDED:
        places += [str(unit) for unit in units]
    elif sample.layout in (COLUMNS, PADDED_COLUMNS):
        places.append(writer.scalars.index(columns if sample.layout == PADDED_COLUMNS else sub(columns, 1)))
    call = f"weft::{_PADDING[sample.layout]}<{writer.scalars.index_ctype}>({s.buffer.name}, {', '.join(places)})"
    if is_padded is not FALSE:
        _call(writer, depth, call if is_padded is TRUE else f"if ({writer.scalars.condition(is_padded)}) {call}")


_WRITE: dict[type, Callable[[Any, Any, int], None]] = {
    Sync: _sync, OneThread: _one_thread, ElectedThread: _elected, FenceSync: _fence, InitBarrier: _init_barrier, Arrive: _arrive, WaitStage: _wait_stage,
    ReleaseStage: _release_stage, CommitCopies: _commit_copies, WaitCopies: _wait_copies, WaitStores: _wait_stores, Roles: _roles, GridSync: _grid_sync,
    StartExchanges: _start_exchanges, ClusterArrive: _cluster_arrive, ClusterWait: _cluster_wait, DeclareFlag: _declare_flag, StartScan: _start_scan,
    ScanFold: fold_piece, HandOverTotal: pass_total, TakeTotals: pass_total, ZeroPadding: _zero_padding, WaitForPrevious: _wait_for_previous,
    LetNextStart: _let_next_start,
}  # fmt: skip
