"""Transforms of operators made from definitions: second-order gradients, forward-mode tangents, batching by torch.func.

Owns which calls autograd alone sees, the refusals where a derivative would be lost, and the loop over a batch. Read first: `runs_eagerly`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function

from ..errors import Unsupported
from ..runtime.gradient_check import has_tangent

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class DerivativeLost(Unsupported):
    code = "W188"
    what = "{problem}"
    fix = "{remedy}"


def runs_eagerly(tensors: Sequence[Any]) -> bool:
    """Tell whether nothing but autograd sees a call: no tracer, no mode of torch's dispatcher, no transform of torch.func, and plain tensors."""
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
        return False
    return all(type(t) in _PLAIN and not t.is_meta for t in tensors)


def wants_tangents(tensors: Sequence[Any]) -> bool:
    """Tell whether forward mode is on for one of the tensors."""
    return torch.autograd.forward_ad._current_level >= 0 and any(has_tangent(t) for t in tensors)


def refuse_tangents(name: str, tensors: Sequence[Any]) -> None:
    """Errors: DerivativeLost for tangents where a graph is traced."""
    if wants_tangents(tensors):
        raise DerivativeLost(
            problem=f"{name}: tangents of forward mode do not pass through an operator in a graph that is traced",
            remedy="use torch.func.vjp or jacrev there, or jvp outside of torch.compile and torch.export",
        )


def recorded_below(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Return `function.apply(*arguments)` in a kernel for autograd: below a transform of torch.func, autograd is that transform's own."""
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


class _WithoutGradient(torch.autograd.Function):
    """forward(name, call, *tensors) -> what call() returns; a gradient of it is an error and not lost."""

    @staticmethod
    def forward(ctx: Any, name: str, call: Callable[[], list[torch.Tensor]], *tensors: Any) -> tuple[torch.Tensor, ...]:
        ctx.name = name
        with torch._C._AutoDispatchBelowAutograd():
            outputs = call()
        ctx.mark_non_differentiable(*[o for o in outputs if not o.is_floating_point()])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise DerivativeLost(
            problem=f"{ctx.name}: a derivative of the operator is differentiated again in a graph that is traced",
            remedy="use torch.func.hessian or torch.autograd.grad(create_graph=True) outside of torch.compile and torch.export",
        )


def without_gradient(name: str, call: Callable[[], list[torch.Tensor]], tensors: Sequence[Any]) -> list[torch.Tensor]:
    """Return what call() returns, the operator `name` on `tensors`. Errors: DerivativeLost when that is differentiated."""
    refuse_tangents(name, tensors)
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
        return list(recorded_below(_WithoutGradient, name, call, *tensors))
    with torch._C._AutoDispatchBelowAutograd():
        return call()


@contextmanager
def derivatives_above() -> Iterator[None]:
    """Let transforms around the innermost one see derivatives again: torch turns both modes off while a Function's forward runs."""
    is_transformed = torch._C._are_functorch_transforms_active()
    with torch.set_grad_enabled(is_transformed), torch.autograd.forward_ad._set_fwd_grad_enabled(is_transformed):
        yield


def below_transform(tensor: Any) -> Any:
    """Return a tensor as the transform around the innermost one sees it: a backward that torch.func asks for has no gradient of its own there."""
    functorch = torch._C._functorch
    if not isinstance(tensor, torch.Tensor) or not functorch.is_gradtrackingtensor(tensor):
        return tensor
    return functorch.get_unwrapped(tensor) if functorch.maybe_get_level(tensor) == functorch.peek_interpreter_stack().level() else tensor


def of_each_sample(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return a batching rule that calls `op` for each sample and stacks the results."""

    def rule(info: Any, in_dims: Sequence[Any], *values: Any) -> Any:
        parts = [op(*[_sample(v, d, i) for v, d in zip(values, in_dims)]) for i in range(info.batch_size)]
        if isinstance(parts[0], torch.Tensor):
            return torch.stack(parts), 0
        stacked = [torch.stack(column) for column in zip(*parts)]
        return type(parts[0])(stacked), type(parts[0])([0] * len(stacked))

    return rule


def _sample(value: Any, dim: Any, i: int) -> Any:
    """Return what is sample `i` of a value that is batched along `dim`."""
    if isinstance(value, (list, tuple)) and isinstance(dim, (list, tuple)):
        return [_sample(v, d, i) for v, d in zip(value, dim)]
    return value if dim is None else value.select(dim, i)
