"""Does not load vectors that a mask of positions removes entirely, and computes such vectors as constants.

    where(i >= j, x, c), by vectors along j:   if (some lane has i >= j) { load x }      if (the same) { as written } else { with the condition false }

The second form leaves the compiler one value for all lanes. Both have the same bits as without: where nothing is loaded, what stands there is selected away.
Owns the tests of vectors. Read first: `condition_of`, `split_masked_loops`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..analysis.masks import Bound, Needed
from ..expr import FALSE, ONE, TRUE, ZERO, Sym, conjunction, conjuncts, const, is_divisible, less, mul, sub, substitute, terms, variables
from ..ir.enums import MemoryType
from ..ir.values import IterDomain, Merge, Split, TensorView, no_reductions
from .contracts import lowering_pass
from .dead_code import drop_unread
from .indexing import Indexer
from .kernel_ir import Allocate, If, Kernel, Loop, Masked, Nest, Op, Statement, copied, is_host_variable, walk
from .warps import divided_warps

if TYPE_CHECKING:
    from .state import BuildState


def condition_of(bounds: Needed, indexer: Indexer, tensor: TensorView, lane: IterDomain | None, lanes: int, divisors: dict[Sym, int]) -> Sym:
    """Return a condition that holds if an element, or any element of a vector along axis `lane`, may be needed; TRUE if nothing is known."""
    axes = no_reductions(tensor.get_logical_domain())
    position = None if lane is None else _position_of_lane(lane, axes, lanes, divisors)
    if lane is not None and position is None:
        return TRUE
    atoms = (_atom(bound, indexer, tensor, axes, position, lanes) for bound in sorted(bounds, key=lambda b: (b.steps, str(b.offset))))
    return conjunction(a for a in atoms if not _is_of_sizes(a))


def taken_by(bounds: Needed, indexer: Indexer, tensor: TensorView, lane: IterDomain | None, lanes: int, divisors: dict[Sym, int]) -> tuple[Sym, ...]:
    """Return the conditions that some lane, and that all lanes, of a vector along axis `lane` satisfy the bounds; () if not known."""
    axes = no_reductions(tensor.get_logical_domain())
    position = None if lane is None else _position_of_lane(lane, axes, lanes, divisors)
    if lane is not None and position is None:
        return ()
    is_aligned = lane is not None and _is_aligned(lane, axes, lanes)
    some, every = [], []
    for bound in sorted(bounds, key=lambda b: (b.steps, str(b.offset))):
        step = dict(bound.steps).get(-1 if position is None else position, 0)
        last = sub(ONE, bound.offset) if step > 0 else bound.offset  # where the bound changes along the lanes' axis
        if is_aligned and len(bound.steps) == 1 and step in (1, -1) and is_divisible(last, lanes):
            some.append(_atom(bound, indexer, tensor, axes, None, 1))
            every.append(some[-1])
        else:
            some.append(_atom(bound, indexer, tensor, axes, position, lanes))
            first = Bound(bound.steps, bound.offset + const(max(step, 0) * (lanes - 1)))
            every.append(_atom(first, indexer, tensor, axes, None, 1))
    return conjunction(some), conjunction(every)


def _is_aligned(lane: IterDomain, axes: list[IterDomain], lanes: int) -> bool:
    """True if the position of the first lane of every vector is a multiple of the number of lanes, within the axis that `_position_of_lane` returned."""
    axis = lane
    while not any(axis is a for a in axes):
        transform = axis.definition()
        if isinstance(transform, Split):
            if transform.is_phased or transform.overlaps or not is_divisible(transform.inner().sym, lanes):
                return False
            axis = transform.source()
        else:
            assert isinstance(transform, Merge)
            axis = transform.outer() if transform.inner().is_broadcast() else transform.inner()
    return True


def _is_of_sizes(atom: Sym) -> bool:
    """True for a bound by sizes, which could be mistaken for a bound of the row."""
    ends = variables(atom.args[1]) if atom.op == "lt" else frozenset()
    return bool(ends) and all(map(is_host_variable, ends))


def _atom(bound: Bound, indexer: Indexer, tensor: TensorView, axes: list[IterDomain], position: int | None, lanes: int) -> Sym:
    """Return the bound for the lane that satisfies it longest."""
    left: Sym = ZERO
    right = sub(ONE, bound.offset)
    for at, step in bound.steps:
        index = indexer.axis_index(axes[at], tensor)
        if step > 0:
            left = left + mul(index, const(step))
        else:
            right = right + mul(index, const(-step))
            right = right + const(-step * (lanes - 1)) if at == position else right
    return less(left, right)


def _position_of_lane(lane: IterDomain, axes: list[IterDomain], lanes: int, divisors: dict[Sym, int]) -> int | None:
    """Return the axis along which the lanes of a vector run, if all lanes have the same indices of the other axes."""
    axis = lane
    while not any(axis is a for a in axes):
        transform = axis.definition()
        if isinstance(transform, Split) and axis is transform.inner():
            axis = transform.source()
        elif isinstance(transform, Merge):
            inner = transform.inner()
            if not inner.is_broadcast():
                is_whole = inner.sym.is_const and inner.sym.value % lanes == 0 or divisors.get(inner.sym, 1) % lanes == 0  # type: ignore[operator]
                if not is_whole:
                    return None
            axis = transform.outer() if inner.is_broadcast() else inner
        else:
            return None
    return next(n for n, a in enumerate(axes) if a is axis)


@lowering_pass(needs=["pipelines", "unswitched"], before=["grouped predicates"])
def split_masked_loops(kernel: Kernel, state: "BuildState") -> Kernel:
    """Generate loops over vector lanes twice if a mask of positions selects in them: unchanged, and for vectors that the mask removes entirely.

    Before: ops of `where` have the condition under which they may take their second operand, `mask`.   After: such a loop is a Masked.
    Here because: no later pass looks for loops over lanes, and predicates of ops are not grouped yet.
    """
    kernel.body = _body(kernel.body, kernel)
    return kernel


def _body(statements: list[Statement], kernel: Kernel) -> list[Statement]:
    out: list[Statement] = []
    for s in statements:
        if isinstance(s, Nest):
            s.body = _body(s.body, kernel)
        out += _split(s, kernel) if isinstance(s, Loop) else [s]
    return out


def _split(loop: Loop, kernel: Kernel) -> list[Statement]:
    masks = [s for s in walk(loop.body) if isinstance(s, Op) and s.mask is not TRUE]
    is_flat = all(isinstance(s, (Op, Allocate, If)) for s in walk(loop.body))
    if not masks or not is_flat or not loop.extent.is_const or loop.start is not ZERO:
        return [loop]
    test = _of_some_lane(masks[0].mask, loop)
    if test is None or divided_warps(test, kernel.block) == 1:  # each warp would do both
        return [loop]
    empty = copied(loop, {})
    assert isinstance(empty, Loop)
    for s in walk([empty]):
        if isinstance(s, Op) and s.mask is not TRUE and _of_some_lane(s.mask, loop) is test:
            s.operands = [FALSE, s.operands[2], s.operands[2]]
    empty.body = drop_unread(empty.body, {s.buffer for s in empty.body if isinstance(s, Allocate)})
    if not _fills_an_array(empty):
        return [loop]
    return [Masked.of(test, [loop], [empty])]


def _fills_an_array(loop: Loop) -> bool:
    """True if each lane has its own register: a loop that only folds would not be unrolled, and gain nothing.

    Measured: docs/constants.md.
    """
    places = [o for s in walk([loop]) if isinstance(s, Op) for o in s.outputs if o.buffer.memory is MemoryType.local]
    return any(loop.index in variables(o.index) for o in places)


def _of_some_lane(mask: Sym, loop: Loop) -> Sym | None:
    """Return a condition that holds if `mask` holds in some iteration of a loop; None if it is not linear in the loop's index."""
    parts = []
    for atom in conjuncts(mask):
        if atom.op != "lt":
            return None
        left, right = atom.args
        step = terms(sub(left, right)).get((loop.index,), 0)
        if loop.index in variables(sub(sub(left, right), mul(loop.index, const(step)))):
            return None
        first = ZERO if step >= 0 else sub(loop.extent, 1)
        parts.append(less(substitute(left, {loop.index: first}), substitute(right, {loop.index: first})))
    found = conjunction(parts)
    return None if found in (TRUE, FALSE) else found


__all__ = ["condition_of", "split_masked_loops", "taken_by"]
