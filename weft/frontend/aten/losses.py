"""Negative log likelihood without a gather: the class of an element is compared with the target where the element passes by. Read first: `_picked`."""

from __future__ import annotations

from typing import Any

import torch

from .rules import Declined, Operand, Translation, rule

aten = torch.ops.aten
REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM = 0, 1, 2


def _picked(t: Translation, x: Operand, target: Operand) -> Operand:
    """Where the class index of an element is its row's target: bool [n, classes]."""
    shape = x.shape()
    zero, one = t.constant(0, torch.int64), t.constant(1, torch.int64)
    classes = t.ops.broadcast_in_dim(t.ops.iota(shape[1], zero, one), shape=shape, broadcast_dims=[1])
    return t.ops.eq(classes, t.ops.broadcast_in_dim(target, shape=shape, broadcast_dims=[0]))


def _check(x: Operand, weight: Operand) -> None:
    if weight is not None:
        raise Declined("class weights")
    if x.ndim != 2:
        raise Declined(f"log probabilities of {x.ndim} axes")


@rule(aten.nll_loss_forward.default)
def nll_loss_forward(t: Translation, x: Operand, target: Operand, weight: Operand, reduction: int, ignore_index: int) -> Any:
    """(loss, total weight) as aten returns them; rows of `ignore_index` count for nothing. Errors: Declined for class weights."""
    _check(x, weight)
    ops, x = t.ops, t.wide(x)
    zero = t.zero(x)
    loss = ops.neg(ops.sum(ops.where(_picked(t, x, target), x, zero), dims=[1]))
    kept = ops.ne(target, ignore_index)
    loss = ops.where(kept, loss, zero)
    count = ops.sum(ops.cast(kept, dtype=x.dtype()), dims=[0])
    if reduction == REDUCTION_NONE:
        return loss, ops.mul(count, 0.0)
    total = ops.sum(loss, dims=[0])
    return (ops.truediv(total, count) if reduction == REDUCTION_MEAN else total), count


@rule(aten.nll_loss_backward.default)
def nll_loss_backward(
    t: Translation, grad: Operand, x: Operand, target: Operand, weight: Operand, reduction: int, ignore_index: int, total_weight: Operand
) -> Operand:  # fmt: skip
    """The gradient of the log probabilities: minus the row's gradient at its target, 0 elsewhere."""
    _check(x, weight)
    ops, shape, grad = t.ops, x.shape(), t.wide(grad)
    if reduction == REDUCTION_MEAN:
        grad = ops.truediv(grad, t.wide(total_weight))
    rows = ops.where(ops.ne(target, ignore_index), ops.neg(grad), t.zero(grad))
    spread = ops.broadcast_in_dim(rows, shape=shape, broadcast_dims=[0])
    return ops.where(_picked(t, x, target), spread, t.zero(grad))
