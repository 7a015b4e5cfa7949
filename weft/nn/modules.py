"""Modules with torch's names, arguments and state, whose forwards are the functions of `weft.nn.functional`.

Each is a subclass of torch's module, so that state dicts load both ways and `isinstance` holds. Read first: `LayerNorm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import WeftError
from ..runtime.argument_kinds import check_tensor, checked_init
from . import functional as F
from .results import WrongArgument

Tensor = torch.Tensor


@checked_init
class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over the last axes."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


@checked_init
class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm. weight_offset, casting: see `weft.nn.functional.rms_norm`; with a residual, forward returns (result, sum)."""

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True, device: Any = None, dtype: Any = None, *,
        weight_offset: float = 0.0, casting: str = "torch",
    ) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, elementwise_affine, device=device, dtype=dtype)
        self.weight_offset, self.casting = weight_offset, casting

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Normalize over the last axes."""
        offset, casting = self.weight_offset, self.casting
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps, residual=residual, weight_offset=offset, casting=casting)


@checked_init
class AddRMSNorm(RMSNorm):
    """forward(x, residual) -> (norm of the sum, the sum)."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Add, normalize over the last axes, return both."""
        if residual is None and isinstance(x, torch.Tensor):
            residual = torch.zeros_like(x)
        return super().forward(x, residual)


@checked_init
class GroupNorm(nn.GroupNorm):
    """torch.nn.GroupNorm."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each group of channels of each sample."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def _coded(module: nn.Module, function: Callable[[Tensor], Any], input: Tensor) -> Any:
    """Return function(input), which torch wrote; its complaints get a code, and stay the kind of error that they are. Errors: NotATensor, WrongArgument."""
    if torch.compiler.is_compiling():
        return function(input)
    check_tensor(type(module).__name__, "input", input)
    try:
        return function(input)
    except WeftError:
        raise
    except ValueError as error:
        remedy = "pass sizes that fit the module, or use the module for that rank"
        raise WrongArgument(function=type(module).__name__, problem=str(error), remedy=remedy) from None


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """What the batch norms share: torch's counting of batches and choice of statistics."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize per channel; in training update the running statistics."""
        _coded(self, self._check_input_dim, input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        uses_batch = self.training or self.running_mean is None and self.running_var is None
        keep = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if keep else (None, None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, uses_batch, momentum, self.eps)


@checked_init
class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d."""


@checked_init
class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d."""


@checked_init
class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d."""


class _InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    """What the instance norms share."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel of each sample."""
        return _coded(self, super().forward, input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        momentum = 0.0 if self.momentum is None else self.momentum
        uses_batch = self.training or not self.track_running_stats
        return F.instance_norm(input, self.running_mean, self.running_var, self.weight, self.bias, uses_batch, momentum, self.eps)


@checked_init
class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d."""


@checked_init
class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d."""


@checked_init
class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d."""


@checked_init
class Softmax(nn.Softmax):
    """torch.nn.Softmax."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the softmax along `dim`."""
        return F.softmax(input, self.dim)


@checked_init
class LogSoftmax(nn.LogSoftmax):
    """torch.nn.LogSoftmax."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the logarithm of the softmax along `dim`."""
        return F.log_softmax(input, self.dim)


@checked_init
class GELU(nn.GELU):
    """torch.nn.GELU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return gelu(input)."""
        return F.gelu(input, self.approximate)


@checked_init
class SiLU(nn.SiLU):
    """torch.nn.SiLU, out of place."""

    def forward(self, input: Tensor) -> Tensor:
        """Return silu(input)."""
        return F.silu(input)


@checked_init
class SwiGLU(nn.Module):
    """silu(gate) * value, of two tensors or of one that holds both side by side. It has no parameters."""

    def forward(self, gate: Tensor, value: Tensor | None = None) -> Tensor:
        """Return silu(gate) * value."""
        return F.swiglu(gate, value)


@checked_init
class CrossEntropyLoss(nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss for class numbers. z_loss, softcap: see `weft.nn.functional.cross_entropy`."""

    def __init__(self, *args: Any, z_loss: float = 0.0, softcap: float = 0.0, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.z_loss, self.softcap = z_loss, softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        keywords = {"weight": self.weight, "ignore_index": self.ignore_index, "reduction": self.reduction, "label_smoothing": self.label_smoothing}
        return F.cross_entropy(input, target, **keywords, z_loss=self.z_loss, softcap=self.softcap)  # type: ignore[arg-type]


@checked_init
class KLDivLoss(nn.KLDivLoss):
    """torch.nn.KLDivLoss."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)
