"""Rotations moved up to inputs: f(x, y) rotated is f of x rotated and y rotated, for pointwise ops, casts, broadcasts and permutes between.

Owns the rewriting of one rotation. `rolls.py` decides which rotations there are. Read first: `RollMover`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
from .window_places import WindowPlaces

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


def rolls_pay(fusion: Fusion, roll: RollOp, stored: set[TensorView], window: WindowPlaces | None) -> bool:
    """Tell whether a rotation can move up to inputs, and these are few enough to be read instead of the tensor between. stored: tensors that are read like
    inputs, to which its operand is added if it is one. window: the places at which that is read, if it may be."""
    reach, source = _Reach(stored), roll.tensor_inputs[0]
    if source.is_fusion_input or source in stored or not reach.reaches_inputs(source, roll.rolls):
        return False
    found, ends = reach.found, reach.ends
    chain = [e for tensor, _ in found if (e := tensor.definition()) is not None]
    if window is not None and window.are_costly(fusion, source, chain):
        stored.add(source)
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
    return cost_of(chain, ()).instructions <= MOST_INSTRUCTIONS


def _is_only_stored(fusion: Fusion, tensor: TensorView) -> bool:
    """Tell whether a tensor is a result, or what one operand each makes of it is."""
    uses = [e for e in fusion.tensor_exprs() if tensor in e.inputs]
    is_plain = all(is_copy(e) or isinstance(e, PointwiseOp) and len(e.tensor_inputs) == 1 for e in uses)
    return is_plain and bool(uses or tensor in fusion.outputs()) and all(_is_only_stored(fusion, e.tensor_outputs[0]) for e in uses)


class _Reach:
    """What a rotated tensor is computed from. found: computed tensors, and how they are rotated; ends: the same of inputs."""

    def __init__(self, stored: Collection[TensorView]) -> None:
        self.stored = stored
        self.found: dict[tuple[TensorView, Rolls], None] = {}
        self.ends: dict[tuple[TensorView, Rolls], None] = {}

    def reaches_inputs(self, tensor: TensorView, rolls: Rolls) -> bool:
        """Tell whether `tensor`, rotated, is computed from rotated inputs."""
        if (tensor, rolls) in self.found:
            return True
        definition = tensor.definition()
        if isinstance(definition, RollOp):
            merged, tensor = combined(definition.rolls, rolls, logical_axes(tensor)), definition.tensor_inputs[0]
            if merged is None or not self._is_end(tensor):
                return False
            rolls = merged
        if self._is_end(tensor):
            self.ends[tensor, rolls] = None
            return True
        self.found[tensor, rolls] = None
        if not rolls or isinstance(definition, FullOp):
            return True
        if len(self.found) > MOST_INSTRUCTIONS or not (isinstance(definition, (BroadcastOp, SqueezeOp)) or is_pointwise(definition) or is_copy(definition)):
            return False
        assert definition is not None
        operands = [(t, _of_operand(definition, t, rolls)) for t in definition.tensor_inputs]
        return all(own is not None and self.reaches_inputs(t, own) for t, own in operands)

    def _is_end(self, tensor: TensorView) -> bool:
        return tensor.is_fusion_input or tensor in self.stored


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
    """Computes a rotated tensor from rotated inputs. stored: tensors that are read like inputs. made: rotated tensors so far, also those of other rotations."""

    def __init__(self, fusion: Fusion, roll: RollOp, stored: Collection[TensorView], made: Rotated) -> None:
        self.fusion, self.roll, self.stored, self.made = fusion, roll, stored, made

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
            if definition is None or tensor in self.stored:
                fusion.register(RollOp([tensor], [found], op="roll", rolls=rolls))
            else:
                inputs = [self.image(v, _of_operand(definition, v, rolls) or ()) if isinstance(v, TensorView) else v for v in definition.inputs]
                copy = LoadStoreOp(inputs, [found]) if isinstance(definition, LoadStoreOp) else type(definition)(inputs, [found])
                copy.attributes.update(definition.attributes)
                fusion.register(copy)
        return found


__all__ = ["RollMover", "Rolls", "Rotated", "combined", "rolls_pay"]
