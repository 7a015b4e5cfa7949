"""Gradients of definitions in torch: the object that `fd.autograd()` returns, and its autograd.Function.

Owns the way from inputs that require gradients to a forward that saves and a backward that runs, both through the caches of executors. The derivative itself is
`weft.autograd`. Read first: `Differentiable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..autograd.derive import Backward, Derivative, Form, plain_form
from ..autograd.part import SizeOf
from ..errors import Unsupported
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..ops.build import is_plain_broadcast
from ..ops.gradients import flows
from ..options import options
from ..runtime.arguments import flattened
from ..runtime.gradient_check import has_tangent
from ..runtime.warm_path import written
from . import executors
from .misuse import NoListOfArguments, NoSuchKeyword
from .inputs import compute_tensor_descriptor
from .tangents import dual_outputs
from .warm_gradient import call_without_gradients, function_of_signature

LARGEST_TABLE = 1024
"""Layouts of gradients that a plan keeps; when there are more, it starts over."""


class NoGradientThroughAlias(Unsupported):
    code = "W137"
    what = "there is no gradient with respect to {value}: an output is written into it"
    fix = "omit alias_input where gradients are needed, or detach the input"


class UnderTransform(Unsupported):
    code = "W189"
    what = "torch.func cannot differentiate a definition; it can differentiate operators and the functions of weft.nn.functional"
    fix = 'register it once as an operator, op = weft.op("mine::name", fd), and call op'


@dataclass(frozen=True)
class QuickCall:
    """What a call comes to for inputs like those of an earlier one: run([inputs]) gives a list of outputs; with `takes_each`, run(*inputs) gives a tuple, of
    which the first `count` are outputs, or the output itself where it is the only one (`whole`)."""

    run: Callable[..., Any]
    takes_each: bool
    count: int
    whole: bool = False


class Differentiable:
    """A definition whose executions record gradients: calling it, or `execute`, gives outputs through which `backward()` flows to the inputs.

    An input that is overwritten (alias_input) cannot require a gradient. Gradients of gradients work where the rules of all ops of the backward do.
    definition_of_backward(*inputs): the text of the backward for such inputs.
    """

    def __init__(self, fusion: Fusion, forward: Any = None, again: Callable[[str, bool], Any] | None = None) -> None:
        """forward: the executor, made here unless given. again: makes a definition from its text, for copies and pickles."""
        self.fusion, self._again = fusion, again
        self._plain = executors.executor_cache(fusion) if forward is None else forward
        self.with_keywords: Callable[..., list[torch.Tensor]] = lambda inputs, **keywords: self._plain.execute(inputs, **keywords)
        """Executes with keywords where no gradient is recorded."""
        self._inputs = fusion.inputs()
        self._floats = [i for i, v in enumerate(self._inputs) if isinstance(v, TensorView) and v.dtype().is_float]
        self._outputs = [v for v in fusion.outputs() if v not in fusion.hidden_outputs]
        self._plans: dict[tuple[bool, ...], Plan] = {}
        self.name = "Recorded"
        """What graphs and profilers call its calls."""

    def __reduce__(self) -> Any:
        from .translate import translate_fusion

        return _made_again, (self._again, translate_fusion(self.fusion))

    def __call__(self, *inputs: Any) -> Any:
        """Execute on `inputs`; return the output, or a tuple of them when there are several."""
        outputs = self.execute(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def execute(self, inputs: Sequence[Any], *more: Any, **keywords: Any) -> list[torch.Tensor]:
        """Execute on `inputs` as FusionDefinition.execute does, recording gradients where an input requires one."""
        if more:
            raise NoListOfArguments(function="execute", count=1 + len(more))
        if keywords:
            return self._execute_with(inputs, **keywords)
        if torch.autograd.forward_ad._current_level >= 0 and any([has_tangent(v) for v in inputs]):
            if torch._C._are_functorch_transforms_active():
                raise UnderTransform()
            return dual_outputs(self, inputs)
        if torch.is_grad_enabled():
            try:
                records = any([inputs[i].requires_grad for i in self._floats])
            except (AttributeError, IndexError, KeyError, TypeError):  # the executor says what is wrong with them
                records = False
            if records:
                return self._recorded(inputs)
        return self._plain.execute(inputs)

    def _execute_with(self, inputs: Sequence[Any], **keywords: Any) -> list[torch.Tensor]:
        """`execute` with keywords. Errors: NoSuchKeyword, also for those that a call which records gradients does not have."""
        if not (torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in flattened(inputs))):
            return self.with_keywords(inputs, **keywords)
        for name in keywords:
            if name not in ("check", "seed", "tune", "device"):
                raise NoSuchKeyword(name)
        with options(**{name: value for name, value in keywords.items() if name != "device" and value is not None}):
            return self.execute(inputs)

    def _recorded(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        values = inputs if isinstance(inputs, (list, tuple)) else flattened(inputs)
        plan = self.plan(tuple([values[i].requires_grad for i in self._floats]))
        if torch._C._are_functorch_transforms_active():
            raise UnderTransform()
        made = plan.apply(*values)
        return [made] if plan.has_one_output else list(made[: plan.count])

    def quick_call(self, inputs: Sequence[torch.Tensor]) -> QuickCall:
        """Return what `execute` comes to for tensors that need the same plan and kernels as these, which have been executed."""
        if torch.is_grad_enabled() and any(inputs[i].requires_grad for i in self._floats):
            plan = self.plan(tuple([inputs[i].requires_grad for i in self._floats]))
            made = function_of_signature(plan, inputs)
            if made is not None:
                return QuickCall(made.apply, True, made.count, made.has_one_output)
            return QuickCall(plan.apply, True, plan.count, plan.has_one_output)
        count = len(self._outputs)
        call = None if self.fusion.aliases else call_without_gradients(self._plain, inputs, count)
        return QuickCall(self._plain.execute, False, count) if call is None else QuickCall(call, True, count, count == 1)

    def plan(self, requires: tuple[bool, ...]) -> "Plan":
        """Return what is prepared for inputs of which those require gradients (floats only, in order)."""
        found = self._plans.get(requires)
        if found is None:
            wrt = [i for i, wanted in zip(self._floats, requires) if wanted]
            found = self._plans[requires] = Plan(self.fusion, wrt, self.name)
        return found

    def definition_of_backward(self, *inputs: Any) -> str:
        """Return the backward for inputs that require gradients as these do (all floats when none does), as Python text."""
        from .translate import translate_fusion

        requires = tuple(bool(inputs) and inputs[i].requires_grad for i in self._floats)
        plan = self.plan(requires if any(requires) else tuple(True for _ in self._floats))
        return translate_fusion(plan.derivative.backward(plan.plain_forms()).fusion)


class _Step:
    """A backward that is ready to run."""

    def __init__(self, backward: Backward, plan: "Plan") -> None:
        self.fusion, self.used, self.positions, self.places = backward.fusion, backward.used, backward.positions, backward.places
        self.scalars = backward.scalars
        self.executor = executors.executor_cache(backward.fusion)
        self._second: Differentiable | None = None

    def run(self, arguments: list[Any]) -> list[torch.Tensor]:
        """Run it; where gradients of gradients are wanted, record them."""
        if not torch.is_grad_enabled():
            return self.executor.execute(arguments)
        if self._second is None:
            self._second = Differentiable(self.fusion, self.executor)
        return self._second.execute(arguments)


class Plan:
    """A definition with some inputs that require gradients: its forward with what it saves, its backwards by the layouts of gradients."""

    def __init__(self, fusion: Fusion, wrt: Sequence[int], name: str = "Recorded") -> None:
        self.name = name
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
        self.kept = [i for i, v in enumerate(inputs) if i not in self.saved_inputs]
        self.has_one_output = len(self.outputs) == 1
        self.writes = bool(fusion.aliases)
        self._steps: dict[tuple[Any, ...], _Step] = {}
        self._by_strides: dict[tuple[Any, ...], _Step] = {}
        self._by_name = {v.name: i for i, v in enumerate(inputs) if isinstance(v, TensorView)}
        self.plain = self.step(tuple(False if form is None else None for form in self.plain_forms()))  # errors of rules come with the forward
        self.recorded = write_function(self, self.plain)
        self.apply: Callable[..., Any] = super(torch.autograd.Function, self.recorded).apply  # type: ignore[misc]
        """What `recorded.apply` comes to where nothing is transformed, without what torch asks before that."""

    def plain_forms(self) -> list[Form | None]:
        """Return the forms of contiguous gradients of the definition's own outputs."""
        return [_form(v, None) if i < self.count and flows(v) else None for i, v in enumerate(self.outputs)]

    def _place(self, scalar: Scalar | SizeOf) -> tuple[int | None, int | None, int | None]:
        """Return (saved tensor or None, place among what is kept or None, axis or None) of a scalar of a backward."""
        if isinstance(scalar, SizeOf):
            position, dim = self._by_name[scalar.name], scalar.dim
            if position in self.saved_inputs:
                return self.saved_inputs.index(position), None, dim
            return None, self.kept.index(position), dim
        return None, self.kept.index(next(i for i, v in enumerate(self.inputs) if v is scalar)), None

    def read_scalar(self, scalar: Scalar | SizeOf, saved: Sequence[Any], ctx: Any) -> Any:
        """Return the value of a scalar of a backward: a size of a saved tensor, or what the forward kept."""
        tensor, place, dim = self._place(scalar)
        if tensor is not None:
            return saved[tensor].shape[dim]
        return ctx.kept[place] if dim is None else ctx.kept[place][dim]

    def scalar_text(self, scalar: Scalar | SizeOf) -> str:
        """Return `read_scalar` as an expression, saved tensors being s0, s1, ..."""
        tensor, place, dim = self._place(scalar)
        whole = f"ctx.kept[{place}]" if tensor is None else f"s{tensor}.shape"
        return whole if dim is None else f"{whole}[{dim}]"

    def step(self, key: tuple[Any, ...]) -> _Step:
        """Return the backward for gradients of these layouts: False none, None contiguous, else (sizes, strides)."""
        found = self._steps.get(key)
        if found is None:
            forms = [None if k is False else _form(v, k) for v, k in zip(self.outputs, key)]
            found = self._steps[key] = _Step(self.derivative.backward(forms), self)
        return found

    def _step_for(self, grads: Sequence[torch.Tensor | None]) -> _Step | None:
        """Return the backward for gradients that lie in memory as these do, None when there is none of them."""
        strides = tuple([None if g is None or i in self.flat else (g.shape, g.stride()) for i, g in enumerate(grads)])
        found = self._by_strides.get(strides)
        if found is None:
            key = tuple([False if g is None or s is None else None if g.is_contiguous() else _layout(g) for g, s in zip(grads, strides)])
            if not any(k is not False for k in key):
                return None
            if len(self._by_strides) >= LARGEST_TABLE:
                self._by_strides.clear()
            found = self._by_strides[strides] = self.step(key)
        return found

    def run_backward(self, saved: Sequence[torch.Tensor], ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        """The backward for any gradients, also where gradients of gradients are recorded. ctx.kept: what the forward kept beside saved tensors."""
        out: list[torch.Tensor | None] = [None] * len(self.inputs)
        step = self._step_for(grads)
        if step is None:
            return tuple(out)
        arguments = [saved[i] for i in step.used]
        arguments += [self.read_scalar(s, saved, ctx) for s in step.scalars]
        arguments += [g for i, g in enumerate(grads) if g is not None and i not in self.flat]
        made = step.run(arguments)
        for position, place in zip(step.positions, step.places):
            out[position] = made[place]
        return tuple(out)


def write_function(plan: Plan, plain: _Step) -> type[torch.autograd.Function]:
    """Return the autograd.Function of a plan: forward(*inputs) -> outputs of the plan's forward; those behind the definition's own are for its backward.

    Both methods are written out for the plan's inputs. `plain`: the backward for contiguous gradients of the definition's own outputs, which needs no lookup.
    """
    names = [f"a{i}" for i in range(len(plan.inputs))]
    made = [f"o{i}" for i in range(len(plan.outputs))]
    grads = [f"g{i}" for i in range(len(plan.outputs))]
    kept = "".join([f"{names[i]}.shape, " if isinstance(plan.inputs[i], TensorView) else f"{names[i]}, " for i in plan.kept])
    saved = ", ".join([made[o] if i is None else names[i] for i, o in zip(plan.saved_inputs, plan.saved_outputs)])  # type: ignore[index]
    flows_back = [f"g{i}" for i, form in enumerate(plan.plain_forms()) if form is not None]
    nothing = "".join(f"{g} is None and " for g in grads if g not in flows_back)
    dense = " and ".join(f"{g} is not None and {g}.is_contiguous()" for g in flows_back)
    given = ", ".join([*(f"s{i}" for i in plain.used), *(plan.scalar_text(s) for s in plain.scalars), *flows_back])
    results = ["None"] * len(names)
    for position, place in zip(plain.positions, plain.places):
        results[position] = f"r{place}"
    text = f"""
def forward(ctx, {", ".join(names)}):
    [{", ".join(made)}] = forward_executor.execute(({", ".join(names)},))
    {f"ctx.kept = ({kept})" if kept else "pass"}
    ctx.save_for_backward({saved})
    ctx.materialize_grads = False
    {f"ctx.mark_non_differentiable({', '.join(made[i] for i in plan.flat)})" if plan.flat else "pass"}
    return {", ".join(made)}

def backward(ctx, {", ".join(grads)}):
    if {nothing}{dense} and not is_grad_enabled():
        [{", ".join(f"s{i}" for i in range(len(plan.saved_inputs)))}] = ctx.saved_tensors
        [{", ".join(f"r{n}" for n in range(len(plain.fusion.outputs())))}] = backward_executor.execute(({given},))
        return {", ".join(results)}
    return run_backward(ctx.saved_tensors, ctx, ({", ".join(grads)},))
"""
    constants = {
        "forward_executor": plan.executor, "backward_executor": plain.executor, "run_backward": plan.run_backward,
        "is_grad_enabled": torch.is_grad_enabled,
    }  # fmt: skip
    methods = written(text, constants)
    return type(plan.name, (torch.autograd.Function,), {name: staticmethod(methods[name]) for name in ("forward", "backward")})


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
        said.append(None if is_plain_broadcast(axes[dim]) or dim in expanded else bool(flag))
    return Form(tuple(said), order, expanded)


def _made_again(again: Callable[[str, bool], Any], text: str) -> Differentiable:
    made: Differentiable = again(text, True).autograd()
    return made
