"""Rotations (torch.roll): which lookups are one, and where they are done.

A rotation of a computed tensor would have to read it from memory. It need not: rotated, an input is read at other places, and a result is written to other
places, while loops and arithmetic stay as they are. So a rotation moves up to the inputs of a chain of pointwise ops, or else down to the tensors that are
written; a sum over the rotated axes needs none. Windows cut out of an image, or put together, are reshapes, whose axes stay together in a `Roll`.
Owns finding them, and moving them down; `moved_rolls.py` moves them up. Read first: `find_rolls`, `place_rolls`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..analysis.axes import pairwise
from ..analysis.plain_copies import is_copy
from ..expr import Sym, mod, product, sub
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, BagOp, CatOp, LookupOp, RollOp
from ..ir.values import (
    BroadcastOp, ExpandOp, Expr, IotaOp, IterDomain, LoadStoreOp, PointwiseOp, ReductionOp, Roll, Scalar, SqueezeOp, TensorDomain, TensorView,
)  # fmt: skip
from ..ops.build import logical_axes
from ..schedule.caching import without_reductions
from .moved_rolls import RollMover, Rolls, Rotated, combined, rolls_pay
from .rolled_windows import look_up_rolls, places_of_rolls


def find_rolls(fusion: Fusion) -> None:
    """Replace lookups along one axis at the positions i + s, less the extent where that is beyond the end, by `RollOp`s, in place. One of which another lookup
    reads a part, also behind pointwise ops, stays: both are one lookup later, and no kernel looks up what it reads rotated.

    Before: no axis is cut.
    """
    found = {e: roll for e in fusion.tensor_exprs() if isinstance(e, LookupOp) and (roll := _roll_of(e)) is not None}
    for expr, roll in found.items():
        if _is_cut(expr.tensor_outputs[0], found):
            continue
        source, (out,) = expr.tensor_inputs[0], expr.tensor_outputs
        rolls: Rolls = (roll,)
        above = source.definition()
        if isinstance(above, RollOp) and (merged := combined(above.rolls, rolls, logical_axes(source))) is not None:
            source, rolls = above.tensor_inputs[0], merged
        fusion.remove(expr)
        fusion.register(RollOp([source], [out], op="roll", rolls=rolls) if rolls else LoadStoreOp([source], [out]))


def _is_cut(tensor: TensorView, rolls: Collection[Expr]) -> bool:
    """Tell whether other lookups than rotations, or a cat, read a tensor, or what pointwise ops and views make of it."""
    stack, seen = [tensor], {tensor}
    while stack:
        for use in stack.pop().uses():
            if isinstance(use, (LookupOp, CatOp)) and use not in rolls:
                return True
            if isinstance(use, (PointwiseOp, BroadcastOp, SqueezeOp, LoadStoreOp, ExpandOp)) or use in rolls:
                more = [t for t in use.tensor_outputs if t not in seen]
                stack += more
                seen.update(more)
    return False


def _roll_of(expr: LookupOp) -> Roll | None:
    """Return the rotation that a lookup is; None for another one."""
    source, out = logical_axes(expr.source), logical_axes(expr.tensor_outputs[0])
    dims = [d for d, place in enumerate(expr.positions) if not isinstance(place, Along) or place != Along(d)]
    if expr.is_masked or isinstance(expr, BagOp) or len(source) != len(out) or len(dims) != 1 or not isinstance(place := expr.positions[dims[0]], At):
        return None
    extent, own = source[dims[0]].logical_extent, out[dims[0]]
    if extent is not own.logical_extent or not own.is_iteration() or not source[dims[0]].is_iteration():
        return None
    offset = _rotation(expr.inputs[place.operand], extent)  # type: ignore[arg-type]
    return None if offset is None else Roll((dims[0],), offset)


def _rotation(index: TensorView, extent: Sym) -> Sym | None:
    """Return s if an index is where(i + s < extent, i + s, i + s - extent) for the positions i, and 0 <= s < extent."""
    chosen = _made(index)
    if not isinstance(chosen, PointwiseOp) or chosen.op_name != "where":
        return None
    test, moved, back = (_made(v) for v in chosen.inputs)
    names = [e.op_name if isinstance(e, PointwiseOp) else "" for e in (test, moved, back)]
    if names != ["lt", "add", "sub"] or any(_made(e.inputs[0]) is not moved or not _is(e.inputs[1], extent) for e in (test, back)):  # type: ignore[union-attr]
        return None
    counted, offset = _made(moved.inputs[0]), moved.inputs[1]  # type: ignore[union-attr]
    if not isinstance(counted, IotaOp) or not isinstance(offset, Scalar) or not offset.sym.is_const or not extent.is_const:
        return None
    is_plain = _is_number(counted.inputs[1], 0) and _is_number(counted.inputs[2], 1)
    return offset.sym if is_plain and 0 <= offset.sym.value < extent.value else None  # type: ignore[operator]


def _made(value: object) -> Expr | None:
    """Return what computes a tensor, before broadcasts, copies and casts of integers."""
    while isinstance(value, TensorView):
        expr = value.definition()
        is_cast = isinstance(expr, PointwiseOp) and expr.op_name == "cast" and expr.tensor_inputs and expr.tensor_inputs[0].dtype().is_integer
        if not isinstance(expr, BroadcastOp) and not is_copy(expr) and not is_cast:
            return expr
        value = expr.inputs[0]  # type: ignore[union-attr]
    return None


def _is(value: object, sym: Sym) -> bool:
    return isinstance(value, Scalar) and (value.sym is sym or value.sym.is_const and sym.is_const and value.sym.value == sym.value)


def _is_number(value: object, number: int) -> bool:
    return isinstance(value, Scalar) and value.sym.is_const and value.sym.value == number


# ---------------------------------------------------------------- where they are done
def place_rolls(fusion: Fusion) -> None:
    """Move each rotation to inputs, where only pointwise ops lie between, or to outputs; in place.

    Before: axes are atoms. After: a rotation that reads no input is stored by the kernel that computes its operand; those that are lookups
    (`rolled_windows.py`) read inputs, and tensors that cost too much to compute again for each of them. The values are the same, but for the order in which
    rotated axes are summed.
    """
    made, stored, windows = Rotated(), set[TensorView](), places_of_rolls(fusion)
    for expr in fusion.tensor_exprs():
        if isinstance(expr, RollOp) and rolls_pay(fusion, expr, stored, windows.get(expr.tensor_inputs[0])):
            RollMover(fusion, expr, stored, made).run()
    while any(_moved_down(fusion, expr) for expr in fusion.tensor_exprs() if isinstance(expr, RollOp) and not _is_read(expr, stored)):
        pass
    look_up_rolls(fusion, stored)


def _is_read(roll: RollOp, stored: Collection[TensorView]) -> bool:
    return roll.tensor_inputs[0].is_fusion_input or roll.tensor_inputs[0] in stored


def _moved_down(fusion: Fusion, roll: RollOp) -> bool:
    """Move a rotation behind the expressions that read it: behind all of them, or sums that need none; tell whether any did."""
    (out,) = roll.tensor_outputs
    behind = {use: _behind(use, out, roll.rolls) for use in _live(fusion, out)}
    whole = not out.is_fusion_output and all(rolls is not None for rolls in behind.values())
    moved = [use for use, rolls in behind.items() if whole or rolls == ()]
    for use in moved:
        for operand in dict.fromkeys(use.tensor_inputs):
            if operand is out or _is_rolled_alike(use, operand, behind[use]):
                fusion.replace_input(use, operand, operand.definition().tensor_inputs[0])  # type: ignore[union-attr]
        if behind[use]:
            _roll_result(fusion, use, behind[use])  # type: ignore[arg-type]
    return bool(moved)


def _live(fusion: Fusion, tensor: TensorView) -> list[Expr]:
    return [e for e in fusion.tensor_exprs() if tensor in e.inputs]


def _behind(use: Expr, operand: TensorView, rolls: Rolls) -> Rolls | None:
    """Return the rotations of a result that equal those of an operand; None if there are none."""
    is_known = isinstance(use, (PointwiseOp, BroadcastOp, SqueezeOp)) or is_copy(use) or isinstance(use, ReductionOp) and len(use.tensor_inputs) == 1
    if not is_known or not _has_plain_axes(use.tensor_outputs[0]):
        return None
    mine = _across(use, operand, rolls)
    for other in use.tensor_inputs if mine is not None else ():
        if other is not operand and not _is_rolled_alike(use, other, mine) and not _is_constant_along(other, rolls):
            return None
    return mine


def _is_rolled_alike(use: Expr, operand: TensorView, rolls: Rolls | None) -> bool:
    """True if an operand is a rotated tensor, with the rotations `rolls` of the result's axes."""
    above = operand.definition()
    return isinstance(above, RollOp) and bool(rolls) and _across(use, operand, above.rolls) == rolls


def _across(use: Expr, operand: TensorView, rolls: Rolls) -> Rolls | None:
    """Return rotations of an operand's axes as those of the result's; an axis that is summed needs none, if all that belong to it are."""
    source, place = logical_axes(operand), {axis: n for n, axis in enumerate(logical_axes(use.tensor_outputs[0]))}
    at: dict[IterDomain, int | None] = {a: place.get(b) for a, b in pairwise(operand, use.tensor_outputs[0], use)}
    out: list[Roll] = []
    for roll in rolls:
        axes = [at.get(source[a]) for a in roll.axes]
        if None not in axes:
            out.append(Roll(tuple(axes), roll.offset))  # type: ignore[arg-type]
        elif any(a is not None for a in axes) or not isinstance(use, ReductionOp):
            return None
    return tuple(sorted(out, key=lambda r: r.axes))


def _is_constant_along(tensor: TensorView, rolls: Rolls) -> bool:
    axes = logical_axes(tensor)
    return all(axes[a].is_broadcast() for roll in rolls for a in roll.axes)


def _has_plain_axes(tensor: TensorView) -> bool:
    """True if the axes of a tensor are those of its root in some order."""
    return set(tensor.get_maybe_root_domain()) == set(tensor.get_logical_domain())


def _roll_result(fusion: Fusion, expr: Expr, rolls: Rolls) -> None:
    """Let an expression compute its result before the rotation, which gives the result."""
    out = expr.tensor_outputs[0]
    images = {axis: fusion.copy_axis(axis) for axis in out.get_maybe_root_domain()}
    root = list(images.values()) if out.has_root() else None
    before = fusion.new_tensor([images[a] for a in out.get_logical_domain()], out.dtype(), root=root)
    fusion.redefine(expr, out, before)
    out._domain = _as_copied(out.domain())
    fusion.register(RollOp([before], [out], op="roll", rolls=rolls))


def _as_copied(domain: TensorDomain) -> TensorDomain:
    """Return the domain of a copy, with the user's axes."""
    copied = without_reductions(domain)
    if domain.user is not None:
        kept = tuple(p for axis, p in zip(domain.maybe_allocation, domain.user.stride_positions) if not axis.is_reduction())
        copied.user = replace(domain.user, stride_positions=kept)
    return copied


def where_written(roll: RollOp) -> Rolls:
    """Return where a kernel that computes the operand of a rotation writes its elements in the memory of the result."""
    axes = logical_axes(roll.tensor_outputs[0])
    wholes = [product(axes[a].logical_extent for a in one.axes) for one in roll.rolls]
    return tuple(Roll(one.axes, mod(sub(whole, one.offset), whole)) for one, whole in zip(roll.rolls, wholes))


__all__ = ["find_rolls", "place_rolls", "where_written"]
