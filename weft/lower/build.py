"""From a scheduled fusion to nested loops over buffers: loop nest, allocations, indices and predicates.

Before: every tensor has its loop domain, bindings, memory type and inlining position; extents are canonical.
After: a Kernel whose ops carry indices and predicates; no barrier yet, predicates not yet grouped, shared memory not placed.
Read first: `build_kernel_state`.
"""

from __future__ import annotations


from ..analysis.masks import EVERYWHERE, mask_bounds, taken_bounds
from ..dtypes import DataType
from ..errors import InternalError
from ..expr import ONE, TRUE, Sym, conjunction, conjuncts, minimum, mul, product, sub, variables
from ..ir.block_ops import GROUPED, BlockFoldOp, BlockSampleOp, GroupFoldOp
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, LoadStoreOpType, MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp, ScanOp
from ..ir.values import Expr, IterDomain, LoadStoreOp, PointwiseOp, ReductionOp, Split, TensorView
from .access import op_fields, op_predicate
from .blocks import check_fold, row_of, sample_guard
from .copies import bulk_copy, check_async
from .indexing import Indexer
from .kernel_ir import Access, Allocate, BlockFold, Buffer, GroupFold, Kernel, Loop, Op, Reduce, RowLoad, Statement, TurnTile, walk
from .lanes import check_lanes
from .scans import build_scan
from .lookups import vector_conditions
from .loops import LoopGroup, is_global_load
from .masks import condition_of, taken_by
from .prepare import prepare_reductions
from .state import LANE_TYPES, BuildState, bound_reductions, launch_sizes
from .units import lanes_of_row
from .validate import check_axes, check_parallel
from .whole_tiles import is_part_of_tile, tile_of_copy, turn_tile


def adopt_bindings(state: BuildState) -> bool:
    """Bind the reduction axes whose shared loops are bound, in reductions that also have serial reduction axes; return whether any was."""
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
        if is_part_of_tile(expr):
            continue
        statement, open_groups = build_op(state, expr)
        nest.place(open_groups, statement, [(state.buffer(t), scope_groups(state, t)) for t in expr.outputs if t.memory_type is not MemoryType.global_])  # type: ignore[attr-defined, arg-type]
    dims = state.launch
    kernel = Kernel(
        name, nest.body, state.buffers,
        grid=tuple(dims.get(p, ONE) for p in GRID_TYPES), block=tuple(dims.get(p, ONE) for p in BLOCK_TYPES),  # type: ignore[arg-type]
        index_type=index_type, facts=state.divisors, bulk_sizes=state.bulk_sizes,
    )  # fmt: skip
    kernel.workspaces += [s.workspace for s in walk(nest.body) if isinstance(s, TurnTile) and s.workspace is not None]
    wanted = launch_sizes(state.plan, {})
    covered = [t for t in state.maps.transforms if isinstance(t, Split) and t.part and not t.source().is_broadcast()]
    kernel.assumptions = list(dict.fromkeys((t.source().sym, mul(t.factor, t.part)) for t in covered))
    overlapping = [t for t in state.maps.transforms if isinstance(t, Split) and t.overlaps and not t.source().is_broadcast()]
    kernel.assumptions += dict.fromkeys((t.factor, t.source().sym) for t in overlapping)
    kernel.block_limits = [(kind.value, wanted[kind], threads) for kind, threads in static_block.items() if kind in wanted]
    return kernel, state


def scope_groups(state: BuildState, tensor: TensorView) -> list[LoopGroup]:
    """The loops inside which the buffer of `tensor` lives, including loops of its readers that it is computed in; shared memory lives for the whole kernel."""
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
        """Add a statement inside the loops `groups`, outermost first, and the allocation of each buffer inside the loops of its scope."""
        depth = 0
        while depth < len(self._open) and depth < len(groups) and self._open[depth][0] is groups[depth]:
            depth += 1
        del self._open[depth:]
        for group in groups[depth:]:
            loop = Loop(group.index, group.extent, [], label=group.axis.plain_text(), is_unswitched=group.is_unswitched)
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
    """Return the op of `expr` with indices and predicate, and its loops (bound axes and vector lanes have none)."""
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
    if (tile := tile_of_copy(expr)) is not None:
        return turn_tile(state, expr, tile), []
    indexer = state.indexer(expr, [groups[k].axis for k in lanes])
    fields = op_fields(state, indexer, expr)
    vector = product(groups[k].extent for k in lanes)
    check_lanes(state, expr, output, lanes, vector)
    if isinstance(expr, LookupOp) and vector is not ONE:
        state.divisors.update(vector_conditions(expr, loop[lanes[-1]], int(vector.value), state.divisors))  # type: ignore[arg-type]
    bound = bound_reductions(state, output) if isinstance(expr, ReductionOp) else []
    op: Op
    if isinstance(expr, ScanOp):
        op = build_scan(state, expr, fields, lanes)
    elif isinstance(expr, BlockFoldOp):
        elems = int(vector.value)  # type: ignore[arg-type]
        kind = GroupFold if isinstance(expr, GroupFoldOp) else BlockFold
        op = kind(**fields, vector_elems=elems, lanes=check_fold(state, indexer, expr, elems))  # type: ignore[arg-type]
    elif bound:
        elems = int(vector.value)  # type: ignore[arg-type]
        if indexer.is_phased:
            elems += take_row_end(state, expr, fields, elems)
        op = Reduce(
            **fields, thread_types=tuple(p for p in BLOCK_TYPES if p in bound), grid_types=tuple(p for p in GRID_TYPES if p in bound),  # type: ignore[arg-type]
            group_elems=elems, in_loop=any(g.extent is not ONE for g in open_groups),
        )  # fmt: skip
    elif lanes_of_row(output):
        op = row_load(state, expr, Op(**fields, vector_elems=int(vector.value)), groups[lanes[-1]])  # type: ignore[arg-type]
    else:
        op = Op(**fields, vector_elems=int(vector.value))  # type: ignore[arg-type]
        if isinstance(expr, BlockSampleOp):
            op.inside = sample_guard(state, indexer, expr, op.vector_elems)
            if expr.layout == GROUPED:
                op.element = row_of(indexer, output)
        if indexer.repeats and op.vector_elems > 1 and is_global_load(expr):
            op.is_shifted = True
        if indexer.is_phased:
            op.at_row_end = Op(**op_fields(state, state.indexer(expr, at_row_end=True), expr))  # type: ignore[arg-type]
        if isinstance(expr, LoadStoreOp) and expr.kind is LoadStoreOpType.cp_async:
            check_async(expr, output, op.vector_elems)
        mask(state, op, indexer, loop[lanes[-1]] if lanes else None)
    return op, open_groups


def take_row_end(state: BuildState, expr: Expr, fields: dict[str, object], elems: int) -> int:
    """Let a reduction across threads, each with one vector of a phased row, also fold the elements at the ends of rows; return how many it adds.

    If a thread has no such element, its partial result keeps its initial value. Errors: InternalError if a thread has several vectors.
    """
    ends = op_fields(state, state.indexer(expr, at_row_end=True), expr)
    places = [place.buffer.elems for place in (*ends["outputs"], *ends["operands"]) if isinstance(place, Access)]  # type: ignore[misc]
    if any(not place.is_const or place.value != elems for place in places):
        raise InternalError(f"{expr} folds vectors of {elems} elements of a phased row, and threads have {places} elements of it")
    kept = set(conjuncts(ends["predicate"]))  # type: ignore[arg-type]
    fields["predicate"] = conjunction(a for a in conjuncts(fields["predicate"]) if a in kept)  # type: ignore[arg-type]
    return 1


def row_load(state: BuildState, expr: Expr, op: Op, lane: LoopGroup) -> RowLoad:
    """Return the load of vectors that all lanes execute together, with the number of elements left in the row."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    kept, left = [], lane.extent
    for atom in conjuncts(op_predicate(state, state.indexer(expr), expr, output)):
        if lane.index not in variables(atom):
            kept.append(atom)
        elif atom.op == "lt" and lane.index not in variables(first := sub(atom.args[0], lane.index)):
            left = sub(atom.args[1], first) if left is lane.extent else minimum(left, sub(atom.args[1], first))
        else:
            raise InternalError(f"{expr} loads vectors of rows that begin anywhere, and {atom} is no end of a row")
    return RowLoad(expr, op.outputs, op.operands, conjunction(kept), op.vector_elems, left=left, row_lanes=lanes_of_row(output))


def mask(state: BuildState, op: Op, indexer: Indexer, lane: IterDomain | None) -> None:
    """Let a load skip what a mask of positions discards, and record in a `where` when it takes nothing of its second operand."""
    expr = op.expr
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    if isinstance(expr, PointwiseOp) and expr.op_name == "where":
        op.mask = condition_of(mask_bounds(expr), indexer, output, None, 1, state.divisors)
        op.taken = _taken(state, expr, output)
    elif isinstance(expr, LoadStoreOp) and is_global_load(expr) and output.memory_type is MemoryType.local and not output.dtype().is_narrow_float:
        condition = condition_of(state.needed.get(output, EVERYWHERE), indexer, output, lane, op.vector_elems, state.divisors)
        if condition is not TRUE:
            op.predicate = conjunction([op.predicate, condition])
            op.outputs[0].buffer.fill = "sum"  # elements that are not loaded are zero


def _taken(state: BuildState, expr: Expr, output: TensorView) -> tuple[Sym, ...]:
    """Return the conditions that some, and that all, elements of the innermost loop over registers take a `where`'s second operand; () if not known."""
    bounds = taken_bounds(expr)
    if bounds is None:
        return ()
    axis, group = output.get_loop_domain()[-1], state.plan.groups[output][-1]
    is_lane = not group.parallel.is_bound and group.extent.is_const and group.extent is not ONE
    if not is_lane:
        return taken_by(bounds, state.indexer(expr), output, None, 1, state.divisors)
    return taken_by(bounds, state.indexer(expr, [group.axis]), output, axis, int(group.extent.value), state.divisors)  # type: ignore[arg-type]


__all__ = ["build_kernel_state"]
