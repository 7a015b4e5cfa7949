"""Losses as composites: per element or per row, then reduced; equal to torch's of that name.

Owns their formulas. The target of cross_entropy is compared with an iota, so no lookup is needed. Read first: `cross_entropy_rows`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import DataType
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from .calls import Calls
from .composites import WrongChoice, _float, _tensor, composite, count, logsumexp, narrowed, unsqueeze, wide


def reduced(fusion: Fusion, loss: TensorView, reduction: str, dtype: Any, op: str) -> TensorView:
    """Return the loss per element ("none"), its sum or its mean. Errors: WrongChoice."""
    if reduction == "none":
        return narrowed(loss, dtype)
    if reduction not in ("sum", "mean"):
        raise WrongChoice(op=op, argument="reduction", given=reduction, allowed="'none', 'sum' or 'mean'")
    dims = list(range(loss.ndim))
    total = Calls(fusion).sum(loss, dims)
    return narrowed(total / count(loss, dims) if reduction == "mean" else total, dtype)


@composite
def mse_loss(fusion: Fusion, x: Any, target: Any, reduction: str = "mean") -> TensorView:
    """Return the squared difference: torch.nn.functional.mse_loss."""
    difference = _float("mse_loss", _tensor("mse_loss", x)) - wide(target)
    return reduced(fusion, difference * difference, reduction, x.dtype(), "mse_loss")


@composite
def l1_loss(fusion: Fusion, x: Any, target: Any, reduction: str = "mean") -> TensorView:
    """Return the absolute difference: torch.nn.functional.l1_loss."""
    difference = _float("l1_loss", _tensor("l1_loss", x)) - wide(target)
    return reduced(fusion, Calls(fusion).abs(difference), reduction, x.dtype(), "l1_loss")


@composite
def smooth_l1_loss(fusion: Fusion, x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> TensorView:
    """Return the squared difference below beta, else the absolute one: torch.nn.functional.smooth_l1_loss."""
    o, difference = Calls(fusion), _float("smooth_l1_loss", _tensor("smooth_l1_loss", x)) - wide(target)
    size = o.abs(difference)
    loss = size if beta == 0 else o.where(o.lt(size, beta), 0.5 * difference * difference / beta, size - 0.5 * beta)
    return reduced(fusion, loss, reduction, x.dtype(), "smooth_l1_loss")


@composite
def huber_loss(fusion: Fusion, x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> TensorView:
    """Return the squared difference below delta, else a line of that slope: torch.nn.functional.huber_loss."""
    o, difference = Calls(fusion), _float("huber_loss", _tensor("huber_loss", x)) - wide(target)
    size = o.abs(difference)
    loss = o.where(o.le(size, delta), 0.5 * difference * difference, delta * (size - 0.5 * delta))
    return reduced(fusion, loss, reduction, x.dtype(), "huber_loss")


@composite
def binary_cross_entropy_with_logits(fusion: Fusion, x: Any, target: Any, reduction: str = "mean") -> TensorView:
    """Return the cross entropy of sigmoid(x): torch.nn.functional.binary_cross_entropy_with_logits without weights."""
    o, wide_x, y = Calls(fusion), _float("binary_cross_entropy_with_logits", _tensor("binary_cross_entropy_with_logits", x)), wide(target)
    loss = (1.0 - y) * wide_x + o.log1p(o.exp(-o.abs(wide_x))) + o.maximum(-wide_x, 0.0)
    return reduced(fusion, loss, reduction, x.dtype(), "binary_cross_entropy_with_logits")


@composite
def kl_div(fusion: Fusion, x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> TensorView:
    """Return target * (log(target) - x): torch.nn.functional.kl_div; reduction may be "batchmean", too."""
    o, wide_x, y = Calls(fusion), _float("kl_div", _tensor("kl_div", x)), wide(target)
    if log_target:
        loss = o.exp(y) * (y - wide_x)
    else:
        positive = o.gt(y, 0.0)
        loss = o.where(positive, y * o.log(o.where(positive, y, 1.0)), 0.0) - y * wide_x
    if reduction == "batchmean":
        return narrowed(o.sum(loss, list(range(loss.ndim))) / x.size(0), x.dtype())
    return reduced(fusion, loss, reduction, x.dtype(), "kl_div")


def cross_entropy_rows(
    fusion: Fusion, x: Any, target: Any, weight: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0
) -> tuple[TensorView, TensorView]:
    """Return (loss, weight) per row of x [rows, classes], both Float and 0 where the target [rows] is ignore_index.

    A target that is neither that nor a class is an error in the emulator, and under the setting `bounds`. Else it has the loss NaN: a kernel cannot stop, and a
    loss that looks right would hide it.
    weight: 1, or the target's of `weight` [classes]. z_loss: adds z_loss * logsumexp(x)**2. softcap: logits become softcap * tanh(x / softcap).
    """
    o, wide_x = Calls(fusion), _float("cross_entropy", _tensor("cross_entropy", x))
    if softcap:
        wide_x = softcap * o.tanh(wide_x / softcap)
    log_total = logsumexp(fusion, wide_x, [1], True)
    is_target = o.eq(unsqueeze(fusion, o.iota(x.size(1), None, None, DataType.Int), 0), unsqueeze(fusion, target, 1))
    counts = o.ne(target, ignore_index)
    picked = o.sum(o.where(is_target, wide_x, 0.0), [1])
    lse = o.squeeze(log_total, [1])
    scale = None if weight is None else o.sum(o.where(is_target, wide(weight), 0.0), [1])
    loss = lse - picked if scale is None else scale * (lse - picked)
    if label_smoothing:  # the mean over the classes of weight * (lse - x), all sums in the pass over x
        over_all = x.size(1) * lse - o.sum(wide_x, [1]) if weight is None else o.sum(wide(weight), [0]) * lse - o.sum(wide_x * wide(weight), [1])
        loss = (1.0 - label_smoothing) * loss + (label_smoothing / x.size(1)) * over_all
    if z_loss:
        loss = loss + z_loss * lse * lse
    ones = o.cast(counts, DataType.Float)
    weights = ones if weight is None else o.where(counts, scale, 0.0)
    place = o.where(counts, target, 0)
    is_class = o.eq(o.checked_position(place, x.size(1)), place)
    loss = loss + o.where(is_class, 0.0, float("nan"))  # added, so that the backward has nothing of it
    return o.where(counts, loss, 0.0), weights


@composite
def cross_entropy(
    fusion: Fusion, x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
) -> TensorView:
    """Return the cross entropy of logits x [rows, classes] for target [rows] (class numbers): torch.nn.functional.cross_entropy."""
    loss, weights = cross_entropy_rows(fusion, x, target, weight, ignore_index, label_smoothing)
    if reduction != "mean":
        return reduced(fusion, loss, reduction, x.dtype(), "cross_entropy")
    o = Calls(fusion)
    return narrowed(o.sum(loss, [0]) / o.sum(weights, [0]), x.dtype())
