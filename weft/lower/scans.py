"""Scans across threads: the statement for a ScanOp, and the shared memory that it needs.

Owns what a schedule must look like for one: loops [blocks, pieces, threads, neighbours of a thread], the pieces in a serial loop, all other axes bound, except
that a thread may have several rows, as lanes behind the neighbours. Blocks along y may share a row: then each starts from the total of the blocks before
(`share_scans`). Read first: `build_scan`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from ..arch import WARP_THREADS
from ..dtypes import DataType
from ..errors import UserError
from ..expr import ONE, const, product, sub, substitute, var
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType, ParallelType
from ..ir.graph_ops import ScanOp
from ..ir.values import TensorView
from .access import op_predicate
from .contracts import lowering_pass
from .grid_sync import all_blocks_meet
from .kernel_ir import Access, Allocate, Block, Buffer, Kernel, Let, Loop, Move, Nest, Op, Scan, Statement, WorkBuffer, copied, walk
from .kernel_sync import HandOverTotal, ScanFold, TakeTotals
from .lanes import buffer_strides, lane_stride
from .state import BuildState


LANES = tuple(1 << n for n in range(WARP_THREADS.bit_length()))
"""Threads of a row that are neighbours in one warp, with other rows before and behind them."""


class BadScan(UserError):
    code = "W397"
    what = "{tensor} is a scan (a running fold), and {reason}"
    fix = (
        "split its axis into pieces, threads and neighbours (in this order), bind the threads to TIDx or TIDy, the neighbours to group, all else to blocks; "
        "rows of one thread may be a group behind the neighbours"
    )


def accumulator(dtype: DataType) -> DataType:
    """The accumulator type of a scan."""
    return DataType.Float if dtype.is_reduced_float else dtype


def build_scan(state: BuildState, expr: ScanOp, fields: dict[str, Any], lanes: list[int]) -> Scan:
    """Return the statement of a scan. Errors: BadScan."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    if expr.attributes.get("positions"):
        raise BadScan(tensor=output, reason="it gives positions, too: call translate_scans (weft.schedule.scan_states) before scheduling it")
    groups = state.plan.groups[output]
    dim = state.maps.exact(output.get_logical_domain()[expr.attributes["dim"]])
    along = [g for axis, g in zip(output.get_loop_domain(), groups) if dim in state.maps.coverage(axis)]
    rows = [groups[k] for k in lanes if groups[k] not in along]
    others = [g for g in groups if g not in along and g not in rows and g.extent is not ONE]
    threads = [g for g in along if g.parallel.is_bound and g.parallel not in GRID_TYPES]
    if len(lanes) > 2 or len(rows) > 1 or rows and groups[lanes[-1]] is not rows[0] or len(threads) != 1 or threads[0].parallel not in BLOCK_TYPES[:2]:
        raise BadScan(tensor=output, reason="one of its axes must be bound to TIDx or TIDy, and at most one may be a group, with rows as a group inside it")
    if any(not g.parallel.is_bound for g in others):
        raise BadScan(tensor=output, reason=f"{next(g.axis for g in others if not g.parallel.is_bound)}, along which it does not run, is a loop")
    shared = [g for g in along if g.parallel in GRID_TYPES]
    if shared and (len(shared) > 1 or shared[0] is not along[0] or shared[0].parallel is not ParallelType.grid_y):
        raise BadScan(tensor=output, reason="its axis is split among blocks, which only its outermost part may be, along BIDy")
    counts = [int(groups[k].extent.value) for k in lanes]  # type: ignore[arg-type]
    predicate = op_predicate(state, state.indexer(expr), expr, output)
    places = itertools.product(*map(range, counts))
    guards = tuple(substitute(predicate, {g.index: const(n) for g, n in zip((groups[k] for k in lanes), at) if g.index.is_var}) for at in places)
    blocks, of_rows = shared[0].extent if shared else None, counts[-1] if rows else 1
    scan = Scan(**fields, thread_type=threads[0].parallel, group_elems=math.prod(counts) // of_rows, rows=of_rows, guards=guards, blocks=blocks)
    scan.is_reversed = bool(expr.attributes.get("reverse"))
    if rows:  # an operand that lacks their axis, such as the positions along columns, is the same in all rows of a thread
        strides = [buffer_strides(place.buffer) if isinstance(place, Access) else {} for place in scan.elements]
        scan.repeated = tuple(lane_stride(output.get_loop_domain()[lanes[-1]], of, state.maps, state.table) is None for of in strides)
    return scan


@lowering_pass(gives=["scan workspaces"], before=["shared memory"])
def plan_scans(kernel: Kernel, state: BuildState) -> Kernel:
    """Allocate the shared-memory workspace of every scan.

    Before: Scan statements have no workspace.   After: `workspace` is set, two elements per row and warp; so are the numbers of the block's threads. Where the
    threads of a row are neighbours in one warp, there is no workspace, and `lanes` is set.
    Errors: BadScan.
    """
    for statement in walk(kernel.body):
        if isinstance(statement, Scan):
            tensor = statement.outputs[0].buffer.tensor
            across, down, deep = (state.launch.get(p, ONE) for p in BLOCK_TYPES)
            is_row = statement.thread_type is ParallelType.block_x
            if not (across.is_const and down.is_const) or deep is not ONE:
                raise BadScan(tensor=tensor, reason="the threads of its block are of unknown number, or are bound to other axes than it and columns along TIDx")
            statement.stride = 1 if is_row else int(across.value)  # type: ignore[arg-type]
            statement.threads = int(across.value) * int(down.value)  # type: ignore[arg-type]
            if statement.stride < WARP_THREADS and statement.threads % WARP_THREADS:
                raise BadScan(tensor=tensor, reason=f"its blocks of {statement.threads} threads are not whole warps")
            if is_row and across.value in LANES and statement.blocks is None:
                statement.lanes = int(across.value)  # type: ignore[arg-type]
                continue
            if is_row and down is not ONE:
                raise BadScan(tensor=tensor, reason=f"a block has several rows of {across.value} threads each, which are not the lanes, or a part, of one warp")
            parts = statement.threads // max(statement.stride, WARP_THREADS)
            count = const(2 * parts * statement.stride * statement.rows)
            statement.workspace = Buffer(f"workspace_T{tensor.name}", accumulator(tensor.dtype()), MemoryType.shared, count, tensor)
            kernel.workspaces.append(statement.workspace)
    return kernel


@lowering_pass(needs=["scan workspaces"], gives=["order of scans"], before=["block syncs", "grouped predicates"])
def reverse_scans(kernel: Kernel, state: BuildState) -> Kernel:
    """Let pieces, threads and the blocks that share a row follow each other from the end of the row on, if its scan is reversed.

    Before: the first thread has the first elements of each piece.   After: in all indices the last one stands for the first, so it has the last elements, and
    the loop begins with the last piece. Loops of known length, whose index is one of registers, descend instead: NVRTC 13.0 took `T[i * -4 + 7]` in an unrolled
    loop for a register that nothing had been written to. In a thread, `Scan.order` tells the order. All scans of a kernel have one direction.
    Here because: sizes of blocks are fixed, and everything that follows takes indices as they are.
    """
    scans = [s for s in walk(kernel.body) if isinstance(s, Scan)]
    if not any(s.is_reversed for s in scans):
        return kernel
    renamed = {p: state.launch[p] for s in scans for p in (s.thread_type, *([ParallelType.grid_y] if s.blocks is not None else []))}
    names = {p.value: sub(sub(extent, ONE), var(p.value, extent=extent)) for p, extent in renamed.items()}
    around = [s for s in walk(kernel.body) if isinstance(s, Loop) and any(isinstance(inner, Scan) for inner in walk(s.body))]
    for loop in around:
        loop.descends = loop.extent.is_const
    loops = {s.index: sub(sub(s.extent, ONE), s.index) for s in around if not s.descends}
    kernel.body = [copied(s, loops, names) for s in kernel.body]
    return kernel


@lowering_pass(needs=["scan workspaces", "unswitched"], gives=["shared scans"], before=["kernel head"])
def share_scans(kernel: Kernel, state: BuildState) -> Kernel:
    """Pass totals between blocks that share a row: each block needs the total of the pieces before its own.

    Before: each block scans its pieces as if they were a row.   After: it loops over its pieces twice. The first loop computes the scan's input and reduces it,
    the total goes through global memory, all blocks synchronize, and the second loop starts from the total of the blocks before.
    Here because: loops, loads and bounds are final, and the first loop is a copy of the parts that it needs. Kernels of scans have no pipelines.
    Errors: BadScan.
    """
    scans = list({s.carry: s for s in walk(kernel.body) if isinstance(s, Scan) and s.blocks is not None}.values())
    if not scans:
        return kernel
    needed = _needed_for({o.buffer for s in scans for o in s.elements if isinstance(o, Access)}, kernel.body)
    for scan in scans:
        if scan.outputs[0].buffer in needed:
            raise BadScan(tensor=scan.outputs[0].buffer.tensor, reason="another scan needs it: the blocks that share its row would have to meet once more")
    first, meeting, last = Block(_first_walk(kernel.body, needed)), [], []
    for scan in scans:
        tensor, blocks = scan.outputs[0].buffer.tensor, scan.blocks
        totals = WorkBuffer(f"totals_T{tensor.name}", accumulator(tensor.dtype()), product([kernel.grid[0], const(scan.stride * scan.rows), blocks or ONE]))
        kernel.work_buffers.append(totals)
        meeting.append(HandOverTotal(scan, totals))
        last.append(TakeTotals(scan, totals))
    together = all_blocks_meet(kernel, "totals: stored for other blocks", "totals: those of all blocks")
    kernel.body = [first, *meeting, *together, *last, *kernel.body]
    return kernel


def _needed_for(wanted: set[Buffer], body: list[Statement]) -> set[Buffer]:
    """Return the wanted buffers and those that are read to compute them."""
    sources: dict[Buffer, set[Buffer]] = {}
    for s in walk(body):
        if isinstance(s, Move):
            sources.setdefault(s.target, set()).add(s.source)
        elif isinstance(s, Op):
            for out in s.outputs:
                sources.setdefault(out.buffer, set()).update(o.buffer for o in s.operands if isinstance(o, Access))
    found, stack = set(wanted), list(wanted)
    while stack:
        more = sources.get(stack.pop(), set()) - found
        found |= more
        stack += more
    return found


def _first_walk(body: list[Statement], needed: set[Buffer]) -> list[Statement]:
    """Return a copy of the statements that compute the needed buffers, with a reduction in place of each scan."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Scan):
            out.append(ScanFold(s, s.elements, s.guards))
        elif isinstance(s, Nest):
            inner = _first_walk(s.body, needed)
            if any(not isinstance(each, (Allocate, Let)) for each in inner):
                nest = copied(s, {})
                nest.body = inner  # type: ignore[attr-defined]
                out.append(nest)
        elif isinstance(s, Allocate):
            out += [s] if s.buffer in needed else []
        elif isinstance(s, Move):
            out += [s] if s.target in needed else []
        elif isinstance(s, Let) or isinstance(s, Op) and any(o.buffer in needed for o in s.outputs):
            out.append(copied(s, {}))
    return out


__all__ = ["accumulator", "build_scan", "plan_scans", "reverse_scans", "share_scans"]
