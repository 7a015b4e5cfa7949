"""weft for models: functions and modules with torch's signatures, computed by fused kernels forward and backward.

`weft.nn.functional` has the functions, this package the modules, `weft.nn.patch` swaps them into a model. Read first: `functional`.
"""

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
