"""Losses. Read first: `cross_entropy`."""

from __future__ import annotations

from typing import Any

import torch

from ..ops import composites as c
from .family import Family
from .quick import quick
from .results import Tensor, WrongArgument, result_type


def _cross_entropy(
    o: Any, x: Any, target: Any, weight: Any, *, ignore_index: int, reduction: str, smoothing: float, z_loss: float, softcap: float, out: Any
) -> Any:
    from ..ops.losses import cross_entropy_rows

    loss, weights = cross_entropy_rows(x.fusion, x, target, weight, ignore_index, smoothing, z_loss, softcap)
    if reduction == "none":
        return c.narrowed(loss, out)
    total = o.sum(loss, [0])
    return c.narrowed(total if reduction == "sum" else total / o.sum(weights, [0]), out)


_CROSS_ENTROPY = Family("cross_entropy", _cross_entropy, ["input", "target", "weight"])


def _reduction(function: str, size_average: Any, reduce: Any, reduction: str, allowed: tuple[str, ...] = ("none", "mean", "sum")) -> str:
    if size_average is not None or reduce is not None:
        raise WrongArgument(function=function, problem="size_average and reduce are not supported", remedy="use reduction='mean', 'sum' or 'none'")
    if reduction not in allowed:
        raise WrongArgument(function=function, problem=f"reduction is {reduction!r}", remedy=f"use one of {', '.join(allowed)}")
    return reduction


@quick
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100, reduce: bool | None = None,
    reduction: str = "mean", label_smoothing: float = 0.0, *, z_loss: float = 0.0, softcap: float = 0.0, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.cross_entropy for class numbers. z_loss: adds z_loss * logsumexp**2 per row; softcap: logits become softcap * tanh(x / softcap).

    out_dtype: type of the loss, the input's unless given; it is computed in float32 from logits of 16 bits as they are.
    The loss is NaN where a target is neither a class nor ignore_index.
    """
    reduction = _reduction("cross_entropy", size_average, reduce, reduction)
    if target.is_floating_point():
        problem = "the target has probabilities"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="write -(target * log_softmax(input, 1)).sum(1).mean()")
    if input.dim() == 0 or tuple(target.shape) != (*input.shape[:1], *input.shape[2:])[: max(input.dim() - 1, 0)] and input.dim() > 1:
        problem = f"input has sizes {list(input.shape)}, the target {list(target.shape)}"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="pass logits [rows, classes, ...] and class indices [rows, ...]")
    if weight is not None and weight.requires_grad and torch.is_grad_enabled():
        problem = "weight requires a gradient, and the loss has none with respect to it, as in torch"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="pass weight.detach()")
    if not 0.0 <= label_smoothing <= 1.0:
        problem = f"label_smoothing is {label_smoothing}"
        raise WrongArgument(function="cross_entropy", problem=problem, remedy="use a label_smoothing from 0 to 1")
    classes = input.shape[1] if input.dim() > 1 else input.shape[0]
    static = {
        "ignore_index": int(ignore_index), "reduction": reduction, "smoothing": float(label_smoothing), "z_loss": float(z_loss), "softcap": float(softcap),
        "out": result_type(input, out_dtype, "cross_entropy", is_loss=True),
    }  # fmt: skip
    if input.dim() == 2:  # as they are, so that the call can be remembered
        return _CROSS_ENTROPY((input, target, weight), **static)
    rows = input.movedim(1, -1) if input.dim() > 2 else input
    loss = _CROSS_ENTROPY((rows.reshape(-1, classes), target.reshape(-1), weight), **static)
    return loss.reshape(target.shape) if reduction == "none" else loss


def _kl_div(o: Any, x: Any, y: Any, *, reduction: str, log_target: bool, out: Any) -> Any:
    return c.narrowed(o.kl_div(c.wide(x), c.wide(y), reduction, log_target), out)


_KL_DIV = Family("kl_div", _kl_div, ["input", "target"])


@quick
def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean", log_target: bool = False
) -> Tensor:  # fmt: skip
    """torch.nn.functional.kl_div. Errors: WrongArgument."""
    reduction = _reduction("kl_div", size_average, reduce, reduction, ("none", "mean", "sum", "batchmean"))
    if not isinstance(log_target, bool):
        raise WrongArgument(function="kl_div", problem=f"log_target is {log_target!r}", remedy="pass True if the target has logarithms, else False")
    return _KL_DIV((input, target), reduction=reduction, log_target=log_target, out=result_type(input, is_loss=True))


__all__ = ["cross_entropy", "kl_div"]
