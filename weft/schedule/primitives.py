"""Schedule primitives: each changes in place how one tensor is computed, and never its value.

Owns split, merge, reorder, parallelize, memory type, allocation domain and swizzle, and what each refuses. Primitives that add tensors are in
`caching` and `rfactor` (and named here too); `propagate` repeats a tensor's transforms on others; `inline` shares loops.
Read first: `split`, `_changeable`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.axes import axis_transforms, loop_match
from ..errors import UserError
from ..expr import Sym, const
from ..ir.enums import MemoryType, ParallelType
from ..ir.values import IterDomain, SharedSwizzle, TensorView
from .caching import cache_after, cache_before, cache_fork
from .rfactor import rfactor
from .transforms import can_merge, merge_axes, split_axis, swizzle_axes


class AxisBound(UserError):
    code = "W610"
    what = "cannot {verb} axis {position} of {tensor}: {axis} is bound to {parallel}"
    fix = "{verb} the axis first and bind the result afterwards"


class AxisShared(UserError):
    code = "W611"
    what = "cannot {verb} axis {position} of {tensor}: {reason}"
    fix = "transform the tensors first and inline them afterwards"


class MergeOfDifferentKinds(UserError):
    code = "W612"
    what = "cannot merge axes {outer_position} and {inner_position} of {tensor}: of {outer} and {inner}, one is a reduction axis and the other is not"
    fix = "merge reduction axes only with reduction axes"


class MergeWithItself(UserError):
    code = "W613"
    what = "cannot merge axis {position} of {tensor} with itself"
    fix = "name two different axes"


class BadFactor(UserError):
    code = "W614"
    what = "cannot split axis {position} of {tensor} by {factor}: the factor must be at least 1"
    fix = "use a positive factor"


class BadOrder(UserError):
    code = "W615"
    what = "cannot reorder {tensor} by {old2new}: {reason}"
    fix = "name each old position at most once, each with a different new position"


class BoundTwice(UserError):
    code = "W616"
    what = "cannot bind axis {position} of {tensor} to {parallel}: axis {other} is bound to it already"
    fix = "merge the two axes, or choose another parallel type for one of them"


class LanesUnknown(UserError):
    code = "W617"
    what = "cannot vectorize axis {position} of {tensor}: its extent {extent} is not known when the kernel is compiled"
    fix = "split the axis by the vector's width and vectorize the inner part"


class MustBeGlobal(UserError):
    code = "W618"
    what = "cannot put {tensor} into {memory} memory: it is an {role} of the fusion"
    fix = "make a copy with {cache} and place that"


class BadAllocationDomain(UserError):
    code = "W619"
    what = "cannot allocate {tensor} as {axes}: {reason}"
    fix = "pass axes of this tensor that together cover each of its logical axes once"


class BadSwizzle(UserError):
    code = "W620"
    what = "cannot swizzle axes {x} and {y} of {tensor}: {reason}"
    fix = "swizzle two different axes, the second with a constant power of two as extent"


class BadSharedSwizzle(UserError):
    code = "W623"
    what = "cannot apply the layout {layout} to {tensor} in shared memory: {reason}"
    fix = "set_memory_type(MemoryType.shared) first, and use powers of two with a period that is a multiple of the ways"


def position_of(tensor: TensorView, axis: int) -> int:
    """Return `axis` counted from 0, or raise an error if there is no such axis."""
    tensor.axis(axis)
    return axis % len(tensor.get_loop_domain())


def shared_positions(tensor: TensorView) -> dict[int, str]:
    """Return the loop axes that are shared with other tensors by inlining, each with the reason in words."""
    out = {p: f"it is shared with the consumers (computed at {tensor.compute_at})" for p in range(tensor.compute_at)}
    definition = tensor.definition()
    for producer in () if definition is None else definition.tensor_inputs:
        if producer.compute_at:
            match = loop_match(producer, tensor)
            for axis in producer.get_loop_domain()[: producer.compute_at]:
                if axis in match:
                    out.setdefault(tensor.get_loop_domain().index(match[axis]), f"T{producer.name} is inlined into it")
    return out


def _changeable(tensor: TensorView, axis: int, verb: str) -> int:
    """Return the position of `axis`, or raise the reason why it must not be changed."""
    position = position_of(tensor, axis)
    found = tensor.get_loop_domain()[position]
    if found.parallel is not ParallelType.serial:
        raise AxisBound(verb=verb, position=position, tensor=tensor, axis=found, parallel=found.parallel.name)
    reason = shared_positions(tensor).get(position)
    if reason is not None:
        raise AxisShared(verb=verb, position=position, tensor=tensor, reason=reason)
    return position


def split(
    tv: TensorView, axis: int, factor: int | Sym, inner_split: bool = True, *, is_phased: bool = False, multiple: int = 1, part: int = 0, overlaps: bool = False
) -> TensorView:  # fmt: skip
    """Split loop axis `axis` into (outer, inner): the inner one has `factor` iterations, or the outer one with inner_split False.

    The other one has ceildiv(extent, factor) iterations; what runs past the extent is predicated off.
    is_phased: see `Split`; for schedulers that declare the phase. multiple: of the inner extent, part: the inner extent, overlaps: see there.
    """
    position = _changeable(tv, axis, "split")
    factor = factor if isinstance(factor, Sym) else const(int(factor))
    if factor.is_const and factor.value < 1:  # type: ignore[operator]
        raise BadFactor(position=position, tensor=tv, factor=factor)
    loop = tv.domain().loop
    made = split_axis(tv.fusion, loop[position], factor, inner_split, is_phased, multiple, part, overlaps)  # type: ignore[arg-type]
    loop[position : position + 1] = made.outputs  # type: ignore[assignment]
    return tv


def merge(tv: TensorView, outer_axis: int, inner_axis: int) -> TensorView:
    """Merge two loop axes, neighbours or not; the result is at the position of the first of the two in the loop domain."""
    outer, inner = _changeable(tv, outer_axis, "merge"), _changeable(tv, inner_axis, "merge")
    if outer == inner:
        raise MergeWithItself(position=outer, tensor=tv)
    loop = tv.domain().loop
    a, b = loop[outer], loop[inner]
    if not can_merge(a, b):
        raise MergeOfDifferentKinds(outer_position=outer, inner_position=inner, tensor=tv, outer=a, inner=b)
    made = merge_axes(tv.fusion, a, b)  # type: ignore[arg-type]
    loop[min(outer, inner)] = made.out()
    del loop[max(outer, inner)]
    return tv


def reorder(tv: TensorView, old2new: dict[int, int]) -> TensorView:
    """Move loop axes: old position -> new position (negative: from the end); the others fill the gaps in their order."""
    loop = tv.domain().loop
    rank = len(loop)
    moves: dict[int, int] = {}
    for old, new in old2new.items():
        old, new = position_of(tv, old), position_of(tv, new)
        if old in moves and moves[old] != new or new in moves.values() and moves.get(old) != new:
            raise BadOrder(tensor=tv, old2new=old2new, reason=f"position {old} or {new} is named twice")
        moves[old] = new
    sources: list[int | None] = [None] * rank
    for old, new in moves.items():
        sources[new] = old
    rest = iter(p for p in range(rank) if p not in moves)
    order = [next(rest) if s is None else s for s in sources]
    shared = shared_positions(tv)
    for new, old in enumerate(order):
        if new != old and (old in shared or new in shared):
            raise AxisShared(verb="move", position=old, tensor=tv, reason=shared.get(old) or f"it would pass axis {new}: {shared[new]}")
    loop[:] = [loop[p] for p in order]
    return tv


def parallelize(tv: TensorView, axis: int, parallel: ParallelType) -> TensorView:
    """Bind loop axis `axis` to threads, blocks, a vector or an unrolled loop."""
    position = position_of(tv, axis)
    found = tv.get_loop_domain()[position]
    if parallel.is_bound or parallel is ParallelType.vectorize:
        for other, axis_there in enumerate(tv.get_loop_domain()):
            if other != position and axis_there.parallel is parallel:
                raise BoundTwice(position=position, tensor=tv, parallel=parallel.name, other=other)
    if parallel is ParallelType.vectorize and not found.sym.is_const:
        raise LanesUnknown(position=position, tensor=tv, extent=found.sym)
    found.parallelize(parallel)
    return tv


def reset_loops(tv: TensorView) -> TensorView:
    """Reset the loops of a tensor to its logical axes, unbound, and its memory order to that without transforms."""
    domain = tv.domain()
    for axis in domain.logical:
        axis._uses.clear()
        axis.parallel = ParallelType.serial
    domain.loop = list(domain.logical)
    if domain.allocation is not None and set(domain.allocation) != set(domain.logical):
        domain.allocation = None
    return tv


def set_memory_type(tv: TensorView, memory_type: MemoryType) -> TensorView:
    """Place the tensor in registers (local), shared or global memory."""
    if memory_type is not MemoryType.global_:
        if tv.is_fusion_input:
            raise MustBeGlobal(tensor=tv, memory=memory_type.value, role="input", cache="cache_after")
        if tv.is_fusion_output:
            raise MustBeGlobal(tensor=tv, memory=memory_type.value, role="output", cache="cache_before")
    tv.memory_type = memory_type
    return tv


def set_allocation_domain(tv: TensorView, ids: Sequence[IterDomain], new_contiguity: bool | Sequence[bool | None]) -> TensorView:
    """Set the memory layout of the tensor to `ids`, outermost first.

    new_contiguity: one for all axes, or one per axis (None for broadcast and reduction axes). Reduction and broadcast axes may be left out.
    """
    if not isinstance(ids, (list, tuple)) or not all(isinstance(a, IterDomain) for a in ids):
        raise BadAllocationDomain(tensor=tv, axes=_shortened(ids), reason="that is not a list of axes")
    if not isinstance(new_contiguity, (bool, list, tuple)):
        raise BadAllocationDomain(tensor=tv, axes=list(ids), reason=f"the contiguity is {_shortened(new_contiguity)}, not a flag or a list of them")
    axes = list(ids)
    _check_allocation(tv, axes)
    none = [a.is_broadcast() or a.is_reduction() for a in axes]
    if isinstance(new_contiguity, bool):
        contiguity: list[bool | None] = [None if n else new_contiguity for n in none]
    else:
        contiguity = list(new_contiguity)
        if len(contiguity) != len(axes):
            raise BadAllocationDomain(tensor=tv, axes=axes, reason=f"there are {len(axes)} axes and {len(contiguity)} contiguity flags")
        for axis, n, flag in zip(axes, none, contiguity):
            if n != (flag is None):
                raise BadAllocationDomain(tensor=tv, axes=axes, reason=f"the contiguity of {axis} is {flag}; None belongs to broadcast and reduction axes only")
    domain = tv.domain()
    domain.allocation, domain.contiguity = axes, contiguity
    return tv


def _shortened(value: object) -> str:
    return repr(value)[:60]


def _check_allocation(tensor: TensorView, axes: list[IterDomain]) -> None:
    """Raise an error unless undoing the transforms of `axes` gives each logical axis exactly once."""
    if len(set(axes)) < len(axes):
        raise BadAllocationDomain(tensor=tensor, axes=axes, reason="an axis is named twice")
    logical, left = set(tensor.get_logical_domain()), set(axes)
    for transform in reversed(axis_transforms(tensor, axes)):
        if any(a in logical and a in left for a in transform.outputs):
            continue
        if all(a in left for a in transform.outputs):
            left.difference_update(transform.outputs)
            left.update(transform.inputs)  # type: ignore[arg-type]
    foreign = sorted(left - logical, key=lambda a: a.name)
    if foreign:
        known = set(tensor.get_loop_domain()) | {a for t in axis_transforms(tensor) for a in (*t.inputs, *t.outputs)}
        why = "is only a part of a logical axis, whose other part is missing" if foreign[0] in known else "is not an axis of this tensor"
        raise BadAllocationDomain(tensor=tensor, axes=axes, reason=f"{foreign[0]} {why}")
    missing = [a for a in tensor.get_logical_domain() if a not in left and a.is_iteration()]
    if missing:
        raise BadAllocationDomain(tensor=tensor, axes=axes, reason=f"{missing[0]} is missing")


def swizzle(tv: TensorView, x: int, y: int) -> TensorView:
    """Replace loop axes (x, y) by (x, y XOR x), which spreads a column of a tile over the banks of shared memory."""
    px, py = _changeable(tv, x, "swizzle"), _changeable(tv, y, "swizzle")
    loop = tv.domain().loop
    extent = loop[py].sym
    if px == py:
        raise BadSwizzle(x=px, y=py, tensor=tv, reason="they are the same")
    if not extent.is_const or extent.value < 1 or extent.value & (extent.value - 1):  # type: ignore[operator]
        raise BadSwizzle(x=px, y=py, tensor=tv, reason=f"the extent of the second is {extent}")
    made = swizzle_axes(tv.fusion, loop[px], loop[py])  # type: ignore[arg-type]
    loop[px], loop[py] = made.outputs  # type: ignore[call-overload]
    return tv


def swizzle_shared(tv: TensorView, layout: SharedSwizzle) -> TensorView:
    """Permute the elements of a tensor in shared memory by `layout`. Errors: BadSharedSwizzle."""
    sizes = (layout.chunk_elems, layout.ways, layout.period)
    if tv.memory_type is not MemoryType.shared:
        raise BadSharedSwizzle(tensor=tv, layout=layout, reason=f"the tensor is in {tv.memory_type.name} memory")
    if any(n < 1 or n & (n - 1) for n in sizes) or layout.period % layout.ways:
        raise BadSharedSwizzle(tensor=tv, layout=layout, reason="its numbers are not powers of two, or the period is not a multiple of the ways")
    tv.shared_swizzle = layout
    return tv


__all__ = [
    "cache_after", "cache_before", "cache_fork", "merge", "parallelize", "position_of", "reorder", "rfactor", "set_allocation_domain",
    "set_memory_type", "shared_positions", "split", "swizzle", "swizzle_shared",
]  # fmt: skip
