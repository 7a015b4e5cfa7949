"""torch.func over the functions of weft: grad, vjp, jvp, vmap.

Owns the autograd.Function in the form that functorch asks for (setup_context apart), and how a batch is folded. Read first: `apply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

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
    outputs = _Transformed.apply(family, static, *tensors)
    return outputs[0] if len(outputs) == 1 else outputs


class _Transformed(torch.autograd.Function):
    """forward(family, static, *tensors) -> a tuple of outputs; the backward is another function of the same kind, so that it can be transformed, too."""

    @staticmethod
    def forward(family: Family, static: dict[str, Any], *tensors: Any) -> tuple[torch.Tensor, ...]:
        differentiable = family.differentiable(tensors, static)
        with torch.no_grad():
            return tuple(differentiable.execute([t for t in tensors if t is not None]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        family, static, *tensors = inputs
        ctx.family, ctx.static = family, static
        ctx.present = [t is not None for t in tensors]
        ctx.save_for_backward(*[t for t in tensors if t is not None])
        ctx.save_for_forward(*[t for t in tensors if t is not None])
        flat = [o for o in output if not o.is_floating_point()]
        if flat:
            ctx.mark_non_differentiable(*flat)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The forward is run again: what it saves is not known to functorch."""
        saved = list(ctx.saved_tensors)
        tensors = [saved.pop(0) if present else None for present in ctx.present]
        flowing = _Gradient.apply(ctx.family, ctx.static, len(tensors), *tensors, *grads)
        left = iter(flowing)
        return (None, None, *[next(left) if t is not None and t.is_floating_point() else None for t in tensors])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Tangents of the outputs, by the backward's own derivative."""
        saved = list(ctx.saved_tensors)
        tensors = [saved.pop(0) if present else None for present in ctx.present]
        return _Tangent.apply(ctx.family, ctx.static, len(tensors), *tensors, *tangents[2:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], family: Family, static: dict[str, Any], *tensors: Any) -> Any:
        dims = in_dims[2:]
        batched = [i for i, d in enumerate(dims) if d is not None]
        if family.folds and batched == [0]:
            outputs = _Transformed.apply(family, static, tensors[0].movedim(dims[0], 0), *tensors[1:])
            return outputs, tuple(0 for _ in outputs)
        return looped(lambda *part: _Transformed.apply(family, static, *part), info.batch_size, dims, tensors)


def differentiated_again(family: Family) -> DerivativeLost:
    """Return the error of a second order that torch.func asks for."""
    return DerivativeLost(
        problem=f"{family.name}: its derivative is differentiated again under torch.func",
        remedy="use torch.autograd.grad(create_graph=True), which has gradients of gradients, or torch's own function",
    )


class _Once(torch.autograd.Function):
    """forward(family, static, count, *tensors, *flowing): what no transform differentiates again, one sample after the other under vmap."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.family = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        raise differentiated_again(ctx.family)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise differentiated_again(ctx.family)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], family: Family, static: dict[str, Any], count: int, *values: Any) -> Any:
        return looped(lambda *part: cls.apply(family, static, count, *part), info.batch_size, in_dims[3:], values)


class _Gradient(_Once):
    """forward(family, static, count, *tensors, *grads) -> gradients of the tensors of floats."""

    @staticmethod
    def forward(family: Family, static: dict[str, Any], count: int, *values: Any) -> tuple[torch.Tensor, ...]:
        tensors, grads = values[:count], values[count:]
        leaves = [t.detach().requires_grad_() if t is not None and t.is_floating_point() else t for t in tensors]
        with torch.enable_grad():
            outputs = family.differentiable(leaves, static).execute([t for t in leaves if t is not None])
        pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad and g is not None]
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
        return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found))


class _Tangent(_Once):
    """forward(family, static, count, *tensors, *tangents) -> tangents of the outputs."""

    @staticmethod
    def forward(family: Family, static: dict[str, Any], count: int, *values: Any) -> tuple[torch.Tensor, ...]:
        pairs = [(t.detach(), v) for t, v in zip(values[:count], values[count:]) if t is not None]
        execute = family.differentiable([None if t is None else t.detach() for t in values[:count]], static).execute
        outputs, tangents = tangents_of(execute, [t for t, _ in pairs], [v for _, v in pairs])
        return tuple(torch.zeros_like(o) if t is None else t for o, t in zip(outputs, tangents))


def looped(function: Any, size: int, dims: tuple[Any, ...], tensors: tuple[Any, ...]) -> Any:
    """Run a function for each sample and stack the results: where samples cannot be folded into rows."""
    parts = []
    for i in range(size):
        parts.append(function(*[t if d is None else t.select(d, i) for t, d in zip(tensors, dims)]))
    outputs = tuple(torch.stack(column) for column in zip(*parts))
    return outputs, tuple(0 for _ in outputs)
