"""State shared by the steps that build a kernel: maps of axes, loops, launch sizes, buffers, feeds.

Read first: `BuildState`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..analysis.axes import axis_maps
from ..analysis.masks import needed_elements
from ..dtypes import DataType
from ..errors import UserError
from ..expr import ONE, ZERO, Sym, ceildiv, const, maximum, mul, product
from ..ir.block_ops import BlockFoldOp
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.values import Expr, IterDomain, ReductionOp, Split, TensorView, no_reductions
from ..schedule.peel import Peel, partial_vector
from ..schedule.staying_blocks import StayingBlocks
from .feeds import Feed, plan_feeds, stage_position
from .indexing import Indexer, TransformTable
from .kernel_ir import Buffer
from .loops import LoopPlan, order_exprs
from .phased_partials import partial_elems
from .units import begins_anywhere, lanes_of_row, units_extent

LANE_TYPES = (ParallelType.vectorize, ParallelType.group, ParallelType.tma)


def absorbs_lanes(folded: TensorView) -> bool:
    """True for the result of a reduction that folds a whole vector into each element."""
    return any(axis.parallel in LANE_TYPES and axis.is_reduction() for axis in folded.get_loop_domain())



class SymbolicRegisters(UserError):
    code = "W520"
    what = "{tensor} is kept in registers, and its axis {axis} has the symbolic extent {extent}"
    fix = "split the axis by a constant and inline the tensor, bind the axis to a thread, or set_memory_type(MemoryType.shared)"


class BuildState:
    """What the steps of building share: maps, loops, launch sizes, buffers."""

    def __init__(self, fusion: Fusion, index_type: DataType, static_block: dict[ParallelType, int]) -> None:
        self.fusion, self.index_type = fusion, index_type
        self.maps = axis_maps(fusion)
        self.table = TransformTable(self.maps)
        self.plan = LoopPlan(fusion, self.maps)
        self.exprs = order_exprs(self.plan)
        self.launch = launch_sizes(self.plan, static_block)
        self.divisors = vector_divisors(fusion)
        self.bulk_sizes: set[Sym] = set()
        self.predicates: dict[frozenset[Sym], Sym] = {}  # predicate by its set of parts: independent of their order, so that neighbours share an `if`
        self.buffers: dict[TensorView, Buffer] = {}
        self.feeds: dict[TensorView, Feed] = plan_feeds(self.plan, self.launch)
        self.handed_over = [t for e in self.exprs for t in e.tensor_outputs if is_handed_over(t)]
        self.peel: Peel | None = None
        self.staying: StayingBlocks | None = None
        self.needed = needed_elements(fusion)

    def indexer(self, expr: Expr, fixed: Iterable[IterDomain] = (), *, at_row_end: bool = False) -> Indexer:
        """Return the indexer of the loops around `expr`. fixed, at_row_end: see Indexer."""
        nest, twofold = self.plan.nest(expr), self.plan.twofold(expr)
        return Indexer(self.maps, self.table, nest, self.divisors, self.launch, fixed, at_row_end=at_row_end, twofold=twofold)

    def positions(self, tensor: TensorView) -> list[int]:
        """Loop positions of `tensor` that are dimensions of its buffer (registers or shared memory)."""
        is_local = tensor.memory_type is MemoryType.local
        out = []
        for k, (axis, group) in enumerate(zip(tensor.get_loop_domain(), self.plan.groups[tensor])):
            if axis.is_reduction() or axis.is_broadcast() or group.parallel in GRID_TYPES:
                continue
            if group.parallel in BLOCK_TYPES:  # shared memory is common to the threads in every iteration of the outer loops; registers are private
                kept = not is_local
            else:
                kept = k >= stage_position(tensor)
            if kept:
                out.append(k)
        return out

    def buffer(self, tensor: TensorView) -> Buffer:
        if tensor not in self.buffers:
            self.buffers[tensor] = self._global(tensor) if tensor.memory_type is MemoryType.global_ else self._on_chip(tensor)
        return self.buffers[tensor]

    def _global(self, tensor: TensorView) -> Buffer:
        elems = partial_elems(tensor) if partial_vector(tensor) else product(a.sym for a in no_reductions(tensor.get_logical_domain()))
        return Buffer(f"T{tensor.name}", tensor.dtype(), MemoryType.global_, elems, tensor)

    def _on_chip(self, tensor: TensorView) -> Buffer:
        positions = self.positions(tensor)
        axes = tuple(tensor.get_loop_domain()[k] for k in positions)
        extents = tuple(self.plan.groups[tensor][k].extent for k in positions)
        if begins_anywhere(tensor):
            extents = (*extents[:-1], units_extent(tensor, extents[-1]))
        if tensor.memory_type is MemoryType.local:
            for axis, extent in zip(axes, extents):
                if not extent.is_const:
                    raise SymbolicRegisters(tensor=tensor, axis=axis, extent=extent)
        fill = None
        definition = tensor.definition()
        if isinstance(definition, ReductionOp) and not bound_reductions(self, tensor):
            fill = str(definition.attributes["kind"])
        stages = self.feeds[tensor].all_stages if tensor in self.feeds else 1
        return Buffer(f"T{tensor.name}", tensor.dtype(), tensor.memory_type, mul(product(extents), stages), tensor, axes, extents, fill=fill)


def is_handed_over(tensor: TensorView) -> bool:
    """True for an intermediate tensor in global memory that is complete before its readers start: blocks exchange data through it."""
    is_kept = tensor.is_fusion_output or tensor.is_fusion_input
    return tensor.memory_type is MemoryType.global_ and not is_kept and tensor.compute_at == 0


def bound_reductions(state: BuildState, tensor: TensorView) -> list[ParallelType]:
    """The parallel types of the reduction axes of `tensor` with more than one thread or block."""
    pairs = zip(tensor.get_loop_domain(), state.plan.groups[tensor])
    return [g.parallel for axis, g in pairs if axis.is_reduction() and g.parallel.is_bound and state.launch[g.parallel] is not ONE]


def launch_sizes(plan: LoopPlan, static_block: dict[ParallelType, int]) -> dict[ParallelType, Sym]:
    """Return iterations per bound parallel type: the largest extent bound to it, padded if an axis requires it, or the fixed size."""
    sizes: dict[ParallelType, Sym] = {}
    padded: set[ParallelType] = set()
    for tensor, groups in plan.groups.items():
        for axis, group in zip(tensor.get_loop_domain(), groups):
            if group.parallel.is_bound:
                old = sizes.get(group.parallel)
                sizes[group.parallel] = group.extent if old is None else maximum(old, group.extent)
                if axis.padded_to_warp or group.axis.padded_to_warp:
                    padded.add(group.parallel)
    for kind in padded:
        sizes[kind] = mul(ceildiv(sizes[kind], 32), 32)
    for kind, threads in static_block.items():
        if kind in sizes:
            sizes[kind] = const(threads)
    return sizes


def vector_divisors(fusion: Fusion) -> dict[Sym, int]:
    """Return extent -> number that must divide it: for the sources of splits into vectors, and for axes of whole blocks."""
    out: dict[Sym, int] = {}
    for tensor in fusion.tensors():
        for axis in tensor.get_loop_domain():
            transform = axis.definition()
            if axis.parallel is ParallelType.vectorize and isinstance(transform, Split) and axis.sym.is_const and axis is transform.inner():
                source, lanes = transform.source(), int(axis.sym.value)  # type: ignore[arg-type]
                while _is_inner_part(source, lanes):  # a vector of a tile is also a vector of the axis that was split into tiles
                    source = source.definition().source()  # type: ignore[union-attr]
                if not source.sym.is_const and not transform.is_phased and not transform.overlaps and not lanes_of_row(tensor):
                    out[source.sym] = max(out.get(source.sym, 1), lanes)
    for expr in fusion.tensor_exprs():
        if isinstance(expr, BlockFoldOp):
            extent = expr.outputs[0].get_logical_domain()[-1].sym  # type: ignore[attr-defined]
            if not extent.is_const:
                out[extent] = math.lcm(out.get(extent, 1), expr.block)
    return out


def _is_inner_part(axis: IterDomain, lanes: int) -> bool:
    """True when `axis` is the inner part of a split, and `lanes` divides its extent: a constant, or one that was rounded up to a multiple."""
    transform = axis.definition()
    if not isinstance(transform, Split) or axis is not transform.inner() or transform.is_phased:
        return False
    return axis.sym.is_const and axis.sym.value % lanes == 0 or transform.multiple > 1 and transform.multiple % lanes == 0  # type: ignore[operator]


def per_stage(state: BuildState, tensor: TensorView) -> Sym:
    """Elements of one stage of a tensor in shared memory."""
    return product(state.buffer(tensor).extents)


def stage_offset(state: BuildState, tensor: TensorView) -> Sym:
    """Where the current stage of a circular buffer begins; 0 for other tensors."""
    feed = state.feeds.get(tensor)
    return ZERO if feed is None else mul(feed.stage, per_stage(state, tensor))
