"""Reshapes without a common factorization, moved through pointwise ops to inputs and results, where they are views of memory.

A reshape that stays reads its input from memory, so what is computed in front of it would be written there, and what is computed behind it read again:

    x[:, 1:] -> reshape -> f -> result      becomes      x[:, 1:] -> f -> reshape = the result's memory
    input -> f -> reshape -> pad            becomes      input's memory = reshape -> f -> pad

Owns when a reshape is moved, and the rewriting. Read first: `move_reshapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..analysis.plain_copies import is_plain_copy
from ..expr import Sym
from ..ir.block_ops import is_pointwise
from ..ir.fusion import Fusion
from ..ir.graph_ops import ReshapeOp
from ..ir.values import Expr, IterDomain, LoadStoreOp, PointwiseOp, TensorView, Val
from ..ops.build import broadcast, is_plain_broadcast, logical_axes
from ..ops.shapes import squeeze

Sides = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Groups of a reshape's axes: positions on this side, and those of the same elements on the other."""


def move_reshapes(fusion: Fusion, kept: Iterable[ReshapeOp]) -> bool:
    """Move reshapes of `kept` to results, or else to inputs, in place, where nothing but pointwise ops is between; tell whether one was moved.

    Before: all axes are decided, and each reshape has its groups. After: results keep their names.
    """
    alike: dict[object, list[ReshapeOp]] = {}
    for expr in kept:
        if not any(_has_ones(t) or t.is_fusion_output for t in expr.tensor_outputs) and not _has_ones(expr.tensor_inputs[0]):
            alike.setdefault((expr.attributes["groups"], _sizes(expr.tensor_inputs[0]), _sizes(expr.tensor_outputs[0])), []).append(expr)
    is_moved = False
    for exprs in alike.values():
        if _move_down(fusion, exprs):
            is_moved = True
            continue
        for expr in exprs:
            is_moved |= len(exprs) > 1 and _move_down(fusion, [expr]) or _move_up(fusion, expr)
    return is_moved


def _move_down(fusion: Fusion, reshapes: Sequence[ReshapeOp]) -> bool:
    """Compute what follows reshapes of equal sizes in front of them, if these are pointwise ops up to dense results."""
    source, groups = reshapes[0].tensor_inputs[0], reshapes[0].attributes["groups"]
    sides: Sides = tuple((new, old) for old, new in groups)
    starts = {e.tensor_outputs[0]: e.tensor_inputs[0] for e in reshapes}
    behind = _readers(fusion, starts)
    made = dict.fromkeys([*starts, *(t for e in behind for t in e.tensor_outputs)])
    others = dict.fromkeys(t for e in behind for t in e.tensor_inputs if t not in made)
    if not behind or any(map(_has_ones, made)) or not all(_fits(t, sides, source) for t in others):
        return False
    if not all(_is_dense(fusion, t) and _order(t, sides) if t.is_fusion_output else t.uses() for t in made):
        return False
    images: dict[Val, Val] = {t: starts[t] if t in starts else _turned(fusion, t, sides, source) for t in (*starts, *others)}
    for expr in behind:
        result = expr.tensor_outputs[0]
        images[result] = image = _like(fusion, result, sides, logical_axes(source))
        fusion.remove(expr)
        _register_like(fusion, expr, [images.get(v, v) for v in expr.inputs], image)
        if result.is_fusion_output:
            _lay_out(image, result, sides)
            fusion.register(ReshapeOp([image], [result], op="reshape", groups=groups, is_view=True))
    for reshape in reshapes:
        fusion.remove(reshape)
    return True


def _move_up(fusion: Fusion, reshape: ReshapeOp) -> bool:
    """Compute what a reshape reads behind it, from reshaped inputs, if these are dense and only pointwise ops are between."""
    source, out = reshape.tensor_inputs[0], reshape.tensor_outputs[0]
    sides: Sides = reshape.attributes["groups"]
    above = _sources(fusion, source, reshape)
    made = {t for e in above for t in e.tensor_outputs}
    ends = dict.fromkeys(t for e in above for t in e.tensor_inputs if t not in made)
    inputs = [t for t in ends if not _fits(t, sides, out)]
    if not inputs or not all(t.is_fusion_input and not _has_ones(t) and _is_dense(fusion, t) and _order(t, sides) for t in inputs):
        return False
    images: dict[Val, Val] = {}
    for tensor in ends:
        if tensor in inputs:
            images[tensor] = image = _like(fusion, tensor, sides, logical_axes(out))
            _lay_out(image, tensor, sides)
            fusion.register(ReshapeOp([tensor], [image], op="reshape", groups=sides, is_view=True))
        else:
            images[tensor] = _turned(fusion, tensor, sides, out)
    for expr in above:
        result = expr.tensor_outputs[0]
        images[result] = image = _like(fusion, result, sides, logical_axes(out))
        _register_like(fusion, expr, [images.get(v, v) for v in expr.inputs], image)
    fusion.replace_inputs(list(out.uses()), out, images[source])
    fusion.remove(reshape)
    return True


def _is_passed(expr: Expr) -> bool:
    """True for ops that compute each element from those at the same position."""
    return is_pointwise(expr) or is_plain_copy(expr)


def _readers(fusion: Fusion, tensors: Iterable[TensorView]) -> list[Expr]:
    """Return the pointwise ops that depend on tensors, in order; none if another op does."""
    found: list[Expr] = []
    reached = set(tensors)
    for expr in fusion.tensor_exprs():
        if any(t in reached for t in expr.tensor_inputs):
            if not _is_passed(expr):
                return []
            found.append(expr)
            reached.update(expr.tensor_outputs)
    return found


def _sources(fusion: Fusion, tensor: TensorView, reader: Expr) -> list[Expr]:
    """Return the pointwise ops that a tensor is computed by, in order; none if something besides `reader` needs one of their results."""
    found: list[Expr] = []
    wanted, readers = {tensor}, {id(reader)}
    for expr in reversed(fusion.tensor_exprs()):
        (out, *_) = expr.tensor_outputs
        if out in wanted and _is_passed(expr):
            if out.is_fusion_output or any(id(use) not in readers for use in out.uses()):
                return []
            found.append(expr)
            readers.add(id(expr))
            wanted.update(expr.tensor_inputs)
    return found[::-1]


def _has_ones(tensor: TensorView) -> bool:
    return any(axis.is_broadcast() for axis in logical_axes(tensor))


def _is_dense(fusion: Fusion, tensor: TensorView) -> bool:
    """True if a tensor in memory has no gaps, and no output is written into it, nor it into an input."""
    aliases = {*fusion.aliases, *fusion.aliases.values()}
    return False not in tensor.domain().contiguity and tensor not in aliases and tensor.dtype().bits >= 8


def _order(tensor: TensorView, sides: Sides) -> list[int]:
    """Return the memory order of the other side's axes in which they are the same memory; none if the axes of a group are not in one place of it."""
    axes = list(logical_axes(tensor))
    order = [axes.index(axis) for axis in tensor.domain().maybe_allocation]
    group_of = {d: group for group in sides for d in group[0]}
    out: list[int] = []
    while order:
        mine, theirs = group_of[order[0]]
        if tuple(order[: len(mine)]) != mine:
            return []
        out += theirs
        order = order[len(mine) :]
    return out


def _lay_out(image: TensorView, tensor: TensorView, sides: Sides) -> None:
    """Give a tensor the memory order of `tensor`, whose memory it is."""
    order = _order(tensor, sides)
    if order != sorted(order):
        domain = image.domain()
        domain.allocation = [domain.logical[d] for d in order]


def _fits(tensor: TensorView, sides: Sides, other: TensorView) -> bool:
    """True if an operand is a reshape of a tensor with the axes of `other`, or has one element along those that change, and so has one there, too."""
    if _reshaped(tensor, sides, other) is not None:
        return True
    axes = logical_axes(tensor)
    changed = [d for mine, other in sides if len(mine) > 1 or len(other) > 1 for d in mine]
    return len(axes) == sum(len(mine) for mine, _ in sides) and all(is_plain_broadcast(axes[d]) for d in changed)


def _reshaped(tensor: TensorView, sides: Sides, other: TensorView) -> TensorView | None:
    """Return what a reshape makes a tensor of, if it has the axes of `other`."""
    made = tensor.definition()
    if not isinstance(made, ReshapeOp) or tuple((new, old) for old, new in made.attributes.get("groups") or ()) != sides:
        return None
    (source,) = made.tensor_inputs
    changed = [d for mine, theirs in sides if len(mine) > 1 or len(theirs) > 1 for d in theirs]
    is_like = not _has_ones(source) and all(_sizes(source)[d] is _sizes(other)[d] for d in changed)
    return source if is_like else None


def _sizes(tensor: TensorView) -> tuple[Sym, ...]:
    return tuple(axis.logical_extent for axis in logical_axes(tensor))


def _turned(fusion: Fusion, tensor: TensorView, sides: Sides, other: TensorView) -> TensorView:
    """Return such an operand with the axes of `other`."""
    if (source := _reshaped(tensor, sides, other)) is not None:
        return source
    dropped = [d for mine, other in sides if len(mine) > 1 or len(other) > 1 for d in mine]
    flags = [len(mine) > 1 or len(other) > 1 for mine, other in sides for _ in other]
    return broadcast(fusion, squeeze(fusion, tensor, dropped), flags) if dropped else tensor


def _like(fusion: Fusion, tensor: TensorView, sides: Sides, other: Sequence[IterDomain]) -> TensorView:
    """Return a new tensor for the values of `tensor` with the axes of the other side, which has the axes `other`."""
    own = logical_axes(tensor)
    axes: list[IterDomain] = []
    for mine, theirs in sides:
        is_changed = len(mine) > 1 or len(theirs) > 1
        axes += [fusion.copy_axis(other[d]) for d in theirs] if is_changed else [fusion.copy_axis(own[d]) for d in mine]
    return fusion.new_tensor(axes, tensor.dtype())


def _register_like(fusion: Fusion, expr: Expr, inputs: Sequence[Val], out: TensorView) -> None:
    fusion.register(PointwiseOp(inputs, [out], **expr.attributes) if isinstance(expr, PointwiseOp) else LoadStoreOp(inputs, [out]))


__all__ = ["move_reshapes"]
