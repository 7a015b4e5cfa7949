"""weft for models: functions and modules with torch's signatures, computed by fused kernels forward and backward.

`weft.nn.functional` has the functions, this package the modules, `weft.nn.patch` swaps them into a model. Read first: `functional`.
"""

from typing import Any

import torch as _torch

from . import functional
from .modules import (
    GELU, AddRMSNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, CrossEntropyLoss, GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, KLDivLoss, LayerNorm,
    LogSoftmax, RMSNorm, SiLU, Softmax, SwiGLU,
)  # fmt: skip
from .library import register_all
from .patching import patch

register_all()

__all__ = [
    "AddRMSNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CrossEntropyLoss", "GELU", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "KLDivLoss", "LayerNorm", "LogSoftmax", "RMSNorm", "SiLU", "Softmax", "SwiGLU", "functional", "patch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    theirs = ": weft has no kernel for it, use torch.nn." + name if hasattr(_torch.nn, name) else "; dir(weft.nn) lists what it has"
    raise AttributeError(f"module 'weft.nn' has no attribute {name!r}{theirs}")


def __dir__() -> list[str]:
    return sorted(__all__)
