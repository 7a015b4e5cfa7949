"""Accesses of an op: which element of which buffer it reads and writes, under which predicate.

Read first: `op_fields`, `access`, `op_predicate`.
"""

from __future__ import annotations

from ..errors import InternalError
from ..expr import ONE, TRUE, ZERO, Sym, conjunction, equal, floordiv, less, mod, mul, recombine, var
from ..ir.block_ops import GroupResultOp, sample_of
from ..ir.enums import BLOCK_TYPES, GRID_TYPES, MemoryType
from ..ir.graph_ops import BagOp, LookupOp, ScatterStoreOp
from ..ir.values import Expr, FullOp, IotaOp, IterDomain, Merge, RandomOp, ReductionOp, Scalar, Split, TensorView
from ..schedule.inline import consumer_axis
from ..schedule.peel import partial_vector
from .blocks import sample_index
from .indexing import Indexer, linear_element, place_along
from .kernel_ir import Access
from .phased_partials import partial_index
from .lookups import inside_source, listed_index, lookup_index, scattered_index, with_known_divisors
from .loops import LoopGroup
from .state import LANE_TYPES, BuildState, stage_offset
from .tiles import swizzled
from .units import begins_anywhere, skipped_elems


def op_fields(state: BuildState, indexer: Indexer, expr: Expr) -> dict[str, object]:
    """Return the accesses of an op of `expr` to its operands and outputs, and its predicate."""
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
    """Return the access by which `expr` reads its input `number`, or the scalar's expression."""
    value = expr.inputs[number]
    if not isinstance(value, TensorView):
        assert isinstance(value, Scalar)
        return value.sym
    if number in expr.whole_places:
        if isinstance(expr, BagOp) and number:
            return Access(state.buffer(value), listed_index(expr, value))
        return Access(state.buffer(value), with_known_divisors(lookup_index(indexer, expr), state.divisors) if isinstance(expr, LookupOp) else ZERO)
    return access(state, indexer, value, expr, writing=False)


def access(state: BuildState, indexer: Indexer, tensor: TensorView, expr: Expr, *, writing: bool) -> Access | Sym:
    """Return the access by which `expr` writes (or reads) `tensor`."""
    if tensor.is_cpu_scalar:
        return var(f"T{tensor.name}.value", tensor.dtype())
    buffer = state.buffer(tensor)
    if buffer.memory is MemoryType.global_:
        sample, definition = sample_of(tensor), tensor.definition()
        if sample is not None and not isinstance(sample, GroupResultOp):
            return Access(buffer, sample_index(indexer, tensor, sample))
        if writing and isinstance(definition, ScatterStoreOp):
            return Access(buffer, scattered_index(indexer, definition))
        parts: Sym = ZERO
        for axis, stride in tensor.strides().items():
            parts = parts + mul(place_along(indexer, axis, tensor), stride)
        if partial_vector(tensor):
            parts = partial_index(tensor, indexer, parts, writing=writing)
        return Access(buffer, recombine(parts))
    if indexer.at_row_end and not begins_anywhere(tensor):
        return row_end_access(state, indexer, tensor, expr, writing)
    index: Sym = ZERO
    for k, extent in zip(state.positions(tensor), buffer.extents):
        index = mul(index, extent) + on_chip_index(state, indexer, tensor, k, expr, writing)
    index = index + stage_offset(state, tensor)
    if begins_anywhere(tensor):
        index = index + skipped_elems(indexer, tensor)
    return Access(buffer, swizzled(tensor, recombine(index) if tensor.shared_swizzle else index))


def row_end_access(state: BuildState, indexer: Indexer, tensor: TensorView, expr: Expr, writing: bool) -> Access:
    """Return the access to a thread's elements at the ends of its rows, one per row; they are stored after those of its vectors. Errors: InternalError for
    shared memory."""
    buffer = state.buffer(tensor)
    if buffer.memory is not MemoryType.local:
        raise InternalError(f"{buffer.name} is in {buffer.memory.value} memory, which has no place for the ends of rows")
    of_vectors, rows, index = ONE, ONE, ZERO
    for k, extent in zip(state.positions(tensor), buffer.extents):
        if is_of_phased_row(tensor.get_loop_domain()[k]):
            of_vectors = mul(of_vectors, extent)
        else:
            rows, index = mul(rows, extent), mul(index, extent) + on_chip_index(state, indexer, tensor, k, expr, writing)
    if of_vectors is ONE:
        return Access(buffer, index)
    buffer.end_elems = rows
    return Access(buffer, buffer.elems + index)


def is_of_phased_row(axis: IterDomain) -> bool:
    """True for a loop over vectors of rows that begin anywhere, or over their elements."""
    stack = [axis]
    while stack:
        transform = stack.pop().definition()
        if isinstance(transform, Split) and transform.is_phased:
            return True
        stack += () if transform is None else transform.inputs  # type: ignore[arg-type]
    return False


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
    # several threads, or turns of a loop that the tensor lacks, may have written the same element; a reader without their axes reads the first one
    covered = frozenset().union(*(state.plan.coverage(g.axis) for g in indexer.groups))
    own = frozenset() if tensor.memory_type is MemoryType.shared else frozenset().union(*map(state.plan.coverage, tensor.get_loop_domain()))
    absent = _missing(state, group, covered | own)
    indexer = indexer.at_first(absent) if absent else indexer
    return indexer.axis_index(group.axis, tensor)  # the loop also iterates axes that the tensor lacks


def lane_or_index(state: BuildState, tensor: TensorView, k: int) -> Sym:
    """Return the index of the loop of axis `k`; 0 for a lane of a vector and for a loop of one iteration."""
    group = state.plan.groups[tensor][k]
    if tensor.get_loop_domain()[k].parallel in LANE_TYPES or (group.extent.is_const and group.extent.value == 1):
        return ZERO
    return group.index


def op_predicate(state: BuildState, indexer: Indexer, expr: Expr, output: TensorView) -> Sym:
    """Return the predicate of `expr`: inside the extents of its axes, and in one thread only if several would write the same element. A constant in registers
    has none, so that the compiler knows it everywhere."""
    axes = [a for a in output.get_maybe_root_domain() if not a.is_broadcast()]
    for axis in axes:  # of a constant, too: the indexer learns whether its rows have ends
        indexer.axis_index(axis, output)
    if isinstance(expr, FullOp) and output.memory_type is MemoryType.local:
        return TRUE
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
    """Conditions index < 1 of the parts that a split by 1 leaves, if they are bound to threads or split again: no index of another axis contains them."""
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
        """The index of `axis` by its own transforms; None if these loops do not iterate it."""
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
    """Conditions that count each term of a reduction once, if its loops also iterate axes that it lacks."""
    covered = frozenset().union(*(state.plan.coverage(axis) for axis in output.get_loop_domain()))
    out = []
    for axis, group in zip(output.get_loop_domain(), state.plan.groups[output]):
        if axis.is_reduction() and not group.axis.is_broadcast():
            out += _first_of_missing(state, indexer, group, covered, output)
            out += _first_of_broadcast(indexer, group.axis)
    return out


def _twice(indexer: Indexer, group: LoopGroup) -> frozenset[IterDomain]:
    """The axes that a loop iterates and the tensor lacks in it, although it has another loop over them."""
    return indexer.twofold.twice if indexer.twofold is not None and group in indexer.twofold.loops else frozenset()


def _missing(state: BuildState, group: LoopGroup, covered: frozenset[IterDomain]) -> list[IterDomain]:
    """The axes that a loop iterates besides `covered`, in an order that is the same in every process."""
    return sorted(state.plan.coverage(group.axis) - covered, key=lambda axis: axis.name)


def redundant_writers(state: BuildState, indexer: Indexer, output: TensorView) -> list[Sym]:
    """Conditions that leave one writer per element: index 0 along the parallel types and loops that the tensor does not depend on."""
    kinds = BLOCK_TYPES if output.memory_type is MemoryType.shared else BLOCK_TYPES + GRID_TYPES
    own = [(axis, g) for axis, g in zip(output.get_loop_domain(), state.plan.groups[output]) if not axis.is_reduction()]
    used = {g.parallel for axis, g in own if not axis.is_broadcast()}
    out = [equal(var(p.value, extent=state.launch[p]), 0) for p in kinds if p in state.launch and p not in used and state.launch[p] is not ONE]
    if output.memory_type is MemoryType.shared:  # it has an element per index of the loops that it depends on, and is rewritten in the loops around these
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
    """Conditions index == 0 of the axes, or parts of axes, that a loop iterates besides `covered`, because they were merged with the tensor's own."""
    out: list[Sym] = []
    absent = _missing(state, group, covered - _twice(indexer, group))
    for missing in absent:
        if indexer.wide.find(missing) is not None:
            out.append(equal(indexer.wide.axis_index(missing, tensor), 0))
            continue
        indices = _indices_within(state, indexer, group.axis, missing, {missing})
        if None in indices:  # it is merged with others that are missing, too, and then split: the loops iterate a part of both
            indices = _indices_within(state, indexer, group.axis, missing, set(absent))
        if None in indices:
            indexer.wide.axis_index(missing, tensor)  # raises
        out += [condition for index in indices if (condition := equal(index, 0)) not in out]  # type: ignore[arg-type]
    return out


def _indices_within(state: BuildState, indexer: Indexer, loop: IterDomain, missing: IterDomain, among: set[IterDomain]) -> list[Sym | None]:
    """The indices (None: not known) of the outermost parts of a loop that iterate `missing` and nothing but `among`."""
    out: list[Sym | None] = []
    stack = [loop]
    while stack:
        axis = stack.pop()
        covered = state.plan.coverage(axis)
        if missing in covered and covered <= among:
            out.append(indexer.wide.find(axis))
        elif axis.definition() is not None:
            stack += axis.definition().inputs  # type: ignore[union-attr, arg-type]
    return out


def _first_of_broadcast(indexer: Indexer, axis: IterDomain) -> list[Sym]:
    """Conditions index == 0 of broadcast axes that are merged into `axis`: other indices would repeat the same element."""
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
    """The linear index that random numbers and iota are computed from."""
    if isinstance(expr, IotaOp):
        return with_known_divisors(linear_element(indexer, output), state.divisors)
    return linear_element(indexer, output) if isinstance(expr, RandomOp) else ZERO
