"""Support of torch.func: grad, vjp, jvp, vmap and their combinations on weft's functions.

Owns the autograd.Function in the form that functorch asks for (setup_context apart), and how a batch is folded. Read first: `apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from ..api.autograd import Differentiable
from ..api.tangents import tangents_of
from .op_transforms import DerivativeLost


class Family(Protocol):
    """What is asked of a `weft.nn.family.Family`."""

    name: str
    folds: bool

    def differentiable(self, tensors: Sequence[Any], static: dict[str, Any]) -> Differentiable:
        """Return the definition that serves such tensors."""
        ...


def apply(family: Family, tensors: list[Any], static: dict[str, Any]) -> Any:
    """Return the result under transforms of torch.func."""
    outputs = Transformed.apply(OfFamily(family, static), *tensors)
    return outputs[0] if len(outputs) == 1 else outputs


Values: TypeAlias = "Sequence[torch.Tensor]"


@dataclass(frozen=True)
class OfFamily:
    """A family as a function of its tensors."""

    family: Family
    static: dict[str, Any]

    @property
    def folds(self) -> bool:
        """Whether one more leading axis of the first tensor is a batch."""
        return self.family.folds

    def __call__(self, *tensors: Any) -> Values:
        return self.family.differentiable(tensors, self.static).execute([t for t in tensors if t is not None])


@dataclass(frozen=True)
class GradientOf:
    """Of a function of `count` values: (*values, *gradients of its outputs) -> gradients of the values that are tensors of floats. It records gradients itself
    where it is asked to, so that it can be differentiated like any other."""

    function: Callable[..., Values]
    count: int
    folds = False

    def __call__(self, *values: Any) -> Values:
        if isinstance(self.function, (GradientOf, TangentOf)):
            _refuse_in_graph()
        records = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = [_input(v, records) for v in values[: self.count]]
            outputs = self.function(*inputs)
            pairs = [(o, g) for o, g in zip(outputs, values[self.count :]) if o.requires_grad and g is not None]
            wanted = [v for v in inputs if is_float(v)]
            found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=records, allow_unused=True)
        return tuple(torch.zeros_like(v) if g is None else g for v, g in zip(wanted, found))


@dataclass(frozen=True)
class TangentOf:
    """Of a function of `count` values: (*values, *their tangents) -> tangents of its outputs."""

    function: Callable[..., Values]
    count: int
    folds = False

    def __call__(self, *values: Any) -> Values:
        _refuse_in_graph()
        records = torch.is_grad_enabled()
        primals = [v.view_as(v) if records and is_float(v) and v.requires_grad else v.detach() if is_float(v) else v for v in values[: self.count]]
        outputs, tangents = tangents_of(lambda inputs: list(self.function(*inputs)), primals, values[self.count :])
        return tuple(torch.zeros_like(o) if t is None else t for o, t in zip(outputs, tangents))


def _refuse_in_graph() -> None:
    """Errors: DerivativeLost where a graph is traced. There an operator's backward is an operator, too, which has no derivative: zeros would come out."""
    if torch._C._len_torch_dispatch_stack():
        raise DerivativeLost(
            problem="a tangent, or a derivative of a derivative, of an operator in a graph that is traced",
            remedy="take torch.func.jvp and hessian outside of torch.compile and torch.export",
        )


def is_float(value: Any) -> bool:
    """Tell whether a value has gradients."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _input(value: Any, records: bool) -> Any:
    """Return a value as what gradients flow to, apart from others that are the same tensor."""
    if not is_float(value):
        return value
    return value.view_as(value) if records and value.requires_grad else value.detach().requires_grad_()


class Transformed(torch.autograd.Function):
    """forward(function, *values) -> a tuple of outputs, values being tensors, numbers and None. Its derivatives are calls of the same kind, so that they can be
    transformed, too."""

    @staticmethod
    def forward(function: Callable[..., Values], *values: Any) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return tuple(function(*values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep all values: derivatives start from them."""
        ctx.function, *values = inputs
        ctx.others = [None if isinstance(v, torch.Tensor) else (v,) for v in values]
        ctx.save_for_backward(*[v for v in values if isinstance(v, torch.Tensor)])
        ctx.save_for_forward(*[v for v in values if isinstance(v, torch.Tensor)])
        flat = [o for o in output if not o.is_floating_point()]
        if flat:
            ctx.mark_non_differentiable(*flat)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The forward is run again: what it saves is not known to functorch."""
        values = _values(ctx)
        left = iter(Transformed.apply(GradientOf(ctx.function, len(values)), *values, *grads))
        return (None, *[next(left) if is_float(v) else None for v in values])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Tangents of the outputs, by the backward's own derivative."""
        values = _values(ctx)
        return Transformed.apply(TangentOf(ctx.function, len(values)), *values, *tangents[1:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], function: Any, *values: Any) -> Any:
        """One more leading axis where the function folds it, else one sample after the other."""
        dims = in_dims[1:]
        if function.folds and [i for i, d in enumerate(dims) if d is not None] == [0]:
            outputs = Transformed.apply(function, values[0].movedim(dims[0], 0), *values[1:])
            return outputs, tuple(0 for _ in outputs)
        return looped(lambda *part: Transformed.apply(function, *part), info.batch_size, dims, values)


def _values(ctx: Any) -> list[Any]:
    saved = iter(ctx.saved_tensors)
    return [next(saved) if other is None else other[0] for other in ctx.others]


def looped(function: Any, size: int, dims: tuple[Any, ...], tensors: tuple[Any, ...]) -> Any:
    """Run a function for each sample and stack the results: where samples cannot be folded into rows."""
    parts = []
    for i in range(size):
        parts.append(function(*[t if d is None else t.select(d, i) for t, d in zip(tensors, dims)]))
    outputs = tuple(torch.stack(column) for column in zip(*parts))
    return outputs, tuple(0 for _ in outputs)
