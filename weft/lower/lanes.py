"""Which axes may be vectorized (lanes): those that one instruction can move, or that a reduction across threads can reduce together.

Owns the checks of a vectorized axis before its op is made. Whether extents and addresses are multiples of a vector is asked on the host, per launch.
Read first: `check_lanes`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..analysis.axes import AxisMaps, is_row_major
from ..analysis.contiguity import rolled_axes
from ..errors import UserError
from ..expr import ONE, ZERO, Sym, mul
from ..ir.block_ops import BlockFoldOp, BlockSampleOp
from ..ir.enums import MemoryType
from ..ir.graph_ops import LookupOp, ScanOp
from ..ir.values import Expr, IterDomain, LoadStoreOp, Merge, PointwiseOp, RandomOp, ReductionOp, Split, TensorView
from .indexing import TransformTable
from .kernel_ir import Buffer
from .lookups import source_strides
from .state import BuildState


class NotVectorizable(UserError):
    code = "W521"
    what = "axis {axis} of {tensor} is vectorized, but {reason}"
    fix = "vectorize only the innermost axis of a copy, a cast or a random op, with a constant extent, contiguous in memory"


def check_lanes(state: BuildState, expr: Expr, output: TensorView, lanes: list[int], vector: Sym) -> None:
    """Check the vectorized axes of an op. Errors: NotVectorizable."""
    if not lanes:
        return
    maps, table = state.maps, state.table
    axis = output.get_loop_domain()[lanes[-1]]
    if not vector.is_const:
        raise NotVectorizable(axis=axis, tensor=output, reason=f"its extent {vector} is symbolic")
    grouped = isinstance(expr, (ReductionOp, ScanOp))
    cast = isinstance(expr, PointwiseOp) and expr.op_name == "cast"
    if not (grouped or cast or isinstance(expr, (BlockFoldOp, LoadStoreOp, LookupOp, RandomOp)) or vector is ONE):
        raise NotVectorizable(axis=axis, tensor=output, reason=f"{expr.op_name} computes one element at a time")
    trailing = [a for a in output.get_loop_domain()[lanes[-1] + 1 :] if not a.is_broadcast() and not (a.sym.is_const and a.sym.value == 1)]
    if trailing and not all(a.parallel.is_bound for a in trailing):
        raise NotVectorizable(axis=axis, tensor=output, reason=f"axis {trailing[0]} stands right of it")
    if isinstance(expr, RandomOp) and vector is not ONE and not is_row_major(output, axis):
        raise NotVectorizable(axis=axis, tensor=output, reason="random numbers are counted in row-major order, which it does not follow")
    if vector is ONE or isinstance(expr, BlockSampleOp):
        return
    moved = (expr.source,) if isinstance(expr, LookupOp) else expr.tensor_inputs
    for tensor in (*moved, output):
        if tensor.memory_type is not MemoryType.global_:
            strides = buffer_strides(state.buffer(tensor))
        else:
            strides = source_strides(expr) if isinstance(expr, LookupOp) and tensor is expr.source else tensor.strides()
            strides.update((a, ZERO) for a in rolled_axes(tensor))
        stride = lane_stride(axis, strides, maps, table)
        if stride is not None and stride is not ONE:
            raise NotVectorizable(axis=axis, tensor=output, reason=f"neighbouring elements along it lie {stride} elements apart in {tensor}")


def buffer_strides(buffer: Buffer) -> dict[IterDomain, Sym]:
    """Return the distance in elements between neighbours along each axis of a buffer in registers or shared memory."""
    strides, stride = {}, ONE
    for axis, extent in zip(reversed(buffer.axes), reversed(buffer.extents)):
        strides[axis], stride = stride, mul(stride, extent)
    return strides


def lane_stride(lane: IterDomain, strides_of: Mapping[IterDomain, Sym], maps: AxisMaps, table: TransformTable) -> Sym | None:
    """Return the distance in elements between neighbouring lanes in a tensor whose axes have `strides_of`; None if its axes are not found. Follows the lane
    axis through innermost splits and merges up to an axis of the tensor.
    """
    strides = {maps.almost_exact(axis): stride for axis, stride in strides_of.items() if not axis.is_broadcast()}
    waiting, seen = [maps.almost_exact(lane)], set()
    while waiting:
        key = waiting.pop()
        if key in strides:
            return strides[key]
        if key in seen:
            continue
        seen.add(key)
        for transform, role in table.touching(key):
            if isinstance(transform, Split) and role == "inner":
                waiting.append(maps.almost_exact(transform.source()))
            elif isinstance(transform, Merge) and role == "out":
                inner = transform.inner()
                waiting.append(maps.almost_exact(transform.outer() if inner.is_broadcast() else inner))
    return None


__all__ = ["NotVectorizable", "check_lanes"]
