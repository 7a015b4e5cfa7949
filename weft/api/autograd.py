"""Gradients of definitions in torch: what `fd.autograd()` returns, and the autograd.Function behind it.

Owns the way from inputs that require gradients to a forward that saves and a backward that runs, both through the caches of executors. The derivative itself is
`weft.autograd`. Read first: `Differentiable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..autograd.derive import Backward, Derivative, Form, plain_form
from ..autograd.part import SizeOf
from ..errors import Unsupported
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..ops.gradients import flows
from ..runtime.arguments import flattened
from . import executors
from .inputs import compute_tensor_descriptor

if TYPE_CHECKING:
    from .definition import FusionDefinition


class NoGradientThroughAlias(Unsupported):
    code = "W137"
    what = "gradients with respect to {value}, which an output is written into"
    fix = "leave alias_input out where gradients are recorded, or detach the input"


class Differentiable:
    """A definition whose executions record gradients: calling it, or `execute`, gives outputs through which `backward()` flows to the inputs.

    An input that is overwritten (alias_input) cannot require a gradient. Gradients of gradients work where the rules of all ops of the backward do.
    definition_of_backward(*inputs): the text of the backward for such inputs.
    """

    def __init__(self, fusion: Fusion, forward: Any = None) -> None:
        self.fusion = fusion
        self._plain = executors.executor_cache(fusion) if forward is None else forward
        self._inputs = fusion.inputs()
        self._floats = [i for i, v in enumerate(self._inputs) if isinstance(v, TensorView) and v.dtype().is_float]
        self._plans: dict[tuple[bool, ...], _Plan] = {}

    def __reduce__(self) -> Any:
        from .translate import translate_fusion

        return _made_again, (translate_fusion(self.fusion),)

    def __call__(self, *inputs: Any) -> Any:
        """Execute on `inputs`; return the output, or a tuple of them when there are several."""
        outputs = self.execute(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def execute(self, inputs: Sequence[Any], **keywords: Any) -> list[torch.Tensor]:
        """Execute on `inputs` as FusionDefinition.execute does, recording gradients where an input requires one."""
        if torch.is_grad_enabled():
            for i in self._floats:
                if inputs[i].requires_grad:
                    return self._recorded(inputs)
        return self._plain.execute(inputs, **keywords)

    def _recorded(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        values = inputs if isinstance(inputs, (list, tuple)) else flattened(inputs)
        plan = self.plan(tuple([values[i].requires_grad for i in self._floats]))
        apply = _Recorded.apply if torch._C._are_functorch_transforms_active() else _APPLY
        return list(apply(plan, *values)[: plan.count])

    def plan(self, requires: tuple[bool, ...]) -> "_Plan":
        """Return what is prepared for inputs of which those require gradients (floats only, in order)."""
        found = self._plans.get(requires)
        if found is None:
            wrt = [i for i, wanted in zip(self._floats, requires) if wanted]
            found = self._plans[requires] = _Plan(self.fusion, wrt)
        return found

    def definition_of_backward(self, *inputs: Any) -> str:
        """Return the backward for inputs that require gradients as these do (all floats when none does), as Python text."""
        from .translate import translate_fusion

        requires = tuple(bool(inputs) and inputs[i].requires_grad for i in self._floats)
        plan = self.plan(requires if any(requires) else tuple(True for _ in self._floats))
        return translate_fusion(plan.derivative.backward(plan.plain_forms()).fusion)


class _Step:
    """A backward that is ready to run."""

    def __init__(self, backward: Backward, plan: "_Plan") -> None:
        self.fusion, self.used, self.positions = backward.fusion, backward.used, backward.positions
        self.scalars = [plan.scalar_reader(s) for s in backward.scalars]
        self.executor = executors.executor_cache(backward.fusion)
        self._second: Differentiable | None = None

    def run(self, arguments: list[Any]) -> list[torch.Tensor]:
        """Run it; where gradients of gradients are wanted, record them."""
        if not torch.is_grad_enabled():
            return self.executor.execute(arguments)
        if self._second is None:
            self._second = Differentiable(self.fusion, self.executor)
        return self._second.execute(arguments)


class _Plan:
    """A definition with some inputs that require gradients: its forward with what it saves, its backwards by the layouts of gradients."""

    def __init__(self, fusion: Fusion, wrt: Sequence[int]) -> None:
        inputs = fusion.inputs()
        for target in fusion.aliases.values():
            if any(inputs[i] is target for i in wrt):
                raise NoGradientThroughAlias(value=target)
        self.inputs = inputs
        self.derivative = Derivative(fusion, wrt)
        self.count = self.derivative.count
        self.executor = executors.executor_cache(self.derivative.forward)
        self.outputs: list[Val] = self.derivative.outputs
        self.flat = [i for i, v in enumerate(self.outputs) if not flows(v)]
        self.saved_inputs = [s.input for s in self.derivative.saved]
        self.saved_outputs = [s.output for s in self.derivative.saved]
        self._steps: dict[tuple[Any, ...], _Step] = {}
        self._by_name = {v.name: i for i, v in enumerate(inputs) if isinstance(v, TensorView)}
        self.step(tuple(False if form is None else None for form in self.plain_forms()))  # errors of rules come with the forward

    def plain_forms(self) -> list[Form | None]:
        """Return the forms of contiguous gradients of the definition's own outputs."""
        return [_form(v, None) if i < self.count and flows(v) else None for i, v in enumerate(self.outputs)]

    def scalar_reader(self, scalar: Scalar | SizeOf) -> Callable[[Any], Any]:
        """Return how a scalar of a backward is read from the forward's inputs, of which sizes and numbers are kept."""
        if isinstance(scalar, SizeOf):
            position, dim = self._by_name[scalar.name], scalar.dim
            return lambda kept: kept[position][dim]
        position = next(i for i, v in enumerate(self.inputs) if v is scalar)
        return lambda kept: kept[position]

    def step(self, key: tuple[Any, ...]) -> _Step:
        """Return the backward for gradients of these layouts: False none, None contiguous, else (sizes, strides)."""
        found = self._steps.get(key)
        if found is None:
            forms = [None if k is False else _form(v, k) for v, k in zip(self.outputs, key)]
            found = self._steps[key] = _Step(self.derivative.backward(forms), self)
        return found


class _Recorded(torch.autograd.Function):
    """forward(plan, *inputs) -> outputs of the plan's forward, of which those behind the definition's own are for its backward."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *inputs: Any) -> tuple[torch.Tensor, ...]:
        outputs = plan.executor.execute(inputs)
        ctx.plan = plan
        ctx.kept = [v.shape if isinstance(v, torch.Tensor) else v for v in inputs]
        ctx.save_for_backward(*[outputs[o] if i is None else inputs[i] for i, o in zip(plan.saved_inputs, plan.saved_outputs)])
        ctx.set_materialize_grads(False)
        if plan.flat:
            ctx.mark_non_differentiable(*[outputs[i] for i in plan.flat])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        plan: _Plan = ctx.plan
        out: list[torch.Tensor | None] = [None] * (len(plan.inputs) + 1)
        key = tuple([False if g is None or i in plan.flat else None if g.is_contiguous() else _layout(g) for i, g in enumerate(grads)])
        if not any(k is not False for k in key):
            return tuple(out)
        step = plan.step(key)
        saved = ctx.saved_tensors
        arguments = [saved[i] for i in step.used]
        arguments += [read(ctx.kept) for read in step.scalars]
        arguments += [g for g, k in zip(grads, key) if k is not False]
        for position, grad in zip(step.positions, step.run(arguments)):
            out[position + 1] = grad
        return tuple(out)


_APPLY: Callable[..., Any] = super(torch.autograd.Function, _Recorded).apply
"""What Function.apply comes to where nothing is transformed: 2 us less per call."""


def _layout(grad: torch.Tensor) -> tuple[tuple[bool | None, ...], tuple[int, ...], tuple[int, ...]]:
    """Return (contiguity from the outermost axis in memory, axes from the outermost, axes of stride 0 with several elements)."""
    contiguity, stride_order = compute_tensor_descriptor(list(grad.shape), list(grad.stride()))
    order = tuple(sorted(range(grad.dim()), key=lambda d: -stride_order[d]))
    expanded = tuple(d for d in range(grad.dim()) if grad.stride(d) == 0 and grad.shape[d] != 1)
    return tuple(contiguity), order, expanded


def _form(value: Val, layout: tuple[Any, Any, Any] | None) -> Form:
    """Return the form of a gradient of `value`: contiguous, or of this layout."""
    assert isinstance(value, TensorView)
    axes = no_reductions(value.get_logical_domain())
    if layout is None:
        return plain_form(value)
    contiguity, order, expanded = layout
    said: list[bool | None] = []
    for flag, dim in zip(contiguity, order):
        is_one = axes[dim].is_broadcast() and axes[dim].expanded_extent is None
        said.append(None if is_one or dim in expanded else bool(flag))
    return Form(tuple(said), order, expanded)


def _made_again(text: str) -> Differentiable:
    from .definition import _defined_again

    return _defined_again(text, True).autograd()


def differentiable(fd: "FusionDefinition") -> Differentiable:
    """Return what `fd.autograd()` does."""
    executor = fd._executor_cache()
    return Differentiable(executor.fusion(), executor)
