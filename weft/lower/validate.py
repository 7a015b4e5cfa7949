"""Validates that every thread can reach what it reads: a tensor and its readers have the same bindings, or the tensor is in shared or global memory.

Owns that rule, and that each axis of a tensor has an index of its own. Which loops are one is decided in `loops.py`, before.
Read first: `check_parallel`.
"""

from __future__ import annotations

from ..errors import UserError
from ..expr import ONE
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType, ParallelType
from ..ir.values import Expr, IterDomain, TensorView
from ..schedule.inline import consumer_axis
from .state import BuildState


class SameAxis(UserError):
    code = "W512"
    what = "axes {a} and {b} of {tensor} would share one loop: the expressions of this kernel align both with the same axis"
    fix = "compute one operand of these expressions in another kernel, so that it is a separate input here"


class BoundTwice(UserError):
    code = "W513"
    what = "axes {a} and {b} of {tensor} are both bound to {kind}, whose index would stand for both"
    fix = "merge the two axes and bind the result, or bind one of them to another parallel type"


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
"""The parallel types with private copies of a tensor: each thread has its registers, each block its shared memory."""


def check_axes(state: BuildState) -> None:
    """Check that no tensor has one axis twice, as in x + transpose(x), or two axes with one index. Errors: SameAxis, BoundTwice."""
    for tensor, groups in state.plan.groups.items():
        seen: dict[IterDomain, IterDomain] = {}
        for axis in tensor.get_logical_domain():
            if not axis.is_broadcast() and axis.sym is not ONE:
                other = seen.setdefault(state.maps.exact(axis), axis)
                if other is not axis:
                    raise SameAxis(a=other, b=axis, tensor=tensor)
        bound: dict[ParallelType, IterDomain] = {}
        for axis, group in zip(tensor.get_loop_domain(), groups):
            if group.parallel.is_bound and not axis.is_broadcast() and state.launch[group.parallel] is not ONE:
                other = bound.setdefault(group.parallel, axis)
                if other is not axis:
                    raise BoundTwice(a=other, b=axis, tensor=tensor, kind=group.parallel.value)


def check_parallel(state: BuildState) -> None:
    """Check every tensor against its readers.

    Errors: InconsistentParallel for a tensor in registers (in shared memory) that is read by another thread (block) than the one that computed it;
    UnsharedGlobal for one in global memory, which no barrier orders across threads.
    """
    plan, launch = state.plan, state.launch
    for expr in plan.exprs:
        reader: TensorView = expr.outputs[0]  # type: ignore[assignment]
        for tensor in dict.fromkeys(expr.tensor_inputs):
            if tensor.definition() is None or tensor not in plan.groups:
                continue
            for kind in _READERS.get(tensor.memory_type, ()):
                mine = _bound(state, tensor, kind)
                if mine is not None and not _is_read_by_its_maker(state, tensor, mine, expr):
                    axis, there = tensor.get_loop_domain()[mine], _there(state, reader, kind)
                    raise InconsistentParallel(axis=axis, tensor=tensor, kind=kind.value, reader=reader, there=there, remedy=_remedy(kind))
            if tensor.memory_type is MemoryType.global_ and tensor not in state.handed_over:
                for kind in launch:
                    mine = _bound(state, tensor, kind)
                    if launch[kind] is not ONE and (mine is None or not _is_read_by_its_maker(state, tensor, mine, expr)):
                        raise UnsharedGlobal(tensor=tensor, reader=reader, kind=kind.value)


def _bound(state: BuildState, tensor: TensorView, kind: ParallelType) -> int | None:
    """Return the position of the loop of `tensor` that is bound to `kind`, over different elements or for the first index only (an axis of extent 1)."""
    for k, (axis, group) in enumerate(zip(tensor.get_loop_domain(), state.plan.groups[tensor])):
        if group.parallel is kind and not axis.is_broadcast() and state.launch[kind] is not ONE:
            return k
    return None


def _is_read_by_its_maker(state: BuildState, tensor: TensorView, k: int, expr: Expr) -> bool:
    """Return whether `expr` reads, in each thread (block), only elements of `tensor` that the same one computed, judged by loop `k`. A reduction's result is in
    all of its threads.

    Sharing the loop is not enough: a maximum over the columns of a tensor may run in the loop over rows and columns that its reader shares with the tensor, and
    it still reads all columns.
    """
    reader: TensorView = expr.outputs[0]  # type: ignore[assignment]
    if tensor.get_loop_domain()[k].is_reduction():
        return True
    group = state.plan.groups[tensor][k]
    if group.extent is ONE:  # computed by the first thread: no other one may read it
        theirs = _bound(state, reader, group.parallel)
        return theirs is not None and state.plan.groups[reader][theirs].extent is ONE
    axis = consumer_axis(state.maps, tensor, k, reader)
    if axis is None:  # derived by other transforms, such as a split by 1
        return state.indexer(expr).find(group.axis) is group.index
    other = state.plan.groups[reader][reader.get_loop_domain().index(axis)]
    return other is group or other.parallel is group.parallel and state.maps.almost_exact(other.axis) is state.maps.almost_exact(group.axis)


def _there(state: BuildState, reader: TensorView, kind: ParallelType) -> str:
    theirs = _bound(state, reader, kind)
    return "is not" if theirs is None else f"binds {reader.get_loop_domain()[theirs]}, another axis, to it"


def _remedy(kind: ParallelType) -> str:
    if kind in BLOCK_TYPES:
        return "bind the same axis in both (parallelize_like), or set_memory_type(MemoryType.shared) on the tensor, so that threads see each other's elements"
    return "bind the same axis in both (parallelize_like), or compute the tensor in another kernel: blocks meet in global memory only"
