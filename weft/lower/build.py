"""From a scheduled fusion to nested loops over buffers: loop nest, allocations, indices and predicates.

Before: every tensor has its loop domain, bindings, memory type and inlining position; extents are canonical.
After: a Kernel whose ops carry indices and predicates; no barrier yet, predicates not yet grouped, shared memory not placed.
Read first: `build_kernel_state`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..analysis.axes import AxisMaps
from ..dtypes import DataType
from ..errors import InternalError, UserError
from ..expr import ONE, TRUE, ZERO, Sym, ceildiv, conjunction, const, equal, floordiv, less, maximum, mod, mul, product, recombine, var
from ..ir.block_ops import BlockFoldOp, BlockSampleOp, sample_of
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp, ScanOp
from ..ir.values import Expr, FullOp, IotaOp, IterDomain, LoadStoreOp, Merge, RandomOp, ReductionOp, Scalar, Split, TensorView, no_reductions
from ..ops.monoids import MONOIDS
from ..schedule.full_rows import FullRows
from ..schedule.inline import consumer_axis
from ..schedule.phased_rows import PhasedRows
from ..schedule.staying_blocks import StayingBlocks
from .blocks import check_fold, sample_guard, sample_index
from .copies import Feed, begins_anywhere, bulk_copy, check_async, plan_feeds, skipped_elems, stage_offset, stage_position, units_extent
from .indexing import Indexer, TransformTable
from .kernel_ir import Access, Allocate, BlockFold, Buffer, Kernel, Loop, Op, Reduce, Statement
from .lanes import check_lanes
from .scans import build_scan
from .lookups import inside_source, lookup_index, vector_conditions, with_known_divisors
from .loops import LoopGroup, LoopPlan, is_global_load, order_exprs
from .prepare import prepare_reductions
from .tiles import swizzled
from .validate import check_axes, check_parallel

LANE_TYPES = (ParallelType.vectorize, ParallelType.group, ParallelType.tma)


class SymbolicRegisters(UserError):
    code = "W520"
    what = "{tensor} is kept in registers, and its axis {axis} has the symbolic extent {extent}"
    fix = "split the axis by a constant and inline the tensor, bind the axis to a thread, or set_memory_type(MemoryType.shared)"


class BuildState:
    """What the steps of building share: maps, loops, launch sizes, buffers."""

    def __init__(self, fusion: Fusion, index_type: DataType, static_block: dict[ParallelType, int]) -> None:
        self.fusion, self.index_type = fusion, index_type
        self.maps = AxisMaps(fusion)
        self.table = TransformTable(self.maps)
        self.plan = LoopPlan(fusion, self.maps)
        self.exprs = order_exprs(self.plan)
        self.launch = launch_sizes(self.plan, static_block)
        self.divisors = vector_divisors(fusion)
        self.bulk_sizes: set[Sym] = set()
        self.predicates: dict[frozenset[Sym], Sym] = {}  # a predicate by its parts: the same whatever their order, so that neighbours share an `if`
        self.buffers: dict[TensorView, Buffer] = {}
        self.feeds: dict[TensorView, Feed] = plan_feeds(self)
        self.handed_over = [t for e in self.exprs for t in e.tensor_outputs if is_handed_over(t)]
        self.full_rows: FullRows | None = None
        self.phased: PhasedRows | None = None
        self.staying: StayingBlocks | None = None

    def indexer(self, expr: Expr, fixed: Iterable[IterDomain] = (), *, at_row_end: bool = False) -> Indexer:
        """Return the indices around `expr`. fixed, at_row_end: see Indexer."""
        nest, twofold = self.plan.nest(expr), self.plan.twofold(expr)
        return Indexer(self.maps, self.table, nest, self.divisors, self.launch, fixed, at_row_end=at_row_end, twofold=twofold)

    def positions(self, tensor: TensorView) -> list[int]:
        """Loop positions of `tensor` that its buffer (registers or shared memory) has storage for."""
        is_local = tensor.memory_type is MemoryType.local
        out = []
        for k, (axis, group) in enumerate(zip(tensor.get_loop_domain(), self.plan.groups[tensor])):
            if axis.is_reduction() or axis.is_broadcast() or group.parallel in GRID_TYPES:
                continue
            if group.parallel in BLOCK_TYPES:  # threads share shared memory in every iteration of the loops around, and have registers of their own
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
        elems = product(a.sym for a in no_reductions(tensor.get_logical_domain()))
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
            fill = MONOIDS[definition.attributes["kind"]].identity(tensor.dtype())
        stages = self.feeds[tensor].all_stages if tensor in self.feeds else 1
        return Buffer(f"T{tensor.name}", tensor.dtype(), tensor.memory_type, mul(product(extents), stages), tensor, axes, extents, fill=fill)


def is_handed_over(tensor: TensorView) -> bool:
    """True for a tensor of this kernel in global memory that is complete before its readers start: blocks hand it to each other."""
    is_kept = tensor.is_fusion_output or tensor.is_fusion_input
    return tensor.memory_type is MemoryType.global_ and not is_kept and tensor.compute_at == 0


def bound_reductions(state: BuildState, tensor: TensorView) -> list[ParallelType]:
    """The parallel types that run reduction axes of `tensor`, in more than one thread or block."""
    pairs = zip(tensor.get_loop_domain(), state.plan.groups[tensor])
    return [g.parallel for axis, g in pairs if axis.is_reduction() and g.parallel.is_bound and state.launch[g.parallel] is not ONE]


def adopt_bindings(state: BuildState) -> bool:
    """Bind the axes of reductions that are bound by the loops they share, where serial reduction axes stand beside; return whether there are such."""
    found = False
    for expr in state.plan.exprs:
        output: TensorView = expr.outputs[0]  # type: ignore[assignment]
        pairs = list(zip(output.get_loop_domain(), state.plan.groups[output]))
        reduced = [(axis, g) for axis, g in pairs if axis.is_reduction() and g.extent is not ONE]
        if isinstance(expr, ReductionOp) and bound_reductions(state, output) and any(not g.parallel.is_bound for _, g in reduced):
            found = True
            for axis, group in pairs:
                if group.parallel.is_bound:
                    axis.parallelize(group.parallel)
    return found


def launch_sizes(plan: LoopPlan, static_block: dict[ParallelType, int]) -> dict[ParallelType, Sym]:
    """Return iterations per bound parallel type: the largest extent bound to it, padded where an axis asks for it, or what is fixed."""
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
    """Return extent -> number that must divide it: the sources of the splits that make vectors, and axes in whole blocks."""
    out: dict[Sym, int] = {}
    for tensor in fusion.tensors():
        for axis in tensor.get_loop_domain():
            transform = axis.definition()
            if axis.parallel is ParallelType.vectorize and isinstance(transform, Split) and axis.sym.is_const and axis is transform.inner():
                source, lanes = transform.source(), int(axis.sym.value)  # type: ignore[arg-type]
                while _is_inner_part(source, lanes):  # a vector of a tile is one of what the tile is a part of
                    source = source.definition().source()  # type: ignore[union-attr]
                if not source.sym.is_const and not transform.is_phased and not transform.overlaps:
                    out[source.sym] = max(out.get(source.sym, 1), lanes)
    for expr in fusion.tensor_exprs():
        if isinstance(expr, BlockFoldOp):
            extent = expr.outputs[0].get_logical_domain()[-1].sym  # type: ignore[attr-defined]
            if not extent.is_const:
                out[extent] = math.lcm(out.get(extent, 1), expr.block)
    return out


def _is_inner_part(axis: IterDomain, lanes: int) -> bool:
    """True when `axis` has a constant extent that `lanes` divides, and is the inner part of a split."""
    transform = axis.definition()
    is_whole = axis.sym.is_const and axis.sym.value % lanes == 0  # type: ignore[operator]
    return is_whole and isinstance(transform, Split) and axis is transform.inner() and not transform.is_phased


def build_kernel_state(fusion: Fusion, name: str, index_type: DataType, static_block: dict[ParallelType, int]) -> tuple[Kernel, BuildState]:
    """Return the kernel of a scheduled fusion, before synchronization, and what the passes need to know of the schedule."""
    prepare_reductions(fusion)
    state = BuildState(fusion, index_type, static_block)
    if adopt_bindings(state):
        prepare_reductions(fusion)
        state = BuildState(fusion, index_type, static_block)
    check_axes(state)
    check_parallel(state)
    nest = NestBuilder()
    for expr in state.exprs:
        statement, open_groups = build_op(state, expr)
        nest.place(open_groups, statement, [(state.buffer(t), scope_groups(state, t)) for t in expr.outputs if t.memory_type is not MemoryType.global_])  # type: ignore[attr-defined, arg-type]
    dims = state.launch
    kernel = Kernel(
        name, nest.body, state.buffers,
        grid=tuple(dims.get(p, ONE) for p in GRID_TYPES), block=tuple(dims.get(p, ONE) for p in BLOCK_TYPES),  # type: ignore[arg-type]
        index_type=index_type, facts=state.divisors, bulk_sizes=state.bulk_sizes,
    )  # fmt: skip
    wanted = launch_sizes(state.plan, {})
    covered = [t for t in state.maps.transforms if isinstance(t, Split) and t.part and not t.source().is_broadcast()]
    kernel.assumptions = list(dict.fromkeys((t.source().sym, mul(t.factor, t.part)) for t in covered))
    kernel.block_limits = [(kind.value, wanted[kind], threads) for kind, threads in static_block.items() if kind in wanted]
    return kernel, state


def scope_groups(state: BuildState, tensor: TensorView) -> list[LoopGroup]:
    """The loops inside which the buffer of `tensor` lives, those of its readers that it is drawn into too; shared memory lives for the whole kernel."""
    if tensor.memory_type is MemoryType.shared or not tensor.compute_at:
        return []
    inside = {id(g) for g in state.plan.groups[tensor][tensor.compute_at :]}
    return [g for g in state.plan.nest(tensor.definition()) if id(g) not in inside]  # type: ignore[arg-type]


class NestBuilder:
    """Places statements into nested loops, keeping loops open while consecutive statements share them."""

    def __init__(self) -> None:
        self.body: list[Statement] = []
        self._open: list[tuple[LoopGroup, Loop]] = []

    def place(self, groups: list[LoopGroup], statement: Statement, allocations: list[tuple[Buffer, list[LoopGroup]]]) -> None:
        """Put a statement into the loops `groups`, outermost first, and each buffer into the loops of its scope."""
        depth = 0
        while depth < len(self._open) and depth < len(groups) and self._open[depth][0] is groups[depth]:
            depth += 1
        del self._open[depth:]
        for group in groups[depth:]:
            loop = Loop(group.index, group.extent, [], label=str(group.axis), is_unswitched=group.is_unswitched)
            self._innermost().append(loop)
            self._open.append((group, loop))
        for buffer, scope in allocations:
            self._allocate(buffer, scope)
        self._innermost().append(statement)

    def _innermost(self) -> list[Statement]:
        return self._open[-1][1].body if self._open else self.body

    def _allocate(self, buffer: Buffer, scope: list[LoopGroup]) -> None:
        inside = {id(g) for g in scope}
        depth = max((n + 1 for n, (g, _) in enumerate(self._open) if id(g) in inside), default=0)
        body = self._open[depth - 1][1].body if depth else self.body
        place = len(body) - 1 if depth < len(self._open) else len(body)
        body.insert(place, Allocate(buffer))


def build_op(state: BuildState, expr: Expr) -> tuple[Statement, list[LoopGroup]]:
    """Return the op of `expr` with indices and predicate, and the loops to open around it (bound axes and lanes are none)."""
    plan = state.plan
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    groups = plan.groups[output]
    loop = output.get_loop_domain()
    lanes = [k for k, axis in enumerate(loop) if axis.parallel in LANE_TYPES]
    lane_ids = {id(groups[k]) for k in lanes}
    nest = plan.nest(expr)
    open_groups = [g for g in nest if not g.parallel.is_bound and id(g) not in lane_ids and (g.extent is not ONE or g.is_unswitched)]
    if isinstance(expr, LoadStoreOp) and expr.kind is LoadStoreOpType.tma:
        return bulk_copy(state, expr, lanes), open_groups
    indexer = state.indexer(expr, [groups[k].axis for k in lanes])
    fields = op_fields(state, indexer, expr)
    vector = product(groups[k].extent for k in lanes)
    check_lanes(expr, output, lanes, vector, state.maps, state.table)
    if isinstance(expr, LookupOp) and vector is not ONE:
        state.divisors.update(vector_conditions(expr, loop[lanes[-1]], int(vector.value), state.divisors))  # type: ignore[arg-type]
    bound = bound_reductions(state, output) if isinstance(expr, ReductionOp) else []
    op: Op
    if isinstance(expr, ScanOp):
        op = build_scan(state, expr, fields, lanes)
    elif isinstance(expr, BlockFoldOp):
        elems = int(vector.value)  # type: ignore[arg-type]
        op = BlockFold(**fields, vector_elems=elems, lanes=check_fold(state, indexer, expr, elems))  # type: ignore[arg-type]
    elif bound:
        op = Reduce(
            **fields, thread_types=tuple(p for p in BLOCK_TYPES if p in bound), grid_types=tuple(p for p in GRID_TYPES if p in bound),  # type: ignore[arg-type]
            group_elems=int(vector.value), in_loop=any(g.extent is not ONE for g in open_groups),  # type: ignore[arg-type]
        )  # fmt: skip
    else:
        op = Op(**fields, vector_elems=int(vector.value))  # type: ignore[arg-type]
        if isinstance(expr, BlockSampleOp):
            op.inside = sample_guard(state, indexer, expr, op.vector_elems)
        if indexer.repeats and op.vector_elems > 1 and is_global_load(expr):
            op.is_shifted = True
        if indexer.is_phased:
            op.at_row_end = Op(**op_fields(state, state.indexer(expr, at_row_end=True), expr))  # type: ignore[arg-type]
        if isinstance(expr, LoadStoreOp) and expr.kind is LoadStoreOpType.cp_async:
            check_async(expr, output, op.vector_elems)
    return op, open_groups


def op_fields(state: BuildState, indexer: Indexer, expr: Expr) -> dict[str, object]:
    """Return where an op of `expr` reads and writes, and when it runs."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    return dict(
        expr=expr,
        outputs=[access(state, indexer, t, expr, writing=True) for t in expr.outputs],  # type: ignore[arg-type]
        operands=[operand(state, indexer, expr, n) for n in range(len(expr.inputs))],
        predicate=op_predicate(state, indexer, expr, output),
        element=element_of(state, indexer, expr, output),
        inside=inside_source(indexer, expr) if isinstance(expr, LookupOp) else TRUE,
    )


def operand(state: BuildState, indexer: Indexer, expr: Expr, number: int) -> Access | Sym:
    """Return where `expr` reads its input `number`, or the scalar that it is."""
    value = expr.inputs[number]
    if not isinstance(value, TensorView):
        return value.sym  # type: ignore[attr-defined]
    if isinstance(expr, LookupOp) and number == 0:
        return Access(state.buffer(value), lookup_index(indexer, expr))
    return access(state, indexer, value, expr, writing=False)


def access(state: BuildState, indexer: Indexer, tensor: TensorView, expr: Expr, *, writing: bool) -> Access | Sym:
    """Return where `expr` writes (or reads) `tensor`."""
    if tensor.is_cpu_scalar:
        return var(f"T{tensor.name}.value", tensor.dtype())
    buffer = state.buffer(tensor)
    if buffer.memory is MemoryType.global_:
        sample = sample_of(tensor)
        if sample is not None:
            return Access(buffer, sample_index(indexer, tensor, sample))
        parts: Sym = ZERO
        for axis, stride in tensor.strides().items():
            parts = parts + mul(indexer.axis_index(axis, tensor), stride)
        return Access(buffer, recombine(parts))
    if indexer.at_row_end:
        return row_end_access(buffer)
    index: Sym = ZERO
    for k, extent in zip(state.positions(tensor), buffer.extents):
        index = mul(index, extent) + on_chip_index(state, indexer, tensor, k, expr, writing)
    index = index + stage_offset(state, tensor)
    if begins_anywhere(tensor):
        index = index + skipped_elems(state, indexer, tensor)
    return Access(buffer, swizzled(tensor, recombine(index) if tensor.shared_swizzle else index))


def row_end_access(buffer: Buffer) -> Access:
    """Return where a thread keeps its element at the ends of a row: one place behind those of its vectors. Errors: InternalError for shared memory."""
    if buffer.memory is not MemoryType.local:
        raise InternalError(f"{buffer.name} is in {buffer.memory.value} memory, which has no place for the ends of rows")
    return Access(buffer, ZERO if buffer.elems is ONE else buffer.elems)


def on_chip_index(state: BuildState, indexer: Indexer, tensor: TensorView, k: int, expr: Expr, writing: bool) -> Sym:
    """Return the index along loop axis `k` of a tensor in registers or shared memory, as `expr` writes or reads it."""
    consumer: TensorView = expr.outputs[0]  # type: ignore[assignment]
    if writing:
        return lane_or_index(state, tensor, k)
    group = state.plan.groups[tensor][k]
    if group.extent is ONE:
        return ZERO
    axis = consumer_axis(state.maps, tensor, k, consumer)
    if axis is not None:
        position = consumer.get_loop_domain().index(axis)
        other = state.plan.groups[consumer][position]
        if other is group or state.maps.almost_exact(other.axis) is state.maps.almost_exact(group.axis):
            return lane_or_index(state, consumer, position)
    if tensor.memory_type is MemoryType.shared:  # threads may have made each element more than once; a reader that lacks their axes takes the first
        covered = frozenset().union(*(state.plan.coverage(g.axis) for g in indexer.groups))
        absent = _missing(state, group, covered)
        indexer = indexer.at_first(absent) if absent else indexer
    return indexer.axis_index(group.axis, tensor)  # a loop that also runs over what the tensor lacks


def lane_or_index(state: BuildState, tensor: TensorView, k: int) -> Sym:
    """Return the index of the loop of axis `k`; 0 for a lane of a vector and for a loop of one iteration."""
    group = state.plan.groups[tensor][k]
    if tensor.get_loop_domain()[k].parallel in LANE_TYPES or (group.extent.is_const and group.extent.value == 1):
        return ZERO
    return group.index


def op_predicate(state: BuildState, indexer: Indexer, expr: Expr, output: TensorView) -> Sym:
    """Return when `expr` may run: inside the extents of its axes, and by one thread only where others would repeat a write."""
    axes = [a for a in output.get_maybe_root_domain() if not a.is_broadcast()]
    for axis in axes:
        indexer.axis_index(axis, output)
    parts = [indexer.guard(axes), *hidden_bounds(state, output)]
    if isinstance(expr, ReductionOp):
        parts += repeated_terms(state, indexer, output)
    if output.memory_type is not MemoryType.local:
        parts += redundant_writers(state, indexer, output)
        parts += indexer.repeats.values()
    found = conjunction(parts)
    same = frozenset(found.args) if found.op == "and" else frozenset([found])
    return state.predicates.setdefault(same, found)


def hidden_bounds(state: BuildState, output: TensorView) -> list[Sym]:
    """Conditions of axes of extent 1 that the indices of other axes pass by: what a split by 1 leaves, bound to threads or split again."""
    groups = {g.axis: g for g in state.plan.groups[output] if not g.axis.is_broadcast()}
    pairs = zip(output.get_loop_domain(), state.plan.groups[output])
    groups |= {axis: g for axis, g in pairs if not axis.is_broadcast() and state.maps.are_exact(axis, g.axis)}
    reader_of: dict[IterDomain, Split | Merge] = {}
    left_over: list[IterDomain] = []
    stack = list(groups)
    while stack:
        transform = stack.pop().definition()
        if not isinstance(transform, (Split, Merge)):
            continue
        if isinstance(transform, Split) and transform.factor is ONE:
            left_over.append(transform.inner() if transform.inner_split else transform.outer())
        for source in transform.inputs:
            if source not in reader_of:
                reader_of[source] = transform  # type: ignore[index]
                stack.append(source)  # type: ignore[arg-type]

    def index_of(axis: IterDomain) -> Sym | None:
        """The index of `axis` by its own transforms; None when these loops do not run over it."""
        if axis in groups:
            group = groups[axis]
            return var(group.parallel.value, extent=state.launch[group.parallel]) if group.parallel.is_bound else group.index
        transform = reader_of.get(axis)
        if isinstance(transform, Split):
            outer, inner = index_of(transform.outer()), index_of(transform.inner())
            return None if outer is None or inner is None else mul(outer, transform.inner().sym) + inner
        merged = None if transform is None else index_of(transform.out())
        if merged is None:
            return None
        return floordiv(merged, transform.inner().sym) if axis is transform.outer() else mod(merged, transform.inner().sym)  # type: ignore[union-attr]

    indices = [index_of(axis) for axis in dict.fromkeys(left_over)]
    return [less(index, ONE) for index in indices if index is not None]


def repeated_terms(state: BuildState, indexer: Indexer, output: TensorView) -> list[Sym]:
    """Conditions that count each term of a reduction once: where its loops also run over axes that it lacks."""
    covered = frozenset().union(*(state.plan.coverage(axis) for axis in output.get_loop_domain()))
    out = []
    for axis, group in zip(output.get_loop_domain(), state.plan.groups[output]):
        if axis.is_reduction() and not group.axis.is_broadcast():
            out += _first_of_missing(state, indexer, group, covered, output)
            out += _first_of_broadcast(indexer, group.axis)
    return out


def _twice(indexer: Indexer, group: LoopGroup) -> frozenset[IterDomain]:
    """What a loop runs over that the tensor lacks there, though it has another loop over it."""
    return indexer.twofold.twice if indexer.twofold is not None and group in indexer.twofold.loops else frozenset()


def _missing(state: BuildState, group: LoopGroup, covered: frozenset[IterDomain]) -> list[IterDomain]:
    """What a loop runs over beyond `covered`, in an order that is the same in every process."""
    return sorted(state.plan.coverage(group.axis) - covered, key=lambda axis: axis.name)


def redundant_writers(state: BuildState, indexer: Indexer, output: TensorView) -> list[Sym]:
    """Conditions that leave one writer of each element: along parallel types and loops that the tensor does not vary over."""
    kinds = BLOCK_TYPES if output.memory_type is MemoryType.shared else BLOCK_TYPES + GRID_TYPES
    own = [(axis, g) for axis, g in zip(output.get_loop_domain(), state.plan.groups[output]) if not axis.is_reduction()]
    used = {g.parallel for axis, g in own if not axis.is_broadcast()}
    out = [equal(var(p.value, extent=state.launch[p]), 0) for p in kinds if p in state.launch and p not in used and state.launch[p] is not ONE]
    if output.memory_type is MemoryType.shared:  # has a place for every index of the loops that it varies over, and is written anew in those around
        return out
    covered = frozenset().union(*(state.plan.coverage(axis) for axis, _ in own)) if own else frozenset()
    for axis, group in own:
        if axis.is_broadcast():
            if not group.parallel.is_bound and not group.axis.is_broadcast():
                out.append(equal(group.index, 0))
            continue
        out += _first_of_missing(state, indexer, group, covered, output)
        out += _first_of_broadcast(indexer, group.axis)
    return out


def _first_of_missing(state: BuildState, indexer: Indexer, group: LoopGroup, covered: frozenset[IterDomain], tensor: TensorView) -> list[Sym]:
    """Conditions that leave one index of what a loop runs over beyond `covered`: merged with an axis that the tensor lacks, or with a part of one."""
    out: list[Sym] = []
    for missing in _missing(state, group, covered - _twice(indexer, group)):
        if indexer.wide.find(missing) is not None:
            out.append(equal(indexer.wide.axis_index(missing, tensor), 0))
            continue
        stack = [group.axis]
        while stack:
            axis = stack.pop()
            if state.plan.coverage(axis) == {missing}:
                out.append(equal(indexer.wide.axis_index(axis, tensor), 0))
            elif axis.definition() is not None:
                stack += axis.definition().inputs  # type: ignore[union-attr, arg-type]
    return out


def _first_of_broadcast(indexer: Indexer, axis: IterDomain) -> list[Sym]:
    """Conditions that leave one index of the parts of broadcast axes that are merged into `axis`: the others repeat it."""
    out: list[Sym] = []
    stack = [axis]
    while stack:
        transform = stack.pop().definition()
        stack += () if transform is None else transform.inputs  # type: ignore[arg-type]
        value = indexer.find(transform.out()) if isinstance(transform, Merge) and not transform.out().is_broadcast() else None
        if isinstance(transform, Merge) and value is not None:
            for source, part in ((transform.outer(), floordiv), (transform.inner(), mod)):
                if source.is_broadcast() and source.sym is not ONE:
                    out.append(equal(part(value, transform.inner().sym), 0))
    return out


def element_of(state: BuildState, indexer: Indexer, expr: Expr, output: TensorView) -> Sym:
    """The position that random numbers and iota are counted by."""
    if isinstance(expr, IotaOp):
        return with_known_divisors(linear_element(indexer, output), state.divisors)
    return linear_element(indexer, output) if isinstance(expr, RandomOp) else ZERO


def linear_element(indexer: Indexer, output: TensorView) -> Sym:
    """The row-major position of the element in the logical domain."""
    index: Sym = ZERO
    for axis in no_reductions(output.get_logical_domain()):
        index = mul(index, axis.logical_extent) + indexer.axis_index(axis, output)
    return recombine(index)


__all__ = ["BuildState", "FullOp", "IterDomain", "Scalar", "TRUE", "build_kernel_state", "launch_sizes"]
