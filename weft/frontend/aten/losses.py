"""Losses: negative log likelihood without a gather, where the class of an element is compared with the target as the element passes by; gradients of mean
losses of no element, and of NaN.

As decompositions and not as rules, so that torch's partitioner sees that all of it can be computed again: it then saves 16-bit logits and two numbers per
row instead of the log probabilities in float32. Read first: `nll_loss_forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._decomp.decompositions import pw_cast_for_opmath

aten = torch.ops.aten
REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM = 0, 1, 2
Tensor = torch.Tensor


def _picked(x: Tensor, target: Tensor) -> Tensor:
    """True where the class of an element is its row's target: bool [n, classes]."""
    return torch.arange(x.shape[1], device=x.device).unsqueeze(0) == target.unsqueeze(1)


def _is_taken(x: Tensor, weight: Tensor | None) -> bool:
    return x.dim() == 2 and weight is None and x.numel() != 0


def nll_loss_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """(loss, total weight) as aten returns them; rows with `ignore_index` are ignored. Class weights and 1-D inputs stay with torch."""
    if not _is_taken(x, weight):
        return torchs_own(aten.nll_loss_forward.default)(x, target, weight, reduction, ignore_index)
    loss = -torch.where(_picked(x, target), x, 0.0).sum(1)
    kept = target != ignore_index
    loss = torch.where(kept, loss, 0.0)
    if reduction == REDUCTION_NONE:
        return loss, x.new_zeros(())
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    count, total = kept.sum(dtype=wide), loss.sum(dtype=wide)
    return (total / count if reduction == REDUCTION_MEAN else total).to(x.dtype), count.to(x.dtype)


def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor
) -> Tensor:  # fmt: skip
    """The gradient of the log probabilities: minus the row's gradient at its target, 0 elsewhere."""
    if not _is_taken(x, weight):
        return torchs_own(aten.nll_loss_backward.default)(grad, x, target, weight, reduction, ignore_index, total_weight)
    if reduction == REDUCTION_MEAN:
        grad = grad / total_weight
    rows = torch.where(target != ignore_index, -grad, 0.0)
    return torch.where(_picked(x, target), rows.unsqueeze(1), 0.0)


@pw_cast_for_opmath
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """NaN where a difference is NaN, like torch's kernel; torch's decomposition has the sign of NaN there, which is 0."""
    apart = x - target
    share = grad / torch.sym_max(x.numel(), 1) if reduction == REDUCTION_MEAN else grad
    return torch.where(apart.abs() >= beta, share * torch.sign(apart), share * apart / beta)


def _of_any_count(target: Any) -> Callable[..., Any]:
    """torch's decomposition of the gradient of a loss. It divides by the number of elements, also if that is 0; then there is nothing to divide."""

    def backward(grad: Tensor, x: Tensor, other: Tensor, reduction: int, *rest: Any) -> Any:
        is_empty = any(isinstance(n, int) and n == 0 for n in x.shape)
        return torchs_own(target)(grad, x, other, REDUCTION_SUM if is_empty else reduction, *rest)

    return backward


def torchs_own(target: Any) -> Callable[..., Any]:
    """Return torch's decomposition of an overload."""
    return get_decompositions([target])[target]


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.nll_loss_forward.default: nll_loss_forward, aten.nll_loss_backward.default: nll_loss_backward,
    aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
    **{packet.default: _of_any_count(packet.default) for packet in (aten.mse_loss_backward, aten.huber_loss_backward)},
}  # fmt: skip
"""Overload -> the same in ops that have rules."""
