"""Norms over channels: group, batch and instance norm; vectors divided by their length. Read first: `group_norm`."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..ops import composites as c
from ..runtime.argument_kinds import checked
from .family import Family, written
from .quick import quick
from .results import Tensor, WrongArgument, result_type


def _group_norm(o: Any, x: Any, weight: Any, bias: Any, *, eps: float, out: Any) -> Any:
    """x: [samples, groups, channels of a group, rest ...]; weight and bias: [groups, channels of a group]."""
    wide = c.wide(x)
    variance, average = o.var_mean(wide, list(range(2, x.ndim)), 0, True)
    y = (wide - average) * o.rsqrt(variance + eps)
    spread = [d not in (1, 2) for d in range(x.ndim)]
    y = y if weight is None else y * c.wide(o.broadcast(weight, spread))
    return c.narrowed(y if bias is None else y + c.wide(o.broadcast(bias, spread)), out)


_GROUP_NORM = Family("group_norm", _group_norm, ["input", "weight", "bias"], keeps_layout=True)


@checked
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """torch.nn.functional.group_norm."""
    if input.dim() < 2:
        problem = f"the input has sizes {list(input.shape)}, without an axis of channels"
        raise WrongArgument(function="group_norm", problem=problem, remedy="pass [samples, channels, ...]")
    channels = input.shape[1]
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != (channels,):
            problem = f"{name} has sizes {list(parameter.shape)}, the input {channels} channels"
            raise WrongArgument(function="group_norm", problem=problem, remedy=f"pass a {name} with one element per channel")
    if num_groups < 1 or channels % num_groups or not channels:
        problem = f"{channels} channels cannot be split into {num_groups} groups"
        raise WrongArgument(function="group_norm", problem=problem, remedy="pass [samples, channels, ...] and a number of groups that divides the channels")
    view = input.unflatten(1, (num_groups, channels // num_groups))
    w, b = (None if p is None else p.view(num_groups, channels // num_groups) for p in (weight, bias))
    return _GROUP_NORM((view, w, b), eps=float(eps), out=result_type(input)).flatten(1, 2)


def _batch_norm(
    o: Any, x: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, *, training: bool, momentum: float, eps: float, out: Any, writes: bool
) -> Any:  # fmt: skip
    dims, spread = [d for d in range(x.ndim) if d != 1], [d != 1 for d in range(x.ndim)]
    wide = c.wide(x)
    results: list[Any] = []
    if training or running_mean is None:
        variance, average = o.var_mean(wide, dims, 0, True)
        if training and running_mean is not None:
            n = c.count(x, dims)
            flat_mean, flat_var = o.squeeze(average, dims), o.squeeze(variance, dims)
            unbiased = flat_var * (n / (n - 1.0))
            for old, new in ((running_mean, flat_mean), (running_var, unbiased)):
                value = c.narrowed(c.wide(old) * (1.0 - momentum) + c.detached(o.set(new)) * momentum, old.dtype())
                results.append(written(value, old) if writes else value)
    else:
        average, variance = (c.wide(o.broadcast(v, spread)) for v in (running_mean, running_var))
    y = (wide - average) * o.rsqrt(variance + eps)
    y = y if weight is None else y * c.wide(o.broadcast(weight, spread))
    return (c.narrowed(y if bias is None else y + c.wide(o.broadcast(bias, spread)), out), *results)


_BATCH_NORM = Family("batch_norm", _batch_norm, ["input", "running_mean", "running_var", "weight", "bias"], keeps_layout=True)


@quick
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.batch_norm; running statistics are updated in the same kernel."""
    if training and input.dim() > 1 and input.numel() == input.shape[1]:
        raise WrongArgument(function="batch_norm", problem=f"{list(input.shape)} has only one value per channel", remedy="pass more values when training")
    if (running_mean is None) != (running_var is None):
        problem = f"running_{'var' if running_var is None else 'mean'} is missing, and the other is given"
        raise WrongArgument(function="batch_norm", problem=problem, remedy="pass both, or neither")
    if not training and running_mean is None:
        problem = "training is False and there are no running statistics"
        raise WrongArgument(function="batch_norm", problem=problem, remedy="pass running_mean and running_var, or training=True")
    is_graph = torch.compiler.is_compiling()  # an operator in a graph writes into no input: it returns the new statistics
    static = {"training": bool(training), "momentum": float(momentum), "eps": float(eps), "out": input.dtype, "writes": not is_graph}
    result = _BATCH_NORM((input, running_mean, running_var, weight, bias), **static)
    if isinstance(result, tuple) and running_mean is not None and running_var is not None:
        result, new_mean, new_var = result
        running_mean.copy_(new_mean), running_var.copy_(new_var)
    return result


def _instance_norm(o: Any, x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    return o.instance_norm(x, weight, bias, eps)


_INSTANCE_NORM = Family("instance_norm", _instance_norm, ["input", "weight", "bias"], keeps_layout=True)


@checked
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.instance_norm; running statistics are taken over all samples, as torch does."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if math.prod(input.shape[2:]) == 1:
        problem = f"{list(input.shape)} has only one value per sample and channel"
        raise WrongArgument(function="instance_norm", problem=problem, remedy="pass [samples, channels, values, ...] with more values")
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            dims = tuple(range(2, input.dim()))
            variance, average = torch.var_mean(input.detach().to(running_mean.dtype), dims)
            running_mean.lerp_(average.mean(0), momentum)
            running_var.lerp_(variance.mean(0), momentum)
    return _INSTANCE_NORM((input, weight, bias), eps=float(eps))


def _normalize(o: Any, x: Any, *, p: float, dim: int, eps: float, out: Any) -> Any:
    return c.narrowed(o.normalize(c.wide(x), p, dim, eps), out)


_NORMALIZE = Family("normalize", _normalize, ["input"], keeps_layout=True)


@quick
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """torch.nn.functional.normalize."""
    if out is not None:
        raise WrongArgument(function="normalize", problem="out is given", remedy="use the returned tensor")
    return _NORMALIZE((input,), p=float(p), dim=int(dim), eps=float(eps), out=result_type(input))


__all__ = ["batch_norm", "group_norm", "instance_norm", "normalize"]
