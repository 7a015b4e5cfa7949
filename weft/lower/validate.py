"""Whether every thread finds what it reads: bindings of a tensor and of its readers agree, or the tensor is in memory that they share.

Owns that rule. Which loops are one is decided in `loops.py`, before.
Read first: `check_parallel`.
"""

from __future__ import annotations

from ..analysis.axes import AxisMaps
from ..errors import UserError
from ..expr import ONE, Sym
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType, ParallelType
from ..ir.values import IterDomain, TensorView
from .loops import LoopGroup, LoopPlan


class InconsistentParallel(UserError):
    code = "W522"
    what = "inconsistent parallelization: axis {axis} of {tensor} is bound to {kind}, and its reader {reader} {there}"
    fix = "{remedy}"


class UnsharedGlobal(UserError):
    code = "W523"
    what = "{tensor} is kept in global memory and read by {reader} in the same kernel, where {kind} does not run over the same axis in both"
    fix = "bind the same axes alike in both, or compute {tensor} in another kernel"


_READERS = {
    MemoryType.local: BLOCK_TYPES + GRID_TYPES,
    MemoryType.shared: GRID_TYPES,
}
"""Who has its own copy of a tensor: each thread its registers, each block its shared memory."""


def check_parallel(plan: LoopPlan, maps: AxisMaps, launch: dict[ParallelType, Sym]) -> None:
    """Check every tensor against its readers.

    Errors: InconsistentParallel for a tensor in registers (in shared memory) that another thread (block) reads than the one that made it;
    UnsharedGlobal for one in global memory, which no barrier orders across threads.
    """
    for expr in plan.exprs:
        reader: TensorView = expr.outputs[0]  # type: ignore[assignment]
        for tensor in dict.fromkeys(expr.tensor_inputs):
            if tensor.definition() is None or tensor not in plan.groups:
                continue
            for kind in _READERS.get(tensor.memory_type, ()):
                mine, theirs = _bound(plan, tensor, kind), _bound(plan, reader, kind)
                if mine is not None and not _agree(maps, mine, theirs):
                    raise InconsistentParallel(axis=mine[0], tensor=tensor, kind=kind.value, reader=reader, there=_there(theirs), remedy=_remedy(kind))
            if tensor.memory_type is MemoryType.global_:
                for kind in launch:
                    mine, theirs = _bound(plan, tensor, kind), _bound(plan, reader, kind)
                    if launch[kind] is not ONE and (mine is None or not _agree(maps, mine, theirs)):
                        raise UnsharedGlobal(tensor=tensor, reader=reader, kind=kind.value)


def _bound(plan: LoopPlan, tensor: TensorView, kind: ParallelType) -> tuple[IterDomain, LoopGroup] | None:
    """Return the loop that `kind` runs in `tensor`, over elements that differ (a reduction's result is in all of its threads)."""
    for axis, group in zip(tensor.get_loop_domain(), plan.groups[tensor]):
        if group.parallel is kind and not axis.is_broadcast() and group.extent is not ONE:
            return axis, group
    return None


def _agree(maps: AxisMaps, mine: tuple[IterDomain, LoopGroup], theirs: tuple[IterDomain, LoopGroup] | None) -> bool:
    if mine[0].is_reduction():
        return True
    return theirs is not None and (mine[1] is theirs[1] or maps.almost_exact(mine[1].axis) is maps.almost_exact(theirs[1].axis))


def _there(theirs: tuple[IterDomain, LoopGroup] | None) -> str:
    return "is not" if theirs is None else f"binds {theirs[0]}, another axis, to it"


def _remedy(kind: ParallelType) -> str:
    if kind in BLOCK_TYPES:
        return "bind the same axis in both (parallelize_like), or set_memory_type(MemoryType.shared) on the tensor, so that threads see each other's elements"
    return "bind the same axis in both (parallelize_like), or compute the tensor in another kernel: blocks meet in global memory only"
