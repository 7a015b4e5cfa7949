"""Scans across threads: the statement for a ScanOp, and the shared memory that it needs.

Owns what a schedule must look like for one: loops [blocks, pieces, threads, neighbours of a thread], the pieces in a serial loop, all other axes bound.
Read first: `build_scan`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import DataType
from ..errors import UserError
from ..expr import ONE, Sym, ceildiv, const, mul, product, substitute
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType, ParallelType
from ..ir.graph_ops import ScanOp
from ..ir.values import TensorView
from .access import op_predicate
from .contracts import lowering_pass
from .kernel_ir import Buffer, Kernel, Scan, walk
from .state import BuildState


class BadScan(UserError):
    code = "W397"
    what = "{tensor} is a scan (a running fold), and {reason}"
    fix = "split its axis into pieces, threads and neighbours (in this order), bind the threads to TIDx or TIDy, the neighbours to group, all else to blocks"


def accumulator(dtype: DataType) -> DataType:
    """The accumulator type of a scan."""
    return DataType.Float if dtype.is_reduced_float else dtype


def build_scan(state: BuildState, expr: ScanOp, fields: dict[str, Any], lanes: list[int]) -> Scan:
    """Return the statement of a scan. Errors: BadScan."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    groups = state.plan.groups[output]
    dim = state.maps.exact(output.get_logical_domain()[expr.attributes["dim"]])
    along = [g for axis, g in zip(output.get_loop_domain(), groups) if dim in state.maps.coverage(axis)]
    others = [g for g in groups if g not in along and g.extent is not ONE]
    threads = [g for g in along if g.parallel.is_bound]
    if len(lanes) > 1 or len(threads) != 1 or threads[0].parallel not in BLOCK_TYPES[:2]:
        raise BadScan(tensor=output, reason="one of its axes must be bound to TIDx or TIDy, and at most one may be a group")
    if any(not g.parallel.is_bound for g in others):
        raise BadScan(tensor=output, reason=f"{next(g.axis for g in others if not g.parallel.is_bound)}, along which it does not run, is a loop")
    if any(g.parallel in GRID_TYPES for g in along):
        raise BadScan(tensor=output, reason="its axis is split among blocks")
    elems = 1 if not lanes else int(groups[lanes[0]].extent.value)  # type: ignore[arg-type]
    predicate = op_predicate(state, state.indexer(expr), expr, output)
    lane = groups[lanes[0]].index if lanes else None
    guards = tuple(predicate if lane is None or not lane.is_var else substitute(predicate, {lane: const(n)}) for n in range(elems))
    return Scan(**fields, thread_type=threads[0].parallel, group_elems=elems, guards=guards)


@lowering_pass(gives=["scan workspaces"], before=["shared memory"])
def plan_scans(kernel: Kernel, state: BuildState) -> Kernel:
    """Give every scan its workspace in shared memory.

    Before: Scan statements have no workspace.   After: `workspace` is set, two elements per warp along x, or per thread along y.
    """
    for statement in walk(kernel.body):
        if isinstance(statement, Scan):
            threads: Sym = product(state.launch.get(p, ONE) for p in BLOCK_TYPES)
            count = ceildiv(threads, 32) if statement.thread_type is ParallelType.block_x else threads
            tensor = statement.outputs[0].buffer.tensor
            statement.workspace = Buffer(f"workspace_T{tensor.name}", accumulator(tensor.dtype()), MemoryType.shared, mul(count, 2), tensor)
            kernel.workspaces.append(statement.workspace)
    return kernel


__all__ = ["accumulator", "build_scan", "plan_scans"]
