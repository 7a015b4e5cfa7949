"""The autograd.Function of one signature: forward and backward call what was prepared for tensors like these, without looking it up. Beside it the same
for a call that records nothing.

Owns its text. Wherever something is not as it was (settings, a profiler, the layout of a gradient, gradients of gradients), it does what the function of the
plan does, which serves all signatures (`weft.api.autograd`).

Costs (Python 3.11, torch 2.13, one core; a chain of 32 RMS norms with a launch that does nothing, microseconds per forward and backward): torch's part 7.9;
values that only the backward reads as results of the Function 0.7, so they are saved only; `BackwardCFunction.apply`, which torch puts between the engine and
the backward, 0.5, so the backward takes its place.
Read first: `function_of_signature`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..ir.values import RandomOp, TensorView, Val
from ..runtime import profile
from ..runtime.storage_check import shortages
from ..runtime.warm_path import ALIGNED, Warm, inlined, never, written


Plan: TypeAlias = Any
"""A `weft.api.autograd.Plan`, which this file cannot import: that one imports it."""

_ASKED = ("setup_context", "clear_saved_tensors_on_access", "boxed_grads_call")
FOUND_AT_ONCE = {name: vars(owner)[name] for name in _ASKED for owner in torch.autograd.Function.__mro__ if name in vars(owner)}
"""What `apply` asks a Function's class for at every call, as torch.autograd.Function has it: 20 ns less each where the class itself has it."""
_KindOfFunction = type("_KindOfFunction", (type(torch.autograd.Function),), dict.fromkeys((*_ASKED, "_backward_cls", "forward")))
"""The class of these Functions. Python looks for an attribute of a class in the class of that first, through all of its bases: here it ends at the first one,
and the class's own attribute counts all the same, since this one is no descriptor."""

MOST_WAYS = 4
"""How often a backward is told anew what was prepared for it: the guards of the engine's threads differ from those of the caller's."""


@dataclass(frozen=True)
class SignatureFunction:
    """apply(*inputs): outputs of the definition, of which `count` are its own; a single one comes by itself."""

    apply: Callable[..., Any]
    count: int
    has_one_output: bool


def function_of_signature(plan: Plan, inputs: Sequence[Any]) -> SignatureFunction | None:
    """Return the function for inputs like these, which a call of the plan has had; None where the plan's own has to serve."""
    if plan.writes or not all(isinstance(v, torch.Tensor) for v in inputs):
        return None
    with torch.no_grad():  # as in a forward
        warm = plan.executor.warm(inputs)
    if warm is None:
        return None
    kept = _Kept(plan, inputs)
    made = [f"o{i}" for i in range(len(plan.outputs))]
    count = plan.count if kept.hides_saved else len(made)
    saved = ", ".join([made[o] if i is None else f"a{i}" for i, o in zip(plan.saved_inputs, plan.saved_outputs)])
    flat = [made[i] for i in plan.flat if i < count]
    names = [f"a{i}" for i in range(len(inputs))]
    body, constants = _run_or_execute(warm, plan.executor, names, made)
    text = f"""
def forward(ctx, {", ".join(names)}):{body}
    ctx.to_save = ({saved}{"," if saved else ""})
    {"ctx.materialize_grads = False" if count > 1 else "pass"}
    {f"ctx.mark_non_differentiable({', '.join(flat)})" if flat else "pass"}
    return {", ".join(made[:count])}
"""
    forward = written(text, constants)["forward"]
    methods = {"forward": staticmethod(forward), "backward": staticmethod(_backward(plan, kept, count, None)), **FOUND_AT_ONCE}
    function = _KindOfFunction(plan.name, (torch.autograd.Function,), methods)
    kept.becomes = functools.partial(_set_backward, function, plan, kept, count)
    kept.becomes(None)
    apply = super(torch.autograd.Function, function).apply
    return SignatureFunction(apply, plan.count, count == 1)


def call_without_gradients(executor: Any, inputs: Sequence[torch.Tensor], count: int) -> Callable[..., Any] | None:
    """Return call(*inputs) -> the outputs, a single one by itself, for tensors that are known to be like these, which a call of the executor has had; None
    where `execute` has to serve. It asks once what `execute` asks again: the kinds of the tensors. Not for definitions that write into inputs."""
    warm = executor.warm(inputs)
    if warm is None:
        return None
    names, made = [f"a{i}" for i in range(len(inputs))], [f"o{i}" for i in range(count)]
    body, constants = _run_or_execute(warm, executor, names, made)
    text = f"""
def call({", ".join(names)}):{body}
    return {", ".join(made)}
"""
    call: Callable[..., Any] = written(text, constants)["call"]
    return call


def _run_or_execute(warm: Warm, executor: Any, names: Sequence[str], made: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the statements that compute `made` of the tensors `names`, known to be like those that `warm` was prepared for, and what they name."""
    constants = {
        "seen": [warm.seen], "settings": warm.settings, "options": warm.settings(), "fits": warm.fits, "run": warm.run, "execute": executor.execute,
        "profiling": profile.active,
    }  # fmt: skip
    call, named = inlined(warm.run, made, " " * 8, constants) or (f"[{', '.join(made)}] = run({', '.join(names)}, {_pointers('p', len(names))})", {})
    body = f"""
    {_addresses(names)}
    if not ({_bits(len(names))}) & {ALIGNED} and settings() is options and not profiling:
        {_check_storage("seen[0]", names, warm.fits)}
            seen[0] = {_pointers("p", len(names))}
        {call}
    else:
        {", ".join(made)}, = execute(({", ".join(names)},))"""
    return body, constants | named


def _set_backward(function: Any, plan: Plan, kept: "_Kept", count: int, warm: Warm | None) -> None:
    """Give a Function its backward, which does what `warm` calls without calling it."""
    backward = _backward(plan, kept, count, warm)
    function.backward = staticmethod(backward)
    node = getattr(function, "_backward_cls", None)
    if node is not None:
        node.apply = backward


def _pointers(letter: str, count: int) -> str:
    return "".join([f"{letter}{n}, " for n in range(count)])


def _bits(count: int) -> str:
    return " | ".join([f"p{n}" for n in range(count)])


def _addresses(names: Sequence[str]) -> str:
    return "; ".join([f"p{n} = {name}.data_ptr()" for n, name in enumerate(names)])


def _check_storage(seen: str, names: Sequence[str], fits: Any) -> str:
    """The statement that asks whether storages are large enough, where addresses have changed; what follows it, stands in its `if`."""
    n = len(names)
    moved = " or ".join([f"p{i} != q{i}" for i in range(n)])
    short = shortages(fits.spans, names, [f"p{i}" for i in range(n)], [f"q{i}" for i in range(n)])
    return f"""[{_pointers("q", n)}] = {seen}
        if {moved}:
            if {short}: fits({", ".join(names)}, {_pointers("p", n)}{_pointers("q", n)})"""


def _backward(plan: Plan, kept: "_Kept", count: int, warm: Warm | None) -> Callable[..., Any]:
    """Return the backward; its quick way is for contiguous gradients of the definition's own outputs. warm: what the way calls now, if that is known."""
    plain = plan.plain
    forms = plan.plain_forms()
    flows = [i for i, form in enumerate(forms) if form is not None]
    first = len(plain.used) + len(kept.scalars)
    saved = [f"a{plain.used.index(i)}" if i in plain.used else f"s{i}" for i in range(len(plan.saved_inputs))]
    grads = [f"a{first + flows.index(i)}" if i in flows else f"g{i}" for i in range(count)]
    expected = " and ".join([f"{g} is not None" if i in flows else f"{g} is None" for i, g in enumerate(grads)])
    places = [*range(len(plain.used)), *range(first, first + len(flows))]
    tensors = [f"a{n}" for n in places]
    values = [*(f"a{n}" for n in range(len(plain.used))), *(str(value) for value in kept.scalars), *(f"a{n}" for n in places[len(plain.used) :])]
    results = ["None"] * len(plan.inputs)
    for position, place in zip(plain.positions, plain.places):
        results[position] = f"r{place}"
    made = [f"r{k}" for k in range(len(plain.fusion.outputs()))]
    pointers = "".join([f"p{n}, " for n in places])
    watched = kept.watched
    seen = "".join([f"q{n}, " for n, is_watched in zip(places, watched) if is_watched])
    olds = "".join([f"{'q' if is_watched else 'p'}{n}, " for n, is_watched in zip(places, watched)])
    now = "".join([f"p{n}, " for n, is_watched in zip(places, watched) if is_watched])
    moved = " or ".join([f"p{n} != q{n}" for n, is_watched in zip(places, watched) if is_watched])
    check = f"fits({', '.join(tensors)}, {pointers}{olds})"
    constants = {"profiling": profile.active, "is_grad_enabled": torch.is_grad_enabled, "way": kept.way, "general": kept.general}
    call, named = f"[{', '.join(made)}] = run({', '.join(values)}, {pointers})", {}
    taken = (*constants, "saved", "guard", "run", "fits", "options", "settings", "told")
    scalars = "; ".join([f"a{len(plain.used) + k} = {value}" for k, value in enumerate(kept.scalars)])
    found = None if warm is None else inlined(warm.run, made, " " * 12, taken)
    same = ""
    if warm is not None and found is not None:
        call, named, same = f"{scalars}\n            {found[0]}" if scalars else found[0], {**found[1], "told": warm.run}, "run is told and "
        spans = [span for span, is_watched in zip(warm.fits.spans, watched) if is_watched]  # type: ignore[attr-defined]
        at = [n for n, is_watched in zip(places, watched) if is_watched]
        check = f"if {shortages(spans, *([f'{letter}{n}' for n in at] for letter in 'apq'))}: {check}"
    text = f"""
def backward(ctx, {", ".join(grads)}):
    saved = [{", ".join(saved)}] = ctx.saved_tensors
    if {expected} and not is_grad_enabled():
        {"; ".join([f"p{n} = a{n}.data_ptr()" for n in places])}
        guard, run, fits, settings, options, {seen} = way[0]
        if {same}guard({", ".join(tensors)}) and not ({" | ".join([f"p{n}" for n in places])}) & {ALIGNED} and settings() is options and not profiling:
            if {moved}:
                {check}
                way[0] = guard, run, fits, settings, options, {now}
            {call}
            return {", ".join(results)}
    return general(ctx, saved, ({", ".join(grads)},))
"""
    backward: Callable[..., Any] = written(text, constants | named)["backward"]
    return backward


class _Kept:
    """What stays the same for all calls of one signature, and the backward for what the quick way does not serve.

    way: [(guard, run, fits, settings, options, addresses...)] of the quick way. becomes(warm): makes what that calls a part of the backward's text.
    watched: of the tensors that the plain backward reads, which may have another storage than at the last call: all but those that only the forward and the
    backward have. scalars: of the plain backward. hides_saved: values that only the backward reads are no results of the Function, so that gradients of
    gradients compute them again.
    """

    def __init__(self, plan: Plan, inputs: Sequence[torch.Tensor]) -> None:
        self.plan = plan
        self.kept = tuple([inputs[i].shape for i in plan.kept])
        self.missing = {i: (inputs[i].shape, inputs[i].dtype, inputs[i].device) for i in plan.kept}
        self.hides_saved = _can_be_computed_again(plan)
        self.told = 0
        examples = [None if i is None else inputs[i] for i in plan.saved_inputs]
        self.scalars = [plan.read_scalar(s, examples, self) for s in plan.plain.scalars]
        self.becomes: Callable[[Warm | None], None] | None = None
        is_hidden = [i is None and o >= plan.count for i, o in zip(plan.saved_inputs, plan.saved_outputs)]
        self.watched = [*(not is_hidden[i] for i in plan.plain.used), *(True for form in plan.plain_forms() if form is not None)]
        self.way: list[tuple[Any, ...]] = [(never, None, None, None, None, *[0] * sum(self.watched))]

    def general(self, ctx: Any, saved: Sequence[torch.Tensor], grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        """The backward for any gradients, also where gradients of gradients are recorded. saved: read already, which checkpoints allow once."""
        plan = self.plan
        ctx.kept = self.kept
        if torch.is_grad_enabled() and self.hides_saved and len(plan.outputs) > plan.count:
            saved = self._with_graph(saved)
        every = (*grads, *[None] * (len(plan.outputs) - len(grads)))
        results = plan.run_backward(saved, ctx, every)
        if not torch.is_grad_enabled() and self.told < MOST_WAYS:
            self._tell(saved, every)
        return results

    def _with_graph(self, saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the saved tensors, those that were no results of the Function computed again so that gradients flow through them."""
        plan = self.plan
        given = dict(zip(plan.saved_inputs, saved))
        inputs = []
        for i in range(len(plan.inputs)):
            if i in given:
                inputs.append(given[i])
            else:
                shape, dtype, device = self.missing[i]
                inputs.append(torch.zeros(shape, dtype=dtype, device=device))
        made = plan.recorded.apply(*inputs)
        return [made[o] if o is not None and o >= plan.count else s for s, o in zip(saved, plan.saved_outputs)]

    def _tell(self, saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
        """Remember what the plain backward came to, if this was one."""
        plan = self.plan
        forms = plan.plain_forms()
        if any((g is None or not g.is_contiguous()) if form is not None else g is not None for g, form in zip(grads, forms)):
            return
        values = [*(saved[i] for i in plan.plain.used), *self.scalars, *(g for g in grads if g is not None)]
        warm: Warm | None = plan.plain.executor.warm(values)
        if warm is not None:
            self.told += 1
            is_new = self.way[0][1] is not warm.run
            seen = [address for address, is_watched in zip(warm.seen, self.watched) if is_watched]
            self.way[0] = (warm.guard, warm.run, warm.fits, warm.settings, warm.settings(), *seen)
            if is_new and self.becomes is not None:
                self.becomes(warm)


def _can_be_computed_again(plan: Plan) -> bool:
    """Tell whether what only the backward reads follows from saved inputs alone, and not from random numbers."""
    waiting: list[Val] = list(plan.outputs[plan.count :])
    saved = {plan.inputs[i] for i in plan.saved_inputs if i is not None}
    inputs = set(plan.inputs)
    seen: set[Val] = set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        made_by = value.definition()
        if isinstance(made_by, RandomOp) or value in inputs and value not in saved:
            return False
        if made_by is not None:
            waiting += [v for v in made_by.inputs if isinstance(v, TensorView)]
    return True
