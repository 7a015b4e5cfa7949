"""Rotations moved up to inputs: f(x, y) rotated is f of x rotated and y rotated, for pointwise ops, casts, broadcasts and permutes between.

Owns the rewriting of one rotation. `rolls.py` decides which rotations there are. Read first: `RollMover`.
"""

from __future__ import annotations

from ..analysis.axes import pairwise
from ..analysis.plain_copies import is_copy
from ..ir.block_ops import is_pointwise
from ..ir.fusion import Fusion
from ..ir.graph_ops import RollOp
from ..ir.values import BroadcastOp, Expr, FullOp, LoadStoreOp, Roll, SqueezeOp, TensorView
from ..ops.build import logical_axes
from .lookups import MOST_INSTRUCTIONS, MOST_SOURCES, MOST_SOURCES_OF_A_SHARED_TENSOR

Rolls = tuple[Roll, ...]


def combined(first: Rolls, second: Rolls) -> Rolls | None:
    """Return the rotations of both, which are along different axes; None if they are not."""
    return None if {a for r in first for a in r.axes} & {a for r in second for a in r.axes} else (*first, *second)


def rolls_pay(fusion: Fusion, roll: RollOp) -> bool:
    """Tell whether a rotation can move up to inputs, and these are few enough to be read instead of the tensor between."""
    found: dict[tuple[TensorView, Rolls], None] = {}
    source = roll.tensor_inputs[0]
    if source.is_fusion_input or not _reaches_inputs(source, roll.rolls, found):
        return False
    ends = {tensor for tensor, rolls in found if rolls and (tensor.definition() is None or isinstance(tensor.definition(), RollOp))}
    is_shared = source in fusion.outputs() or any(e is not roll and source in e.inputs for e in fusion.tensor_exprs())
    return len(ends) <= (MOST_SOURCES_OF_A_SHARED_TENSOR if is_shared else MOST_SOURCES)


def _reaches_inputs(tensor: TensorView, rolls: Rolls, found: dict[tuple[TensorView, Rolls], None]) -> bool:
    if (tensor, rolls) in found:
        return True
    found[tensor, rolls] = None
    definition = tensor.definition()
    if not rolls or tensor.is_fusion_input or isinstance(definition, FullOp):
        return True
    if isinstance(definition, RollOp):
        return definition.tensor_inputs[0].is_fusion_input and combined(definition.rolls, rolls) is not None
    if len(found) > MOST_INSTRUCTIONS or not (isinstance(definition, (BroadcastOp, SqueezeOp)) or is_pointwise(definition) or is_copy(definition)):
        return False
    assert definition is not None
    operands = [(t, _of_operand(definition, t, rolls)) for t in definition.tensor_inputs]
    return all(own is not None and _reaches_inputs(t, own, found) for t, own in operands)


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
    """Computes a rotated tensor from rotated inputs. made: rotated tensors so far."""

    def __init__(self, fusion: Fusion, roll: RollOp) -> None:
        self.fusion, self.roll = fusion, roll
        self.made: dict[tuple[TensorView, Rolls], TensorView] = {}

    def run(self) -> None:
        """Replace the rotation."""
        source, out = self.roll.tensor_inputs[0], self.roll.tensor_outputs[0]
        image = self.image(source, self.roll.rolls)
        self.fusion.remove(self.roll)
        self.fusion.register(LoadStoreOp([image], [out]))

    def image(self, tensor: TensorView, rolls: Rolls) -> TensorView:
        """Return `tensor` rotated."""
        definition = tensor.definition()
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
            elif isinstance(definition, RollOp):
                fusion.register(RollOp(definition.inputs, [found], op="roll", rolls=combined(definition.rolls, rolls)))
            else:
                inputs = [self.image(v, _of_operand(definition, v, rolls) or ()) if isinstance(v, TensorView) else v for v in definition.inputs]
                copy = LoadStoreOp(inputs, [found]) if isinstance(definition, LoadStoreOp) else type(definition)(inputs, [found])
                copy.attributes.update(definition.attributes)
                fusion.register(copy)
        return found


__all__ = ["RollMover", "rolls_pay"]
