"""The derivative of a definition: its forward, with what it saves, and its backward, both fusions like any other.

Owns the walk from outputs to inputs; what flows through one expression is its op's rule (`weft.ops.gradients`), what is saved is chosen in `saving`, the
backward is cut out of the joint graph in `part`. Read first: `Derivative`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.layouts import memory_formats
from ..errors import UserError
from ..ir.enums import IterType, MemoryType
from ..ir.fusion import Fusion
from ..ir.values import BroadcastOp, Expr, IterDomain, PointwiseOp, Scalar, SqueezeOp, TensorDomain, TensorView, Val, no_reductions
from ..ops.build import cast, copy, is_plain_broadcast, logical_axes
from ..ops.calls import Calls
from ..ops.gradients import filled, flows, gradients_of, own_gradients_of
from ..ops.names import function_of  # noqa: F401  (loads the composites and their rules)
from . import saving
from .part import SizeOf, cut_out


class NothingToDifferentiate(UserError):
    code = "W136"
    what = "no gradient flows from the outputs to {inputs}"
    fix = "differentiate with respect to floating-point inputs that the outputs depend on other than through ops.detach"


@dataclass(frozen=True)
class Form:
    """The memory layout of the gradient of an output: contiguity from the outermost axis in memory, and which axes those are.

    expanded: axes of stride 0 that have more than one element.
    """

    contiguity: tuple[bool | None, ...]
    order: tuple[int, ...]
    expanded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Saved:
    """One saved tensor: an input (`input` is its position) or an output of the forward."""

    name: int
    input: int | None
    output: int | None


@dataclass(eq=False)
class Backward:
    """A backward: inputs are the saved tensors `used` (positions among all saved), then `scalars`, then one gradient per form that is not None.

    The gradient of the input at `positions[n]` is output `places[n]`: inputs with the same gradient, such as the terms of a sum, share an output.
    """

    fusion: Fusion
    used: tuple[int, ...]
    scalars: tuple[Scalar | SizeOf, ...]
    positions: tuple[int, ...]
    places: tuple[int, ...]


class Derivative:
    """A definition differentiated with respect to some of its inputs.

    forward: the definition, with saved tensors that are neither inputs nor outputs as additional outputs after its own. saved: what is saved, in order.
    count: outputs of the definition itself.
    Errors: NothingToDifferentiate, NotDifferentiable.
    """

    def __init__(self, fusion: Fusion, wrt: Sequence[int]) -> None:
        self.fusion, self.wrt = fusion, tuple(wrt)
        outputs = [v for v in fusion.outputs() if v not in fusion.hidden_outputs]
        self.count = len(outputs)
        joint = _Joint(fusion, self.wrt, [None if not flows(v) else plain_form(v) for v in outputs], outputs)
        if not joint.grads:
            names = ", ".join(str(fusion.inputs()[i]) for i in self.wrt) or "any input"
            raise NothingToDifferentiate(inputs=names)
        overwritten = {joint.image[v] for v in fusion.aliases.values()}
        saved = saving.chosen(joint.fusion, joint.primal, joint.needed(), overwritten)  # type: ignore[arg-type]
        back = {image: value for value, image in joint.image.items()}
        kept = [back[t] for t in saved]
        self.forward, image = fusion.clone()
        self.saved = []
        for value in kept:
            position = next((i for i, v in enumerate(fusion.inputs()) if v is value), None)
            if position is None and not any(v is value for v in outputs):
                outputs.append(value)
                self.forward.add_output(image[value])
            place = None if position is not None else next(i for i, v in enumerate(outputs) if v is value)
            self.saved.append(Saved(value.name, position, place))
        self.outputs = outputs
        formats = memory_formats(self.forward, [image[v] for v in outputs])
        self._orders = {s.name: _order_in_memory(image[outputs[s.output]], formats) for s in self.saved if s.output is not None}  # type: ignore[arg-type]
        self._backwards: dict[tuple[Form | None, ...], Backward] = {}

    def backward(self, forms: Sequence[Form | None]) -> Backward:
        """Return the backward for gradients with the layouts `forms`: one per output of `forward`, None if there is no gradient."""
        key = tuple(forms)
        found = self._backwards.get(key)
        if found is None:
            found = self._backwards[key] = self._make(key)
        return found

    def _make(self, forms: tuple[Form | None, ...]) -> Backward:
        joint = _Joint(self.fusion, self.wrt, list(forms), self.outputs)
        names = {t.name: t for t in joint.primal_tensors}
        all_saved = [names[s.name] for s in self.saved]
        reached = joint.reached_from_grads(all_saved)
        used = tuple(i for i, t in enumerate(all_saved) if t in reached)
        tangents = [t for t in joint.tangents if t is not None]
        orders = {all_saved[i]: self._orders[self.saved[i].name] for i in used if self.saved[i].name in self._orders}
        contiguity = {t: joint.contiguity[t] for t in tangents}
        distinct = list(dict.fromkeys(joint.grads.values()))
        cut = cut_out(joint.fusion, [*(all_saved[i] for i in used), *tangents], distinct, contiguity, orders)
        part = cut.fusion  # scalars are between saved tensors and gradients
        tensors, scalars = part._inputs[: len(used) + len(tangents)], part._inputs[len(used) + len(tangents) :]
        part._inputs = [*tensors[: len(used)], *scalars, *tensors[len(used) :]]
        originals = {joint.image[v]: v for v in self.fusion.inputs()}
        scalar_sources = tuple(originals.get(s, s) for s in cut.scalars)  # type: ignore[arg-type]
        places = tuple(distinct.index(grad) for grad in joint.grads.values())
        return Backward(part, used, scalar_sources, tuple(joint.grads), places)  # type: ignore[arg-type]


def _without_casts(tensor: TensorView) -> object:
    """Return the key of a tensor without its casts, which is equal for equal casts of one tensor: (... ((tensor, type), type) ...)."""
    made_by = tensor.definition()
    if isinstance(made_by, PointwiseOp) and made_by.op_name == "cast" and isinstance(made_by.inputs[0], TensorView):
        return _without_casts(made_by.inputs[0]), tensor.dtype()
    return tensor


def _order_in_memory(output: TensorView, formats: dict[TensorView, list[IterDomain]]) -> tuple[int, ...]:
    """Return the axes of an output from the outermost in memory: as requested, as inherited from an input, or in logical order."""
    axes = no_reductions(output.get_logical_domain())
    return tuple(axes.index(axis) for axis in formats.get(output, output.get_allocation_domain()) if not axis.is_reduction())


def plain_form(value: Val) -> Form:
    """The form of a contiguous gradient of an output."""
    assert isinstance(value, TensorView)
    axes = logical_axes(value)
    is_one = [is_plain_broadcast(axis) for axis in axes]
    return Form(tuple(None if one else True for one in is_one), tuple(range(len(axes))))


class _Joint:
    """A copy of a definition with gradients of its outputs as further inputs and the gradients of its inputs computed.

    primal: its own expressions. tangents: one per output, None if there is no gradient. grads: by position of the input.
    """

    def __init__(self, fusion: Fusion, wrt: Sequence[int], forms: Sequence[Form | None], outputs: Sequence[Val]) -> None:
        self.fusion, self.image = fusion.clone()
        self.fusion.set_outputs(self.image[v] for v in outputs)
        self.primal: list[Expr] = self.fusion.exprs()
        self.primal_tensors = list(dict.fromkeys(v for v in self.fusion.vals() if isinstance(v, TensorView)))
        self.contiguity: dict[TensorView, Sequence[bool | None]] = {}
        self.tangents = [None if form is None else self._tangent(self.image[v], form) for v, form in zip(outputs, forms)]  # type: ignore[arg-type]
        self.grads: dict[int, TensorView] = {}
        self._results: dict[object, TensorView] = {}  # shared by all inputs that get the same gradient
        self._differentiate([self.image[v] for v in outputs], {i: self.image[fusion.inputs()[i]] for i in wrt})
        self._fold_axes_of_one()

    def _tangent(self, output: TensorView, form: Form) -> TensorView:
        axes = []
        for dim, axis in enumerate(logical_axes(output)):
            if dim in form.expanded:
                axes.append(self.fusion.new_axis(1, IterType.broadcast, expanded_extent=axis.logical_extent))
            elif axis.expanded_extent is not None:  # the result repeats its elements, its gradient does not
                axes.append(self.fusion.new_axis(axis.logical_extent))
            else:
                axes.append(self.fusion.copy_axis(axis))
        tangent = self.fusion.new_tensor(axes, output.dtype())
        plain = list(form.order) == list(range(len(axes)))
        tangent._domain = TensorDomain(None, axes, list(form.contiguity), None if plain else [axes[d] for d in form.order])
        self.contiguity[tangent] = form.contiguity
        tangent.memory_type = MemoryType.global_
        return tangent

    def _differentiate(self, outputs: Sequence[Val], wrt: dict[int, Val]) -> None:
        active = self._active(set(wrt.values()))
        flowing: dict[Val, TensorView] = {}
        for output, tangent in zip(outputs, self.tangents):
            if tangent is not None:
                self._accumulate(flowing, output, tangent)
        for expr in reversed(self.primal):
            if not any(v in active for v in expr.inputs):
                continue
            incoming = [flowing.get(out) for out in expr.outputs]
            if all(g is None for g in incoming):
                continue
            if expr.outputs[0] in self.fusion.own_gradients:
                for value, grad in own_gradients_of(self.fusion, expr.outputs[0], incoming[0]):  # type: ignore[arg-type]
                    if value in active:
                        self._accumulate(flowing, value, grad)
                continue
            for value, flow in zip(expr.inputs, gradients_of(self.fusion, expr, incoming)):
                if flow is not None and value in active:
                    self._accumulate(flowing, value, flow)
        for position, value in wrt.items():
            if value in flowing:
                self.grads[position] = self._result(flowing[value], value)  # type: ignore[arg-type]

    def _active(self, wrt: set[Val]) -> set[Val]:
        """Return the values that depend on the inputs of interest, and to which a gradient can flow."""
        active = {v for v in wrt if flows(v)}
        for expr in self.primal:
            if any(v in active for v in expr.inputs):
                active.update(out for out in expr.outputs if flows(out))
        return active

    def _accumulate(self, flowing: dict[Val, TensorView], value: Val, grad: TensorView) -> None:
        """Accumulate in the type of the values; 16-bit floats in Float until the result."""
        known = flowing.get(value)
        flowing[value] = grad if known is None else Calls(self.fusion).add(known, grad)

    def _result(self, grad: TensorView, value: TensorView) -> TensorView:
        """Return the gradient of an input: with its extents, type and memory order."""
        o = Calls(self.fusion)
        whole = filled(o, grad, value)
        key = _without_casts(whole), value.dtype()
        if key in self._results:
            return self._results[key]
        out: TensorView = cast(self.fusion, whole, value.dtype())  # type: ignore[assignment]
        if any(axis.expanded_extent is not None for axis in logical_axes(out)):
            out = o.add(out, o.full(value.shape(), 0.0, value.dtype()))
            out = cast(self.fusion, out, value.dtype())  # type: ignore[assignment]
        if out.is_fusion_input or out in self.tangents or out in self.primal_tensors:
            out = copy(self.fusion, out)  # type: ignore[assignment]
        if not any(axis.expanded_extent is not None for axis in logical_axes(value)):
            self._results[key] = out
        return out

    def _fold_axes_of_one(self) -> None:
        """Remove pairs of broadcast and squeeze that undo each other, in either order, from the gradients. Derivative rules add and drop axes one op at a time,
        and such pairs would hide from schedulers that tensors have the same axes.
        """
        own = set(self.primal)
        pairs = {BroadcastOp: SqueezeOp, SqueezeOp: BroadcastOp}
        for expr in self.fusion.exprs(self.grads.values()):
            inner = expr.tensor_inputs[0].definition() if type(expr) in pairs else None
            if inner is None or type(inner) is not pairs[type(expr)] or list(inner.attributes["flags"]) != list(expr.attributes["flags"]):
                continue
            out, source = expr.tensor_outputs[0], inner.tensor_inputs[0]
            self.fusion.replace_inputs([use for use in out.uses() if use not in own], out, source)
            if source.definition() is not None and source.definition() not in own:
                self.grads = {position: source if grad is out else grad for position, grad in self.grads.items()}

    def needed(self) -> set[TensorView]:
        """Return the tensors of the forward that the gradients read."""
        primal = set(self.primal_tensors)
        own = set(self.primal)
        return {t for expr in self.fusion.exprs(self.grads.values()) if expr not in own for t in expr.tensor_inputs if t in primal}

    def reached_from_grads(self, stops: Sequence[TensorView]) -> set[Val]:
        """Return the values that the gradients are computed from when `stops` are given."""
        ends, seen, waiting = set(stops), set(self.grads.values()), list(self.grads.values())
        while waiting:
            value = waiting.pop()
            definition = value.definition()
            if value in ends or definition is None:
                continue
            for source in definition.tensor_inputs:
                if source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return set(seen)

