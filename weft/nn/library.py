"""Registers definitions as torch operators: torch.compile, torch.export, checkpointing and torch.func see one node with shapes, gradients and a batching rule.

Owns the registration. A family `rms_norm` has three operators:
    weft::rms_norm(Tensor[] tensors, Scalar[]? numbers, str static) -> Tensor[]            what users' graphs hold
    weft::rms_norm_saving(..., bool[] requires, str static) -> Tensor[]                   its forward where gradients are wanted
    weft::rms_norm_backward(Tensor[] saved, Tensor?[] grads, SymInt[] sizes, Scalar[]? numbers, bool[] requires, str form) -> Tensor[]
`static` and `form` are text that says all (types, ranks, layouts, arguments), so that a graph read from a cache by another process means the same.
Read first: `Registered`, then `op`.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..api.autograd import Differentiable, _layout
from ..api.definition import FusionDefinition
from ..autograd.part import SizeOf
from ..errors import UserError, shown
from ..expr import Sym
from ..ir.fusion import Fusion
from ..ir.values import Scalar, TensorView, Val, no_reductions
from ..reference.torch_types import torch_dtype
from ..runtime.argument_kinds import WrongKind
from ..runtime.binding import ExpectedTensor, WrongDtype, WrongRank, type_name
from .family import NAMES, WrongDevice
from .op_transforms import below_transform, derivatives_above, of_each_sample, recorded_below, refuse_tangents, runs_eagerly, wants_tangents, without_gradient
from .sharding import finds_definitions, has_sharded, sharded
from .transforms import Transformed

KEYS = ("CPU", "CUDA")
PARTS = "_parts"
"""Ends the names of the three operators behind one of `weft.op`."""
_LIBRARIES: dict[str, torch.library.Library] = {}
OPERATORS: dict[Any, tuple["Registered", str]] = {}
"""Operator -> what registered it, and which of its three it is: plain, saving or backward. `torch.compile(backend="weft")` inlines them."""


class WrongOpName(UserError, ValueError):
    code = "W145"
    what = "{name!r} cannot be registered as an operator{why}"
    fix = "{remedy}"


def library(namespace: str) -> torch.library.Library:
    """Return the fragment of a namespace that holds our operators."""
    if namespace not in _LIBRARIES:
        _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return _LIBRARIES[namespace]


# ---------------------------------------------------------------- what calls fix, as text
def encoded(value: Any) -> str:
    """Return a text for tuples, dictionaries, numbers, strings, None and torch dtypes, which `decoded` reads."""
    return repr(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@functools.lru_cache(maxsize=None)
def decoded(text: str) -> Any:
    """Return what `encoded` was given."""
    return _restored(ast.literal_eval(re.sub(r"(?<![\w'])(-?)inf\b", r"\g<1>1e999", text)))


def _restored(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.partition(".")[2])
    if isinstance(value, tuple):
        return tuple(map(_restored, value))
    return {k: _restored(v) for k, v in value.items()} if isinstance(value, dict) else value


# ---------------------------------------------------------------- shapes without data
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda *v: functools.reduce(operator.add, v), "mul": lambda *v: functools.reduce(operator.mul, v), "floordiv": operator.floordiv,
    "mod": operator.mod, "ceildiv": lambda a, b: -(-a // b), "min": lambda a, b: torch.sym_min(a, b), "max": lambda a, b: torch.sym_max(a, b),
    "cast": lambda a: a,
}  # fmt: skip


def _size(sym: Sym, env: dict[Sym, Any]) -> Any:
    """Return the value of an extent; sizes in `env` may be SymInts."""
    if sym in env:
        return env[sym]
    if sym.is_const:
        return int(sym.value.real)
    return _FUNCTIONS[sym.op](*(_size(a, env) for a in sym.args))


def fake_outputs(fusion: Fusion, outputs: Sequence[Val], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Return empty tensors with the sizes, strides and types of outputs."""
    from ..analysis.layouts import memory_formats
    from ..expr import var

    env: dict[Sym, Any] = {}
    device = next((a.device for a in arguments if isinstance(a, torch.Tensor)), torch.device("cpu"))
    for index, (value, given) in enumerate(zip(fusion.inputs(), arguments)):
        if isinstance(value, TensorView):
            _check_fake(index, value, given)
            env.update({var(f"T{value.name}.size[{d}]", lower=1): n for d, n in enumerate(given.shape)})
        elif isinstance(value, Scalar):
            env[value.sym] = given
    made = []
    formats = memory_formats(fusion, outputs)
    for value in outputs:
        assert isinstance(value, TensorView)
        axes = no_reductions(value.get_logical_domain())
        sizes = [_size(axis.logical_extent, env) for axis in axes]
        order = [axes.index(a) for a in formats.get(value, value.get_allocation_domain()) if not a.is_reduction()]
        strides: list[Any] = [0] * len(axes)
        running: Any = 1
        for dim in reversed(order):
            strides[dim] = running
            running = running * sizes[dim]
        made.append(torch.empty_strided(sizes, strides, dtype=torch_dtype(value.dtype()), device=device))
    return made


def _check_fake(index: int, value: TensorView, given: torch.Tensor) -> None:
    """Refuse for a trace what a call refuses. Errors: WrongDtype, WrongRank."""
    expected = torch_dtype(value.dtype())
    if given.dtype is not expected:
        raise WrongDtype(index=index, value=value, expected=value.dtype().value, given=type_name(given.dtype), remedy=f"tensor.to({expected})")
    if given.dim() != value.ndim:
        raise WrongRank(index=index, value=value, expected=value.ndim, given=given.dim())


# ---------------------------------------------------------------- operators
@dataclass(frozen=True)
class OfOperator:
    """An operator of `op` as a function of its tensors and numbers."""

    op: Callable[..., Any]
    folds = False

    def __call__(self, *values: Any) -> Sequence[torch.Tensor]:
        made = self.op(*values)
        return (made,) if isinstance(made, torch.Tensor) else made


class Registered:
    """The three operators of one function. resolve(tensors, static): its Differentiable and a text from which `recall` finds it again."""

    def __init__(self, qualified: str, resolve: Callable[..., tuple[Differentiable, str]], recall: Callable[[str], Differentiable]) -> None:
        namespace, _, name = qualified.partition("::")
        self.name, self.resolve, self.recall = name.removesuffix(PARTS), resolve, recall
        lib = library(namespace)
        lib.define(f"{name}(Tensor[] tensors, Scalar[]? numbers, str static) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
        lib.define(f"{name}_saving(Tensor[] tensors, Scalar[]? numbers, bool[] requires, str static) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
        backward = "Tensor[] saved, Tensor?[] grads, SymInt[] sizes, Scalar[]? numbers, bool[] requires, str form"
        lib.define(f"{name}_backward({backward}) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
        for suffix, real, fake in (("", self.run, self.fake), ("_saving", self.run_saving, self.fake_saving), ("_backward", self.run_back, self.fake_back)):
            for key in KEYS:
                lib.impl(name + suffix, real, key)
            torch.library.register_fake(f"{qualified}{suffix}", fake, lib=lib)
        self.function = _function_of(self)
        lib.impl(name, self.with_gradient, "Autograd")
        lib.impl(name, self.transformed, "FuncTorchDynamicLayerFrontMode")
        lib.impl(f"{name}_saving", self.saving_once, "Autograd")
        lib.impl(f"{name}_backward", self.back_once, "Autograd")
        packet = getattr(torch.ops, namespace)
        self.op, self.saving, self.back = (getattr(packet, name + suffix).default for suffix in ("", "_saving", "_backward"))
        OPERATORS.update({self.op: (self, "plain"), self.saving: (self, "saving"), self.back: (self, "backward")})
        for made in (self.op, self.saving, self.back):
            torch.library.register_vmap(made, of_each_sample(made), lib=lib)

    # -- forward
    def _arguments(self, found: Differentiable, tensors: Sequence[Any], numbers: Sequence[Any] | None) -> list[Any]:
        """Return tensors and numbers in the order of the definition's inputs."""
        t, n = iter(tensors), iter(numbers or ())
        return [next(t) if isinstance(v, TensorView) else next(n) for v in found.fusion.inputs()]

    def _traced_arguments(self, found: Differentiable, tensors: Sequence[Any], numbers: Sequence[Any] | None) -> list[Any]:
        """The same for a trace. Errors: WrongDevice, where torch chose the trace because one of several tensors has no data."""
        devices = {str(t.device) for t in tensors if t.dim() or t.is_meta}
        if len(devices) > 1:
            raise WrongDevice(function=self.name, devices=" and ".join(sorted(devices)))
        return self._arguments(found, tensors, numbers)

    def run(self, tensors: list[Any], numbers: list[Any] | None, static: str) -> list[torch.Tensor]:
        """The operator on real tensors."""
        found = self.resolve(tensors, static)[0]
        return _own(found._plain.execute(self._arguments(found, tensors, numbers)), tensors)

    def fake(self, tensors: list[Any], numbers: list[Any] | None, static: str) -> list[torch.Tensor]:
        """Its shapes."""
        found = self.resolve(tensors, static)[0]
        outputs = [v for v in found.fusion.outputs() if v not in found.fusion.hidden_outputs]
        return fake_outputs(found.fusion, outputs, self._traced_arguments(found, tensors, numbers))

    def run_saving(self, tensors: list[Any], numbers: list[Any] | None, requires: list[bool], static: str) -> list[torch.Tensor]:
        """The forward with what is saved behind its outputs."""
        found = self.resolve(tensors, static)[0]
        return _own(found.plan(tuple(requires)).executor.execute(self._arguments(found, tensors, numbers)), tensors)

    def fake_saving(self, tensors: list[Any], numbers: list[Any] | None, requires: list[bool], static: str) -> list[torch.Tensor]:
        """Its shapes."""
        found = self.resolve(tensors, static)[0]
        plan = found.plan(tuple(requires))
        return fake_outputs(found.fusion, plan.outputs, self._traced_arguments(found, tensors, numbers))

    # -- backward
    def _shapes(self, found: Differentiable, sizes: Sequence[Any]) -> list[Any]:
        """Return the shape of each tensor input (None for numbers) from all sizes in a row."""
        left, out = list(sizes), []
        for value in found.fusion.inputs():
            rank = value.ndim if isinstance(value, TensorView) else 0
            out.append(tuple(left[:rank]) if isinstance(value, TensorView) else None)
            del left[:rank]
        return out

    def run_back(
        self, saved: list[Any], grads: list[Any], sizes: list[int], numbers: list[Any] | None, requires: list[bool], form: str
    ) -> list[torch.Tensor]:  # fmt: skip
        """The gradients of the inputs that require one."""
        found = self.recall(form)
        step = _step_of(found, requires, grads)
        results = step.executor.execute(self._arguments_of_step(found, step, saved, grads, sizes, numbers))
        made = {position: results[place] for position, place in zip(step.positions, step.places)}
        zeros, wanted = self._zeros(found, made, grads, sizes, requires)
        return _own([made[i] if i in made else zeros[i] for i in wanted], [*saved, *grads])

    def _arguments_of_step(
        self, found: Differentiable, step: Any, saved: Sequence[Any], grads: Sequence[Any], sizes: Sequence[Any], numbers: Sequence[Any] | None
    ) -> list[Any]:  # fmt: skip
        """Return what a backward is called with."""
        left = iter(numbers or ())
        kept = [shape if shape is not None else next(left) for shape in self._shapes(found, sizes)]
        return [*(saved[i] for i in step.used), *(self.kept_value(found, s, kept) for s in step.scalars), *(g for g in grads if g is not None)]

    def _zeros(
        self, found: Differentiable, made: Container[int], grads: Sequence[Any], sizes: Sequence[Any], requires: Sequence[bool]
    ) -> tuple[dict[int, torch.Tensor], list[int]]:  # fmt: skip
        """Return the gradients that are 0 because nothing flows there, by the place of their input, and the places of all that the operator returns."""
        shapes, first = self._shapes(found, sizes), next(g for g in grads if g is not None)
        every = [i for i, needed in zip(found._floats, requires) if needed]
        zeros = {i: torch.zeros(shapes[i], dtype=torch_dtype(found.fusion.inputs()[i].dtype()), device=first.device) for i in every if i not in made}  # type: ignore[attr-defined]
        return zeros, [every[n] for n in _firsts(_places(found, requires, grads))]

    @staticmethod
    def kept_value(found: Differentiable, scalar: Any, kept: Sequence[Any]) -> Any:
        """Return a scalar of a backward: a size of an input, or one of its numbers. kept: the shape or the value of each input."""
        inputs = found.fusion.inputs()
        if isinstance(scalar, SizeOf):
            return next(shape[scalar.dim] for value, shape in zip(inputs, kept) if value.name == scalar.name)
        return next(number for value, number in zip(inputs, kept) if value is scalar)

    def fake_back(
        self, saved: list[Any], grads: list[Any], sizes: list[Any], numbers: list[Any] | None, requires: list[bool], form: str
    ) -> list[torch.Tensor]:  # fmt: skip
        """Their shapes, and how they lie in memory."""
        found = self.recall(form)
        step = _step_of(found, requires, grads)
        results = fake_outputs(step.fusion, step.fusion.outputs(), self._arguments_of_step(found, step, saved, grads, sizes, numbers))
        made = {position: results[place] for position, place in zip(step.positions, step.places)}
        zeros, wanted = self._zeros(found, made, grads, sizes, requires)
        return [made[i] if i in made else zeros[i] for i in wanted]

    # -- gradients and batches
    def with_gradient(self, tensors: list[Any], numbers: list[Any] | None, static: str) -> list[torch.Tensor]:
        """The operator where autograd is above."""
        records = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if runs_eagerly(tensors) and (records or wants_tangents(tensors)):
            found = self.resolve(tensors, static)[0]
            return _own(found.execute(self._arguments(found, tensors, numbers)), tensors)
        refuse_tangents(self.name, tensors)
        if records:
            return list(recorded_below(self.function, numbers, static, *tensors))
        with torch._C._AutoDispatchBelowAutograd():
            return self.op(tensors, numbers, static)

    def transformed(self, tensors: list[Any], numbers: list[Any] | None, static: str) -> list[torch.Tensor]:
        """The operator under transforms of torch.func, before the innermost of them."""
        return list(Transformed.apply(OfOperator(lambda *given: self.op(list(given), numbers, static)), *tensors))

    def saving_once(self, tensors: list[Any], *rest: Any) -> list[torch.Tensor]:
        """The forward that saves, where an outer transform of torch.func is above."""
        return without_gradient(self.name, lambda: self.saving(tensors, *rest), tensors)

    def back_once(self, saved: list[Any], grads: list[Any], *rest: Any) -> list[torch.Tensor]:
        """The backward, where an outer transform of torch.func is above."""
        return without_gradient(self.name, lambda: self.back(saved, grads, *rest), [*saved, *grads])


def _step_of(found: Differentiable, requires: Sequence[bool], grads: Sequence[Any]) -> Any:
    """Return the backward for gradients that lie in memory as these do."""
    layouts = [False if g is None else None if g.is_contiguous() else _layout(g) for g in grads]
    return found.plan(tuple(requires)).step(tuple(layouts))


def _own(results: list[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return results that are no inputs: torch asks that of operators."""
    return [r.clone() if any(r is t for t in inputs) else r for r in results]


def _places(found: Differentiable, requires: Sequence[bool], grads: Sequence[Any]) -> list[int]:
    """Return for each gradient that is wanted its place among the results of the backward's operator: one result may be the gradient of several inputs, and
    torch asks operators to return each tensor once."""
    step = found.plan(tuple(requires)).step(tuple(None if g is not None else False for g in grads))
    shared = dict(zip(step.positions, step.places))
    kinds = [(True, shared[i]) if i in shared else (False, i) for i, needed in zip(found._floats, requires) if needed]
    order = list(dict.fromkeys(kinds))
    return [order.index(kind) for kind in kinds]


def _firsts(places: Sequence[int]) -> list[int]:
    """Return where each result occurs first."""
    return [places.index(n) for n in range(len(set(places)))]


def _function_of(registered: Registered) -> type[torch.autograd.Function]:
    class Recorded(torch.autograd.Function):
        """forward(numbers, static, *tensors) -> outputs, through operators only, so that graphs hold nothing else."""

        @staticmethod
        def forward(ctx: Any, numbers: list[Any] | None, static: str, *tensors: Any) -> tuple[torch.Tensor, ...]:
            found, form = registered.resolve(list(tensors), static)
            tensor_inputs = [i for i, v in enumerate(found.fusion.inputs()) if isinstance(v, TensorView)]
            needs = dict(zip(tensor_inputs, ctx.needs_input_grad[2:]))
            requires = [bool(needs[i]) for i in found._floats]
            plan = found.plan(tuple(requires))
            with torch._C._AutoDispatchBelowAutograd(), derivatives_above():
                outputs = registered.saving(list(tensors), numbers, requires, static)
            place = {i: k for k, i in enumerate(tensor_inputs)}
            ctx.save_for_backward(*[outputs[o] if i is None else tensors[place[i]] for i, o in zip(plan.saved_inputs, plan.saved_outputs)])
            ctx.sizes, ctx.numbers, ctx.requires, ctx.form, ctx.plan = [n for t in tensors for n in t.shape], numbers, requires, form, plan
            ctx.floats = [place[i] for i in found._floats]
            ctx.set_materialize_grads(False)
            own = outputs[: plan.count]
            flat = [own[i] for i in plan.flat if i < plan.count]
            if flat:
                ctx.mark_non_differentiable(*flat)
            return tuple(own)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            if torch._C._are_functorch_transforms_active():
                return gradients(ctx, [below_transform(t) for t in ctx.saved_tensors], [below_transform(g) for g in grads])
            return backward_once(ctx, *grads)

    def gradients(ctx: Any, saved: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...]:
        plan = ctx.plan
        flowing = [None if i in plan.flat else g for i, g in enumerate(grads)] + [None] * (len(plan.outputs) - plan.count)
        out: list[Any] = [None] * (2 + len(plan.derivative.fusion.inputs()))
        if all(g is None for g in flowing):
            return tuple(out[: 2 + len(ctx.needs_input_grad[2:])])
        results = registered.back(list(saved), flowing, ctx.sizes, ctx.numbers, ctx.requires, ctx.form)
        left = iter([results[place] for place in _places(registered.recall(ctx.form), ctx.requires, flowing)])
        for place, needed in zip(ctx.floats, ctx.requires):
            if needed:
                out[2 + place] = next(left)
        return tuple(out[: 2 + len(ctx.needs_input_grad[2:])])

    @torch.autograd.function.once_differentiable
    def backward_once(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return gradients(ctx, ctx.saved_tensors, grads)

    return Recorded


# ---------------------------------------------------------------- families
@functools.lru_cache(maxsize=None)
def registered_family(name: str) -> Registered:
    """Return the operators weft::`name` of a family, registered at the first call."""
    family = NAMES[name]

    def resolve(tensors: Sequence[Any], static: str) -> tuple[Differentiable, str]:
        present, values = decoded(static)
        given = iter(tensors)
        forms = tuple([family.form_of(next(given)) if there else None for there in present])
        form = encoded((forms, values))
        return recall(form), form

    @functools.lru_cache(maxsize=None)
    def recall(form: str) -> Differentiable:
        forms, values = decoded(form)
        return family._of_forms(forms, values)

    return Registered(f"weft::{name}", resolve, recall)


def register_all() -> None:
    """Register the operators of all families."""
    for name in NAMES:
        registered_family(name)


@finds_definitions
def fusion_of_text(name: str, text: str) -> Fusion:
    """Return the definition of a family for dense tensors of these types and sizes, -1 for all but 1."""
    shapes, static = decoded(text)
    forms: list[Any] = []
    for shape in shapes:
        dtype, sizes = shape or (None, ())
        contiguity = tuple([None if n == 1 else True for n in sizes])
        forms.append(None if shape is None else (dtype, sizes, contiguity, tuple(range(len(sizes) - 1, -1, -1))))
    return NAMES[name]._of_forms(tuple(forms), static).fusion


# ---------------------------------------------------------------- weft.op
def op(qualified: str, definition: FusionDefinition) -> Any:
    """Register a definition as a torch operator, and return the operator. torch.ops.ns.name(inputs...) then returns the outputs, with gradients.

    qualified: "ns::name". The operator takes the definition's inputs in order (numbers for its scalars) and returns a tensor, or a tuple of several.
    Errors: WrongOpName for another form, a taken name, or a definition that writes into an input.
    Example:
        swish = weft.op("mine::swish", fd); y = torch.compile(lambda x: swish(x) + 1)(x)
    """
    if not isinstance(qualified, str) or not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", qualified):
        raise WrongOpName(name=qualified, why=": it is not of the form namespace::name", remedy='use a name such as "mine::softmax"')
    if not isinstance(definition, FusionDefinition):
        raise WrongKind(function="weft.op", argument="definition", value=shown(definition), wanted="FusionDefinition")
    namespace, _, name = qualified.partition("::")
    if hasattr(getattr(torch.ops, namespace), name):
        raise WrongOpName(name=qualified, why=": the name is taken", remedy="choose another name; an operator stays registered as long as the process lives")
    found = definition.autograd()
    if found.fusion.aliases:
        raise WrongOpName(name=qualified, why=": the definition writes into an input", remedy="omit alias_input, and copy the result")
    inputs = found.fusion.inputs()
    outputs = [v for v in found.fusion.outputs() if v not in found.fusion.hidden_outputs]
    inner = Registered(f"{namespace}::{name}{PARTS}", lambda tensors, static: (found, ""), lambda form: found)
    arguments = ", ".join(f"Tensor x{i}" if isinstance(v, TensorView) else f"Scalar x{i}" for i, v in enumerate(inputs))
    results = "Tensor" if len(outputs) == 1 else f"({', '.join('Tensor' for _ in outputs)})"
    library(namespace).define(f"{name}({arguments}) -> {results}", tags=torch.Tag.pt2_compliant_tag)

    def call(*values: Any) -> Any:
        tensors = [v for v, given in zip(values, inputs) if isinstance(given, TensorView)]
        numbers = [v for v, given in zip(values, inputs) if not isinstance(given, TensorView)]
        if not all([isinstance(v, torch.Tensor) for v in tensors]):  # torch takes None for a tensor
            index = next(i for i, v in enumerate(values) if v is None)
            raise ExpectedTensor(index=index, value=inputs[index], given="None", dtype=inputs[index].dtype())  # type: ignore[attr-defined]

        def of(tensors: list[Any]) -> Any:
            made = inner.op(tensors, numbers or None, "")
            return made[0] if len(made) == 1 else tuple(made)

        return sharded(qualified, found.fusion, tensors, of) if has_sharded(tensors) else of(tensors)

    made = getattr(getattr(torch.ops, namespace), name).default

    def transformed(*values: Any) -> Any:
        outputs = Transformed.apply(OfOperator(made), *values)
        return outputs[0] if len(outputs) == 1 else outputs

    library(namespace).impl(name, call, "CompositeImplicitAutograd")
    library(namespace).impl(name, transformed, "FuncTorchDynamicLayerFrontMode")

    torch.library.register_vmap(made, of_each_sample(made), lib=library(namespace))
    return made
