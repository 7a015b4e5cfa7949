"""`import nvfuser_direct` for programs written against nvFuser, served by weft.

Put the folder `compat` on PYTHONPATH (or sys.path). Owns names only.
"""

import importlib
import sys
import warnings
from pathlib import Path

if "nvfuser" in sys.modules:
    warnings.warn("nvfuser_direct is imported although the module nvfuser is already loaded; use one of them", UserWarning, stacklevel=2)

try:
    import weft
except ImportError:  # the checkout is not installed: its root is two folders up
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import weft

from weft.api import nvfuser_variables

from . import _C_DIRECT
from ._C_DIRECT import *  # noqa: F403
from ._C_DIRECT import idm, multidevice, nvf_cutlass, ops, schedule
from .nvfuser_direct_version import __version__, version

nvfuser_variables.take()  # NVFUSER_DUMP and its like

_LAZY = ("FusionExecutorCache", "KernelExecutor")


def __getattr__(name):
    if name in _LAZY:
        return getattr(weft, name)
    if name in ("pytorch_utils", "benchmark_utils"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'nvfuser_direct' has no attribute {name!r}")


__all__ = [*_C_DIRECT.__all__, *_LAZY, "_C_DIRECT", "__version__", "idm", "multidevice", "nvf_cutlass", "ops", "schedule", "version"]
