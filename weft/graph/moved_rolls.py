"""Rotations moved up to inputs: f(x, y) rotated is f of x rotated and y rotated, for pointwise ops, casts, broadcasts and permutes between.

Owns the rewriting of one rotation. `rolls.py` decides which rotations there are. Read first: `RollMover`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.axes import pairwise
from ..analysis.op_cost import cost_of
from ..analysis.plain_copies import is_copy
from ..expr import ZERO, add, mod, product
from ..ir.block_ops import is_pointwise
from ..ir.fusion import Fusion
from ..ir.graph_ops import RollOp
from ..ir.values import BroadcastOp, Expr, FullOp, IterDomain, LoadStoreOp, PointwiseOp, Roll, SqueezeOp, TensorView
from ..ops.build import logical_axes
from .lookups import MOST_INSTRUCTIONS, MOST_SOURCES, MOST_SOURCES_OF_A_SHARED_TENSOR

Rolls = tuple[Roll, ...]
Rotated = dict[tuple[TensorView, Rolls], TensorView]
"""Tensors rotated: by the tensor and its rotations."""


def combined(first: Rolls, second: Rolls, axes: Sequence[IterDomain]) -> Rolls | None:
    """Return the rotations of both, the sum of those along the same of a tensor's `axes`; None if two have only some axes in common."""
    found = dict[tuple[int, ...], Roll]()
    for roll in (*first, *second):
        before = found.pop(roll.axes, None)
        if any(not set(other).isdisjoint(roll.axes) for other in found):
            return None
        offset = roll.offset if before is None else mod(add(before.offset, roll.offset), product(axes[a].logical_extent for a in roll.axes))
        if offset is not ZERO:
            found[roll.axes] = Roll(roll.axes, offset)
    return tuple(found.values())


def rolls_pay(fusion: Fusion, roll: RollOp) -> bool:
    """Tell whether a rotation can move up to inputs, and these are few enough to be read instead of the tensor between."""
    found: dict[tuple[TensorView, Rolls], None] = {}
    ends: dict[tuple[TensorView, Rolls], None] = {}
    source = roll.tensor_inputs[0]
    if source.is_fusion_input or not _reaches_inputs(source, roll.rolls, found, ends):
        return False
    tensors = {tensor for tensor, _ in ends}
    is_shared = any(e is not roll and source in e.inputs for e in fusion.tensor_exprs())
    is_of_rows = any(not rolls and not isinstance(tensor.definition(), FullOp) for tensor, rolls in found)  # such as their sums
    if (is_shared or is_of_rows) and _is_only_stored(fusion, roll.tensor_outputs[0]):
        return False  # what is computed in place can be written at rotated places, too
    if source in fusion.outputs():
        return len(tensors) <= MOST_SOURCES_OF_A_SHARED_TENSOR
    if len(tensors) > MOST_SOURCES or not is_shared:
        return len(ends) <= MOST_SOURCES
    chain = dict.fromkeys(e for tensor, _ in found if (e := tensor.definition()) is not None)  # computed twice
    return cost_of(chain, ()).instructions <= MOST_INSTRUCTIONS


def _is_only_stored(fusion: Fusion, tensor: TensorView) -> bool:
    """Tell whether a tensor is a result, or what one operand each makes of it is."""
    uses = [e for e in fusion.tensor_exprs() if tensor in e.inputs]
    is_plain = all(is_copy(e) or isinstance(e, PointwiseOp) and len(e.tensor_inputs) == 1 for e in uses)
    return is_plain and bool(uses or tensor in fusion.outputs()) and all(_is_only_stored(fusion, e.tensor_outputs[0]) for e in uses)


def _reaches_inputs(tensor: TensorView, rolls: Rolls, found: dict[tuple[TensorView, Rolls], None], ends: dict[tuple[TensorView, Rolls], None]) -> bool:
    """Tell whether `tensor`, rotated, is computed from rotated inputs. found: what is computed, rotated how; ends: the same of inputs."""
    if (tensor, rolls) in found:
        return True
    definition = tensor.definition()
    if isinstance(definition, RollOp):
        merged, source = combined(definition.rolls, rolls, logical_axes(tensor)), definition.tensor_inputs[0]
        if merged is None or not source.is_fusion_input:
            return False
        tensor, rolls = source, merged
    if tensor.is_fusion_input:
        ends[tensor, rolls] = None
        return True
    found[tensor, rolls] = None
    if not rolls or isinstance(definition, FullOp):
        return True
    if len(found) > MOST_INSTRUCTIONS or not (isinstance(definition, (BroadcastOp, SqueezeOp)) or is_pointwise(definition) or is_copy(definition)):
        return False
    assert definition is not None
    operands = [(t, _of_operand(definition, t, rolls)) for t in definition.tensor_inputs]
    return all(own is not None and _reaches_inputs(t, own, found, ends) for t, own in operands)


def _of_operand(expr: Expr, operand: TensorView, rolls: Rolls) -> Rolls | None:
    """Return rotations of a result's axes as those of an operand's: none along axes that it lacks, or of which it has one element. None if it has some of the
    axes that belong together."""
    out, place = logical_axes(expr.tensor_outputs[0]), {axis: n for n, axis in enumerate(logical_axes(operand))}
    at = {b: place[a] for a, b in pairwise(operand, expr.tensor_outputs[0], expr) if not a.is_broadcast()}
    found: list[Roll] = []
    for roll in rolls:
        axes = [at.get(out[a]) for a in roll.axes]
        if None not in axes:
            found.append(Roll(tuple(axes), roll.offset))  # type: ignore[arg-type]
        elif any(a is not None for a in axes):
            return None
    return tuple(found)


class RollMover:
    """Computes a rotated tensor from rotated inputs. made: rotated tensors so far, also those of other rotations."""

    def __init__(self, fusion: Fusion, roll: RollOp, made: Rotated) -> None:
        self.fusion, self.roll, self.made = fusion, roll, made

    def run(self) -> None:
        """Replace the rotation."""
        source, out = self.roll.tensor_inputs[0], self.roll.tensor_outputs[0]
        image = self.image(source, self.roll.rolls)
        self.fusion.remove(self.roll)
        self.fusion.register(LoadStoreOp([image], [out]))

    def image(self, tensor: TensorView, rolls: Rolls) -> TensorView:
        """Return `tensor` rotated."""
        definition = tensor.definition()
        if isinstance(definition, RollOp) and rolls:
            merged = combined(definition.rolls, rolls, logical_axes(tensor))
            assert merged is not None
            return self.image(definition.tensor_inputs[0], merged)
        if not rolls or isinstance(definition, FullOp):
            return tensor
        found = self.made.get((tensor, rolls))
        if found is None:
            fusion = self.fusion
            images = {axis: fusion.copy_axis(axis) for axis in tensor.get_maybe_root_domain()}
            root = list(images.values()) if tensor.has_root() else None
            found = fusion.new_tensor([images[a] for a in tensor.get_logical_domain()], tensor.dtype(), root=root)
            self.made[tensor, rolls] = found
            if definition is None:
                fusion.register(RollOp([tensor], [found], op="roll", rolls=rolls))
            else:
                inputs = [self.image(v, _of_operand(definition, v, rolls) or ()) if isinstance(v, TensorView) else v for v in definition.inputs]
                copy = LoadStoreOp(inputs, [found]) if isinstance(definition, LoadStoreOp) else type(definition)(inputs, [found])
                copy.attributes.update(definition.attributes)
                fusion.register(copy)
        return found


__all__ = ["RollMover", "Rolls", "Rotated", "combined", "rolls_pay"]
