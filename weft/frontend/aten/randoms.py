"""Dropout and random tensors, drawn inside kernels: other numbers than eager torch's from the same seed, equally distributed."""

from __future__ import annotations

from typing import Any

import torch

from .rules import Declined, Operand, Translation, rule

aten = torch.ops.aten


def _uniform(t: Translation, shape: list[Any]) -> Operand:
    return t.ops.uniform(t.constant(0.0, torch.float32), t.constant(1.0, torch.float32), shape=shape, dtype=t.dtype(torch.float32))


@rule(aten.native_dropout.default)
def native_dropout(t: Translation, x: Operand, p: float, train: bool | None) -> Any:
    """(values, mask of the kept elements). Errors: Declined if no random numbers are drawn."""
    if train is False or not 0 <= p < 1:
        raise Declined("dropout with probability 0 or 1")
    wide = t.wide(x)
    mask = t.ops.ge(_uniform(t, wide.shape()), p)
    return t.ops.where(mask, t.ops.mul(wide, 1 / (1 - p)), t.zero(wide)), mask


@rule(aten.native_dropout_backward.default)
def native_dropout_backward(t: Translation, grad: Operand, mask: Operand, scale: float) -> Operand:
    grad = t.wide(grad)
    return t.ops.where(mask, t.ops.mul(grad, scale), t.zero(grad))
