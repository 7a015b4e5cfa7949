"""The axes that a definition leaves open, decided for the sizes of one call.

Owns the rules of which axis becomes broadcast and which iteration, op by op, and how a reshape's sizes factor into groups. Which calls decide alike, the
`Questions` say. Read first: `concretize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..dtypes import DataType
from ..errors import UserError
from ..expr import ONE, ZERO, Sym, variables
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, BagOp, CatOp, Fixed, LookupOp, ReshapeOp, ScanOp
from ..ir.values import (
    BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, IterDomain, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, Scalar, SqueezeOp, TensorDomain, TensorView,
    WelfordOp, no_reductions,
)  # fmt: skip
from ..ops.lookups import check_place, fixed_places
from ..ops.monoids import MONOIDS, StateMonoid
from ..ops.build import ExtentMismatch, cast, constant, is_plain_broadcast, logical_axes, pointwise
from ..ops.reductions import monoid_of, repeated
from ..ops.reshape import ElementCountsDiffer, WrongRuntimeSize, recipe
from ..ops.resize import NegativeResult
from ..ops.scans import with_elements_along
from ..ops.shapes import CannotSqueeze, NegativeExtent, squeeze
from .made_reductions import keep_axes
from .questions import Questions

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of axes of a reshape's input, and of axes of its output, whose extents have the same product."""


class ExpandMismatch(UserError):
    code = "W373"
    what = "expand: Mismatch in sizes when concretizing expand: axis {axis} of {tensor} has extent {extent}, and {wanted} is asked for"
    fix = "only axes of extent 1 can be expanded"


class SliceOutside(UserError):
    code = "W379"
    what = "slice: elements {first} to {last} of axis {axis} of {tensor} are asked for, and the axis has {size} in this call"
    fix = "pass tensors with elements, or define the size as 0: ends of slices are clamped for symbolic sizes of 1 or more"


def is_open(fusion: Fusion) -> bool:
    """True if sizes of a call decide something: an axis is open, a reshape has symbolic sizes, or a size that a scalar gives may be negative."""
    if any(axis.is_open() for t in fusion.tensors() for axis in t.get_logical_domain()):
        return True
    if any(isinstance(e, ReshapeOp) and not e.tensor_outputs[0].has_root() for e in fusion.tensor_exprs()):
        return True
    scalars = {value.sym for value in fusion.inputs() if isinstance(value, Scalar)}
    expanded = [axis.expanded_extent for e in fusion.tensor_exprs() if isinstance(e, ExpandOp) for axis in e.tensor_outputs[0].get_logical_domain()]
    return any(extent is not None and not scalars.isdisjoint(variables(extent)) for extent in expanded)


def settle_as_iteration(fusion: Fusion) -> None:
    """Make every open axis an ordinary one, in place: for fusions that are scheduled by hand, before any call."""
    for tensor in fusion.tensors():
        for axis in (*tensor.get_maybe_root_domain(), *tensor.get_logical_domain()):
            if axis.is_open():
                axis.iter_type = IterType.iteration


def has_views(fusion: Fusion) -> bool:
    """True when a definition has ops that the normal form rewrites."""
    return any(isinstance(e, (ReshapeOp, LookupOp, CatOp)) for e in fusion.tensor_exprs())


def concretize(fusion: Fusion, questions: Questions) -> None:
    """Decide every open axis, in place.

    After: no axis is open; a reduction over an axis of extent 1 is a squeeze; each ReshapeOp has the attribute `groups`, unless its sizes are not known, and
    neither its input nor its output has axes of extent 1. A symbolic size of an input that a reshape depends on and that is 1 is a broadcast axis; so are the
    axes of `questions.ones`.
    Outputs with memory of their own (`Fusion.shares_results`) have elements along axes that turn out to repeat them.
    Errors: ExpandMismatch, CannotSqueeze, ElementCountsDiffer, WrongRuntimeSize, NegativeExtent, NegativeResult, ExtentMismatch.
    """
    outputs = [] if fusion.shares_results else [v for v in fusion.tensor_outputs() if not v.is_fusion_input]
    repeated_before = [[d for d, axis in enumerate(logical_axes(v)) if axis.expanded_extent is not None] for v in outputs]
    _settle_inputs(fusion, questions)
    for expr in fusion.tensor_exprs():
        _RULES.get(type(expr), _by_extents)(fusion, expr, questions)
    for output, known in zip(outputs, repeated_before):
        repeats = [d for d, axis in enumerate(logical_axes(output)) if axis.expanded_extent is not None and d not in known]
        if repeats:
            _give_elements(fusion, output, repeats)
    for tensor in fusion.tensors():
        domain = tensor.domain()
        domain.contiguity = _without_ones(domain)


def _without_ones(domain: TensorDomain) -> list[bool | None]:
    """Return the contiguity of a tensor without its axes of extent 1. An axis that was contiguous with a strided one of these becomes strided."""
    out: list[bool | None] = []
    is_strided = False  # the axes dropped since the last kept one begin with a strided one
    for axis, flag in reversed(list(zip(domain.maybe_allocation, domain.contiguity))):
        if axis.is_broadcast() or axis.is_reduction():
            is_strided |= flag is False
            out.append(None)
        else:
            out.append(flag and not is_strided)
            is_strided = False
    return out[::-1]


def _give_elements(fusion: Fusion, output: TensorView, dims: Sequence[int]) -> None:
    """Let an output that repeats its elements along `dims` in this call be a copy that does not; what computes it computes another tensor."""
    given, domain = logical_axes(output), output.domain()
    value = fusion.new_tensor(given, output.dtype(), root=domain.root)
    fusion.redefine(output.definition(), output, value)  # type: ignore[arg-type]
    for dim in dims:
        value = with_elements_along(fusion, value, dim)
    axes = [fusion.new_axis(axis.expanded_extent) if d in dims else fusion.copy_axis(axis) for d, axis in enumerate(given)]  # type: ignore[arg-type]
    allocation = None if domain.allocation is None else [axes[given.index(axis)] for axis in domain.allocation]
    output._domain = TensorDomain(None, axes, [None if axis.is_broadcast() else True for axis in allocation or axes], allocation)
    fusion.register(LoadStoreOp([value], [output]))


def _settle_inputs(fusion: Fusion, questions: Questions) -> None:
    """Make input axes of size 1 broadcast axes, if a reshape depends on the size or `questions.ones` has it."""
    sizes: dict[Sym, None] = {}
    for expr in fusion.tensor_exprs():
        if isinstance(expr, ReshapeOp):
            for tensor in (*expr.tensor_inputs, *expr.tensor_outputs):
                for axis in logical_axes(tensor):
                    sizes.update(dict.fromkeys(sorted(variables(axis.logical_extent), key=str)))
    ones = {sym for sym in sizes if questions.is_one(sym)} | questions.ones
    for value in fusion.inputs():
        for axis in value.get_logical_domain() if isinstance(value, TensorView) else ():
            if axis.sym in ones and axis.is_iteration():
                _settle(axis, ONE, IterType.broadcast)


def _settle(axis: IterDomain, extent: Sym, kind: IterType, expanded: Sym | None = None) -> None:
    axis._extent, axis.iter_type, axis.expanded_extent = extent, kind, expanded


def _copy_kind(axis: IterDomain, source: IterDomain) -> None:
    """Give an axis that the op does not change the type of its input's axis."""
    kind = axis.iter_type if axis.is_reduction() and not source.is_broadcast() else source.iter_type
    _settle(axis, source.sym, kind, source.expanded_extent)


def _settle_by_extent(axis: IterDomain, questions: Questions) -> None:
    if axis.is_iteration() and axis.sym in questions.ones:
        _settle(axis, ONE, IterType.broadcast)
    elif axis.is_open():
        one = questions.is_one(axis.sym)
        _settle(axis, ONE if one else axis.sym, IterType.broadcast if one else IterType.iteration)


def _by_extents(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    for tensor in expr.tensor_outputs:
        for axis in tensor.get_logical_domain():
            _settle_by_extent(axis, questions)


def _factory(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    _check_extents(expr, questions)
    _by_extents(fusion, expr, questions)


def _check_extents(expr: Expr, questions: Questions) -> None:
    """Refuse sizes below 0 of what an op makes. Errors: NegativeExtent."""
    for position, axis in enumerate(expr.tensor_outputs[0].get_logical_domain()):
        number = questions.number(axis.logical_extent)
        if number is not None and number < 0:
            raise NegativeExtent(op=expr.op_name, extent=number, axis=position)


# ---------------------------------------------------------------- op by op
def _pointwise(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    for out in expr.tensor_outputs:
        for position, axis in enumerate(out.get_logical_domain()):
            column = [(t, logical_axes(t)[position]) for t in expr.tensor_inputs]
            wide = [a for _, a in column if not a.is_broadcast()]
            expanded = [a for _, a in column if a.expanded_extent is not None]
            if axis.is_open():
                _check_column(expr, position, column, questions)
            known = wide or expanded
            if not known:
                _settle(axis, ONE, IterType.broadcast)
                continue
            extent = next((a.logical_extent for a in known if a.logical_extent.is_const), known[0].logical_extent)
            if wide:
                _settle(axis, extent, IterType.iteration)
            else:
                _settle(axis, ONE, IterType.broadcast, extent)


def _check_column(expr: Expr, position: int, column: Sequence[tuple[TensorView, IterDomain]], questions: Questions) -> None:
    sized = [(t, questions.number(a.logical_extent)) for t, a in column if not a.is_broadcast() or a.expanded_extent is not None]
    for tensor, number in sized[1:]:
        if number != sized[0][1]:
            raise ExtentMismatch(op=expr.op_name, axis=position, left_tensor=sized[0][0], left=sized[0][1], right_tensor=tensor, right=number)


def _same_axes(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    source = expr.tensor_inputs[0]
    for out in expr.tensor_outputs:
        for axis, old in zip(out.get_maybe_root_domain(), logical_axes(source)):
            _copy_kind(axis, old)


def _scan(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    """Make an axis that is expanded in this call an ordinary one before a scan, because the scan's result differs along it. Along an axis of one element, a
    scan is a copy.
    """
    sources, dim = expr.tensor_inputs, expr.attributes["dim"]
    axes, settle = [logical_axes(source)[dim] for source in sources], _same_axes if len(sources) == 1 else _pointwise
    if all(map(is_plain_broadcast, axes)) and expr.start is None:  # type: ignore[attr-defined]
        source = cast(fusion, sources[-1], expr.tensor_outputs[0].dtype())
        out, *positions = expr.tensor_outputs
        settle(fusion, expr, questions)
        fusion.remove(expr)
        fusion.register(LoadStoreOp([source], [out]))
        for places in positions:
            fusion.register(FullOp([constant(fusion, 0, places.dtype())], [places], op="full"))
        return None
    for source, axis in zip(sources, axes):
        if axis.expanded_extent is not None:
            fusion.replace_input(expr, source, with_elements_along(fusion, source, dim))
    return settle(fusion, expr, questions)


def _broadcast(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    kept = [a for a, new in zip(logical_axes(expr.tensor_outputs[0]), expr.attributes["flags"]) if not new]
    for axis, old in zip(kept, logical_axes(expr.tensor_inputs[0])):
        _copy_kind(axis, old)


def _squeeze(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    source = expr.tensor_inputs[0]
    kept = []
    for position, (axis, dropped) in enumerate(zip(logical_axes(source), expr.attributes["flags"])):
        if not dropped:
            kept.append(axis)
        elif not axis.is_broadcast():
            raise CannotSqueeze(
                problem="Can not squeeze dimension(s) with size != 1.", axis=position, tensor=source, extent=f"{axis.sym} = {questions.number(axis.sym)}"
            )
    for axis, old in zip(logical_axes(expr.tensor_outputs[0]), kept):
        _copy_kind(axis, old)


def _expand(fusion: Fusion, expr: Expr, questions: Questions) -> None:
    _check_extents(expr, questions)
    source = expr.tensor_inputs[0]
    for position, (axis, old) in enumerate(zip(logical_axes(expr.tensor_outputs[0]), logical_axes(source))):
        if not axis.is_open() and not (axis.is_iteration() and old.is_broadcast()):
            continue
        wanted = axis.logical_extent
        if is_plain_broadcast(old):
            _settle(axis, ONE, IterType.broadcast, None if questions.is_one(wanted) else wanted)
            continue
        if questions.number(old.logical_extent) != questions.number(wanted):
            sizes = questions.number(old.logical_extent), questions.number(wanted)
            raise ExpandMismatch(axis=position, tensor=source, extent=sizes[0], wanted=sizes[1])
        _copy_kind(axis, old)


def _reduction(fusion: Fusion, expr: ReductionOp, questions: Questions) -> None:
    """Squeeze axes that became broadcast; reduce the others."""
    source, out = expr.tensor_inputs[0], expr.tensor_outputs[0]
    old = logical_axes(source)
    gone = [d for d, (axis, was) in enumerate(zip(out.get_logical_domain(), old)) if axis.is_reduction() and was.is_broadcast()]
    if gone and isinstance(monoid_of(expr.attributes["kind"]), StateMonoid):
        return _state(fusion, expr, gone)
    repeats = [d for d in gone if old[d].expanded_extent is not None]
    kind = expr.attributes["kind"]
    if not gone:
        return _same_axes(fusion, expr, questions)
    squeezed = squeeze(fusion, source, gone, squeeze_expanded=True)
    left = [a for d, a in enumerate(out.get_logical_domain()) if d not in gone]
    for axis, was in zip(left, logical_axes(squeezed)):
        _copy_kind(axis, was)
    fusion.remove(expr)
    value = squeezed
    if any(a.is_reduction() for a in left):
        value = fusion.new_tensor([fusion.copy_axis(a) for a in left], out.dtype())
        fusion.register(ReductionOp([squeezed], [value], op=kind, kind=kind))
    for d in repeats:
        value = repeated(fusion, monoid_of(kind), value, fusion.new_scalar(old[d].logical_extent, DataType.Int))
    keep_axes(out, no_reductions(left))
    fusion.register(LoadStoreOp([cast(fusion, value, out.dtype())], [out]))
    return None


def _state(fusion: Fusion, expr: ReductionOp, gone: list[int]) -> None:
    """The same with a monoid of several fields, idempotent or over axes of extent 1: if nothing is left to reduce, the fields are the operands."""
    monoid: StateMonoid = monoid_of(expr.attributes["kind"])  # type: ignore[assignment]
    out = expr.tensor_outputs[0]
    operands = [squeeze(fusion, t, gone, squeeze_expanded=True) for t in expr.tensor_inputs]
    left = [a for d, a in enumerate(out.get_logical_domain()) if d not in gone]
    for axis, was in zip(left, logical_axes(operands[0])):
        _copy_kind(axis, was)
    keep_axes(out, left)
    fusion.remove(expr)
    if any(a.is_reduction() for a in left):
        fusion.register(ReductionOp(operands, [out], **expr.attributes))
        return
    for reader in list(out.uses()):
        field = list(monoid.fields).index(reader.op_name.partition(".")[2])
        value = reader.tensor_outputs[0]
        fusion.remove(reader)
        source = operands[monoid.of_one[field]]
        fusion.register(LoadStoreOp([cast(fusion, source, value.dtype())], [value]))


def _welford(fusion: Fusion, expr: WelfordOp, questions: Questions) -> None:
    source, outs = expr.tensor_inputs[0], expr.tensor_outputs
    old = logical_axes(source)
    reduced = [d for d, axis in enumerate(outs[0].get_logical_domain()) if axis.is_reduction()]
    gone = [d for d in reduced if old[d].is_broadcast()]
    if not gone:
        return _same_axes(fusion, expr, questions)
    expanded = next((d for d in gone if old[d].expanded_extent is not None), None)
    if expanded is not None:  # as many equal elements as a call has: their number is one of the results
        fusion.replace_input(expr, source, with_elements_along(fusion, source, expanded))
        return _welford(fusion, expr, questions)
    x = squeeze(fusion, source, gone, squeeze_expanded=True)
    for out in outs:
        left = [a for d, a in enumerate(out.get_logical_domain()) if d not in gone]
        for axis, was in zip(left, logical_axes(x)):
            _copy_kind(axis, was)
        keep_axes(out, left)
    if len(gone) < len(reduced):
        fusion.replace_input(expr, source, x)
        return None
    fusion.remove(expr)
    fusion.register(LoadStoreOp([x], [outs[0]]))
    for out, number in ((outs[1], 0.0), (outs[2], 1)):
        zero = pointwise(fusion, "sub", x, x)
        value = pointwise(fusion, "add", zero, number) if number else zero
        fusion.register(LoadStoreOp([cast(fusion, value, out.dtype())], [out]))
    return None


def _lookup(fusion: Fusion, expr: LookupOp, questions: Questions) -> None:
    if expr.op_name == "slice" and not expr.is_masked:
        _check_inside(expr, questions)
    elif expr.op_name == "select":
        _check_place(expr, questions)
    out = expr.tensor_outputs[0]
    for position, axis in enumerate(out.get_logical_domain()):
        number = questions.number(axis.logical_extent)
        if number is not None and number < 0:
            raise NegativeResult(op=expr.op_name, extent=number, axis=position, tensor=expr.source)
    _by_extents(fusion, expr, questions)


def _check_place(expr: LookupOp, questions: Questions) -> None:
    for dim, position, size in fixed_places(expr):
        check_place(expr, dim, questions.number(position), questions.number(size))


def _check_inside(expr: LookupOp, questions: Questions) -> None:
    """Refuse a slice that reaches outside of its tensor. Where a definition clamps its ends, symbolic sizes are taken to be 1 or more: of an axis without
    elements, the first element would be read. Errors: SliceOutside.
    """
    results = logical_axes(expr.tensor_outputs[0])
    for dim, (place, axis) in enumerate(zip(expr.positions, logical_axes(expr.source))):
        if not isinstance(place, Along):
            continue
        size, first, count = (questions.number(sym) for sym in (axis.logical_extent, place.offset, results[place.axis].logical_extent))
        if size is not None and first is not None and count is not None and count > 0 and not 0 <= first <= size - count:
            raise SliceOutside(first=first, last=first + count - 1, axis=dim, tensor=expr.source, size=size)


def _cat(fusion: Fusion, expr: CatOp, questions: Questions) -> None:
    dim = expr.attributes["dim"]
    for position, axis in enumerate(logical_axes(expr.tensor_outputs[0])):
        column = [logical_axes(t)[position] for t in expr.tensor_inputs]
        if position == dim:
            _settle_by_extent(axis, questions)
        elif axis.is_open():
            _copy_kind(axis, next((a for a in column if not a.is_broadcast()), column[0]))


# ---------------------------------------------------------------- reshape
def _reshape(fusion: Fusion, expr: ReshapeOp, questions: Questions) -> None:
    """Put a squeeze before a reshape and a broadcast after it, so that it has no axes of extent 1, and find its groups."""
    source, out = expr.tensor_inputs[0], expr.tensor_outputs[0]
    old, new = logical_axes(source), logical_axes(out)
    before, after = [questions.number(a.logical_extent) for a in old], [questions.number(a.logical_extent) for a in new]
    if None in before or None in after:
        return None
    _check_sizes(source, out, before, after)  # type: ignore[arg-type]
    if 0 in before:
        return _reshape_nothing(fusion, expr, questions)
    ones_before = [d for d, a in enumerate(old) if a.is_broadcast() and before[d] == 1]
    ones_after = [n == 1 for n in after]
    left = [n for d, n in enumerate(before) if d not in ones_before]
    wanted = [n for n in after if n != 1]
    steps = recipe(left, wanted)  # type: ignore[arg-type]
    groups = _groups(steps.groups)
    if not (out.has_root() and all(a.sym.is_const for a in old)):
        questions.record((tuple(ones_before), tuple(ones_after), groups, steps.squeezed))
    kept = [a for a, one in zip(new, ones_after) if not one]
    for axis, one in zip(new, ones_after):
        _settle(axis, ONE if one else axis.logical_extent, IterType.broadcast if one else IterType.iteration)
    rest = [a for d, a in enumerate(old) if d not in ones_before]
    rest = [a for d, a in enumerate(rest) if d not in steps.squeezed]
    for (first, *more), (second, *others) in groups:
        if not more and not others:
            _copy_kind(kept[second], rest[first])
    if ones_before:
        squeezed = squeeze(fusion, source, ones_before, squeeze_expanded=True)
        fusion.replace_input(expr, source, squeezed)
        source = squeezed
    if steps.squeezed:
        _select_first(fusion, expr, source, steps.squeezed)
    if any(ones_after):
        core = fusion.new_tensor([fusion.copy_axis(a) for a in kept], out.dtype())
        expr.outputs[:] = [core]
        core._definition = expr
        fusion.register(BroadcastOp([core], [out], op="broadcast", flags=tuple(ones_after)))
        out.domain().root = None
        for axis in new:
            axis._definition = None
    expr.attributes["groups"] = groups
    return None


def _reshape_nothing(fusion: Fusion, expr: ReshapeOp, questions: Questions) -> None:
    """Replace a reshape of a tensor without elements by a new tensor without elements: torch's ops read such tensors."""
    out = expr.tensor_outputs[0]
    questions.record(())
    fusion.remove(expr)
    out.domain().root = None
    for axis in logical_axes(out):
        axis._definition = None
    value = constant(fusion, MONOIDS["sum"].identity_value(out.dtype()), out.dtype())
    full = FullOp([value], [out], op="full")
    fusion.register(full)
    _by_extents(fusion, full, questions)


def _select_first(fusion: Fusion, expr: ReshapeOp, source: TensorView, dims: Sequence[int]) -> None:
    """Drop ordinary axes with one element in this call."""
    axes = logical_axes(source)
    kept = [d for d in range(len(axes)) if d not in dims]
    out = fusion.new_tensor([fusion.copy_axis(axes[d]) for d in kept], source.dtype())
    places = tuple(Fixed(ZERO) if d in dims else Along(kept.index(d)) for d in range(len(axes)))
    fusion.register(LookupOp([source], [out], op="select", positions=places, is_masked=False))
    fusion.replace_input(expr, source, out)


def _groups(groups: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Group, ...]:
    """Return a recipe's groups as positions."""
    out: list[Group] = []
    i = j = 0
    for count, sizes in groups:
        out.append((tuple(range(i, i + count)), tuple(range(j, j + len(sizes)))))
        i, j = i + count, j + len(sizes)
    return tuple(out)


def _check_sizes(source: TensorView, out: TensorView, before: Sequence[int], after: Sequence[int]) -> None:
    for axis, size in enumerate(after):
        if size < 0:
            raise WrongRuntimeSize(axis=axis, tensor=out, size=size)
    totals = [1, 1]
    for side, sizes in enumerate((before, after)):
        for n in sizes:
            totals[side] *= n
    if totals[0] != totals[1]:
        raise ElementCountsDiffer(tensor=source, old=totals[0], new=totals[1], shape=list(after))


_RULES: dict[type, Callable[[Fusion, Any, Questions], None]] = {
    PointwiseOp: _pointwise, LoadStoreOp: _same_axes, BroadcastOp: _broadcast, SqueezeOp: _squeeze, ExpandOp: _expand, ReductionOp: _reduction,
    WelfordOp: _welford, LookupOp: _lookup, BagOp: _lookup, CatOp: _cat, ReshapeOp: _reshape, ScanOp: _scan,
    FullOp: _factory, IotaOp: _factory, RandomOp: _factory,
}  # fmt: skip
